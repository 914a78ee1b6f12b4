package attack

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"

	mdns "github.com/miekg/dns"

	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/policy"
	"boxgate/policy/name"
)

// nameFor makes a name resolve to an address.
func nameFor(w *harness.World, a netip.Addr, name string) string {
	w.T.Helper()
	kind := "A"
	if a.Is6() {
		kind = "AAAA"
	}
	if err := w.Net.SetRecords(name, fmt.Sprintf("%s. 60 IN %s %v", name, kind, a)); err != nil {
		w.T.Fatal(err)
	}
	return name
}

// refusedName connects to a name with a forbidden address, by each way to give a name. The first failure ends the test
// because a dial that gets no answer takes long.
func refusedName(r *harness.Raider, family int, name string) {
	r.T.Helper()
	if status, text := viaProxy(r, family, "GET http://"+name+"/disguise HTTP/1.1\r\nHost: "+name); status != 403 {
		r.T.Fatalf("explicit proxy, GET %s: the box saw %d %.80s", name, status, text)
	}
	if got := tunnelled(r, family, name+":80", "GET /disguise HTTP/1.1\r\nHost: "+name+"\r\n\r\n"); !strings.HasPrefix(got, "403") {
		r.T.Fatalf("CONNECT %s: the box saw %.80q", name, got)
	}
	www := []netip.Addr{r.World.V4("www.example.com"), r.World.V6("www.example.com")}[family]
	if got := plainAnswer(r, netip.AddrPortFrom(www, 80), name, "/disguise"); got != "403" {
		r.T.Fatalf("Host %s: the box saw %s", name, got)
	}
}

// The operator has exempted the gateway's own addresses, and the policy lists them: the policy and DNS allow them, and
// the admin API listens there. The proxy still connects to no address of the gateway, by number or by name.
func TestAttackExemptedGatewayAddress(t *testing.T) {
	t.Parallel()
	w := harness.NewCaptured(t, func(c *config.Config) {
		c.Admin.Listen, c.Metrics.Listen = "[::]:8600", "[::]:9600"
		c.Network.ProtectedExempt = append(c.Network.ProtectedExempt, "10.200.0.1/32", "fd42:b0c5::1/128")
	})
	listed := map[string]any{"mode": "custom", "allowed_domains": []string{"*.example.com"}, "allowed_cidrs": []string{"10.200.0.1/32", "fd42:b0c5::1/128"}}
	r := w.Raid(w.Create(map[string]any{"network_policy": listed}))
	www := [2]netip.Addr{w.V4("www.example.com"), w.V6("www.example.com")}
	for family, a := range []netip.Addr{netip.MustParseAddr("10.200.0.1"), netip.MustParseAddr("fd42:b0c5::1")} {
		label := fmt.Sprintf("inside-%d.example.com", family)
		record := fmt.Sprintf("%s. 60 IN %s %v", label, []string{"A", "AAAA"}[family], a)
		if err := w.Net.SetRecords(label, record); err != nil {
			t.Fatal(err)
		}
		m := ask(r, "udp", gatewayDNS, label, []uint16{mdns.TypeA, mdns.TypeAAAA}[family])
		if got := addressesIn(m); !slices.Equal(got, []netip.Addr{a}) {
			t.Fatalf("%s resolved to %v: something else than the dial holds it off, and the test shows nothing", label, got)
		}
		for _, port := range []uint16{8600, 9600, 3128, 53, 80} {
			at, named := netip.AddrPortFrom(a, port), fmt.Sprintf("%s:%d", label, port)
			for _, host := range []string{at.String(), named} {
				if status, text := viaProxy(r, family, "GET http://"+host+"/metrics HTTP/1.1\r\nHost: "+host); status != 403 {
					t.Errorf("GET %s: the box saw %d %.80s", host, status, text)
				}
			}
			if status, text := viaProxy(r, family, "CONNECT "+at.String()+" HTTP/1.1\r\nHost: "+at.String()); status != 403 {
				t.Errorf("CONNECT %v: the box saw %d %s", at, status, text)
			}
			if got := tunnelled(r, family, named, "GET /metrics HTTP/1.1\r\nHost: "+named+"\r\n\r\n"); strings.HasPrefix(got, "200") || strings.HasPrefix(got, "401") {
				t.Errorf("CONNECT %s: the box saw %.80q", named, got)
			}
		}
		if got := plainAnswer(r, netip.AddrPortFrom(www[family], 80), label, "/inside"); got != "403" {
			t.Errorf("Host %s: the box saw %s", label, got)
		}
		if _, err := claim(r, netip.AddrPortFrom(www[family], 443), label); err == nil || !strings.Contains(err.Error(), "access denied") {
			t.Errorf("SNI %s: %v", label, err)
		}
		w.DenialOf(r.Box, policy.StageHTTP, label, name.ReasonHostPort)
		w.DenialOf(r.Box, policy.StageConn, label, name.ReasonHostPort)
	}
}

// tunnelled sends a request through a tunnel and returns the status and body of the answer, or the box's error.
func tunnelled(r *harness.Raider, family int, to, text string) string {
	r.T.Helper()
	c := r.MustDial("tcp", explicitProxies[family])
	defer c.Close()
	in := bufio.NewReader(c)
	if _, err := io.WriteString(c, "CONNECT "+to+" HTTP/1.1\r\nHost: "+to+"\r\n\r\n"); err != nil {
		return harness.Saw(err)
	}
	head, err := http.ReadResponse(in, nil)
	switch {
	case err != nil:
		return harness.Saw(err)
	case head.StatusCode != 200:
		return head.Status
	}
	resp, answer := sendRequest(r, c, in, text)
	if resp != nil {
		answer = resp.Status + "\n" + answer
	}
	return answer
}
