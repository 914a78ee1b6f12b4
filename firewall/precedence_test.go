package firewall

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"boxgate/internal/nightly"
	"boxgate/policy"
	"boxgate/policy/name"
)

// specific compiles a policy with precedence: specific. The outside and the marker can be allowed.
func specific(t *testing.T, allowed, denied []string) policy.KernelPlan {
	t.Helper()
	c, err := policy.Compile(
		policy.Spec{Mode: policy.ModeCustom, Precedence: policy.PrecedenceSpecific, AllowedCIDRs: append(allowed, marker4.String()), DeniedCIDRs: denied},
		policy.Options{Version: 1, Protected: name.NewProtected(prefixes("198.51.100.0/24", "2001:db8:2::/48"), nil)})
	if err != nil {
		t.Fatal(err)
	}
	return c.Kernel()
}

// longest interprets precedence: specific: the longest prefix of the lists that contains an address decides, and a denied one among
// equals.
func longest(allowed, denied []string, a netip.Addr) bool {
	length := func(list []string) int {
		most := -1
		for _, p := range prefixes(list...) {
			if p.Contains(a) {
				most = max(most, p.Bits())
			}
		}
		return most
	}
	return length(allowed) > length(denied)
}

// nested draws prefixes of both families around few addresses, so that they often contain each other.
func nested(r *rand.Rand, most int) (list []string) {
	for range r.IntN(most + 1) {
		a, bits := netip.AddrFrom4([4]byte{198, 51, 100, byte(r.IntN(16))}), 24+r.IntN(9)
		if r.IntN(2) == 0 {
			a, bits = netip.MustParseAddr(fmt.Sprintf("2001:db8:2::%x", r.IntN(16))), 120+r.IntN(9)
		}
		list = append(list, netip.PrefixFrom(a, bits).Masked().String())
	}
	return list
}

// TestKernelTakesTheLongestPrefix sends packets of a box through the rules of random policies with precedence: specific. Exactly the
// ones that an interpreter of these policies allows reach the outside.
func TestKernelTakesTheLongestPrefix(t *testing.T) {
	w := newWorld(t)
	w.addBox("one", 10)
	r := rand.New(rand.NewPCG(34, 3))
	allows, exceptions := 0, 0
	for round := range nightly.Size(12, 200) {
		allowed, denied := nested(r, 8), nested(r, 6)
		w.apply("one", specific(t, allowed, denied))
		word := func(a netip.Addr) string { return fmt.Sprintf("round %d to %v.", round, a) }
		send := func(a netip.Addr) {
			fd, to := w.sender("one", a)
			_ = unix.Sendto(fd, []byte(word(a)), 0, to) // an error may report a denied packet
			_ = unix.Close(fd)
		}
		var sent []netip.Addr
		for i := range 16 {
			for _, a := range []netip.Addr{netip.AddrFrom4([4]byte{198, 51, 100, byte(i)}), netip.MustParseAddr(fmt.Sprintf("2001:db8:2::%x", i))} {
				send(a)
				sent = append(sent, a)
			}
		}
		w.flushWire("one")
		for _, a := range sent {
			arrived := func() bool {
				return w.wire.find(func(p seenPacket) bool { return p.dst == a && strings.HasSuffix(string(p.raw), word(a)) })
			}
			switch want := longest(allowed, denied, a); {
			case want:
				w.wait(fmt.Sprintf("a packet to %v under allowed %v and denied %v", a, allowed, denied), func() bool {
					if !arrived() {
						send(a) // a busy host may have dropped it
						return false
					}
					return true
				})
				allows++
				if within(denied, a) {
					exceptions++
				}
			case arrived():
				t.Errorf("allowed %v, denied %v: a packet to %v reached the outside", allowed, denied, a)
			}
		}
	}
	if allows == 0 || exceptions == 0 {
		t.Errorf("%d packets were allowed, %d of them as exceptions", allows, exceptions)
	}
}

func within(list []string, a netip.Addr) bool {
	for _, p := range prefixes(list...) {
		if p.Contains(a) {
			return true
		}
	}
	return false
}
