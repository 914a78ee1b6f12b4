package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/proxy/exchange"
	"boxgate/proxy/live"
	"boxgate/proxy/problem"
)

// halting is a resolver whose lookups wait, once that was asked for, until their contexts end.
type halting struct {
	*names
	mu      sync.Mutex
	halted  bool
	waiting chan struct{} // told of each lookup that waits
}

func (h *halting) halt() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.halted = true
}

func (h *halting) Lookup(ctx context.Context, b *policy.Box, n policy.Name) ([]netip.Addr, error) {
	h.mu.Lock()
	halted := h.halted
	h.mu.Unlock()
	if halted {
		select {
		case h.waiting <- struct{}{}:
		default:
		}
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return h.names.Lookup(ctx, b, n)
}

func (h *halting) LookupBoth(ctx context.Context, b *policy.Box, n policy.Name) ([]netip.Addr, error) {
	return h.Lookup(ctx, b, n)
}

// A request for a name whose server takes its time holds up neither a change of the policy nor the end of the box.
func TestAttackSlowNameHoldsUpNobody(t *testing.T) {
	t.Parallel()
	r := newRig(t, cidr(netip.MustParseAddr("127.9.9.9")))
	slow := &halting{names: r.names, halted: true, waiting: make(chan struct{}, 1)}
	r.resolver.set(slow)
	c := dialTo(t, r.explicit())
	_, _ = io.WriteString(c, "GET http://slow.example/ HTTP/1.1\r\nHost: slow.example\r\n\r\n")
	<-slow.waiting
	began := time.Now()
	r.p.CloseBox("box1")
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("the box was closed after %v", took)
	}
}

// While DNS does not answer, a change of the policy that concerns nobody else cuts nobody else: where the hosts with rules
// are was known a moment ago.
func TestSlowDNSCutsNoConnectionThatIsStillAllowed(t *testing.T) {
	t.Parallel()
	r := newRig(t, policy.Spec{Mode: policy.ModeDenyAll})
	api, other := r.tlsServer("api.example"), r.tlsServer("other.example")
	slow := &halting{names: r.names}
	r.resolver.set(slow)
	r.names.set("api.example", api.Addr())
	r.policy(judged(cidr(api.Addr(), other.Addr())), nil)
	c := tls.Client(r.dial(other), &tls.Config{InsecureSkipVerify: true})
	if _, err := firstLine(c); err != nil {
		t.Fatal(err)
	}
	slow.halt()
	r.p.core.Router.Refresh(r.box.ID) // as if time had passed
	r.policy(judged(cidr(api.Addr(), other.Addr(), netip.MustParseAddr("127.9.9.9"))), nil)
	r.p.Recheck("box1")
	if !r.echoes(c) {
		t.Error("a connection that is still allowed was cut")
	}
}

// By NAT64 (RFC 6052) a host has a second address, which no answer need have told.
func TestAttackHostWithRulesByNAT64(t *testing.T) {
	t.Parallel()
	r := newRig(t, policy.Spec{Mode: policy.ModeDenyAll})
	const plain, translated = "192.0.2.5", "64:ff9b::192.0.2.5"
	spec := judged(policy.Spec{Mode: policy.ModeCustom, AllowedCIDRs: []string{plain}})
	pol, err := policy.Compile(spec, nil, policy.NewProtected([]netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, nil), 1)
	if err != nil {
		t.Fatal(err)
	}
	to := netip.AddrPortFrom(netip.MustParseAddr(translated), 443)
	for what, set := range map[string]func(string, ...netip.Addr){"found": r.names.set, "told": r.names.grant} {
		r.names.answers, r.names.grants = map[string][]netip.Addr{"api.example": nil}, nil
		r.p.core.Router.Forget(r.box.ID)
		set("api.example", netip.MustParseAddr(plain))
		if d := pol.Decide(policy.Request{Stage: policy.StageConn, Addr: to.Addr(), Port: 443, Protocol: policy.TCP}); !d.Allowed() {
			t.Fatalf("%+v", d)
		}
		asked := policy.Request{Box: r.box.ID, Addr: to.Addr(), Port: to.Port(), Protocol: policy.TCP}
		if rt := r.p.core.Router.Route(t.Context(), pol, r.box, asked, policy.Evidence{Opening: policy.OpeningTLS}); rt.Action != policy.Refuse {
			t.Errorf("%s at %s, it is not known at %s", what, plain, translated)
		}
	}
}

// half is a resolver that has the answer of one family and waits for the other's.
type half struct{ *names }

func (h half) LookupBoth(ctx context.Context, b *policy.Box, n policy.Name) ([]netip.Addr, error) {
	addrs, _ := h.Lookup(ctx, b, n)
	return addrs, errors.New("no answer for AAAA")
}

// Where one family of a host with rules is not known, an address of that family may be its own.
func TestAttackHostWithRulesByTheFamilyThatDNSOwes(t *testing.T) {
	t.Parallel()
	r := newRig(t, policy.Spec{Mode: policy.ModeDenyAll})
	trap := r.trap(443)
	r.resolver.set(half{r.names})
	r.names.set("api.example", netip.MustParseAddr("127.9.9.9"))
	r.policy(judged(cidr(trap.Addr())), nil)
	if err := withoutName(r.dial(trap)); err == nil {
		t.Error("the handshake succeeded")
	}
	r.wantReason(policy.ReasonNoName)
}

// What was decided for a silent client no longer counts once it has given a name.
func TestConnectionThatSpokeLateIsNotCutForItsSilence(t *testing.T) {
	open := policy.Spec{Mode: policy.ModeCustom, DeniedDomains: []string{"bad.example"}}
	t.Parallel()
	r := newRig(t, open, func(c *Config) { c.SilenceTimeout = 10 * time.Millisecond })
	reached := make(chan struct{}, 4)
	server := r.httpOn(7009, reached)
	r.names.set("good.example", server.Addr())
	c := r.dial(server)
	<-reached // nobody has spoken
	request := func() string {
		_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: good.example:7009\r\n\r\n")
		line, _ := firstLine(c)
		for rest := line; strings.TrimSpace(rest) != ""; {
			rest, _ = firstLine(c)
		}
		return strings.TrimSpace(line)
	}
	if got := request(); got != "HTTP/1.1 204 No Content" {
		t.Fatalf("answered %q", got)
	}
	r.policy(allow("good.example"), nil) // which nameless connections are not
	r.p.Recheck("box1")
	if got := request(); got != "HTTP/1.1 204 No Content" {
		t.Errorf("after the change, answered %q", got)
	}
}

// The end of a request that was told as open is told by itself, whatever it ended with.
func TestEndOfAnOpenRequestIsNotThinned(t *testing.T) {
	t.Parallel()
	r := newRig(t, policy.Spec{Mode: policy.ModeAllowAll})
	s := r.p.core.NewSession(r.box, r.p.usages.Of(r.box), &live.Conn{Box: r.box}, nil)
	end := func(open bool) {
		var x exchange.Exchange
		x.Begin(s)
		if open {
			x.Event.Verdict = policy.Allow
			x.Under(x.Event.Addr, policy.Request{})
			r.want("the open event", func(e audit.Event) bool { return e.Phase == audit.PhaseOpen })
		}
		x.Refused(&problem.Problem{Status: 503, Reason: policy.ReasonLimit})
		x.End()
	}
	end(false)
	end(true)
	end(false)
	r.p.CloseBox("box1")
	r.want("the end", func(e audit.Event) bool { return e.Phase == audit.PhaseEnd && e.Reason == policy.ReasonLimit })
}
