package h1

import (
	"bytes"
	"slices"
)

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
	// Lenient, which Reset keeps, accepts responses that break RFC 9112 in a way that can be repaired. Parse then adds to Repairs, and the
	// connection must close.
	Lenient bool
	Repairs Repairs

	encoded bool // there was a Transfer-Encoding
	scan    headScan
}

// Parse parses the head at the beginning of buf, a response to the given method, and returns its length. It returns
// [ErrShort] until the head is complete and an *[Error] for a head that is refused. Call Reset before another head. If r is
// Lenient, Parse may unfold fields in buf.
func (r *Response) Parse(buf []byte, method string) (int, error) {
	if n := min(len(buf), len(protocol)); string(buf[:n]) != protocol[:n] {
		return 0, bad("the server does not speak HTTP") // it may never send the end of a head
	}
	r.scan.lenient = r.Lenient
	end, err := r.scan.end(buf, MaxHead)
	if err != nil {
		return 0, err
	}
	if r.Lenient {
		return end, r.parseLenient(buf[:end], method)
	}
	return end, r.parse(buf[:end], method)
}

// protocol is how every response begins.
const protocol = "HTTP/"

// Reset prepares r for another head.
func (r *Response) Reset() {
	r.reset()
	*r = Response{head: r.head, Lenient: r.Lenient}
	r.Trim()
}

// Trim drops the fields if a lenient response has had so many that they occupy more memory than those of any other. Call it once they are
// not needed.
func (r *Response) Trim() {
	if cap(r.Fields) > 2*MaxFields {
		r.Fields = nil
	}
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
	return r.frame(method)
}

// frame derives the framing of the body from the fields.
func (r *Response) frame(method string) error {
	repeated := false
	for i := range r.Fields {
		f := &r.Fields[i]
		repeated = repeated || f.Kind == ContentLength && r.HasLength
		if err := r.field(f); err != nil {
			return err
		}
	}
	if repeated {
		r.dropRepeated()
	}
	if r.Lenient {
		r.repairFraming()
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

// dropRepeated removes each Content-Length but the first.
func (r *Response) dropRepeated() {
	first := true
	r.Fields = slices.DeleteFunc(r.Fields, func(f Field) bool {
		drop := f.Kind == ContentLength && !first
		first = first && f.Kind != ContentLength
		return drop
	})
}

// field handles a field that affects framing or the connection. It accepts the deviations that RFC 9112 lets a client accept,
// and rewrites them strictly: a Content-Length repeated with the same value (6.3), the transfer coding identity of RFC 2616,
// and empty elements of Transfer-Encoding (RFC 9110, 5.6.1).
func (r *Response) field(f *Field) error {
	switch f.Kind {
	case ContentLength:
		return r.contentLength(f)
	case TransferEncoding:
		return r.transferEncoding(f.Value)
	}
	return r.head.field(f)
}

// contentLength reduces f to one value if its value is a list.
func (r *Response) contentLength(f *Field) error {
	list := f.Value
	for {
		value, rest, more := bytes.Cut(list, comma)
		f.Value, list = trim(value), rest
		n, err := parseLength(f.Value)
		if err != nil {
			return err
		}
		if r.HasLength && n != r.Body.Length {
			return bad("Content-Length is repeated with another value")
		}
		r.HasLength, r.Body.Length = true, n
		if !more {
			return nil
		}
	}
}

// transferEncoding accepts chunked and identity, each alone, and a repeated chunked in lenient responses. After identity the
// connection is not reused: current servers do not send it, and clients disagree about its meaning.
func (r *Response) transferEncoding(list []byte) error {
	if r.encoded && !r.Lenient {
		return bad("Transfer-Encoding is repeated")
	}
	empty := true
	for element := range bytes.SplitSeq(list, comma) {
		switch element = trim(element); {
		case len(element) == 0:
			continue
		case r.Lenient && r.hasTE && EqualFold(element, "chunked"):
			r.Repairs |= ChunkedTwice
		case r.encoded:
			return bad("Transfer-Encoding has more than one coding")
		case EqualFold(element, "chunked"):
			r.hasTE = true
		case EqualFold(element, "identity"):
			r.Close = true
		default:
			return bad("Transfer-Encoding is neither chunked nor identity")
		}
		r.encoded, empty = true, false
	}
	if empty {
		return bad("Transfer-Encoding is empty")
	}
	return nil
}

var comma = []byte(",")

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
