package firewall

import (
	"context"
	"encoding/binary"
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

// checksum is the checksum of RFC 1071.
func checksum(b []byte) uint16 {
	var sum uint32
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// complain sends "host unreachable" from a box about a UDP packet from server to client.
func (w *world) complain(id policy.BoxID, server, client netip.AddrPort) {
	w.t.Helper()
	ip := make([]byte, 20)
	ip[0], ip[3], ip[8], ip[9] = 0x45, 36, 64, unix.IPPROTO_UDP
	copy(ip[12:], server.Addr().AsSlice())
	copy(ip[16:], client.Addr().AsSlice())
	binary.BigEndian.PutUint16(ip[10:], checksum(ip))
	m := append([]byte{3, 1, 0, 0, 0, 0, 0, 0}, ip...)
	for _, n := range []uint16{server.Port(), client.Port(), 16, 0, 0, 0, 0, 0} {
		m = binary.BigEndian.AppendUint16(m, n)
	}
	binary.BigEndian.PutUint16(m[2:], checksum(m))
	w.must(w.in(w.boxNS[id], func() error {
		c, err := net.Dial("ip4:icmp", server.Addr().String())
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		_, err = c.Write(m)
		return err
	}))
}

// A box that guesses the ports of another's connection cannot send errors about it to the server.
func TestErrorsAboutAnotherBoxsConnectionStayHere(t *testing.T) {
	w := newWorld(t)
	w.addBox("victim", 10)
	w.addBox("thief", 11)
	for _, id := range []policy.BoxID{"victim", "thief"} {
		w.apply(id, allow("198.51.100.0/28"))
	}
	server := w.serveUDP(w.outside, netip.AddrPortFrom(outside4, 0).String())
	c, err := w.dial(w.boxNS["victim"], "udp", server)
	w.must(err)
	_, err = ask(c, "x")
	w.must(err)
	client := addrPort(c.LocalAddr())
	arrived := func() bool {
		return w.wire.find(func(p seenPacket) bool { return p.dst == outside4 && p.proto == unix.IPPROTO_ICMP })
	}
	w.complain("thief", server, client)
	w.flushWire("thief")
	if arrived() {
		t.Error("the error of another box arrived")
	}
	w.complain("victim", server, client)
	w.wait("the box's own error arrives", arrived)
}

// The table and the routing rules are deleted together, in either order, and not restored for a while: no packet from a box
// leaves, with any source address. Neighbour entries stay, because otherwise some packets would only wait for them.
func TestNothingIsForwardedWithoutTableAndRoutingRules(t *testing.T) {
	const rules = "for f in -4 -6; do ip $f rule flush; ip $f rule add pref 0 table local; ip $f rule add pref 32766 table main; done"
	for name, damage := range map[string]string{
		"rules last":  "nft flush ruleset; " + rules,
		"rules first": rules + "; nft flush ruleset",
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.addBox("one", 10)
			w.apply("one", policy.KernelPlan{DefaultAllow: true, Denied: hosts(victims), Protected: guarded()})
			w.extraAddresses(metadata[1])
			w.pinNeighbours()
			stop := w.flood("one", append(victims, metadata...))
			passing := w.flowing("one", friends)
			w.wait("allowed packets pass", func() bool { return w.arrivedFrom(uplink4) && w.arrivedFrom(uplink6) })
			w.must(passing())
			for range 10 {
				w.shell(w.gateway, damage)
				w.forge(victims)
				w.shell(w.gateway, "ip -6 route get 2001:db8:2::7; ip route get 198.51.100.7") // the host itself is not affected
				time.Sleep(20 * time.Millisecond)
				w.must(w.fw.Restore(t.Context()))
			}
			if sent, arrived := stop(); arrived > 0 {
				t.Errorf("%d of %d packets arrived", arrived, sent)
			}
			if w.wire.find(func(p seenPacket) bool { return p.proto == unix.IPPROTO_UDP && p.src != uplink4 && p.src != uplink6 }) {
				t.Error("a packet left with another source than the host's")
			}
		})
	}
}

// pinNeighbours makes gateway and outside permanent neighbours of each other.
func (w *world) pinNeighbours() {
	w.t.Helper()
	w.shell(w.outside, "ip link set net0 address 02:00:00:00:00:02")
	w.shell(w.gateway, `ip link set up0 address 02:00:00:00:00:01
		ip neigh replace 203.0.113.10 lladdr 02:00:00:00:00:02 dev up0 nud permanent
		ip neigh replace 2001:db8:1::10 lladdr 02:00:00:00:00:02 dev up0 nud permanent`)
	w.shell(w.outside, `ip neigh replace 203.0.113.1 lladdr 02:00:00:00:00:01 dev net0 nud permanent
		ip neigh replace 2001:db8:1::1 lladdr 02:00:00:00:00:01 dev net0 nud permanent`)
}

func (w *world) arrivedFrom(src netip.Addr) bool {
	return w.wire.find(func(p seenPacket) bool { return p.src == src })
}

// forge sends from the box with sources that are not its own.
func (w *world) forge(to []netip.Addr) {
	w.t.Helper()
	for _, a := range to {
		src := netip.MustParseAddr("203.0.113.77")
		if a.Is6() {
			src = netip.MustParseAddr("2001:db8:7::7")
		}
		w.must(w.in(w.boxNS["one"], func() error { return sendFrom(src, netip.AddrPortFrom(a, floodPort)) }))
	}
}
