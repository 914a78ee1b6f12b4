package attack

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	mdns "github.com/miekg/dns"

	"boxgate/e2e/harness"
	"boxgate/internal/testnet"
	"boxgate/policy"
	"boxgate/policy/name"
)

// The owner of an allowed name points it to a forbidden address: immediately, among good addresses, behind an alias, or
// at the second query.
func TestAttackRebinding(t *testing.T) {
	t.Parallel()
	w := harness.SharedCaptured(t)
	bad := [2]string{"169.254.169.254", "fd00::5"}
	good := [2]netip.Addr{netip.MustParseAddr("198.51.100.91"), netip.MustParseAddr("2001:db8:1::91")}
	denied := harness.AttackerAt(66)
	set := func(name string, records ...string) {
		for i, s := range records {
			records[i] = name + ". 1 IN " + s
		}
		if err := w.Net.SetRecords(name, records...); err != nil {
			t.Fatal(err)
		}
	}
	set("private.example.com", "A 169.254.169.254", "AAAA fd00::5")
	set("loop.example.com", "A 127.0.0.1", "AAAA ::1")
	set("mapped.example.com", "AAAA ::ffff:169.254.169.254")
	set("nat64.example.com", "AAAA 64:ff9b::a9fe:a9fe")
	set("denied.example.com", "A "+denied[0].String(), "AAAA "+denied[1].String())
	set("alias-private.example.com", "CNAME private.example.com.")
	set("alias-denied.example.com", "CNAME evil.example.net.")
	set("alias-chain.example.com", "CNAME alias-denied.example.com.")
	set("mixed.example.com", "A 169.254.169.254", "A 10.0.0.5", "A "+good[0].String(), "A "+denied[0].String(), "AAAA fd00::5", "AAAA ::1", "AAAA "+good[1].String(), "AAAA "+denied[1].String())
	r := w.Raid(w.Create(map[string]any{"network_policy": map[string]any{
		"mode": "custom", "allowed_domains": []string{"*.example.com"}, "denied_domains": []string{"evil.example.net"}, "denied_cidrs": attackerNets}}))
	www := [2]netip.Addr{w.V4("www.example.com"), w.V6("www.example.com")}
	for label, reason := range map[string]name.Reason{
		"private.example.com": name.ReasonProtectedRange, "loop.example.com": name.ReasonProtectedRange, "mapped.example.com": name.ReasonProtectedRange,
		"nat64.example.com": name.ReasonProtectedRange, "denied.example.com": name.ReasonDeniedCIDR, "alias-private.example.com": name.ReasonProtectedRange,
		"alias-denied.example.com": name.ReasonDeniedDomain, "alias-chain.example.com": name.ReasonDeniedDomain,
	} {
		for family, qtype := range []uint16{mdns.TypeA, mdns.TypeAAAA} {
			m := ask(r, "udp", gatewayDNS, label, qtype)
			if a := addressesIn(m); len(a) != 0 {
				t.Errorf("%s resolved to %v", label, a)
			}
			if _, err := claim(r, netip.AddrPortFrom(www[family], 443), label); err == nil || !strings.Contains(err.Error(), "access denied") {
				t.Errorf("SNI %s: %v", label, err)
			}
			if got := plainAnswer(r, netip.AddrPortFrom(www[family], 80), label, "/rebound"); got != "403" {
				t.Errorf("Host %s: the box saw %s", label, got)
			}
		}
		w.DenialOf(r.Box, policy.StageDNS, label, reason)
		w.DenialOf(r.Box, policy.StageConn, label, reason)
		w.DenialOf(r.Box, policy.StageHTTP, label, reason)
	}
	for family, qtype := range []uint16{mdns.TypeA, mdns.TypeAAAA} {
		if a := addressesIn(ask(r, "udp", gatewayDNS, "mixed.example.com", qtype)); !slices.Equal(a, good[family:family+1]) {
			t.Errorf("mixed.example.com resolved to %v", a)
		}
		if got := plainAnswer(r, netip.AddrPortFrom(www[family], 80), "mixed.example.com", "/mixed"); got != "200" {
			t.Errorf("mixed.example.com: the box saw %s", got)
		}
	}
	rebindLater(w, r, www, bad)
	w.Untouched(denied[0], denied[1], netip.MustParseAddr(bad[0]), netip.MustParseAddr(bad[1]), netip.MustParseAddr("10.0.0.5"))
	w.NothingReached("evil.example.net")
	if seen := w.Net.Received("", testnet.Path("/rebound")); len(seen) != 0 {
		t.Errorf("%d requests arrived, the first: %+v", len(seen), seen[0])
	}
}

// rebindLater makes a name resolve to a good address in the first answer and to a bad one in all later answers.
func rebindLater(w *harness.World, r *harness.Raider, www [2]netip.Addr, bad [2]string) {
	w.T.Helper()
	const label = "rebind.example.com"
	goodAt := [2]netip.Addr{w.V4(label), w.V6(label)}
	w.Net.SetAnswerer(label, func(q mdns.Question, count int) testnet.Answer {
		text := fmt.Sprintf("%s 0 IN A %v", q.Name, goodAt[0])
		switch {
		case q.Qtype == mdns.TypeA && count > 2:
			text = fmt.Sprintf("%s 0 IN A %s", q.Name, bad[0])
		case q.Qtype == mdns.TypeAAAA && count > 2:
			text = fmt.Sprintf("%s 0 IN AAAA %s", q.Name, bad[1])
		case q.Qtype == mdns.TypeAAAA:
			text = fmt.Sprintf("%s 0 IN AAAA %v", q.Name, goodAt[1])
		}
		rr, err := mdns.NewRR(text)
		if err != nil {
			return testnet.Answer{Rcode: mdns.RcodeServerFailure}
		}
		return testnet.Answer{Records: []mdns.RR{rr}}
	})
	for family, qtype := range []uint16{mdns.TypeA, mdns.TypeAAAA} {
		if a := addressesIn(ask(r, "udp", gatewayDNS, label, qtype)); !slices.Equal(a, goodAt[family:family+1]) {
			w.T.Errorf("at first %s resolved to %v", label, a)
		}
	}
	w.UntilEvery(50*time.Millisecond, "the name has been asked for again", func() bool {
		ask(r, "udp", gatewayDNS, label, mdns.TypeA)
		ask(r, "udp", gatewayDNS, label, mdns.TypeAAAA)
		return len(w.Net.Queries(label)) >= 4
	})
	for family, qtype := range []uint16{mdns.TypeA, mdns.TypeAAAA} {
		if a := addressesIn(ask(r, "udp", gatewayDNS, label, qtype)); len(a) != 0 {
			w.T.Errorf("later %s resolved to %v", label, a)
		}
		if got := plainAnswer(r, netip.AddrPortFrom(www[family], 80), label, "/rebound"); got != "403" {
			w.T.Errorf("later the box saw %s", got)
		}
		// The address from the second answer is refused too.
		if got := r.Try("tcp", netip.AddrPortFrom(netip.MustParseAddr(bad[family]), 80)); got != harness.SawReset {
			w.T.Errorf("%s itself: the box saw %s", bad[family], got)
		}
	}
	w.DenialOf(r.Box, policy.StageHTTP, label, name.ReasonProtectedRange)
}
