package exchange_test

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy"
	"boxgate/proxy/proxytest"
)

// Requests a second are counted alike over HTTP/1.1, HTTP/2 and plain HTTP, and one box's do not count for another's.
func TestRequestsBeyondTheLimitAreToldWhenToComeAgain(t *testing.T) {
	t.Parallel()
	for label, h2 := range map[string]bool{"h1": false, "h2": true, "plain": false} {
		t.Run(label, func(t *testing.T) {
			l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
			l.With(func(c *proxy.Config) { c.MaxRequests = 1 }) // and two at once
			var reached atomic.Int64
			handler := func(http.ResponseWriter, *http.Request) { reached.Add(1) }
			var port uint16
			scheme := "https://"
			if label == "plain" {
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
				if e.Reason == name.ReasonLimit {
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
