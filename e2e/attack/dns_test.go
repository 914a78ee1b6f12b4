package attack

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	mdns "github.com/miekg/dns"

	"boxgate/audit"
	"boxgate/e2e/harness"
	"boxgate/internal/testnet"
	"boxgate/policy"
	"boxgate/policy/name"
)

// gatewayDNS is the DNS server of the boxes.
var gatewayDNS = netip.MustParseAddrPort("10.200.0.1:53")

// sinks are the addresses returned for names that are not allowed.
var sinks = []netip.Addr{netip.MustParseAddr("10.200.0.2"), netip.MustParseAddr("fd42:b0c5::2")}

// ask sends a DNS query from the box to any server and returns the answer.
func ask(r *harness.Raider, network string, server netip.AddrPort, name string, qtype uint16) *mdns.Msg {
	r.T.Helper()
	m := new(mdns.Msg).SetQuestion(mdns.Fqdn(name), qtype)
	m.SetEdns0(1232, false)
	answer, err := exchange(r, network, server, m)
	if err != nil {
		r.T.Fatalf("asking %v for %s %s: %v", server, name, mdns.TypeToString[qtype], err)
	}
	return answer
}

func exchange(r *harness.Raider, network string, server netip.AddrPort, m *mdns.Msg) (*mdns.Msg, error) {
	c, err := r.Dial(network, server)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	conn := &mdns.Conn{Conn: c, UDPSize: 4096}
	if err := conn.WriteMsg(m); err != nil {
		return nil, err
	}
	return conn.ReadMsg()
}

// addressesIn returns the addresses in an answer.
func addressesIn(m *mdns.Msg) (out []netip.Addr) {
	for _, rr := range m.Answer {
		switch rr := rr.(type) {
		case *mdns.A:
			out = append(out, netip.AddrFrom4([4]byte(rr.A.To4())))
		case *mdns.AAAA:
			out = append(out, netip.AddrFrom16([16]byte(rr.AAAA.To16())))
		}
	}
	return out
}

// isBlocked reports whether an answer has the extended DNS error Blocked (RFC 8914).
func isBlocked(m *mdns.Msg) bool {
	opt := m.IsEdns0()
	return opt != nil && slices.ContainsFunc(opt.Option, func(o mdns.EDNS0) bool {
		ede, ok := o.(*mdns.EDNS0_EDE)
		return ok && ede.InfoCode == mdns.ExtendedErrorCodeBlocked
	})
}

// Whichever server a box queries on port 53, under any policy, the gateway answers and the server receives no packet.
func TestAttackForeignDNSServers(t *testing.T) {
	t.Parallel()
	w := harness.SharedCaptured(t)
	hosts := harness.AttackerAt(53)
	servers := []netip.Addr{hosts[0], hosts[1], w.V4("dns.example.com"), w.V6("dns.example.com"), netip.MustParseAddr("8.8.8.8"),
		netip.MustParseAddr("2001:4860:4860::8888"), netip.MustParseAddr("169.254.169.254"), netip.MustParseAddr("10.200.0.2"),
		netip.MustParseAddr("fd42:b0c5::2"), netip.MustParseAddr("10.200.0.77"), netip.MustParseAddr("192.0.2.254")}
	for name, p := range map[string]map[string]any{
		"deny-all": {"mode": "deny-all"}, "names": harness.Custom("api.example.com"), "everything by address": allowedCIDRs("0.0.0.0/0", "::/0"), "allow-all": {"mode": "allow-all"},
	} {
		r := w.Raid(w.Create(map[string]any{"network_policy": p}))
		for _, s := range servers {
			for _, network := range []string{"udp", "tcp"} {
				m := ask(r, network, netip.AddrPortFrom(s, 53), "denied.example.net", mdns.TypeA)
				got := addressesIn(m)
				if p["mode"] == "custom" && p["allowed_cidrs"] == nil || p["mode"] == "deny-all" {
					if !slices.Equal(got, sinks[:1]) || !isBlocked(m) {
						t.Errorf("%s, %s to %v: answer %v", name, network, s, m)
					}
				}
				// A NOTIFY is for an authoritative server, which the gateway is not.
				if m, err := exchange(r, network, netip.AddrPortFrom(s, 53), new(mdns.Msg).SetNotify("example.net.")); err != nil || m.Rcode != mdns.RcodeNotImplemented {
					t.Errorf("%s, %s to %v: notify: %v %v", name, network, s, m, err)
				}
			}
		}
		w.Event(r.Box, func(e audit.Event) bool { return e.Stage == policy.StageDNS && e.Name == "denied.example.net" })
	}
	w.AwaitCounted()
	for _, s := range servers {
		for _, p := range w.Net.Packets(s.String()) {
			if s != w.V4("dns.example.com") && s != w.V6("dns.example.com") { // the gateway sends its own queries there
				t.Errorf("%v received %+v", s, p)
			}
		}
	}
}

// DNS by other protocols than port 53: over TLS, QUIC and HTTPS.
func TestAttackEncryptedDNS(t *testing.T) {
	t.Parallel()
	w := harness.SharedCaptured(t)
	server := [2]netip.Addr{w.V4("dns.example.com"), w.V6("dns.example.com")}
	other := harness.AttackerAt(54)
	for name, p := range map[string]map[string]any{
		"deny-all":             {"mode": "deny-all"},
		"names":                harness.Custom("api.example.com"),
		"the server's name":    harness.Custom("dns.example.com"),
		"any name":             harness.Custom("*"),
		"all but one name":     {"mode": "custom", "denied_domains": []string{"evil.example.net"}},
		"all but one address":  {"mode": "custom", "denied_cidrs": []string{"203.0.113.77/32"}},
		"allow-all":            {"mode": "allow-all"},
		"the server's address": allowedCIDRs(server[0].String()+"/32", server[1].String()+"/128"),
	} {
		t.Run(name, func(t *testing.T) {
			w := w.On(t)
			r := w.Raid(w.Create(map[string]any{"network_policy": p}))
			for _, a := range append(server[:], other[:]...) {
				network := map[bool]string{true: "4", false: "6"}[a.Is4()]
				c, err := r.Dial("tcp", netip.AddrPortFrom(a, 853))
				if err == nil {
					conn := tls.Client(c, &tls.Config{ServerName: "dns.example.com", InsecureSkipVerify: true})
					err = conn.Handshake()
				}
				if allowed := p["allowed_cidrs"] != nil && slices.Contains(server[:], a); allowed != (err == nil) {
					t.Errorf("DNS over TLS by IPv%s to %v: %v", network, a, err)
				}
			}
			if p["allowed_cidrs"] != nil {
				return
			}
			for _, a := range append(server[:], other[:]...) {
				w.Event(r.Box, func(e audit.Event) bool { return e.Verdict == policy.Deny && e.Addr == a && e.Port == 853 })
				if seen := w.Net.Received(a.String(), testnet.Port(853)); len(seen) != 0 {
					t.Errorf("%v received %+v", a, seen)
				}
			}
		})
		w.Net.Forget()
	}
	// DNS over HTTPS is an ordinary host: its name decides.
	r := w.Raid(w.Create(map[string]any{"network_policy": harness.Custom("api.example.com")}))
	for _, a := range append(server[:], other[:]...) {
		conn := tls.Client(r.MustDial("tcp", netip.AddrPortFrom(a, 443)), &tls.Config{ServerName: "dns.example.com", InsecureSkipVerify: true, NextProtos: []string{"h2"}})
		if err := conn.Handshake(); err == nil || !strings.Contains(err.Error(), "access denied") {
			t.Errorf("DNS over HTTPS at %v: %v", a, err)
		}
		w.Event(r.Box, func(e audit.Event) bool {
			return e.Stage == policy.StageConn && e.Name == "dns.example.com" && e.Addr == a && e.Reason == name.ReasonNotAllowed
		})
	}
	if seen := w.Net.Received("dns.example.com", testnet.Port(443)); len(seen) != 0 {
		t.Errorf("the server received %+v", seen)
	}
}

// Data hidden in names, types and options does not leave the host.
func TestAttackDNSTunnel(t *testing.T) {
	t.Parallel()
	w := harness.SharedCaptured(t)
	long := strings.Repeat(strings.Repeat("0123456789abcdef", 3)+".", 4)
	if err := w.Net.AddHost("ok.example.com", "198.51.100.77", "2001:db8:1::77"); err != nil {
		t.Fatal(err)
	}
	for name, p := range map[string]map[string]any{
		"deny-all":            {"mode": "deny-all"},
		"one name":            harness.Custom("ok.example.com"),
		"names below denied":  {"mode": "custom", "allowed_domains": []string{"*.example.com"}, "denied_domains": []string{"*.t.example.com", "t.example.com"}},
		"names and addresses": {"mode": "custom", "allowed_domains": []string{"ok.example.com"}, "allowed_cidrs": []string{"198.51.100.0/24"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := w.On(t)
			r := w.Raid(w.Create(map[string]any{"network_policy": p}))
			w.Net.Forget()
			for _, qtype := range []uint16{mdns.TypeA, mdns.TypeAAAA, mdns.TypeTXT, mdns.TypeNULL, mdns.TypeANY, mdns.TypeCNAME, mdns.TypeMX,
				mdns.TypeSRV, mdns.TypeHTTPS, mdns.TypeSVCB, mdns.TypePTR, mdns.TypeNS, mdns.TypeSOA, mdns.TypeDNSKEY, mdns.TypeAXFR, mdns.TypeIXFR, 65280} {
				for _, below := range []string{"t.example.com", "t.evil.example.net"} {
					network := "udp"
					if qtype == mdns.TypeAXFR {
						network = "tcp"
					}
					m := ask(r, network, gatewayDNS, long+below, qtype)
					for _, rr := range m.Answer {
						if a := addressesIn(m); len(a) != 1 || !slices.Contains(sinks, a[0]) {
							t.Errorf("%s %s: answer %v", below, mdns.TypeToString[qtype], rr)
						}
					}
				}
			}
			e := w.Event(r.Box, func(e audit.Event) bool {
				return e.Stage == policy.StageDNS && strings.HasSuffix(e.Name, ".t.example.com")
			})
			if e.Verdict != policy.Deny {
				t.Errorf("decision: %s", audit.Line(e))
			}
			for _, q := range w.Net.Queries("") {
				t.Errorf("the name server was asked for %s %s", q.Name, q.Type)
			}
		})
	}
	r := w.Raid(w.Create(map[string]any{"network_policy": harness.Custom("ok.example.com")}))
	w.Net.Forget()
	testDNSOptions(t, r)
}

// testDNSOptions queries an allowed name in ways that carry additional data. Only the name goes upstream, once.
func testDNSOptions(t *testing.T, r *harness.Raider) {
	secret := "736563726574"
	m := new(mdns.Msg).SetQuestion("oK.eXample.cOm.", mdns.TypeA) // the case of letters could carry data too
	opt := &mdns.OPT{Hdr: mdns.RR_Header{Name: ".", Rrtype: mdns.TypeOPT}}
	opt.Option = []mdns.EDNS0{
		&mdns.EDNS0_COOKIE{Code: mdns.EDNS0COOKIE, Cookie: secret + "abcd"}, &mdns.EDNS0_LOCAL{Code: 65001, Data: []byte(secret)},
		&mdns.EDNS0_SUBNET{Code: mdns.EDNS0SUBNET, Family: 1, SourceNetmask: 32, Address: net.IPv4(1, 2, 3, 4)}, &mdns.EDNS0_PADDING{Padding: []byte(secret)},
	}
	m.Extra = []mdns.RR{opt}
	if _, err := exchange(r, "udp", gatewayDNS, m); err != nil {
		t.Error(err)
	}
	for _, q := range r.Net.Queries("") {
		if q.Name != "ok.example.com" {
			t.Errorf("the name server was asked for %s", q.Name)
		}
	}
	// Other messages than a plain question are answered with an error and not forwarded.
	r.Net.Forget()
	two := new(mdns.Msg).SetQuestion("ok.example.com.", mdns.TypeMX)
	two.Question = append(two.Question, mdns.Question{Name: "secret.evil.example.net.", Qtype: mdns.TypeA, Qclass: mdns.ClassINET})
	chaos := new(mdns.Msg).SetQuestion("ok.example.com.", mdns.TypeTXT)
	chaos.Question[0].Qclass = mdns.ClassCHAOS
	update := new(mdns.Msg).SetUpdate("example.com.")
	update.Insert([]mdns.RR{&mdns.TXT{Hdr: mdns.RR_Header{Name: "ok.example.com.", Rrtype: mdns.TypeTXT, Class: mdns.ClassINET}, Txt: []string{secret}}})
	stuffed := new(mdns.Msg).SetQuestion("ok.example.com.", mdns.TypeSRV)
	stuffed.Answer = []mdns.RR{&mdns.TXT{Hdr: mdns.RR_Header{Name: "ok.example.com.", Rrtype: mdns.TypeTXT, Class: mdns.ClassINET}, Txt: []string{secret}}}
	for what, m := range map[string]*mdns.Msg{"two questions": two, "class CHAOS": chaos, "update": update, "answers in a query": stuffed} {
		if answer, err := exchange(r, "udp", gatewayDNS, m); err != nil || answer.Rcode == mdns.RcodeSuccess {
			t.Errorf("%s: %v %v", what, answer, err)
		}
	}
	for _, name := range []string{"a\\000b.ok.example.com.", "ok.example.com\\.evil.example.net.", "*.example.com.", "\\255\\254.example.com.", "ok.example\\.com."} {
		answer := ask(r, "udp", gatewayDNS, name, mdns.TypeA)
		if a := addressesIn(answer); len(a) != 1 || a[0] != sinks[0] {
			t.Errorf("%s: %v", name, answer)
		}
	}
	if q := r.Net.Queries(""); len(q) != 0 {
		t.Errorf("the name server was asked: %+v", q)
	}
}

// A box queries as fast as it can. Its rate is limited, and another box is not affected.
func TestAttackDNSFlood(t *testing.T) {
	t.Parallel()
	w := harness.SharedCaptured(t)
	flooder := w.Raid(w.Create(map[string]any{"network_policy": harness.Custom("api.example.com")}))
	neighbour := w.Raid(w.Create(map[string]any{"network_policy": harness.Custom("api.example.com")}))
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		c := flooder.MustDial("udp", gatewayDNS)
		for i := 0; !stop.Load(); i++ {
			m, _ := new(mdns.Msg).SetQuestion(fmt.Sprintf("x%d.evil.example.net.", i), mdns.TypeTXT).Pack()
			_, _ = c.Write(m)
		}
	}()
	limited := w.Event(flooder.Box, func(e audit.Event) bool { return e.Stage == policy.StageDNS && e.Reason == name.ReasonLimit })
	if limited.Verdict != policy.Deny {
		t.Errorf("decision: %s", audit.Line(limited))
	}
	for range 20 {
		var m *mdns.Msg
		w.Until("the other box is answered", func() bool { // it repeats its query, like a resolver: the flood may fill a queue
			c := neighbour.MustDial("udp", gatewayDNS)
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(2 * time.Second))
			co := &mdns.Conn{Conn: c}
			if co.WriteMsg(new(mdns.Msg).SetQuestion("api.example.com.", mdns.TypeA)) != nil {
				return false
			}
			var err error
			m, err = co.ReadMsg()
			return err == nil
		})
		if len(addressesIn(m)) == 0 {
			t.Errorf("the other box got %v", m)
		}
	}
	stop.Store(true)
	<-done
	for _, q := range w.Net.Queries("") {
		if q.Name != "api.example.com" {
			t.Errorf("the name server was asked for %s", q.Name)
		}
	}
}
