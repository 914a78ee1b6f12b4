package scrub

import (
	"bytes"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

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
