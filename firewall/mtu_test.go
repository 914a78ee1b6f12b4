package firewall

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"boxgate/firewall/link"
	"boxgate/firewall/network"
	"boxgate/policy"
)

// mtu returns the MTU of an interface.
func (w *world) mtu(ns netns.NsHandle, name string) int {
	w.t.Helper()
	h, err := netlink.NewHandleAt(ns)
	w.must(err)
	defer h.Close()
	l, err := h.LinkByName(name)
	w.must(err)
	return l.Attrs().MTU
}

// A box's link has the MTU of the uplink from the first packet on, and follows it, but is always large enough for IPv6.
func TestLinksHaveTheMTUOfTheUplink(t *testing.T) {
	w := newWorld(t)
	w.shell(w.gateway, "ip link set up0 mtu 1400")
	w.wait("the gateway sees it", func() bool { return w.mtu(w.gateway, "up0") == 1400 })
	w.fw.links.MeasureUplink()
	w.addBox("one", 10)
	w.apply("one", allow("198.51.100.0/28"))
	have := func(id policy.BoxID) [2]int {
		return [2]int{w.mtu(w.gateway, network.LinkName(id)), w.mtu(w.boxNS[id], link.Inside)}
	}
	if got := have("one"); got != [2]int{1400, 1400} {
		t.Errorf("a new box has %v", got)
	}
	server := w.serveUDP(w.outside, "198.51.100.7:0")
	w.watch()
	for _, c := range []struct {
		change string
		want   int
	}{
		{"ip link set up0 mtu 9000", 9000}, {"ip link set up0 mtu 1420", 1420}, {"ip link set up0 mtu 1000", 1280},
		{"ip link add up1 mtu 1350 type veth peer name peer1; ip link set up1 up; ip link set peer1 up; ip route replace default dev up1", 1350},
		{"ip link set up0 mtu 1500; ip link del up1; ip route replace default via 203.0.113.10 dev up0", 1500},
	} {
		w.shell(w.gateway, c.change)
		w.wait(fmt.Sprintf("%q makes it %d", c.change, c.want), func() bool { return have("one") == [2]int{c.want, c.want} })
	}
	w.addBox("two", 11)
	if got := have("two"); got != [2]int{1500, 1500} {
		t.Errorf("a later box has %v", got)
	}
	w.shell(w.outside, "ip link set net0 mtu 9000")
	w.shell(w.gateway, "ip link set up0 mtu 9000")
	w.wait("both follow", func() bool { return have("one") == [2]int{9000, 9000} && have("two") == [2]int{9000, 9000} })
	word := strings.Repeat("x", 1700) // more than 1,500 in one packet: fragments are refused
	if got, err := w.exchange(w.boxNS["one"], "udp", server, word); err != nil || !strings.HasSuffix(got, word) {
		t.Errorf("%d bytes came back, %v", len(got), err)
	}
}

// When the kernel forwards a connection, the box gets the path MTU errors of the router with the smaller link.
func TestPathMTUErrorsReachTheBox(t *testing.T) {
	w := newWorld(t)
	w.addBox("one", 10)
	w.apply("one", allow("198.51.100.0/28", "2001:db8:2::/124"))
	w.shell(w.gateway, "ip route add 198.51.100.7/32 via 203.0.113.10 dev up0 mtu lock 1300; ip -6 route add 2001:db8:2::7/128 via 2001:db8:1::10 dev up0 mtu lock 1300")
	for _, at := range []netip.Addr{outside4, outside6} {
		server := w.serveTCP(w.outside, netip.AddrPortFrom(at, 0).String(), transparent)
		word := strings.Repeat("x", 1450)
		if got, err := w.exchange(w.boxNS["one"], "tcp", server, word); err != nil || !strings.Contains(got, "xxxx") {
			t.Errorf("%v: %q, %v", at, got, err)
		}
		var routes []netlink.Route
		w.must(w.in(w.boxNS["one"], func() (err error) {
			routes, err = netlink.RouteGet(at.AsSlice())
			return err
		}))
		if len(routes) != 1 || routes[0].MTU != 1300 {
			t.Errorf("the box knows %v", routes)
		}
	}
}
