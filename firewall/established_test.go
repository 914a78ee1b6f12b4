package firewall

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/internal/nightly"
	"boxgate/policy"
)

// A flood on an existing flow does not keep the flow open: no packet that the box sends after its flow was cut arrives, and
// no packet of an allowed flow is lost. Each round closes other addresses, for good.
func TestAFloodDoesNotKeepAFlowOpen(t *testing.T) {
	w := newWorld(t)
	w.addBox("one", 10)
	kept := []string{"198.51.100.20/32", "2001:db8:2::20/128"}
	w.apply("one", allow(kept...))
	undisturbed := w.pingPong("one", friends)
	var rounds []*talk
	repeat(nightly.Size(time.Second, 3*time.Second), 100, func(i int) {
		to := []netip.Addr{netip.AddrFrom4([4]byte{198, 51, 100, byte(22 + i)}), netip.MustParseAddr(fmt.Sprintf("2001:db8:2::%x", 0x22+i))}
		w.apply("one", allow(append(kept, to[0].String()+"/32", to[1].String()+"/128")...))
		flood := w.talk("one", to)
		flood.awaitAnswers()
		w.apply("one", allow(kept...))
		w.must(w.fw.CutFlows(t.Context(), "one", func(f Flow) bool { return slices.Contains(friends, f.Dst.Addr()) }))
		flood.forbidden.Store(true)
		flood.awaitSent(100)
		flood.end()
		flood.check()
		rounds = append(rounds, flood)
	})
	if err := undisturbed(); err != nil {
		t.Error(err)
	}
	w.flushWire("one")
	for _, flood := range rounds {
		flood.check()
	}
}

// talk is a flood of datagrams on flows that the other side answers.
type talk struct {
	w         *world
	forbidden atomic.Bool // packets to the closed addresses must not arrive from now on
	done      atomic.Bool
	senders   sync.WaitGroup
	sent      []*atomic.Uint64 // to each address
	answers   []*atomic.Uint64 // of each address
	late      atomic.Uint64    // packets that arrived although forbidden
}

// talk starts a flood to servers that answer, one flow per address.
func (w *world) talk(id policy.BoxID, to []netip.Addr) *talk {
	w.t.Helper()
	f := &talk{w: w}
	for _, a := range to {
		server, answers, sent := netip.AddrPortFrom(a, floodPort), new(atomic.Uint64), new(atomic.Uint64)
		f.answers, f.sent = append(f.answers, answers), append(f.sent, sent)
		f.serve(server)
		fd, to := w.sender(id, a)
		f.senders.Go(func() {
			defer func() { _ = unix.Close(fd) }()
			for buf := make([]byte, 16); !f.done.Load(); sent.Add(1) {
				word := "may"
				if f.forbidden.Load() {
					word = "may not"
				}
				_ = unix.Sendto(fd, []byte(word), 0, to)
				if n, _, err := unix.Recvfrom(fd, buf, unix.MSG_DONTWAIT); err == nil && n > 0 {
					answers.Add(1)
				}
			}
		})
	}
	w.t.Cleanup(f.end)
	return f
}

// serve answers packets to an address, and counts forbidden ones.
func (f *talk) serve(at netip.AddrPort) {
	f.w.t.Helper()
	var pc net.PacketConn
	f.w.must(f.w.in(f.w.outside, func() (err error) {
		pc, err = listenConfig(transparent).ListenPacket(context.Background(), "udp", at.String())
		return err
	}))
	f.w.t.Cleanup(func() { _ = pc.Close() })
	go func() {
		for buf := make([]byte, 16); ; {
			n, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			if string(buf[:n]) == "may not" {
				f.late.Add(1)
			}
			_, _ = pc.WriteTo(buf[:n], from)
		}
	}()
}

// awaitAnswers waits until every flow has been answered since the call: all are established.
func (f *talk) awaitAnswers() { f.await("answers of every server", f.answers, 1) }

// awaitSent waits until n datagrams have been sent on every flow since the call.
func (f *talk) awaitSent(n uint64) { f.await("the flood", f.sent, n) }

func (f *talk) await(what string, counts []*atomic.Uint64, n uint64) {
	f.w.t.Helper()
	for _, c := range counts {
		before := c.Load()
		f.w.wait(what, func() bool { return c.Load() >= before+n })
	}
}

// check fails the test if a forbidden packet has arrived.
func (f *talk) check() {
	f.w.t.Helper()
	if late := f.late.Load(); late > 0 {
		f.w.t.Fatalf("%d datagrams arrived that were sent after their flow was cut", late)
	}
}

func (f *talk) end() {
	f.done.Store(true)
	f.senders.Wait()
}
