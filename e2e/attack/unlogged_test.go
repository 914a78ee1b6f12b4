package attack

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"boxgate/audit"
	"boxgate/e2e/harness"
	"boxgate/policy"
	"boxgate/policy/name"
)

// Open connections are in the log when the gateway is killed: a tunnel, stream or WebSocket cannot avoid the log by
// being long. A connection that ends normally is logged again, with its byte counts.
func TestAttackLongConnectionsAreLoggedBeforeTheGatewayDies(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	in := w.Intrude(w.Create(map[string]any{
		"network_policy": map[string]any{"mode": "custom", "allowed_domains": []string{"api.example.com", "www.example.com"},
			"allowed_cidrs": []string{w.V4("evil.example.net").String()}},
		"attach_headers": map[string]any{"api.example.com": map[string]string{"X-Key": harness.Canary}},
	}))
	all := openAll(in, "api.example.com", "www.example.com")
	forwarded := in.Dial(netip.AddrPortFrom(w.V4("evil.example.net"), 7)) // forwarded by the kernel
	defer forwarded.Close()
	// Every connection whose TLS is spliced or terminated, bytes without TLS, and the open exchanges in judged
	// connections: a stream, a WebSocket, an upload, a pending answer, a download, and the streams of HTTP/2 and of
	// plain HTTP.
	want := map[string]int{"conn splice": 8, "conn intercept": 10, "http intercept": 8, "http forward": 2, "kernel kernel": 1}
	var opened map[string]audit.Event
	w.Until("every connection is told of", func() bool {
		count := map[string]int{}
		opened = phase(in, audit.PhaseOpen)
		for _, e := range opened {
			count[fmt.Sprint(e.Stage, " ", e.Action)]++
		}
		for kind, n := range want {
			if count[kind] < n {
				return false
			}
		}
		return true
	})

	stream := all["stream, unread"]
	stream.Close()
	var end audit.Event
	w.Until("the end of the stream is told", func() bool {
		for _, e := range phase(in, audit.PhaseEnd) {
			if end = e; e.Stage == policy.StageConn && e.Action == audit.ActionSplice {
				return true
			}
		}
		return false
	})
	begin, known := opened[end.Conn]
	if !known || begin.Name != end.Name || end.Verdict != policy.Allow || end.BytesIn == 0 || end.BytesOut == 0 ||
		end.Duration < 200*time.Millisecond || end.Time.Before(begin.Time) || begin.BytesIn != 0 {
		t.Errorf("began %+v\nended %+v", begin, end)
	}

	missing := func() []string {
		log := w.ReadLog()
		var out []string
		for id, e := range opened {
			if !strings.Contains(log, `"phase":"open","conn":"`+id+`"`) {
				out = append(out, audit.Line(e))
			}
		}
		return out
	}
	w.Until("the log has them", func() bool { return len(missing()) == 0 }) // some milliseconds after they are in the API
	w.Kill()
	for _, line := range missing() {
		t.Errorf("not in the log: %s", line)
	}
}

// phase returns the events of a phase so far, by the fields they share with the other phase's events.
func phase(in *harness.Intruder, p audit.Phase) map[string]audit.Event {
	in.T.Helper()
	out := map[string]audit.Event{}
	for _, e := range in.Events(in.Box) {
		if e.Phase == p {
			out[e.Conn] = e
		}
	}
	return out
}

// A box that tries the same forbidden connection in a loop gets one line a second. The loop does not displace other
// recorded events, and every attempt is counted.
func TestAttackLoopOfDenialsDoesNotFillTheLog(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	in := w.Intrude(w.SecretBox())
	if out, code := w.Sh(in.Box, "curl -sS https://evil.example.net/"); code != 35 {
		t.Fatalf("curl exited with %d: %s", code, out)
	}
	plain := netip.AddrPortFrom(w.V4("www.example.com"), 80)
	const loop = 1200
	const metric = `boxgate_decisions_total{action="refuse",reason="not_allowed",stage="http",verdict="deny"}`
	before := w.Metric(metric) // includes earlier tests of the lab
	began := time.Now()
	c := in.Dial(plain)
	var u under
	for i := range loop {
		if i%100 == 0 {
			if i > 0 {
				c.Close()
				c = in.Dial(plain)
			}
			u = beginRequest(in, c, "", false)
		}
		request := "GET / HTTP/1.1\r\nHost: evil.example.net\r\n\r\n"
		if res, _ := harness.Exchange(t, c, u.Reader, request); res.StatusCode != http.StatusForbidden {
			t.Fatalf("request %d: %s", i, res.Status)
		}
	}
	var lines, count int
	w.Until("every refusal is told", func() bool {
		lines, count = 0, 0
		for _, e := range w.Events(in.Box) {
			if e.Stage == policy.StageHTTP && e.Name == "evil.example.net" && e.Verdict == policy.Deny {
				lines, count = lines+1, count+int(max(e.Count, 1))
			}
		}
		return count >= loop
	})
	most := loop/10 + int(25*time.Since(began).Seconds()) // events of one interval are merged
	if count != loop || lines > most {
		t.Errorf("%d refusals became %d in %d lines", loop, count, lines)
	}
	w.Event(in.Box, func(e audit.Event) bool {
		return e.Stage == policy.StageConn && e.Name == "evil.example.net" && e.Reason == name.ReasonNotAllowed
	})
	if n := strings.Count(w.ReadLog(), `"stage":"http"`); n > most {
		t.Errorf("%d lines of the log", n)
	}
	if got := w.Metric(metric) - before; got != loop {
		t.Errorf("the metric says %v, not %d", got, loop)
	}
}
