package origin_test

import (
	"bufio"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy/proxytest"
)

func TestGrantedAddressIsDialledAsAsked(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, proxytest.Allow("good.example"))
	asked := r.TLSServer("good.example")
	r.Names.Grant("good.example", asked.Addr())
	r.Names.Set("good.example", r.Trap(443).Addr())
	if got, err := r.Hello(r.Dial(asked), "good.example"); err != nil || got != "hello from good.example" {
		t.Fatalf("%q, %v", got, err)
	}
}

func TestRebindingOnlyGoodAddressesAreUsed(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, proxytest.Allow("good.example"))
	owner := r.TLSServer("good.example")
	r.Names.Set("good.example", netip.MustParseAddr("169.254.169.254"), owner.Addr(), netip.MustParseAddr("::ffff:10.0.0.1"))
	if got, err := r.Hello(r.Dial(owner), "good.example"); err != nil || got != "hello from good.example" {
		t.Fatalf("%q, %v", got, err)
	}
	r.Names.Set("good.example", netip.MustParseAddr("169.254.169.254"))
	_, err := r.Hello(r.Dial(owner), "good.example")
	if !proxytest.AccessDeniedAlert(err) {
		t.Fatalf("only a metadata address: %v", err)
	}
	if e := r.WantReason(name.ReasonProtectedRange); e.Addr != netip.MustParseAddr("169.254.169.254") || e.Verdict != policy.Deny {
		t.Errorf("%+v", e)
	}
}

func TestTheDiallerJudgesTheAddressOfTheSocket(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, proxytest.Allow("good.example"))
	trap := r.Trap(443)
	to := r.Target("good.example")
	r.Policy(policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{"good.example"}, DeniedCIDRs: []string{trap.Addr().String() + "/32"}}, nil)
	// As if the policy had changed after the candidates were judged.
	c, err := r.Core.Origins.DialAddr(t.Context(), r.Box, to, trap.Addr(), false)
	var denied *policy.DeniedError
	if c != nil || !errors.As(err, &denied) || denied.Decision.Reason != name.ReasonDeniedCIDR || denied.Request.Stage != policy.StageDial {
		t.Errorf("%v, %v", c, err)
	}
}

func TestUnresolvedAndUnreachableSayWhich(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, proxytest.Allow("good.example"))
	owner := r.Server(443, func(c net.Conn) { c.Close() })
	if _, err := r.Hello(r.Dial(owner), "good.example"); err == nil {
		t.Error("a name without an address was served")
	}
	r.WantReason(name.ReasonUnresolved)
	r.Names.Set("good.example", netip.MustParseAddr("127.255.255.254")) // without a listener
	if _, err := r.Hello(r.Dial(owner), "good.example"); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("unreachable: %v", err)
	}
	if e := r.WantReason(name.ReasonUnreachable); e.Verdict != policy.Deny || e.Error == "" {
		t.Errorf("%+v", e)
	}
}

func TestUntrustedUpstreamGetsNothing(t *testing.T) {
	t.Parallel()
	l, other := proxytest.New(t, proxytest.AllowAll, proxytest.Patient), proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	var reached atomic.Int32
	_, port := other.HTTPSServer(false, func(http.ResponseWriter, *http.Request) { reached.Add(1) })
	l.Policy(proxytest.AllowAll, proxytest.SecretFor(proxytest.API, port))
	c := l.DialPair(proxytest.API, port, true)
	res := proxytest.Ask(t, c, bufio.NewReader(c), "GET / HTTP/1.1\r\nHost: "+proxytest.HostPort(port)+"\r\n\r\n", "GET")
	if body := proxytest.ReadAll(t, res.Body); res.StatusCode != 502 || !strings.Contains(body, string(name.ReasonUpstreamTLS)) || strings.Contains(body, "s3cret") {
		t.Errorf("%d %s", res.StatusCode, body)
	}
	if e := l.Events.Wait(t, 1)[0]; e.Reason != name.ReasonUpstreamTLS || e.Verdict != policy.Deny || e.Headers != nil || reached.Load() != 0 {
		t.Errorf("event %+v, reached %d", e, reached.Load())
	}
}

func TestUnresolvedAndUnreachable(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := proxytest.PortOf(t, ln)
	_ = ln.Close()
	l.Names.Set("nowhere.example.com")
	l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
	for label, want := range map[string]name.Reason{"nowhere.example.com": name.ReasonUnresolved, proxytest.API: name.ReasonUnreachable} {
		c := l.DialPair(label, port, true)
		res := proxytest.Ask(t, c, bufio.NewReader(c), "GET / HTTP/1.1\r\nHost: "+label+":"+strconv.Itoa(int(port))+"\r\n\r\n", "GET")
		if body := proxytest.ReadAll(t, res.Body); res.StatusCode != 502 || !strings.Contains(body, string(want)) {
			t.Errorf("%s: %d %s", label, res.StatusCode, body)
		}
	}
}

// TestDeadAddressGivesWayToRequests: requests to a name are served as long as one of its addresses accepts, whichever the box
// has chosen.
func TestDeadAddressGivesWayToRequests(t *testing.T) {
	t.Parallel()
	for _, h2 := range []bool{false, true} {
		l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
		_, port := l.HTTPSServer(h2, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
		l.Orig = netip.MustParseAddr("127.255.255.254") // without a listener
		l.Names.Grant(proxytest.API, l.Orig, proxytest.Loopback)
		l.Names.Set(proxytest.API, l.Orig, proxytest.Loopback)
		l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
		res, body := proxytest.Get(t, l.HTTPClient(port, h2), "https://"+proxytest.HostPort(port)+"/", nil)
		if res.StatusCode != http.StatusNoContent {
			t.Errorf("HTTP/2 %v: %d %s", h2, res.StatusCode, body)
		}
		if e := l.Events.Wait(t, 1)[0]; e.Addr != proxytest.Loopback || e.Claimed != l.Orig {
			t.Errorf("HTTP/2 %v: %+v", h2, e)
		}
		l.Policy(policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{proxytest.API}, DeniedCIDRs: []string{"127.0.0.1"}}, proxytest.Intercepted(port))
		l.Core.Origins.CloseAllIdle()
		res, body = proxytest.Get(t, l.HTTPClient(port, h2), "https://"+proxytest.HostPort(port)+"/", nil)
		if res.StatusCode != http.StatusBadGateway {
			t.Errorf("HTTP/2 %v: the other address is denied, and the answer is %d %s", h2, res.StatusCode, body)
		}
	}
}
