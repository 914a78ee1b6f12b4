package firewall

import (
	"net"
	"net/netip"
	"testing"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
)

// openUDP sends one datagram from each of n sockets of the box, which creates n connections in the kernel.
func (w *world) openUDP(id policy.BoxID, to netip.AddrPort, n int) []net.Conn {
	w.t.Helper()
	var out []net.Conn
	for range n {
		c, err := w.dial(w.boxNS[id], "udp", to)
		w.must(err)
		_, err = c.Write([]byte("x"))
		w.must(err)
		out = append(out, c)
	}
	return out
}

// silentUDP is a server outside that never answers.
func (w *world) silentUDP(listen string) netip.AddrPort {
	w.t.Helper()
	var pc net.PacketConn
	w.must(w.in(w.outside, func() (err error) {
		pc, err = net.ListenPacket("udp", listen)
		return err
	}))
	w.t.Cleanup(func() { _ = pc.Close() })
	return addrPort(pc.LocalAddr())
}

func TestConnectionsOfOneBoxAreLimited(t *testing.T) {
	w := newWorld(t)
	w.must(w.fw.Close())
	w.cfg.FlowLimit = 8
	w.open()
	w.addBox("one", 10)
	w.addBox("two", 11)
	w.apply("one", allow("198.51.100.0/24", "2001:db8:2::/48"))
	w.apply("two", allow("198.51.100.0/24"))
	server := w.serveUDP(w.outside, netip.AddrPortFrom(outside4, 0).String())
	dns := w.serveUDP(w.gateway, netip.AddrPortFrom(w.cfg.GatewayV4, w.cfg.DNSPort).String())

	// One connection may send any amount, even before the first answer.
	unanswered := w.silentUDP("198.51.100.9:0")
	many := w.openUDP("one", unanswered, 1)[0]
	for range 200 {
		_, err := many.Write([]byte("x"))
		w.must(err)
	}
	if n := w.count("refused_" + string(name.ReasonLimit)); n != 0 {
		t.Fatalf("%d packets of one connection were refused", n)
	}

	w.openUDP("one", unanswered, 7)
	c, err := w.dial(w.boxNS["one"], "udp", server)
	w.must(err)
	if _, err := ask(c, "one too many"); err == nil {
		t.Error("the ninth connection was let through")
	}
	w.waitEvent("the refusal", func(e audit.Event) bool {
		return e.Reason == name.ReasonLimit && e.Box == "one" && e.Verdict == policy.Deny && e.Addr == outside4
	})
	if _, err := w.exchange(w.boxNS["two"], "udp", server, "x"); err != nil {
		t.Errorf("another box: %v", err)
	}
	if _, err := w.exchange(w.boxNS["one"], "udp", dns, "x"); err != nil {
		t.Errorf("DNS of a box that has all its connections: %v", err)
	}
	w.openUDP("one", dns, 7)
	if _, err := w.exchange(w.boxNS["one"], "udp", dns, "x"); err == nil {
		t.Error("the ninth connection to the gateway was let through")
	}
	w.must(w.fw.CutFlows(t.Context(), "one", func(Flow) bool { return false }))
	w.wait("there is room again", func() bool {
		_, err := w.exchange(w.boxNS["one"], "udp", server, "x")
		return err == nil
	})
}

// Lookups from a port that was used before lead to the current gateway, not to the port of an earlier run.
func TestLookupsReachTheGatewayThatRuns(t *testing.T) {
	w := newWorld(t)
	w.addBox("one", 10)
	gateways := []netip.Addr{w.cfg.GatewayV4, w.cfg.GatewayV6}
	var earlier []net.PacketConn
	var clients []net.Conn
	for _, a := range gateways {
		pc := w.listenUDP(w.gateway, netip.AddrPortFrom(a, w.cfg.DNSPort).String())
		earlier = append(earlier, pc)
		c, err := w.dial(w.boxNS["one"], "udp", netip.AddrPortFrom(a, 53))
		w.must(err)
		if _, err := ask(c, "before"); err != nil {
			t.Fatal(err)
		}
		clients = append(clients, c)
	}
	w.must(w.fw.Close())
	for _, pc := range earlier {
		w.must(pc.Close())
	}
	w.cfg.DNSPort++
	for _, a := range gateways {
		w.serveUDP(w.gateway, netip.AddrPortFrom(a, w.cfg.DNSPort).String())
	}
	w.open()
	w.addBox("one", 10)
	for _, c := range clients {
		if _, err := ask(c, "after"); err != nil {
			t.Errorf("%v: %v", c.RemoteAddr(), err)
		}
	}
}

// A box that has reached its limit of connections to the proxy can still resolve names.
func TestConnectionsToTheProxyLeaveRoomForLookups(t *testing.T) {
	w := newWorld(t)
	w.must(w.fw.Close())
	w.cfg.FlowLimit = 8
	w.open()
	w.serveProxy()
	w.addBox("one", 10)
	w.apply("one", steer())
	dns := w.serveUDP(w.gateway, netip.AddrPortFrom(w.cfg.GatewayV4, w.cfg.DNSPort).String())
	to := netip.AddrPortFrom(outside4, 443)
	for range 8 {
		_, err := w.dial(w.boxNS["one"], "tcp", to)
		w.must(err)
	}
	if _, err := w.dial(w.boxNS["one"], "tcp", to); err == nil {
		t.Error("the ninth connection to the proxy was let through")
	}
	if _, err := w.exchange(w.boxNS["one"], "udp", dns, "x"); err != nil {
		t.Errorf("DNS of a box that has all its connections to the proxy: %v", err)
	}
}

func TestEveryConnectionIsReported(t *testing.T) {
	w := newWorld(t)
	w.addBox("one", 10)
	w.addBox("two", 11)
	w.apply("one", allow("198.51.100.0/28"))
	w.apply("two", allow("198.51.100.0/28"))
	to := w.silentUDP("198.51.100.7:0")
	const flows = 1500
	for range flows / 100 {
		for _, c := range w.openUDP("one", to, 100) {
			_ = c.Close()
		}
	}
	w.openUDP("two", to, 1)
	w.waitEvent("another box's connection", func(e audit.Event) bool { return e.Box == "two" })
	w.must(w.fw.CutFlows(t.Context(), "one", func(Flow) bool { return false }))
	for name, ended := range map[string]bool{"beginnings": false, "ends": true} {
		var total, bytes uint64
		w.wait("events stand for all "+name, func() bool {
			total, bytes = 0, 0
			w.events.find(func(e audit.Event) bool {
				if e.Box == "one" && (e.BytesOut > 0) == ended {
					total, bytes = total+max(e.Count, 1), bytes+uint64(e.BytesOut)
				}
				return false
			})
			return total >= flows*9/10 // a port may be used twice, which is one connection
		})
		if ended && bytes < total*20 {
			t.Errorf("%d bytes for %d connections", bytes, total)
		}
	}
}
