package origin_test

import (
	"bufio"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy/proxytest"
)

// TestIdleClientLendsItsUpstream leaves a client open and idle: a second one is served over the same upstream connection.
func TestIdleClientLendsItsUpstream(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	var peers sync.Map
	_, port := l.HTTPSServer(false, func(w http.ResponseWriter, r *http.Request) { peers.Store(r.RemoteAddr, true) })
	l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
	request := "GET / HTTP/1.1\r\nHost: " + proxytest.HostPort(port) + "\r\n\r\n"
	for range 3 {
		c := l.DialPair(proxytest.API, port, true)
		if res := proxytest.Ask(t, c, bufio.NewReader(c), request, "GET"); res.StatusCode != 200 {
			t.Fatal(res.Status)
		}
		proxytest.Await(t, "an idle upstream connection", func() bool { return proxytest.IdleUpstreams(l) == 1 })
	}
	if got := proxytest.CountOf(&peers); got != 1 {
		t.Errorf("%d upstream connections", got)
	}
}

// TestKeptConnectionIsJudgedAgain denies the address behind a connection that is kept, of either version.
func TestKeptConnectionIsJudgedAgain(t *testing.T) {
	t.Parallel()
	for _, h2 := range []bool{false, true} {
		l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
		l.Orig = netip.MustParseAddr("127.0.0.9") // the box has dialled an address that the name does not have
		_, port := l.HTTPSServer(h2, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "hello") })
		l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
		client := l.HTTPClient(port, h2)
		url := "https://" + proxytest.HostPort(port) + "/"
		if res, body := proxytest.Get(t, client, url, nil); res.StatusCode != 200 || body != "hello" {
			t.Fatalf("%s %s", res.Status, body)
		}
		l.Policy(policy.Spec{Mode: policy.ModeCustom, DeniedCIDRs: []string{"127.0.0.1/32"}}, nil)
		res, body := proxytest.Get(t, client, url, nil)
		if res.StatusCode != 403 || !strings.Contains(body, string(name.ReasonDeniedCIDR)) {
			t.Errorf("h2 %v: %s %s", h2, res.Status, body)
		}
		if e := l.Events.Wait(t, 2)[1]; e.Verdict != policy.Deny || e.Addr != netip.MustParseAddr("127.0.0.1") {
			t.Errorf("event %+v", e)
		}
	}
}

// TestGoneServerIsNotKnown: a server of HTTP/1.1 that can no longer be dialled is not remembered, so that requests share the attempts to
// connect to it: they would take all connections of the box otherwise.
func TestGoneServerIsNotKnown(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	srv, port := l.HTTPSServer(false, func(http.ResponseWriter, *http.Request) {})
	l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
	client, url := l.HTTPClient(port, true), "https://"+proxytest.HostPort(port)+"/"
	if res, _ := proxytest.Get(t, client, url, nil); res.StatusCode != 200 {
		t.Fatal(res.Status)
	}
	hosts := func() int { return l.Core.Origins.Stats(l.Box.ID).Hosts }
	if hosts() != 1 {
		t.Errorf("%d servers are known", hosts())
	}
	srv.Close()
	if res, _ := proxytest.Get(t, client, url, nil); res.StatusCode != 502 {
		t.Errorf("from a server that has gone: %s", res.Status)
	}
	if hosts() != 0 {
		t.Error("the server's protocol is still remembered")
	}
}

// TestBoxesShareNothing keeps a connection for one box: a request of another does not get it.
func TestBoxesShareNothing(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	var peers sync.Map
	_, port := l.HTTPSServer(false, func(w http.ResponseWriter, r *http.Request) { peers.Store(r.RemoteAddr, true) })
	request := "GET / HTTP/1.1\r\nHost: " + proxytest.HostPort(port) + "\r\nConnection: close\r\n\r\n"
	for _, box := range []*policy.Box{l.Box, l.NewBox("b2", "127.0.0.3")} {
		l.Box = box
		l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
		c := l.DialPair(proxytest.API, port, true)
		if res := proxytest.Ask(t, c, bufio.NewReader(c), request, "GET"); res.StatusCode != 200 {
			t.Fatal(res.Status)
		}
		_ = proxytest.ReadAll(t, c)
		_ = c.Close()
		proxytest.Await(t, "an idle upstream connection", func() bool { return proxytest.IdleUpstreams(l) >= proxytest.CountOf(&peers) })
	}
	if got := proxytest.CountOf(&peers); got != 2 {
		t.Errorf("%d upstream connections for two boxes", got)
	}
	l.Proxy.CloseBox("box1")
	if got := proxytest.IdleUpstreams(l); got != 1 {
		t.Errorf("%d connections kept, want the other box's one", got)
	}
}
