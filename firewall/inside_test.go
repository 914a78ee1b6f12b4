package firewall

import (
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"boxgate/firewall/link"
	"boxgate/firewall/namespace"
	"boxgate/policy"
)

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
