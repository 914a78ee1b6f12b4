package firewall

import (
	"context"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
)

// What somebody else changes is put back without anybody asking.
func TestWatchPutsBackWhatSomebodyChanged(t *testing.T) {
	w := newWorld(t)
	w.addBox("one", 10)
	w.apply("one", allow("198.51.100.0/28"))
	server := w.serveTCP(w.outside, ":0", nil)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.fw.Watch(ctx) }()
	forbidden := netip.MustParseAddr("203.0.113.10")
	for _, damage := range []string{
		"nft flush ruleset", "nft delete table inet boxgate",
		"nft flush set inet boxgate protected4",
		"nft insert rule inet boxgate CHAIN accept",
		"ip rule flush; ip rule add pref 32766 table main", "ip -6 rule flush", "ip route flush table 45253",
		"ip link set dev LINK group 0", "ip link set dev LINK down", "ip addr del 10.77.0.1/32 dev lo",
	} {
		damage = strings.NewReplacer("LINK", linkName("one"), "CHAIN", boxChain("one")).Replace(damage)
		before := w.ruleset()
		w.must(w.in(w.gateway, func() error { return exec.Command("sh", "-c", damage).Run() }))
		w.wait("repair of "+damage, func() bool {
			_, err := w.exchange(w.boxNS["one"], "tcp", netip.AddrPortFrom(outside4, server.Port()), "again")
			return err == nil && w.ruleset() == before
		})
		if _, err := w.dial(w.boxNS["one"], "tcp", netip.AddrPortFrom(forbidden, server.Port())); err == nil {
			t.Errorf("after %q a forbidden address is reached", damage)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// ruleset is the table without what changes by itself: counters, handles, and elements that packets put into sets.
func (w *world) ruleset() string {
	var out []byte
	w.must(w.in(w.gateway, func() (err error) {
		out, err = exec.Command("sh", "-c", "nft -s list chains inet boxgate; nft -s list set inet boxgate protected4; (ip rule; ip -6 rule) | grep '^[1-9]:'").Output()
		return err
	}))
	return string(out)
}
