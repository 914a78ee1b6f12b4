package remote

import (
	"bufio"
	"bytes"
	"net/http"
	"strings"
	"testing"
)

// FuzzTarget: whatever a SOCKS5 client names, the CONNECT for it is one line, and is either refused by the parser of the explicit proxy
// or has exactly that authority.
func FuzzTarget(f *testing.F) {
	for _, s := range []string{
		"\x05\x01\x00\x03\x0bexample.com\x01\xbb", "\x05\x01\x00\x01\xc0\x00\x02\x01\x00\x50", "\x05\x01\x00\x03\x04a b\n\x00\x50",
		"\x05\x01\x00\x04\x20\x01\x0d\xb8\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x16", "\x05\x01\x00\x03\x09fe80::1%a\x00\x50",
		"\x05\x01\x00\x03\x05a\x00b\r\n\x00\x50", "\x05\x03\x00\x03\x01a\x00\x50", "\x05\x01\x00\x03\x07a/b@c:d\x00\x50",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		authority, err := readTarget(bytes.NewReader(data))
		if err != nil {
			return
		}
		if strings.ContainsAny(authority, "\r\n\x00 \t/?#@") {
			t.Errorf("authority %q", authority)
		}
		for _, b := range []byte(authority) {
			if b <= ' ' || b >= 0x7f {
				t.Errorf("authority %q", authority)
			}
		}
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader("CONNECT " + authority + " HTTP/1.1\r\nHost: " + authority + "\r\n\r\n")))
		if err == nil && (r.Method != http.MethodConnect || r.RequestURI != authority || len(r.Header) != 0) {
			t.Errorf("%q is read as %s %q, %v", authority, r.Method, r.RequestURI, r.Header)
		}
	})
}

// FuzzGreeting: no greeting makes the readers take more than they need or fail to end.
func FuzzGreeting(f *testing.F) {
	f.Add([]byte(hello + login))
	f.Add([]byte("\x05\xff"))
	f.Fuzz(func(t *testing.T, data []byte) {
		in := bytes.NewReader(data)
		if readMethods(in) != nil {
			return
		}
		read := len(data) - in.Len()
		if read != 2+int(data[1]) {
			t.Errorf("read %d bytes of %q", read, data)
		}
		user, password, err := readPassword(in)
		if err == nil && len(data)-in.Len() != read+3+len(user)+len(password) {
			t.Errorf("read %q and %q of %q", user, password, data)
		}
	})
}

// FuzzCredentials: the head without credentials has no such field for any reader, and all its other lines.
func FuzzCredentials(f *testing.F) {
	f.Add([]byte(connectHead))
	f.Add([]byte("GET http://a/ HTTP/1.1\r\nA: b\r\nPROXY-authorization : x\r\n y\r\nB: c\r\n\r\n"))
	f.Add([]byte("GET http://a/ HTTP/1.1\nProxy-Authorization:\r\n\r\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		head, err := readHead(bufio.NewReaderSize(bytes.NewReader(data), maxHead))
		if err != nil {
			return
		}
		_, _, rest, err := takeCredentials(head)
		if r, bad := http.ReadRequest(bufio.NewReader(bytes.NewReader(rest))); bad == nil && len(r.Header["Proxy-Authorization"]) > 0 {
			t.Errorf("%q keeps the credentials: %q", head, rest)
		}
		if err == errNoCredentials && !bytes.Equal(head, rest) {
			t.Errorf("%q became %q", head, rest)
		}
		if len(rest) > len(head) {
			t.Errorf("%q grew to %q", head, rest)
		}
	})
}
