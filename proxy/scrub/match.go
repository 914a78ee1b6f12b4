package scrub

import (
	"bytes"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// pattern is one form of a secret as a sequence of symbols: bytes, hexadecimal digits or base64 digits. Digits have
// several spellings, and the first and last base64 digit may include bits of the bytes around the secret.
type pattern struct {
	class *[256]byte // the symbol for a byte, or invalid
	want  []byte
	mask  []byte // the significant bits of each symbol
	wraps bool   // line breaks are allowed between symbols
}

// invalid has a bit that is in every mask, and in no wanted symbol except in the class of bytes.
const invalid = 0x80

func (p *pattern) matches(i int, b byte) bool { return p.class[b]&p.mask[i] == p.want[i] }

var bytesClass, hexClass, base64Class = func() (raw, hex, b64 [256]byte) {
	for b := range 256 {
		raw[b], hex[b], b64[b] = byte(b), invalid, invalid
	}
	for i := range 10 {
		hex['0'+i], b64['0'+i] = byte(i), byte(52+i)
	}
	for i := range 26 {
		b64['A'+i], b64['a'+i] = byte(i), byte(26+i)
	}
	for i := range 6 {
		hex['A'+i], hex['a'+i] = byte(10+i), byte(10+i)
	}
	b64['+'], b64['-'], b64['/'], b64['_'] = 62, 62, 63, 63
	return raw, hex, b64
}()

// patterns returns the forms of a text to search for.
func patterns(text string) []*pattern {
	out := []*pattern{rawPattern(text), hexPattern(text)}
	for before := range 3 {
		out = append(out, base64Pattern(text, before))
	}
	return out
}

func rawPattern(text string) *pattern {
	p := &pattern{class: &bytesClass, want: []byte(text), mask: make([]byte, len(text))}
	for i := range p.mask {
		p.mask[i] = 0xff
	}
	return p
}

func hexPattern(text string) *pattern {
	p := &pattern{class: &hexClass}
	for i := range len(text) {
		p.want = append(p.want, text[i]>>4, text[i]&15)
		p.mask = append(p.mask, 0x0f|invalid, 0x0f|invalid)
	}
	return p
}

// base64Pattern returns the form of text in base64 with the given number of unknown bytes before it in its first group of
// three.
func base64Pattern(text string, before int) *pattern {
	p := &pattern{class: &base64Class, wraps: true}
	for digit := before * 8 / 6; digit*6 < (before+len(text))*8; digit++ {
		var want, mask byte
		for bit := range 6 {
			at := digit*6 + bit - before*8
			want, mask = want<<1, mask<<1
			if at >= 0 && at < len(text)*8 {
				want |= text[at/8] >> (7 - at%8) & 1
				mask |= 1
			}
		}
		p.want = append(p.want, want)
		p.mask = append(p.mask, mask|invalid)
	}
	return p
}

// wrapFrom is the number of digits after which a line may break: a text that ends a line with fewer digits of a form is
// not buffered for it.
const wrapFrom = 3

// thread is one way to read a text from the start of a possible match: size bytes read as n symbols.
type thread struct {
	at, symbol int
	broken     lineBreak
}

// lineBreak is the part of a line break that was just read.
type lineBreak uint8

const (
	noBreak lineBreak = iota
	carriageReturn
	lineFeed
)

// manyThreads is the number of threads above which duplicates are tracked: a text of backslashes can be read in very
// many ways.
const manyThreads = 64

// find returns the end of the longest form that begins at b[0], or 0, and whether more text could yield a longer one.
func (p *pattern) find(b []byte) (end int, more bool) {
	var room [16]thread
	threads := append(room[:0], thread{})
	var seen map[thread]bool
	for made := 0; len(threads) > 0; made++ {
		t := threads[len(threads)-1]
		threads = threads[:len(threads)-1]
		if made >= manyThreads {
			if seen == nil {
				seen = map[thread]bool{}
			}
			if seen[t] {
				continue
			}
			seen[t] = true
		}
		t = p.matchLiterals(b, t)
		switch {
		case t.symbol == len(p.want):
			end = max(end, t.at)
		case t.at == len(b):
			more = true
		case special[b[t.at]]:
			var short bool
			threads, short = p.matchReadings(b, t, threads)
			more = more || short
		case p.wraps:
			threads = p.afterLineBreak(t, reading{text: [4]byte{b[t.at]}, n: 1, size: 1}, threads)
		}
	}
	return end, more
}

// matchLiterals follows a thread while there is only one way to read the text.
func (p *pattern) matchLiterals(b []byte, t thread) thread {
	for t.symbol < len(p.want) && t.at < len(b) && !special[b[t.at]] && p.matches(t.symbol, b[t.at]) {
		t = thread{at: t.at + 1, symbol: t.symbol + 1}
	}
	return t
}

// matchReadings adds a thread for each reading of the text at t, and reports whether the text ends before all of them are
// known.
func (p *pattern) matchReadings(b []byte, t thread, threads []thread) ([]thread, bool) {
	var all readings
	all.parse(b[t.at:])
	for _, r := range all.list[:all.n] {
		if p.matchesReading(t.symbol, r) {
			threads = append(threads, thread{at: t.at + r.size, symbol: t.symbol + r.n})
		} else {
			threads = p.afterLineBreak(t, r, threads)
		}
	}
	return threads, all.short
}

// matchesReading reports whether the reading matches the pattern from the symbol on.
func (p *pattern) matchesReading(symbol int, r reading) bool {
	if symbol+r.n > len(p.want) {
		return false
	}
	for i := range r.n {
		if !p.matches(symbol+i, r.text[i]) {
			return false
		}
	}
	return true
}

// afterLineBreak adds the thread that continues after a line break, if one was read: CR, LF or CRLF.
func (p *pattern) afterLineBreak(t thread, r reading, threads []thread) []thread {
	if !p.wraps || t.symbol < wrapFrom || r.n != 1 {
		return threads
	}
	next := thread{at: t.at + r.size, symbol: t.symbol}
	switch {
	case r.text[0] == '\r' && t.broken == noBreak:
		next.broken = carriageReturn
	case r.text[0] == '\n' && t.broken != lineFeed:
		next.broken = lineFeed
	default:
		return threads
	}
	return append(threads, next)
}

// reading is one interpretation of the beginning of a text: its first size bytes encode the first n bytes of text.
type reading struct {
	text    [4]byte
	n, size int
}

// readings are all interpretations of the beginning of a text.
type readings struct {
	list  [12]reading
	n     int
	short bool // the text ended where a longer escape is possible
}

// special marks the bytes that can begin an escape, or encode another byte.
var special = [256]bool{'+': true, '%': true, '\\': true, '&': true}

// parse adds the readings of the beginning of b, which is not empty and begins with a special byte.
func (r *readings) parse(b []byte) {
	r.byte(b[0], 1)
	switch b[0] {
	case '+':
		r.byte(' ', 1)
	case '%':
		r.percent(b)
	case '\\':
		r.backslash(b)
	case '&':
		r.entity(b)
	}
}

func (r *readings) add(next reading) {
	if r.n < len(r.list) {
		r.list[r.n] = next
		r.n++
	}
}

func (r *readings) byte(b byte, size int) { r.add(reading{text: [4]byte{b}, n: 1, size: size}) }

func (r *readings) rune(c rune, size int) {
	next := reading{size: size}
	next.n = utf8.EncodeRune(next.text[:], c)
	r.add(next)
}

// nested is the maximum number of times that a text may have been percent-encoded.
const nested = 3

// percent reads %41, and %2541 and so on, where the percent sign was encoded again.
func (r *readings) percent(b []byte) {
	at := 1
	for range nested {
		v, ok := r.hex(b, at, 2)
		if !ok {
			return
		}
		r.byte(byte(v), at+2)
		if v == '+' { // a space, if the text was a query string before it was encoded again
			r.byte(' ', at+2)
		}
		if v != '%' {
			return
		}
		at += 2
	}
}

// hex parses the given number of hexadecimal digits at an offset.
func (r *readings) hex(b []byte, at, digits int) (v rune, ok bool) {
	for i := at; i < at+digits; i++ {
		if i >= len(b) {
			r.short = true
			return 0, false
		}
		d := hexClass[b[i]]
		if d == invalid {
			return 0, false
		}
		v = v<<4 | rune(d)
	}
	return v, true
}

// slashes is the maximum number of backslashes that are read as one: each level of quoting doubles them.
const slashes = 8

var backslashed = [256]byte{'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t', '/': '/', '"': '"', '\'': '\''}

// backslash reads the escapes of JSON, and \x41, after one backslash, or several if the text was quoted again.
func (r *readings) backslash(b []byte) {
	run := 0
	for run < len(b) && run <= slashes && b[run] == '\\' {
		run++
	}
	for n := 2; n <= min(run, slashes); n *= 2 {
		r.byte('\\', n)
	}
	switch {
	case run > slashes:
		return
	case run == len(b):
		r.short = true
		return
	}
	switch c := b[run]; c {
	case 'x':
		if v, ok := r.hex(b, run+1, 2); ok {
			r.byte(byte(v), run+3)
		}
	case 'u':
		r.unicode(b, run)
	default:
		if v := backslashed[c]; v != 0 {
			r.byte(v, run+1)
		}
	}
}

// unicode reads \u0041, or a surrogate pair of two of them, after the given number of backslashes.
func (r *readings) unicode(b []byte, run int) {
	high, ok := r.hex(b, run+1, 4)
	if !ok {
		return
	}
	size := run + 5
	if !utf16.IsSurrogate(high) {
		r.rune(high, size)
		return
	}
	for i := range run + 1 {
		if size+i >= len(b) {
			r.short = true
			return
		}
		if want := b[i]; b[size+i] != want { // the same backslashes and u
			return
		}
	}
	if low, ok := r.hex(b, size+run+1, 4); ok {
		r.rune(utf16.DecodeRune(high, low), 2*size)
	}
}

// longestEntity is the length of the longest character reference that is read; leading zeros can make longer ones.
const longestEntity = 12

var entities = map[string]byte{"amp": '&', "lt": '<', "gt": '>', "quot": '"', "apos": '\'', "nbsp": ' ', "plus": '+', "sol": '/', "equals": '='}

// entity reads the character references of HTML.
func (r *readings) entity(b []byte) {
	end := bytes.IndexByte(b[:min(len(b), longestEntity)], ';')
	if end < 0 {
		r.short = len(b) < longestEntity && !bytes.ContainsFunc(b[1:], func(c rune) bool {
			return c != '#' && (c < '0' || c > '9') && (c|0x20 < 'a' || c|0x20 > 'z')
		})
		return
	}
	name := string(b[1:end])
	if v, ok := entities[name]; ok {
		r.byte(v, end+1)
		return
	}
	if len(name) < 2 || name[0] != '#' {
		return
	}
	digits, base := name[1:], 10
	if digits[0]|0x20 == 'x' {
		digits, base = digits[1:], 16
	}
	if v, err := strconv.ParseUint(digits, base, 21); err == nil {
		r.rune(rune(v), end+1)
	}
}
