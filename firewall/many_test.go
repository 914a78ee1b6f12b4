package firewall

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"boxgate/firewall/namespace"
	"boxgate/internal/nightly"
	"boxgate/policy"
)

// transactions returns how many nftables transactions the kernel commits in the gateway's namespace while f runs.
func (w *world) transactions(f func()) (n int) {
	w.t.Helper()
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: int(w.gateway)})
	w.must(err)
	defer func() { _ = c.Close() }()
	w.must(errors.Join(c.SetReadBuffer(namespace.SocketBuffer), c.JoinGroup(unix.NFNLGRP_NFTABLES)))
	f()
	w.shell(w.gateway, "nft add table ip end; nft delete table ip end")
	w.must(c.SetReadDeadline(time.Now().Add(time.Minute)))
	for {
		batch, err := c.Receive()
		w.must(err)
		for _, m := range batch {
			switch m.Header.Type {
			case unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWGEN:
				n++
			case unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_DELTABLE:
				return n
			}
		}
	}
}

// attachments returns n boxes with new namespaces.
func (w *world) attachments(n int) (list []Attachment, plans []Plan) {
	w.t.Helper()
	for i := range n {
		id, host := policy.BoxID(fmt.Sprintf("box%d", i)), byte(10+i)
		w.boxNS[id] = newNamespace(w.t)
		list = append(list, Attachment{Box: id, NetNS: fmt.Sprintf("/proc/self/fd/%d", int(w.boxNS[id])),
			V4: netip.AddrFrom4([4]byte{10, 77, 0, host}), V6: netip.MustParseAddr(fmt.Sprintf("fd77::%x", host))})
		plans = append(plans, Plan{id, allow("198.51.100.0/28")})
	}
	return list, plans
}

// Many boxes take as many transactions as few, when they are added, at a start, and at a full restore: the kernel checks
// each transaction against the rules of all boxes.
func TestManyBoxesTakeFewTransactions(t *testing.T) {
	nightly.Root(t)
	var counts [2][3]int
	t.Run("worlds", func(t *testing.T) {
		for i, n := range []int{5, 50} {
			t.Run(fmt.Sprint(n), func(t *testing.T) {
				w := newWorld(t)
				server := w.serveTCP(w.outside, ":0", nil)
				list, plans := w.attachments(n)
				for start := range 2 {
					counts[i][start] = w.transactions(func() {
						errs := append(w.fw.AddBoxes(t.Context(), list), w.fw.ApplyAll(t.Context(), plans)...)
						w.must(errors.Join(append(errs, w.fw.CutAllFlows(t.Context(), func(policy.BoxID, Flow) bool { return true }))...))
					})
					for _, a := range []Attachment{list[0], list[n-1]} {
						w.must(w.fw.AwaitBox(t.Context(), a.Box))
						w.wait("the way of "+string(a.Box), func() bool { return w.reaches(a.Box, netip.AddrPortFrom(outside4, server.Port())) })
						if w.reaches(a.Box, netip.AddrPortFrom(netip.MustParseAddr("203.0.113.10"), server.Port())) {
							t.Errorf("%s reaches a forbidden address", a.Box)
						}
					}
					w.must(w.fw.Close())
					w.open()
				}
				w.must(errors.Join(append(w.fw.AddBoxes(t.Context(), list), w.fw.ApplyAll(t.Context(), plans)...)...))
				counts[i][2] = w.transactions(func() { w.must(w.fw.Restore(t.Context())) })
				w.wait("the way of "+string(list[n-1].Box), func() bool { return w.reaches(list[n-1].Box, netip.AddrPortFrom(outside4, server.Port())) })
			})
		}
	})
	if counts[0] != counts[1] || counts[0][0] == 0 {
		t.Errorf("transactions for 5 boxes and for 50, when they are new, at a start, and when all is restored: %v", counts)
	}
}

// A box that cannot be added, or whose plan must not be applied, does not affect the others.
func TestOneOfManyBoxesFailsAlone(t *testing.T) {
	w := newWorld(t)
	list, plans := w.attachments(5)
	list[1].NetNS = "/proc/self/fd/9999"
	list[2].V4 = list[0].V4
	plans[3].Protected = nil
	list[4].NetNS = list[0].NetNS
	twice := append(slices.Clone(list), list[0])
	twice[5].V4, twice[5].V6 = netip.MustParseAddr("10.77.0.99"), netip.MustParseAddr("fd77::99")
	added := w.fw.AddBoxes(t.Context(), twice)
	applied := w.fw.ApplyAll(t.Context(), plans)
	for i, want := range [][2]bool{{true, true}, {false, false}, {false, false}, {true, false}, {false, false}} {
		if (added[i] == nil) != want[0] || (applied[i] == nil) != want[1] {
			t.Errorf("%s: %v, %v", list[i].Box, added[i], applied[i])
		}
	}
	if err := added[5]; err == nil {
		t.Error("a box was added twice")
	}
	if err := added[4]; err == nil || !strings.Contains(err.Error(), "belongs to box box0") {
		t.Errorf("a box in the namespace of another: %v", err)
	}
}

// The connections of all boxes are cut with one read of the table, each by the policy of its own box.
func TestConnectionsOfAllBoxesAreCut(t *testing.T) {
	w := newWorld(t)
	server := w.serveTCP(w.outside, ":0", nil)
	for i, id := range []policy.BoxID{"one", "two"} {
		w.addBox(id, byte(10+i))
		w.apply(id, allow("198.51.100.0/28"))
		c, err := w.dial(w.boxNS[id], "tcp", netip.AddrPortFrom(outside4, server.Port()))
		w.must(err)
		t.Cleanup(func() { _ = c.Close() })
	}
	asked := map[policy.BoxID]int{}
	look := func() {
		t.Helper()
		clear(asked)
		w.must(w.fw.CutAllFlows(t.Context(), func(id policy.BoxID, f Flow) bool {
			if f.Dst.Addr() == outside4 && f.Protocol == policy.TCP {
				asked[id]++
			}
			return id == "one"
		}))
	}
	if look(); asked["one"] != 1 || asked["two"] != 1 {
		t.Errorf("connections that were judged: %v", asked)
	}
	if look(); asked["one"] != 1 || asked["two"] != 0 {
		t.Errorf("connections that are left: %v", asked)
	}
}
