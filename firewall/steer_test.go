package firewall

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"boxgate/policy"
	"boxgate/policy/name"
)

// serveProxy listens on the port of the transparent proxy; its answers contain the original destination.
func (w *world) serveProxy() {
	w.t.Helper()
	w.serveTCP(w.gateway, "127.0.0.1:3129", transparent)
	w.serveTCP(w.gateway, "[::1]:3129", transparent)
}

// steer returns a plan that sends ports 80 and 443 to the proxy.
func steer() policy.KernelPlan {
	p := allow()
	p.SteerOther = name.PortSet{Ports: []uint16{80, 443}}
	return p
}

func TestProxySeesTheOriginalDestination(t *testing.T) {
	w := newWorld(t)
	a := w.addBox("one", 10)
	w.apply("one", steer())
	w.serveProxy()
	for _, to := range []netip.Addr{outside4, outside6, w.cfg.SinkV4, w.cfg.SinkV6} {
		dst := netip.AddrPortFrom(to, 443)
		got, err := w.exchange(w.boxNS["one"], "tcp", dst, strings.Repeat("x", 1400))
		src := a.V4
		if to.Is6() {
			src = a.V6
		}
		if f := strings.Fields(got); err != nil || len(f) != 3 || f[1] != dst.String() ||
			netip.MustParseAddrPort(f[0]).Addr() != src {
			t.Errorf("to %v: %.80q, %v", dst, got, err)
		}
	}
	w.nothingArrived("one", outside4)
	if _, err := w.dial(w.boxNS["one"], "tcp", netip.AddrPortFrom(outside4, 22)); !refusedBy("tcp", outside4, err) {
		t.Errorf("a port where no name decides: %v", err)
	}
}

func TestSteeringOfAllowedAddresses(t *testing.T) {
	w := newWorld(t)
	w.addBox("one", 10)
	plan := allow("198.51.100.0/24")
	plan.SteerAllowed = name.PortSet{Ports: []uint16{443}}
	w.apply("one", plan)
	w.serveProxy()
	w.serveTCP(w.outside, ":443", nil)
	w.serveTCP(w.outside, ":8443", nil)
	if got, err := w.exchange(w.boxNS["one"], "tcp", netip.AddrPortFrom(outside4, 443), "x"); err != nil || !strings.HasPrefix(got, "10.77.0.10:") {
		t.Errorf("port 443 did not go to the proxy: %q, %v", got, err)
	}
	if got, err := w.exchange(w.boxNS["one"], "tcp", netip.AddrPortFrom(outside4, 8443), "x"); err != nil || !strings.HasPrefix(got, uplink4.String()) {
		t.Errorf("port 8443 was not forwarded: %q, %v", got, err)
	}
	plan.SteerAllowed = name.PortSet{All: true}
	w.apply("one", plan)
	if got, err := w.exchange(w.boxNS["one"], "tcp", netip.AddrPortFrom(outside4, 8443), "x"); err != nil || !strings.HasPrefix(got, "10.77.0.10:") {
		t.Errorf("all ports: port 8443 did not go to the proxy: %q, %v", got, err)
	}
}

func TestWithoutAProxySteeredPortsAreClosed(t *testing.T) {
	w := newWorld(t)
	w.addBox("one", 10)
	w.apply("one", steer())
	w.serveTCP(w.outside, ":443", nil)
	for _, to := range []netip.Addr{outside4, outside6, w.cfg.SinkV4, w.cfg.SinkV6} {
		if _, err := w.dial(w.boxNS["one"], "tcp", netip.AddrPortFrom(to, 443)); !refusedBy("tcp", to, err) {
			t.Errorf("%v: %v", to, err)
		}
	}
	w.nothingArrived("one", outside4)
	w.nothingArrived("one", outside6)
}

// A connection that the proxy has accepted stays with it, even if the policy changes.
func TestProxiedConnectionSurvivesAPolicyChange(t *testing.T) {
	w := newWorld(t)
	w.addBox("one", 10)
	w.apply("one", steer())
	w.serveProxy()
	for _, to := range []netip.Addr{outside4, outside6} {
		c, err := w.dial(w.boxNS["one"], "tcp", netip.AddrPortFrom(to, 443))
		w.must(err)
		for _, plan := range []policy.KernelPlan{allow("198.51.100.0/24", "2001:db8:2::/48"), {}, steer()} {
			w.apply("one", plan)
			if got, err := ask(c, "still there"); err != nil || !strings.HasSuffix(got, "still there") {
				t.Errorf("%v: %q, %v", to, got, err)
			}
		}
	}
}

func TestPort53GoesToTheGatewayWhateverServerIsAsked(t *testing.T) {
	w := newWorld(t)
	a := w.addBox("one", 10)
	w.apply("one", allow())
	w.serveDNS(true)
	for _, server := range []string{"10.77.0.1", "8.8.8.8", "169.254.169.254", "203.0.113.1", "fd77::1", "2606:4700::1111", "2001:db8:1::1"} {
		to := netip.AddrPortFrom(netip.MustParseAddr(server), 53)
		for _, network := range []string{"udp", "tcp"} {
			got, err := w.exchange(w.boxNS["one"], network, to, "query")
			src := a.V4.String()
			if to.Addr().Is6() {
				src = "[" + a.V6.String()
			}
			if err != nil || !strings.HasPrefix(got, src) || !strings.HasSuffix(got, "query") {
				t.Errorf("%s to %v: %q, %v", network, to, got, err)
			}
		}
	}
	w.nothingArrived("one", netip.MustParseAddr("8.8.8.8"))
}

func TestExplicitProxyPortIsOpen(t *testing.T) {
	w := newWorld(t)
	w.addBox("one", 10)
	for _, gw := range []netip.Addr{w.cfg.GatewayV4, w.cfg.GatewayV6} {
		to := netip.AddrPortFrom(gw, w.cfg.ExplicitPort)
		w.serveTCP(w.gateway, to.String(), transparent)
		if _, err := w.exchange(w.boxNS["one"], "tcp", to, "CONNECT"); err != nil {
			t.Errorf("%v: %v", to, err)
		}
	}
}

// Only the gateway itself opens connections into a box (public URLs).
func TestOnlyTheGatewayReachesIntoABox(t *testing.T) {
	w := newWorld(t)
	a := w.addBox("one", 10)
	w.apply("one", policy.KernelPlan{})
	for _, box := range []netip.Addr{a.V4, a.V6} {
		server := w.serveTCP(w.boxNS["one"], netip.AddrPortFrom(box, 0).String(), nil)
		got, err := w.exchange(w.gateway, "tcp", server, "GET")
		if err != nil || !strings.HasSuffix(got, "GET") {
			t.Errorf("gateway to %v: %q, %v", server, got, err)
		}
		if gw := w.cfg.GatewayV4.String(); box.Is4() && !strings.HasPrefix(got, gw) {
			t.Errorf("the box sees %q, not the gateway's pool address", got)
		}
		before := w.count("foreign")
		udp := w.serveUDP(w.boxNS["one"], netip.AddrPortFrom(box, 0).String())
		c, err := w.dial(w.outside, "udp", udp)
		w.must(err)
		_, err = c.Write([]byte("unsolicited"))
		w.must(err)
		w.wait("the packet from outside is dropped", func() bool { return w.count("foreign") > before })
	}
	if err := w.fw.RemoveBox(context.Background(), "one"); err != nil {
		t.Fatal(err)
	}
}

// When the gateway is down, another program of the host may listen on its ports, on the wildcard or the very address. No
// box can reach it.
func TestAnotherProgramOnTheGatewaysPortsIsNotReached(t *testing.T) {
	w := newWorld(t)
	w.addBox("one", 10)
	w.apply("one", allow("0.0.0.0/0", "::/0"))
	w.serveTCP(w.gateway, netip.AddrPortFrom(netip.IPv6Unspecified(), w.cfg.ExplicitPort).String(), nil)
	for _, gw := range []netip.Addr{w.cfg.GatewayV4, w.cfg.GatewayV6} {
		w.serveTCP(w.gateway, netip.AddrPortFrom(gw, w.cfg.DNSPort).String(), nil)
		for _, port := range []uint16{w.cfg.ExplicitPort, w.cfg.DNSPort, 53} {
			if got, err := w.exchange(w.boxNS["one"], "tcp", netip.AddrPortFrom(gw, port), "hello"); err == nil {
				t.Errorf("%v port %d answered %q", gw, port, got)
			}
		}
	}
}

// listenConfig applies control to the socket before it is bound.
func listenConfig(control func(fd int) error) *net.ListenConfig {
	return &net.ListenConfig{Control: func(_, _ string, rc syscall.RawConn) error {
		if control == nil {
			return nil
		}
		var err error
		if ctlErr := rc.Control(func(fd uintptr) { err = control(int(fd)) }); ctlErr != nil {
			return ctlErr
		}
		return err
	}}
}

// transparent lets the socket accept connections for any address.
func transparent(fd int) error {
	if unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_TRANSPARENT, 1) == nil {
		return nil
	}
	return unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TRANSPARENT, 1)
}
