package relay

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"

	"golang.org/x/net/http2/hpack"

	"boxgate/internal/buffers"
	"boxgate/relay/h1"
	"boxgate/relay/h2/downstream"
)

// Stream is the request of a client that speaks HTTP/2.
type Stream struct {
	In *downstream.Stream

	side StreamWriter
	list []hpack.HeaderField // kept for its memory
}

// StreamWriter is a [Side] for a client of HTTP/2.
type StreamWriter interface {
	Side
	// WriteHead begins the response. end means that it has no content.
	WriteHead(r *h1.Response, end bool) error
	// WriteEnd ends a response that has content.
	WriteEnd(trailers []h1.Field) error
}

// Forward sends a request, whose head for the server is in out, and relays its response. An extended CONNECT (RFC 8441) is an upgrade.
func (c *Stream) Forward(x *Exchange, out *Output, s StreamWriter, upgrade bool) error {
	switch refused, err := x.Open(out, s, false); {
	case refused:
		return s.BadBody(err)
	case err != nil:
		return s.Unsent(err)
	}
	return c.Respond(x, s, upgrade)
}

// Respond relays the response to a request that was sent, as Forward does.
func (c *Stream) Respond(x *Exchange, s StreamWriter, upgrade bool) error {
	c.side = s
	return x.respond(c, s, upgrade)
}

func (c *Stream) check(x *Exchange) error {
	if c.In.Protocol != "" && x.Res.Status < http.StatusMultipleChoices {
		return ErrProtocol // the client would take it for the success of its CONNECT
	}
	return nil
}

func (c *Stream) begin(x *Exchange) error { return c.side.WriteHead(&x.Res, x.Res.Body.Empty()) }

// finish looks at the upload last: a response may go on as long as the request does.
func (c *Stream) finish(x *Exchange) (whole bool, err error) {
	if !x.Res.Body.Empty() {
		err = c.side.WriteEnd(x.Body.Trailers)
	}
	return err == nil && x.Upload.Finished(), err
}

// Head returns the fields of a response for the client, until the next call. The length of the content that a 304 does not have is left
// out: over HTTP/2, Go's client waits for that content (net/http: missingBody).
func (c *Stream) Head(r *h1.Response, passes func(*h1.Field) (value []byte, ok bool)) []hpack.HeaderField {
	list := c.list[:0]
	for i := range r.Fields {
		f := &r.Fields[i]
		switch {
		case f.Kind == h1.ContentLength && r.Status == http.StatusNotModified:
		case PassesFrame(r, f, r.Body.Chunked):
			list = append(list, StreamField(f.Name, f.Value))
		case f.Kind != h1.Other && f.Kind != h1.AltSvc || r.Named(f.Name):
		default:
			if value, ok := passes(f); ok {
				list = append(list, StreamField(f.Name, value))
			}
		}
	}
	c.list = list
	return list
}

// Clear forgets the fields of responses.
func (c *Stream) Clear() {
	clear(c.list[:cap(c.list)])
	c.In, c.side = nil, nil
}

// StreamField returns a field in the form of HTTP/2, whose name is in lower case (RFC 9113, 8.2).
func StreamField(name, value []byte) hpack.HeaderField {
	lower, ok := common[string(name)]
	if !ok {
		lower = strings.ToLower(string(name))
	}
	return hpack.HeaderField{Name: lower, Value: string(value)}
}

// common are the names of most fields of responses, as HTTP/1.1 and HTTP/2 have them, with the latter.
var common = func() map[string]string {
	names := map[string]string{}
	for _, name := range []string{
		"Accept-Ranges", "Age", "Cache-Control", "Content-Disposition", "Content-Encoding", "Content-Length", "Content-Security-Policy", "Content-Type", "Date",
		"Etag", "Expires", "Last-Modified", "Location", "Server", "Set-Cookie", "Vary", "X-Content-Type-Options", "X-Frame-Options", "X-Powered-By",
	} {
		lower := strings.ToLower(name)
		names[name], names[lower] = lower, lower
	}
	names["ETag"] = "etag"
	return names
}()

// AppendStreamHead appends the head of a request over HTTP/2 in the form of HTTP/1.1, so that the same parser judges requests of both
// versions. An extended CONNECT becomes the handshake of a WebSocket. An error is an [h1.Error].
func AppendStreamHead(dst []byte, h *downstream.Head) ([]byte, error) {
	verb, target := h.Method, h.Path
	switch {
	case h.Protocol != "" && !strings.EqualFold(h.Protocol, "websocket"):
		return dst, &h1.Error{Status: http.StatusNotImplemented, What: "a CONNECT to something other than a WebSocket"}
	case h.Protocol != "":
		verb = http.MethodGet
	case h.Method == http.MethodConnect:
		target = h.Authority
	case !h1.ValidTarget(target):
		return dst, &h1.Error{Status: http.StatusBadRequest, What: ":path is neither a path nor an asterisk"}
	}
	if !h1.ValidMethod(verb) {
		return dst, &h1.Error{Status: http.StatusBadRequest, What: "the method is not a token"}
	}
	dst = append(append(append(append(dst, verb...), ' '), target...), " HTTP/1.1\r\n"...)
	dst = h1.AppendPair(dst, "Host", h.Authority)
	dst = appendFields(dst, h)
	switch {
	case h.Protocol != "":
		dst = appendHandshake(dst, h.Fields)
	case h.Length < 0:
		dst = append(dst, "Transfer-Encoding: chunked\r\n"...)
	}
	return append(dst, "\r\n"...), nil
}

// appendFields appends the fields of a request. Those that only HTTP/1.1 has cannot be among them: downstream resets streams
// that have any.
func appendFields(dst []byte, h *downstream.Head) []byte {
	crumbs := 0
	for i := range h.Fields {
		switch f := &h.Fields[i]; f.Name {
		case "host": // is the authority
		case "cookie":
			crumbs++
		case "sec-websocket-key":
			if h.Protocol == "" {
				dst = appendField(dst, f)
			}
		default:
			dst = appendField(dst, f)
		}
	}
	if crumbs == 0 {
		return dst
	}
	dst = append(dst, "Cookie: "...) // in one line (RFC 9113, 8.2.3)
	for i := range h.Fields {
		if f := &h.Fields[i]; f.Name == "cookie" {
			dst = append(dst, f.Value...)
			if crumbs--; crumbs > 0 {
				dst = append(dst, "; "...)
			}
		}
	}
	return append(dst, "\r\n"...)
}

// appendField appends a field with the usual capitals in its name, as some programs compare names with case.
func appendField(dst []byte, f *hpack.HeaderField) []byte {
	at := len(dst)
	dst = h1.AppendPair(dst, f.Name, f.Value)
	first := true
	for i := at; i < at+len(f.Name); i++ {
		if c := dst[i]; first && 'a' <= c && c <= 'z' {
			dst[i] = c - 'a' + 'A'
		}
		first = dst[i] == '-'
	}
	return dst
}

// appendHandshake appends the fields that the handshake of a WebSocket has over HTTP/1.1 (RFC 6455, 4.1) and lacks over HTTP/2.
func appendHandshake(dst []byte, fields []hpack.HeaderField) []byte {
	key := make([]byte, 16)
	_, _ = rand.Read(key) // never fails
	if !slices.ContainsFunc(fields, func(f hpack.HeaderField) bool { return f.Name == "sec-websocket-version" }) {
		dst = h1.AppendPair(dst, "Sec-Websocket-Version", "13")
	}
	dst = h1.AppendPair(dst, "Connection", "Upgrade")
	dst = h1.AppendPair(dst, "Upgrade", "websocket")
	return h1.AppendPair(dst, "Sec-Websocket-Key", base64.StdEncoding.EncodeToString(key))
}

// StreamInput is the body of a request over HTTP/2 as its side takes it from the client.
type StreamInput interface {
	// Arrived returns how much of the body can be read without waiting, and whether that is the rest of it.
	Arrived() (n int, whole bool)
	// Read reads the body up to io.EOF. Any other error refuses it.
	Read(p []byte) (int, error)
	// AppendLast appends the last chunk for the server. It is called after the end was read.
	AppendLast(out []byte) []byte
	// Interrupt and Panicked are the methods of [Source].
	Interrupt()
	Panicked(v any)
}

// ErrShort is a body that does not have its length. The server would take the next request for a part of it.
var ErrShort = errors.New("the body does not have its length")

// StreamBody is the body of a request over HTTP/2 ([Source]).
type StreamBody struct {
	StreamInput
	chunked bool  // for the server
	left    int64 // of a body of known length
}

// NewStreamBody returns a body of a length; -1 if it is not known.
func NewStreamBody(in StreamInput, length int64) StreamBody {
	return StreamBody{in, length < 0, length}
}

// Gather implements [Source]. It takes the body only if all of it has arrived and it is small.
func (b *StreamBody) Gather(head []byte) (grown []byte, content int, whole bool, err error) {
	if n, all := b.Arrived(); !all || n > buffers.OutFlush {
		return head, 0, false, nil
	}
	for n := 0; !whole && err == nil; content += n {
		head, n, whole, err = b.read(head)
	}
	return head, content, whole, err
}

// More implements [Source].
func (b *StreamBody) More(out *Output) (framed []byte, content int, last bool, err error) {
	out.Buf, content, last, err = b.read(out.Take())
	return out.Buf, content, last, err
}

var streamBuffers = buffers.NewPool(16 << 10)

// read appends the next part of the body.
func (b *StreamBody) read(out []byte) (grown []byte, n int, last bool, err error) {
	buf := streamBuffers.Get()
	defer streamBuffers.Put(buf)
	n, err = b.Read(*buf)
	if last = errors.Is(err, io.EOF); last {
		err = nil
	}
	if !b.chunked {
		if b.left -= int64(n); b.left < 0 || last && b.left > 0 {
			return out, 0, false, ErrShort
		}
		return append(out, (*buf)[:n]...), n, last, err
	}
	if out = h1.AppendChunk(out, (*buf)[:n]); last {
		out = b.AppendLast(out)
	}
	return out, n, last, err
}
