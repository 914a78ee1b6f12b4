package firewall

import (
	"errors"
	"net"
	"net/netip"
	"testing"

	"boxgate/policy"
)

// cut ends all connections of the box and returns how many there were.
func (w *world) cut(id policy.BoxID) (n int) {
	w.t.Helper()
	w.must(w.fw.CutFlows(w.t.Context(), id, func(Flow) bool { n++; return false }))
	return n
}

// settled waits until what was cut has been looked at.
func (w *world) settled(id policy.BoxID) {
	w.t.Helper()
	w.wait("the look at the connections", func() bool {
		w.fw.mu.Lock()
		defer w.fw.mu.Unlock()
		return w.fw.idle.timer == nil
	})
}

// A box that has, or may have, a connection is never taken for one that has none, whatever becomes of the gateway and of
// its rules meanwhile.
func TestConnectionsAreAlwaysFound(t *testing.T) {
	w := newWorld(t)
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
	for range 2 {
		begin := connect("udp", silent4)
		begin()
		w.cut("one")
		begin() // before it has been looked at
		w.settled("one")
		if w.cut("one") == 0 {
			t.Error("a connection that began before the look was not found")
		}
		w.settled("one")
	}
}

// A box without connections costs no look at the host's, and after it had some, it costs none again.
func TestBoxWithoutConnectionsIsNotLookedUp(t *testing.T) {
	w := newWorld(t)
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
