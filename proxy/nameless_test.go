package proxy

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
)

// judged is a policy that judges the requests of api.example on every port.
func judged(spec policy.Spec) policy.Spec {
	spec.Rules = []policy.RequestRule{{Hosts: []string{"api.example", "*.wild.example"}, Methods: []string{"POST"}, Action: "deny"}}
	return spec
}

func cidr(addrs ...netip.Addr) policy.Spec {
	spec := policy.Spec{Mode: policy.ModeCustom}
	for _, a := range addrs {
		spec.AllowedCIDRs = append(spec.AllowedCIDRs, a.String())
	}
	return spec
}

// withoutName makes a TLS handshake that names nobody and returns what came of it.
func withoutName(c net.Conn) error {
	return tls.Client(c, &tls.Config{InsecureSkipVerify: true}).Handshake()
}

// A box that knows the address of a host with rules by heart gets no further than one that asks for its name.
func TestNamelessTLSDoesNotReachAHostWithRules(t *testing.T) {
	t.Parallel()
	r := newRig(t, policy.Spec{Mode: policy.ModeDenyAll})
	traps := map[uint16]netip.AddrPort{443: r.trap(443), 8443: r.trap(8443)}
	r.names.set("api.example", traps[443].Addr(), traps[8443].Addr())
	for port, trap := range traps {
		other := r.server(port, func(c net.Conn) { _, _ = io.WriteString(c, "other\n"); c.Close() })
		for what, spec := range map[string]policy.Spec{
			"allow-all":    judged(policy.Spec{Mode: policy.ModeAllowAll}),
			"denied lists": judged(policy.Spec{Mode: policy.ModeCustom, DeniedDomains: []string{"x.example"}}),
			"any name":     judged(allow("*")),
			"addresses":    judged(cidr(trap.Addr(), other.Addr())),
		} {
			r.policy(spec, nil)
			if err := withoutName(r.dial(trap)); err == nil {
				t.Errorf("%s, port %d: the handshake succeeded", what, port)
			}
			c := r.dial(other)
			_ = withoutName(c) // sends its hello, to which the server answers something else
			_ = c.Close()
			if what == "addresses" {
				r.want("a splice to the other host", func(e audit.Event) bool { return e.Addr == other.Addr() && e.Verdict == policy.Allow })
			}
		}
	}
}

// When the addresses of a host with rules cannot be found out, an address may be one of them.
func TestUnknownAddressesOfAHostWithRulesAreNoWayPastIt(t *testing.T) {
	t.Parallel()
	r := newRig(t, policy.Spec{Mode: policy.ModeDenyAll})
	trap := r.trap(443)
	r.resolver.set(&failing{names: r.names, err: errors.New("the server is silent")})
	r.policy(judged(cidr(trap.Addr())), nil)
	if err := withoutName(r.dial(trap)); err == nil {
		t.Error("the handshake succeeded")
	}
	r.wantReason(policy.ReasonNoName)
	r.resolver.set(&failing{names: r.names, err: notFound{}})
	server := r.tlsServer("api.example")
	r.policy(judged(cidr(server.Addr())), nil)
	await(t, "a handshake once the name is known to have no address", func() bool { return withoutName(r.dial(server)) == nil })
}

// A panic of a lookup ends the connection that it is for, or that a new policy asks about, and nothing else.
func TestPanicOfALookupEndsOneConnection(t *testing.T) {
	r := newRig(t, policy.Spec{Mode: policy.ModeDenyAll})
	server := r.tlsServer("other.example")
	r.policy(cidr(server.Addr()), nil)
	open := r.dial(server)
	if err := withoutName(open); err != nil {
		t.Fatal(err)
	}
	r.resolver.set(bursting{r.names})
	r.policy(judged(cidr(server.Addr())), nil)
	r.p.Recheck(r.box.ID)
	if _, err := io.Copy(io.Discard, open); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a connection of which it is not known whether it may go on: %v", err)
	}
	if err := withoutName(r.dial(server)); err == nil {
		t.Error("a connection passed of which it is not known whether it may")
	}
	r.wantReason(policy.ReasonInternal)
}

type bursting struct{ *names }

func (bursting) LookupBoth(context.Context, *policy.Box, policy.Name) ([]netip.Addr, error) {
	panic("fake")
}

type failing struct {
	*names
	err error
}

func (f *failing) Lookup(context.Context, *policy.Box, policy.Name) ([]netip.Addr, error) {
	return nil, f.err
}

func (f *failing) LookupBoth(context.Context, *policy.Box, policy.Name) ([]netip.Addr, error) {
	return nil, f.err
}

type notFound struct{}

func (notFound) Error() string  { return "no such name" }
func (notFound) NotFound() bool { return true }

// An address that an earlier answer held is remembered: servers answer with a part of their addresses in turn.
func TestEarlierAddressesOfAHostWithRulesAreRemembered(t *testing.T) {
	t.Parallel()
	r := newRig(t, policy.Spec{Mode: policy.ModeDenyAll})
	first, second := r.trap(443), r.trap(443)
	r.policy(judged(cidr(first.Addr(), second.Addr())), nil)
	r.names.set("api.example", first.Addr())
	_ = withoutName(r.dial(first))
	r.p.core.Router.Refresh(r.box.ID) // as if time had passed
	r.names.set("api.example", second.Addr())
	for _, a := range []netip.AddrPort{second, first} {
		if err := withoutName(r.dial(a)); err == nil {
			t.Error("the handshake succeeded")
		}
	}
}

// A client that waits until it is taken for one whose server speaks first, and then speaks, is judged by what it says.
func TestSilenceAtFirstIsNoWayPastRules(t *testing.T) {
	t.Parallel()
	r := newRig(t, judged(policy.Spec{Mode: policy.ModeAllowAll}), func(c *Config) { c.SilenceTimeout = 10 * time.Millisecond })
	r.names.set("api.example", netip.MustParseAddr("127.9.9.9"))
	reached := make(chan struct{}, 10)
	quiet := func(port uint16) netip.AddrPort {
		return r.server(port, func(c net.Conn) {
			defer c.Close()
			reached <- struct{}{} // the silence timeout has passed
			if n, _ := c.Read(make([]byte, 1)); n > 0 {
				t.Error("the server was spoken to")
			}
		})
	}
	for what, sent := range map[string]string{
		"a request": "POST / HTTP/1.1\r\nHost: api.example:7001\r\nConnection: close\r\n\r\n", "an empty line first": "\r\nPOST / HTTP/1.1\r\nHost: api.example\r\n\r\n",
		"no version": "GET /\r\n", "HTTP/2": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
	} {
		c := r.dial(quiet(7001))
		<-reached
		_, _ = io.WriteString(c, sent)
		if got, _ := io.ReadAll(c); len(got) > 0 && string(got[:12]) != "HTTP/1.1 403" {
			t.Errorf("%s was answered %q", what, got)
		}
	}
	c := r.dial(quiet(7002))
	<-reached
	if err := withoutName(c); err == nil {
		t.Error("the handshake succeeded")
	}
}

// The protocols for which silence is allowed work where rules are about other hosts.
func TestServersThatGreetAreHeardWhereRulesAreForOthers(t *testing.T) {
	t.Parallel()
	r := newRig(t, judged(policy.Spec{Mode: policy.ModeAllowAll}), func(c *Config) { c.SilenceTimeout = 10 * time.Millisecond })
	server := r.server(7003, func(c net.Conn) {
		defer c.Close()
		_, _ = io.WriteString(c, "220 welcome\n")
		_, _ = io.Copy(c, c)
	})
	r.names.set("api.example", netip.MustParseAddr("127.9.9.9"))
	c := r.dial(server)
	if got, err := firstLine(c); got != "220 welcome" {
		t.Fatalf("%q, %v", got, err)
	}
	if !r.echoes(c) {
		t.Error("the conversation does not go on")
	}
	talker := r.server(7004, func(c net.Conn) {
		defer c.Close()
		_, _ = io.Copy(c, c)
	})
	if !r.echoes(r.dial(talker)) { // "still here": not HTTP, not TLS
		t.Error("a protocol in which the client speaks first is cut off")
	}
}

// A connection that names nobody is cut when its address turns out to be that of a host with new rules, and only then.
func TestRecheckCutsNamelessConnectionsToAHostWithNewRules(t *testing.T) {
	t.Parallel()
	r := newRig(t, policy.Spec{Mode: policy.ModeDenyAll})
	api, other := r.tlsServer("api.example"), r.tlsServer("other.example")
	r.policy(cidr(api.Addr(), other.Addr()), nil)
	r.names.set("api.example", api.Addr())
	open := func(to netip.AddrPort) net.Conn {
		c := tls.Client(r.dial(to), &tls.Config{InsecureSkipVerify: true})
		if _, err := firstLine(c); err != nil {
			t.Fatal(err)
		}
		return c
	}
	a, b := open(api), open(other)
	r.policy(judged(cidr(api.Addr(), other.Addr())), nil)
	r.p.Recheck("box1")
	if r.echoes(a) {
		t.Error("a connection goes past the new rule")
	}
	if !r.echoes(b) {
		t.Error("the other connection was disturbed")
	}
	r.policy(judged(policy.Spec{Mode: policy.ModeAllowAll}), nil)
	r.p.Recheck("box1")
	if r.echoes(b) {
		t.Error("a connection without a name is open where it could not be opened")
	}
}
