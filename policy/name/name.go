package name

import (
	"net/netip"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/net/idna"
	"golang.org/x/net/publicsuffix"
)

// Name is a host name in canonical form: lower case, no trailing dot, IDNA as punycode, every label 1 to 63 bytes, at
// most 253 in all. Only [Parse] makes one, so a Name can be compared with == and used as a map key. The zero Name
// is an unknown name and matches no pattern, not even "*".
type Name struct{ s string }

// String returns the canonical form, or "" for the zero Name.
func (n Name) String() string { return n.s }

// IsZero reports whether the name is unknown.
func (n Name) IsZero() bool { return n.s == "" }

// Limits of RFC 1035, and the length of the longest text that is parsed at all.
const (
	maxNameLen  = 253
	maxLabelLen = 63
	maxInputLen = 1024
)

// Parse returns the canonical form of a host name. It refuses texts that a resolver or a server might interpret differently:
// IP addresses in every spelling (also the decimal, octal, hexadecimal and short ones of RFC 3986 7.4), names whose last
// label is a number, URLs, ports, wildcards, empty labels, spaces and control bytes. The error contains the corrected form
// if it is obvious.
func Parse(s string) (Name, error) {
	if isCanonical(s) {
		return Name{s}, nil
	}
	n, flaw := parseName(s)
	if flaw != "" {
		return Name{}, nameError(s, flaw)
	}
	return n, nil
}

// isCanonical reports whether s is already a name in canonical form, as nearly every SNI and Host is. False negatives are
// possible (punycode), false positives are not.
func isCanonical(s string) bool {
	if len(s) > maxNameLen {
		return false
	}
	label := 0 // start of the current label
	for i := 0; i <= len(s); i++ {
		if i < len(s) && s[i] != '.' {
			if !isLDH(s[i]) {
				return false
			}
			continue
		}
		if i == label || i-label > maxLabelLen || strings.HasPrefix(s[label:i], punycodePrefix) {
			return false
		}
		if i < len(s) {
			label = i + 1
		}
	}
	return !isNumber(s[label:])
}

// isLDH reports whether c is valid in a canonical label: lower-case letters, digits and hyphens, and the underscore for
// service names such as _acme-challenge.
func isLDH(c byte) bool {
	return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '-' || c == '_'
}

const punycodePrefix = "xn--"

// lookup is the IDNA mapping of browsers (UTS 46, non-transitional), without the rules against hyphens in the third and fourth
// position and against underscores, which existing names break.
var lookup = idna.New(idna.MapForLookup(), idna.Transitional(false), idna.StrictDomainName(false),
	idna.CheckHyphens(false), idna.BidiRule())

// parseName implements [Parse]. flaw completes the sentence `"…" is …`, or is empty.
func parseName(s string) (n Name, flaw string) {
	if flaw := shapeFlaw(s); flaw != "" {
		return Name{}, flaw
	}
	ascii, ok := toASCII(s)
	if !ok {
		return Name{}, "is not a valid internationalised name"
	}
	ascii = strings.TrimSuffix(ascii, ".")
	if len(ascii) > maxNameLen {
		return Name{}, "is longer than 253 bytes"
	}
	labels := strings.Split(ascii, ".")
	for _, label := range labels {
		if flaw := labelFlaw(label); flaw != "" {
			return Name{}, flaw
		}
	}
	if isNumber(labels[len(labels)-1]) {
		if a, ok := legacyIPv4(labels); ok {
			return Name{}, "is the IP address " + a.String() + ", not a host name"
		}
		return Name{}, "ends in a number, which no host name does"
	}
	return Name{ascii}, ""
}

// toASCII maps s to lower-case ASCII. Punycode in the text or in the result must round-trip, so that two spellings of one name
// do not become two names.
func toASCII(s string) (string, bool) {
	var err error
	if !isASCII(s) {
		if s, err = lookup.ToASCII(s); err != nil {
			return "", false
		}
	}
	s = strings.ToLower(s)
	if !strings.HasPrefix(s, punycodePrefix) && !strings.Contains(s, "."+punycodePrefix) {
		return s, isASCII(s)
	}
	again, err := lookup.ToASCII(s)
	return s, err == nil && again == s
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// shapeFlaw recognises URLs and other texts that are not host names, for the error message.
func shapeFlaw(s string) string {
	switch {
	case s == "":
		return "is empty"
	case len(s) > maxInputLen:
		return "is too long"
	case !utf8.ValidString(s):
		return "is not valid UTF-8"
	case strings.IndexFunc(s, IsBlank) >= 0:
		return "has a space or control character"
	case strings.Contains(s, "://"):
		return "is a URL"
	case isAddress(s):
		return "is an IP address, not a host name"
	case isPrefix(s):
		return "is a CIDR, not a host name"
	case strings.ContainsAny(s, `/\?#`):
		return "has a path"
	case strings.Contains(s, "@"):
		return "has a user name"
	case strings.Contains(s, ":"):
		return "has a port"
	}
	return ""
}

func IsBlank(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }

func isPrefix(s string) bool {
	_, err := netip.ParsePrefix(s)
	return err == nil
}

// isAddress reports whether s is an IP address, with or without brackets, zone and port.
func isAddress(s string) bool {
	if _, err := netip.ParseAddrPort(s); err == nil {
		return true
	}
	_, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(s, "["), "]"))
	return err == nil
}

func labelFlaw(label string) string {
	if label == "" {
		return "has an empty label"
	}
	if len(label) > maxLabelLen {
		return "has a label longer than 63 bytes"
	}
	for i := range len(label) {
		switch c := label[i]; {
		case isLDH(c):
		case c == '*':
			return `has a * that is not the whole first label`
		default:
			return "has a character that is not allowed in a host name (" + Quote(string(c)) + ")"
		}
	}
	return ""
}

// IsLoopback reports whether the name is localhost or below it, which resolvers resolve to the machine itself (RFC 6761,
// 6.3).
func (n Name) IsLoopback() bool { return n.s == "localhost" || strings.HasSuffix(n.s, ".localhost") }

// IsWithin reports whether n is the domain or at any depth below it. No name is within the zero Name.
func (n Name) IsWithin(domain Name) bool {
	return !domain.IsZero() && (n == domain || isBelow(n, domain))
}

// IsPublic reports whether the name can be that of a host on the internet: below a delegated top-level domain. Single
// labels, special-use names (RFC 6761: localhost, local, test, invalid, home.arpa and the like), internal and any other
// top-level domain made up by a site are not. A domain that was delegated after the list of golang.org/x/net/publicsuffix was
// made is treated as made up.
func (n Name) IsPublic() bool {
	dot := strings.LastIndexByte(n.s, '.')
	if dot < 0 {
		return false
	}
	switch n.s[dot+1:] {
	case "arpa", "onion": // infrastructure (RFC 3172), and no DNS name (RFC 7686)
		return false
	}
	suffix, icann := publicsuffix.PublicSuffix(n.s)
	return icann || strings.Contains(suffix, ".") // a private entry is below a delegated domain; one label is the default rule
}

// isNumber reports whether a resolver may parse a last label as a number, and the whole name as an IPv4 address:
// decimal and octal digits, or hexadecimal ones after 0x (WHATWG URL, "ends in a number").
func isNumber(label string) bool {
	if label == "" {
		return false
	}
	digits, hex := strings.CutPrefix(label, "0x")
	for i := range len(digits) {
		c := digits[i]
		if '0' <= c && c <= '9' || hex && 'a' <= c && c <= 'f' {
			continue
		}
		return false
	}
	return true
}

// MeansAddress reports whether s is an IP address in any spelling, optionally inside a URL, or a CIDR.
func MeansAddress(s string) bool {
	if isPrefix(s) {
		return true
	}
	if s = bareHost(s); isAddress(s) {
		return true
	}
	_, ok := legacyIPv4(strings.Split(strings.ToLower(strings.TrimSuffix(s, ".")), "."))
	return ok
}

// legacyIPv4 reads the forms that inet_aton accepts in addition to four decimal numbers: one to four parts, each
// decimal, octal or hexadecimal, the last one filling the remaining bytes. It is only used for the address in the error
// message.
func legacyIPv4(labels []string) (netip.Addr, bool) {
	if len(labels) > 4 {
		return netip.Addr{}, false
	}
	var sum uint64
	for i, label := range labels {
		v, ok := legacyNumber(label)
		last := i == len(labels)-1
		if !ok || !last && v > 255 {
			return netip.Addr{}, false
		}
		if !last {
			sum |= v << (8 * (3 - i))
			continue
		}
		if v >= 1<<(8*(4-i)) {
			return netip.Addr{}, false
		}
		sum |= v
	}
	return netip.AddrFrom4([4]byte{byte(sum >> 24), byte(sum >> 16), byte(sum >> 8), byte(sum)}), true
}

func legacyNumber(s string) (uint64, bool) {
	base := 10
	if hex, ok := strings.CutPrefix(s, "0x"); ok {
		if hex == "" {
			return 0, true
		}
		s, base = hex, 16
	} else if len(s) > 1 && s[0] == '0' {
		base = 8
	}
	v, err := strconv.ParseUint(s, base, 32)
	return v, err == nil
}

// syntaxError is the error for a refused text, with a correction.
type syntaxError struct {
	input string
	flaw  string // completes the sentence that begins with the input
	use   string // the corrected form; empty if there is no obvious one
}

func (e *syntaxError) Error() string {
	s := Quote(e.input) + " " + e.flaw
	if e.use != "" {
		s += "; use " + strconv.Quote(e.use)
	}
	return s
}

// Quote returns a text quoted and shortened, safe for terminals and logs.
func Quote(s string) string {
	const most = 100
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return strconv.Quote(s)
}

// nameError returns the error for s, with the host name in s as correction if there is one.
func nameError(s, flaw string) error {
	e := &syntaxError{input: s, flaw: flaw}
	host, _, _ := strings.Cut(bareHost(s), ":")
	if n, bad := parseName(host); bad == "" {
		e.use = n.String()
	}
	return e
}

// patternError returns the error for s, with the pattern that was probably intended as correction if that is valid.
func patternError(s, flaw string) error {
	e := &syntaxError{input: s, flaw: flaw}
	if p, bad := parsePattern(wholeLabel(bareHost(s))); bad == "" {
		e.use = p.String()
		if strings.HasPrefix(s, "https://") {
			e.use = strings.TrimSuffix(e.use, ":443")
		}
	}
	return e
}

// bareHost removes scheme, user, path, query and surrounding space, as in a text copied from a browser.
func bareHost(s string) string {
	if len(s) > maxInputLen {
		return ""
	}
	s = strings.TrimSpace(s)
	if _, rest, ok := strings.Cut(s, "://"); ok {
		s = rest
	}
	if i := strings.IndexAny(s, `/\?#`); i >= 0 {
		s = s[:i]
	}
	return s[strings.LastIndex(s, "@")+1:]
}

// wholeLabel makes the star of "*foo.com", ".foo.com" and "*.*.foo.com" the whole first label.
func wholeLabel(s string) string {
	rest := strings.TrimLeft(s, "*.")
	if rest == s || rest == "" || strings.HasPrefix(rest, ":") {
		return s
	}
	return "*." + rest
}

// Shown returns a name for an error message, up to the first character that is not valid. The rest is often a value in the wrong
// place, as in "Authorization: Bearer …".
func Shown(name string, mayHold func(byte) bool) string {
	for i := range len(name) {
		if !mayHold(name[i]) && i > 0 {
			return name[:i] + "…"
		}
	}
	return name
}

// IsToken reports whether c is a tchar of RFC 9110 5.6.2.
func IsToken(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' ||
		strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0
}

// IsWordByte reports whether c is valid in the name of a variable.
func IsWordByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_'
}
