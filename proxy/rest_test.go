package proxy

import (
	"bufio"
	"net/http"
	"testing"

	"boxgate/policy"
)

// TestRestingConnectionsGoOn hands a connection over by letting it rest, which it does when its upstream connection is
// idle: it is served, judged, cut and counted as before.
func TestRestingConnectionsGoOn(t *testing.T) {
	t.Parallel()
	l := newRig(t, allowAll, patient)
	_, port := l.httpsServer(false, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("here")) })
	l.policy(allowAll, secretFor(api, port))
	client := l.dialPair(api, port, true)
	in := bufio.NewReader(client)
	for i := range 3 {
		res := ask(t, client, in, "GET / HTTP/1.1\r\nHost: "+hostPort(port)+"\r\n\r\n", "GET")
		if got := readAll(t, res.Body); got != "here" {
			t.Fatalf("request %d: %q", i+1, got)
		}
		await(t, "the connection rests", func() bool { return idleUpstreams(l) == 1 })
	}
	if n := l.p.usages.Of(l.box).Interceptions.Load(); n != 1 {
		t.Errorf("%d interceptions are counted, want 1", n)
	}
	l.policy(policy.Spec{Mode: policy.ModeDenyAll}, nil)
	l.p.Recheck(l.box.ID)
	if _, err := in.ReadByte(); err == nil {
		t.Error("the denied connection still carries bytes")
	}
	await(t, "the end of its handler", func() bool { return len(l.p.live.Of(l.box.ID)) == 0 })
	if n := l.p.usages.Of(l.box).Interceptions.Load(); n != 0 {
		t.Errorf("%d interceptions are still counted", n)
	}
}
