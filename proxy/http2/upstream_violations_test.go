package http2_test

import (
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"boxgate/policy/name"
	"boxgate/proxy/proxytest"
	"boxgate/relay"
	"boxgate/relay/h2"
	"boxgate/relay/h2/upstream"
)

// rogue is an origin server that writes single frames. A request for /bad is answered by a misdeed, any other with
// "ok".
type rogue struct {
	*http2.Framer
	conn  net.Conn
	block bytes.Buffer
	enc   *hpack.Encoder
}

// rogue starts one; misdeed answers on the stream. conns counts the connections.
func rogueServer(r *proxytest.Rig, misdeed func(s *rogue, stream uint32), conns *atomic.Int32) uint16 {
	ln, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{GetCertificate: r.Upstream.ForHello, NextProtos: []string{"h2"}})
	if err != nil {
		r.T.Fatal(err)
	}
	r.T.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			conns.Add(1)
			go (&rogue{conn: c}).serve(misdeed)
		}
	}()
	return proxytest.PortOf(r.T, ln)
}

func (s *rogue) serve(misdeed func(*rogue, uint32)) {
	defer s.conn.Close()
	s.Framer = http2.NewFramer(s.conn, s.conn)
	s.AllowIllegalWrites = true
	s.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	s.enc = hpack.NewEncoder(&s.block)
	if _, err := io.ReadFull(s.conn, make([]byte, len(http2.ClientPreface))); err != nil || s.WriteSettings() != nil {
		return
	}
	for {
		frame, err := s.ReadFrame()
		if err != nil {
			return
		}
		switch f := frame.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				_ = s.WriteSettingsAck()
			}
		case *http2.MetaHeadersFrame:
			if strings.HasPrefix(f.PseudoValue("path"), "/bad") {
				misdeed(s, f.StreamID)
				continue
			}
			s.head(f.StreamID, false, ":status", "200")
			_ = s.WriteData(f.StreamID, true, []byte("ok"))
		}
	}
}

// fields encodes a header block.
func (s *rogue) fields(pairs ...string) []byte {
	s.block.Reset()
	for i := 0; i < len(pairs); i += 2 {
		_ = s.enc.WriteField(hpack.HeaderField{Name: pairs[i], Value: pairs[i+1]}) // into a buffer
	}
	return bytes.Clone(s.block.Bytes())
}

func (s *rogue) head(stream uint32, end bool, pairs ...string) {
	_ = s.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: s.fields(pairs...), EndStream: end, EndHeaders: true})
}

// raw writes a frame of any kind.
func (s *rogue) raw(t http2.FrameType, flags http2.Flags, stream uint32, payload string) {
	_ = s.WriteRawFrame(t, flags, stream, []byte(payload))
}

// misdeeds are violations of RFC 9113 by a server, with the possible results for the box: statuses, or "broken off".
var misdeeds = map[string]struct {
	do   func(s *rogue, stream uint32)
	want string
}{
	"window too large":      {func(s *rogue, _ uint32) { s.raw(http2.FrameSettings, 0, 0, "\x00\x04\xff\xff\xff\xff") }, "502"},
	"frame size too small":  {func(s *rogue, _ uint32) { s.raw(http2.FrameSettings, 0, 0, "\x00\x05\x00\x00\x00\x64") }, "502"},
	"settings cut short":    {func(s *rogue, _ uint32) { s.raw(http2.FrameSettings, 0, 0, "\x00\x04\x00") }, "502"},
	"settings on a stream":  {func(s *rogue, id uint32) { s.raw(http2.FrameSettings, 0, id, "") }, "502"},
	"settings ack, payload": {func(s *rogue, _ uint32) { s.raw(http2.FrameSettings, http2.FlagSettingsAck, 0, "abcdef") }, "502"},
	"push": {func(s *rogue, id uint32) {
		_ = s.WritePushPromise(http2.PushPromiseParam{StreamID: id, PromiseID: 2, BlockFragment: s.fields(":method", "GET"), EndHeaders: true})
	}, "502"},
	"long DATA": {func(s *rogue, id uint32) {
		s.head(id, false, ":status", "200")
		s.raw(http2.FrameData, 0, id, strings.Repeat("x", h2.FrameMax+1))
	}, "200 broken off|502"},
	"long HEADERS": {func(s *rogue, id uint32) {
		s.raw(http2.FrameHeaders, http2.FlagHeadersEndHeaders, id, strings.Repeat("\x00", h2.FrameMax+1))
	}, "502"},
	"a stream of the server's": {func(s *rogue, _ uint32) { s.head(2, true, ":status", "200") }, "502"},
	"a stream not opened":      {func(s *rogue, id uint32) { s.head(id+2, true, ":status", "200") }, "502"},
	"DATA on the connection":   {func(s *rogue, _ uint32) { s.raw(http2.FrameData, 0, 0, "x") }, "502"},
	"HEADERS on the connection": {func(s *rogue, _ uint32) {
		s.raw(http2.FrameHeaders, http2.FlagHeadersEndHeaders, 0, "\x88")
	}, "502"},
	"a block interrupted by DATA": {func(s *rogue, id uint32) {
		s.raw(http2.FrameHeaders, 0, id, "\x88")
		s.raw(http2.FrameData, 0, id, "x")
	}, "502"},
	"a block interrupted by an unknown frame": {func(s *rogue, id uint32) {
		s.raw(http2.FrameHeaders, 0, id, "\x88")
		s.raw(0xbe, 0, id, "x")
	}, "502"},
	"CONTINUATION of nothing": {func(s *rogue, id uint32) { s.raw(http2.FrameContinuation, 4, id, "\x88") }, "502"},
	"no status":               {func(s *rogue, id uint32) { s.head(id, true, "x", "y") }, "502"},
	"two statuses":            {func(s *rogue, id uint32) { s.head(id, true, ":status", "200", ":status", "204") }, "502"},
	"a status that is none":   {func(s *rogue, id uint32) { s.head(id, true, ":status", "2x0") }, "502"},
	"a pseudo-header of requests": {func(s *rogue, id uint32) {
		s.head(id, true, ":status", "200", ":path", "/")
	}, "502"},
	"a pseudo-header behind fields": {func(s *rogue, id uint32) { s.head(id, true, "x", "y", ":status", "200") }, "502"},
	"an upper-case name":            {func(s *rogue, id uint32) { s.head(id, true, ":status", "200", "X-Y", "z") }, "502"},
	"CR LF in a value":              {func(s *rogue, id uint32) { s.head(id, true, ":status", "200", "x", "y\r\nz: 1") }, "502"},
	"status 101":                    {func(s *rogue, id uint32) { s.head(id, true, ":status", "101") }, "502"},
	"an index of nothing":           {func(s *rogue, id uint32) { s.raw(http2.FrameHeaders, 5, id, "\xff\xff\x7f") }, "502"},
	"a table larger than agreed":    {func(s *rogue, id uint32) { s.raw(http2.FrameHeaders, 5, id, "\x3f\xe1\xff\x7f\x88") }, "502"},
	"padding longer than the frame": {func(s *rogue, id uint32) { s.raw(http2.FrameHeaders, 0xd, id, "\x09\x88") }, "502"},
	"DATA before HEADERS":           {func(s *rogue, id uint32) { _ = s.WriteData(id, true, []byte("x")) }, "502"},
	"more DATA than the window": {func(s *rogue, id uint32) {
		s.head(id, false, ":status", "200")
		for range 2 * upstream.ConnWindow / h2.FrameMax {
			if s.WriteData(id, false, make([]byte, h2.FrameMax)) != nil {
				return
			}
		}
	}, "200 broken off"},
	"a body longer than its length": {func(s *rogue, id uint32) {
		s.head(id, false, ":status", "200", "content-length", "1")
		_ = s.WriteData(id, true, []byte("xyz"))
	}, "200 broken off"},
	"a body shorter than its length": {func(s *rogue, id uint32) {
		s.head(id, false, ":status", "200", "content-length", "10")
		_ = s.WriteData(id, true, []byte("xyz"))
	}, "200 broken off"},
	"window raised by nothing":   {func(s *rogue, _ uint32) { s.raw(http2.FrameWindowUpdate, 0, 0, "\x00\x00\x00\x00") }, "502"},
	"window raised beyond bound": {func(s *rogue, _ uint32) { s.raw(http2.FrameWindowUpdate, 0, 0, "\x7f\xff\xff\xff") }, "502"},
	"stream's window raised beyond bound": {func(s *rogue, id uint32) {
		s.head(id, false, ":status", "200")
		s.raw(http2.FrameWindowUpdate, 0, id, "\x7f\xff\xff\xff")
	}, "200 broken off|502"},
	"short PING":    {func(s *rogue, _ uint32) { s.raw(http2.FramePing, 0, 0, "1234") }, "502"},
	"stream reset":  {func(s *rogue, id uint32) { _ = s.WriteRSTStream(id, http2.ErrCodeInternal) }, "502|broken off"},
	"GOAWAY":        {func(s *rogue, id uint32) { _ = s.WriteGoAway(id, http2.ErrCodeProtocol, nil); _ = s.conn.Close() }, "502"},
	"cut in a head": {func(s *rogue, _ uint32) { _, _ = s.conn.Write([]byte("\x00\x00\x05\x01")); _ = s.conn.Close() }, "502"},
	"endless 1xx": {func(s *rogue, id uint32) {
		for range 4 * relay.InterimMax {
			s.head(id, false, ":status", "103", "link", "</x>; rel=preload")
		}
	}, "103 502|502|103 broken off|broken off"},
	"endless head": {func(s *rogue, id uint32) {
		s.raw(http2.FrameHeaders, 0, id, "\x88")
		for range 1 << 12 {
			if s.WriteContinuation(id, false, s.fields("x", strings.Repeat("y", 8<<10))) != nil {
				return
			}
		}
	}, "502"},
	"a head in thousands of empty frames": {func(s *rogue, id uint32) {
		s.raw(http2.FrameHeaders, 0, id, "\x88")
		for range 1 << 12 {
			if s.WriteContinuation(id, false, nil) != nil {
				return
			}
		}
		s.raw(http2.FrameContinuation, 4, id, "")
		_ = s.WriteData(id, true, []byte("ok"))
	}, "502"},
	"thousands of empty DATA frames": {func(s *rogue, id uint32) {
		s.head(id, false, ":status", "200")
		for range 1 << 12 {
			if s.WriteData(id, false, nil) != nil {
				return
			}
		}
		_ = s.WriteData(id, true, []byte("ok"))
	}, "200 broken off"},
	"thousands of DATA frames of padding": {func(s *rogue, id uint32) {
		s.head(id, false, ":status", "200")
		for range 1 << 12 {
			if s.WriteDataPadded(id, false, nil, make([]byte, 7)) != nil {
				return
			}
		}
		_ = s.WriteData(id, true, []byte("ok"))
	}, "200 broken off"},
}

// TestUpstreamMisdeeds lets a server violate HTTP/2 in one way after the other. The box gets a 502, or a reset if the answer had
// begun; the next request is served, over a new connection if necessary; and a response from another host at the same time
// continues.
func TestUpstreamMisdeeds(t *testing.T) {
	t.Parallel()
	for name, m := range misdeeds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
			var conns atomic.Int32
			port := rogueServer(l, m.do, &conns)
			other := drip(l)

			l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
			c := l.HTTPClient(port, true)
			if got := fetch(t, c, port, "/good"); got != "200 ok" {
				t.Fatalf("before: %s", got)
			}
			if got := fetch(t, c, port, "/bad"); !strings.Contains("|"+m.want+"|", "|"+got+"|") {
				t.Errorf("the box was told %q, want %q", got, m.want)
			}
			if got := fetch(t, c, port, "/good"); got != "200 ok" {
				t.Errorf("after: %s (%d connections)", got, conns.Load())
			}
			other()
		})
	}
}

// fetch requests a path and returns the statuses and the body, with "broken off" instead of missing parts.
func fetch(t *testing.T, c *http.Client, port uint16, path string) string {
	t.Helper()
	done := make(chan string, 1)
	go func() {
		res, err := c.Get("https://" + proxytest.HostPort(port) + path)
		if err != nil {
			done <- "broken off"
			return
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		word := strconv.Itoa(res.StatusCode)
		switch {
		case err != nil:
			word += " broken off"
		case res.StatusCode == 200:
			word += " " + string(body)
		}
		done <- word
	}()
	select {
	case word := <-done:
		return word
	case <-time.After(time.Minute):
		return "silence"
	}
}

// drip begins a response from another host, over a connection of its own; the function it returns lets it end and fails
// the test if it does not come whole.
func drip(r *proxytest.Rig) func() {
	r.T.Helper()
	rest := make(chan struct{})
	_, port := r.HTTPSServer(true, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "begin ")
		_ = http.NewResponseController(w).Flush()
		<-rest
		_, _ = io.WriteString(w, "end")
	})
	r.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
	res, err := r.HTTPClient(port, true).Get("https://" + proxytest.HostPort(port) + "/")
	if err != nil {
		r.T.Fatal(err)
	}
	return func() {
		close(rest)
		if got := proxytest.ReadAll(r.T, res.Body); got != "begin end" {
			r.T.Errorf("the other host's response came as %q", got)
		}
		_ = res.Body.Close()
	}
}

// TestStreamErrorOfUpstreamIsOneStreams lets one of two streams of a connection be malformed.
func TestStreamErrorOfUpstreamIsOneStreams(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	var conns atomic.Int32
	port := rogueServer(l, func(s *rogue, id uint32) { s.head(id, true, ":status", "200", "X-Y", "z") }, &conns)
	l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
	c := l.HTTPClient(port, true)
	for range 3 {
		if bad, good := fetch(t, c, port, "/bad"), fetch(t, c, port, "/good"); bad != "502" || good != "200 ok" {
			t.Errorf("%s, then %s", bad, good)
		}
	}
	if n := conns.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
	for _, e := range l.Events.Wait(t, 6) {
		if e.Status == 502 && e.Reason != name.ReasonUpstreamHTTP {
			t.Errorf("event %+v", e)
		}
	}
}

// floods are frames that are in order one by one.
var floods = map[string]func(s *rogue, id uint32) error{
	"PING":            func(s *rogue, _ uint32) error { return s.WritePing(false, [8]byte{}) },
	"SETTINGS":        func(s *rogue, _ uint32) error { return s.WriteSettings(http2.Setting{ID: 3, Val: 100}) },
	"empty SETTINGS":  func(s *rogue, _ uint32) error { return s.WriteSettings() },
	"WINDOW_UPDATE":   func(s *rogue, id uint32) error { return s.WriteWindowUpdate(id, 1) },
	"PRIORITY":        func(s *rogue, id uint32) error { return s.WritePriority(id, http2.PriorityParam{StreamDep: 1001}) },
	"empty DATA":      func(s *rogue, id uint32) error { return s.WriteData(id, false, nil) },
	"padded DATA":     func(s *rogue, id uint32) error { return s.WriteDataPadded(id, false, nil, make([]byte, 255)) },
	"unknown frames":  func(s *rogue, id uint32) error { return s.WriteRawFrame(0xbe, 0, id, make([]byte, 4096)) },
	"GOAWAY, no last": func(s *rogue, _ uint32) error { return s.WriteGoAway(1<<31-1, http2.ErrCodeNo, nil) },
}

// TestUpstreamFloods lets a server send endless frames before its answer. The answer arrives, or the stream ends with an error,
// and the gateway does not store the frames.
func TestUpstreamFloods(t *testing.T) {
	for name, frame := range floods {
		t.Run(name, func(t *testing.T) {
			l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
			var conns atomic.Int32
			var before, after runtime.MemStats
			port := rogueServer(l, func(s *rogue, id uint32) {
				go func() { _, _ = io.Copy(io.Discard, s.conn) }() // the acknowledgements
				s.head(id, false, ":status", "200")
				runtime.GC()
				runtime.ReadMemStats(&before)
				for range 20_000 {
					if frame(s, id) != nil {
						break
					}
				}
				runtime.GC()
				runtime.ReadMemStats(&after)
				_ = s.WriteData(id, true, []byte("ok"))
			}, &conns)
			l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
			if got := fetch(t, l.HTTPClient(port, true), port, "/bad"); got != "200 ok" && got != "200 broken off" {
				t.Errorf("the box was told %q", got)
			}
			if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 8<<20 {
				t.Errorf("the heap grew by %d KiB", grown>>10)
			}
		})
	}
}

// TestUpstreamResetFlood lets a server reset every stream: the box gets each reset, and the connection is kept.
func TestUpstreamResetFlood(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	var conns atomic.Int32
	port := rogueServer(l, func(s *rogue, id uint32) { _ = s.WriteRSTStream(id, http2.ErrCodeInternal) }, &conns)
	l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
	c := l.HTTPClient(port, true)
	for range 200 {
		if got := fetch(t, c, port, "/bad"); got != "502" && got != "broken off" {
			t.Fatalf("the box was told %q", got)
		}
	}
	if got := fetch(t, c, port, "/good"); got != "200 ok" {
		t.Error(got)
	}
}
