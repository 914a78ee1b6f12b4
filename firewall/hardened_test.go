package firewall

import (
	"net/netip"
	"testing"

	"boxgate/audit"
	"boxgate/firewall/namespace"
	"boxgate/policy"
)

// On a hardened host, allowed traffic still works, in both families, and everything else stays closed.
func TestHardenedHostKeepsWhatIsAllowed(t *testing.T) {
	w := newWorld(t)
	w.must(w.in(w.gateway, func() error {
		var hard []namespace.Sysctl
		for _, which := range []string{"default", "all"} {
			for _, f := range []string{"ipv4", "ipv6"} {
				hard = append(hard, namespace.Sysctl{Path: f + "/conf/" + which + "/drop_unicast_in_l2_multicast", Value: "1"})
			}
		}
		return namespace.WriteSysctls(hard)
	}))
	w.boxNS["one"] = newNamespace(t)
	w.addBox("one", 10)
	w.apply("one", allow("198.51.100.0/28", "2001:db8:2::/64"))
	server := w.serveTCP(w.outside, ":0", nil)
	for _, to := range []netip.Addr{outside4, outside6} {
		if _, err := w.exchange(w.boxNS["one"], "tcp", netip.AddrPortFrom(to, server.Port()), "x"); err != nil {
			t.Error(err)
		}
	}
	for _, to := range []string{"198.51.100.99", "2001:db8:2:1::99"} {
		if w.reaches("one", netip.AddrPortFrom(netip.MustParseAddr(to), server.Port())) {
			t.Errorf("the box reached %v", to)
		}
	}
}

// The host's kernel was configured not to report connections. The log has them anyway.
func TestConnectionsAreReportedWhereTheHostSwitchedThatOff(t *testing.T) {
	w := newWorld(t)
	w.must(w.fw.Close())
	w.must(w.in(w.gateway, func() error {
		return namespace.WriteSysctls([]namespace.Sysctl{{Path: "netfilter/nf_conntrack_events", Value: "0"}})
	}))
	w.open()
	w.addBox("one", 10)
	w.apply("one", allow("198.51.100.0/28"))
	server := w.serveTCP(w.outside, ":0", nil)
	_, err := w.exchange(w.boxNS["one"], "tcp", netip.AddrPortFrom(outside4, server.Port()), "hello")
	w.must(err)
	for _, phase := range []audit.Phase{audit.PhaseOpen, audit.PhaseEnd} {
		w.waitEvent(string(phase), func(e audit.Event) bool {
			return e.Phase == phase && e.Protocol == policy.TCP && e.Addr == outside4 && e.Port == server.Port()
		})
		w.must(w.fw.CutFlows(t.Context(), "one", func(Flow) bool { return false }))
	}
}
