package firewall

import (
	"net/netip"
	"strings"
	"testing"
)

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
