package proxy_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"boxgate/policy"
	"boxgate/policy/match"
	"boxgate/policy/name"
	"boxgate/proxy"
	"boxgate/proxy/proxytest"
)

// deaf returns a server that fails the test if it receives data. It sends first when a client connects.
func deaf(r *proxytest.Rig, port uint16, first string) netip.AddrPort {
	r.T.Helper()
	return r.Server(port, func(c net.Conn) {
		defer c.Close()
		_, _ = io.WriteString(c, first)
		b := make([]byte, 64)
		if n, _ := c.Read(b); n > 0 {
			r.T.Errorf("the server was told %q", b[:n])
		}
	})
}

// httpOn is a server that answers requests with 204 and reports each connection on reached.
func httpOn(r *proxytest.Rig, port uint16, reached chan<- struct{}) netip.AddrPort {
	return r.Server(port, func(c net.Conn) {
		defer c.Close()
		reached <- struct{}{}
		for in := bufio.NewReader(c); ; {
			if _, err := http.ReadRequest(in); err != nil {
				return
			}
			_, _ = io.WriteString(c, "HTTP/1.1 204 No Content\r\n\r\n")
		}
	})
}

// A lenient server may treat bytes as a request, or as TLS, that a strict parser does not, and the first segment need not
// show it yet.
func TestAttackFirstBytesThatBecomeARequestLater(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, judged(policy.Spec{Mode: policy.ModeAllowAll}))
	r.Names.Set("api.example", netip.MustParseAddr("127.9.9.9"))
	const rest = " / HTTP/1.1\r\nHost: x.wild.example\r\nConnection: close\r\n\r\n"
	for what, first := range map[string]string{
		"an empty line":                    "\r\n",
		"white space":                      " \t",
		"an empty line, half a method":     "\r\nGE",
		"an empty line, half a line":       "\n\nFETCH /a",
		"an empty line, a rare method":     "\r\nFETCH" + rest,
		"a method of odd characters":       "X.Y!" + rest,
		"a long method":                    strings.Repeat("A", 40) + rest,
		"half a long method":               strings.Repeat("A", 40),
		"a space behind the version":       "FETCH / HTTP/1.1 \r\nHost: x.wild.example\r\n\r\n",
		"a hello in the form of SSL 2.0":   "\x80\x2e\x01\x03\x03\x00\x15\x00\x00\x00\x10",
		"half a hello in that form":        "\x80\x2e",
		"the beginning of HTTP/2 in clear": "PRI * HTTP/2.0\r\n",
	} {
		t.Run(what, func(t *testing.T) {
			c := r.Dial(deaf(r, 7005, ""))
			_, _ = io.WriteString(c, first)
			got, _ := io.ReadAll(c)
			if len(got) > 0 && !strings.HasPrefix(string(got), "HTTP/1.1 421") { // 421: judged, and its port is not that of the connection
				t.Errorf("answered %q", got)
			}
		})
	}
}

// A server of cleartext HTTP/2 may send its settings before the client has sent anything.
func TestAttackSilenceUntilAnHTTP2ServerSpeaks(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, judged(policy.Spec{Mode: policy.ModeAllowAll}), func(c *proxy.Config) { c.SilenceTimeout = 10 * time.Millisecond })
	r.Names.Set("api.example", netip.MustParseAddr("127.9.9.9"))
	settings := "\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x64"
	server := deaf(r, 7006, settings)
	c := r.Dial(server)
	b := make([]byte, len(settings))
	_ = c.SetReadDeadline(time.Now().Add(300 * time.Millisecond)) // long enough for a tunnel
	if n, _ := c.Read(b); n > 0 {
		t.Errorf("%q passed", b[:n])
	}
	_ = c.SetReadDeadline(time.Now().Add(time.Minute))
	_, _ = io.WriteString(c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	if got, _ := io.ReadAll(c); len(got) > 0 {
		t.Errorf("%q passed", got)
	}
}

// Under a policy that denies names, an address in Host does not count as a name.
func TestAttackAddressAsHostWhereNamesDecide(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, policy.Spec{Mode: policy.ModeCustom, DeniedDomains: []string{"bad.example"}})
	trap := deaf(r, 7007, "")
	c := r.Dial(trap)
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: "+trap.String()+"\r\nConnection: close\r\n\r\n")
	if got, _ := io.ReadAll(c); !strings.HasPrefix(string(got), "HTTP/1.1 403") {
		t.Errorf("answered %q", got)
	}
	r.WantReason(name.ReasonNoName)
	proxied := proxytest.DialTo(t, r.Explicit())
	_, _ = io.WriteString(proxied, "GET http://"+trap.String()+"/ HTTP/1.1\r\nHost: "+trap.String()+"\r\nConnection: close\r\n\r\n")
	if got, _ := io.ReadAll(proxied); !strings.HasPrefix(string(got), "HTTP/1.1 403") {
		t.Errorf("the explicit proxy answered %q", got)
	}
}

// A second name for the address of a host with rules does not give unread access to that host.
func TestAttackSecondNameForAHostWithRules(t *testing.T) {
	for what, spec := range map[string]func(netip.Addr) policy.Spec{
		"allow-all": func(netip.Addr) policy.Spec { return policy.Spec{Mode: policy.ModeAllowAll} },
		"addresses": func(a netip.Addr) policy.Spec { return cidr(a) },
		"any name":  func(netip.Addr) policy.Spec { return proxytest.Allow("*") },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			r := proxytest.New(t, policy.Spec{Mode: policy.ModeDenyAll}, func(c *proxy.Config) { c.SilenceTimeout = 10 * time.Millisecond })
			traps := []netip.AddrPort{r.Trap(80), r.Trap(7008)}
			r.Names.Set("api.example", traps[0].Addr(), traps[1].Addr())
			for _, trap := range traps {
				r.Names.Set("alias.example", trap.Addr())
				r.Names.Grant("alias.example", trap.Addr())
				r.Policy(judged(spec(trap.Addr())), nil)
				connect := "CONNECT alias.example:" + strings.Split(trap.String(), ":")[1] + " HTTP/1.1\r\n\r\n"
				for _, first := range []string{"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "\r\nPOST / HTTP/1.1\r\nHost: api.example\r\n\r\n", "\x00\x01"} {
					c := r.Dial(trap)
					_, _ = io.WriteString(c, first)
					_, _ = io.ReadAll(c)
					c = proxytest.DialTo(t, r.Explicit())
					_, _ = io.WriteString(c, connect)
					if got, _ := proxytest.FirstLine(c); strings.HasPrefix(got, "HTTP/1.1 200") {
						_, _ = proxytest.FirstLine(c)
						_, _ = io.WriteString(c, first)
						_, _ = io.ReadAll(c)
					}
				}
			}
		})
	}
}

// A rule for every host also applies to connections without a name.
func TestAttackNoNameUnderARuleForEveryHost(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, policy.Spec{Mode: policy.ModeDenyAll})
	for _, port := range []uint16{80, 443, 8443} {
		trap := r.Trap(port)
		spec := cidr(trap.Addr())
		spec.Rules = []match.RequestRule{{Hosts: []string{"*"}, Methods: []string{"POST"}, Action: "deny"}}
		r.Policy(spec, nil)
		if err := withoutName(r.Dial(trap)); err == nil {
			t.Errorf("port %d: the handshake succeeded", port)
		}
		c := r.Dial(trap)
		_, _ = io.WriteString(c, "\x00\x01")
		_, _ = io.ReadAll(c)
		c = r.Dial(trap)
		_, _ = io.WriteString(c, "POST / HTTP/1.1\r\nHost: "+trap.String()+"\r\nConnection: close\r\n\r\n")
		if got, _ := io.ReadAll(c); len(got) > 0 && !strings.HasPrefix(string(got), "HTTP/1.1 4") {
			t.Errorf("port %d answered %q", port, got)
		}
	}
}
