package upstream

import (
	"bytes"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"boxgate/relay/h2"
)

// server is the other side of a connection, frame by frame.
type server struct {
	*http2.Framer
	t     testing.TB
	conn  net.Conn
	block bytes.Buffer
	enc   *hpack.Encoder
	dec   *hpack.Decoder
	got   []hpack.HeaderField
}

// newServer returns a connection and its server, which has read the preface and sent its settings.
func newServer(t testing.TB, settings ...http2.Setting) (*Conn, *server) {
	t.Helper()
	near, far := socketPair(t)
	ended := make(chan struct{})
	c := New(near, func() { close(ended) })
	t.Cleanup(func() {
		c.Close()
		_ = far.Close()
		<-ended
	})
	s := &server{t: t, conn: far, Framer: http2.NewFramer(far, far)}
	s.AllowIllegalWrites = true
	s.enc = hpack.NewEncoder(&s.block)
	s.dec = hpack.NewDecoder(4096, func(f hpack.HeaderField) { s.got = append(s.got, f) })
	_ = far.SetDeadline(time.Now().Add(time.Minute))
	if err := s.WriteSettings(settings...); err != nil {
		t.Fatal(err)
	}
	return c, s
}

// socketPair returns the two ends of a TCP connection.
func socketPair(t testing.TB) (near, far net.Conn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if near, err = net.Dial("tcp", ln.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if far, err = ln.Accept(); err != nil {
		t.Fatal(err)
	}
	return near, far
}

// preface reads the client's preface.
func (s *server) preface() {
	s.t.Helper()
	b := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(s.conn, b); err != nil || string(b) != http2.ClientPreface {
		s.t.Fatalf("the preface is %q, %v", b, err)
	}
}

// until reads frames until one satisfies f.
func until[F http2.Frame](s *server, f func(F) bool) F {
	s.t.Helper()
	for {
		frame, err := s.ReadFrame()
		if err != nil {
			s.t.Fatalf("instead of a frame: %v", err)
		}
		if h, ok := frame.(*http2.HeadersFrame); ok {
			s.got = nil
			if _, err := s.dec.Write(h.HeaderBlockFragment()); err != nil {
				s.t.Fatal(err)
			}
		}
		if want, ok := frame.(F); ok && (f == nil || f(want)) {
			return want
		}
	}
}

// request reads the head of a request.
func (s *server) request() *http2.HeadersFrame {
	s.t.Helper()
	return until[*http2.HeadersFrame](s, nil)
}

func (s *server) fields(pairs ...string) []byte {
	s.block.Reset()
	for i := 0; i < len(pairs); i += 2 {
		_ = s.enc.WriteField(hpack.HeaderField{Name: pairs[i], Value: pairs[i+1]}) // into a buffer
	}
	return bytes.Clone(s.block.Bytes())
}

func (s *server) head(stream uint32, end bool, pairs ...string) {
	s.t.Helper()
	var flags http2.Flags
	if end {
		flags = http2.FlagHeadersEndStream
	}
	head := append(h2.AppendFrameHead(nil, 0, http2.FrameHeaders, flags, stream), s.fields(pairs...)...)
	if _, err := s.conn.Write(h2.EndHead(head, 0)); err != nil {
		s.t.Error(err)
	}
}

func (s *server) data(stream uint32, end bool, content string) {
	s.t.Helper()
	if err := s.WriteData(stream, end, []byte(content)); err != nil {
		s.t.Fatal(err)
	}
}

func request(method, path string, more ...string) []hpack.HeaderField {
	fields := []hpack.HeaderField{
		{Name: ":method", Value: method}, {Name: ":scheme", Value: "https"}, {Name: ":authority", Value: "example.com"}, {Name: ":path", Value: path},
	}
	for i := 0; i < len(more); i += 2 {
		fields = append(fields, hpack.HeaderField{Name: more[i], Value: more[i+1]})
	}
	return fields
}

// open opens a stream.
func open(t testing.TB, c *Conn, end bool, fields []hpack.HeaderField) *Stream {
	t.Helper()
	if !c.Reserve() {
		t.Fatal("no stream to be had")
	}
	s, err := c.Open(t.Context(), fields, end)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// await waits until a condition holds.
func await(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for limit := time.Now().Add(time.Minute); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("%s did not come", what)
		}
	}
}

// as returns the error of a type in err.
func as[E error](t testing.TB, err error) E {
	t.Helper()
	var want E
	if !errors.As(err, &want) {
		t.Fatalf("the error is %v", err)
	}
	return want
}
