package firewall

import (
	"context"
	"encoding/binary"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"boxgate/firewall/network"
)

// manyAddresses adds n addresses to lo of a namespace, so many that the kernel lists them in several parts.
func manyAddresses(t *testing.T, ns netns.NsHandle, n uint32) (h *netlink.Handle, lo netlink.Link, have []netip.Addr) {
	t.Helper()
	h, err := netlink.NewHandleAt(ns)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	if lo, err = h.LinkByIndex(1); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		a := netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, 198<<24|18<<16+i)))
		if err := h.AddrAdd(lo, &netlink.Addr{IPNet: network.HostNet(a)}); err != nil {
			t.Fatal(err)
		}
		have = append(have, a)
	}
	return h, lo, have
}

// restless is manyAddresses with some addresses that come and go at intervals, until the test ends; it returns the others.
func restless(t *testing.T, ns netns.NsHandle, interval time.Duration) (stay []netip.Addr) {
	t.Helper()
	h, lo, have := manyAddresses(t, ns, 1000)
	ctx, stop := context.WithCancel(context.Background())
	var moving sync.WaitGroup
	moving.Go(func() {
		for i := 0; ctx.Err() == nil; i = (i + 1) % 100 { // later ones move up in the kernel's list
			moved := &netlink.Addr{IPNet: network.HostNet(have[i])}
			if h.AddrDel(lo, moved) == nil {
				_ = h.AddrAdd(lo, moved)
			}
			if interval > 0 {
				select {
				case <-ctx.Done():
				case <-time.After(interval):
				}
			}
		}
	})
	t.Cleanup(func() {
		stop()
		moving.Wait()
	})
	return have[100:]
}

// The list of a host's addresses is as of one moment, even if there are many and some come and go.
func TestHostAddressesAreThoseOfOneMoment(t *testing.T) {
	t.Parallel()
	w := &world{t: t, gateway: newNamespace(t)}
	stay := restless(t, w.gateway, time.Millisecond)
	for range 200 {
		var got []netip.Addr
		w.must(w.in(w.gateway, func() (err error) {
			got, err = HostAddresses()
			return err
		}))
		found := map[netip.Addr]bool{}
		for _, a := range got {
			found[a] = true
		}
		for _, a := range stay {
			if !found[a] {
				t.Fatalf("%v is missing among %d", a, len(got))
			}
		}
	}
}

// The leftovers of a gateway are found even if addresses come and go, also so fast that most listings are interrupted.
func TestLeftoversAreFoundAmongAddressesThatChange(t *testing.T) {
	for name, interval := range map[string]time.Duration{"at times": time.Millisecond, "without a pause": 0} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			restless(t, w.gateway, interval)
			want := []string{w.cfg.GatewayV4.String() + "/32", w.cfg.GatewayV6.String() + "/128"}
			for range 50 {
				w.must(w.in(w.gateway, func() error {
					found, err := FindLeftovers(w.cfg.PoolV4, w.cfg.PoolV6)
					if slices.Sort(found.Addresses); err == nil && !slices.Equal(found.Addresses, want) {
						t.Errorf("the addresses %v are left, found %v", want, found.Addresses)
					}
					return err
				}))
			}
		})
	}
}
