package firewall

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
)

// refusedBy reports whether the error is what a program sees when the gateway refuses: an immediate reset or ICMP error,
// not a timeout.
func refusedBy(network string, to netip.Addr, err error) bool {
	if network == "tcp" {
		return errors.Is(err, unix.ECONNREFUSED)
	}
	if to.Is4() {
		return errors.Is(err, unix.EHOSTUNREACH)
	}
	return errors.Is(err, unix.EACCES)
}

func TestRefusals(t *testing.T) {
	w := newWorld(t)
	w.addBox("one", 10)
	w.addBox("two", 11)
	plan := allow("198.51.100.0/24", "2001:db8:2::/48")
	plan.Version = 7
	plan.Denied = prefixes("198.51.100.64/26", "2001:db8:2:d::/64")
	plan.RejectUDP = name.PortSet{Ports: []uint16{443, 853}}
	w.apply("one", plan)
	w.apply("two", allow("198.51.100.0/24"))
	w.serveTCP(w.boxNS["two"], ":8080", nil)
	w.serveTCP(w.gateway, ":8080", nil)

	for _, c := range []struct {
		name, to string
		port     uint16
		reason   name.Reason
	}{
		{"on no list", "203.0.113.10", 80, name.ReasonNotAllowed},
		{"on no list, v6", "2001:db8:1::10", 80, name.ReasonNotAllowed},
		{"denied inside allowed", "198.51.100.65", 80, name.ReasonDeniedCIDR},
		{"denied inside allowed, v6", "2001:db8:2:d::1", 80, name.ReasonDeniedCIDR},
		{"protected inside allowed", "198.51.100.130", 80, name.ReasonProtectedRange},
		{"protected inside allowed, v6", "2001:db8:2:ff::1", 80, name.ReasonProtectedRange},
		{"metadata", "169.254.169.254", 80, name.ReasonProtectedRange},
		{"another box", "10.77.0.11", 8080, name.ReasonProtectedRange},
		{"another box, v6", "fd77::b", 8080, name.ReasonProtectedRange},
		{"no box's address", "10.77.9.9", 8080, name.ReasonProtectedRange},
		{"the host's uplink", "203.0.113.1", 8080, name.ReasonHostPort},
		{"the host's uplink, v6", "2001:db8:1::1", 8080, name.ReasonHostPort},
		{"the host's broadcast", "203.0.113.255", 8080, name.ReasonHostPort},
		{"another port of the gateway", "10.77.0.1", 8080, name.ReasonHostPort},
		{"another port of the gateway, v6", "fd77::1", 8080, name.ReasonHostPort},
	} {
		for _, network := range []string{"tcp", "udp"} {
			to := netip.AddrPortFrom(netip.MustParseAddr(c.to), c.port)
			_, err := w.exchange(w.boxNS["one"], network, to, "let me out")
			notSent := c.to == "203.0.113.255" && (errors.Is(err, unix.EACCES) || errors.Is(err, unix.ENETUNREACH)) // broadcast
			if !refusedBy(network, to.Addr(), err) && !notSent {
				t.Errorf("%s over %s: %v", c.name, network, err)
			}
			e := w.waitEvent(c.name+" over "+network, func(e audit.Event) bool {
				return e.Box == "one" && e.Addr == to.Addr() && e.Protocol == policy.Protocol(network)
			})
			want := audit.Event{Time: e.Time, Box: "one", Stage: policy.StageKernel, Protocol: policy.Protocol(network),
				Addr: to.Addr(), Port: c.port, Verdict: policy.Deny, Action: audit.ActionRefuse, Reason: c.reason, Version: 7}
			if e.Reason != want.Reason || e.Port != want.Port || e.Verdict != want.Verdict || e.Action != want.Action ||
				e.Stage != want.Stage || e.Version != want.Version {
				t.Errorf("%s over %s: event %+v, want %+v", c.name, network, e, want)
			}
		}
		w.nothingArrived("one", netip.MustParseAddr(c.to))
	}
}

func TestQUICIsRejectedWhereANameDecides(t *testing.T) {
	w := newWorld(t)
	w.addBox("one", 10)
	plan := allow("198.51.100.0/24", "2001:db8:2::/48")
	plan.RejectUDP = name.PortSet{Ports: []uint16{443, 853}}
	w.apply("one", plan)
	for _, to := range []netip.Addr{outside4, outside6} {
		for _, port := range []uint16{443, 853} {
			w.serveUDP(w.outside, netip.AddrPortFrom(to, port).String())
			if _, err := w.exchange(w.boxNS["one"], "udp", netip.AddrPortFrom(to, port), "initial"); !refusedBy("udp", to, err) {
				t.Errorf("QUIC to %v port %d: %v", to, port, err)
			}
		}
	}
	plan.RejectUDP = name.PortSet{}
	w.apply("one", plan)
	for _, to := range []netip.Addr{outside4, outside6} {
		if _, err := w.exchange(w.boxNS["one"], "udp", netip.AddrPortFrom(to, 443), "initial"); err != nil {
			t.Errorf("UDP 443 to %v without a name: %v", to, err)
		}
	}
}

func TestABoxWithoutAPlanReachesNothing(t *testing.T) {
	w := newWorld(t)
	w.addBox("one", 10)
	w.addBox("two", 11)
	w.apply("two", allow("198.51.100.0/24"))
	for _, to := range []netip.Addr{outside4, outside6} {
		if _, err := w.dial(w.boxNS["one"], "tcp", netip.AddrPortFrom(to, 80)); !refusedBy("tcp", to, err) {
			t.Errorf("%v: %v", to, err)
		}
	}
	w.flushWire("two")
	if w.wire.find(func(p seenPacket) bool { return p.dst == outside4 || p.dst == outside6 }) {
		t.Error("a packet reached the outside")
	}
}

func TestAPlanThatProtectsNothingIsNotApplied(t *testing.T) {
	w := newWorld(t)
	w.addBox("one", 10)
	if err := w.fw.Apply(context.Background(), "one", policy.KernelPlan{DefaultAllow: true}); err == nil {
		t.Error("applied")
	}
	if err := w.fw.Apply(context.Background(), "nobody", allow()); !errors.Is(err, errUnknownBox) {
		t.Errorf("unknown box: %v", err)
	}
}

// A box that is root in its namespace can take any address.
func TestSpoofedSourceIsDropped(t *testing.T) {
	w := newWorld(t)
	w.addBox("one", 10)
	w.addBox("two", 11)
	w.apply("one", allow("198.51.100.0/24", "2001:db8:2::/48"))
	w.apply("two", allow("198.51.100.0/24", "2001:db8:2::/48"))
	inside, err := netlink.NewHandleAt(w.boxNS["one"])
	w.must(err)
	defer inside.Close()
	w.addresses(inside, "eth0", "10.77.0.11/32", "10.77.5.5/32", "203.0.113.77/32", "fd77::b/128", "2001:db8:7::7/128",
		"fe80::1/64")
	for _, from := range []string{"10.77.0.11", "10.77.5.5", "203.0.113.77", "fd77::b", "2001:db8:7::7"} {
		src := netip.MustParseAddr(from)
		to := outside4
		if src.Is6() {
			to = outside6
		}
		before := w.count("refused_" + string(name.ReasonSpoofed))
		w.must(w.in(w.boxNS["one"], func() error { return sendFrom(src, netip.AddrPortFrom(to, 9999)) }))
		w.wait("the packet from "+from+" is counted", func() bool { return w.count("refused_"+string(name.ReasonSpoofed)) > before })
		w.nothingArrived("one", to)
	}
	e := w.waitEvent("spoofed source", func(e audit.Event) bool { return e.Reason == name.ReasonSpoofed })
	if e.Box != "one" || e.Port != 9999 || e.Verdict != policy.Deny {
		t.Errorf("event %+v", e)
	}
}

// sendFrom sends one datagram with a chosen source address.
func sendFrom(src netip.Addr, to netip.AddrPort) error {
	domain := unix.AF_INET
	var from, dst unix.Sockaddr = &unix.SockaddrInet4{Addr: as4(src)}, &unix.SockaddrInet4{Addr: as4(to.Addr()), Port: int(to.Port())}
	if src.Is6() {
		domain = unix.AF_INET6
		from, dst = &unix.SockaddrInet6{Addr: src.As16()}, &unix.SockaddrInet6{Addr: to.Addr().As16(), Port: int(to.Port())}
	}
	fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	if err := transparent(fd); err != nil {
		return err
	}
	if err := unix.Bind(fd, from); err != nil {
		return err
	}
	if err := unix.Sendto(fd, []byte("spoofed"), 0, dst); err != nil {
		return fmt.Errorf("send from %v to %v: %w", src, to, err)
	}
	return nil
}

func as4(a netip.Addr) [4]byte {
	if a.Is4() {
		return a.As4()
	}
	return [4]byte{}
}

// Hosts save their rules with nft and load them at boot: our table must not prevent that.
func TestSavedRulesetLoadsAgain(t *testing.T) {
	w := newWorld(t)
	w.addBox("one", 10)
	w.apply("one", allow("198.51.100.0/28", "2001:db8:1::/48"))
	var saved []byte
	w.must(w.in(w.gateway, func() (err error) {
		saved, err = exec.Command("nft", "list", "ruleset").Output()
		return err
	}))
	w.must(w.in(newNamespace(t), func() error {
		load := exec.Command("nft", "-f", "-")
		load.Stdin = bytes.NewReader(saved)
		if out, err := load.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}))
}
