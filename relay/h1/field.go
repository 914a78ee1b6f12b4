package h1

import (
	"bytes"
	"strings"
)

// Kind identifies the fields that a proxy must handle itself.
type Kind uint8

// The kinds.
const (
	Other Kind = iota
	Host
	ContentLength
	TransferEncoding
	Connection
	HopByHop // Keep-Alive, Proxy-Connection and other Proxy-* fields, HTTP2-Settings: never forwarded
	TE
	Trailer
	Upgrade
	Expect
	AltSvc
)

// Field is one header or trailer field. Name and Value point into the buffer; Value is trimmed of white space.
type Field struct {
	Name, Value []byte
	Kind        Kind
}

// kindOf switches on the length first: most names match no known field of their length.
func kindOf(name []byte) Kind {
	switch len(name) {
	case 2:
		return pick(name, "te", TE)
	case 4:
		return pick(name, "host", Host)
	case 6:
		return pick(name, "expect", Expect)
	case 7:
		if EqualFold(name, "alt-svc") {
			return AltSvc
		}
		if EqualFold(name, "trailer") {
			return Trailer
		}
		return pick(name, "upgrade", Upgrade)
	case 10:
		if EqualFold(name, "keep-alive") {
			return HopByHop
		}
		return pick(name, "connection", Connection)
	case 14:
		if EqualFold(name, "content-length") {
			return ContentLength
		}
		return pick(name, "http2-settings", HopByHop)
	case 17:
		if EqualFold(name, "transfer-encoding") {
			return TransferEncoding
		}
	}
	if len(name) > 6 && EqualFold(name[:6], "proxy-") {
		return HopByHop
	}
	return Other
}

func pick(name []byte, lower string, k Kind) Kind {
	if EqualFold(name, lower) {
		return k
	}
	return Other
}

// parseFields parses complete lines, each ending with CRLF, and appends to fields.
func parseFields(lines []byte, fields []Field) ([]Field, error) {
	for len(lines) > 0 {
		end := bytes.IndexByte(lines, '\n')
		if end < 1 || lines[end-1] != '\r' {
			return fields, bad("a field line that does not end with CRLF")
		}
		f, err := parseField(lines[:end-1])
		if err != nil {
			return fields, err
		}
		if len(fields) == MaxFields {
			return fields, bad(TooManyFields)
		}
		fields = append(fields, f)
		lines = lines[end+1:]
	}
	return fields, nil
}

func parseField(line []byte) (Field, error) {
	if len(line) > 0 && (line[0] == ' ' || line[0] == '\t') {
		return Field{}, bad("a folded field line (obs-fold)")
	}
	colon := bytes.IndexByte(line, ':')
	if colon < 1 {
		return Field{}, bad("a field line without a name")
	}
	name := line[:colon]
	if !all(name, token) {
		return Field{}, bad("a field name is not a token (white space before the colon, perhaps)")
	}
	v := trim(line[colon+1:])
	if !all(v, value) {
		return Field{}, bad("a control byte in a field value")
	}
	f := Field{Name: name, Value: v, Kind: kindOf(name)}
	if f.Kind == Other && bytes.IndexByte(name, '_') >= 0 && disguised(name) {
		return Field{}, bad("a framing field written with an underscore")
	}
	return f, nil
}

// disguised reports whether a gateway downstream of us that turns underscores into hyphens (CGI, WSGI) would take the
// name for a framing or routing field.
func disguised(name []byte) bool {
	k := kindOf(bytes.ReplaceAll(name, []byte("_"), []byte("-")))
	return k == ContentLength || k == TransferEncoding
}

// headScan finds the end of a head, scanning each byte once however slowly the head arrives.
type headScan struct {
	seen    int  // bytes scanned
	line    int  // where the current line begins
	lenient bool // lines may end with LF only
}

// end returns the length of the section, up to and including an empty line, or [ErrShort].
func (s *headScan) end(buf []byte, limit int) (int, error) {
	for {
		i := bytes.IndexByte(buf[s.seen:], '\n')
		if i < 0 {
			s.seen = len(buf)
			if s.seen >= limit {
				return 0, s.tooLarge()
			}
			return 0, ErrShort
		}
		i += s.seen
		last := i // the end of the line's content
		switch {
		case i > s.line && buf[i-1] == '\r':
			last--
		case !s.lenient:
			return 0, bad("a bare LF")
		}
		if i+1 > limit {
			return 0, s.tooLarge()
		}
		s.seen = i + 1
		if last == s.line {
			return i + 1, nil
		}
		s.line = i + 1
	}
}

// tooLarge returns the error for a start line or fields that are too large (RFC 6585, 5).
func (s *headScan) tooLarge() error {
	if s.line == 0 {
		return &Error{Status: 414, What: "the request line is too long"}
	}
	return &Error{Status: 431, What: "the head or trailer section is too large"}
}

// options calls f for each token in a comma-separated list such as Connection.
func options(list []byte, each func(option []byte) error) error {
	for len(list) > 0 {
		option := list
		if comma := bytes.IndexByte(list, ','); comma >= 0 {
			option, list = list[:comma], list[comma+1:]
		} else {
			list = nil
		}
		option = trim(option)
		if len(option) == 0 {
			continue // RFC 9110, 5.6.1: empty elements are ignored
		}
		if !all(option, token) {
			return bad("a connection option is not a token")
		}
		if err := each(option); err != nil {
			return err
		}
	}
	return nil
}

// Lists reports whether a comma-separated list of tokens contains lower, ignoring parameters.
func Lists(list []byte, lower string) bool {
	for len(list) > 0 {
		element, rest, _ := bytes.Cut(list, []byte(","))
		list = rest
		element, _, _ = bytes.Cut(element, []byte(";"))
		if EqualFold(trim(element), lower) {
			return true
		}
	}
	return false
}

// Forbidden reports whether the field is not allowed in a trailer section: it frames, routes or controls the connection
// (RFC 9110, 6.5.1).
func (f Field) Forbidden() bool { return f.Kind != Other && f.Kind != AltSvc }

// ValidField reports whether a field of another HTTP version may be written into an HTTP/1.1 message: its name is a
// token, its value has no control bytes, and it is not disguised framing.
func ValidField(name, v string) bool {
	if name == "" || !allText(name, token) || !allText(v, value) {
		return false
	}
	return strings.IndexByte(name, '_') < 0 || !disguised([]byte(name))
}

// ValidToken reports whether a field name of another HTTP version is a token.
func ValidToken(name string) bool { return name != "" && allText(name, token) }

// ValidValue reports whether a field value of another HTTP version has no control bytes.
func ValidValue(v string) bool { return allText(v, value) }

// ValidMethod reports whether a :method may become the method of an HTTP/1.1 request.
func ValidMethod(method string) bool {
	return method != "" && len(method) <= maxMethod && all([]byte(method), token)
}

// ValidTarget reports whether a :path may become the origin-form or asterisk target of an HTTP/1.1 request.
func ValidTarget(path string) bool {
	if path == "*" {
		return true
	}
	return strings.HasPrefix(path, "/") && all([]byte(path), target) && escaped([]byte(path))
}

// NewField returns a field that does not point into a buffer.
func NewField(name, v string) Field {
	return Field{Name: []byte(name), Value: []byte(v), Kind: kindOf([]byte(name))}
}

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

// connectionSchemes are schemes that authenticate a connection instead of each request: further requests on the connection
// carry no credentials and act for the user (RFC 4559, 6; MS-NTHT; MS-WSMV for CredSSP).
var connectionSchemes = []string{"ntlm", "negotiate", "kerberos", "nego2", "credssp"}

// LogsIn reports whether fields of a request or a response are part of the login of a connection, which from then on belongs
// to one client.
func LogsIn(fields []Field) bool {
	for i := range fields {
		if f := &fields[i]; IsLogin(f.Name, f.Value) {
			return true
		}
	}
	return false
}

// IsLogin is [LogsIn] for one field. It compares the length of the name first, as nearly all names have another length.
func IsLogin[S []byte | string](name, value S) bool {
	switch len(name) {
	case len("authorization"):
		return isWord(name, "authorization") && listsScheme(value)
	case len("www-authenticate"):
		return isWord(name, "www-authenticate") && listsScheme(value)
	case len("proxy-authorization"):
		return isWord(name, "proxy-authorization") && listsScheme(value)
	case len("proxy-authenticate"):
		return isWord(name, "proxy-authenticate") && listsScheme(value)
	case len("persistent-auth"):
		return isWord(name, "persistent-auth")
	}
	return false
}

// listsScheme reports whether one of the challenges or credentials in a list has a scheme for connections. Commas also
// separate parameters, and a quoted parameter that looks like such a scheme counts: its only cost is a connection.
func listsScheme[S []byte | string](list S) bool {
	first := true // of an element
	for i := 0; i < len(list); i++ {
		switch c := list[i]; {
		case c == ',':
			first = true
		case c == ' ' || c == '\t':
		case first:
			end := i
			for end < len(list) && list[end] != ',' && list[end] != ' ' && list[end] != '\t' {
				end++
			}
			if isConnectionScheme(list[i:end]) {
				return true
			}
			first, i = false, end-1
		}
	}
	return false
}

// isConnectionScheme compares the length first, as IsLogin does.
func isConnectionScheme[S []byte | string](word S) bool {
	for _, scheme := range connectionSchemes {
		if len(word) == len(scheme) && isWord(word, scheme) {
			return true
		}
	}
	return false
}

// isWord is [EqualFold] for strings and byte slices.
func isWord[S []byte | string](s S, lower string) bool {
	if len(s) != len(lower) {
		return false
	}
	for i := range len(s) {
		if c := s[i]; c != lower[i] && (c < 'A' || c > 'Z' || c+('a'-'A') != lower[i]) {
			return false
		}
	}
	return true
}
