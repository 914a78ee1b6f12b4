package firewall

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"boxgate/audit"
	"boxgate/firewall/namespace"
	"boxgate/firewall/network"
	"boxgate/internal/nightly"
	"boxgate/policy"
)

// world is a gateway in a new network namespace, with an outside host behind it.
//
//	box (10.77.0.x, fd77::x) ── gateway (uplink 203.0.113.1) ── outside (203.0.113.10, 198.51.100.0/24, 2001:db8:2::/48)
type world struct {
	t       *testing.T
	cfg     Config
	gateway netns.NsHandle
	outside netns.NsHandle
	fw      *Firewall
	events  *recorder
	wire    *wire // packets that arrive outside
	nsPath  map[policy.BoxID]string
	boxNS   map[policy.BoxID]netns.NsHandle
	rates   map[policy.BoxID]Rates // for boxes that are added
}

var (
	outside4 = netip.MustParseAddr("198.51.100.7")
	outside6 = netip.MustParseAddr("2001:db8:2::7")
	marker4  = netip.MustParseAddr("198.51.100.250") // always allowed: its arrival proves that everything sent before has passed
	uplink4  = netip.MustParseAddr("203.0.113.1")
	uplink6  = netip.MustParseAddr("2001:db8:1::1")
)

// guarded returns the ranges that the tests' plans protect.
func guarded() []netip.Prefix {
	return prefixes("10.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3", "fc00::/7", "fe80::/10", "ff00::/8",
		"198.51.100.128/28", "2001:db8:2:ff::/64")
}

func prefixes(list ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// allow returns a plan for the prefixes and the marker.
func allow(list ...string) policy.KernelPlan {
	return policy.KernelPlan{Version: 1, Allowed: append(prefixes(list...), netip.PrefixFrom(marker4, 32)), Protected: guarded()}
}

func newNamespace(t *testing.T) netns.NsHandle {
	t.Helper()
	nightly.Root(t)
	ns, err := namespace.New()
	if err != nil {
		t.Fatalf("network namespaces are needed, run as root: %v", err)
	}
	t.Cleanup(func() { _ = ns.Close() })
	return ns
}

func newWorld(t *testing.T) *world {
	t.Helper()
	t.Parallel()
	w := &world{t: t, gateway: newNamespace(t), outside: newNamespace(t), events: &recorder{},
		nsPath: map[policy.BoxID]string{}, boxNS: map[policy.BoxID]netns.NsHandle{}}
	w.cfg = Config{
		PoolV4: netip.MustParsePrefix("10.77.0.0/16"), PoolV6: netip.MustParsePrefix("fd77::/64"),
		GatewayV4: netip.MustParseAddr("10.77.0.1"), GatewayV6: netip.MustParseAddr("fd77::1"),
		SinkV4: netip.MustParseAddr("10.77.0.2"), SinkV6: netip.MustParseAddr("fd77::2"),
		DNSPort: 5300, ProxyPort: 3129, ExplicitPort: 3128, Audit: w.events,
	}
	w.connect()
	w.wire = w.listenWire(w.outside)
	w.open()
	t.Cleanup(func() {
		if w.fw != nil { // a test may open others
			_ = w.fw.Close()
		}
	})
	return w
}

// open opens the firewall as a new process would.
func (w *world) open() {
	w.t.Helper()
	w.must(w.in(w.gateway, func() (err error) {
		w.fw, err = Open(context.Background(), w.cfg)
		return err
	}))
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) in(ns netns.NsHandle, fn func() error) error {
	w.t.Helper()
	return namespace.Do(ns, fn)
}

// connect joins the gateway to the outside.
func (w *world) connect() {
	w.t.Helper()
	gw, err := netlink.NewHandleAt(w.gateway)
	w.must(err)
	defer gw.Close()
	out, err := netlink.NewHandleAt(w.outside)
	w.must(err)
	defer out.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "up0"
	w.must(gw.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "net0", PeerNamespace: netlink.NsFd(w.outside)}))
	w.addresses(gw, "up0", "203.0.113.1/24", "2001:db8:1::1/64")
	w.addresses(out, "net0", "203.0.113.10/24", "2001:db8:1::10/64")
	w.addresses(out, "lo", "198.51.100.0/24", "2001:db8:2::/48")
	w.localRange(out, "198.51.100.0/24")
	w.localRange(out, "2001:db8:2::/48")
	w.localRange(out, "169.254.169.254/32")
	w.must(w.in(w.gateway, func() error {
		return namespace.WriteSysctls([]namespace.Sysctl{
			{Path: "ipv4/conf/up0/rp_filter", Value: "1"}, // the strictest setting of a host
			{Path: "ipv4/icmp_ratelimit", Value: "0"},     // by default the kernel sends few ICMP errors per second to one host
			{Path: "ipv6/icmp/ratelimit", Value: "0"},
		})
	}))
	up, err := gw.LinkByName("up0")
	w.must(err)
	for _, via := range []string{"203.0.113.10", "2001:db8:1::10"} {
		a := netip.MustParseAddr(via)
		w.must(gw.RouteAdd(&netlink.Route{LinkIndex: up.Attrs().Index, Gw: a.AsSlice(),
			Dst: network.IPNet(netip.PrefixFrom(a, 0).Masked())}))
	}
	// The outside answers pool addresses too, so that a packet that leaves with one is noticed.
	in, err := out.LinkByName("net0")
	w.must(err)
	for pool, via := range map[string]netip.Addr{"10.77.0.0/16": uplink4, "fd77::/64": uplink6} {
		w.must(out.RouteAdd(&netlink.Route{LinkIndex: in.Attrs().Index, Gw: via.AsSlice(),
			Dst: network.IPNet(netip.MustParsePrefix(pool))}))
	}
}

func (w *world) addresses(h *netlink.Handle, link string, list ...string) {
	w.t.Helper()
	l, err := h.LinkByName(link)
	w.must(err)
	for _, s := range list {
		p := netip.MustParsePrefix(s)
		if p.Addr() != p.Masked().Addr() {
			w.must(h.AddrAdd(l, &netlink.Addr{IPNet: network.IPNet(p), Flags: unix.IFA_F_NODAD}))
		}
	}
	w.must(h.LinkSetUp(l))
}

// localRange makes every address of the range an address of the host.
func (w *world) localRange(h *netlink.Handle, s string) {
	w.t.Helper()
	w.must(h.RouteAdd(&netlink.Route{LinkIndex: 1, Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL,
		Scope: unix.RT_SCOPE_HOST, Dst: network.IPNet(netip.MustParsePrefix(s))}))
}

// addBox attaches a box with a new namespace; n is the last part of its addresses.
func (w *world) addBox(id policy.BoxID, n byte) Attachment {
	w.t.Helper()
	if _, ok := w.boxNS[id]; !ok {
		w.boxNS[id] = newNamespace(w.t)
	}
	a := Attachment{Box: id, NetNS: fmt.Sprintf("/proc/self/fd/%d", int(w.boxNS[id])),
		V4: netip.AddrFrom4([4]byte{10, 77, 0, n}),
		V6: netip.MustParseAddr(fmt.Sprintf("fd77::%x", n)), Rates: w.rates[id]}
	w.must(w.fw.AddBox(context.Background(), a))
	w.must(w.fw.AwaitBox(context.Background(), a.Box))
	return a
}

func (w *world) apply(id policy.BoxID, plan policy.KernelPlan) {
	w.t.Helper()
	w.must(w.fw.Apply(context.Background(), id, plan))
}

// dial connects from a namespace. The error is the one that a program there gets.
func (w *world) dial(ns netns.NsHandle, network string, to netip.AddrPort) (net.Conn, error) {
	w.t.Helper()
	return w.dialWithin(5*time.Second, ns, network, to)
}

// dialWithin is dial with a timeout for the connection and each exchange.
func (w *world) dialWithin(most time.Duration, ns netns.NsHandle, network string, to netip.AddrPort) (net.Conn, error) {
	w.t.Helper()
	var c net.Conn
	err := w.in(ns, func() (err error) {
		d := net.Dialer{Timeout: most}
		c, err = d.Dial(network, to.String())
		return err
	})
	if err == nil {
		w.t.Cleanup(func() { _ = c.Close() })
		_ = c.SetDeadline(time.Now().Add(most))
	}
	return c, err
}

// ask sends a word and returns the answer.
func ask(c net.Conn, word string) (string, error) {
	if _, err := c.Write([]byte(word)); err != nil {
		return "", err
	}
	buf := make([]byte, 2048)
	n, err := c.Read(buf)
	return string(buf[:n]), err
}

// exchange dials, sends a word, and returns the answer.
func (w *world) exchange(ns netns.NsHandle, network string, to netip.AddrPort, word string) (string, error) {
	w.t.Helper()
	return w.exchangeWithin(5*time.Second, ns, network, to, word)
}

// exchangeWithin is exchange with a timeout for each of its two steps.
func (w *world) exchangeWithin(most time.Duration, ns netns.NsHandle, network string, to netip.AddrPort, word string) (string, error) {
	w.t.Helper()
	c, err := w.dialWithin(most, ns, network, to)
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }()
	return ask(c, word)
}

// serveTCP answers every line with the peer's address, the local address and the line.
func (w *world) serveTCP(ns netns.NsHandle, listen string, control func(fd int) error) netip.AddrPort {
	w.t.Helper()
	var l net.Listener
	w.must(w.in(ns, func() (err error) {
		l, err = listenConfig(control).Listen(context.Background(), "tcp", listen)
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
				buf := make([]byte, 2048)
				for {
					n, err := c.Read(buf)
					if err != nil {
						return
					}
					_, _ = fmt.Fprintf(c, "%v %v %s", addrPort(c.RemoteAddr()), addrPort(c.LocalAddr()), buf[:n])
				}
			}()
		}
	}()
	return addrPort(l.Addr())
}

// serveUDP answers every datagram with the peer's address and the datagram.
func (w *world) serveUDP(ns netns.NsHandle, listen string) netip.AddrPort {
	w.t.Helper()
	return addrPort(w.listenUDP(ns, listen).LocalAddr())
}

func (w *world) listenUDP(ns netns.NsHandle, listen string) net.PacketConn {
	w.t.Helper()
	var pc net.PacketConn
	w.must(w.in(ns, func() (err error) {
		pc, err = listenConfig(transparent).ListenPacket(context.Background(), "udp", listen)
		return err
	}))
	w.t.Cleanup(func() { _ = pc.Close() })
	go func() {
		buf := make([]byte, 2048)
		for {
			n, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = pc.WriteTo(fmt.Appendf(nil, "%v %s", addrPort(from), buf[:n]), from)
		}
	}()
	return pc
}

func addrPort(a net.Addr) netip.AddrPort {
	p, _ := netip.ParseAddrPort(a.String())
	return netip.AddrPortFrom(p.Addr().Unmap(), p.Port())
}

// recorder stores events.
type recorder struct {
	mu     sync.Mutex
	events []audit.Event
}

func (r *recorder) Record(e audit.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

func (r *recorder) find(which func(audit.Event) bool) (audit.Event, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.events {
		if which(e) {
			return e, true
		}
	}
	return audit.Event{}, false
}

// waitEvent waits for an event.
func (w *world) waitEvent(what string, which func(audit.Event) bool) audit.Event {
	w.t.Helper()
	var found audit.Event
	w.wait(what, func() (ok bool) {
		found, ok = w.events.find(which)
		return ok
	})
	return found
}

// wait waits for a condition.
func (w *world) wait(what string, holds func() bool) {
	w.t.Helper()
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-deadline.C:
			w.t.Fatalf("did not happen: %s", what)
		case <-tick.C:
		}
	}
}

// wire records the destinations of IP packets that arrive in a namespace.
type wire struct {
	mu   sync.Mutex
	seen []seenPacket
}

type seenPacket struct {
	src, dst netip.Addr
	proto    uint8
	raw      []byte
}

func (w *world) listenWire(ns netns.NsHandle) *wire {
	w.t.Helper()
	var fd int
	w.must(w.in(ns, func() (err error) {
		all := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(all))
		return err
	}))
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50000})
	w.must(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20)) // packets that it drops are not seen
	out := &wire{}
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 65536)
		for {
			select {
			case <-stop:
				return
			default:
			}
			n, from, err := unix.Recvfrom(fd, buf, 0)
			if err != nil {
				continue
			}
			if ll, ok := from.(*unix.SockaddrLinklayer); !ok || ll.Pkttype == unix.PACKET_OUTGOING {
				continue
			}
			out.add(buf[:n])
		}
	}()
	w.t.Cleanup(func() {
		close(stop)
		<-done
		_ = unix.Close(fd)
	})
	return out
}

func (w *wire) add(b []byte) {
	p := seenPacket{raw: append([]byte(nil), b...)}
	switch {
	case len(b) >= 20 && b[0]>>4 == 4:
		p.src, p.dst, p.proto = netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20])), b[9]
	case len(b) >= 40 && b[0]>>4 == 6:
		p.src, p.dst, p.proto = netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40])), b[6]
	default:
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen = append(w.seen, p)
}

func (w *wire) find(which func(seenPacket) bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.seen {
		if which(p) {
			return true
		}
	}
	return false
}

// flushWire sends the marker from the box and waits until it arrives outside: everything sent before has arrived, or never
// will.
func (w *world) flushWire(id policy.BoxID) {
	w.t.Helper()
	w.flushWireFrom(w.boxNS[id])
}

// flushWireFrom is flushWire for a box or for the gateway itself, whose packets follow those of boxes.
func (w *world) flushWireFrom(ns netns.NsHandle) {
	w.t.Helper()
	c, err := w.dial(ns, "udp", netip.AddrPortFrom(marker4, 9))
	w.must(err)
	defer c.Close()
	word := fmt.Sprintf("marker %d", time.Now().UnixNano())
	w.wait("the marker arrives outside", func() bool {
		_, _ = c.Write([]byte(word)) // repeatedly: after a flood, datagrams are lost
		return w.wire.find(func(p seenPacket) bool {
			return len(p.raw) >= len(word) && string(p.raw[len(p.raw)-len(word):]) == word
		})
	})
}

// nothingArrived checks that no packet for the address reached the outside.
func (w *world) nothingArrived(id policy.BoxID, to netip.Addr) {
	w.t.Helper()
	w.flushWire(id)
	if w.wire.find(func(p seenPacket) bool { return p.dst == to }) {
		w.t.Errorf("a packet for %v reached the outside", to)
	}
}

// count reads a named counter.
func (w *world) count(name string) uint64 {
	w.t.Helper()
	var n uint64
	o, err := w.nftables().GetObject(&nftables.CounterObj{Table: boxgateTable(), Name: name})
	w.must(err)
	if obj, ok := o.(*nftables.CounterObj); ok {
		n = obj.Packets
	}
	return n
}

// nftables connects to nftables in the gateway's namespace.
func (w *world) nftables() *nftables.Conn {
	w.t.Helper()
	c, err := nftables.New(nftables.WithNetNSFd(int(w.gateway)))
	w.must(err)
	return c
}

func boxgateTable() *nftables.Table {
	return &nftables.Table{Family: nftables.TableFamilyINet, Name: network.TableName}
}
