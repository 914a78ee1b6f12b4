package selftest

import (
	"crypto/rand"
	"net/netip"
)

// randomIn returns a random address of a prefix.
func randomIn(p netip.Prefix) netip.Addr {
	bytes := p.Masked().Addr().AsSlice()
	random := make([]byte, len(bytes))
	_, _ = rand.Read(random) // never fails (crypto/rand)
	for i := range bytes {
		keep := min(8, max(0, p.Bits()-8*i))
		bytes[i] |= random[i] & (0xff >> keep)
	}
	a, _ := netip.AddrFromSlice(bytes)
	return a
}

// strangers returns random addresses of a public resolver's network. Anyone may send there, and few of its addresses
// answer. Each address is returned once.
func strangers(network string) func() netip.Addr {
	p := netip.MustParsePrefix(network)
	given := map[netip.Addr]bool{}
	return func() netip.Addr {
		for {
			a := randomIn(p)
			last := a.AsSlice()[a.BitLen()/8-1]
			if last >= 16 && last < 248 && !given[a] { // servers have the low addresses
				given[a] = true
				return a
			}
		}
	}
}
