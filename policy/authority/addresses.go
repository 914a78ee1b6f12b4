package authority

import (
	"cmp"
	"net/netip"
	"slices"

	"boxgate/policy"
	"boxgate/policy/name"
)

// span is a range of addresses of one family that no prefix divides.
type span struct{ first, last netip.Addr }

// spans divides all addresses at the ends of the prefixes.
func spans(prefixes []netip.Prefix) (list []span) {
	begins := []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}
	for _, p := range prefixes {
		begins = append(begins, p.Masked().Addr())
		if next := lastOf(p).Next(); next.IsValid() && next.Is4() == p.Addr().Is4() {
			begins = append(begins, next)
		}
	}
	slices.SortFunc(begins, netip.Addr.Compare)
	begins = slices.Compact(begins)
	for i, a := range begins {
		last := netip.AddrFrom16([16]byte{255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255})
		switch {
		case i+1 < len(begins) && begins[i+1].Is4() == a.Is4():
			last = begins[i+1].Prev()
		case a.Is4():
			last = netip.AddrFrom4([4]byte{255, 255, 255, 255})
		}
		list = append(list, span{a, last})
	}
	return list
}

// lastOf returns the last address of a prefix.
func lastOf(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < 8*len(b); i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// prefixes returns the fewest prefixes that cover a span.
func (s span) prefixes() (list []netip.Prefix) {
	for a := s.first; a.IsValid() && a.Compare(s.last) <= 0; {
		bits := a.BitLen()
		for bits > 0 {
			p := netip.PrefixFrom(a, bits-1)
			if p.Masked().Addr() != a || lastOf(p).Compare(s.last) > 0 {
				break
			}
			bits--
		}
		p := netip.PrefixFrom(a, bits)
		list = append(list, p)
		a = lastOf(p).Next()
	}
	return list
}

// gain is the set of protocols of a span that are allowed more.
type gain struct{ tcp, udp, icmp bool }

func (g gain) protocols() (list []policy.Protocol) {
	for _, p := range []struct {
		of bool
		is policy.Protocol
	}{{g.tcp, policy.TCP}, {g.udp, policy.UDP}, {g.icmp, policy.ICMP}} {
		if p.of {
			list = append(list, p.is)
		}
	}
	return list
}

// group is a set of addresses with the same gain by the same entry.
type group struct {
	gain  gain
	entry netip.Prefix // of the policies: allowed now, or denied before
}

// run is a range of addresses of one group. Protected ranges, which no policy allows, may be part of it.
type run struct {
	span
	lead, trail netip.Addr // the range with the protected ranges on both sides
	of          group
}

// maxPieces is how many prefixes are shown instead of the entry that contains them.
const maxPieces = 4

// addresses returns the addresses that are allowed more, on a port in no entry. Of an entry that is in many pieces, because some of
// it was allowed before, the line is the whole entry.
func (w *world) addresses() (lines []Line) {
	pieces, order := map[group][]netip.Prefix{}, []group{}
	for _, r := range w.runs() {
		if pieces[r.of] == nil {
			order = append(order, r.of)
		}
		for _, p := range r.prefixes() {
			if v4 := name.Untranslated(p.Addr()); !v4.Is4() || !slices.Contains(pieces[r.of], netip.PrefixFrom(v4, max(0, p.Bits()-96))) {
				pieces[r.of] = append(pieces[r.of], p) // and not the NAT64 form of one
			}
		}
	}
	for _, of := range order {
		list, some := pieces[of], false
		if len(list) > maxPieces {
			list, some = []netip.Prefix{of.entry}, true
		}
		for _, p := range list {
			lines = append(lines, Line{Kind: KindAddress, Prefix: p.String(), Protocols: of.gain.protocols(), Some: some, Wide: isWide(p)})
		}
	}
	return lines
}

// runs returns the ranges with a gain.
func (w *world) runs() (list []run) {
	var protected netip.Addr // the first of the protected addresses before the current span; invalid: there are no such addresses
	open := false            // the last of list is adjacent
	for _, s := range w.addrs {
		if w.ended() {
			return nil
		}
		is := w.after.Decide(w.packet(s.first, w.other, policy.TCP))
		if is.Reason == name.ReasonProtectedRange {
			if begins := s.first.Prev(); !protected.IsValid() || !begins.IsValid() || begins.Is4() != s.first.Is4() {
				protected = s.first
			}
			if open && list[len(list)-1].trail.Next() == s.first {
				list[len(list)-1].trail = s.last
			}
			continue
		}
		g := group{gain: gain{
			tcp:  w.gains(w.packet(s.first, w.other, policy.TCP), w.named),
			udp:  w.gains(w.packet(s.first, w.other, policy.UDP), false),
			icmp: w.gains(w.packet(s.first, 0, policy.ICMP), false),
		}}
		if g.gain != (gain{}) {
			g.entry = w.entryOf(s.first, is)
		}
		switch last := len(list) - 1; {
		case open && list[last].of == g && list[last].trail.Next() == s.first:
			list[last].last, list[last].trail = s.last, s.last
		case g != (group{}):
			lead := s.first
			if protected.IsValid() && protected.Is4() == lead.Is4() {
				lead = protected
			}
			list, open = append(list, run{s, lead, s.last, g}), true
		default:
			open = false
		}
		protected = netip.Addr{}
	}
	return list
}

// entryOf returns the narrowest entry that makes the difference for an address: one that allows it now, or denied it before. Without
// one it is every address.
func (w *world) entryOf(a netip.Addr, is policy.Decision) netip.Prefix {
	all := netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	if a.Is4() {
		all = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	was := w.before.Decide(w.packet(a, w.other, policy.TCP))
	for _, d := range []policy.Decision{is, was} {
		if d.Rule == policy.ClusterServices {
			return w.after.ClusterRange(a)
		}
		p, err := name.ParseCIDR(d.Rule)
		listed := d.Reason == name.ReasonAllowedCIDR || d.Reason == name.ReasonDeniedCIDR
		if err == nil && listed && (p.Bits() > all.Bits() || p.Addr().Is4() != a.Is4()) {
			all = p
		}
	}
	return all
}

// prefixes returns the fewest prefixes for the range, with the protected ranges beside it only if they are fewer then.
func (r *run) prefixes() (best []netip.Prefix) {
	for _, s := range []span{r.span, {r.lead, r.last}, {r.first, r.trail}, {r.lead, r.trail}} {
		if list := s.prefixes(); best == nil || len(list) < len(best) {
			best = list
		}
	}
	return best
}

// isWide reports whether a prefix has addresses of many owners.
func isWide(p netip.Prefix) bool {
	if p.Addr().Is4() {
		return p.Bits() < 16
	}
	return p.Bits() < 32
}

func (w *world) packet(a netip.Addr, port uint16, protocol policy.Protocol) policy.Request {
	return policy.Request{Stage: policy.StageConn, Addr: a, Port: port, Protocol: protocol}
}

// kindOf tells addresses apart whose decisions on ports can differ.
type kindOf struct {
	v4   bool
	list [4]policy.Decision
}

// ports returns the ports on which allowed addresses are allowed more than on others: UDP where names or rules decided, and TCP without a
// name.
func (w *world) ports() (lines []Line) {
	reps := map[kindOf]netip.Addr{}
	for _, s := range w.addrs {
		k := kindOf{v4: s.first.Is4()}
		for i, c := range []*policy.Compiled{w.before, w.after} {
			for j, protocol := range []policy.Protocol{policy.TCP, policy.UDP} {
				d := c.Decide(w.packet(s.first, w.other, protocol))
				k.list[2*i+j] = policy.Decision{Verdict: d.Verdict, Reason: d.Reason}
			}
		}
		if _, known := reps[k]; !known {
			reps[k] = s.first
		}
	}
	for _, port := range w.allPorts {
		for _, protocol := range []policy.Protocol{policy.TCP, policy.UDP} {
			if w.ended() {
				return nil
			}
			for _, a := range reps {
				if w.gains(w.packet(a, port, protocol), false) && !w.gains(w.packet(a, w.other, protocol), false) {
					lines = append(lines, Line{Kind: KindPort, Ports: []uint16{port}, Protocols: []policy.Protocol{protocol}})
					break
				}
			}
		}
	}
	slices.SortFunc(lines, func(a, b Line) int {
		return cmp.Or(cmp.Compare(a.Protocols[0], b.Protocols[0]), cmp.Compare(a.Ports[0], b.Ports[0]))
	})
	return lines
}
