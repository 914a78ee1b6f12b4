package selftest

import (
	"net/netip"
	"testing"
)

// A random target never leaves its range.
func TestRandomAddressesStayInTheirRange(t *testing.T) {
	t.Parallel()
	for _, r := range special {
		p := netip.MustParsePrefix(r.prefix)
		for range 50 {
			if a := randomIn(p); !p.Contains(a) {
				t.Errorf("%v is not in %v", a, p)
			}
		}
	}
	next := strangers("8.8.8.0/24")
	seen := map[netip.Addr]bool{}
	for range 200 {
		if a := next(); seen[a] || !netip.MustParsePrefix("8.8.8.16/20").Masked().Contains(a) || a == netip.MustParseAddr("8.8.8.8") {
			t.Fatalf("%v was given out", a)
		} else {
			seen[a] = true
		}
	}
}
