package origin_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy"
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

// TestConnectionsLeaveFromTheSource: from the addresses that the box has in the policy in force. A kept connection that leaves from
// another is closed by a recheck, and is used for no request before that.
func TestConnectionsLeaveFromTheSource(t *testing.T) {
	t.Parallel()
	for _, h2 := range []bool{false, true} {
		l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
		_, port := l.HTTPSServer(h2, func(w http.ResponseWriter, r *http.Request) {
			host, _, _ := net.SplitHostPort(r.RemoteAddr)
			_, _ = io.WriteString(w, host)
		})
		for _, from := range []string{"127.0.0.5", "127.0.0.6", "127.0.0.7"} {
			l.From = policy.Source{V4: netip.MustParseAddr(from)}
			l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
			if from == "127.0.0.7" {
				l.Proxy.Recheck(l.Box.ID)
				if n := l.Upstreams(); n > 0 {
					t.Errorf("h2 %v: %d connections that leave from elsewhere are kept", h2, n)
				}
			}
			client := l.HTTPClientLater(port, h2)
			if res, body := proxytest.Get(t, client, "https://"+proxytest.HostPort(port)+"/", nil); res.StatusCode != 200 || body != from {
				t.Errorf("h2 %v: %s from %s, want %s", h2, res.Status, body, from)
			}
			proxytest.Await(t, "the rest of all connections", func() bool { return proxytest.IdleUpstreams(l) > 0 && proxytest.IdleUpstreams(l) == l.Upstreams() })
		}
	}
}

// TestAttackWithoutASource: if the source addresses of a box do not include the server's family, or the host lacks the address,
// the box cannot connect from another address of the host.
func TestAttackWithoutASource(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	_, port := l.HTTPSServer(false, func(http.ResponseWriter, *http.Request) { t.Error("the server was reached") })
	l.From = policy.Source{V4: netip.MustParseAddr("192.0.2.1")} // of another host
	l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
	res, body := proxytest.Get(t, l.HTTPClient(port, false), "https://"+proxytest.HostPort(port)+"/", nil)
	if res.StatusCode != 502 || !strings.Contains(body, string(name.ReasonSourceAddress)) {
		t.Errorf("%s %s", res.Status, body)
	}
	l.From = policy.Source{V6: netip.IPv6Loopback()}
	l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
	if _, err := l.Hello(l.Dial(netip.AddrPortFrom(proxytest.Loopback, port)), proxytest.API); !proxytest.AccessDeniedAlert(err) {
		t.Errorf("without an address of the family: %v", err)
	}
	for _, stage := range []policy.Stage{policy.StageHTTP, policy.StageConn} {
		l.Want("a refusal", func(e audit.Event) bool {
			return e.Stage == stage && e.Reason == name.ReasonSourceAddress && e.Verdict == policy.Deny
		})
	}
}

type tokens struct{}

func (tokens) Token(policy.BoxID, string, string) (name.Secret, error) {
	return name.NewSecret("token-of-the-gateway"), nil
}

// forwarded are header rules that forward requests for the port of api.example.com to a proxy.
func forwarded(port uint16, to string) string {
	return `{"` + proxytest.HostPort(port) + `": {"forward_url": "https://` + to + `/in"}}`
}

// TestForwardedRequestsHaveTheirOwnConnections: a connection to the proxy of a rule is reused for requests that the rule
// forwards, but not for the box's own requests to the same host.
func TestForwardedRequestsHaveTheirOwnConnections(t *testing.T) {
	t.Parallel()
	proxytest.EachProtocol(t, func(t *testing.T, l *proxytest.Rig, client *http.Client, port uint16, up *proxytest.Recorder) {
		l.With(func(c *proxy.Config) { c.Tokens = tokens{} })
		const name = "other.example.com"
		other := name + ":" + strconv.Itoa(int(port))
		l.Rules(proxytest.AllowAll, strings.TrimSuffix(forwarded(port, other), "}")+`, "`+other+`": {"headers": {"X-Rule": "in force"}}}`)
		served := func() *http.Request {
			got, _ := up.Take()
			if got == nil {
				t.Fatal("the server got nothing")
			}
			proxytest.Await(t, "the rest of all connections", func() bool { return proxytest.IdleUpstreams(l) == l.Upstreams() })
			return got
		}
		by := map[string]bool{}
		for range 2 {
			if status, text := proxytest.Send(t, client, "GET", "https://"+proxytest.HostPort(port)+"/a", nil, nil); status != 200 {
				t.Fatal(status, text)
			}
			by[served().RemoteAddr] = true
		}
		if len(by) != 1 {
			t.Errorf("two requests of the rule came by %d connections", len(by))
		}
		c := l.DialPair(name, port, true)
		proxytest.Ask(t, c, bufio.NewReader(c), "GET /a HTTP/1.1\r\nHost: "+other+"\r\n\r\n", "GET")
		if got := served(); by[got.RemoteAddr] || got.Header.Get("X-Rule") == "" || got.Header.Get("Vercel-Forwarded-Host") != "" {
			t.Errorf("%s of the box itself came from %s, as did those of the rule: %v", got.RequestURI, got.RemoteAddr, got.Header)
		}
	})
}

// TestAttackForwardedToWhatIsDenied: the policy for the proxies of rules decides about them. The box, which has not asked for the proxy,
// is not told where it is.
func TestAttackForwardedToWhatIsDenied(t *testing.T) {
	t.Parallel()
	proxytest.EachProtocol(t, func(t *testing.T, l *proxytest.Rig, client *http.Client, port uint16, up *proxytest.Recorder) {
		l.With(func(c *proxy.Config) { c.Tokens = tokens{} })
		for what, addr := range map[string]string{"protected": "10.0.0.1", "metadata": "169.254.169.254", "not there": "127.255.255.254"} {
			l.Names.Set("forward.test", netip.MustParseAddr(addr))
			l.Rules(proxytest.AllowAll, forwarded(port, "forward.test:1"))
			status, text := proxytest.Send(t, client, "POST", "https://"+proxytest.HostPort(port)+"/a", nil, strings.NewReader("content"))
			if status != 502 || !strings.Contains(text, string(name.ReasonUnreachable)) || strings.Contains(text, addr) || strings.Contains(text, "forward.test") {
				t.Errorf("%s: %d %s", what, status, text)
			}
			if got, _ := up.Take(); got != nil {
				t.Errorf("%s: the server was asked for %s", what, got.RequestURI)
			}
		}
	})
}
