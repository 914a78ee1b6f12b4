package report

import (
	"net/netip"
	"testing"

	"github.com/mdlayher/netlink"
	"github.com/ti-mo/conntrack"
	"golang.org/x/sys/unix"

	"boxgate/firewall/namespace"
	"boxgate/firewall/network"
)

// All connections that the kernel forwards for boxes are read, and no others; also after a read that failed.
func TestTheTableIsReadWhole(t *testing.T) {
	t.Parallel()
	ns, err := namespace.New()
	if err != nil {
		t.Fatalf("network namespaces are needed, run as root: %v", err)
	}
	defer func() { _ = ns.Close() }()
	kernel, err := conntrack.Dial(&netlink.Config{NetNS: int(ns)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = kernel.Close() }()
	table, err := openTable(int(ns))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = table.close() }()
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
	read := func(status conntrack.Status) map[string]int {
		seen := map[string]int{}
		if err := table.read(status, func(c *conntrack.Flow) { seen[c.TupleOrig.IP.DestinationAddress.String()]++ }); err != nil {
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
	if err := table.read(0, func(*conntrack.Flow) {}); err == nil {
		t.Error("read from a closed socket")
	}
	if seen := read(conntrack.StatusAssured); seen["192.0.2.2"] != 0 || seen["192.0.2.3"] != count {
		t.Errorf("read of those answered %v", seen)
	}
}
