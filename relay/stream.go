package relay

import (
	"net/http"
	"strings"

	"golang.org/x/net/http2/hpack"

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
