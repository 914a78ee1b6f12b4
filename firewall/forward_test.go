package firewall

import (
	"net/netip"
	"strings"
	"testing"
)

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
