package proxy_test

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

	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy"
	"boxgate/proxy/proxytest"
)

// halting is a resolver whose lookups, once that is switched on, block until their contexts end.
type halting struct {
	*proxytest.Names
	mu      sync.Mutex
	halted  bool
	waiting chan struct{} // receives a value for each blocked lookup
}

func (h *halting) halt() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.halted = true
}

func (h *halting) Lookup(ctx context.Context, b *policy.Box, n name.Name) ([]netip.Addr, error) {
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
	return h.Names.Lookup(ctx, b, n)
}

func (h *halting) LookupBoth(ctx context.Context, b *policy.Box, n name.Name) ([]netip.Addr, error) {
	return h.Lookup(ctx, b, n)
}

// A request for a name whose DNS server is slow delays neither a change of the policy nor the removal of the box.
func TestAttackSlowNameHoldsUpNobody(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, cidr(netip.MustParseAddr("127.9.9.9")))
	slow := &halting{Names: r.Names, halted: true, waiting: make(chan struct{}, 1)}
	r.Resolver.Set(slow)
	c := proxytest.DialTo(t, r.Explicit())
	_, _ = io.WriteString(c, "GET http://slow.example/ HTTP/1.1\r\nHost: slow.example\r\n\r\n")
	<-slow.waiting
	began := time.Now()
	r.Proxy.CloseBox("box1")
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("the box was closed after %v", took)
	}
}

// While DNS does not answer, a change of the policy cuts only the connections that it concerns: the addresses of hosts with
// rules are still cached.
func TestSlowDNSCutsNoConnectionThatIsStillAllowed(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, policy.Spec{Mode: policy.ModeDenyAll})
	api, other := r.TLSServer("api.example"), r.TLSServer("other.example")
	slow := &halting{Names: r.Names}
	r.Resolver.Set(slow)
	r.Names.Set("api.example", api.Addr())
	r.Policy(judged(cidr(api.Addr(), other.Addr())), nil)
	c := tls.Client(r.Dial(other), &tls.Config{InsecureSkipVerify: true})
	if _, err := proxytest.FirstLine(c); err != nil {
		t.Fatal(err)
	}
	slow.halt()
	r.Core.Router.Refresh(r.Box.ID) // as if the cache had expired
	r.Policy(judged(cidr(api.Addr(), other.Addr(), netip.MustParseAddr("127.9.9.9"))), nil)
	r.Proxy.Recheck("box1")
	if !echoes(r, c) {
		t.Error("a connection that is still allowed was cut")
	}
}

// NAT64 (RFC 6052) gives a host a second address that need not occur in a DNS answer.
func TestAttackHostWithRulesByNAT64(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, policy.Spec{Mode: policy.ModeDenyAll})
	const plain, translated = "192.0.2.5", "64:ff9b::192.0.2.5"
	spec := judged(policy.Spec{Mode: policy.ModeCustom, AllowedCIDRs: []string{plain}})
	pol, err := policy.Compile(spec, policy.Options{Version: 1, Protected: name.NewProtected([]netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, nil)})
	if err != nil {
		t.Fatal(err)
	}
	to := netip.AddrPortFrom(netip.MustParseAddr(translated), 443)
	for what, set := range map[string]func(string, ...netip.Addr){"found": r.Names.Set, "told": r.Names.Grant} {
		r.Names.Forget()
		r.Names.Set("api.example")
		r.Core.Router.Forget(r.Box.ID)
		set("api.example", netip.MustParseAddr(plain))
		if d := pol.Decide(policy.Request{Stage: policy.StageConn, Addr: to.Addr(), Port: 443, Protocol: policy.TCP}); !d.Allowed() {
			t.Fatalf("%+v", d)
		}
		asked := policy.Request{Box: r.Box.ID, Addr: to.Addr(), Port: to.Port(), Protocol: policy.TCP}
		if rt := r.Core.Router.Route(t.Context(), pol, r.Box, asked, policy.Evidence{Opening: policy.OpeningTLS}); rt.Action != policy.Refuse {
			t.Errorf("%s at %s, but not recognized at %s", what, plain, translated)
		}
	}
}

// half is a resolver that returns one family and waits for the other.
type half struct{ *proxytest.Names }

func (h half) LookupBoth(ctx context.Context, b *policy.Box, n name.Name) ([]netip.Addr, error) {
	addrs, _ := h.Lookup(ctx, b, n)
	return addrs, errors.New("no answer for AAAA")
}

// If one family of a host with rules could not be resolved, any address of that family may be the host's.
func TestAttackHostWithRulesByTheFamilyThatDNSOwes(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, policy.Spec{Mode: policy.ModeDenyAll})
	trap := r.Trap(443)
	r.Resolver.Set(half{r.Names})
	r.Names.Set("api.example", netip.MustParseAddr("127.9.9.9"))
	r.Policy(judged(cidr(trap.Addr())), nil)
	if err := withoutName(r.Dial(trap)); err == nil {
		t.Error("the handshake succeeded")
	}
	r.WantReason(name.ReasonNoName)
}

// The decision for a silent client no longer counts after the client has sent a name.
func TestConnectionThatSpokeLateIsNotCutForItsSilence(t *testing.T) {
	open := policy.Spec{Mode: policy.ModeCustom, DeniedDomains: []string{"bad.example"}}
	t.Parallel()
	r := proxytest.New(t, open, func(c *proxy.Config) { c.SilenceTimeout = 10 * time.Millisecond })
	reached := make(chan struct{}, 4)
	server := httpOn(r, 7009, reached)
	r.Names.Set("good.example", server.Addr())
	c := r.Dial(server)
	<-reached // neither side has sent anything
	request := func() string {
		_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: good.example:7009\r\n\r\n")
		line, _ := proxytest.FirstLine(c)
		for rest := line; strings.TrimSpace(rest) != ""; {
			rest, _ = proxytest.FirstLine(c)
		}
		return strings.TrimSpace(line)
	}
	if got := request(); got != "HTTP/1.1 204 No Content" {
		t.Fatalf("answered %q", got)
	}
	r.Policy(proxytest.Allow("good.example"), nil) // which nameless connections do not match
	r.Proxy.Recheck("box1")
	if got := request(); got != "HTTP/1.1 204 No Content" {
		t.Errorf("after the change, answered %q", got)
	}
}
