package firewall

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"boxgate/audit"
	"boxgate/firewall/network"
	"boxgate/policy"
	"boxgate/policy/name"
)

// rateTested is the limit in these tests, in bytes per second: low enough for a busy machine to exceed it many times.
const rateTested = 256 << 10

// TestRatesOfOneBoxAreLimited: a box cannot send or receive more than its limit, whether the kernel forwards the traffic or
// it ends at the gateway, in both families; another box has its own limit; and the limits disappear with the configuration.
func TestRatesOfOneBoxAreLimited(t *testing.T) {
	w := newWorld(t)
	w.must(w.fw.Close())
	w.cfg.SendRate, w.cfg.ReceiveRate = rateTested, rateTested
	w.open()
	everything := allow("198.51.100.0/24", "2001:db8:2::/48")
	for id, n := range map[policy.BoxID]byte{"one": 10, "two": 11} {
		w.addBox(id, n)
		w.apply(id, everything)
	}
	for what, to := range map[string]netip.AddrPort{
		"IPv4": w.bulk(netip.AddrPortFrom(outside4, 0).String()), "IPv6": w.bulk(netip.AddrPortFrom(outside6, 0).String()),
	} {
		for way, did := range map[byte]string{'u': "sent", 'd': "received"} { // the bucket holds a second's worth
			if took := w.transfer("one", to, way, 3*rateTested/2); took < 250*time.Millisecond {
				t.Errorf("%s: 1.5 s worth were %s in %v", what, did, took)
			}
		}
	}
	if w.count("send_rate") == 0 {
		t.Error("dropped packets are not counted")
	}

	w.must(w.fw.Close())
	w.cfg.SendRate, w.cfg.ReceiveRate = 0, 0
	w.open()
	w.addBox("one", 10)
	w.apply("one", everything)
	dropped, to := w.count("send_rate"), w.bulk(netip.AddrPortFrom(outside4, 0).String())
	w.transfer("one", to, 'u', 64*rateTested)
	w.transfer("one", to, 'd', 64*rateTested)
	if n := w.count("send_rate"); n != dropped {
		t.Errorf("%d packets were dropped without a limit", n-dropped)
	}
	h, err := netlink.NewHandleAt(w.gateway)
	w.must(err)
	defer h.Close()
	link, err := h.LinkByName(network.LinkName("one"))
	w.must(err)
	queues, err := h.QdiscList(link)
	w.must(err)
	for _, q := range queues {
		if q.Type() == "tbf" {
			t.Error("the box's interface keeps the limit that is no longer configured")
		}
	}
}

// bulk is a server outside that, depending on the first byte, reads to the end and answers with a byte, or sends without
// end.
func (w *world) bulk(listen string) netip.AddrPort {
	w.t.Helper()
	var l net.Listener
	w.must(w.in(w.outside, func() (err error) {
		l, err = listenConfig(transparent).Listen(w.t.Context(), "tcp", listen)
		return err
	}))
	w.t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }()
				way := make([]byte, 1)
				if _, err := io.ReadFull(c, way); err != nil {
					return
				}
				if way[0] == 'u' {
					_, _ = io.Copy(io.Discard, c)
					_, _ = c.Write(way)
					return
				}
				block := make([]byte, 64<<10)
				for err == nil {
					_, err = c.Write(block)
				}
			}()
		}
	}()
	return addrPort(l.Addr())
}

// transfer lets a box send ('u') or receive ('d') a number of bytes, and returns the duration.
func (w *world) transfer(id policy.BoxID, to netip.AddrPort, way byte, size int64) time.Duration {
	w.t.Helper()
	c, err := w.dial(w.boxNS[id], "tcp", to)
	w.must(err)
	defer func() { _ = c.Close() }()
	w.must(c.SetDeadline(time.Now().Add(2 * time.Minute)))
	began := time.Now()
	_, err = c.Write([]byte{way})
	w.must(err)
	if way == 'd' {
		_, err = io.CopyN(io.Discard, c, size)
		w.must(err)
		return time.Since(began)
	}
	_, err = c.Write(make([]byte, size))
	w.must(err)
	w.must(c.(*net.TCPConn).CloseWrite())
	_, err = io.ReadFull(c, make([]byte, 1))
	w.must(err)
	return time.Since(began)
}

// TestRatesOfOneBoxCanBeItsOwn: a box can have its own rates, lower or higher than the common ones, which still apply to
// another box; they can change during transfers, survive a restart, and disappear with the box.
func TestRatesOfOneBoxCanBeItsOwn(t *testing.T) {
	w := newWorld(t)
	w.must(w.fw.Close())
	w.cfg.SendRate, w.cfg.ReceiveRate = rateTested, rateTested
	w.open()
	everything := allow("198.51.100.0/24")
	for id, n := range map[policy.BoxID]byte{"low": 10, "all": 11, "free": 12} {
		w.addBox(id, n)
		w.apply(id, everything)
	}
	to := w.bulk(netip.AddrPortFrom(outside4, 0).String())
	set := func(id policy.BoxID, send, receive int64) {
		t.Helper()
		w.must(w.fw.SetRates(t.Context(), id, Rates{Send: send, Receive: receive}))
	}
	held := func(id policy.BoxID, rate int64) {
		t.Helper()
		// The bucket for sent bytes holds a second's worth, that for received bytes 128 KiB.
		for way, size := range map[byte]int64{'u': 3 * rate / 2, 'd': 2 * rate} {
			if took := w.transfer(id, to, way, size); took < 250*time.Millisecond {
				t.Errorf("box %s: at %d bytes a second, %d passed in %v (%c)", id, rate, size, took, way)
			}
		}
	}
	free := func(id policy.BoxID) {
		t.Helper()
		dropped := w.count("send_rate")
		w.transfer(id, to, 'u', 64*rateTested)
		w.transfer(id, to, 'd', 64*rateTested)
		if n := w.count("send_rate"); n != dropped {
			t.Errorf("box %s: %d packets were dropped without a limit", id, n-dropped)
		}
	}
	set("low", rateTested/2, rateTested/2)
	set("free", policy.Unlimited, policy.Unlimited)
	held("low", rateTested/2)
	held("all", rateTested)
	free("free")

	w.must(w.fw.Close())
	w.open()
	w.rates = map[policy.BoxID]Rates{"low": {Send: rateTested / 2, Receive: rateTested / 2}, "free": {Send: policy.Unlimited, Receive: policy.Unlimited}}
	for id, n := range map[policy.BoxID]byte{"low": 10, "all": 11, "free": 12} {
		w.addBox(id, n)
		w.apply(id, everything)
	}
	held("low", rateTested/2)
	free("free")
	set("low", 0, 0)
	set("free", rateTested/2, rateTested/2)
	held("free", rateTested/2)
	if took := w.transfer("low", to, 'u', 3*rateTested/2); took < 250*time.Millisecond {
		t.Errorf("without a rate of its own, a box sent 1.5 s worth in %v", took)
	}
	w.must(w.fw.RemoveBox(t.Context(), "free"))
	if err := w.fw.SetRates(t.Context(), "free", Rates{}); err == nil {
		t.Error("the rates of a box that was removed can be set")
	}
}

// TestRateIsNeverWithoutALimit changes boxes' rates as fast as possible while they send. A rate below the common one, and
// below the box's own bound, never lets more pass than these: a change must not fill the bucket.
func TestRateIsNeverWithoutALimit(t *testing.T) {
	w := newWorld(t)
	w.must(w.fw.Close())
	w.cfg.SendRate = rateTested
	w.open()
	bounds := map[policy.BoxID]int64{"all": rateTested, "own": rateTested / 2}
	for id, n := range map[policy.BoxID]byte{"all": 10, "own": 11} {
		w.addBox(id, n)
		w.apply(id, allow("198.51.100.0/24"))
	}
	w.must(w.fw.SetRates(t.Context(), "own", Rates{Send: bounds["own"], MaxSend: bounds["own"]}))
	to := w.bulk(netip.AddrPortFrom(outside4, 0).String())
	stop, stopped := make(chan struct{}), make(chan error, 1)
	go func() {
		for i := int64(0); ; i++ {
			select {
			case <-stop:
				stopped <- nil
				return
			default:
			}
			for id, most := range bounds {
				rates := Rates{Send: most - i%2*most/4}
				if id == "own" {
					rates.MaxSend = most
				}
				if err := w.fw.SetRates(t.Context(), id, rates); err != nil {
					stopped <- err
					return
				}
			}
		}
	}()
	var sent sync.WaitGroup
	for id, rate := range bounds {
		sent.Go(func() {
			if took := w.transfer(id, to, 'u', 3*rate); took < 1500*time.Millisecond {
				t.Errorf("box %s: 3 s worth were sent in %v", id, took)
			}
		})
	}
	sent.Wait()
	close(stop)
	w.must(<-stopped)
}

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
	w.serveDNS(true)
	dns := netip.AddrPortFrom(w.cfg.GatewayV4, 53)

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
	w.openUDP("one", dns, 20) // lookups are not connections
	w.must(w.fw.CutFlows(t.Context(), "one", func(Flow) bool { return false }))
	w.wait("there is room again", func() bool {
		_, err := w.exchange(w.boxNS["one"], "udp", server, "x")
		return err == nil
	})
}

// A kernel without nft_numgen counts the connections of a box in one list, to the same limit. A table with the other kind of
// lists is replaced, since its lists contain connections.
func TestConnectionsInOneList(t *testing.T) {
	w := newWorld(t)
	const limit = 1100 // enough for many lists
	w.cfg.FlowLimit = limit
	for _, one := range []bool{false, true, false, true} { // with the other kind before
		w.must(w.fw.Close())
		w.cfg.OneList = one
		w.open()
		w.shell(w.gateway, map[bool]string{false: "", true: "! "}[one]+"nft list table inet boxgate | grep -q numgen")
	}
	w.addBox("one", 10)
	w.apply("one", allow("198.51.100.0/24"))
	to := w.silentUDP("198.51.100.9:0")
	for range 5 {
		for _, c := range w.openUDP("one", to, 256) {
			_ = c.Close()
		}
	}
	n := 0
	w.must(w.fw.CutFlows(t.Context(), "one", func(Flow) bool { n++; return true }))
	if n != limit {
		t.Errorf("%d connections of %d", n, limit)
	}
}

// A burst fills a limit that is divided into many lists, and no list lets one more through. Connections may end in an order
// that empties some lists only.
func TestABurstFillsTheLimit(t *testing.T) {
	w := newWorld(t)
	w.must(w.fw.Close())
	const limit, rest = 2048, 68 // see divideLimit of package nft
	w.cfg.FlowLimit = limit
	w.open()
	w.addBox("one", 10)
	w.apply("one", allow("198.51.100.0/24"))
	live := func(keep func(n int) bool) (n int) {
		w.must(w.fw.CutFlows(t.Context(), "one", func(Flow) bool { n++; return keep(n) }))
		return n
	}
	all := func(int) bool { return true }
	burst := func(port int) {
		to := w.silentUDP(fmt.Sprintf("198.51.100.9:%d", port))
		for range 2 * limit / 256 {
			for _, c := range w.openUDP("one", to, 256) {
				_ = c.Close()
			}
		}
	}
	burst(5001)
	if n := live(all); n > limit || n < limit*99/100 {
		t.Errorf("a burst of twice the limit opened %d connections of %d", n, limit)
	}
	live(func(n int) bool { return n%2 == 0 })
	w.wait("the kernel forgets ended connections", func() bool {
		burst(5002)
		return live(all) >= limit-rest-limit/100
	})
	if n := live(all); n > limit {
		t.Errorf("%d connections are open, of at most %d", n, limit)
	}
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
	w.serveDNS(true)
	dns := netip.AddrPortFrom(w.cfg.GatewayV4, 53)
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
