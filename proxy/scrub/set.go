package scrub

import (
	"encoding/base64"
	"slices"
	"strings"
	"sync/atomic"
)

// Mask replaces every byte of a secret.
const Mask = '*'

// Set is a compiled set of secrets. It is immutable, except for [Set.Supersede]. A nil or zero Set has no matches. Safe for
// concurrent use.
type Set struct {
	patterns []*pattern
	starts   [256][]*pattern // patterns that may begin with this byte
	pairs    [1 << 16 / 64]uint64
	next     atomic.Pointer[Set] // supersedes it
}

// New compiles secrets. Those shorter than [MinLength] are ignored; if none remain it returns nil.
func New(secrets []string) *Set {
	secrets = slices.DeleteFunc(slices.Clone(secrets), func(s string) bool { return len(s) < MinLength })
	if len(secrets) == 0 {
		return nil
	}
	slices.Sort(secrets)
	s := &Set{}
	for _, text := range slices.Compact(secrets) {
		for _, p := range patterns(text) {
			s.add(p)
		}
	}
	return s
}

// add indexes a pattern by its possible first bytes and byte pairs. Two bytes suffice to rule out nearly all text that
// is not a secret.
func (s *Set) add(p *pattern) {
	s.patterns = append(s.patterns, p)
	var seconds []byte
	for c := range 256 {
		if special[c] || p.matches(1, byte(c)) {
			seconds = append(seconds, byte(c))
		}
	}
	for c := range 256 {
		first := byte(c)
		switch {
		case special[c]:
			for _, second := range escapeSeconds(p, first) {
				s.addPair(first, second)
			}
			if p.matches(0, first) || (c == '+' && p.matches(0, ' ')) {
				s.addPairs(first, seconds)
			}
		case p.matches(0, first):
			s.addPairs(first, seconds)
		default:
			continue
		}
		s.starts[c] = append(s.starts[c], p)
	}
}

// escapeSeconds returns the bytes that may follow first if it begins an escape of a pattern's first symbol.
func escapeSeconds(p *pattern, first byte) (out []byte) {
	switch first {
	case '%':
		out = append(out, '2') // of %25
		for c := range 256 {
			if p.matches(0, byte(c)) {
				out = append(out, "0123456789abcdef"[c>>4], "0123456789ABCDEF"[c>>4])
			}
		}
	case '\\':
		out = append(out, `\ux`...)
		for c, v := range backslashed {
			if v != 0 && p.matches(0, v) {
				out = append(out, byte(c))
			}
		}
	case '&':
		out = append(out, '#')
		for name, v := range entities {
			if p.matches(0, v) {
				out = append(out, name[0])
			}
		}
	}
	return out
}

func (s *Set) addPairs(first byte, seconds []byte) {
	for _, second := range seconds {
		s.addPair(first, second)
	}
}

func (s *Set) addPair(first, second byte) {
	i := uint(first)<<8 | uint(second)
	s.pairs[i/64] |= 1 << (i % 64)
}

func (s *Set) mayBegin(first, second byte) bool {
	i := uint(first)<<8 | uint(second)
	return s.pairs[i/64]>>(i%64)&1 != 0
}

// Mask masks a complete text in place, and reports whether it contained a secret.
func (s *Set) Mask(b []byte) bool {
	if s == nil {
		return false
	}
	_, _, masked := s.union(s.latest()).scan(b, 0, true)
	return masked
}

// MaskString returns a complete text masked.
func (s *Set) MaskString(text string) string {
	if s == nil {
		return text
	}
	b := []byte(text)
	if !s.Mask(b) {
		return text
	}
	return string(b)
}

// scan masks b in place and returns the number of bytes decided: the rest could be the beginning of a form, unless the text
// is complete. until is the end of the mask of a form that began before b; the new one is returned, relative to the decided
// bytes. Forms may overlap: each is searched for in the original text, because a byte is masked only after all forms that
// begin there were found.
func (s *Set) scan(b []byte, until int, complete bool) (decided, rest int, masked bool) {
	for at := 0; at < len(b); at++ {
		if at >= until {
			if at = s.skip(b, at); at == len(b) {
				break
			}
		}
		end, more := s.find(b[at:])
		if more && !complete {
			return at, max(until-at, 0), masked
		}
		if end > 0 {
			until = max(until, at+end)
		}
		if at < until {
			b[at], masked = Mask, true
		}
	}
	return len(b), max(until-len(b), 0), masked
}

// skip returns the first offset at which a form may begin.
func (s *Set) skip(b []byte, at int) int {
	for ; at+1 < len(b); at++ {
		if s.mayBegin(b[at], b[at+1]) {
			return at
		}
	}
	if at < len(b) && len(s.starts[b[at]]) == 0 {
		at++
	}
	return at
}

// find checks whether a form begins at b[0], for every pattern that may begin with these bytes.
func (s *Set) find(b []byte) (end int, more bool) {
	var escaped readings
	if special[b[0]] {
		escaped.parse(b)
	}
	for _, p := range s.starts[b[0]] {
		if !p.begins(b, &escaped) {
			continue
		}
		e, m := p.find(b)
		end, more = max(end, e), more || m
	}
	return end, more
}

// begins reports whether a form may begin at b[0]. If that is a special byte, escaped contains its readings. It avoids most
// calls of find.
func (p *pattern) begins(b []byte, escaped *readings) bool {
	if special[b[0]] {
		if escaped.short {
			return true
		}
		for _, r := range escaped.list[:escaped.n] {
			if p.matchesReading(0, r) {
				return true
			}
		}
		return false
	}
	return len(b) == 1 || special[b[1]] || p.matches(1, b[1])
}

// MinLength is the length in bytes of the shortest text that is searched for. Shorter ones occur in many responses by
// chance, and masking them would reveal more than it hides.
const MinLength = 8

// Texts returns the texts to mask for a header value: for "Bearer x" and the like only x, as that is what servers
// reflect; for "Basic x" also the password in it, and user and password together; for cookies and parameters such as
// token="x" also each value. Texts shorter than [MinLength] are left out, so the result may be empty.
func Texts(value string) []string {
	value = strings.Trim(value, " \t")
	scheme, credential, found := strings.Cut(value, " ")
	credential = strings.Trim(credential, " \t")
	all := []string{value}
	if found && isScheme(scheme) && len(credential) >= MinLength {
		all = []string{credential} // it is part of every form of the whole
		if strings.EqualFold(scheme, "basic") {
			all = append(all, basic(credential)...)
		}
	}
	all = append(all, parameters(all[0])...)
	all = slices.DeleteFunc(all, func(s string) bool { return len(s) < MinLength })
	slices.Sort(all)
	return slices.Compact(all)
}

// isScheme reports whether s could be the scheme of an Authorization header (RFC 9110, 11.1): a short token.
func isScheme(s string) bool {
	return s != "" && len(s) <= 32 && !strings.ContainsFunc(s, func(r rune) bool {
		return r != '-' && r != '_' && r != '.' && (r < '0' || r > '9') && (r|0x20 < 'a' || r|0x20 > 'z')
	})
}

// basic returns the secrets in basic authentication credentials (RFC 7617). The user is not one, unless there is no
// real password: some services take a token as the user.
func basic(credential string) []string {
	decoded, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(credential, "="))
	if err != nil {
		return nil
	}
	user, password, found := strings.Cut(string(decoded), ":")
	switch {
	case !found:
		return []string{user}
	case len(password) < MinLength || password == "x-oauth-basic":
		return []string{string(decoded), user}
	}
	return []string{string(decoded), password}
}

// parameters returns the values if the whole text is a list of name=value, separated by semicolons or commas.
func parameters(text string) (values []string) {
	for element := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == ';' || r == ',' }) {
		name, value, found := strings.Cut(strings.TrimSpace(element), "=")
		if !found || !isScheme(name) {
			return nil
		}
		values = append(values, strings.Trim(value, `"`))
	}
	return values
}

// Supersede makes next the set to search for from now on: texts being searched for s that have not ended are searched
// for next as well. s may be nil, which has no effect. Safe for concurrent use.
func (s *Set) Supersede(next *Set) {
	if s != nil && next != nil && s != next {
		s.next.Store(next)
	}
}

// latest returns the set that supersedes all before it: s itself if it was not superseded.
func (s *Set) latest() *Set {
	for s != nil {
		next := s.next.Load()
		if next == nil {
			break
		}
		s = next
	}
	return s
}

// union returns a set that finds the secrets of both. The sets that supersede s supersede it as well.
func (s *Set) union(other *Set) *Set {
	if s == other {
		return s
	}
	both := &Set{patterns: slices.Concat(s.patterns, other.patterns)}
	for c := range both.starts {
		both.starts[c] = slices.Concat(s.starts[c], other.starts[c])
	}
	for i := range both.pairs {
		both.pairs[i] = s.pairs[i] | other.pairs[i]
	}
	return both
}

// currentSet returns the set for the next chunk of the text: the stream's own set combined with the latest.
func (s *Stream) currentSet() *Set {
	if latest := s.own.latest(); latest != s.latest {
		s.set, s.latest = s.own.union(latest), latest
	}
	return s.set
}
