package firewall

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"boxgate/policy"
	"boxgate/policy/name"
)

// Additional addresses of the gateway's uplink.
var (
	first  = policy.Source{V4: netip.MustParseAddr("203.0.113.21"), V6: netip.MustParseAddr("2001:db8:1::21")}
	second = policy.Source{V4: netip.MustParseAddr("203.0.113.22"), V6: netip.MustParseAddr("2001:db8:1::22")}
)

// sourced returns a plan that allows the outside, with a source address.
func sourced(s policy.Source) policy.KernelPlan {
	plan := allow("198.51.100.0/25", "2001:db8:2::/64")
	plan.Sourced, plan.Source = true, s
	return plan
}

// sourcedWorld has these addresses on its uplink.
func sourcedWorld(t *testing.T) *world {
	w := newWorld(t)
	for _, a := range []string{"203.0.113.21/24", "203.0.113.22/24", "2001:db8:1::21/64", "2001:db8:1::22/64"} {
		w.shell(w.gateway, "ip addr add "+a+" dev up0 "+aside(a))
	}
	w.must(w.fw.Close())
	w.cfg.Sources = append(first.Addrs(), second.Addrs()...)
	w.open()
	return w
}

// aside returns the options to add an IPv6 address that the host itself does not choose as a source.
func aside(a string) string {
	if strings.Contains(a, ":") {
		return "nodad preferred_lft 0"
	}
	return ""
}

// leavesFrom returns the source addresses that servers outside see for a box, by TCP and UDP, over a family.
func (w *world) leavesFrom(id policy.BoxID, to netip.Addr, most time.Duration) map[string]bool {
	seen := map[string]bool{}
	for network, server := range map[string]netip.AddrPort{
		"tcp": netip.AddrPortFrom(to, w.serveTCP(w.outside, ":0", nil).Port()), "udp": w.serveUDP(w.outside, netip.AddrPortFrom(to, 0).String()),
	} {
		answer, err := w.exchangeWithin(most, w.boxNS[id], network, server, "hello")
		if err != nil {
			seen["nothing"] = true
			continue
		}
		peer, err := netip.ParseAddrPort(strings.Fields(answer)[0])
		w.must(err)
		seen[peer.Addr().Unmap().String()] = true
	}
	return seen
}

func (w *world) expectSource(id policy.BoxID, when string, to, want netip.Addr) {
	w.t.Helper()
	text, most := "nothing", 200*time.Millisecond // also checks the wire
	if want.IsValid() {
		text, most = want.String(), 5*time.Second
	}
	if seen := w.leavesFrom(id, to, most); len(seen) != 1 || !seen[text] {
		w.t.Errorf("%s: box %s leaves for %v from %v, want %s", when, id, to, seen, text)
	}
}

// Forwarded traffic of a box leaves from the box's own source address, over TCP and UDP and in both families, and that of
// other boxes from theirs: after a change, after a restart, and after other programs flushed the rules. In a family without
// an address, no packet leaves.
func TestForwardedTrafficLeavesFromTheBoxesSource(t *testing.T) {
	w := sourcedWorld(t)
	for id, n := range map[policy.BoxID]byte{"one": 10, "two": 11, "plain": 12} {
		w.addBox(id, n)
	}
	w.apply("one", sourced(first))
	w.apply("two", sourced(second))
	w.apply("plain", allow("198.51.100.0/25", "2001:db8:2::/64"))
	agree := func(when string, one policy.Source) {
		t.Helper()
		for _, to := range []netip.Addr{outside4, outside6} {
			from, _ := one.For(to)
			w.expectSource("one", when, to, from)
			from, _ = second.For(to)
			w.expectSource("two", when, to, from)
		}
		w.expectSource("plain", when, outside4, uplink4)
		w.expectSource("plain", when, outside6, uplink6)
	}
	agree("at first", first)
	w.apply("one", sourced(second))
	agree("after a change", second)
	w.apply("one", sourced(policy.Source{V4: first.V4}))
	agree("with one family", policy.Source{V4: first.V4})
	w.must(w.fw.Close())
	w.open()
	agree("after a restart", policy.Source{V4: first.V4})
	for id, n := range map[policy.BoxID]byte{"one": 10, "two": 11, "plain": 12} {
		w.addBox(id, n)
	}
	agree("adopted", policy.Source{V4: first.V4})
	w.apply("one", sourced(first))
	w.apply("two", sourced(second))
	w.apply("plain", allow("198.51.100.0/25", "2001:db8:2::/64"))
	agree("applied again", first)
	w.flushRuleset()
	w.must(w.fw.Restore(context.Background()))
	agree("after a flush", first)
	w.apply("one", allow("198.51.100.0/25", "2001:db8:2::/64"))
	w.expectSource("one", "without sources", outside4, uplink4)
	w.must(w.fw.RemoveBox(context.Background(), "one"))
	w.must(w.fw.RemoveBox(context.Background(), "two"))
	w.addBox("three", 11)
	w.apply("three", allow("198.51.100.0/25", "2001:db8:2::/64"))
	w.expectSource("three", "with the address of a removed box", outside4, uplink4)
}

// If the host has lost a source address, it is not replaced by another: no packet leaves, not even from the lost one. The
// same if another program deleted its map element.
func TestAttackByALostSource(t *testing.T) {
	w := sourcedWorld(t)
	w.addBox("one", 10)
	w.apply("one", sourced(first))
	w.expectSource("one", "before", outside4, first.V4)
	talk, err := w.dial(w.boxNS["one"], "udp", w.serveUDP(w.outside, netip.AddrPortFrom(outside4, 0).String()))
	w.must(err)
	if _, err := ask(talk, "hello"); err != nil {
		t.Fatal(err)
	}
	nothing := func(when string) {
		t.Helper()
		w.flushWireFrom(w.gateway)
		seen := len(w.wire.to(outside4, outside6))
		_, err := talk.Write([]byte("lost"))
		for _, to := range []netip.Addr{outside4, outside6} {
			w.expectSource("one", when, to, netip.Addr{})
		}
		w.flushWireFrom(w.gateway)
		if now := w.wire.to(outside4, outside6); len(now) != seen {
			t.Errorf("%s: there left %+v, after %v", when, now[seen:], err)
		}
	}
	w.shell(w.gateway, "ip addr del 203.0.113.21/24 dev up0; ip addr del 2001:db8:1::21/64 dev up0")
	nothing("without the addresses")
	if w.count("absent") == 0 {
		t.Error("dropped packets are not counted")
	}
	w.shell(w.gateway, "ip addr add 203.0.113.21/24 dev up0; ip addr add 2001:db8:1::21/64 dev up0 nodad preferred_lft 0")
	w.expectSource("one", "with the addresses", outside4, first.V4)
	w.must(w.fw.CutFlows(context.Background(), "one", func(Flow) bool { return false }))
	w.shell(w.gateway, "nft flush map inet boxgate leaves4; nft flush map inet boxgate leaves6")
	nothing("without the elements")
	if w.count("refused_"+string(name.ReasonSourceAddress)) == 0 {
		t.Error("refused packets are not counted")
	}
}

// to returns the packets to the addresses, without ICMP errors about them.
func (w *wire) to(list ...netip.Addr) (n []seenPacket) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.seen {
		for _, a := range list {
			if p.dst == a && !slices.Contains(list, p.src) {
				n = append(n, p)
			}
		}
	}
	return n
}
