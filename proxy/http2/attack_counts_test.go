package http2_test

import (
	"testing"

	"boxgate/policy/name"
	"boxgate/proxy"
	"boxgate/proxy/proxytest"
)

// Requests that are refused for their form count towards the limit like served ones.
func TestAttackFloodOfRequestsWithFieldsOfHTTP1(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	l.With(func(c *proxy.Config) { c.MaxRequests = 1 })
	_, port := l.HTTPSServer(true, nil)
	l.Policy(proxytest.AllowAll, proxytest.SecretFor(proxytest.API, port))
	r := newRawH2(t, l.DialPair(proxytest.API, port, true, "h2"))
	for range 20 {
		if r.send(":method", "GET", ":scheme", "https", ":authority", proxytest.HostPort(port), ":path", "/", "connection", "close") != nil {
			break
		}
	}
	for {
		if _, err := r.framer.ReadFrame(); err != nil {
			break // the connection has ended
		}
	}
	l.Proxy.CloseBox(l.Box.ID)
	limited := false
	for _, e := range l.Events.Wait(t, 3) {
		limited = limited || e.Reason == name.ReasonLimit
	}
	if !limited {
		t.Error("no refusal is for the limit")
	}
}
