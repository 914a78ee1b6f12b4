package firewall

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"unsafe"

	"github.com/ti-mo/conntrack"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"boxgate/firewall/network"
	"boxgate/policy"
	"boxgate/policy/name"
)

// serveDNS listens where lookups are sent to. Answers contain the peer's address and, of lookups at other servers, the
// socket that received them.
func (w *world) serveDNS(marked bool) {
	w.t.Helper()
	option := transparent
	if !marked {
		option = func(int) error { return nil }
	}
	for _, gw := range []netip.Addr{w.cfg.GatewayV4, w.cfg.GatewayV6} {
		at := netip.AddrPortFrom(gw, w.cfg.DNSPort).String()
		if marked {
			w.serveUDP(w.gateway, at)
		}
		w.serveTCP(w.gateway, at, option)
	}
	for _, f := range network.Families {
		for i := range network.LookupAddrs {
			if at := network.LookupAddr(f, i); marked || f == network.V4 {
				w.serveForAny(netip.AddrPortFrom(at, w.cfg.DNSPort), option)
			}
		}
	}
}

// serveForAny answers from the address that was asked.
func (w *world) serveForAny(at netip.AddrPort, option func(fd int) error) {
	w.t.Helper()
	var pc net.PacketConn
	w.must(w.in(w.gateway, func() (err error) {
		pc, err = listenConfig(func(fd int) error {
			_ = unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_RECVPKTINFO, 1)
			_ = unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_PKTINFO, 1)
			return option(fd)
		}).ListenPacket(context.Background(), "udp", at.String())
		return err
	}))
	w.t.Cleanup(func() { _ = pc.Close() })
	conn := pc.(*net.UDPConn)
	go func() {
		buf, control := make([]byte, 2048), make([]byte, 256)
		for {
			n, size, _, from, err := conn.ReadMsgUDPAddrPort(buf, control)
			if err != nil {
				return
			}
			answer := fmt.Appendf(nil, "%v %v %s", netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), at, buf[:n])
			_, _, _ = conn.WriteMsgUDPAddrPort(answer, fromAsked(control[:size], at.Addr().Is4()), from)
		}
	}()
}

// fromAsked turns the control message of a lookup into that of its answer.
func fromAsked(control []byte, v4 bool) []byte {
	messages, _ := unix.ParseSocketControlMessage(control)
	for _, m := range messages {
		if v4 && m.Header.Type == unix.IP_PKTINFO {
			info := (*unix.Inet4Pktinfo)(unsafe.Pointer(&m.Data[0]))
			return unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: info.Addr})
		}
		if !v4 && m.Header.Type == unix.IPV6_PKTINFO {
			info := (*unix.Inet6Pktinfo)(unsafe.Pointer(&m.Data[0]))
			return unix.PktInfo6(&unix.Inet6Pktinfo{Addr: info.Addr})
		}
	}
	return nil
}

// entries counts the entries of a namespace's connection table that concern lookups of boxes.
func (w *world) entries(ns netns.NsHandle) (n int) {
	w.t.Helper()
	w.must(w.in(ns, func() error {
		c, err := conntrack.Dial(nil)
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		flows, err := c.Dump(nil)
		for _, f := range flows {
			for _, port := range []uint16{f.TupleOrig.Proto.DestinationPort, f.TupleOrig.Proto.SourcePort} {
				if port == 53 || port == w.cfg.DNSPort {
					n++
				}
			}
		}
		return err
	}))
	return n
}

// Lookups over UDP and their answers leave nothing in the connection table, from any number of ports.
func TestLookupsHaveNoEntryInTheConnectionTable(t *testing.T) {
	w := newWorld(t)
	w.serveDNS(true)
	w.addBox("one", 10)
	for _, server := range []string{"10.77.0.1", "8.8.8.8", "203.0.113.1", "fd77::1", "2606:4700::1111"} {
		to := netip.AddrPortFrom(netip.MustParseAddr(server), 53)
		for range 20 {
			if _, err := w.exchange(w.boxNS["one"], "udp", to, "query"); err != nil {
				t.Fatalf("%v: %v", to, err)
			}
		}
	}
	if n := w.entries(w.gateway); n != 0 {
		t.Errorf("%d entries", n)
	}
	c, err := w.dial(w.boxNS["one"], "tcp", netip.MustParseAddrPort("8.8.8.8:53"))
	w.must(err)
	if _, err := ask(c, "query"); err != nil || w.entries(w.gateway) == 0 {
		t.Errorf("over TCP: %v, no entry", err)
	}
}

// A client may leave the checksum out (RFC 768), as some of virtual machines do.
func TestLookupsWithoutAChecksum(t *testing.T) {
	w := newWorld(t)
	w.serveDNS(true)
	w.addBox("one", 10)
	for _, server := range []string{"10.77.0.1", "8.8.8.8"} {
		c, err := w.dial(w.boxNS["one"], "udp4", netip.AddrPortFrom(netip.MustParseAddr(server), 53))
		w.must(err)
		raw, err := c.(*net.UDPConn).SyscallConn()
		w.must(err)
		var failed error
		w.must(raw.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_NO_CHECK, 1) }))
		w.must(failed)
		if _, err := ask(c, "query"); err != nil {
			t.Errorf("%s: %v", server, err)
		}
	}
}

// All lookups of a box arrive at one socket, whatever server and port; boxes with adjacent addresses have different ones.
func TestLookupsOfABoxArriveAtOneSocket(t *testing.T) {
	w := newWorld(t)
	w.serveDNS(true)
	w.addBox("one", 10)
	w.addBox("two", 11)
	for _, servers := range [][]string{{"8.8.8.8", "9.9.9.9", "169.254.169.254"}, {"2606:4700::1111", "2001:db8:1::1"}} {
		at := map[string]string{}
		for _, box := range []string{"one", "two"} {
			for i := range 12 {
				to := netip.AddrPortFrom(netip.MustParseAddr(servers[i%len(servers)]), 53)
				got, err := w.exchange(w.boxNS[policy.BoxID(box)], "udp", to, "query")
				if err != nil {
					t.Fatal(err)
				}
				socket := strings.Fields(got)[1]
				if at[box] != "" && at[box] != socket {
					t.Errorf("box %s: %v and %v", box, at[box], socket)
				}
				at[box] = socket
			}
		}
		if at["one"] == at["two"] {
			t.Errorf("both boxes share %v", at["one"])
		}
	}
}

// The ports to which the rules send lookups are reached over port 53 only, and not at all if another program has them.
func TestLookupsReachOnlyTheGateway(t *testing.T) {
	w := newWorld(t)
	w.addBox("one", 10)
	w.apply("one", allow("0.0.0.0/0", "::/0"))
	w.serveDNS(false)
	refused := func(to string, why string) {
		t.Helper()
		if got, err := w.exchange(w.boxNS["one"], "udp", netip.MustParseAddrPort(to), "query"); err == nil {
			t.Errorf("%s answered %q: %s", to, got, why)
		}
	}
	for _, server := range []string{"10.77.0.1", "8.8.8.8", "203.0.113.1", "[fd77::1]", "[2606:4700::1111]"} {
		refused(server+":53", "it is another program's socket, or none")
	}
	if n := w.count("no_proxy"); n == 0 {
		t.Error("not counted")
	}
	before := w.count("refused_" + string(name.ReasonHostPort))
	refused(fmt.Sprintf("10.77.0.1:%d", w.cfg.DNSPort), "the port is not 53")
	refused(fmt.Sprintf("[fd77::1]:%d", w.cfg.DNSPort), "the port is not 53")
	if w.count("refused_"+string(name.ReasonHostPort)) == before {
		t.Error("the gateway's DNS port is not refused as a port of the host")
	}
	refused(fmt.Sprintf("127.83.53.2:%d", w.cfg.DNSPort), "it is a loopback address")
	refused(fmt.Sprintf("[100::5302]:%d", w.cfg.DNSPort), "no network has it")
}
