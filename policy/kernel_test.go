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

// simulate carries out the plan as its comment says.
func simulate(p KernelPlan, a netip.Addr, port uint16, proto Protocol) fate {
	in := func(list []netip.Prefix) bool {
		return slices.ContainsFunc(list, func(q netip.Prefix) bool { return q.Contains(a) })
	}
	switch {
	case in(p.Protected), in(p.Denied):
		return refused
	case in(p.Allowed), p.DefaultAllow:
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

// FuzzKernelPlan compares the plan with Decide: what the kernel forwards without asking must be allowed, under whatever
// name the box may have had in mind, and nothing that a header or request rule must see may pass.
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
