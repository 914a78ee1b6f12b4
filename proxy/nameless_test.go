package proxy_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/match"
	"boxgate/policy/name"
	"boxgate/proxy"
	"boxgate/proxy/proxytest"
)

// judged is a policy that judges the requests of api.example on every port.
func judged(spec policy.Spec) policy.Spec {
	spec.Rules = []match.RequestRule{{Hosts: []string{"api.example", "*.wild.example"}, Methods: []string{"POST"}, Action: "deny"}}
	return spec
}

func cidr(addrs ...netip.Addr) policy.Spec {
	spec := policy.Spec{Mode: policy.ModeCustom}
	for _, a := range addrs {
		spec.AllowedCIDRs = append(spec.AllowedCIDRs, a.String())
	}
	return spec
}

// withoutName makes a TLS handshake without SNI and returns the error.
func withoutName(c net.Conn) error {
	return tls.Client(c, &tls.Config{InsecureSkipVerify: true}).Handshake()
}

// A box that dials the address of a host with rules without a lookup has no more access than one that resolves its name.
func TestNamelessTLSDoesNotReachAHostWithRules(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, policy.Spec{Mode: policy.ModeDenyAll})
	traps := map[uint16]netip.AddrPort{443: r.Trap(443), 8443: r.Trap(8443)}
	r.Names.Set("api.example", traps[443].Addr(), traps[8443].Addr())
	for port, trap := range traps {
		other := r.Server(port, func(c net.Conn) { _, _ = io.WriteString(c, "other\n"); c.Close() })
		for what, spec := range map[string]policy.Spec{
			"allow-all":    judged(policy.Spec{Mode: policy.ModeAllowAll}),
			"denied lists": judged(policy.Spec{Mode: policy.ModeCustom, DeniedDomains: []string{"x.example"}}),
			"any name":     judged(proxytest.Allow("*")),
			"addresses":    judged(cidr(trap.Addr(), other.Addr())),
		} {
			r.Policy(spec, nil)
			if err := withoutName(r.Dial(trap)); err == nil {
				t.Errorf("%s, port %d: the handshake succeeded", what, port)
			}
			c := r.Dial(other)
			_ = withoutName(c) // the server answers its hello with other data
			_ = c.Close()
			if what == "addresses" {
				r.Want("a splice to the other host", func(e audit.Event) bool { return e.Addr == other.Addr() && e.Verdict == policy.Allow })
			}
		}
	}
}

// If the addresses of a host with rules cannot be resolved, any address may be one of them.
func TestUnknownAddressesOfAHostWithRulesAreNoWayPastIt(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, policy.Spec{Mode: policy.ModeDenyAll})
	trap := r.Trap(443)
	r.Resolver.Set(&failing{Names: r.Names, err: errors.New("the server is silent")})
	r.Policy(judged(cidr(trap.Addr())), nil)
	if err := withoutName(r.Dial(trap)); err == nil {
		t.Error("the handshake succeeded")
	}
	r.WantReason(name.ReasonNoName)
	r.Resolver.Set(&failing{Names: r.Names, err: notFound{}})
	server := r.TLSServer("api.example")
	r.Policy(judged(cidr(server.Addr())), nil)
	proxytest.Await(t, "a handshake once the name is known to have no address", func() bool { return withoutName(r.Dial(server)) == nil })
}

// A panic in a lookup closes the connection that needs it, or that a new policy rechecks, and no other.
func TestPanicOfALookupEndsOneConnection(t *testing.T) {
	r := proxytest.New(t, policy.Spec{Mode: policy.ModeDenyAll})
	server := r.TLSServer("other.example")
	r.Policy(cidr(server.Addr()), nil)
	open := r.Dial(server)
	if err := withoutName(open); err != nil {
		t.Fatal(err)
	}
	r.Resolver.Set(bursting{r.Names})
	r.Policy(judged(cidr(server.Addr())), nil)
	r.Proxy.Recheck(r.Box.ID)
	if _, err := io.Copy(io.Discard, open); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a connection to an unknown destination was not cut: %v", err)
	}
	if err := withoutName(r.Dial(server)); err == nil {
		t.Error("a connection passed although its destination is unknown")
	}
	r.WantReason(name.ReasonInternal)
}

type bursting struct{ *proxytest.Names }

func (bursting) LookupBoth(context.Context, *policy.Box, name.Name) ([]netip.Addr, error) {
	panic("fake")
}

type failing struct {
	*proxytest.Names
	err error
}

func (f *failing) Lookup(context.Context, *policy.Box, name.Name) ([]netip.Addr, error) {
	return nil, f.err
}

func (f *failing) LookupBoth(context.Context, *policy.Box, name.Name) ([]netip.Addr, error) {
	return nil, f.err
}

type notFound struct{}

func (notFound) Error() string  { return "no such name" }
func (notFound) NotFound() bool { return true }

// Addresses in earlier answers are remembered, because servers return some of their addresses in turn.
func TestEarlierAddressesOfAHostWithRulesAreRemembered(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, policy.Spec{Mode: policy.ModeDenyAll})
	first, second := r.Trap(443), r.Trap(443)
	r.Policy(judged(cidr(first.Addr(), second.Addr())), nil)
	r.Names.Set("api.example", first.Addr())
	_ = withoutName(r.Dial(first))
	r.Core.Router.Refresh(r.Box.ID) // as if the cache had expired
	r.Names.Set("api.example", second.Addr())
	for _, a := range []netip.AddrPort{second, first} {
		if err := withoutName(r.Dial(a)); err == nil {
			t.Error("the handshake succeeded")
		}
	}
}

// A client that stays silent until the server is assumed to speak first, and then sends data, is judged by that data.
func TestSilenceAtFirstIsNoWayPastRules(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, judged(policy.Spec{Mode: policy.ModeAllowAll}), func(c *proxy.Config) { c.SilenceTimeout = 10 * time.Millisecond })
	r.Names.Set("api.example", netip.MustParseAddr("127.9.9.9"))
	reached := make(chan struct{}, 10)
	quiet := func(port uint16) netip.AddrPort {
		return r.Server(port, func(c net.Conn) {
			defer c.Close()
			reached <- struct{}{} // the silence timeout has passed
			if n, _ := c.Read(make([]byte, 1)); n > 0 {
				t.Error("the server received data")
			}
		})
	}
	for what, sent := range map[string]string{
		"a request": "POST / HTTP/1.1\r\nHost: api.example:7001\r\nConnection: close\r\n\r\n", "an empty line first": "\r\nPOST / HTTP/1.1\r\nHost: api.example\r\n\r\n",
		"no version": "GET /\r\n", "HTTP/2": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
	} {
		c := r.Dial(quiet(7001))
		<-reached
		_, _ = io.WriteString(c, sent)
		if got, _ := io.ReadAll(c); len(got) > 0 && string(got[:12]) != "HTTP/1.1 403" {
			t.Errorf("%s got the answer %q", what, got)
		}
	}
	c := r.Dial(quiet(7002))
	<-reached
	if err := withoutName(c); err == nil {
		t.Error("the handshake succeeded")
	}
}

// Protocols for which silence is allowed work if all rules are for other hosts.
func TestServersThatGreetAreHeardWhereRulesAreForOthers(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, judged(policy.Spec{Mode: policy.ModeAllowAll}), func(c *proxy.Config) { c.SilenceTimeout = 10 * time.Millisecond })
	server := r.Server(7003, func(c net.Conn) {
		defer c.Close()
		_, _ = io.WriteString(c, "220 welcome\n")
		_, _ = io.Copy(c, c)
	})
	r.Names.Set("api.example", netip.MustParseAddr("127.9.9.9"))
	c := r.Dial(server)
	if got, err := proxytest.FirstLine(c); got != "220 welcome" {
		t.Fatalf("%q, %v", got, err)
	}
	if !echoes(r, c) {
		t.Error("the session does not continue")
	}
	talker := r.Server(7004, func(c net.Conn) {
		defer c.Close()
		_, _ = io.Copy(c, c)
	})
	if !echoes(r, r.Dial(talker)) { // "still here": not HTTP, not TLS
		t.Error("a protocol in which the client speaks first is cut off")
	}
}

// A connection without a name is cut if its address is found to belong to a host with new rules, and only then.
func TestRecheckCutsNamelessConnectionsToAHostWithNewRules(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, policy.Spec{Mode: policy.ModeDenyAll})
	api, other := r.TLSServer("api.example"), r.TLSServer("other.example")
	r.Policy(cidr(api.Addr(), other.Addr()), nil)
	r.Names.Set("api.example", api.Addr())
	open := func(to netip.AddrPort) net.Conn {
		c := tls.Client(r.Dial(to), &tls.Config{InsecureSkipVerify: true})
		if _, err := proxytest.FirstLine(c); err != nil {
			t.Fatal(err)
		}
		return c
	}
	a, b := open(api), open(other)
	r.Policy(judged(cidr(api.Addr(), other.Addr())), nil)
	r.Proxy.Recheck("box1")
	if echoes(r, a) {
		t.Error("a connection goes past the new rule")
	}
	if !echoes(r, b) {
		t.Error("the other connection was disturbed")
	}
	r.Policy(judged(policy.Spec{Mode: policy.ModeAllowAll}), nil)
	r.Proxy.Recheck("box1")
	if echoes(r, b) {
		t.Error("a connection without a name is open where it could not be opened")
	}
}

// A connection holds the grant for its destination address, and no other, until it is closed, in whatever way.
func TestConnectionsHoldGrants(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, proxytest.Allow("a.example.com", "b.example.com"))
	server := r.Server(4444, func(c net.Conn) {
		defer c.Close()
		_, _ = io.Copy(c, c)
	})
	r.Names.Grant("a.example.com", server.Addr())
	begin := func() net.Conn {
		c := r.Dial(server)
		if _, err := io.WriteString(c, "\x00x\n"); err != nil {
			t.Fatal(err)
		}
		if _, err := proxytest.FirstLine(c); err != nil {
			t.Fatal(err)
		}
		return c
	}
	first, second := begin(), begin()
	if n := r.Names.Held("a.example.com"); n != 2 {
		t.Errorf("%d connections hold the grant", n)
	}
	first.Close()
	proxytest.Await(t, "the end of one", func() bool { return r.Names.Held("a.example.com") == 1 })
	r.Policy(policy.Spec{Mode: policy.ModeDenyAll}, nil)
	r.Proxy.Recheck(r.Box.ID)
	if _, err := proxytest.FirstLine(second); err == nil {
		t.Error("a change of the policy did not cut the connection")
	}
	proxytest.Await(t, "the end of the other", func() bool { return r.Names.Held("a.example.com") == 0 })
	if n := r.Names.Held("b.example.com"); n != 0 {
		t.Errorf("%d connections hold what was not granted", n)
	}
}
