package firewall

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"boxgate/policy"
)

// cut cuts all connections of the box and returns their number.
func (w *world) cut(id policy.BoxID) (n int) {
	w.t.Helper()
	w.must(w.fw.CutFlows(w.t.Context(), id, func(Flow) bool { n++; return false }))
	return n
}

// lookSoon shortens the wait before the firewall looks at boxes that seem to have no connections.
func (w *world) lookSoon() {
	w.fw.mu.Lock()
	defer w.fw.mu.Unlock()
	w.fw.idle.wait = 100 * time.Millisecond
}

// settled waits until the look after a cut is done.
func (w *world) settled(id policy.BoxID) {
	w.t.Helper()
	w.wait("the look at the connections", func() bool {
		w.fw.mu.Lock()
		defer w.fw.mu.Unlock()
		return w.fw.idle.timer == nil
	})
}

// A box that has, or may have, a connection is never taken for one without, whatever happens to the gateway and its rules.
func TestConnectionsAreAlwaysFound(t *testing.T) {
	w := newWorld(t)
	w.lookSoon()
	open := func() {
		w.addBox("one", 10)
		w.apply("one", allow("198.51.100.0/28", "2001:db8:2::/64"))
	}
	open()
	server := w.serveTCP(w.outside, ":0", nil)
	silent4, any := w.silentUDP("198.51.100.9:0"), w.silentUDP("[::]:0")
	connect := func(kind string, to netip.AddrPort) func() {
		return func() {
			c, err := w.dial(w.boxNS["one"], kind, to)
			w.must(err)
			_, err = c.Write([]byte("x"))
			w.must(err)
		}
	}
	for name, begin := range map[string]func(){
		"tcp": connect("tcp", netip.AddrPortFrom(outside4, server.Port())), "udp": connect("udp", silent4),
		"udp over IPv6": connect("udp", netip.AddrPortFrom(outside6, any.Port())),
		"ping":          func() { w.shell(w.boxNS["one"], "ping -c 1 -W 5 198.51.100.7") },
	} {
		for when, happens := range map[string]func(){
			"meanwhile nothing happens": func() {},
			"the rules are restored":    func() { w.must(w.fw.Restore(t.Context())) },
			"the gateway starts anew":   func() { w.must(w.fw.Close()); w.open(); open() },
			"it starts without its rules": func() {
				w.must(w.fw.Close())
				w.shell(w.gateway, "nft delete table inet boxgate")
				w.open()
				open()
			},
			"the box is added again": open,
		} {
			begin()
			happens()
			if n := w.cut("one"); n == 0 {
				t.Errorf("%s, %s: the connection was not found", name, when)
			}
		}
	}
	w.lookSoon() // for the last opened firewall
	for range 2 {
		begin := connect("udp", silent4)
		begin()
		w.cut("one")
		begin() // before the look
		w.settled("one")
		if w.cut("one") == 0 {
			t.Error("a connection that began before the look was not found")
		}
		w.settled("one")
	}
}

// A box without connections causes no read of the connection table, also after earlier ones have ended.
func TestBoxWithoutConnectionsIsNotLookedUp(t *testing.T) {
	w := newWorld(t)
	w.lookSoon()
	w.addBox("one", 10)
	w.addBox("two", 11)
	w.addBox("three", 12)
	silent := w.silentUDP("198.51.100.9:0")
	for _, id := range []policy.BoxID{"one", "two"} {
		w.apply(id, allow("198.51.100.0/28"))
		w.openUDP(id, silent, 1)
	}
	w.cut("one")
	w.settled("one")
	w.must(w.fw.flows.Close()) // from here on the table cannot be read
	for id, want := range map[policy.BoxID]error{"one": nil, "two": net.ErrClosed, "three": nil} {
		if err := w.fw.CutFlows(t.Context(), id, func(Flow) bool { return false }); !errors.Is(err, want) {
			t.Errorf("box %s: %v, want %v", id, err, want)
		}
	}
}

// talker starts a flow from the box to a UDP server outside, and returns a function that reports whether the server can
// still reach the box through it.
func (w *world) talker(id policy.BoxID) (reaches func() bool) {
	w.t.Helper()
	var server net.PacketConn
	w.must(w.in(w.outside, func() (err error) { server, err = net.ListenPacket("udp", "198.51.100.9:0"); return err }))
	w.t.Cleanup(func() { _ = server.Close() })
	c := w.openUDP(id, addrPort(server.LocalAddr()), 1)[0]
	b := make([]byte, 100)
	_ = server.SetReadDeadline(time.Now().Add(time.Minute))
	_, peer, err := server.ReadFrom(b)
	w.must(err)
	return func() bool {
		_, _ = server.WriteTo([]byte("pushed"), peer)
		_ = c.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
		n, _ := c.Read(b)
		return n > 0
	}
}

// A flow of an earlier run, which began before its box is known again, is cut by the next policy although the first
// attempts to attach the box fail, which a box can cause.
func TestConnectionsOfABoxThatFailsToAttach(t *testing.T) {
	for name, attempt := range map[string]func(*world, Attachment){
		"its namespace cannot be opened": func(w *world, a Attachment) {
			a.NetNS = "/proc/self/fd/9999"
			if w.fw.AddBox(w.t.Context(), a) == nil {
				w.t.Fatal("it was attached")
			}
		},
		"and it is removed": func(w *world, a Attachment) {
			a.NetNS = "/proc/self/fd/9999"
			if w.fw.AddBox(w.t.Context(), a) == nil {
				w.t.Fatal("it was attached")
			}
			w.must(w.fw.RemoveBox(w.t.Context(), a.Box))
		},
		"the box has renamed its interface": func(w *world, a Attachment) {
			w.shell(w.boxNS[a.Box], "ip link set eth0 down; ip link set eth0 name was; ip link set was up; ip link add eth0 type veth peer name other")
			if errs := w.fw.AddBoxes(w.t.Context(), []Attachment{a}); errs[0] == nil {
				w.t.Fatal("it was attached")
			}
			w.shell(w.boxNS[a.Box], "ip link del eth0")
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			a := w.addBox("one", 10)
			w.apply("one", allow("198.51.100.0/28"))
			w.must(w.fw.Close())
			w.open()
			reaches := w.talker("one") // under the plan of the earlier run
			attempt(w, a)
			w.addBox("one", 10)
			w.apply("one", allow("203.0.113.0/24"))
			if w.cut("one"); reaches() {
				t.Error("a denied server reaches the box")
			}
		})
	}
}

// While the table or the notes are deleted by another program, no box is taken for one without connections.
func TestConnectionsWhileTheRulesAreGone(t *testing.T) {
	for name, gone := range map[string]string{"the table": "nft flush ruleset", "the notes": "nft flush set inet boxgate notes"} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.addBox("one", 10)
			w.apply("one", allow("198.51.100.0/28"))
			reaches := w.talker("one")
			w.apply("one", allow("203.0.113.0/24"))
			w.shell(w.gateway, gone)
			w.cut("one")
			w.must(w.fw.Restore(t.Context()))
			if reaches() {
				t.Error("a denied server reaches the box")
			}
		})
	}
}

// If a box is removed while the notes are gone, its connections do not pass to its successor.
func TestConnectionsOfABoxRemovedWithoutNotes(t *testing.T) {
	w := newWorld(t)
	w.addBox("one", 10)
	w.apply("one", allow("198.51.100.0/28"))
	reaches := w.talker("one")
	w.shell(w.gateway, "nft flush set inet boxgate notes")
	w.must(w.fw.RemoveBox(t.Context(), "one"))
	w.must(w.fw.Restore(t.Context()))
	w.addBox("one", 10)
	w.apply("one", allow("203.0.113.0/24"))
	if w.cut("one"); reaches() {
		t.Error("a denied server reaches the box")
	}
}
