package nft

import (
	"net/netip"
	"slices"
	"testing"

	"boxgate/firewall/network"
)

func TestSpansMergeWhatOverlapsOrTouches(t *testing.T) {
	for _, c := range []struct {
		in   []string
		want []string // first, last
	}{
		{[]string{"10.0.0.0/9", "10.128.0.0/9"}, []string{"10.0.0.0", "10.255.255.255"}},
		{[]string{"10.0.0.0/8", "10.1.0.0/16", "11.0.0.0/32"}, []string{"10.0.0.0", "11.0.0.0"}},
		{[]string{"224.0.0.0/4", "240.0.0.0/4", "255.255.255.255/32"}, []string{"224.0.0.0", "255.255.255.255"}},
		{[]string{"0.0.0.0/0"}, []string{"0.0.0.0", "255.255.255.255"}},
		{[]string{"192.0.2.1/32", "198.51.100.0/24"}, []string{"192.0.2.1", "192.0.2.1", "198.51.100.0", "198.51.100.255"}},
	} {
		var got []string
		for _, s := range spans(network.V4, parsed(append(c.in, "2001:db8::/32")...)) {
			got = append(got, s.first.String(), s.last.String())
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%v: %v, want %v", c.in, got, c.want)
		}
	}
	if got := intervals(spans(network.V4, parsed("255.0.0.0/8"))); len(got) != 1 || got[0].IntervalEnd {
		t.Errorf("a range up to the last address has an end: %+v", got)
	}
}

// Every address is inside the ranges exactly when it is inside a prefix.
func FuzzSpans(f *testing.F) {
	f.Add([]byte{10, 0, 0, 0, 8, 10, 128, 0, 0, 9}, []byte{10, 1, 2, 3})
	f.Add([]byte{255, 255, 255, 255, 32, 0, 0, 0, 0, 0}, []byte{255, 255, 255, 255})
	f.Fuzz(func(t *testing.T, list, probe []byte) {
		var in []netip.Prefix
		for ; len(list) >= 5; list = list[5:] {
			in = append(in, netip.PrefixFrom(netip.AddrFrom4([4]byte(list)), int(list[4]%33)))
		}
		a, ok := netip.AddrFromSlice(probe)
		if !ok || !a.Is4() {
			return
		}
		out := spans(network.V4, in)
		inside := slices.ContainsFunc(out, func(s span) bool { return s.first.Compare(a) <= 0 && a.Compare(s.last) <= 0 })
		if want := slices.ContainsFunc(in, func(p netip.Prefix) bool { return p.Contains(a) }); inside != want {
			t.Errorf("%v in %v: %v", a, in, inside)
		}
		for i := 1; i < len(out); i++ {
			if out[i].first.Compare(out[i-1].last.Next()) <= 0 {
				t.Errorf("%v and %v touch", out[i-1], out[i])
			}
		}
	})
}

func parsed(list ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}
