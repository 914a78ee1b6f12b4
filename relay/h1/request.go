package h1

import "bytes"

// Form is the form of a request target (RFC 9112, 3.2).
type Form uint8

// The forms.
const (
	Origin Form = iota
	Absolute
	Authority // CONNECT only
	Asterisk  // OPTIONS only
)

// Request is the head of a request. Its slices point into the buffer it was parsed from. A Request can be reused for
// further heads; it is not safe for concurrent use.
type Request struct {
	head
	// Method is a token.
	Method []byte
	// Target is the request target as sent. Path is the part sent to an origin server: for an absolute-form target the part
	// after the authority, "/" if that is empty; "*" for the asterisk form.
	Target, Path []byte
	// Form is the form of Target. Scheme and Authority are set for an absolute-form target, else nil; for CONNECT, Authority
	// is the target.
	Form              Form
	Scheme, Authority []byte
	// Host is the value of the one Host field.
	Host []byte
	// Hostless is set if an HTTP/1.0 client sent no Host field: a caller that knows the destination may set Host.
	Hostless bool
	// Continue is set if the client waits for a 100 before it sends the body.
	Continue bool

	scan  headScan
	hosts int
}

// Parse parses the head at the beginning of buf and returns its length. It returns [ErrShort] until the head is
// complete, scanning each byte once, and an *[Error] for a head that is refused. Call Reset before parsing another
// head, after success or an *[Error].
func (r *Request) Parse(buf []byte) (int, error) {
	end, err := r.scan.end(buf, MaxHead)
	if err != nil {
		return 0, err
	}
	return end, r.parse(buf[:end])
}

// Reset prepares r for another head.
func (r *Request) Reset() {
	r.reset()
	*r = Request{head: r.head}
}

func (r *Request) parse(b []byte) error {
	line := bytes.IndexByte(b, '\n')
	if err := r.startLine(b[:line-1]); err != nil {
		return err
	}
	var err error
	if r.Fields, err = parseFields(b[line+1:len(b)-2], r.Fields); err != nil {
		return err
	}
	for i := range r.Fields {
		if err := r.field(&r.Fields[i]); err != nil {
			return err
		}
	}
	r.Hostless = r.hosts == 0 && r.Minor == 0
	if r.hosts != 1 && !r.Hostless {
		return bad("not exactly one Host")
	}
	return r.framing()
}

func (r *Request) field(f *Field) error {
	switch f.Kind {
	case Host:
		if len(f.Value) == 0 || !all(f.Value, host) {
			return bad("Host is not a host")
		}
		r.hosts++
		r.Host = f.Value
	case Expect:
		if !EqualFold(f.Value, "100-continue") {
			return &Error{Status: 417, What: "an expectation other than 100-continue"}
		}
		r.Continue = true
	default:
		return r.head.field(f)
	}
	return nil
}

func (r *Request) startLine(line []byte) error {
	method, rest, ok := bytes.Cut(line, []byte(" "))
	if !ok || len(method) == 0 || len(method) > maxMethod || !all(method, token) {
		return bad("the method is not a token")
	}
	uri, version, ok := bytes.Cut(rest, []byte(" "))
	if !ok || len(uri) == 0 || !all(uri, target) {
		return bad("the request line is not method, target and version")
	}
	r.Method, r.Target = method, uri
	if err := r.version(version); err != nil {
		return err
	}
	return r.targetForm()
}

func (r *Request) targetForm() error {
	switch t := r.Target; {
	case string(r.Method) == "CONNECT":
		if !all(t, host) {
			return bad("the target of CONNECT is not an authority")
		}
		r.Form, r.Authority = Authority, t
		return nil
	case t[0] == '/':
		r.Form, r.Path = Origin, t
	case string(t) == "*":
		if string(r.Method) != "OPTIONS" {
			return bad("an asterisk target without OPTIONS")
		}
		r.Form, r.Path = Asterisk, t
		return nil
	default:
		if err := r.absolute(t); err != nil {
			return err
		}
	}
	if !escaped(r.Path) {
		return bad("a malformed percent-encoding in the path")
	}
	return nil
}

// absolute splits "http://authority/path". Other schemes are refused: no upstream could serve them.
func (r *Request) absolute(t []byte) error {
	colon := bytes.Index(t, []byte("://"))
	if colon < 0 {
		return bad("the target has none of the four forms")
	}
	r.Form, r.Scheme = Absolute, t[:colon]
	if !EqualFold(r.Scheme, "http") && !EqualFold(r.Scheme, "https") {
		return bad("the scheme of the target is neither http nor https")
	}
	rest := t[colon+3:]
	end := bytes.IndexAny(rest, "/?")
	if end < 0 {
		end = len(rest)
	}
	r.Authority, r.Path = rest[:end], rest[end:]
	if len(r.Authority) == 0 || !all(r.Authority, host) {
		return bad("the authority of the target is not a host")
	}
	switch {
	case len(r.Path) == 0:
		r.Path = slash
	case r.Path[0] == '?':
		return bad("an absolute target without a path before its query")
	}
	return nil
}

var slash = []byte("/")

// escaped reports whether every percent sign before the query begins a valid escape.
func escaped(path []byte) bool {
	for i := 0; i < len(path) && path[i] != '?'; i++ {
		if path[i] == '%' && (i+2 >= len(path) || unhex(path[i+1]) < 0 || unhex(path[i+2]) < 0) {
			return false
		}
	}
	return true
}

func unhex(c byte) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c && c <= 'f':
		return int(c-'a') + 10
	case 'A' <= c && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}
