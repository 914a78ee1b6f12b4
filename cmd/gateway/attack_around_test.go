package main

import (
	"bufio"
	"crypto/tls"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"boxgate/internal/testnet"
)

// aroundPolicies open api.example.com in every way that a policy can; it has a header rule in each.
func aroundPolicies(w *world) map[string]map[string]any {
	addresses := []string{w.v4("api.example.com").String() + "/32", w.v6("api.example.com").String() + "/128"}
	return map[string]map[string]any{
		"allow-all":        {"mode": "allow-all"},
		"names":            custom("api.example.com", "www.example.com"),
		"any name":         custom("*"),
		"addresses":        {"mode": "custom", "allowed_cidrs": addresses},
		"every address":    {"mode": "custom", "allowed_cidrs": []string{"0.0.0.0/0", "::/0"}},
		"names, addresses": {"mode": "custom", "allowed_cidrs": addresses, "allowed_domains": []string{"api.example.com"}},
		"denied lists":     {"mode": "custom", "denied_domains": []string{"evil.example.net"}},
	}
}

// TestAttackWayAroundTheInterceptor proves that whoever is subject to a header rule is subject to the interceptor: under
// no policy does a connection to an address of a host with a rule reach it in any other way, whether the box was told the
// address or has it from elsewhere.
func TestAttackWayAroundTheInterceptor(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	for name, spec := range aroundPolicies(w) {
		in := w.intrude(w.create(map[string]any{
			"network_policy": spec,
			"attach_headers": map[string]any{"api.example.com": map[string]string{"X-Key": canary}},
		}))
		// Where names decide, in either way, an address alone opens nothing.
		byAddress := name == "addresses" || name == "every address" || name == "names, addresses"
		t.Run(name+", by heart", func(t *testing.T) {
			in.on(t).aroundEveryWay(byAddress, in.v4("api.example.com"), in.v6("api.example.com"))
		})
		told := []netip.Addr{in.resolve("api.example.com", "ip4"), in.resolve("api.example.com", "ip6")}
		t.Run(name, func(t *testing.T) { in.on(t).aroundEveryWay(byAddress, told...) })
	}
}

func (in *intruder) aroundEveryWay(byAddress bool, addresses ...netip.Addr) {
	for _, api := range addresses {
		in.Net.Forget()
		in.throughInterceptor(api, byAddress)
		in.throughProxyInClear()
		requests := len(in.Net.Received("api.example.com", testnet.Of(testnet.Request)))
		connections := len(in.Net.Received("api.example.com", testnet.Of(testnet.Connection)))
		in.past(api)
		for _, r := range in.Net.Received("api.example.com", testnet.Any)[requests+connections:] {
			in.t.Errorf("%v: past the interceptor came %+v", api, r)
		}
	}
}

// throughInterceptor makes requests that must arrive, with the header.
func (in *intruder) throughInterceptor(api netip.Addr, byAddress bool) {
	in.t.Helper()
	gateway := netip.MustParseAddrPort("10.200.0.1:3128")
	proxied := func(authority string) net.Conn {
		c := in.dial(gateway)
		r := bufio.NewReader(c)
		if res, body := exchange(in.t, c, r, "CONNECT "+authority+" HTTP/1.1\r\nHost: "+authority+"\r\n\r\n"); res.StatusCode != 200 {
			in.t.Fatalf("CONNECT %s: %d %s", authority, res.StatusCode, body)
		}
		return c
	}
	to := netip.AddrPortFrom(api, 443)
	ways := map[string]net.Conn{"/sni": in.dial(to), "/connect-name": proxied("api.example.com:443")}
	if byAddress {
		ways["/connect-address"] = proxied(to.String())
	}
	for path, c := range ways {
		s := in.tls(c, "api.example.com")
		res, _ := exchange(in.t, s, bufio.NewReader(s), "GET "+path+" HTTP/1.1\r\nHost: api.example.com\r\nConnection: close\r\n\r\n")
		seen := in.requests("api.example.com", path)
		if res.StatusCode != 200 || len(seen) != 1 || seen[0].Header.Get("X-Key") != canary {
			in.t.Errorf("%s: %d, the server received %+v", path, res.StatusCode, seen)
		}
	}
}

// throughProxyInClear makes a plain request by the explicit proxy, which must arrive without the header.
func (in *intruder) throughProxyInClear() {
	in.t.Helper()
	c := in.dial(netip.MustParseAddrPort("10.200.0.1:3128"))
	res, body := exchange(in.t, c, bufio.NewReader(c), "GET http://api.example.com/plain HTTP/1.1\r\nHost: api.example.com\r\n\r\n")
	seen := in.requests("api.example.com", "/plain")
	if res.StatusCode != 200 || len(seen) != 1 || seen[0].Header.Get("X-Key") != "" {
		in.t.Errorf("plain HTTP: %d %s, the server received %+v", res.StatusCode, body, seen)
	}
}

// past tries to reach the host without the interceptor seeing a name it has to intercept.
func (in *intruder) past(api netip.Addr) {
	gateway := netip.MustParseAddrPort("10.200.0.1:3128")
	named := func(names ...string) string { return hello{0x303, []uint16{0x304, 0x303}, names, false}.String() }
	firsts := map[string]string{
		"no SNI":           named(),
		"address as SNI":   named(api.String()),
		"unknown SNI":      named("unknown.example.com"),
		"SNI of a number":  named("1"),
		"two names":        named("www.example.com", "api.example.com"),
		"TLS 1.1":          hello{0x302, nil, []string{"api.example.com"}, false}.String(),
		"SSL 2.0":          sslv2,
		"raw bytes":        "\x00\x01\x02\x03",
		"HTTP/2 in clear":  "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"a line of text":   "EHLO api.example.com\r\n",
		"empty handshake":  "\x16\x03\x01\x00\x00",
		"broken handshake": "\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00",
	}
	to := netip.AddrPortFrom(api, 443)
	second := in.nameAgain(api)
	for name, first := range firsts {
		for way, c := range map[string]net.Conn{
			"": in.dial(to), "proxy, name: ": in.dial(gateway), "proxy, address: ": in.dial(gateway), "proxy, second name: ": in.dial(gateway),
		} {
			r := bufio.NewReader(c)
			switch way {
			case "proxy, second name: ":
				res, _ := exchange(in.t, c, r, "CONNECT "+second+":443 HTTP/1.1\r\nHost: "+second+":443\r\n\r\n")
				if res.StatusCode != 200 {
					continue // the policy has it so
				}
			case "proxy, name: ":
				exchange(in.t, c, r, "CONNECT api.example.com:443 HTTP/1.1\r\nHost: api.example.com:443\r\n\r\n")
			case "proxy, address: ":
				exchange(in.t, c, r, "CONNECT "+to.String()+" HTTP/1.1\r\nHost: "+to.String()+"\r\n\r\n")
			}
			if _, err := io.WriteString(c, first); err != nil {
				in.t.Errorf("%s%s: %v", way, name, err)
			}
			_ = c.SetDeadline(time.Now().Add(2 * time.Second))
			if answer, _ := hear(c); strings.Contains(answer, "stays open") || answer != "" && answer[0] == 22 {
				in.t.Fatalf("%s%s was answered %q", way, name, answer) // the others would take as long to show it
			}
		}
	}
	for _, host := range []string{"www.example.com", "evil.example.net"} { // leads to that host, or nowhere
		c := in.dial(to)
		s := tls.Client(c, &tls.Config{ServerName: host, InsecureSkipVerify: true})
		_ = c.SetDeadline(time.Now().Add(5 * time.Second))
		if err := s.Handshake(); err == nil && s.ConnectionState().PeerCertificates[0].VerifyHostname(host) != nil {
			in.t.Errorf("%s reached %v", host, s.ConnectionState().PeerCertificates[0].DNSNames)
		}
		c.Close()
	}
	if err := in.quic(to); err == nil {
		in.t.Error("UDP 443 is open")
	}
}

// nameAgain gives an address a second name and has the box told of it, unless its policy keeps that from it.
func (in *intruder) nameAgain(api netip.Addr) (name string) {
	in.t.Helper()
	name, kind, network := "second4.evil.net", "A", "ip4"
	if api.Is6() {
		name, kind, network = "second6.evil.net", "AAAA", "ip6"
	}
	if err := in.Net.SetRecords(name, name+". 60 IN "+kind+" "+api.String()); err != nil {
		in.t.Fatal(err)
	}
	in.resolve(name, network)
	return name
}

// quic sends a datagram and returns the ICMP error that comes back.
func (in *intruder) quic(to netip.AddrPort) error {
	return in.inNetNS(func() error {
		c, err := net.Dial("udp", to.String())
		if err != nil {
			return err
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(2 * time.Second))
		if _, err := c.Write([]byte("\xc0quic")); err != nil {
			return err
		}
		_, err = c.Read(make([]byte, 10))
		return err
	})
}
