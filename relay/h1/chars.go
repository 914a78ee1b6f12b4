package h1

// Character classes of RFC 9110, 5.6.2 and 5.5, and of RFC 3986 as loosely as browsers follow it.
const (
	token  uint8 = 1 << iota // tchar
	value                    // field-content and the white space inside it
	target                   // bytes allowed in a request target
	host                     // bytes allowed in a Host value
)

var class = func() (c [256]uint8) {
	for b := 0x21; b < 0x100; b++ {
		if b != 0x7f {
			c[b] |= value | target // bytes above 0x7f: sent raw by real clients; opaque to us and to others
		}
	}
	c[' '] |= value
	c['\t'] |= value
	c['#'] &^= target // a fragment is never sent (RFC 9112, 3.2)
	for b := byte('0'); b <= '9'; b++ {
		c[b] |= token | host
	}
	for b := byte('a'); b <= 'z'; b++ {
		c[b] |= token | host
		c[b-'a'+'A'] |= token | host
	}
	for _, b := range []byte("!#$%&'*+-.^_`|~") {
		c[b] |= token
	}
	for _, b := range []byte("-._:[]") { // no user information, no percent-encoding: neither is a name we can judge
		c[b] |= host
	}
	return c
}()

func all(b []byte, want uint8) bool {
	for _, c := range b {
		if class[c]&want == 0 {
			return false
		}
	}
	return true
}

func allText(s string, want uint8) bool {
	for i := range len(s) {
		if class[s[i]]&want == 0 {
			return false
		}
	}
	return true
}

// EqualFold reports whether b equals lower, ignoring the case of ASCII letters. lower must be in lower case.
func EqualFold(b []byte, lower string) bool {
	if len(b) != len(lower) {
		return false
	}
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		if c != lower[i] {
			return false
		}
	}
	return true
}

func trim(b []byte) []byte {
	for len(b) > 0 && (b[0] == ' ' || b[0] == '\t') {
		b = b[1:]
	}
	for len(b) > 0 && (b[len(b)-1] == ' ' || b[len(b)-1] == '\t') {
		b = b[:len(b)-1]
	}
	return b
}
