package attack

import (
	"bufio"
	"crypto/tls"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"boxgate/e2e/harness"
	"boxgate/internal/testnet"
)

// aroundPolicies allow api.example.com in every way that a policy can. Each has a header rule for it.
func aroundPolicies(w *harness.World) map[string]map[string]any {
	addresses := []string{w.V4("api.example.com").String() + "/32", w.V6("api.example.com").String() + "/128"}
	return map[string]map[string]any{
		"allow-all":        {"mode": "allow-all"},
		"names":            harness.Custom("api.example.com", "www.example.com"),
		"any name":         harness.Custom("*"),
		"addresses":        {"mode": "custom", "allowed_cidrs": addresses},
		"every address":    {"mode": "custom", "allowed_cidrs": []string{"0.0.0.0/0", "::/0"}},
		"names, addresses": {"mode": "custom", "allowed_cidrs": addresses, "allowed_domains": []string{"api.example.com"}},
		"denied lists":     {"mode": "custom", "denied_domains": []string{"evil.example.net"}},
	}
}

// TestAttackWayAroundTheInterceptor: a box with a header rule for a host cannot bypass the interceptor. Under no policy
// does a connection to an address of the host reach it in another way, whether the box learned the address from the
// gateway's DNS or elsewhere.
func TestAttackWayAroundTheInterceptor(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	for name, spec := range aroundPolicies(w) {
		in := w.Intrude(w.Create(map[string]any{
			"network_policy": spec,
			"attach_headers": map[string]any{"api.example.com": map[string]string{"X-Key": harness.Canary}},
		}))
		// Where names decide, an address alone allows no connection.
		byAddress := name == "addresses" || name == "every address" || name == "names, addresses"
		passed := t.Run(name+", by heart", func(t *testing.T) {
			aroundEveryWay(in.On(t), byAddress, in.V4("api.example.com"), in.V6("api.example.com"))
		})
		told := []netip.Addr{in.Resolve("api.example.com", "ip4"), in.Resolve("api.example.com", "ip6")}
		if !passed || !t.Run(name, func(t *testing.T) { aroundEveryWay(in.On(t), byAddress, told...) }) {
			return // other policies would take minutes each to show it
		}
	}
}

func aroundEveryWay(in *harness.Intruder, byAddress bool, addresses ...netip.Addr) {
	for _, api := range addresses {
		in.Net.Forget()
		throughInterceptor(in, api, byAddress)
		throughProxyInClear(in)
		requests := len(in.Net.Received("api.example.com", testnet.Of(testnet.Request)))
		connections := len(in.Net.Received("api.example.com", testnet.Of(testnet.Connection)))
		past(in, api)
		for _, r := range in.Net.Received("api.example.com", testnet.Any)[requests+connections:] {
			in.T.Errorf("%v: past the interceptor came %+v", api, r)
		}
	}
}

// throughInterceptor makes requests that must arrive, with the header.
func throughInterceptor(in *harness.Intruder, api netip.Addr, byAddress bool) {
	in.T.Helper()
	gateway := netip.MustParseAddrPort("10.200.0.1:3128")
	proxied := func(authority string) net.Conn {
		c := in.Dial(gateway)
		r := bufio.NewReader(c)
		if res, body := harness.Exchange(in.T, c, r, "CONNECT "+authority+" HTTP/1.1\r\nHost: "+authority+"\r\n\r\n"); res.StatusCode != 200 {
			in.T.Fatalf("CONNECT %s: %d %s", authority, res.StatusCode, body)
		}
		return c
	}
	to := netip.AddrPortFrom(api, 443)
	ways := map[string]net.Conn{"/sni": in.Dial(to), "/connect-name": proxied("api.example.com:443")}
	if byAddress {
		ways["/connect-address"] = proxied(to.String())
	}
	for path, c := range ways {
		s := in.TLS(c, "api.example.com")
		res, _ := harness.Exchange(in.T, s, bufio.NewReader(s), "GET "+path+" HTTP/1.1\r\nHost: api.example.com\r\nConnection: close\r\n\r\n")
		seen := in.Requests("api.example.com", path)
		if res.StatusCode != 200 || len(seen) != 1 || seen[0].Header.Get("X-Key") != harness.Canary {
			in.T.Errorf("%s: %d, the server received %+v", path, res.StatusCode, seen)
		}
	}
}

// throughProxyInClear makes a plain request by the explicit proxy. It must arrive without the header.
func throughProxyInClear(in *harness.Intruder) {
	in.T.Helper()
	c := in.Dial(netip.MustParseAddrPort("10.200.0.1:3128"))
	res, body := harness.Exchange(in.T, c, bufio.NewReader(c), "GET http://api.example.com/plain HTTP/1.1\r\nHost: api.example.com\r\n\r\n")
	seen := in.Requests("api.example.com", "/plain")
	if res.StatusCode != 200 || len(seen) != 1 || seen[0].Header.Get("X-Key") != "" {
		in.T.Errorf("plain HTTP: %d %s, the server received %+v", res.StatusCode, body, seen)
	}
}

// past tries to reach the host without the interceptor seeing the name.
func past(in *harness.Intruder, api netip.Addr) {
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
	second := nameAgain(in, api)
	for name, first := range firsts {
		for way, c := range map[string]net.Conn{
			"": in.Dial(to), "proxy, name: ": in.Dial(gateway), "proxy, address: ": in.Dial(gateway), "proxy, second name: ": in.Dial(gateway),
		} {
			r := bufio.NewReader(c)
			switch way {
			case "proxy, second name: ":
				res, _ := harness.Exchange(in.T, c, r, "CONNECT "+second+":443 HTTP/1.1\r\nHost: "+second+":443\r\n\r\n")
				if res.StatusCode != 200 {
					continue // the policy allows it
				}
			case "proxy, name: ":
				harness.Exchange(in.T, c, r, "CONNECT api.example.com:443 HTTP/1.1\r\nHost: api.example.com:443\r\n\r\n")
			case "proxy, address: ":
				harness.Exchange(in.T, c, r, "CONNECT "+to.String()+" HTTP/1.1\r\nHost: "+to.String()+"\r\n\r\n")
			}
			if _, err := io.WriteString(c, first); err != nil {
				in.T.Errorf("%s%s: %v", way, name, err)
			}
			_ = c.SetDeadline(time.Now().Add(harness.Patience))
			if answer, _ := harness.ReadAll(c); strings.Contains(answer, "stays open") || answer != "" && answer[0] == 22 {
				in.T.Fatalf("%s%s was answered %q", way, name, answer) // the others would take as long to fail
			}
		}
	}
	for _, host := range []string{"www.example.com", "evil.example.net"} { // resolves to that host, or to none
		c := in.Dial(to)
		s := tls.Client(c, &tls.Config{ServerName: host, InsecureSkipVerify: true})
		_ = c.SetDeadline(time.Now().Add(harness.Patience))
		if err := s.Handshake(); err == nil && s.ConnectionState().PeerCertificates[0].VerifyHostname(host) != nil {
			in.T.Errorf("%s reached %v", host, s.ConnectionState().PeerCertificates[0].DNSNames)
		}
		c.Close()
	}
	if err := quic(in, to); err == nil {
		in.T.Error("UDP 443 is open")
	}
}

// nameAgain gives an address a second name and makes the box resolve it, unless its policy prevents that.
func nameAgain(in *harness.Intruder, api netip.Addr) (name string) {
	in.T.Helper()
	name, kind, network := "second4.evil.net", "A", "ip4"
	if api.Is6() {
		name, kind, network = "second6.evil.net", "AAAA", "ip6"
	}
	if err := in.Net.SetRecords(name, name+". 60 IN "+kind+" "+api.String()); err != nil {
		in.T.Fatal(err)
	}
	in.Resolve(name, network)
	return name
}

// quic sends a datagram and returns the ICMP error that comes back.
func quic(in *harness.Intruder, to netip.AddrPort) error {
	return in.InNetNS(func() error {
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
