package firewall

import (
	"net/netip"
	"testing"
	"time"

	"boxgate/policy"
)

// A rule of another program translates an allowed destination into a denied one, as port forwarding and load balancers do
// after the box's packets were judged. The box does not get there.
func TestAttackTranslatedDestination(t *testing.T) {
	const allowed, denied = "198.51.100.7", "198.51.100.8"
	w := newWorld(t)
	w.addBox("one", 10)
	w.addBox("two", 11)
	w.apply("one", allow(allowed+"/32"))
	w.apply("two", allow(denied+"/32"))
	ports := map[string]uint16{
		"udp": w.serveUDP(w.outside, denied+":0").Port(),
		"tcp": w.serveTCP(w.outside, denied+":0", nil).Port(),
	}
	try := func(box policy.BoxID, network, to string, most time.Duration) error {
		_, err := w.exchangeWithin(most, w.boxNS[box], network, netip.AddrPortFrom(netip.MustParseAddr(to), ports[network]), "x")
		return err
	}
	for network := range ports {
		if err := try("two", network, denied, 20*time.Second); err != nil {
			t.Errorf("%s: a box that may reach it: %v", network, err)
		}
		if try("one", network, denied, 20*time.Second) == nil {
			t.Errorf("%s: the policy does not deny it", network)
		}
	}
	w.shell(w.gateway, "nft 'table ip host { chain moves { type nat hook prerouting priority dstnat + 5; ip daddr "+allowed+" dnat to "+denied+"; }; }'")
	for network := range ports {
		if try("one", network, allowed, 500*time.Millisecond) == nil {
			t.Errorf("%s: the translated connection reached a denied address", network)
		}
	}
	if n := w.count("moved"); n == 0 {
		t.Error("the dropped packets are not counted")
	}
}
