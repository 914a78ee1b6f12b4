package http1_test

import (
	"bufio"
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"boxgate/proxy"
	"boxgate/proxy/proxytest"
)

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
