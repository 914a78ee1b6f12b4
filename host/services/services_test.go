package services

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"boxgate/config"
	"boxgate/host/boxdial"
	"boxgate/policy"
	"boxgate/policy/name"
)

// oneBox knows one box.
type oneBox struct{ id, addr string }

func (b oneBox) Named(n string) (policy.BoxID, netip.Addr, bool) {
	a, err := netip.ParseAddr(b.addr)
	return policy.BoxID(b.id), a, err == nil && n == "web"
}

func serviceName(t *testing.T, label string) name.Name {
	t.Helper()
	n, err := name.ParseService(label)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A service never is a socket of the gateway: neither at its address, nor on another address of this host if the socket is bound to all.
func TestServicesAreNotTheGateway(t *testing.T) {
	own := []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:8600"), netip.MustParseAddrPort("[::]:443"), netip.MustParseAddrPort("0.0.0.0:80")}
	s := &Services{Config: Config{Gateway: own}}
	for at, want := range map[string]bool{
		"127.0.0.1:8600": true, "[::ffff:127.0.0.1]:8600": true, "127.0.0.2:8600": false, "127.0.0.1:5432": false,
		"127.0.0.1:443": true, "[::1]:443": true, "127.9.9.9:80": true, "127.0.0.1:81": false,
	} {
		if got := s.IsGateway(netip.MustParseAddrPort(at)); got != want {
			t.Errorf("%s is the gateway: %v, want %v", at, got, want)
		}
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if at, ok := a.(*net.IPNet); ok {
			addr, _ := netip.AddrFromSlice(at.IP)
			if addr = addr.Unmap(); !addr.IsLinkLocalUnicast() && !s.IsGateway(netip.AddrPortFrom(addr, 443)) {
				t.Errorf("port 443 of the host's address %v is not the gateway", addr)
			}
		}
	}
	_, err = New(Config{Gateway: own, Services: map[string]config.Service{"a": {Host: "127.0.0.1:8600"}, "b": {Host: "127.0.0.1:5432"}, "c": {Box: "web", Port: 443}}})
	if err == nil || !strings.Contains(err.Error(), "network.services.a: 127.0.0.1:8600 is a socket of the gateway") || strings.Contains(err.Error(), "services.b") {
		t.Errorf("the services are refused with %v", err)
	}
}

func TestTargetsOfServices(t *testing.T) {
	s, err := New(Config{
		Services: map[string]config.Service{"db": {Host: "[::ffff:127.0.0.1]:5432"}, "web": {Box: "web", Port: 8000}, "gone": {Box: "gone", Port: 1}},
		Boxes:    oneBox{"b1", "10.200.0.9"}, Reach: &boxdial.Boxes{},
	})
	if err != nil {
		t.Fatal(err)
	}
	for label, want := range map[string]string{"db": "127.0.0.1:5432", "web": "10.200.0.9:8000", "gone": "", "none": ""} {
		at, known := s.Target(serviceName(t, label))
		if known != (want != "") || known && at.String() != want {
			t.Errorf("%s is at %v %v, want %s", label, at, known, want)
		}
		addrs, err := (Resolver{Services: s}).Lookup(t.Context(), nil, serviceName(t, label))
		if (err == nil) != known || known && (len(addrs) != 1 || addrs[0] != at.Addr()) {
			t.Errorf("%s resolves to %v: %v", label, addrs, err)
		}
	}
	if _, ok, err := s.DialBox(t.Context(), serviceName(t, "db"), netip.MustParseAddrPort("127.0.0.1:5432")); ok || err != nil {
		t.Errorf("a service of the host was dialled as a box: %v", err)
	}
	// The box has another address than the one that the policy has judged.
	if _, ok, err := s.DialBox(t.Context(), serviceName(t, "web"), netip.MustParseAddrPort("10.200.0.10:8000")); !ok || err == nil {
		t.Errorf("another address of a box: %v %v", ok, err)
	}
}
