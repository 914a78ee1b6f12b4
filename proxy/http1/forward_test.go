package http1

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"slices"
	"testing"

	"boxgate/internal/buffers"
	"boxgate/policy/name"
	"boxgate/proxy/exchange"
	"boxgate/proxy/header"
	"boxgate/proxy/live"
	"boxgate/relay"
	"boxgate/relay/h1"
	"boxgate/rule"
)

// FuzzForward holds the loop against net/http: whatever is parsed and written on, net/http reads as the same method,
// target, authority, fields and body, with the gateway's header exactly once.
func FuzzForward(f *testing.F) {
	f.Add([]byte("GET / HTTP/1.1\r\nHost: a.example.com\r\nX: y\r\n\r\n"))
	f.Add([]byte("POST /x?y HTTP/1.1\r\nhost: a:80\r\nContent-Length: 5\r\nx_KEY: mine\r\n\r\nhello"))
	f.Add([]byte("POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTrailer: A\r\n\r\n5\r\nhello\r\n0\r\nA: b\r\nX-Key: c\r\n\r\n"))
	f.Add([]byte("GET http://a.example.com HTTP/1.0\r\nHost: a\r\nConnection: close, B\r\nB: c\r\n\r\n"))
	f.Add([]byte("OPTIONS * HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n"))
	set := []rule.Field{{Name: "X-Key", Value: name.NewSecret("s3cret")}}
	f.Fuzz(func(t *testing.T, in []byte) {
		var r h1.Request
		n, err := r.Parse(in)
		if err != nil || r.Form == h1.Authority {
			return
		}
		reader := h1.Reader{Source: bytes.NewReader(in[n:])}
		defer reader.Release()
		up := body{h: &conn{work: &work{}}, set: set}
		up.Begin(&reader, r.Body, &up)
		out, sent, whole, err := up.Body.Gather(header.AppendRequest(nil, &r, set, false))
		var pending relay.Output
		for parts := 0; err == nil && !whole; parts++ {
			var framed []byte
			n := 0
			if framed, n, whole, err = up.More(&pending); parts > 1000 || len(out) >= buffers.OutFlush {
				return
			}
			out, sent = append(out, framed...), sent+n
		}
		if err != nil {
			return
		}
		theirs, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(append(slices.Clone(out), "GET /smuggled HTTP/1.1\r\n\r\n"...))))
		if err != nil {
			t.Fatalf("%q forwarded as %q: %v", in, out, err)
		}
		if theirs.Method != string(r.Method) || theirs.RequestURI != string(r.Path) || theirs.Host != string(r.Host) {
			t.Fatalf("%q forwarded as %q: %s %s %s", in, out, theirs.Method, theirs.RequestURI, theirs.Host)
		}
		content, err := io.ReadAll(theirs.Body)
		if err != nil || len(content) != sent {
			t.Fatalf("%q forwarded as %q: body of %d bytes, we counted %d: %v", in, out, len(content), sent, err)
		}
		for name, values := range theirs.Header {
			if h1.IsVariant(name, "X-Key") && (name != "X-Key" || len(values) != 1 || values[0] != "s3cret") {
				t.Fatalf("%q forwarded as %q: %s %q", in, out, name, values)
			}
		}
		if theirs.Header.Get("X-Key") != "s3cret" || theirs.Trailer["X-Key"] != nil {
			t.Fatalf("%q forwarded as %q: header %q, trailer %q", in, out, theirs.Header["X-Key"], theirs.Trailer)
		}
	})
}

// TestFinishEndsTheUpload: a handler that panics leaves an upload that reads from the client. Its buffer goes back to the
// pool only when the upload has ended.
func TestFinishEndsTheUpload(t *testing.T) {
	t.Parallel()
	near, far := net.Pipe()
	defer far.Close()
	defer near.Close()
	h := &conn{
		Client: relay.Client{Conn: near, In: h1.Reader{Source: near}}, s: &exchange.Session{Live: &live.Conn{}}, ctx: context.Background(), work: &work{},
	}
	reading := &reader{body: body{h: h}, begun: make(chan struct{}), ended: make(chan struct{})}
	h.Upload.Start(reading, nowhere{})
	<-reading.begun
	h.finish()
	select {
	case <-reading.ended:
	default:
		t.Error("the upload goes on")
	}
}

// reader is a body of which nothing comes.
type reader struct {
	body
	begun, ended chan struct{}
}

func (r *reader) More(*relay.Output) ([]byte, int, bool, error) {
	close(r.begun)
	defer close(r.ended)
	return nil, 0, false, r.h.In.Fill()
}

// nowhere is a server that takes everything.
type nowhere struct{}

func (nowhere) Write([]byte) error { return nil }
func (nowhere) Abort()             {}
