package link

import (
	"maps"
	"net"
	"strconv"
	"testing"

	"github.com/vishvananda/netlink"

	"boxgate/firewall/namespace"
	"boxgate/firewall/network"
	"boxgate/internal/nightly"
)

// The counters of one interface, of all interfaces, and in link messages are the same.
func TestTransfersAreThoseOfTheInterface(t *testing.T) {
	nightly.Root(t)
	ns, err := namespace.New()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	if err := namespace.Do(ns, func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(lo); err != nil {
			return err
		}
		c, err := net.Dial("udp", "127.0.0.1:9")
		if err != nil {
			return err
		}
		defer c.Close()
		if _, err := c.Write(make([]byte, 1000)); err != nil {
			return err
		}
		if lo, err = netlink.LinkByName("lo"); err != nil {
			return err
		}
		index, want := lo.Attrs().Index, transfer{lo.Attrs().Statistics.RxBytes, lo.Attrs().Statistics.TxBytes}
		if want.sent < 1000 {
			t.Errorf("%d bytes were sent", want.sent)
		}
		all, err := transfers()
		if err != nil || all[index] != want {
			t.Errorf("among all: %+v, %v, want %+v", all[index], err, want)
		}
		if one, ok, err := transferOf(index); !ok || err != nil || one != want {
			t.Errorf("alone: %+v, %v, %v, want %+v", one, ok, err, want)
		}
		if _, ok, err := transferOf(index + 1000); ok || err != nil {
			t.Errorf("an interface that is not there: %v, %v", ok, err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// Interfaces of an earlier run are counted before they are attached.
func TestCountersOfAnEarlierRun(t *testing.T) {
	nightly.Root(t)
	ns, err := namespace.New()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	nl, err := netlink.NewHandleAt(ns)
	if err != nil {
		t.Fatal(err)
	}
	defer nl.Close()
	left := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "left"}, PeerName: "right"}
	if err := nl.LinkAdd(left); err != nil {
		t.Fatal(err)
	}
	l, err := New(ns, nl, network.Addresses{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	got, err := l.Counters([]string{"left", "gone"})
	want := map[string]Counters{"left": {Life: strconv.Itoa(left.Index)}}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
}

// Truncated messages are rejected.
func FuzzReadStats(f *testing.F) {
	f.Add([]byte{})
	f.Add(make([]byte, statsHeader+4+200))
	f.Fuzz(func(_ *testing.T, message []byte) { readStats(message) })
}
