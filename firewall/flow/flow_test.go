package flow

import (
	"net/netip"
	"testing"

	"github.com/ti-mo/conntrack"
	"golang.org/x/sys/unix"

	"boxgate/firewall/network"
)

// Only DNS lookups of boxes that lead to another port of the gateway than the current one are cut. Other programs may use
// the same mark bits.
func TestOnlyLookupsThatLeadElsewhereEnd(t *testing.T) {
	t.Parallel()
	ns, table := emptyTable(t)
	const earlier, now = 40001, 40002
	box := network.BoxMark("one")
	type entry struct {
		what     string
		from, to string
		port     uint16 // destination port
		leads    uint16 // port that it is redirected to
		protocol uint8
		mark     uint32
		ends     bool
	}
	list := []entry{
		{"a lookup of before", "10.77.0.10", "192.0.2.53", 53, earlier, unix.IPPROTO_UDP, box, true},
		{"the same over IPv6", "fd77::10", "2001:db8::53", 53, earlier, unix.IPPROTO_UDP, box, true},
		{"the same by TCP", "10.77.0.10", "192.0.2.53", 53, earlier, unix.IPPROTO_TCP, box, true},
		{"of a box that is gone", "10.77.0.11", "192.0.2.53", 53, earlier, unix.IPPROTO_UDP, network.BoxMark("two"), true},
		{"a lookup of now", "10.77.0.10", "192.0.2.53", 53, now, unix.IPPROTO_UDP, box, false},
		{"of now over IPv6", "fd77::10", "2001:db8::53", 53, now, unix.IPPROTO_UDP, box, false},
		{"to the proxy", "10.77.0.10", "192.0.2.1", 443, 443, unix.IPPROTO_TCP, box, false},
		{"what the kernel forwards", "10.77.0.10", "192.0.2.1", 8053, 8053, unix.IPPROTO_UDP, box | network.FlowForwarded, false},
		{"another program's with the mark of a box", "10.78.0.10", "192.0.2.53", 53, earlier, unix.IPPROTO_UDP, box, false},
		{"the same over IPv6", "fd78::10", "2001:db8::53", 53, earlier, unix.IPPROTO_UDP, box, false},
		{"another program's with the bit alone", "192.0.2.9", "192.0.2.53", 53, 53, unix.IPPROTO_UDP, network.MarkedBox, false},
		{"towards a box", "192.0.2.9", "10.77.0.10", 53, 53, unix.IPPROTO_UDP, network.MarkedBox, false},
		{"without a mark", "10.77.0.10", "192.0.2.53", 53, earlier, unix.IPPROTO_UDP, 0, false},
		{"with another mark", "10.77.0.10", "192.0.2.53", 53, earlier, unix.IPPROTO_UDP, 0x10, false},
	}
	for i, e := range list {
		f := conntrack.NewFlow(e.protocol, 0, netip.MustParseAddr(e.from), netip.MustParseAddr(e.to), uint16(1000+i), e.port, 600, e.mark)
		f.TupleReply.Proto.SourcePort = e.leads
		if err := table.Create(f); err != nil {
			t.Fatalf("%s: %v", e.what, err)
		}
	}
	k := New(ns)
	t.Cleanup(func() { _ = k.Close() })
	if err := k.CutLookups([]netip.Prefix{netip.MustParsePrefix("10.77.0.0/16"), netip.MustParsePrefix("fd77::/64")}, now); err != nil {
		t.Fatal(err)
	}
	flows, err := table.Dump(nil)
	if err != nil {
		t.Fatal(err)
	}
	left := map[uint16]bool{}
	for _, f := range flows {
		left[f.TupleOrig.Proto.SourcePort] = true
	}
	for i, e := range list {
		if left[uint16(1000+i)] == e.ends {
			t.Errorf("%s: ended is %v", e.what, !e.ends)
		}
	}
}
