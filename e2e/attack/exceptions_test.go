package attack

import (
	"io"
	"net/netip"
	"strings"
	"testing"

	mdns "github.com/miekg/dns"

	"boxgate/e2e/harness"
	"boxgate/policy"
	"boxgate/policy/name"
)

// With precedence: specific one host of a denied zone, and one address of a denied range, are open: the rest of both stays closed,
// whatever name or address the box claims. The exceptions close when the precedence goes, on open connections too.
func TestAttackThroughAnException(t *testing.T) {
	t.Parallel()
	w := harness.SharedCaptured(t)
	for host, addrs := range map[string][]string{
		"ok.zone.example.com": {"198.51.100.97", "2001:db8:1::97"}, "bad.zone.example.com": {"198.51.100.98", "2001:db8:1::98"},
	} {
		if err := w.Net.AddHost(host, addrs...); err != nil {
			t.Fatal(err)
		}
	}
	open, shut := harness.AttackerAt(66), harness.AttackerAt(67)
	spec := map[string]any{
		"mode": "custom", "allowed_domains": []string{"*", "ok.zone.example.com"}, "denied_domains": []string{"*.zone.example.com"},
		"allowed_cidrs": []string{open[0].String(), open[1].String(), "203.0.113.0/24", "2001:db8:bad::/64"}, "denied_cidrs": []string{"203.0.113.64/26", "2001:db8:bad::40/122"},
		"precedence": "specific",
	}
	r := w.Raid(w.Create(map[string]any{"network_policy": spec}))
	ask(r, "udp", gatewayDNS, "bad.zone.example.com", mdns.TypeA)
	w.DenialOf(r.Box, policy.StageDNS, "bad.zone.example.com", name.ReasonDeniedDomain)
	var kept []io.Reader
	for family := range 2 {
		ok, bad := []netip.Addr{w.V4("ok.zone.example.com"), w.V6("ok.zone.example.com")}[family], []netip.Addr{w.V4("bad.zone.example.com"), w.V6("bad.zone.example.com")}[family]
		if got := r.Try("tcp", netip.AddrPortFrom(open[family], 4444)); got != "success" {
			t.Errorf("TCP to the address that is excepted: the box saw %s", got)
		}
		if got := r.Try("tcp", netip.AddrPortFrom(shut[family], 4444)); got != harness.SawReset {
			t.Errorf("TCP to another address of the denied range: the box saw %s", got)
		}
		w.Denial(r.Box, policy.StageKernel, shut[family], 4444, name.ReasonDeniedCIDR)
		for _, to := range []netip.Addr{ok, bad, open[family]} {
			for _, host := range []string{"bad.zone.example.com", "x.ok.zone.example.com"} {
				if _, err := claim(r, netip.AddrPortFrom(to, 443), host); err == nil || !strings.Contains(err.Error(), "access denied") {
					t.Errorf("SNI %s to %v: %v", host, to, err)
				}
				if got := plainAnswer(r, netip.AddrPortFrom(to, 80), host, "/exception"); got != "403" {
					t.Errorf("Host %s to %v: the box saw %s", host, to, got)
				}
			}
		}
		if status, text := viaProxy(r, family, "CONNECT bad.zone.example.com:443 HTTP/1.1\r\nHost: bad.zone.example.com:443"); status != 403 {
			t.Errorf("CONNECT to another host of the zone: %d %s", status, text)
		}
		if got := plainAnswer(r, netip.AddrPortFrom(ok, 80), "ok.zone.example.com", "/allowed"); got != "200" {
			t.Errorf("Host of the exception: the box saw %s", got)
		}
		conn, err := claim(r, netip.AddrPortFrom(bad, 443), "ok.zone.example.com") // goes to the name's own address
		if err != nil {
			t.Fatal(err)
		}
		kept = append(kept, conn)
	}
	w.Untouched(shut[:]...)
	w.NothingReached("bad.zone.example.com")
	delete(spec, "precedence")
	w.SetPolicy(r.Box, spec)
	for family, conn := range kept {
		if n, err := conn.Read(make([]byte, 1)); err == nil {
			t.Errorf("%d bytes of a connection to the exception, which is closed", n)
		}
		if got := r.Try("tcp", netip.AddrPortFrom(open[family], 4444)); got != harness.SawReset {
			t.Errorf("TCP to the former exception: the box saw %s", got)
		}
	}
	if _, err := claim(r, netip.AddrPortFrom(w.V4("ok.zone.example.com"), 443), "ok.zone.example.com"); err == nil {
		t.Error("the former exception is reached")
	}
}
