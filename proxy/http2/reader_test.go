package http2_test

import (
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy/proxytest"
)

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
