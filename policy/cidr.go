package policy

import (
	"net/netip"
	"strings"
)

// parseCIDR reads a masked prefix of either family, or an address as its host route. One range has one spelling: host
// bits, zones and IPv4-mapped IPv6 are refused, and the error gives the plain form.
func parseCIDR(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		a, err := netip.ParseAddr(s)
		if err != nil {
			return netip.Prefix{}, cidrError(s)
		}
		if a.Zone() != "" {
			return netip.Prefix{}, &syntaxError{s, "has a zone, which is only meaningful on one machine", ""}
		}
		p = netip.PrefixFrom(a, a.BitLen())
	}
	if plain := unmapPrefix(p); plain != p {
		return netip.Prefix{}, &syntaxError{s, "is IPv4 written as IPv6", cidrText(plain.Masked())}
	}
	if p != p.Masked() {
		return netip.Prefix{}, &syntaxError{s, "has host bits set", p.Masked().String()}
	}
	return p, nil
}

// cidrError says what s is, if not a CIDR.
func cidrError(s string) error {
	e := &syntaxError{input: s, flaw: "is not a CIDR or an IP address"}
	trimmed := strings.TrimSpace(s)
	if trimmed == s {
		return e
	}
	if p, err := parseCIDR(trimmed); err == nil {
		e.flaw, e.use = "has a space or control character", cidrText(p)
	}
	return e
}

// unmapPrefix returns the IPv4 prefix inside ::ffff:0:0/96, or p itself.
func unmapPrefix(p netip.Prefix) netip.Prefix {
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		return netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p
}

// cidrText writes a host route as the bare address.
func cidrText(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}
