package policy

import (
	"strings"
	"unicode/utf8"

	"boxgate/policy/name"
)

// isAmbiguous reports whether servers may read a path (as sent, without its query) in different ways, so that a request
// rule could judge one resource and the server answer with another. Refused are
//
//   - empty segments, "." and ".." segments, backslashes, ";" (parameters that some servers take off)
//   - percent-encoded slashes, backslashes, dots, percent signs, ";", "?", "#" and control bytes, which a server that
//     decodes early, late or twice reads as what they stand for; encoded letters, digits, "-" and "_", which never need encoding
//   - percent signs that begin no escape, bytes outside ASCII, and escapes that are not UTF-8, overlong forms among them,
//     or that Unicode's compatibility forms make a slash or dot of
//
// Any other path reads the same in a server that compares paths as sent except for escapes, one that decodes once, and
// one that cleans what it has decoded. "*" is the path of OPTIONS alone.
func isAmbiguous(path string) bool {
	if path == "*" {
		return false
	}
	if path == "" || path[0] != '/' {
		return true
	}
	escapes := false
	for i := 0; i < len(path); i++ {
		switch c := path[i]; {
		case c == '/':
			if i > 0 && isDots(path[strings.LastIndexByte(path[:i], '/')+1:i]) {
				return true
			}
		case c <= ' ' || c >= 0x7f, c == '\\', c == ';', c == '?', c == '#':
			return true
		case c == '%':
			if i+2 >= len(path) || !isPlainEscape(path[i+1], path[i+2]) {
				return true
			}
			i += 2
			escapes = true
		}
	}
	if last := path[strings.LastIndexByte(path, '/')+1:]; last == "." || last == ".." {
		return true
	}
	return escapes && isOddText(decodePercent(path))
}

// isDots reports whether a segment that is not the last is empty, "." or "..".
func isDots(segment string) bool { return segment == "" || segment == "." || segment == ".." }

// isPlainEscape reports whether the byte that %XY encodes is neither part of the syntax of paths nor one that needs no
// encoding.
func isPlainEscape(x, y byte) bool {
	high, ok1 := hexDigit(x)
	low, ok2 := hexDigit(y)
	c := high<<4 | low
	if !ok1 || !ok2 || c < ' ' || c == 0x7f {
		return false
	}
	return !name.IsWordByte(c) && strings.IndexByte(`/\.%;?#-`, c) < 0
}

// isOddText reports whether a decoded path is not UTF-8 or holds a character that compatibility forms turn into the syntax
// of paths.
func isOddText(s string) bool {
	return !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool {
		switch r {
		case '\u2024', '\u2025', '\ufe52', '\uff0e', // dots
			'\u2044', '\u2215', '\u29f8', '\uff0f', // slashes
			'\u2216', '\u29f5', '\ufe68', '\uff3c', // backslashes
			'\uff05', '\ufe6a', '\uff1b', '\ufe54', // percent signs and semicolons
			'\ufeff':
			return true
		}
		return r >= 0x80 && r < 0xa0
	})
}
