package firewall

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"boxgate/firewall/link"
	"boxgate/firewall/network"
)

// A box that controls its own network, deletes its end and keeps the new one from coming up delays nothing: neither the
// policy of another box, nor a later box, nor the start of the gateway.
func TestBoxWhoseEndNeverComesUpHoldsUpNobody(t *testing.T) {
	w := newWorld(t)
	hostile := w.addBox("one", 10)
	w.addBox("two", 11)
	w.apply("two", allow("198.51.100.0/28"))
	server := w.serveTCP(w.outside, ":0", nil)
	w.watch()
	host, err := netlink.NewHandleAt(w.gateway)
	w.must(err)
	defer host.Close()
	before, err := host.LinkByName(network.LinkName("one"))
	w.must(err)
	w.shell(w.boxNS["one"], `for family in -4 -6; do ip $family rule del pref 0; ip $family rule add pref 0 prohibit; done; ip link del eth0`)
	w.wait("the repair", func() bool {
		link, err := host.LinkByName(network.LinkName("one"))
		return err == nil && link.Attrs().Index != before.Attrs().Index
	})
	for i := range 20 {
		began := time.Now()
		w.apply("two", allow(fmt.Sprintf("198.51.100.%d/32", 7+i%2)))
		if took := time.Since(began); took > 20*time.Second {
			t.Fatalf("the policy of another box took %v", took)
		}
	}
	began := time.Now()
	w.must(w.fw.AddBox(t.Context(), hostile)) // as on a restart of the gateway
	w.addBox("three", 12)
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("the hostile box and one that comes after took %v", took)
	}
	w.must(w.fw.AwaitBox(t.Context(), "one"))
	w.apply("three", allow("198.51.100.0/28"))
	w.wait("another box has a network", func() bool { return w.reaches("three", netip.AddrPortFrom(outside4, server.Port())) })
}

// A namespace belongs to one box, whatever happened to its interface: otherwise two policies would be enforced on it.
func TestNamespaceOfABoxIsNotAttachedAgain(t *testing.T) {
	w := newWorld(t)
	first := w.addBox("one", 10)
	w.apply("one", allow("198.51.100.0/28"))
	aside := newNamespace(t)
	w.must(w.in(w.boxNS["one"], func() error {
		link, err := netlink.LinkByName(link.Inside)
		if err != nil {
			return err
		}
		return netlink.LinkSetNsFd(link, int(aside))
	}))
	if err := w.fw.CheckForeign(first.NetNS); err == nil || !strings.Contains(err.Error(), "one") {
		t.Errorf("it may be attached again: %v", err)
	}
	second := first
	second.Box, second.V4, second.V6 = "two", netip.MustParseAddr("10.77.0.11"), netip.MustParseAddr("fd77::b")
	if err := w.fw.AddBox(t.Context(), second); err == nil {
		t.Error("it was attached again")
	}
	w.must(w.fw.AddBox(t.Context(), first)) // repairs it
	server := w.serveTCP(w.outside, ":0", nil)
	w.wait("its own network", func() bool { return w.reaches("one", netip.AddrPortFrom(outside4, server.Port())) })
}

// A tunnel that was moved into the namespace still sends from its original one, once it is up.
func TestTunnelOfAnotherNamespaceIsNotHarmless(t *testing.T) {
	t.Parallel()
	own, moved := netlink.NewLinkAttrs(), netlink.NewLinkAttrs()
	own.Name, moved.Name, moved.NetNsID = "sit0", "sit1", 0
	if !harmless(&netlink.Sittun{LinkAttrs: own}) {
		t.Error("interfaces that the kernel adds to every namespace are refused")
	}
	if harmless(&netlink.Sittun{LinkAttrs: moved}) {
		t.Error("a tunnel whose packets leave from another namespace is taken for harmless")
	}
}

// For a box that gives itself thousands of addresses, the gateway does not remove them one by one while every box is
// closed. Packets from them are dropped as forged.
func TestBoxWithThousandsOfAddressesDoesNotKeepOthersClosed(t *testing.T) {
	const many = 2000
	w := newWorld(t)
	w.addBox("one", 10)
	w.apply("one", allow("198.51.100.0/28"))
	server := w.serveTCP(w.outside, ":0", nil)
	w.shell(w.boxNS["one"], fmt.Sprintf(`for i in $(seq %d); do echo "addr add 172.16.$((i / 250)).$((i %% 250 + 1))/32 dev eth0"; done | ip -batch -`, many))
	w.must(w.fw.Restore(t.Context()))
	inside, err := netlink.NewHandleAt(w.boxNS["one"])
	w.must(err)
	defer inside.Close()
	link, err := inside.LinkByName(link.Inside)
	w.must(err)
	left, err := inside.AddrList(link, netlink.FAMILY_V4)
	w.must(err)
	if len(left) < many-100 {
		t.Errorf("%d addresses were taken away, with every box closed", many+1-len(left))
	}
	to := netip.AddrPortFrom(outside4, server.Port())
	w.wait("the box's own network", func() bool { return w.reaches("one", to) })
	if w.in(w.boxNS["one"], func() error {
		d := net.Dialer{Timeout: 200 * time.Millisecond, LocalAddr: &net.TCPAddr{IP: net.IPv4(172, 16, 7, 100)}}
		c, err := d.DialContext(t.Context(), "tcp", to.String())
		if err == nil {
			_ = c.Close()
		}
		return err
	}) == nil {
		t.Error("a forged source got out")
	}
}

func TestProbeLeavesNothing(t *testing.T) {
	w := newWorld(t)
	before := w.snapshot()
	w.must(w.in(w.gateway, func() error { return Probe(t.Context()) }))
	if after := w.snapshot(); after != before {
		t.Errorf("after:\n%s\nbefore:\n%s", after, before)
	}
}

// A chain of another program that drops packets is reported with commands that fix it; after them it is no longer reported.
func TestOtherProgramsChainsThatDrop(t *testing.T) {
	for name, c := range map[string]struct{ rules, want string }{
		"forward":  {"table inet host { chain forwarding { type filter hook forward priority 0; policy drop; }; }", "the chain forwarding of the table inet host drops what the kernel forwards"},
		"iptables": {"table ip filter { chain FORWARD { type filter hook forward priority 0; policy drop; }; }", "iptables -I FORWARD -i bg+ -j ACCEPT"},
		"input":    {"table ip host { chain in { type filter hook input priority 0; policy drop; }; }", "DNS queries and proxied connections"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.addBox("one", 10)
			w.apply("one", allow("198.51.100.0/28"))
			server := w.serveUDP(w.outside, netip.AddrPortFrom(outside4, 0).String())
			check := func() (err error) {
				w.must(w.in(w.gateway, func() error { err = CheckOtherRules(); return nil }))
				return err
			}
			w.must(check())
			w.shell(w.gateway, "nft '"+c.rules+"'")
			err := check()
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want %s", err, c.want)
			}
			_, remedy, _ := strings.Cut(err.Error(), "allow it with: ")
			if name == "iptables" { // the rules that iptables makes of them, for hosts without it
				remedy = "nft insert rule ip filter FORWARD iifname 'bg*' counter accept; " +
					"nft insert rule ip filter FORWARD oifname 'bg*' ct state established,related counter accept"
			}
			w.shell(w.gateway, remedy)
			if err := check(); err != nil {
				t.Errorf("after the remedy: %v", err)
			}
			if _, err := w.exchange(w.boxNS["one"], "udp", server, "x"); err != nil {
				t.Errorf("after the remedy: %v", err)
			}
		})
	}
}
