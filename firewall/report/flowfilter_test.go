package report

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/ti-mo/conntrack"
	"golang.org/x/sys/unix"

	"boxgate/firewall/namespace"
	"boxgate/firewall/network"
	"boxgate/internal/nightly"
)

// The gateway only receives events of connections that the kernel forwards for boxes.
func TestOnlyForwardedConnectionsAreHeard(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	ns, err := namespace.New()
	if err != nil {
		t.Fatalf("network namespaces are needed, run as root: %v", err)
	}
	defer func() { _ = ns.Close() }()
	events, err := openFlows(int(ns))
	if err != nil {
		t.Fatal(err)
	}
	defer events.release()
	table, err := conntrack.Dial(&netlink.Config{NetNS: int(ns)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = table.Close() }()
	box := network.BoxMark("one")
	forwarded := []uint32{box | network.FlowForwarded, network.BoxMark("two") | network.FlowForwarded}
	for i, mark := range []uint32{0, box, forwarded[0], network.FlowForwarded, 1 << 31, forwarded[1]} {
		f := conntrack.NewFlow(unix.IPPROTO_UDP, 0, netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), 1000, uint16(i+1), 60, mark)
		if err := errors.Join(table.Create(f), table.Delete(f)); err != nil {
			t.Fatal(err)
		}
	}
	var heard []uint32
	deadline := time.AfterFunc(time.Minute, events.close)
	defer deadline.Stop()
	want := []uint32{forwarded[0], forwarded[0], forwarded[1], forwarded[1]}
	err = events.run(func(m netlink.Message) {
		var ev conntrack.Event
		if err := ev.Unmarshal(m); err != nil {
			t.Error(err)
		}
		if heard = append(heard, ev.Flow.Mark); len(heard) == len(want) {
			events.close()
		}
	}, func() { t.Error("events were lost") })
	if err != nil || !slices.Equal(heard, want) {
		t.Errorf("heard of %x (%v), want each of %x beginning and ending", heard, err, forwarded)
	}
}
