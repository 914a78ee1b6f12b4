package websocket

import "unicode/utf8"

// utf8Check validates text that arrives in chunks, and fails at the first invalid byte.
type utf8Check struct {
	rest [utf8.UTFMax]byte // incomplete code point
	n    int
}

// add reports whether the text may still be valid after b.
func (c *utf8Check) add(b []byte) bool {
	for c.n > 0 && len(b) > 0 {
		c.rest[c.n] = b[0]
		c.n++
		b = b[1:]
		if !utf8.FullRune(c.rest[:c.n]) {
			continue
		}
		if r, size := utf8.DecodeRune(c.rest[:c.n]); r == utf8.RuneError && size == 1 {
			return false
		}
		c.n = 0
	}
	for len(b) > 0 {
		if !utf8.FullRune(b) {
			c.n = copy(c.rest[:], b)
			return true
		}
		r, size := utf8.DecodeRune(b)
		if r == utf8.RuneError && size == 1 {
			return false
		}
		b = b[size:]
	}
	return true
}

// whole reports whether the text may end here, outside of a code point.
func (c *utf8Check) whole() bool { return c.n == 0 }
