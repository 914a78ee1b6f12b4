package origin_test

import (
	"bufio"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy"
	"boxgate/proxy/proxytest"
)

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
