package peernet

import (
	"net"
	"net/netip"
	"testing"
)

// TestNetworks compares the networks of addresses. Spellings of one address have the same.
func TestNetworks(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][Levels]string{
		"192.0.2.1":                          {"192.0.2.1/32"},
		"::ffff:192.0.2.1":                   {"192.0.2.1/32"},
		"64:ff9b::c000:201":                  {"192.0.2.1/32"},
		"64:ff9b:1::c000:201":                {"64:ff9b:1::/64", "64:ff9b:1::/56", "64:ff9b:1::/48"},
		"2001:db8:1:2ff:3:4:5:6":             {"2001:db8:1:2ff::/64", "2001:db8:1:200::/56", "2001:db8:1::/48"},
		"fe80::1%eth0":                       {"fe80::/64", "fe80::/56", "fe80::/48"},
		"2001:db8:ffff:ffff:ffff:ffff:1:2%x": {"2001:db8:ffff:ffff::/64", "2001:db8:ffff:ff00::/56", "2001:db8:ffff::/48"},
	} {
		for i, network := range All(Network(netip.MustParseAddr(text))) {
			if got := network.String(); network.IsValid() && got != want[i] || !network.IsValid() && want[i] != "" {
				t.Errorf("%s: network %d is %s, want %q", text, i, got, want[i])
			}
		}
	}
	if all := All(Network(netip.Addr{})); all != [Levels]netip.Prefix{} {
		t.Errorf("networks of no address: %v", all)
	}
	if one := netip.MustParsePrefix("2001:db8::1/128"); All(one) != [Levels]netip.Prefix{one} {
		t.Errorf("networks of a box: %v", All(one))
	}
	if n := NetworkOf(&net.UnixAddr{}); n.IsValid() {
		t.Errorf("network of a socket: %v", n)
	}
	if n := NetworkOf(&net.TCPAddr{IP: net.ParseIP("192.0.2.1"), Port: 1}); n.String() != "192.0.2.1/32" {
		t.Errorf("network of a client: %v", n)
	}
}
