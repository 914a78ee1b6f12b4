package origin_test

import (
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy/proxytest"
)

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
