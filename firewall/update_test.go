package firewall

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"boxgate/policy"
	"boxgate/policy/name"
)

// manyPrefixes returns n prefixes of both families that neither overlap nor touch.
func manyPrefixes(n, seed int) []netip.Prefix {
	var out []netip.Prefix
	for i := range n {
		a := netip.AddrFrom4([4]byte{100, byte(seed), byte(i >> 7), byte(i << 1)})
		out = append(out, netip.PrefixFrom(a, 32))
		b := [16]byte{0x20, 0x01, 0x0d, 0xb9, byte(seed), 0, byte(i >> 8), byte(i)}
		out = append(out, netip.PrefixFrom(netip.AddrFrom16(b), 64).Masked())
	}
	return out
}

func TestLargeSetsReadBackComplete(t *testing.T) {
	w := newWorld(t)
	w.addBox("one", 10)
	plan := allow()
	plan.Allowed = append(plan.Allowed, manyPrefixes(3000, 1)...)
	plan.Denied = manyPrefixes(1000, 2)
	w.apply("one", plan)
	c := w.nftables()
	// In IPv6 every prefix of manyPrefixes touches the next one, so they are merged into one range.
	for set, want := range map[string]int{"allow4": 2 * 3001, "deny4": 2 * 1000, "allow6": 2} {
		got, err := c.GetSetElements(&nftables.Set{Table: boxgateTable(), Name: w.fw.boxes.byID["one"].Chain() + "_" + set})
		if err != nil || len(got) != want {
			t.Errorf("set %s holds %d elements, want %d; %v", set, len(got), want, err)
		}
	}
}

func TestReplacingAThousandPrefixesLosesNoPacket(t *testing.T) {
	w := newWorld(t)
	w.addBox("one", 10)
	plan := func(i int) policy.KernelPlan {
		p := allow("198.51.100.0/28")
		p.Version = uint64(i)
		p.Allowed = append(p.Allowed, manyPrefixes(1000, i)...)
		return p
	}
	w.apply("one", plan(0))
	server := w.serveUDP(w.outside, netip.AddrPortFrom(outside4, 0).String())
	c, err := w.dial(w.boxNS["one"], "udp", server)
	w.must(err)
	var stop atomic.Bool
	failed := make(chan error, 1)
	sent := 0
	go func() {
		for ; !stop.Load(); sent++ {
			_ = c.SetDeadline(time.Now().Add(5 * time.Second)) // for this packet, however long the changes take
			if _, err := ask(c, "ping"); err != nil {
				failed <- fmt.Errorf("packet %d: %w", sent, err)
				return
			}
		}
		failed <- nil
	}()
	for i := range 20 {
		w.apply("one", plan(i+1))
	}
	stop.Store(true)
	if err := <-failed; err != nil {
		t.Error(err)
	}
	if sent < 100 {
		t.Errorf("only %d packets were sent meanwhile", sent)
	}
	if n := w.count("refused_" + string(name.ReasonNotAllowed)); n != 0 {
		t.Errorf("%d packets were refused", n)
	}
}

func TestTighteningCutsForwardedConnections(t *testing.T) {
	w := newWorld(t)
	w.addBox("one", 10)
	w.addBox("two", 11)
	wide := allow("198.51.100.0/24", "2001:db8:2::/48")
	w.apply("one", wide)
	w.apply("two", wide)
	server := w.serveTCP(w.outside, ":0", nil)
	kept := netip.MustParseAddr("198.51.100.20")
	open := func(box policy.BoxID, to netip.Addr) func() error {
		c, err := w.dial(w.boxNS[box], "tcp", netip.AddrPortFrom(to, server.Port()))
		w.must(err)
		_, err = ask(c, "before")
		w.must(err)
		return func() error { _, err := ask(c, "after"); return err }
	}
	cut4, cut6, stays, other := open("one", outside4), open("one", outside6), open("one", kept), open("two", outside4)

	w.apply("one", allow("198.51.100.20/32"))
	judged := map[netip.Addr]int{}
	w.must(w.fw.CutFlows(context.Background(), "one", func(f Flow) bool {
		if f.Protocol != policy.TCP || f.Dst.Port() != server.Port() || !f.Src.IsValid() {
			t.Errorf("flow %+v", f)
		}
		judged[f.Dst.Addr()]++
		return f.Dst.Addr() == kept
	}))
	if len(judged) != 3 || judged[kept] != 1 || judged[outside4] != 1 || judged[outside6] != 1 {
		t.Errorf("asked about %v", judged)
	}
	for name, send := range map[string]func() error{"v4": cut4, "v6": cut6} {
		if err := send(); !errors.Is(err, unix.ECONNRESET) && !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("%s: the connection lives on: %v", name, err)
		}
	}
	if err := stays(); err != nil {
		t.Errorf("an allowed connection was disturbed: %v", err)
	}
	if err := other(); err != nil {
		t.Errorf("another box's connection was disturbed: %v", err)
	}
}

func TestRestartAdoptsBoxes(t *testing.T) {
	w := newWorld(t)
	w.addBox("one", 10)
	w.addBox("gone", 11)
	w.apply("one", allow("198.51.100.0/28"))
	w.apply("gone", allow("198.51.100.0/28"))
	server := w.serveTCP(w.outside, ":0", nil)
	to := netip.AddrPortFrom(outside4, server.Port())
	c, err := w.dial(w.boxNS["one"], "tcp", to)
	w.must(err)
	works := func(when string) {
		t.Helper()
		if _, err := ask(c, "x"); err != nil {
			t.Errorf("%s: the open connection: %v", when, err)
		}
		if _, err := w.exchange(w.boxNS["one"], "tcp", to, "x"); err != nil {
			t.Errorf("%s: a new connection: %v", when, err)
		}
		if _, err := w.dial(w.boxNS["one"], "tcp", netip.AddrPortFrom(netip.MustParseAddr("203.0.113.10"), 80)); err == nil {
			t.Errorf("%s: open", when)
		}
	}
	w.must(w.fw.Close())
	works("while no gateway runs")
	w.open()
	works("after the start")
	w.addBox("one", 10)
	works("after the box was added again")
	w.apply("one", allow("198.51.100.0/29"))
	works("after a new plan")
	w.must(w.fw.Prune(context.Background()))
	works("after pruning")
	if _, err := w.dial(w.boxNS["gone"], "tcp", to); !errors.Is(err, unix.ENETUNREACH) {
		t.Errorf("a box that was not added again: %v", err)
	}
	chains, err := w.nftables().ListChainsOfTableFamily(nftables.TableFamilyINet)
	w.must(err)
	for _, ch := range chains {
		if strings.Contains(ch.Name, "gone") {
			t.Errorf("chain %s is still there", ch.Name)
		}
	}
}

func TestAddedAgainWithAnotherAddress(t *testing.T) {
	w := newWorld(t)
	w.addBox("one", 10)
	w.apply("one", allow("198.51.100.0/28"))
	w.must(w.fw.Close())
	w.open()
	a := w.addBox("one", 12)
	w.apply("one", allow("198.51.100.0/28"))
	server := w.serveTCP(w.outside, ":0", nil)
	if _, err := w.exchange(w.boxNS["one"], "tcp", netip.AddrPortFrom(outside4, server.Port()), "x"); err != nil {
		t.Error(err)
	}
	before := w.count("refused_" + string(name.ReasonSpoofed))
	w.must(w.in(w.boxNS["one"], func() error {
		return sendFrom(netip.MustParseAddr("10.77.0.10"), netip.AddrPortFrom(outside4, 9))
	}))
	w.wait("the old address is refused", func() bool { return w.count("refused_"+string(name.ReasonSpoofed)) > before })
	if b := w.addBox("two", 10); b.V4 == a.V4 {
		t.Error("same address")
	}
}

func TestAttachmentsThatAreRefused(t *testing.T) {
	w := newWorld(t)
	a := w.addBox("one", 10)
	for name, change := range map[string]func(*Attachment){
		"address of another box": func(*Attachment) {},
		"gateway":                func(a *Attachment) { a.V4 = w.cfg.GatewayV4 },
		"sink":                   func(a *Attachment) { a.V6 = w.cfg.SinkV6 },
		"outside the pool":       func(a *Attachment) { a.V4 = outside4 },
		"no address":             func(a *Attachment) { a.V6 = netip.Addr{} },
		"bad ID":                 func(a *Attachment) { a.Box = "../etc" },
		"no namespace":           func(a *Attachment) { a.V4, a.V6, a.NetNS = a.V4.Next(), a.V6.Next(), "/proc/self/fd/0" },
	} {
		b := a
		b.Box = "two"
		change(&b)
		if err := w.fw.AddBox(context.Background(), b); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	w.must(w.fw.RemoveBox(context.Background(), "two"))
	w.addBox("two", 11)
}

// Boxes are added, changed and removed concurrently.
func TestConcurrentUse(t *testing.T) {
	w := newWorld(t)
	w.addBox("stays", 250)
	w.apply("stays", allow("198.51.100.0/28"))
	done := make(chan error)
	const boxes = 8
	var attachments []Attachment
	for i := range boxes {
		id := policy.BoxID(fmt.Sprintf("box%d", i))
		w.boxNS[id] = newNamespace(t)
		attachments = append(attachments, Attachment{Box: id, NetNS: fmt.Sprintf("/proc/self/fd/%d", int(w.boxNS[id])),
			V4: netip.AddrFrom4([4]byte{10, 77, 1, byte(i)}), V6: netip.MustParseAddr(fmt.Sprintf("fd77::1:%x", i))})
	}
	for _, a := range attachments {
		go func() {
			ctx := context.Background()
			err := w.fw.AddBox(ctx, a)
			for i := range 5 {
				p := allow()
				p.Allowed = append(p.Allowed, manyPrefixes(1+rand.IntN(50), i)...)
				err = errors.Join(err, w.fw.Apply(ctx, a.Box, p), w.fw.CutFlows(ctx, a.Box, func(Flow) bool { return true }))
			}
			done <- errors.Join(err, w.fw.RemoveBox(ctx, a.Box))
		}()
	}
	for range boxes {
		w.must(<-done)
	}
	w.flushWire("stays")
}

// If the client disconnects, a completed change does not fail, and no box stays half removed.
func TestCancelledWhileItWorks(t *testing.T) {
	w := newWorld(t)
	w.addBox("one", 10)
	w.apply("one", allow("198.51.100.0/28"))
	w.flushWire("one")
	ctx, cancel := context.WithCancel(t.Context())
	cut := 0
	err := w.fw.CutFlows(ctx, "one", func(Flow) bool {
		cancel()
		cut++
		return false
	})
	if err != nil || cut == 0 {
		t.Errorf("cut %d connections: %v", cut, err)
	}
	if err := w.fw.RemoveBox(ctx, "one"); err != nil {
		t.Error(err)
	}
	w.addBox("two", 10) // its address is free again
}
