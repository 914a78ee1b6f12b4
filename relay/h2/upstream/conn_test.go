package upstream

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"boxgate/relay/h2"
)

// TestRequestAndResponse sends a request with content and trailers and reads a response with everything it can have.
func TestRequestAndResponse(t *testing.T) {
	t.Parallel()
	c, s := newServer(t)
	st := open(t, c, false, request("POST", "/a", "x-secret", "value"))
	if _, err := st.Write([]byte("content")); err != nil {
		t.Fatal(err)
	}
	if err := st.CloseWrite([]hpack.HeaderField{{Name: "x-sum", Value: "7"}}); err != nil {
		t.Fatal(err)
	}
	s.preface()
	if f := s.request(); f.StreamEnded() || f.StreamID != 1 {
		t.Errorf("%v", f)
	}
	if f := until[*http2.DataFrame](s, nil); string(f.Data()) != "content" || f.StreamEnded() {
		t.Errorf("%v", f)
	}
	if f := s.request(); !f.StreamEnded() || len(s.got) != 1 || s.got[0].Value != "7" {
		t.Errorf("trailers %v", s.got)
	}
	s.head(1, false, ":status", "103", "link", "</x>")
	s.head(1, false, ":status", "200", "x-a", "b", "connection", "close", "trailer", "x-end")
	s.data(1, false, "one ")
	s.data(1, false, "two")
	s.head(1, true, "x-end", "yes")
	if h, err := st.Head(); err != nil || !h.Interim() || h.Status != 103 || h.Fields[0].Value != "</x>" {
		t.Errorf("%+v, %v", h, err)
	}
	if h, err := st.Head(); err != nil || h.Status != 200 || h.End || h.Length != -1 || len(h.Fields) != 2 || h.Fields[0].Name != "x-a" {
		t.Errorf("%+v, %v", h, err)
	}
	if b, err := io.ReadAll(st); err != nil || string(b) != "one two" {
		t.Errorf("%q, %v", b, err)
	}
	if tr := st.Trailers(); len(tr) != 1 || tr[0].Value != "yes" {
		t.Errorf("trailers %v", tr)
	}
	st.Close()
}

// countingConn counts writes.
type countingConn struct {
	net.Conn
	mu     sync.Mutex
	writes [][]byte
}

func (c *countingConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	c.writes = append(c.writes, bytes.Clone(p))
	c.mu.Unlock()
	return c.Conn.Write(p)
}

func (c *countingConn) NetConn() net.Conn { return c.Conn }

// TestRequestIsOneWrite holds the preface, the head, the content and the end of a request to leave in a single write, and
// the end of the stream in the last DATA frame.
func TestRequestIsOneWrite(t *testing.T) {
	t.Parallel()
	near, far := socketPair(t)
	defer far.Close()
	counting := &countingConn{Conn: near}
	c := New(counting, func() {})
	defer c.Close()
	st := open(t, c, false, request("POST", "/"))
	c.mu.Lock() // until everything is appended
	go func() {
		defer c.mu.Unlock()
		st.last = c.out.data(st.id, []byte("content"))
		c.out.end(st.id, st.last)
		c.flushLocked()
	}()
	fr := http2.NewFramer(nil, far)
	if _, err := io.ReadFull(far, make([]byte, len(http2.ClientPreface))); err != nil {
		t.Fatal(err)
	}
	for {
		f, err := fr.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		if d, ok := f.(*http2.DataFrame); ok {
			if !d.StreamEnded() || string(d.Data()) != "content" {
				t.Errorf("%v", d)
			}
			break
		}
	}
	counting.mu.Lock()
	defer counting.mu.Unlock()
	if n := len(counting.writes); n != 1 {
		t.Errorf("%d writes", n)
	}
}

// TestWindows sends more than the server's windows allow: the rest follows as they open, and also where the server makes
// the windows of open streams smaller first.
func TestWindows(t *testing.T) {
	t.Parallel()
	c, s := newServer(t, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 10})
	s.preface()
	until(s, func(f *http2.SettingsFrame) bool { return f.IsAck() })
	st := open(t, c, false, request("POST", "/"))
	sent := make(chan error, 1)
	go func() {
		_, err := st.Write(bytes.Repeat([]byte("x"), 100))
		sent <- errors.Join(err, st.CloseWrite(nil))
	}()
	total := 0
	read := func(want int) *http2.DataFrame {
		t.Helper()
		f := until[*http2.DataFrame](s, nil)
		if total += len(f.Data()); total != want {
			t.Fatalf("%d bytes have come, want %d", total, want)
		}
		return f
	}
	read(10)
	if err := s.WriteWindowUpdate(1, 5); err != nil {
		t.Fatal(err)
	}
	read(15)
	if err := s.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}); err != nil { // what is left: -10
		t.Fatal(err)
	}
	until(s, func(f *http2.SettingsFrame) bool { return f.IsAck() })
	if err := errors.Join(s.WriteWindowUpdate(1, 10), s.WriteWindowUpdate(1, 1)); err != nil {
		t.Fatal(err)
	}
	read(16)
	if err := s.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1000}); err != nil {
		t.Fatal(err)
	}
	for f := read(100); !f.StreamEnded(); f = read(100) {
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
}

// TestResponseWindow reads nothing of a long response: the server gets no more window than StreamWindow, until it is read.
func TestResponseWindow(t *testing.T) {
	t.Parallel()
	c, s := newServer(t)
	s.preface()
	st := open(t, c, true, request("GET", "/"))
	s.request()
	s.head(1, false, ":status", "200")
	frame := strings.Repeat("x", h2.FrameMax)
	for range StreamWindow / h2.FrameMax {
		s.data(1, false, frame)
	}
	if err := s.WritePing(false, [8]byte{1}); err != nil {
		t.Fatal(err)
	}
	for {
		f, err := s.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		if w, ok := f.(*http2.WindowUpdateFrame); ok && w.StreamID != 0 {
			t.Errorf("%v for what was not read", w)
		}
		if p, ok := f.(*http2.PingFrame); ok && p.IsAck() {
			break
		}
	}
	go func() { _, _ = io.Copy(io.Discard, st) }()
	given := 0
	for given < StreamWindow/2 {
		given += int(until(s, func(f *http2.WindowUpdateFrame) bool { return f.StreamID == 1 }).Increment)
	}
}

// TestLimitOfStreams lets the server say how many streams it takes, and changes it.
func TestLimitOfStreams(t *testing.T) {
	t.Parallel()
	c, s := newServer(t, http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 2})
	open(t, c, true, request("GET", "/"))
	s.preface()
	until(s, func(f *http2.SettingsFrame) bool { return f.IsAck() })
	second := open(t, c, true, request("GET", "/"))
	if c.Reserve() {
		t.Error("a third stream")
	}
	if err := s.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 3}); err != nil {
		t.Fatal(err)
	}
	await(t, "a third stream", c.Reserve)
	if c.Reserve() {
		t.Error("a fourth stream")
	}
	c.Release()
	second.Close()
	for i, want := range []bool{true, true, false} { // the one released, and the one ended
		if c.Reserve() != want {
			t.Errorf("reservation %d: %v", i, !want)
		}
	}
}

// TestGoAway lets the server end a connection: what it will not process can be repeated, what it will goes on, and the
// connection closes after the last.
func TestGoAway(t *testing.T) {
	t.Parallel()
	c, s := newServer(t)
	first := open(t, c, true, request("GET", "/"))
	second := open(t, c, true, request("GET", "/"))
	s.preface()
	s.request()
	if err := s.WriteGoAway(1, http2.ErrCodeNo, []byte("debug data")); err != nil {
		t.Fatal(err)
	}
	if _, err := second.Head(); !Unprocessed(err) || strings.Contains(err.Error(), "debug") {
		t.Errorf("above the last stream: %v", err)
	}
	if c.Reserve() {
		t.Error("a stream behind GOAWAY")
	}
	s.head(1, false, ":status", "200")
	s.data(1, true, "whole")
	if b, err := io.ReadAll(first); err != nil || string(b) != "whole" {
		t.Errorf("below the last stream: %q, %v", b, err)
	}
	second.Close()
	first.Close()
	if _, err := io.Copy(io.Discard, s.conn); err != nil {
		t.Errorf("instead of the end of the connection: %v", err)
	}
}

// TestResets lets the server reset streams: their code is kept, and only a refusal may be repeated.
func TestResets(t *testing.T) {
	t.Parallel()
	c, s := newServer(t)
	s.preface()
	for _, code := range []http2.ErrCode{http2.ErrCodeRefusedStream, http2.ErrCodeCancel, http2.ErrCodeInternal, 0xbeef, http2.ErrCodeNo} {
		st := open(t, c, false, request("POST", "/"))
		if _, err := st.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if err := s.WriteRSTStream(s.request().StreamID, code); err != nil {
			t.Fatal(err)
		}
		_, err := st.Head()
		if e := as[*h2.StreamError](t, err); e.Code != code || !e.Peer || Unprocessed(err) != (code == http2.ErrCodeRefusedStream) {
			t.Errorf("%v: %v", code, err)
		}
		if _, err := st.Write([]byte("x")); err == nil {
			t.Errorf("%v: writing goes on", code)
		}
		st.Close()
	}
}

// TestOurResets ends streams early: the server is told by the right code.
func TestOurResets(t *testing.T) {
	t.Parallel()
	c, s := newServer(t)
	s.preface()
	reset := func() http2.ErrCode { t.Helper(); return until[*http2.RSTStreamFrame](s, nil).ErrCode }
	st := open(t, c, true, request("GET", "/"))
	st.Close()
	if code := reset(); code != http2.ErrCodeCancel {
		t.Errorf("cancelled: %v", code)
	}
	st = open(t, c, false, request("POST", "/"))
	go func() { s.head(3, true, ":status", "200") }()
	if h, err := st.Head(); err != nil || !h.End {
		t.Fatal(h, err)
	}
	st.Close()
	if code := reset(); code != http2.ErrCodeNo {
		t.Errorf("response complete, request not: %v", code)
	}
	st = open(t, c, false, request("POST", "/"))
	want := errors.New("why")
	st.Fail(want)
	if _, err := st.Head(); !errors.Is(err, want) {
		t.Errorf("failed: %v", err)
	}
	if code := reset(); code != http2.ErrCodeCancel {
		t.Errorf("failed: %v", code)
	}
}

// TestCompleteResponseOutlivesTheConnection lets the server close right behind a response that nobody has read.
func TestCompleteResponseOutlivesTheConnection(t *testing.T) {
	t.Parallel()
	c, s := newServer(t)
	s.preface()
	st := open(t, c, true, request("GET", "/"))
	other := open(t, c, true, request("GET", "/"))
	s.request()
	s.request()
	s.head(1, false, ":status", "200")
	s.data(1, true, "whole")
	_ = s.conn.Close()
	await(t, "the end of the connection", func() bool { return !c.Reserve() })
	if h, err := st.Head(); err != nil || h.Status != 200 {
		t.Error(h, err)
	}
	if b, err := io.ReadAll(st); err != nil || string(b) != "whole" {
		t.Errorf("%q, %v", b, err)
	}
	if _, err := other.Head(); !errors.Is(err, io.ErrUnexpectedEOF) || Unprocessed(err) {
		t.Errorf("without a response: %v", err)
	}
}

// TestServerThatDoesNotRead fills the connection to a server that reads nothing: who waits can be cancelled, nothing else
// waits, and what is held is bounded.
func TestServerThatDoesNotRead(t *testing.T) {
	t.Parallel()
	near, far := net.Pipe() // where every write waits for a reader
	defer far.Close()
	c := New(near, func() {})
	defer c.Close()
	ctx, cancel := context.WithCancel(t.Context())
	if !c.Reserve() {
		t.Fatal("no stream")
	}
	st, err := c.Open(ctx, request("POST", "/"), false)
	if err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	c.send.Add(1<<31 - 1 - h2.FirstWindow)
	st.send.Add(1<<31 - 1 - h2.FirstWindow)
	c.mu.Unlock()
	written := make(chan error, 1)
	go func() {
		_, err := st.Write(make([]byte, 16<<20))
		written <- err
	}()
	await(t, "a full output", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.out.taken == 1 && c.out.full() && len(c.crowd) == 1
	})
	if !c.Reserve() {
		t.Error("no other stream to be had")
	}
	opened := make(chan error, 1)
	go func() {
		_, err := c.Open(ctx, request("GET", "/"), true)
		opened <- err
	}()
	await(t, "a request that waits", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.crowd) == 2
	})
	c.mu.Lock()
	if n := len(c.out.buf); n > outRoom+h2.FrameHead+h2.FrameMax {
		t.Errorf("%d bytes of output", n)
	}
	c.settings.streams = 2
	c.mu.Unlock()
	if c.Reserve() {
		t.Error("the stream of the request that waits is to be had again")
	}
	cancel()
	for _, done := range []chan error{written, opened} {
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	st.Close()
}

// TestServerThatAsksAndDoesNotRead lets a server send PINGs and read nothing: the connection ends.
func TestServerThatAsksAndDoesNotRead(t *testing.T) {
	t.Parallel()
	c, s := newServer(t)
	st := open(t, c, true, request("GET", "/"))
	for err := error(nil); err == nil; {
		err = s.WritePing(false, [8]byte{})
	}
	if _, err := st.Head(); !errors.Is(err, h2.ErrServer) && !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error(err)
	}
}

// TestSilentServer waits for a PING, and for the end of the connection where no frame follows it.
func TestSilentServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		ended := false
		c := New(near, func() { ended = true })
		fr := http2.NewFramer(far, far)
		go func() { _ = http2.NewFramer(far, nil).WriteSettings() }()
		if _, err := io.ReadFull(far, make([]byte, len(http2.ClientPreface))); err != nil {
			t.Fatal(err)
		}
		next := func() *http2.PingFrame {
			for {
				f, err := fr.ReadFrame()
				if err != nil {
					return nil
				}
				if p, ok := f.(*http2.PingFrame); ok {
					return p
				}
			}
		}
		start := time.Now()
		p := next()
		if d := time.Since(start); p == nil || p.IsAck() || d != pingAfter {
			t.Fatalf("%v after %v", p, d)
		}
		if err := fr.WritePing(true, p.Data); err != nil {
			t.Fatal(err)
		}
		if p = next(); p == nil || time.Since(start) < 2*pingAfter {
			t.Fatalf("%v after %v", p, time.Since(start))
		}
		start = time.Now()
		if p = next(); p != nil || time.Since(start) != pingWait {
			t.Errorf("%v after %v", p, time.Since(start))
		}
		synctest.Wait()
		if !ended || c.Reserve() {
			t.Error("the connection goes on")
		}
	})
}

// TestClosingWaitsForNobody closes a connection whose server reads nothing.
func TestClosingWaitsForNobody(t *testing.T) {
	t.Parallel()
	near, far := net.Pipe() // where every write waits for a reader
	defer far.Close()
	ended := make(chan struct{})
	c := New(near, func() { close(ended) })
	st := open(t, c, true, request("GET", "/"))
	c.Close()
	<-ended
	if _, err := st.Head(); !errors.Is(err, errClosed) {
		t.Error(err)
	}
}

// TestOpenEndsWithTheConnection lets a server break off while requests wait for room to be sent.
func TestOpenEndsWithTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe() // nobody reads at its far end
		c := New(near, func() {})
		results := make(chan error, 3)
		for range cap(results) {
			if !c.Reserve() {
				t.Fatal("no room for a stream")
			}
			go func() {
				_, err := c.Open(t.Context(), request("GET", "/", "x", strings.Repeat("{", 20000)), true)
				results <- err
			}()
			synctest.Wait()
		}
		waiting := cap(results) - len(results)
		if waiting == 0 {
			t.Fatal("no request waits")
		}
		_ = far.Close()
		for range cap(results) {
			if err := <-results; err != nil {
				waiting--
			}
		}
		if waiting != 0 {
			t.Errorf("%d requests are taken for sent", waiting)
		}
	})
}
