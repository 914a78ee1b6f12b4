package upstream

import (
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"golang.org/x/net/http2"

	"boxgate/relay/h2"
)

// watcher notes what it is told.
type watcher struct{ arrived, failed chan *Stream }

func newWatcher() watcher { return watcher{make(chan *Stream, 10), make(chan *Stream, 10)} }

func (w watcher) Arrived(s *Stream, _ *h2.Batch) { w.arrived <- s }

func (w watcher) Failed(s *Stream) { w.failed <- s }

// begin begins a request that is watched.
func begin(t *testing.T, c *Conn, w Watcher, content string) *Stream {
	t.Helper()
	s := &Stream{}
	var b h2.Batch
	if !c.Reserve() || !c.Begin(s, request("POST", "/"), []byte(content), w, &b) {
		t.Fatal("the request is not taken")
	}
	b.Flush()
	return s
}

// TestWatchedResponse: a watcher is told once of what has come, and can read it without waiting.
func TestWatchedResponse(t *testing.T) {
	t.Parallel()
	c, server := newServer(t)
	w := newWatcher()
	s := begin(t, c, w, "ask")
	server.preface()
	if f := until[*http2.DataFrame](server, nil); string(f.Data()) != "ask" || !f.StreamEnded() {
		t.Errorf("the request is %q", f.Data())
	}
	server.head(1, false, ":status", "200", "a", "1")
	<-w.arrived
	if h, ok, _ := s.FinalHead(); !ok || h.Status != 200 || len(h.Fields) != 1 {
		t.Errorf("the head is %v", h)
	}
	if n := s.Peek(); len(n.Content) > 0 || n.Last || !n.Watch || !s.Watch(w) {
		t.Errorf("%+v has come", n)
	}
	server.data(1, false, "answer")
	<-w.arrived
	if n := s.Peek(); string(n.Content) != "answer" || n.Last {
		t.Errorf("%+v has come", n)
	}
	if s.Took(4); s.Watch(w) {
		t.Error("there is more to read")
	}
	if n := s.Peek(); string(n.Content) != "er" {
		t.Errorf("%+v is left", n)
	}
	if s.Took(2); !s.Watch(w) {
		t.Error("there is no more to read")
	}
	server.head(1, true, "t", "2")
	<-w.arrived
	if n := s.Peek(); len(n.Content) > 0 || !n.Last || n.Watch || s.Watch(w) || len(n.Trailers) != 1 {
		t.Errorf("%+v has come", n)
	}
	s.Close()
	s.Forget()
}

// TestWatcherLeavesTheRestToAReader: what a watcher has not taken is read as ever, and waited for.
func TestWatcherLeavesTheRestToAReader(t *testing.T) {
	t.Parallel()
	c, server := newServer(t)
	w := newWatcher()
	s := begin(t, c, w, "")
	server.preface()
	if !server.request().StreamEnded() {
		t.Error("the request goes on")
	}
	if !s.Unwatch() || s.Unwatch() {
		t.Error("it was not watched once")
	}
	s.Attend(t.Context())
	server.head(1, false, ":status", "100")
	server.head(1, false, ":status", "200")
	server.data(1, true, "answer")
	if h, err := s.Head(); err != nil || h.Status != 100 {
		t.Error(h, err)
	}
	if h, err := s.Head(); err != nil || h.Status != 200 {
		t.Error(h, err)
	}
	if got, err := io.ReadAll(s); err != nil || string(got) != "answer" || len(w.arrived) > 0 {
		t.Errorf("%q, %v", got, err)
	}
	s.Close()
}

// TestInterimHeadsAreNotPassedOver: a final head is not taken before those that came first.
func TestInterimHeadsAreNotPassedOver(t *testing.T) {
	t.Parallel()
	c, server := newServer(t)
	w := newWatcher()
	s := begin(t, c, w, "")
	server.preface()
	server.request()
	server.head(1, false, ":status", "103")
	<-w.arrived
	if h, ok, watch := s.FinalHead(); ok || watch {
		t.Errorf("%v is final", h)
	}
	s.Close()
}

// TestWatcherIsToldOfFailures: of the stream, and of the connection.
func TestWatcherIsToldOfFailures(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(*server){
		"reset":           func(s *server) { _ = s.WriteRSTStream(1, http2.ErrCodeRefusedStream) },
		"goaway":          func(s *server) { _ = s.WriteGoAway(0, http2.ErrCodeNo, nil) },
		"connection lost": func(s *server) { _ = s.conn.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, server := newServer(t)
			w := newWatcher()
			s := begin(t, c, w, "")
			server.preface()
			server.request()
			fail(server)
			if <-w.failed != s || s.Watch(w) || s.Unwatch() {
				t.Error("it is still watched")
			}
			if _, ok, watch := s.FinalHead(); ok || watch {
				t.Error("there is a head, or there may be")
			}
			s.Attend(t.Context())
			if _, err := s.Head(); err == nil {
				t.Error("there is a head")
			}
		})
	}
}

// TestBeginDoesNotWait: a request that would have to wait is not begun, and its stream stays reserved.
func TestBeginDoesNotWait(t *testing.T) {
	t.Parallel()
	c, server := newServer(t, http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 2}, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 10},
		http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: 1000})
	w := newWatcher()
	first := begin(t, c, w, "")
	server.preface()
	until(server, func(f *http2.SettingsFrame) bool { return f.IsAck() })
	if !c.Reserve() || c.Reserve() {
		t.Fatal("two streams are allowed")
	}
	if s := (&Stream{}); c.Begin(s, request("POST", "/"), []byte("eleven more"), w, &h2.Batch{}) {
		t.Error("more than the window")
	}
	if s := (&Stream{}); c.Begin(s, request("GET", "/", "x", strings.Repeat("v", 1000)), nil, w, &h2.Batch{}) {
		t.Error("a head that the server does not accept")
	}
	if s := (&Stream{}); !c.Begin(s, request("POST", "/"), []byte("ten bytes."), w, &h2.Batch{}) {
		t.Error("the reservation was lost")
	} else {
		s.Close()
	}
	first.Close()
	c.Close()
	if c.Begin(&Stream{}, request("GET", "/"), nil, w, &h2.Batch{}) {
		t.Error("a request on a connection that has ended")
	}
	if _, err := c.Open(t.Context(), request("GET", "/"), true); !errors.Is(err, errUnusable) {
		t.Error(err)
	}
}

// TestRequestsOfABatch: requests of a batch go out in one write at its end, a full output before.
func TestRequestsOfABatch(t *testing.T) {
	t.Parallel()
	near, far := net.Pipe() // each write of it is a read
	c := New(near, func() {})
	defer c.Close()
	defer far.Close()
	var b h2.Batch
	start := func(path string) bool {
		return c.Reserve() && c.Begin(&Stream{}, request("GET", path), nil, newWatcher(), &b)
	}
	for range 10 {
		if !start("/") {
			t.Fatal("the request is not taken")
		}
	}
	if len(c.wake) > 0 {
		t.Error("the writer was woken before the end of the batch")
	}
	b.Flush()
	buf := make([]byte, 64<<10)
	n, err := far.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	heads := 0
	frames := http2.NewFramer(nil, strings.NewReader(string(buf[len(http2.ClientPreface):n])))
	for f, err := frames.ReadFrame(); err == nil; f, err = frames.ReadFrame() {
		if _, ok := f.(*http2.HeadersFrame); ok {
			heads++
		}
	}
	if heads != 10 {
		t.Errorf("%d requests in the first write", heads)
	}
	for start("/" + strings.Repeat("x", 4<<10)) {
		continue
	}
	if n, err := far.Read(buf); err != nil || n < outRoom { // although the batch has not ended
		t.Errorf("a full output: %d bytes, %v", n, err)
	}
}
