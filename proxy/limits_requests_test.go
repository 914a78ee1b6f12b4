package proxy_test

import (
	"bufio"
	"io"
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

// Requests a second are counted alike over HTTP/1.1, HTTP/2 and plain HTTP, and one box's do not count for another's.
func TestRequestsBeyondTheLimitAreToldWhenToComeAgain(t *testing.T) {
	t.Parallel()
	for name, h2 := range map[string]bool{"h1": false, "h2": true, "plain": false} {
		t.Run(name, func(t *testing.T) {
			l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
			l.With(func(c *proxy.Config) { c.MaxRequests = 1 }) // and two at once
			var reached atomic.Int64
			handler := func(http.ResponseWriter, *http.Request) { reached.Add(1) }
			var port uint16
			scheme := "https://"
			if name == "plain" {
				_, port = l.HTTPServer(handler)
				scheme = "http://"
				l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
			} else {
				_, port = l.HTTPSServer(true, handler)
				l.Policy(proxytest.AllowAll, proxytest.SecretFor(proxytest.API, port))
			}
			client := l.HTTPClient(port, h2)
			began := time.Now()
			refused := 0
			for range 10 {
				res, body := proxytest.Get(t, client, scheme+proxytest.HostPort(port)+"/a?b", nil)
				if res.StatusCode == http.StatusOK {
					continue
				}
				refused++
				if res.StatusCode != http.StatusTooManyRequests || res.Header.Get("Retry-After") != "1" || !strings.Contains(body, `"reason":"limit"`) {
					t.Fatalf("beyond the limit: %s %v %s", res.Status, res.Header, body)
				}
			}
			if most := 3 + int64(time.Since(began)/time.Second); reached.Load() > most || refused == 0 {
				t.Errorf("%d requests reached the server, want %d at most; %d were refused", reached.Load(), most, refused)
			}
			l.Proxy.CloseBox(l.Box.ID) // which tells what is not told yet
			told := 0
			for _, e := range l.Events.Wait(t, 1) {
				if e.Reason == policy.ReasonLimit {
					told += int(max(e.Count, 1))
					if e.Verdict != policy.Deny || e.Status != http.StatusTooManyRequests || e.Path != "/a" || !strings.HasPrefix(e.Name, proxytest.API) {
						t.Errorf("%+v", e)
					}
				}
			}
			if told != refused {
				t.Errorf("%d refusals are told, want %d", told, refused)
			}
		})
	}
}

// Heads that were begun long ago count when they are complete: they do not give the box the time since then once more.
func TestAttackSlowHeadsDoNotRaiseTheLimit(t *testing.T) {
	t.Parallel()
	const limit = 400 // a second, and twice as many at once
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	l.With(func(c *proxy.Config) { c.MaxRequests = limit })
	var reached atomic.Int64
	_, port := l.HTTPServer(func(http.ResponseWriter, *http.Request) { reached.Add(1) })
	l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
	head := "GET / HTTP/1.1\r\nHost: " + proxytest.HostPort(port) + "\r\n\r\n"
	began := time.Now()
	connect := func() (ask func(part string)) {
		c := l.DialPair("", port, false)
		t.Cleanup(func() { c.Close() })
		from := bufio.NewReader(c)
		return func(part string) {
			if _, err := io.WriteString(c, part); err != nil {
				t.Fatal(err)
			}
			res, err := http.ReadResponse(from, nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.Copy(io.Discard, res.Body); err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(c, head[:1]); err != nil { // of the next one
				t.Fatal(err)
			}
		}
	}
	slow := make([]func(string), 20)
	for i := range slow {
		slow[i] = connect()
		slow[i](head)
	}
	fast := connect()
	fast(head)
	for range 300 {
		fast(head[1:])
	}
	for _, ask := range slow {
		ask(head[1:])
		fast(head[1:])
	}
	for range 1000 {
		fast(head[1:])
	}
	if most := 2*limit + 1 + int64(limit*time.Since(began).Seconds()); reached.Load() > most {
		t.Errorf("%d requests reached the server, want %d at most", reached.Load(), most)
	}
}

// A stream that is opened and cancelled at once counts like one that is answered.
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
