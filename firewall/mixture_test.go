package firewall

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"boxgate/internal/nightly"
	"boxgate/policy"
)

// Destinations of the floods in these tests. No plan in this file allows a forbidden address, before or after any change.
var (
	metadata = []netip.Addr{netip.MustParseAddr("169.254.169.254"), netip.MustParseAddr("fd00:ec2::254")}
	victims  = []netip.Addr{outside4, outside6}
	friends  = []netip.Addr{netip.MustParseAddr("198.51.100.20"), netip.MustParseAddr("2001:db8:2::20")}
)

const floodPort = 4444

// control determines how a test proves that packets flow.
type control int

const (
	itself control = iota // every change waits until a packet has passed
	now                   // friends are allowed some of the time: some packets to them arrive
	always                // friends are allowed before and after every change: no packet to them is lost
)

// A packet meets the whole old state or the whole new one: packets that both deny never leave, and packets that both allow
// are never lost.
func TestNoPacketMeetsAMixture(t *testing.T) {
	denyAll := policy.KernelPlan{Protected: guarded()}
	denied := policy.KernelPlan{DefaultAllow: true, Denied: hosts(victims), Protected: guarded()}
	allowAll := policy.KernelPlan{DefaultAllow: true, Protected: guarded()}
	nested := func(more ...string) policy.KernelPlan {
		p := allow(append(more, "198.51.100.0/24", "2001:db8:2::/48")...)
		p.Denied = append(hosts(victims), manyPrefixes(len(more), 7)...)
		return p
	}
	protecting := func(more int) policy.KernelPlan {
		p := allowAll
		p.Protected = append(guarded(), manyPrefixes(more, 7)...)
		return p
	}
	for name, kind := range map[string]struct {
		forbidden []netip.Addr
		control   control
		change    func(w *world) func(i int)
	}{
		"deny all, deny some": {victims, now, alternately(denyAll, denied)},
		"denied inside allowed": {victims, always,
			alternately(nested(), nested("192.0.2.0/24", "2001:db8:3::/48"))},
		"exceptions in a denied range": {victims, always, alternately(
			specific(t, []string{"198.51.100.0/24", "198.51.100.20", "2001:db8:2::/64", "2001:db8:2::20"}, []string{"198.51.100.0/27", "2001:db8:2::/122"}),
			specific(t, []string{"198.51.100.0/24", "198.51.100.16/28", "2001:db8:2::/64", "2001:db8:2::20/124"}, []string{"198.51.100.0/27", "198.51.100.7", "2001:db8:2::/122"}))},
		"precedence changed": {victims, now, alternately(
			specific(t, []string{"198.51.100.0/24", "198.51.100.20", "2001:db8:2::/64", "2001:db8:2::20"}, []string{"198.51.100.0/27", "2001:db8:2::/122"}),
			policy.KernelPlan{Allowed: prefixes("198.51.100.0/24", "2001:db8:2::/64"), Denied: prefixes("198.51.100.0/27", "2001:db8:2::/122"), Protected: guarded()})},
		"allowed swapped": {victims, now, alternately(allow("198.51.100.16/29", "2001:db8:2::20/124"),
			allow("198.51.100.64/28", "2001:db8:2::40/124"))},
		"shared with another box": {victims, now, func(w *world) func(int) {
			w.addBox("two", 11)
			w.apply("two", denied)
			return alternately(denyAll, denied, allow("198.51.100.16/29", "2001:db8:2::20/124"))(w)
		}},
		"protected ranges": {metadata, always, alternately(protecting(1), protecting(2))},
		"flush and restore": {metadata, itself, func(w *world) func(int) {
			w.apply("one", allowAll)
			return func(int) {
				w.flushRuleset()
				w.must(w.fw.Restore(w.t.Context()))
				w.flushWire("one")
			}
		}},
		"attach": {victims, itself, func(w *world) func(int) {
			return func(int) {
				w.must(w.fw.RemoveBox(w.t.Context(), "one"))
				w.addBox("one", 10)
				w.apply("one", denied)
				w.flushWire("one")
			}
		}},
		"start with another limit": {victims, itself, func(w *world) func(int) {
			return func(i int) {
				w.must(w.fw.Close())
				w.cfg.FlowLimit = uint32(1000 + i)
				w.open()
				w.addBox("one", 10)
				w.apply("one", denied)
				w.flushWire("one")
			}
		}},
		"start": {victims, always, func(w *world) func(int) {
			w.apply("one", denied)
			return func(int) {
				w.must(w.fw.Close())
				w.open()
				w.addBox("one", 10)
				w.apply("one", denied)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.addBox("one", 10)
			w.extraAddresses(metadata[1])
			change := kind.change(w)
			change(0)
			change(1)
			out := w.flood("one", kind.forbidden)
			allowed := func() error { return nil }
			switch kind.control {
			case now:
				allowed = w.flowing("one", friends)
			case always:
				allowed = w.pingPong("one", friends)
			}
			n := repeat(nightly.Size(500*time.Millisecond, 3*time.Second), 800, func(i int) { change(i) })
			if err := allowed(); err != nil {
				t.Error(err)
			}
			sent, forbidden := out()
			if sent < uint64(n) || forbidden > 0 {
				t.Errorf("%d of %d forbidden packets arrived in %d changes", forbidden, sent, n)
			}
			t.Logf("%d changes, %d packets", n, sent)
		})
	}
}

// alternately applies the plans in turn.
func alternately(plans ...policy.KernelPlan) func(*world) func(int) {
	return func(w *world) func(int) {
		return func(i int) {
			p := plans[i%len(plans)]
			p.Version = uint64(i)
			w.apply("one", p)
		}
	}
}

// repeat calls change a number of times, or until the time is over, but at least five times.
func repeat(most time.Duration, times int, change func(int)) int {
	for i, end := 0, time.Now().Add(most); i < times; i++ {
		if i >= 5 && time.Now().After(end) {
			return i
		}
		change(i)
	}
	return times
}

func hosts(list []netip.Addr) []netip.Prefix {
	var out []netip.Prefix
	for _, a := range list {
		out = append(out, netip.PrefixFrom(a, a.BitLen()))
	}
	return out
}

// extraAddresses makes the outside answer for more addresses.
func (w *world) extraAddresses(list ...netip.Addr) {
	w.t.Helper()
	h, err := netlink.NewHandleAt(w.outside)
	w.must(err)
	defer h.Close()
	for _, a := range list {
		w.localRange(h, netip.PrefixFrom(a, a.BitLen()).String())
	}
}

func (w *world) flushRuleset() { w.shell(w.gateway, "nft flush ruleset") }

// flood sends datagrams from a box to the addresses, as fast as it can, until stop is called, which returns how many were
// sent and have arrived.
func (w *world) flood(id policy.BoxID, to []netip.Addr) (stop func() (sent, arrived uint64)) {
	w.t.Helper()
	var sent, arrived atomic.Uint64
	var done atomic.Bool
	var senders sync.WaitGroup
	for _, a := range to {
		w.countArrivals(netip.AddrPortFrom(a, floodPort), &arrived)
		fd, to := w.sender(id, a)
		senders.Go(func() {
			defer func() { _ = unix.Close(fd) }()
			for ; !done.Load(); sent.Add(1) {
				_ = unix.Sendto(fd, []byte("flood"), 0, to)
			}
		})
	}
	return func() (uint64, uint64) {
		done.Store(true)
		senders.Wait()
		return sent.Load(), arrived.Load()
	}
}

// flowing is flood for addresses that are allowed at least some of the time: some packets must arrive.
func (w *world) flowing(id policy.BoxID, to []netip.Addr) (stop func() error) {
	w.t.Helper()
	end := w.flood(id, to)
	return func() error {
		sent, arrived := end()
		for until := time.Now().Add(time.Minute); arrived == 0 && time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
			_, arrived = end() // the receivers may not have read everything yet
		}
		if arrived == 0 {
			return fmt.Errorf("none of %d allowed packets arrived: the flood does not flow", sent)
		}
		return nil
	}
}

// sender opens a socket in the box's namespace that ignores ICMP errors.
func (w *world) sender(id policy.BoxID, a netip.Addr) (int, unix.Sockaddr) {
	w.t.Helper()
	domain, to := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: floodPort, Addr: a.As16()})
	if a.Is4() {
		domain, to = unix.AF_INET, &unix.SockaddrInet4{Port: floodPort, Addr: a.As4()}
	}
	var fd int
	w.must(w.in(w.boxNS[id], func() (err error) {
		fd, err = unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		return err
	}))
	return fd, to
}

// countArrivals counts the datagrams that reach an address outside.
func (w *world) countArrivals(at netip.AddrPort, n *atomic.Uint64) {
	w.t.Helper()
	var pc net.PacketConn
	w.must(w.in(w.outside, func() (err error) {
		pc, err = listenConfig(transparent).ListenPacket(context.Background(), "udp", at.String())
		return err
	}))
	w.t.Cleanup(func() { _ = pc.Close() })
	go func() {
		for buf := make([]byte, 64); ; n.Add(1) {
			if _, _, err := pc.ReadFrom(buf); err != nil {
				return
			}
		}
	}()
}

// pingPong sends one datagram after another to each address and waits for each answer, until stop is called, which reports
// the first lost one.
func (w *world) pingPong(id policy.BoxID, to []netip.Addr) (stop func() error) {
	w.t.Helper()
	var done atomic.Bool
	failed := make(chan error, len(to))
	for _, a := range to {
		server := w.serveUDP(w.outside, netip.AddrPortFrom(a, 0).String())
		c, err := w.dial(w.boxNS[id], "udp", server)
		w.must(err)
		go func() {
			for i := 0; !done.Load(); i++ {
				_ = c.SetDeadline(time.Now().Add(time.Minute))
				if _, err := ask(c, "ping"); err != nil {
					failed <- fmt.Errorf("packet %d to %v, which is allowed before and after, was lost: %w", i, a, err)
					return
				}
			}
			failed <- nil
		}()
	}
	return func() error {
		done.Store(true)
		var err error
		for range to {
			if e := <-failed; e != nil {
				err = e
			}
		}
		return err
	}
}
