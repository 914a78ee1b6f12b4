package firewall

import (
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"

	"boxgate/firewall/link"
	"boxgate/firewall/namespace"
	"boxgate/firewall/network"
	"boxgate/policy"
)

// Another program flushes the whole ruleset: boxes must reach neither the internet nor the host, not even with a forged
// source.
func TestFlushedRulesetLeavesBoxesClosed(t *testing.T) {
	w := newWorld(t)
	w.addBox("one", 10)
	w.apply("one", allow("198.51.100.0/24", "2001:db8:2::/48"))
	server := w.serveTCP(w.outside, ":0", nil)
	host := w.serveTCP(w.gateway, ":0", nil)
	open, err := w.dial(w.boxNS["one"], "tcp", netip.AddrPortFrom(outside4, server.Port()))
	w.must(err)
	_, err = ask(open, "before")
	w.must(err)

	c, err := nftables.New(nftables.WithNetNSFd(int(w.gateway)))
	w.must(err)
	c.FlushRuleset()
	w.must(c.Flush())

	for _, to := range []netip.AddrPort{
		netip.AddrPortFrom(netip.MustParseAddr("198.51.100.8"), server.Port()),
		netip.AddrPortFrom(netip.MustParseAddr("2001:db8:2::8"), server.Port()),
		netip.AddrPortFrom(uplink4, host.Port()), netip.AddrPortFrom(uplink6, host.Port()),
		netip.AddrPortFrom(w.cfg.GatewayV4, host.Port()), netip.AddrPortFrom(w.cfg.GatewayV6, host.Port()),
	} {
		if w.reaches("one", to) {
			t.Errorf("the box reached %v", to)
		}
	}
	for _, src := range []string{"203.0.113.77", "2001:db8:7::7"} {
		from, to := netip.MustParseAddr(src), netip.MustParseAddr("198.51.100.9")
		if from.Is6() {
			to = netip.MustParseAddr("2001:db8:2::9")
		}
		w.must(w.in(w.boxNS["one"], func() error { return sendFrom(from, netip.AddrPortFrom(to, 9)) }))
	}
	// The gateway's own packet, sent afterwards, proves that everything before it has had its chance to arrive.
	w.flushWireFrom(w.gateway)
	for _, a := range []string{"198.51.100.8", "2001:db8:2::8", "198.51.100.9", "2001:db8:2::9"} {
		to := netip.MustParseAddr(a)
		if w.wire.find(func(p seenPacket) bool { return p.dst == to }) {
			t.Errorf("a packet for %v reached the outside", to)
		}
	}

	// Opening again and adding the box again repairs it.
	w.must(w.fw.Close())
	w.open()
	w.addBox("one", 10)
	w.apply("one", allow("198.51.100.0/24", "2001:db8:2::/48"))
	if _, err := w.exchange(w.boxNS["one"], "tcp", netip.AddrPortFrom(outside4, server.Port()), "again"); err != nil {
		t.Errorf("after repair: %v", err)
	}
}

func TestRestoreWritesWhatSomebodyDeleted(t *testing.T) {
	w := newWorld(t)
	w.addBox("one", 10)
	w.apply("one", allow("198.51.100.0/28"))
	server := w.serveTCP(w.outside, ":0", nil)
	for _, damage := range []string{"nft flush ruleset", "nft delete table inet boxgate", "ip rule flush; ip rule add pref 32766 table main",
		"ip -6 rule flush", "ip route flush table 45253", "ip link set dev " + network.LinkName("one") + " group 0",
		"ip link set dev " + network.LinkName("one") + " down", "ip addr del 10.77.0.1/32 dev lo"} {
		w.must(w.in(w.gateway, func() error { return exec.Command("sh", "-c", damage).Run() }))
		w.must(w.fw.Restore(t.Context()))
		if _, err := w.exchange(w.boxNS["one"], "tcp", netip.AddrPortFrom(outside4, server.Port()), "again"); err != nil {
			t.Errorf("after %q: %v", damage, err)
		}
		if _, err := w.dial(w.boxNS["one"], "tcp", netip.AddrPortFrom(netip.MustParseAddr("203.0.113.10"), 80)); !refusedBy("tcp", outside4, err) {
			t.Errorf("after %q: %v", damage, err)
		}
	}
}

// An interface that is removed from the group, renamed or moved is closed, not open.
func TestChangedInterfaceIsClosed(t *testing.T) {
	for name, damage := range map[string]string{
		"group":  "ip link set dev LINK group 7",
		"rename": "ip link set dev LINK down; ip link set dev LINK name other0; ip link set dev other0 up",
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.addBox("one", 10)
			w.addBox("two", 11)
			w.apply("one", allow("198.51.100.0/28"))
			w.apply("two", allow("198.51.100.0/28"))
			w.must(w.in(w.gateway, func() error {
				return exec.Command("sh", "-c", strings.ReplaceAll(damage, "LINK", network.LinkName("one"))).Run()
			}))
			w.must(w.in(w.boxNS["one"], func() error {
				return sendFrom(netip.MustParseAddr("10.77.0.10"), netip.AddrPortFrom(outside4, 9))
			}))
			w.nothingArrived("two", outside4)
		})
	}
}

// The rules for other traffic of the host do not change.
func TestHostRoutingIsNotDisturbed(t *testing.T) {
	w := newWorld(t)
	server := w.serveTCP(w.outside, ":0", nil)
	host := w.serveTCP(w.gateway, ":0", nil)
	for _, to := range []netip.AddrPort{
		netip.AddrPortFrom(outside4, server.Port()), netip.AddrPortFrom(outside6, server.Port()),
		netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), host.Port()), netip.AddrPortFrom(netip.IPv6Loopback(), host.Port()),
		netip.AddrPortFrom(w.cfg.GatewayV4, host.Port()), netip.AddrPortFrom(uplink6, host.Port()),
	} {
		if _, err := w.exchange(w.gateway, "tcp", to, "x"); err != nil {
			t.Errorf("gateway to %v: %v", to, err)
		}
	}
	for _, to := range []netip.Addr{uplink4, uplink6} {
		if _, err := w.exchange(w.outside, "tcp", netip.AddrPortFrom(to, host.Port()), "x"); err != nil {
			t.Errorf("outside to %v: %v", to, err)
		}
	}
}

func TestUninstallLeavesNothing(t *testing.T) {
	w := newWorld(t)
	w.must(w.fw.Uninstall(t.Context()))
	before := w.snapshot()
	w.open()
	w.addBox("one", 10)
	w.apply("one", allow("198.51.100.0/24"))
	if w.snapshot() == before {
		t.Fatal("the firewall left no trace at all")
	}
	w.must(w.fw.Uninstall(t.Context()))
	if after := w.snapshot(); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
	if strings.Contains(before, network.TableName) || strings.Contains(before, "10.77.0.1") {
		t.Errorf("traces:\n%s", before)
	}
}

// snapshot returns everything in the gateway's namespace that the firewall changes.
func (w *world) snapshot() string {
	w.t.Helper()
	var out []byte
	w.must(w.in(w.gateway, func() (err error) {
		out, err = exec.Command("sh", "-c", "ip rule; ip -6 rule; ip -d route show table all; ip -6 route show table all; "+
			"ip -br addr; nft list ruleset").CombinedOutput()
		return err
	}))
	return string(out)
}

// A connection was allowed before its destination became an address of the host: it does not reach the host.
func TestAForwardedConnectionDoesNotReachTheHost(t *testing.T) {
	w := newWorld(t)
	w.addBox("one", 10)
	w.apply("one", allow("198.51.100.0/28"))
	server := w.serveUDP(w.outside, netip.AddrPortFrom(outside4, 0).String())
	c, err := w.dial(w.boxNS["one"], "udp", server)
	w.must(err)
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	_, err = ask(c, "outside")
	w.must(err)
	w.shell(w.gateway, "ip address add "+outside4.String()+"/32 dev lo")
	var reached atomic.Uint64
	w.must(w.in(w.gateway, func() error {
		pc, err := net.ListenPacket("udp", server.String())
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = pc.Close() })
		go func() {
			for buf := make([]byte, 64); ; reached.Add(1) {
				if _, _, err := pc.ReadFrom(buf); err != nil {
					return
				}
			}
		}()
		return nil
	}))
	for range 20 {
		_, _ = c.Write([]byte("host")) // an error does not matter
	}
	w.flushWire("one")
	if n := reached.Load(); n > 0 {
		t.Errorf("%d packets reached a program of the host", n)
	}
}

// However a network namespace treats new interfaces, an attached box has IPv6, and only the addresses that it was given.
func TestBoxHasItsOwnAddressesWhateverItsNamespaceDoes(t *testing.T) {
	for name, set := range map[string][]namespace.Sysctl{
		"as made":  nil,
		"IPv6 off": {{Path: "ipv6/conf/all/disable_ipv6", Value: "1"}, {Path: "ipv6/conf/default/disable_ipv6", Value: "1"}},
		"random":   {{Path: "ipv6/conf/default/addr_gen_mode", Value: "3"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			id := policy.BoxID("one")
			w.boxNS[id] = newNamespace(t)
			w.must(w.in(w.boxNS[id], func() error { return namespace.WriteSysctls(set) }))
			box := w.addBox(id, 10)
			w.apply(id, policy.KernelPlan{DefaultAllow: true, Protected: guarded()})
			server := w.serveTCP(w.outside, ":0", nil)
			if _, err := w.exchange(w.boxNS[id], "tcp6", netip.AddrPortFrom(outside6, server.Port()), "hello"); err != nil {
				t.Errorf("over IPv6: %v", err)
			}
			w.must(w.in(w.boxNS[id], func() error {
				inside, err := netlink.LinkByName(link.Inside)
				if err != nil {
					return err
				}
				have, err := netlink.AddrList(inside, netlink.FAMILY_ALL)
				for _, a := range have {
					if ip, _ := netip.AddrFromSlice(a.IP); ip.Unmap() != box.V4 && ip != box.V6 {
						t.Errorf("the box has %v", a)
					}
				}
				if len(have) != 2 {
					t.Errorf("the box has %d addresses", len(have))
				}
				return err
			}))
		})
	}
}

func TestAllowedAddressIsForwardedAndMasqueraded(t *testing.T) {
	w := newWorld(t)
	a := w.addBox("one", 10)
	w.apply("one", allow("198.51.100.0/28", "2001:db8:2::/64"))
	tcp := w.serveTCP(w.outside, ":0", nil)
	for _, to := range []netip.Addr{outside4, outside6} {
		got, err := w.exchange(w.boxNS[a.Box], "tcp", netip.AddrPortFrom(to, tcp.Port()), "hello")
		if err != nil || !strings.HasSuffix(got, "hello") {
			t.Errorf("tcp to %v: %q, %v", to, got, err)
		}
		if !strings.HasPrefix(got, uplink4.String()) && !strings.HasPrefix(got, "["+uplink6.String()) {
			t.Errorf("tcp to %v: the server sees %q, not the gateway's uplink", to, got)
		}
		udp := w.serveUDP(w.outside, netip.AddrPortFrom(to, 0).String())
		got, err = w.exchange(w.boxNS[a.Box], "udp", udp, "hello")
		if err != nil || !strings.HasSuffix(got, "hello") {
			t.Errorf("udp to %v: %q, %v", to, got, err)
		}
	}
}
