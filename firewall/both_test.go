package firewall

import (
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/policy"
)

// The table and the routing rules are deleted together, in either order, and not restored for a while: no packet from a box
// leaves, with any source address. Neighbour entries stay, because otherwise some packets would only wait for them.
func TestNothingIsForwardedWithoutTableAndRoutingRules(t *testing.T) {
	const rules = "for f in -4 -6; do ip $f rule flush; ip $f rule add pref 0 table local; ip $f rule add pref 32766 table main; done"
	for name, damage := range map[string]string{
		"rules last":  "nft flush ruleset; " + rules,
		"rules first": rules + "; nft flush ruleset",
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.addBox("one", 10)
			w.apply("one", policy.KernelPlan{DefaultAllow: true, Denied: hosts(victims), Protected: guarded()})
			w.extraAddresses(metadata[1])
			w.pinNeighbours()
			stop := w.flood("one", append(victims, metadata...))
			passing := w.flowing("one", friends)
			w.wait("allowed packets pass", func() bool { return w.arrivedFrom(uplink4) && w.arrivedFrom(uplink6) })
			w.must(passing())
			for range 10 {
				w.shell(w.gateway, damage)
				w.forge(victims)
				w.shell(w.gateway, "ip -6 route get 2001:db8:2::7; ip route get 198.51.100.7") // the host itself is not affected
				time.Sleep(20 * time.Millisecond)
				w.must(w.fw.Restore(t.Context()))
			}
			if sent, arrived := stop(); arrived > 0 {
				t.Errorf("%d of %d packets arrived", arrived, sent)
			}
			if w.wire.find(func(p seenPacket) bool { return p.proto == unix.IPPROTO_UDP && p.src != uplink4 && p.src != uplink6 }) {
				t.Error("a packet left with another source than the host's")
			}
		})
	}
}

// pinNeighbours makes gateway and outside permanent neighbours of each other.
func (w *world) pinNeighbours() {
	w.t.Helper()
	w.shell(w.outside, "ip link set net0 address 02:00:00:00:00:02")
	w.shell(w.gateway, `ip link set up0 address 02:00:00:00:00:01
		ip neigh replace 203.0.113.10 lladdr 02:00:00:00:00:02 dev up0 nud permanent
		ip neigh replace 2001:db8:1::10 lladdr 02:00:00:00:00:02 dev up0 nud permanent`)
	w.shell(w.outside, `ip neigh replace 203.0.113.1 lladdr 02:00:00:00:00:01 dev net0 nud permanent
		ip neigh replace 2001:db8:1::1 lladdr 02:00:00:00:00:01 dev net0 nud permanent`)
}

func (w *world) arrivedFrom(src netip.Addr) bool {
	return w.wire.find(func(p seenPacket) bool { return p.src == src })
}

// forge sends from the box with sources that are not its own.
func (w *world) forge(to []netip.Addr) {
	w.t.Helper()
	for _, a := range to {
		src := netip.MustParseAddr("203.0.113.77")
		if a.Is6() {
			src = netip.MustParseAddr("2001:db8:7::7")
		}
		w.must(w.in(w.boxNS["one"], func() error { return sendFrom(src, netip.AddrPortFrom(a, floodPort)) }))
	}
}
