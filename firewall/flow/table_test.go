package flow

import (
	"maps"
	"net/netip"
	"runtime"
	"testing"

	"github.com/mdlayher/netlink"
	"github.com/ti-mo/conntrack"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"boxgate/firewall/namespace"
	"boxgate/firewall/network"
	"boxgate/internal/nightly"
)

// All connections that the kernel forwards for boxes are read, and no others; also after a failed read.
func TestTheTableIsReadWhole(t *testing.T) {
	t.Parallel()
	ns, kernel := emptyTable(t)
	table := NewTable(ns)
	defer func() { _ = table.Close() }()
	const count = 500
	box := network.BoxMark("one")
	for i := range count {
		for _, c := range []struct {
			mark   uint32
			status conntrack.Status
			to     string
		}{{box, 0, "192.0.2.1"}, {box | network.FlowForwarded, 0, "192.0.2.2"}, {box | network.FlowForwarded, conntrack.StatusConfirmed | conntrack.StatusAssured | conntrack.StatusSeenReply, "192.0.2.3"}} {
			f := conntrack.NewFlow(unix.IPPROTO_UDP, c.status, netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr(c.to), 1000, uint16(i+1), 600, c.mark)
			if err := kernel.Create(f); err != nil {
				t.Fatal(err)
			}
		}
	}
	which := func(status uint32) Filter {
		return Filter{Mark: network.FlowForwarded, Mask: network.FlowForwarded, Status: status}
	}
	read := func(status uint32) map[string]int {
		seen := map[string]int{}
		if err := table.Each(which(status), func(e *Entry) { seen[e.Dst.Addr().String()]++ }); err != nil {
			t.Fatal(err)
		}
		return seen
	}
	if seen := read(0); seen["192.0.2.1"] != 0 || seen["192.0.2.2"] != count || seen["192.0.2.3"] != count {
		t.Errorf("read %v", seen)
	}
	if err := table.conn.Close(); err != nil {
		t.Fatal(err)
	}
	if err := table.Each(which(0), func(*Entry) {}); err == nil {
		t.Error("read from a closed socket")
	}
	if seen := read(Assured); seen["192.0.2.2"] != 0 || seen["192.0.2.3"] != count {
		t.Errorf("read of those answered %v", seen)
	}
}

// Connections are counted per namespace, so that the table is not read for a namespace without connections.
func TestConnectionsOfTheNamespaceAreCounted(t *testing.T) {
	t.Parallel()
	emptied, none := emptyTable(t)
	_, other := emptyTable(t)
	table := NewTable(emptied)
	t.Cleanup(func() { _ = table.Close() })
	counted := func(want uint64) {
		t.Helper()
		if err := table.withConn(func(c *netlink.Conn) error {
			n, err := count(c)
			if n != want {
				t.Errorf("%d connections are counted, want %d", n, want)
			}
			return err
		}); err != nil {
			t.Error(err)
		}
		read := uint64(0)
		if err := table.Each(Filter{}, func(*Entry) { read++ }); err != nil || read != want {
			t.Errorf("%d connections are read, want %d: %v", read, want, err)
		}
	}
	f := conntrack.NewFlow(unix.IPPROTO_UDP, 0, netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("192.0.2.1"), 1000, 443, 600, 0)
	if err := other.Create(f); err != nil {
		t.Fatal(err)
	}
	counted(0)
	if err := none.Create(f); err != nil {
		t.Fatal(err)
	}
	counted(1)
	if err := none.Delete(f); err != nil {
		t.Fatal(err)
	}
	counted(0)
}

// Only unwanted entries are removed, of all protocols, families and zones; similar entries elsewhere stay.
func TestUnwantedEntriesAreRemoved(t *testing.T) {
	t.Parallel()
	ns, kernel := emptyTable(t)
	add := func(protocol uint8, src, dst string, zone uint16) {
		t.Helper()
		f := conntrack.NewFlow(protocol, 0, netip.MustParseAddr(src), netip.MustParseAddr(dst), 1000, 443, 600, network.BoxMark("one"))
		f.Zone = zone
		if protocol == unix.IPPROTO_ICMP || protocol == unix.IPPROTO_ICMPV6 {
			echo := map[uint8][2]uint8{unix.IPPROTO_ICMP: {8, 0}, unix.IPPROTO_ICMPV6: {128, 129}}[protocol]
			f.TupleOrig.Proto = conntrack.ProtoTuple{Protocol: protocol, ICMPv4: protocol == unix.IPPROTO_ICMP, ICMPv6: protocol == unix.IPPROTO_ICMPV6, ICMPType: echo[0], ICMPID: 7}
			f.TupleReply.Proto = f.TupleOrig.Proto
			f.TupleReply.Proto.ICMPType = echo[1]
		}
		if err := kernel.Create(f); err != nil {
			t.Fatalf("%d from %s to %s: %v", protocol, src, dst, err)
		}
	}
	for _, to := range [][2]string{{"192.0.2.1", "2001:db8::1"}, {"192.0.2.2", "2001:db8::2"}} { // the first are unwanted
		for zone := range uint16(2) {
			for _, protocol := range []uint8{unix.IPPROTO_UDP, unix.IPPROTO_TCP, unix.IPPROTO_ICMP} {
				add(protocol, "10.77.0.10", to[0], zone)
			}
			for _, protocol := range []uint8{unix.IPPROTO_UDP, unix.IPPROTO_TCP, unix.IPPROTO_ICMPV6} {
				add(protocol, "fd77::10", to[1], zone)
			}
		}
	}
	table := NewTable(ns)
	t.Cleanup(func() { _ = table.Close() })
	unwanted := func(e *Entry) bool { a := e.Dst.Addr().String(); return a == "192.0.2.1" || a == "2001:db8::1" }
	zoned := func(e *Entry) bool { return unwanted(e) && e.raw.zone != nil }
	for what, c := range []struct {
		remove func(*Entry) bool
		left   map[bool]int
	}{
		{func(*Entry) bool { return false }, map[bool]int{true: 12, false: 12}},
		{zoned, map[bool]int{true: 6, false: 12}},
		{unwanted, map[bool]int{false: 12}},
	} {
		if err := table.Remove(Filter{}, c.remove); err != nil {
			t.Fatal(err)
		}
		left := map[bool]int{}
		if err := table.Each(Filter{}, func(e *Entry) { left[unwanted(e)]++ }); err != nil {
			t.Fatal(err)
		}
		if !maps.Equal(left, c.left) {
			t.Errorf("step %d: %v are left, of the unwanted and the others, want %v", what, left, c.left)
		}
	}
}

// A panic of a callback, which ends a single change, leaves no unread answer for the next one.
func TestNothingIsLeftAfterAPanic(t *testing.T) {
	t.Parallel()
	ns, kernel := emptyTable(t)
	const count = 20
	for i := range count {
		f := conntrack.NewFlow(unix.IPPROTO_UDP, 0, netip.MustParseAddr("10.77.0.10"), netip.MustParseAddr("192.0.2.1"), 1000, 443+uint16(i), 600, network.FlowForwarded)
		if err := kernel.Create(f); err != nil {
			t.Fatal(err)
		}
	}
	k := New(ns)
	t.Cleanup(func() { _ = k.Close() })
	func() {
		defer func() { _ = recover() }()
		_ = k.CutAll(func(Owner, Flow) bool { panic("no") })
	}()
	asked := 0
	err := k.CutAll(func(Owner, Flow) bool { asked++; return false })
	if left, dumped := kernel.Dump(nil); err != nil || dumped != nil || asked != count || len(left) != 0 {
		t.Errorf("%d were asked about, and %d are left (%v, %v)", asked, len(left), err, dumped)
	}
}

// The table is never held in memory as a whole: boxes can fill it with hundreds of thousands of entries.
func TestTheTableIsNotHeldInMemory(t *testing.T) {
	ns, kernel := emptyTable(t)
	const count = 20_000
	for i := range count {
		f := conntrack.NewFlow(unix.IPPROTO_UDP, 0, netip.MustParseAddr("10.77.0.10"), netip.AddrFrom4([4]byte{192, 0, 2, byte(i >> 12)}), 1000, 1000+uint16(i&0xfff), 600, network.FlowForwarded)
		if err := kernel.Create(f); err != nil {
			t.Fatal(err)
		}
	}
	k := New(ns)
	t.Cleanup(func() { _ = k.Close() })
	held := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := held()
	for what, read := range map[string]func(each func()) error{
		"to cut":          func(each func()) error { return k.CutAll(func(Owner, Flow) bool { each(); return true }) },
		"for the traffic": func(each func()) error { return k.Traffic(func(Flow, Traffic) { each() }) },
	} {
		n, most := 0, uint64(0)
		err := read(func() {
			if n++; n == 1 || n == count/2 || n == count {
				most = max(most, held())
			}
		})
		if err != nil || n != count || most > before+4<<20 {
			t.Errorf("%s: %d entries, %d KiB more in memory (%v)", what, n, (most-before)>>10, err)
		}
	}
}

// emptyTable returns a new network namespace, and the library's connection to its table.
func emptyTable(t *testing.T) (netns.NsHandle, *conntrack.Conn) {
	t.Helper()
	nightly.Root(t)
	ns, err := namespace.New()
	if err != nil {
		t.Fatalf("network namespaces are needed, run as root: %v", err)
	}
	t.Cleanup(func() { _ = ns.Close() })
	c, err := conntrack.Dial(&netlink.Config{NetNS: int(ns)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return ns, c
}
