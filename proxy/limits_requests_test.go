package proxy_test

import (
	"bufio"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

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
