package rules

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"go.uber.org/zap"

	"boxgate/config"
	"boxgate/firewall"
	"boxgate/host/netns"
	"boxgate/internal/nightly"
	"boxgate/policy"
	"boxgate/policy/name"
)

// protectionOf returns the protection of a host's addresses in two boxes.
func protectionOf(g *gateway, list func() ([]netip.Addr, error)) *Protection {
	g.addBox("b1")
	g.addBox("b2")
	return &Protection{log: zap.NewNop(), policies: g.Service, list: list, addrs: config.Addresses{
		PoolV4: netip.MustParsePrefix("8.8.8.0/24"), PoolV6: netip.MustParsePrefix("2001:4860::/64"),
	}}
}

// While the host's addresses change so fast that no listing is complete, every address seen stays protected, and new ones
// become protected. Once a complete listing succeeds, it counts alone.
func TestAddressesAreProtectedWhileTheyChange(t *testing.T) {
	t.Parallel()
	one, two, three := netip.MustParseAddr("9.9.9.1"), netip.MustParseAddr("9.9.9.2"), netip.MustParseAddr("9.9.9.3")
	var lists [][]netip.Addr
	var bad error
	p := protectionOf(newGateway(t), func() ([]netip.Addr, error) {
		list := lists[0]
		lists = lists[1:]
		return list, bad
	})
	for what, c := range []struct {
		list []netip.Addr
		bad  error
		want []netip.Addr
	}{
		{[]netip.Addr{one}, nil, []netip.Addr{one}},
		{[]netip.Addr{two}, firewall.ErrAddressesChanging, []netip.Addr{one, two}},
		{[]netip.Addr{three}, firewall.ErrAddressesChanging, []netip.Addr{one, two, three}},
		{nil, errFake, []netip.Addr{one, two, three}},
		{[]netip.Addr{two}, nil, []netip.Addr{two}},
	} {
		lists, bad = [][]netip.Addr{c.list}, c.bad
		if err := p.Update(t.Context()); !errors.Is(err, c.bad) {
			t.Errorf("%d: %v, want %v", what, err, c.bad)
		}
		for _, id := range []policy.BoxID{"b1", "b2"} {
			b, err := p.policies.boxes.Find(id)
			if err != nil {
				t.Fatal(err)
			}
			for _, a := range []netip.Addr{one, two, three} {
				d := b.Policy.Load().Decide(policy.Request{Stage: policy.StageKernel, Box: id, Addr: a, Port: 4444, Protocol: policy.UDP})
				if got := d.Reason == name.ReasonProtectedRange; got != slices.Contains(c.want, a) {
					t.Errorf("%d: %v is protected in %s: %v", what, a, id, got)
				}
			}
		}
	}
}

// manyAddresses is a host whose addresses are set by the test.
type manyAddresses struct {
	*netns.Net
	t  *testing.T
	nl *netlink.Handle
	lo netlink.Link
}

func newManyAddresses(t *testing.T) *manyAddresses {
	t.Helper()
	nightly.Root(t)
	n, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close() })
	m := &manyAddresses{Net: n, t: t}
	if err := n.Do(func() (err error) {
		if m.nl, err = netlink.NewHandle(); err == nil {
			m.lo, err = m.nl.LinkByIndex(1)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.nl.Close)
	return m
}

// address returns the i-th address.
func (m *manyAddresses) address(i uint32) netip.Addr {
	return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, 9<<24+i)))
}

// add adds the i-th address to the host.
func (m *manyAddresses) add(i uint32) {
	m.t.Helper()
	a := m.address(i)
	if err := m.nl.AddrAdd(m.lo, &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(32, 32)}}); err != nil {
		m.t.Fatal(err)
	}
}

// Addresses that appear while earlier ones are being protected are protected next, however many there are.
func TestAddressesThatComeAtOnceAreProtected(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	m, p := newManyAddresses(t), protectionOf(g, firewall.HostAddresses)
	const many, more = 2000, 200 // more than the kernel queues for a slow reader
	busy, goOn, protected := make(chan struct{}, 1), make(chan struct{}), make(chan netip.Addr, 1000)
	var want atomic.Pointer[netip.Addr]
	g.kernel.Before = func(_ policy.BoxID, plan policy.KernelPlan) error {
		select {
		case busy <- struct{}{}:
			<-goOn
		default:
		}
		if a := want.Load(); a != nil && slices.ContainsFunc(plan.Protected, func(p netip.Prefix) bool { return p.Contains(*a) }) {
			protected <- *a
		}
		return nil
	}
	ctx, stop := context.WithCancel(t.Context())
	followed := make(chan error, 1)
	go func() { followed <- m.Do(func() error { return p.Follow(ctx) }) }()
	<-busy
	for i := range uint32(many) {
		m.add(i)
	}
	close(goOn)
	for i := range uint32(more) {
		hang := time.After(time.Minute) // for one address, not for all
		next := m.address(many + i)
		want.Store(&next)
		m.add(many + i)
		for is := false; !is; {
			select {
			case a := <-protected:
				is = a == next
			case err := <-followed:
				t.Fatalf("Follow returned: %v", err)
			case <-hang:
				t.Fatal("a new one is not protected")
			}
		}
	}
	stop()
	if err := <-followed; err != nil {
		t.Error(err)
	}
}

// Service addresses that are public, as in some managed clusters, are protected like private ones, also in NAT64 form, for the proxies of
// policies and of rules that forward.
func TestPublicServicesOfAClusterAreProtected(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	domain, err := name.Parse("cluster.local")
	if err != nil {
		t.Fatal(err)
	}
	service := netip.MustParsePrefix("34.118.224.0/20")
	g.Service.shared.WithCluster(policy.NewCluster(domain, []netip.Prefix{service}))
	p := protectionOf(g, func() ([]netip.Addr, error) { return []netip.Addr{netip.MustParseAddr("9.9.9.1")}, nil })
	if err := p.Update(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, spec := range []policy.Spec{{Mode: policy.ModeAllowAll, UpstreamProxy: &policy.UpstreamSpec{URL: "http://34.118.224.1:3128"}}, {Mode: policy.ModeCustom, AllowedCIDRs: []string{"34.0.0.0/8"}}, {Mode: policy.ModeCustom, DeniedDomains: []string{"x.example"}}} {
		in := g.Service.shared.sharedInputs()
		c, err := policy.Compile(spec, policy.Options{Version: 1, Protected: in.protected, Cluster: in.cluster})
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range []string{"34.118.224.1", "64:ff9b::34.118.224.1"} {
			addr := netip.MustParseAddr(a)
			if d := c.Decide(policy.Request{Stage: policy.StageConn, Addr: addr, Port: 443, Protocol: policy.TCP}); d.Reason != name.ReasonProtectedRange {
				t.Errorf("%s: %v: %s %s", spec.Mode, a, d.Verdict, d.Reason)
			}
			plan := c.Kernel()
			for _, protocol := range []policy.Protocol{policy.TCP, policy.UDP, policy.ICMP} {
				if fate := plan.Fate(addr, 443, protocol); fate != policy.Refused {
					t.Errorf("%s: the kernel: %s to %v: %v", spec.Mode, protocol, a, fate)
				}
			}
			if _, in := in.protected.Forwarding().Contains(addr); !in {
				t.Errorf("rules forward to %v", a)
			}
		}
	}
	if _, in := g.Service.shared.sharedInputs().protected.Contains(netip.MustParseAddr("34.118.0.1")); in {
		t.Error("an address beside the services is protected")
	}
}
