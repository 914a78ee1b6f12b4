package http2_test

import (
	"errors"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy"
	"boxgate/proxy/proxytest"
	"boxgate/relay/h2"
)

// A request that is refused before it reaches its handler also leaves an event.
func TestRefusedStreamsAreTold(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	_, port := l.HTTPSServer(true, func(http.ResponseWriter, *http.Request) { t.Error("it reached the server") })
	l.Policy(proxytest.AllowAll, proxytest.SecretFor(proxytest.API, port))
	ok := []string{":method", "GET", ":scheme", "https", ":authority", proxytest.HostPort(port), ":path", "/"}
	with := func(more ...string) []string { return append(append([]string{}, ok...), more...) }
	for label, tt := range map[string]struct {
		fields []string
		raw    func(*http2.Framer) error
		want   string
	}{
		"no path":                  {fields: ok[:6], want: "reset"},
		"a pseudo-header twice":    {fields: with(":path", "/other"), want: "reset"},
		"a pseudo-header too late": {fields: append([]string{":method", "GET", ":scheme", "https", "x", "y"}, ok[4:]...), want: "reset"},
		"an unknown pseudo-header": {fields: with(":other", "x"), want: "reset"},
		"CR LF in a value":         {fields: with("x", "y\r\nz: w"), want: "reset"},
		"NUL in a value":           {fields: with("x", "y\x00z"), want: "reset"},
		"a capital letter":         {fields: with("X-Key", "y"), want: "reset"},
		"a space in a name":        {fields: with("x y", "z"), want: "reset"},
		"a head beyond reading":    {fields: with("x", strings.Repeat("y", h2.HeadRead-2000), "z", strings.Repeat("y", 4000)), want: "too large"},
		"an even stream":           {raw: func(f *http2.Framer) error { return f.WriteRSTStream(2, http2.ErrCodeCancel) }, want: "the connection is ended with PROTOCOL_ERROR"},
		"a window too large":       {raw: func(f *http2.Framer) error { return f.WriteWindowUpdate(0, 1<<31-1) }, want: "the connection is ended with FLOW_CONTROL_ERROR"},
	} {
		t.Run(label, func(t *testing.T) {
			r := newRawH2(t, l.DialPair(proxytest.API, port, true, "h2"))
			before := len(l.Events.Wait(t, 0))
			if tt.raw != nil {
				if err := tt.raw(r.framer); err != nil {
					t.Fatal(err)
				}
				for {
					if _, err := r.framer.ReadFrame(); err != nil {
						break
					}
				}
			} else {
				if err := r.send(tt.fields...); err != nil {
					t.Fatal(err)
				}
				r.untilAnswered()
			}
			e := l.Events.Wait(t, before+1)[before]
			if e.Verdict != policy.Deny || e.Reason != name.ReasonBadRequest || e.Action != audit.ActionRefuse || e.Stage != policy.StageHTTP ||
				e.Name != proxytest.API || e.Box != l.Box.ID || !strings.Contains(e.Error, tt.want) {
				t.Errorf("%+v", e)
			}
		})
	}
}

// A client that sends only malformed requests loses the connection when they exceed the box's rate limit.
func TestAttackMalformedStreamsCountAsRequests(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	l.With(func(c *proxy.Config) { c.MaxRequests = 5 })
	_, port := l.HTTPSServer(true, func(http.ResponseWriter, *http.Request) {})
	l.Policy(proxytest.AllowAll, proxytest.SecretFor(proxytest.API, port))
	r := newRawH2(t, l.DialPair(proxytest.API, port, true, "h2"))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for _, err := r.framer.ReadFrame(); err == nil; _, err = r.framer.ReadFrame() {
		}
	}()
	for range 100000 {
		if r.send(":method", "GET", ":path", "/") != nil {
			break // the connection was ended
		}
	}
	<-ended
	l.Want("the end of malformed requests", func(e audit.Event) bool { return e.Stage == policy.StageHTTP && e.Reason == name.ReasonLimit })
}

// send sends the head of a request, in as many frames as it needs.
func (r *rawH2) send(fields ...string) error {
	r.buf.Reset()
	for i := 0; i < len(fields); i += 2 {
		_ = r.enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}) // into memory
	}
	id, block := r.stream, r.buf.Bytes()
	r.stream += 2
	first := block[:min(len(block), h2.FrameMax)]
	err := r.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: first, EndStream: true, EndHeaders: len(first) == len(block)})
	for rest := block[len(first):]; err == nil && len(rest) > 0; {
		part := rest[:min(len(rest), h2.FrameMax)]
		rest = rest[len(part):]
		err = r.framer.WriteContinuation(id, len(rest) == 0, part)
	}
	return err
}

// untilAnswered reads until a stream or the connection ends.
func (r *rawH2) untilAnswered() {
	for {
		f, err := r.framer.ReadFrame()
		if err != nil && !errors.As(err, new(http2.StreamError)) {
			return
		}
		switch f.(type) {
		case *http2.RSTStreamFrame, *http2.GoAwayFrame, *http2.MetaHeadersFrame:
			return
		}
	}
}

// TestDataBehindTheEndOfARequest sends DATA on streams that the client has ended, while they are answered and after that:
// the stream error is always STREAM_CLOSED (RFC 9113, 5.1). Many connections do so in parallel, as the answer must not depend on
// the order of goroutines.
func TestDataBehindTheEndOfARequest(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	page := strings.Repeat("0123456789abcdef", 32)
	_, port := l.HTTPSServer(true, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(page)) })
	l.Policy(proxytest.AllowAll, proxytest.SecretFor(proxytest.API, port))
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for i := range 60 {
				if got := dataAfterEnd(t, l, port, i%2 == 1); got != "STREAM_CLOSED" {
					t.Errorf("round %d: %s", i, got)
					return
				}
			}
		})
	}
	all.Wait()
}

// dataAfterEnd makes a request and sends DATA behind its end, late: once the answer is complete. It returns the code of the
// reset that follows.
func dataAfterEnd(t *testing.T, l *proxytest.Rig, port uint16, late bool) string {
	conn := l.DialPair(proxytest.API, port, true, "h2")
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	c := newRawH2(t, conn)
	for _, f := range [][2]string{{":method", "GET"}, {":scheme", "https"}, {":authority", proxytest.HostPort(port)}, {":path", "/"}} {
		_ = c.enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}) // into a buffer
	}
	err := c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: c.buf.Bytes(), EndStream: true, EndHeaders: true})
	if !late {
		err = errors.Join(err, c.framer.WriteData(1, true, []byte("test")))
	}
	for seen := ""; err == nil; {
		var f http2.Frame
		if f, err = c.framer.ReadFrame(); errors.Is(err, os.ErrDeadlineExceeded) {
			return "nothing after" + seen
		} else if err != nil {
			break
		}
		seen += " " + f.Header().String()
		switch f := f.(type) {
		case *http2.DataFrame:
			if late && f.StreamEnded() {
				err = c.framer.WriteData(1, true, []byte("test"))
			}
		case *http2.RSTStreamFrame:
			return f.ErrCode.String()
		}
	}
	return err.Error()
}

// TestFieldsOfHTTP1ResetTheStream sends fields that HTTP/2 forbids, so that they enter the HPACK table, and by their
// index afterwards: each such stream is reset and told of by one event, the others are served.
func TestFieldsOfHTTP1ResetTheStream(t *testing.T) {
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	var mu sync.Mutex
	var served []string
	_, port := l.HTTPSServer(true, func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		served = append(served, r.URL.Path)
	})
	l.Policy(proxytest.AllowAll, proxytest.SecretFor(proxytest.API, port))
	c := newRawH2(t, l.DialPair(proxytest.API, port, true, "h2"))
	ask := func(fields ...string) string {
		path := "/" + strconv.Itoa(int(c.stream))
		return c.ask(append([]string{":method", "GET", ":scheme", "https", ":authority", proxytest.HostPort(port), ":path", path, "x-before", "1"}, fields...)...)
	}
	for _, f := range [][]string{
		{"connection", "close"}, {"proxy-connection", "keep-alive"}, {"keep-alive", "timeout=5"}, {"transfer-encoding", "chunked"},
		{"upgrade", "h2c"}, {"te", "gzip"}, {"te", "trailers, deflate"}, {"connection", "close"}, // by its index now
	} {
		if got := ask(f...); got != "PROTOCOL_ERROR" {
			t.Errorf("%v: %s", f, got)
		}
		if got := ask("te", "trailers"); got != "200" {
			t.Errorf("the request after %v: %s", f, got)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if len(served) != 8 || slices.Contains(served, "/1") {
		t.Errorf("the upstream served %q", served)
	}
	refused := 0
	for _, e := range l.Events.Wait(t, 16) {
		if e.Reason == name.ReasonBadRequest && e.Verdict == policy.Deny && e.Method == "GET" && e.Action == audit.ActionRefuse {
			refused++
		}
	}
	if refused != 8 {
		t.Errorf("%d refusals were recorded", refused)
	}
}
