package policy

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"boxgate/internal/nightly"
	"boxgate/policy/name"
)

// fate is what happens to a packet in the kernel.
type fate string

const (
	refused   fate = "refused"
	forwarded fate = "forwarded"
	steered   fate = "steered"
)

// simulate applies a plan as the comment of [KernelPlan] describes.
func simulate(p KernelPlan, a netip.Addr, port uint16, proto Protocol) fate {
	in := func(list []netip.Prefix) bool {
		return slices.ContainsFunc(list, func(q netip.Prefix) bool { return q.Contains(a) })
	}
	switch {
	case in(p.Protected), in(p.Denied):
		return refused
	case p.DefaultAllow && !in(p.Allowed):
		switch {
		case proto == TCP && p.SteerOther.Contains(port):
			return steered
		case proto == UDP && (p.RejectUDP.Contains(port) || p.RejectOther.Contains(port)):
			return refused
		}
		return forwarded
	case in(p.Allowed):
		switch {
		case proto == TCP && p.SteerAllowed.Contains(port):
			return steered
		case proto == UDP && p.RejectUDP.Contains(port):
			return refused
		}
		return forwarded
	case proto == TCP && p.SteerOther.Contains(port):
		return steered
	}
	return refused
}

// FuzzKernelPlan compares the plan with Decide. A packet that the kernel forwards must be allowed under every name that the box
// may have meant, and must not belong to a request that header or request rules apply to.
func FuzzKernelPlan(f *testing.F) {
	for seed := range nightly.Size[uint64](30, 300) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		r := random{rand.New(rand.NewPCG(seed, 2))}
		in := r.interpreter()
		c := in.compile()
		if c == nil {
			return
		}
		plan := c.Kernel()
		checkShape(t, plan)
		for range 50 {
			a := netip.MustParseAddr(pick(r, someAddrs)).WithZone("")
			port, proto := pick(r, somePorts), pick(r, []Protocol{TCP, UDP, ICMP})
			checkFate(t, in, c, a, port, proto)
		}
	})
}

func checkFate(t *testing.T, in interpreter, c *Compiled, a netip.Addr, port uint16, proto Protocol) {
	t.Helper()
	got := simulate(c.Kernel(), a, port, proto)
	plan := c.Kernel()
	if want := map[fate]Fate{refused: Refused, forwarded: Forwarded, steered: Steered}[got]; !a.Is4In6() && plan.Fate(a, port, proto) != want {
		t.Fatalf("%+v: %s %s port %d: Fate is %v, want %s", c.Spec(), proto, a, port, plan.Fate(a, port, proto), got)
	}
	req := Request{Stage: StageKernel, Addr: a, Port: port, Protocol: proto}
	d := c.Decide(req)
	if got == forwarded && !d.Allowed() {
		t.Fatalf("%+v: the kernel forwards %s %s port %d, which is %s", c.Spec(), proto, a, port, d.Reason)
	}
	if got == refused && d.Allowed() && !a.Is4In6() {
		t.Fatalf("%+v: the kernel refuses %s %s port %d, which is %s", c.Spec(), proto, a, port, d.Reason)
	}
	if proto != TCP {
		return
	}
	for _, s := range someNames {
		req.Name, _ = name.Parse(s)
		req.Stage = StageConn
		if got == forwarded && !c.Decide(req).Allowed() {
			t.Fatalf("%+v: the kernel forwards %s port %d, which is denied as %s", c.Spec(), a, port, s)
		}
		if got == forwarded && c.Intercepts(req.Name, port) {
			t.Fatalf("%+v: the kernel forwards %s port %d past the rules for %s", c.Spec(), a, port, s)
		}
		if got == refused && c.Decide(req).Allowed() && !a.Is4In6() {
			t.Fatalf("%+v: the kernel refuses %s port %d, which is allowed as %s", c.Spec(), a, port, s)
		}
		if (port == 443 || in.ruledPort(port)) && c.Intercepts(req.Name, port) && simulate(c.Kernel(), a, port, UDP) == forwarded {
			t.Fatalf("%+v: QUIC to %s passes the rules for %s", c.Spec(), a, s)
		}
	}
}

// checkShape checks that the lists suit the kernel's interval sets.
func checkShape(t *testing.T, p KernelPlan) {
	t.Helper()
	for _, list := range [][]netip.Prefix{p.Allowed, p.Denied, p.Protected} {
		for i, q := range list {
			if q != q.Masked() {
				t.Fatalf("%s is not masked", q)
			}
			for _, other := range list[:i] {
				if q.Overlaps(other) {
					t.Fatalf("%s and %s overlap", other, q)
				}
			}
		}
	}
	for _, s := range []name.PortSet{p.SteerAllowed, p.SteerOther} {
		if !slices.IsSorted(s.Ports) || len(slices.Compact(slices.Clone(s.Ports))) != len(s.Ports) || s.All && len(s.Ports) > 0 {
			t.Fatalf("bad port set %+v", s)
		}
	}
}

// FuzzLoosens holds Loosens to its word: after a change that it calls looser, everything that the kernel forwarded before
// is forwarded, and allowed, still.
func FuzzLoosens(f *testing.F) {
	for seed := range nightly.Size[uint64](200, 2000) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		r := random{rand.New(rand.NewPCG(seed, 7))}
		old, next := r.change()
		for range 50 {
			if old == nil || next == nil {
				return
			}
			a := netip.MustParseAddr(pick(r, someAddrs)).WithZone("")
			checkLoosens(t, old, next, a, pick(r, somePorts), pick(r, []Protocol{TCP, UDP, ICMP}))
		}
	})
}

// What FuzzLoosens draws is called looser often enough to mean something.
func TestLoosensHoldsOfManyChanges(t *testing.T) {
	t.Parallel()
	looser, all := 0, 0
	for seed := range nightly.Size[uint64](200, 2000) {
		r := random{rand.New(rand.NewPCG(seed, 7))}
		if old, next := r.change(); old != nil && next != nil {
			all++
			if Loosens(old.Kernel(), next.Kernel()) {
				looser++
			}
		}
	}
	if looser < all/20 {
		t.Errorf("%d of %d changes", looser, all)
	}
}

// change draws a policy and the one that replaces it; nil is no valid policy.
func (r random) change() (old, next *Compiled) {
	in := r.interpreter()
	return in.compile(), r.relative(in).compile()
}

// relative is a policy that has something in common with another.
func (r random) relative(in interpreter) interpreter {
	other := r.interpreter()
	for _, take := range []func(){
		func() { other.spec.Mode = in.spec.Mode },
		func() {
			other.spec.AllowedCIDRs = append(slices.Clone(in.spec.AllowedCIDRs), other.spec.AllowedCIDRs...)
		},
		func() { other.spec.DeniedCIDRs = in.spec.DeniedCIDRs[:r.IntN(len(in.spec.DeniedCIDRs)+1)] },
		func() { other.spec.DeniedDomains = in.spec.DeniedDomains },
		func() { other.spec.Rules = in.spec.Rules },
		func() { other.headers = in.headers },
		func() { other.exempt, other.own = in.exempt, in.own },
	} {
		if r.IntN(4) > 0 {
			take()
		}
	}
	return other
}

func checkLoosens(t *testing.T, old, next *Compiled, a netip.Addr, port uint16, proto Protocol) {
	t.Helper()
	if a.Is4In6() {
		return // never on the wire
	}
	before := simulate(old.Kernel(), a, port, proto) == forwarded
	if before != old.Forwards(a, port, proto) {
		t.Fatalf("%+v: %s %s port %d: Forwards is %v, unlike the plan", old.Spec(), proto, a, port, !before)
	}
	if !before || !Loosens(old.Kernel(), next.Kernel()) {
		return
	}
	request := Request{Stage: StageKernel, Addr: a, Port: port, Protocol: proto}
	if simulate(next.Kernel(), a, port, proto) != forwarded || !next.Forwards(a, port, proto) || !next.Decide(request).Allowed() {
		t.Fatalf("%+v is called looser than %+v, but does not forward %s %s port %d", next.Spec(), old.Spec(), proto, a, port)
	}
}

func TestLoosensErrsOnTheSideOfFalse(t *testing.T) {
	t.Parallel()
	list := func(ps ...string) (out []netip.Prefix) {
		for _, p := range ps {
			out = append(out, netip.MustParsePrefix(p))
		}
		return out
	}
	base := KernelPlan{Allowed: list("192.0.2.0/25"), Denied: list("192.0.2.7/32"), SteerAllowed: name.PortSet{Ports: []uint16{443}},
		RejectUDP: name.PortSet{Ports: []uint16{443}}}
	for label, c := range map[string]struct {
		change func(*KernelPlan)
		want   bool
	}{
		"nothing":            {func(*KernelPlan) {}, true},
		"a wider network":    {func(p *KernelPlan) { p.Allowed = list("192.0.2.0/24") }, true},
		"one more":           {func(p *KernelPlan) { p.Allowed = list("192.0.2.0/25", "2001:db8::/32") }, true},
		"everything":         {func(p *KernelPlan) { p.Allowed, p.DefaultAllow = nil, true }, true},
		"nothing denied":     {func(p *KernelPlan) { p.Denied = nil }, true},
		"less denied":        {func(p *KernelPlan) { p.RejectUDP = name.PortSet{} }, true},
		"a narrower network": {func(p *KernelPlan) { p.Allowed = list("192.0.2.0/26") }, false},
		"another network":    {func(p *KernelPlan) { p.Allowed = list("192.0.1.0/24", "192.0.2.128/25") }, false},
		"unsorted":           {func(p *KernelPlan) { p.Allowed = list("203.0.113.0/24", "198.51.100.0/24", "192.0.2.0/24") }, false},
		"one more denied":    {func(p *KernelPlan) { p.Denied = list("192.0.2.7/32", "192.0.2.8/32") }, false},
		"protected":          {func(p *KernelPlan) { p.Protected = list("192.0.2.1/32") }, false},
		"steered":            {func(p *KernelPlan) { p.SteerAllowed = name.PortSet{All: true} }, false},
		"another port":       {func(p *KernelPlan) { p.SteerAllowed = name.PortSet{Ports: []uint16{443, 8443}} }, false},
		"rejected":           {func(p *KernelPlan) { p.RejectUDP = name.PortSet{Ports: []uint16{53, 443}} }, false},
	} {
		next := base
		c.change(&next)
		if got := Loosens(base, next); got != c.want {
			t.Errorf("%s: %v", label, got)
		}
	}
	if open, shut := (KernelPlan{DefaultAllow: true}), (KernelPlan{}); Loosens(open, shut) || !Loosens(shut, open) {
		t.Error("the default is not compared")
	}
}
