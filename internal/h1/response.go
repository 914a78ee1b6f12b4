package h1

import "bytes"

// Response is the head of a response. Its slices point into the buffer it was parsed from. A Response can be reused for
// further heads; it is not safe for concurrent use.
type Response struct {
	head
	// Status is 100 to 999; Reason is the reason phrase, possibly empty.
	Status int
	Reason []byte
	// Length is the value of Content-Length, or -1. It is set as well for responses to HEAD and for 304, which have no
	// body.
	Length int64

	scan headScan
}

// Parse parses the head at the beginning of buf, a response to the given method, and returns its length. It returns
// [ErrShort] until the head is complete and an *[Error] for a head that is refused. Call Reset before another head.
func (r *Response) Parse(buf []byte, method string) (int, error) {
	if n := min(len(buf), len(protocol)); string(buf[:n]) != protocol[:n] {
		return 0, bad("the server does not speak HTTP") // it may never send the end of a head
	}
	end, err := r.scan.end(buf, MaxHead)
	if err != nil {
		return 0, err
	}
	return end, r.parse(buf[:end], method)
}

// protocol is how every response begins.
const protocol = "HTTP/"

// Reset prepares r for another head.
func (r *Response) Reset() {
	r.reset()
	*r = Response{head: r.head}
}

// Interim reports whether this is a 1xx other than 101: another head follows.
func (r *Response) Interim() bool { return r.Status < 200 && r.Status != 101 }

func (r *Response) parse(b []byte, method string) error {
	line := bytes.IndexByte(b, '\n')
	if err := r.statusLine(b[:line-1]); err != nil {
		return err
	}
	var err error
	if r.Fields, err = parseFields(b[line+1:len(b)-2], r.Fields); err != nil {
		return err
	}
	for _, f := range r.Fields {
		if err := r.field(f); err != nil {
			return err
		}
	}
	if err := r.framing(); err != nil {
		return err
	}
	r.Length = -1
	if r.HasLength {
		r.Length = r.Body.Length
	}
	switch {
	case r.Status < 200 || r.Status == 204 || r.Status == 304 || method == "HEAD":
		r.Body = Framing{} // regardless of the fields (RFC 9112, 6.3)
	case !r.HasLength && !r.hasTE:
		r.Body, r.Close = Framing{UntilClose: true}, true
	}
	return nil
}

func (r *Response) statusLine(line []byte) error {
	version, rest, ok := bytes.Cut(line, []byte(" "))
	if !ok {
		return bad("the status line is not version and status")
	}
	if err := r.version(version); err != nil {
		return err
	}
	code, reason, _ := bytes.Cut(rest, []byte(" "))
	if len(code) != 3 || code[0] < '1' || code[0] > '9' {
		return bad("the status is not three digits")
	}
	for _, c := range code {
		if c < '0' || c > '9' {
			return bad("the status is not three digits")
		}
		r.Status = r.Status*10 + int(c-'0')
	}
	if !all(reason, value) {
		return bad("a control byte in the reason phrase")
	}
	r.Reason = reason
	return nil
}
