package proxy

import (
	"bufio"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"boxgate/policy"
)

// TestIdleClientLendsItsUpstream leaves a client open and idle: a second one is served over the same upstream connection.
func TestIdleClientLendsItsUpstream(t *testing.T) {
	t.Parallel()
	l := newRig(t, allowAll, patient)
	var peers sync.Map
	_, port := l.httpsServer(false, func(w http.ResponseWriter, r *http.Request) { peers.Store(r.RemoteAddr, true) })
	l.policy(allowAll, intercepted(port))
	request := "GET / HTTP/1.1\r\nHost: " + hostPort(port) + "\r\n\r\n"
	for range 3 {
		c := l.dialPair(api, port, true)
		if res := ask(t, c, bufio.NewReader(c), request, "GET"); res.StatusCode != 200 {
			t.Fatal(res.Status)
		}
		await(t, "an idle upstream connection", func() bool { return idleUpstreams(l) == 1 })
	}
	if got := count(&peers); got != 1 {
		t.Errorf("%d upstream connections", got)
	}
}

// TestKeptConnectionIsJudgedAgain denies the address behind a connection that is kept, of either version.
func TestKeptConnectionIsJudgedAgain(t *testing.T) {
	t.Parallel()
	for _, h2 := range []bool{false, true} {
		l := newRig(t, allowAll, patient)
		l.orig = netip.MustParseAddr("127.0.0.9") // what the box asked for is not where the name is
		_, port := l.httpsServer(h2, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "hello") })
		l.policy(allowAll, intercepted(port))
		client := l.httpClient(port, h2)
		url := "https://" + hostPort(port) + "/"
		if res, body := get(t, client, url, nil); res.StatusCode != 200 || body != "hello" {
			t.Fatalf("%s %s", res.Status, body)
		}
		l.policy(policy.Spec{Mode: policy.ModeCustom, DeniedCIDRs: []string{"127.0.0.1/32"}}, nil)
		res, body := get(t, client, url, nil)
		if res.StatusCode != 403 || !strings.Contains(body, string(policy.ReasonDeniedCIDR)) {
			t.Errorf("h2 %v: %s %s", h2, res.Status, body)
		}
		if e := l.events.wait(t, 2)[1]; e.Verdict != policy.Deny || e.Addr != netip.MustParseAddr("127.0.0.1") {
			t.Errorf("event %+v", e)
		}
	}
}

// TestBoxesShareNothing keeps a connection for one box: a request of another does not get it.
func TestBoxesShareNothing(t *testing.T) {
	t.Parallel()
	l := newRig(t, allowAll, patient)
	var peers sync.Map
	_, port := l.httpsServer(false, func(w http.ResponseWriter, r *http.Request) { peers.Store(r.RemoteAddr, true) })
	request := "GET / HTTP/1.1\r\nHost: " + hostPort(port) + "\r\nConnection: close\r\n\r\n"
	for _, box := range []*policy.Box{l.box, l.newBox("b2", "127.0.0.3")} {
		l.box = box
		l.policy(allowAll, intercepted(port))
		c := l.dialPair(api, port, true)
		if res := ask(t, c, bufio.NewReader(c), request, "GET"); res.StatusCode != 200 {
			t.Fatal(res.Status)
		}
		_ = readAll(t, c)
		_ = c.Close()
		await(t, "an idle upstream connection", func() bool { return idleUpstreams(l) >= count(&peers) })
	}
	if got := count(&peers); got != 2 {
		t.Errorf("%d upstream connections for two boxes", got)
	}
	l.p.CloseBox("box1")
	if got := idleUpstreams(l); got != 1 {
		t.Errorf("%d connections kept, want the other box's one", got)
	}
}
