package fidelity

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"boxgate/e2e/harness"
)

// TestFidelityServerResets aborts responses: no client may mistake the part for the whole.
func TestFidelityServerResets(t *testing.T) {
	t.Parallel()
	f := newFidelity(t, nil)
	for host, c := range map[string]struct{ head, proto string }{
		"raw1.example.com": {"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n", "http/1.1"},
		"raw2.example.com": {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n", "http/1.1"},
		"raw3.example.com": {"HTTP/1.1 200 OK\r\n\r\n", "http/1.1"}, // ends with the connection, gracefully
	} {
		err := f.Net.ServeConns(host, 443, func(conn net.Conn) {
			_, _ = conn.Read(make([]byte, 4096))
			_, _ = io.WriteString(conn, c.head+"part")
			_, _ = conn.Read(make([]byte, 1)) // until the test resets the connection
			_ = conn.Close()
		}, c.proto)
		if err != nil {
			t.Fatal(err)
		}
		for _, http2 := range []bool{false, true} {
			r := route{host, "https://" + host, "", http2}
			t.Run(fmt.Sprintf("%s h2=%v", host, http2), func(t *testing.T) {
				f := f.on(t)
				res, err := f.client(r).Get(r.url)
				if err != nil {
					t.Fatal(err)
				}
				got := make([]byte, 4)
				if _, err := io.ReadFull(res.Body, got); err != nil || string(got) != "part" {
					t.Fatalf("%q %v", got, err)
				}
				f.Net.ResetConns(host)
				if rest, err := io.ReadAll(res.Body); err == nil {
					t.Errorf("the response ends with %q as if whole", rest)
				}
			})
		}
	}
}

// h2Server calls serve for each stream of each connection to a host, to answer frame by frame.
func (f *fidelity) h2Server(host string, serve func(n int, fr *http2.Framer, h *http2.MetaHeadersFrame)) *atomic.Int32 {
	f.T.Helper()
	conns := new(atomic.Int32)
	err := f.Net.ServeConns(host, 443, func(c net.Conn) {
		defer c.Close()
		n := int(conns.Add(1))
		if _, err := io.ReadFull(c, make([]byte, len(http2.ClientPreface))); err != nil {
			return
		}
		fr := http2.NewFramer(c, c)
		fr.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
		_ = fr.WriteSettings()
		for {
			frame, err := fr.ReadFrame()
			if err != nil {
				return
			}
			switch frame := frame.(type) {
			case *http2.SettingsFrame:
				if !frame.IsAck() {
					_ = fr.WriteSettingsAck()
				}
			case *http2.PingFrame:
				if !frame.IsAck() {
					_ = fr.WritePing(true, frame.Data)
				}
			case *http2.MetaHeadersFrame:
				serve(n, fr, frame)
			case *http2.RSTStreamFrame:
				serve(n, fr, &http2.MetaHeadersFrame{HeadersFrame: &http2.HeadersFrame{FrameHeader: frame.FrameHeader}})
			}
		}
	}, "h2")
	if err != nil {
		f.T.Fatal(err)
	}
	return conns
}

// answerH2 writes a whole response with the path as its body.
func answerH2(fr *http2.Framer, stream uint32, body string, end bool) {
	var block bytes.Buffer
	_ = hpack.NewEncoder(&block).WriteField(hpack.HeaderField{Name: ":status", Value: "200"})
	_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block.Bytes(), EndHeaders: true})
	_ = fr.WriteData(stream, end, []byte(body))
}

// TestFidelityResetCodes: the codes of stream resets reach the client, and the client's reset the server.
func TestFidelityResetCodes(t *testing.T) {
	t.Parallel()
	f := newFidelity(t, nil)
	const host = "raw1.example.com"
	came, left := make(chan struct{}, 10), make(chan struct{}, 10)
	f.h2Server(host, func(_ int, fr *http2.Framer, h *http2.MetaHeadersFrame) {
		if h.Type == http2.FrameRSTStream {
			left <- struct{}{}
			return
		}
		var code uint32
		kind := ""
		_, _ = fmt.Sscanf(h.PseudoValue("path"), "/%d/%s", &code, &kind)
		if kind == "body" {
			answerH2(fr, h.StreamID, "part", false)
		}
		if kind == "hang" {
			came <- struct{}{}
		} else {
			_ = fr.WriteRSTStream(h.StreamID, http2.ErrCode(code))
		}
	})
	for _, kind := range []string{"body", "head"} {
		for _, code := range []http2.ErrCode{http2.ErrCodeInternal, http2.ErrCodeRefusedStream, http2.ErrCodeCancel, http2.ErrCodeEnhanceYourCalm, http2.ErrCodeHTTP11Required} {
			c := f.Frames(host)
			c.Send(1, true, harness.Head(host, harness.Field{":path", fmt.Sprintf("/%d/%s", code, kind)})...)
			if got, ok := resetOf(c, 1); !ok || got != code {
				t.Errorf("%s: %v came as %v (%v)", kind, code, got, ok)
			}
			_ = c.Conn.Close()
		}
	}
	for _, code := range []http2.ErrCode{http2.ErrCodeCancel, http2.ErrCodeInternal} {
		c := f.Frames(host)
		c.Send(1, true, harness.Head(host, harness.Field{":path", "/0/hang"})...)
		<-came
		_ = c.WriteRSTStream(1, code)
		c.Send(3, true, harness.Head(host, harness.Field{":path", fmt.Sprintf("/%d/head", http2.ErrCodeCancel)})...)
		if _, ok := resetOf(c, 3); !ok {
			t.Error("the connection does not go on")
		}
		select {
		case <-left:
		case <-time.After(harness.Patience):
			t.Error("the server does not hear of the reset")
		}
		_ = c.Conn.Close()
	}
}

// resetOf reads until a stream is reset.
func resetOf(c *harness.Frames, stream uint32) (http2.ErrCode, bool) {
	_ = c.Conn.SetReadDeadline(time.Now().Add(harness.Patience))
	for {
		frame, err := c.ReadFrame()
		if err != nil {
			return 0, false
		}
		switch frame := frame.(type) {
		case *http2.SettingsFrame:
			if !frame.IsAck() {
				_ = c.WriteSettingsAck()
			}
		case *http2.RSTStreamFrame:
			if frame.StreamID == stream {
				return frame.ErrCode, true
			}
		}
	}
}

// TestFidelityGoAway: the server ends connections with open streams. Streams it processed are finished, others are sent
// again, and none is lost or executed twice.
func TestFidelityGoAway(t *testing.T) {
	t.Parallel()
	f := newFidelity(t, nil)
	const host = "raw1.example.com"
	var mu sync.Mutex
	done := map[string]int{}
	conns := f.h2Server(host, func(n int, fr *http2.Framer, h *http2.MetaHeadersFrame) {
		if h.Type == http2.FrameRSTStream {
			return
		}
		path := h.PseudoValue("path")
		last := uint32(11 + 2*n) // last stream that this connection accepts
		switch {
		case h.StreamID < last:
		case h.StreamID == last:
			_ = fr.WriteGoAway(last, http2.ErrCodeNo, nil)
		default:
			return // not checked
		}
		mu.Lock()
		done[path]++
		mu.Unlock()
		answerH2(fr, h.StreamID, path, true)
	})
	client := f.client(route{host, "https://" + host, "", true})
	var group sync.WaitGroup
	const workers, each = 10, 10
	for w := range workers {
		group.Go(func() {
			for i := range each {
				path := fmt.Sprintf("/%d/%d", w, i)
				method, body := "GET", io.Reader(nil)
				if i%2 == 0 {
					method, body = "POST", io.MultiReader(strings.NewReader("a body that cannot be had twice from the client"))
				}
				req, _ := http.NewRequest(method, "https://"+host+path, body)
				res, err := client.Do(req)
				if err != nil {
					t.Errorf("%s %s: %v", method, path, err)
					continue
				}
				got, err := io.ReadAll(res.Body)
				if _ = res.Body.Close(); err != nil || string(got) != path {
					t.Errorf("%s %s: %s %q %v", method, path, res.Status, got, err)
				}
			}
		})
	}
	group.Wait()
	mu.Lock()
	defer mu.Unlock()
	for path, n := range done {
		if n != 1 {
			t.Errorf("%s was done %d times", path, n)
		}
	}
	if len(done) != workers*each || conns.Load() < 3 {
		t.Errorf("%d requests done over %d connections", len(done), conns.Load())
	}
}

// TestFidelityRefusedStreams: the server refuses a stream. The gateway retries it if possible, and otherwise signals to
// the client that it may.
func TestFidelityRefusedStreams(t *testing.T) {
	t.Parallel()
	f := newFidelity(t, nil)
	const host = "raw1.example.com"
	var seen atomic.Int32
	f.h2Server(host, func(_ int, fr *http2.Framer, h *http2.MetaHeadersFrame) {
		if h.Type == http2.FrameRSTStream {
			return
		}
		if path := h.PseudoValue("path"); path == "/always" || (seen.Add(1) == 1 && path == "/once") {
			_ = fr.WriteRSTStream(h.StreamID, http2.ErrCodeRefusedStream)
			return
		}
		answerH2(fr, h.StreamID, "taken", true)
	})
	res, err := f.client(route{host, "https://" + host, "", true}).Post("https://"+host+"/once", "", strings.NewReader("small"))
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := io.ReadAll(res.Body); string(got) != "taken" {
		t.Errorf("%s %q", res.Status, got)
	}
	c := f.Frames(host)
	c.Send(1, true, harness.Head(host, harness.Field{":path", "/always"})...)
	if code, ok := resetOf(c, 1); !ok || code != http2.ErrCodeRefusedStream {
		t.Errorf("a request that is always refused: %v %v", code, ok)
	}
}

// TestFidelityStaleConnection: the server closes a connection at the moment it is reused. A GET is retried, a POST
// never.
func TestFidelityStaleConnection(t *testing.T) {
	t.Parallel()
	f := newFidelity(t, nil)
	var posts, gets atomic.Int32
	handle := func(c net.Conn) {
		defer c.Close()
		for n := 0; ; n++ {
			buf := make([]byte, 4096)
			k, err := c.Read(buf)
			if err != nil {
				return
			}
			if bytes.HasPrefix(buf[:k], []byte("POST")) {
				posts.Add(1)
			} else {
				gets.Add(1)
			}
			if n == 1 {
				return // the second request of a connection is read and not answered
			}
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		}
	}
	for host, h2 := range map[string]bool{"raw1.example.com": false, "raw2.example.com": true} { // the two hosts share no connections
		if err := f.Net.ServeConns(host, 443, handle, "http/1.1"); err != nil {
			t.Fatal(err)
		}
		client := f.client(route{host, "https://" + host, "", h2})
		do := func(method string) (int, error) {
			req, _ := http.NewRequest(method, "https://"+host+"/", nil)
			res, err := client.Do(req)
			if err != nil {
				return 0, err
			}
			_, _ = io.Copy(io.Discard, res.Body)
			return res.StatusCode, res.Body.Close()
		}
		gets.Store(0)
		posts.Store(0)
		for _, step := range []struct {
			method string
			status int
		}{{"GET", 200}, {"GET", 200}, {"POST", 502}, {"GET", 200}} {
			if code, err := do(step.method); code != step.status || err != nil {
				t.Errorf("h2 %v: %s: %d %v", h2, step.method, code, err)
			}
		}
		if posts.Load() != 1 || gets.Load() != 4 { // two GETs, one of them twice, and the last
			t.Errorf("h2 %v: the server read %d POSTs and %d GETs", h2, posts.Load(), gets.Load())
		}
	}
}

// TestFidelityClientResets aborts uploads and downloads at the client: the server sees no clean end.
func TestFidelityClientResets(t *testing.T) {
	t.Parallel()
	f := newFidelity(t, nil)
	uploads, gone := make(chan error, 4), make(chan struct{}, 4)
	began := make(chan struct{}, 4)
	f.page("/up", func(w http.ResponseWriter, r *http.Request) {
		_, err := io.ReadFull(r.Body, make([]byte, 4))
		began <- struct{}{}
		if err == nil {
			_, err = io.ReadAll(r.Body)
		}
		uploads <- err
	})
	f.page("/down", func(w http.ResponseWriter, r *http.Request) {
		for {
			if _, err := w.Write(make([]byte, 64<<10)); err != nil {
				gone <- struct{}{}
				return
			}
		}
	})
	f.eachRoute([]route{overHTTP1, overHTTP2, overDowngrade, overPlain}, func(f *fidelity, r route) {
		ctx, cancel := context.WithCancel(t.Context())
		in, out := io.Pipe()
		defer out.Close()
		req, _ := http.NewRequestWithContext(ctx, "POST", r.url+"/up", in)
		client := f.client(r)
		ended := make(chan error, 1)
		go func() {
			_, err := client.Do(req) //nolint:bodyclose // without a body
			ended <- err
		}()
		_, _ = io.WriteString(out, "part")
		<-began
		cancel()
		_ = out.CloseWithError(context.Canceled)
		if err := <-ended; !errors.Is(err, context.Canceled) {
			f.T.Error(err)
		}
		select {
		case err := <-uploads:
			if err == nil {
				f.T.Error("the server took the part for the whole")
			}
		case <-time.After(harness.Patience):
			f.T.Error("the server goes on waiting")
		}
		res, err := client.Get(r.url + "/down")
		if err != nil {
			f.T.Fatal(err)
		}
		_ = res.Body.Close()
		select {
		case <-gone:
		case <-time.After(harness.Patience):
			f.T.Error("the server goes on sending")
		}
	})
}
