package report

import (
	"bytes"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/ti-mo/conntrack"
	"golang.org/x/sys/unix"

	"boxgate/audit"
	"boxgate/firewall/flow"
	"boxgate/firewall/namespace"
	"boxgate/firewall/network"
	"boxgate/internal/nightly"
)

// A connection is recorded when it begins and when it ends, not at every other change.
func TestEventsOfConnections(t *testing.T) {
	t.Parallel()
	message := make([]byte, flow.HeaderLen)
	for what, c := range map[string]struct {
		kind  netlink.HeaderType
		flags netlink.HeaderFlags
		data  []byte
		phase audit.Phase
	}{
		"it begins":                  {flow.MessageNew, netlink.Create | netlink.Excl, message, audit.PhaseOpen},
		"it ends":                    {flow.MessageDelete, 0, message, audit.PhaseEnd},
		"it is confirmed":            {flow.MessageNew, 0, message, ""},
		"it is as the table says":    {flow.MessageNew, netlink.Multi, message, ""},
		"it begins, and no more":     {flow.MessageNew, netlink.Create | netlink.Excl, message[1:], ""},
		"it is asked for":            {flow.MessageNew | 1, 0, message, ""},
		"it is none":                 {netlink.Error, 0, message, ""},
		"it ends, and nothing is it": {flow.MessageDelete, 0, nil, ""},
	} {
		if _, phase := decodeFlow(netlink.Message{Header: netlink.Header{Type: c.kind, Flags: c.flags}, Data: c.data}); phase != c.phase {
			t.Errorf("%s: %q", what, phase)
		}
	}
}

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

// hear opens a socket in a new network namespace, and returns a function that opens and closes connections there.
func hear(t *testing.T) (s *flowSocket, connections func(count int)) {
	t.Helper()
	nightly.Root(t)
	ns, err := namespace.New()
	if err != nil {
		t.Fatalf("network namespaces are needed, run as root: %v", err)
	}
	t.Cleanup(func() { _ = ns.Close() })
	if s, err = openFlows(int(ns)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.release)
	table, err := conntrack.Dial(&netlink.Config{NetNS: int(ns)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = table.Close() })
	return s, func(count int) {
		t.Helper()
		for i := range count {
			f := conntrack.NewFlow(unix.IPPROTO_UDP, 0, netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), 1000,
				uint16(i+1), 60, network.BoxMark("one")|network.FlowForwarded)
			if err := errors.Join(table.Create(f), table.Delete(f)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Events before the close of the socket are recorded, even more than one system call reads.
func TestEventsBeforeTheCloseAreHeard(t *testing.T) {
	t.Parallel()
	s, connections := hear(t)
	if err := s.setBuffer(reportBuffer); err != nil {
		t.Fatal(err)
	}
	const count = 2 * eventsPerRead
	connections(count)
	s.close()
	heard := 0
	err := s.run(func(m netlink.Message) {
		if _, phase := decodeFlow(m); phase != "" {
			heard++
		}
	}, func() { t.Error("events were lost") })
	if err != nil || heard != 2*count {
		t.Errorf("heard %d events of %d: %v", heard, 2*count, err)
	}
}

// Dropped events are noticed, and later ones are received.
func TestDroppedEventsAreNoticed(t *testing.T) {
	t.Parallel()
	s, connections := hear(t)
	if err := s.setBuffer(1); err != nil { // the minimum of the kernel
		t.Fatal(err)
	}
	connections(100)
	missed, after := 0, 0
	err := s.run(func(netlink.Message) {
		if after++; missed > 0 {
			s.close()
		}
	}, func() {
		missed++
		connections(1)
	})
	if err != nil || missed == 0 || after == 0 {
		t.Errorf("noticed %d times, %d events heard: %v", missed, after, err)
	}
}

// Any datagram is read without a panic, and messages are passed on whole.
func FuzzSplit(f *testing.F) {
	f.Add([]byte{20, 0, 0, 0, 0, 1, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0}, uint16(0x100), uint16(0x600)) // a message within another
	f.Add([]byte{2, 0, 0}, uint16(0x102), uint16(0))
	f.Fuzz(func(t *testing.T, data []byte, kind, flags uint16) {
		split(data, func(netlink.Message) {})
		m := netlink.Message{Header: netlink.Header{Length: uint32(unix.SizeofNlMsghdr + len(data)), Type: netlink.HeaderType(kind), Flags: netlink.HeaderFlags(flags)}, Data: data}
		for len(m.Data)%unix.NLMSG_ALIGNTO != 0 {
			m.Data = append(m.Data, 0)
		}
		m.Header.Length = uint32(unix.SizeofNlMsghdr + len(m.Data))
		raw, err := m.MarshalBinary()
		if err != nil {
			t.Fatal(err)
		}
		var got []netlink.Message
		split(append(raw, raw...), func(m netlink.Message) { got = append(got, m) })
		if len(got) != 2 {
			t.Fatalf("%d messages", len(got))
		}
		for _, g := range got {
			if g.Header != m.Header || !bytes.Equal(g.Data, m.Data) {
				t.Fatalf("read %+v, want %+v", g, m)
			}
		}
	})
}
