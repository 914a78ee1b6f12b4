package http2_test

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"boxgate/policy"
	"boxgate/proxy"
	"boxgate/proxy/proxytest"
)

// A stream that is opened and immediately cancelled counts like one that is answered (CVE-2023-44487).
func TestAttackRapidResetCountsAsRequests(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	l.With(func(c *proxy.Config) { c.MaxRequests = 5 })
	var reached atomic.Int64
	_, port := l.HTTPSServer(true, func(http.ResponseWriter, *http.Request) { reached.Add(1) })
	l.Policy(proxytest.AllowAll, proxytest.SecretFor(proxytest.API, port))
	began := time.Now()
	for limited := false; !limited; {
		r := newRawH2(t, l.DialPair(proxytest.API, port, true, "h2"))
		for range 200 {
			if !r.openAndReset(proxytest.HostPort(port)) {
				break // the connection was ended for it
			}
		}
		res, _ := proxytest.Get(t, l.HTTPClient(port, true), "https://"+proxytest.HostPort(port)+"/", nil)
		limited = res.StatusCode == http.StatusTooManyRequests
		if time.Since(began) > 30*time.Second {
			t.Fatal("streams that are cancelled count for nothing")
		}
	}
	if most := 11 + 5*int64(time.Since(began)/time.Second); reached.Load() > most {
		t.Errorf("%d requests of the flood reached the server, want %d at most", reached.Load(), most)
	}
}

// openAndReset opens a stream and cancels it, and reports whether it could.
func (r *rawH2) openAndReset(authority string) bool {
	r.buf.Reset()
	for _, f := range [][2]string{{":method", "GET"}, {":scheme", "https"}, {":authority", authority}, {":path", "/"}} {
		_ = r.enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}) // into memory
	}
	id := r.stream
	r.stream += 2
	err := r.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: r.buf.Bytes(), EndStream: true, EndHeaders: true})
	if err == nil {
		err = r.framer.WriteRSTStream(id, http2.ErrCodeCancel)
	}
	return err == nil
}

// Requests under way over HTTP/2 are counted over all connections of a box.
func TestStreamsOfABoxAreLimited(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	l.With(func(c *proxy.Config) { c.MaxStreams = 1 })
	begun, finish := make(chan struct{}), make(chan struct{})
	_, port := l.HTTPSServer(true, func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			close(begun)
			<-finish
		}
	})
	l.Policy(proxytest.AllowAll, proxytest.SecretFor(proxytest.API, port))
	slow := make(chan struct{})
	first := l.HTTPClient(port, true)
	go func() {
		defer close(slow)
		res, err := first.Get("https://" + proxytest.HostPort(port) + "/slow")
		if err == nil {
			_ = res.Body.Close()
		}
	}()
	<-begun
	second := l.HTTPClient(port, true)
	if res, body := proxytest.Get(t, second, "https://"+proxytest.HostPort(port)+"/", nil); res.StatusCode != http.StatusServiceUnavailable || !strings.Contains(body, `"reason":"limit"`) {
		t.Errorf("one stream too many: %s %s", res.Status, body)
	}
	close(finish)
	<-slow
	proxytest.Await(t, "the end of the first", func() bool { return l.Usages.Of(l.Box).Streams.Load() == 0 })
	if res, _ := proxytest.Get(t, second, "https://"+proxytest.HostPort(port)+"/", nil); res.StatusCode != http.StatusOK {
		t.Errorf("after the first has ended: %s", res.Status)
	}
}

// Requests under way over HTTP/2 are held to the box's own limit, which changes while they are.
func TestStreamsOfOneBoxHaveItsOwnLimit(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	l.With(func(c *proxy.Config) { c.MaxStreams = 1 })
	finish := make(chan struct{})
	_, port := l.HTTPSServer(true, func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			<-finish
		}
	})
	l.Policy(proxytest.AllowAll, proxytest.SecretFor(proxytest.API, port))
	l.Box.Limits.Store(policy.Limits{policy.LimitStreams: 3})
	client := l.HTTPClient(port, true)
	defer close(finish)
	for range 2 {
		go func() {
			if res, err := client.Get("https://" + proxytest.HostPort(port) + "/slow"); err == nil {
				_ = res.Body.Close()
			}
		}()
	}
	proxytest.Await(t, "both slow ones", func() bool { return l.Usages.Of(l.Box).Streams.Load() == 2 })
	for limit, want := range map[int64]int{3: http.StatusOK, 2: http.StatusServiceUnavailable, 1: http.StatusServiceUnavailable} {
		l.Box.Limits.Store(policy.Limits{policy.LimitStreams: limit})
		if res, _ := proxytest.Get(t, client, "https://"+proxytest.HostPort(port)+"/", nil); res.StatusCode != want {
			t.Errorf("with a limit of %d and two under way: %s", limit, res.Status)
		}
		proxytest.Await(t, "its end", func() bool { return l.Usages.Of(l.Box).Streams.Load() == 2 })
	}
}
