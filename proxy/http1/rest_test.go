package http1_test

import (
	"bufio"
	"net/http"
	"testing"

	"boxgate/policy"
	"boxgate/proxy/proxytest"
)

// TestRestingConnectionsGoOn hands a connection over by letting it rest, which it does when its upstream connection is
// idle: it is served, judged, cut and counted as before.
func TestRestingConnectionsGoOn(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	_, port := l.HTTPSServer(false, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("here")) })
	l.Policy(proxytest.AllowAll, proxytest.SecretFor(proxytest.API, port))
	client := l.DialPair(proxytest.API, port, true)
	in := bufio.NewReader(client)
	for i := range 3 {
		res := proxytest.Ask(t, client, in, "GET / HTTP/1.1\r\nHost: "+proxytest.HostPort(port)+"\r\n\r\n", "GET")
		if got := proxytest.ReadAll(t, res.Body); got != "here" {
			t.Fatalf("request %d: %q", i+1, got)
		}
		proxytest.Await(t, "the connection rests", func() bool { return proxytest.IdleUpstreams(l) == 1 })
	}
	if n := l.Usages.Of(l.Box).Interceptions.Load(); n != 1 {
		t.Errorf("%d interceptions are counted, want 1", n)
	}
	l.Policy(policy.Spec{Mode: policy.ModeDenyAll}, nil)
	l.Proxy.Recheck(l.Box.ID)
	if _, err := in.ReadByte(); err == nil {
		t.Error("the denied connection still carries bytes")
	}
	proxytest.Await(t, "the end of its handler", func() bool { return len(l.Live.Of(l.Box.ID)) == 0 })
	if n := l.Usages.Of(l.Box).Interceptions.Load(); n != 0 {
		t.Errorf("%d interceptions are still counted", n)
	}
}
