package proxy

import (
	"testing"

	"boxgate/policy"
)

// Requests that are refused for their form count like those that are served.
func TestAttackFloodOfRequestsWithFieldsOfHTTP1(t *testing.T) {
	t.Parallel()
	l := newRig(t, allowAll, patient)
	l.with(func(c *Config) { c.MaxRequests = 1 })
	_, port := l.httpsServer(true, nil)
	l.policy(allowAll, secretFor(api, port))
	r := newRawH2(t, l.dialPair(api, port, true, "h2"))
	for range 20 {
		if r.send(":method", "GET", ":scheme", "https", ":authority", hostPort(port), ":path", "/", "connection", "close") != nil {
			break
		}
	}
	for {
		if _, err := r.framer.ReadFrame(); err != nil {
			break // the connection has ended
		}
	}
	l.p.CloseBox(l.box.ID)
	limited := false
	for _, e := range l.events.wait(t, 3) {
		limited = limited || e.Reason == policy.ReasonLimit
	}
	if !limited {
		t.Error("no refusal is for the limit")
	}
}
