package ingress

import (
	"bufio"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"boxgate/audit"
	"boxgate/ingress/balancer"
	"boxgate/policy"
	"boxgate/policy/name"
)

// proxyHeader returns a load balancer's header for a visitor; "" is the balancer's own connection.
func proxyHeader(from string) string {
	const signature = "\r\n\r\n\x00\r\nQUIT\n"
	if from == "" {
		return signature + "\x20\x00\x00\x00"
	}
	a := netip.MustParseAddrPort(from)
	family := byte(0x11)
	to := netip.MustParseAddr("198.51.100.1")
	if a.Addr().Is6() {
		family, to = 0x21, netip.MustParseAddr("2001:db8::1")
	}
	rest := append(a.Addr().AsSlice(), to.AsSlice()...)
	rest = binary.BigEndian.AppendUint16(rest, a.Port())
	rest = binary.BigEndian.AppendUint16(rest, 443)
	b := append([]byte(signature), 0x21, family)
	return string(append(binary.BigEndian.AppendUint16(b, uint16(len(rest))), rest...))
}

// balanced returns an ingress behind a load balancer at 127.0.0.2.
func balanced(t *testing.T, change func(*Config)) *fixture {
	return start(t, func(cfg *Config) {
		cfg.Balancers = balancer.List{netip.MustParsePrefix("127.0.0.2/32")}
		if change != nil {
			change(cfg)
		}
	})
}

// from connects to a listener from an address, and sends data. It connects again after a reset, since on a busy machine with a
// short timeout the listener may give up before Dial returns.
func from(t *testing.T, address, to, said string) net.Conn {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	c, err := d.DialContext(t.Context(), "tcp", to)
	for until := time.Now().Add(time.Minute); errors.Is(err, syscall.ECONNRESET) && time.Now().Before(until); {
		c, err = d.DialContext(t.Context(), "tcp", to)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	_, _ = io.WriteString(c, said)
	return c
}

// TestBalancerSaysWhoTheVisitorIs: the application, the log and the limits use the address from a listed balancer's header,
// over HTTPS and plain HTTP.
func TestBalancerSaysWhoTheVisitorIs(t *testing.T) {
	t.Parallel()
	f := balanced(t, nil)
	app := record(t)
	f.expose("a", app.Server, Auth{Open: true})
	for said, want := range map[string]string{"192.0.2.7:4711": "192.0.2.7", "[2001:db8::7]:4711": "2001:db8::7", "": "127.0.0.2"} {
		secure := tls.Client(from(t, "127.0.0.2", f.https, proxyHeader(said)), &tls.Config{RootCAs: f.roots, ServerName: "a" + domain})
		for _, c := range []net.Conn{secure, from(t, "127.0.0.2", f.plain, proxyHeader(said))} {
			_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: a"+domain+"\r\nX-Forwarded-For: 6.6.6.6\r\n\r\n")
			res, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil || res.StatusCode != 200 {
				t.Fatalf("%q: %v, %v", said, res, err)
			}
			if got := app.last(t).Header["X-Forwarded-For"]; len(got) != 1 || got[0] != want {
				t.Errorf("%q: the application is told %q", said, got)
			}
		}
		f.event(t, func(e audit.Event) bool { return e.Verdict == policy.Allow && e.Peer.String() == want })
	}
}

// TestOnlyBalancersAreBelieved: a header from another address is an invalid request, and a balancer's connection without one
// is refused.
func TestOnlyBalancersAreBelieved(t *testing.T) {
	t.Parallel()
	f := balanced(t, nil)
	app := record(t)
	f.expose("a", app.Server, Auth{Open: true})
	request := "GET / HTTP/1.1\r\nHost: a" + domain + "\r\n\r\n"
	for name, c := range map[string]struct{ address, said string }{
		"a visitor with a header":         {"127.0.0.1", proxyHeader("192.0.2.7:4711") + request},
		"a balancer without one":          {"127.0.0.2", request},
		"a balancer with one of before":   {"127.0.0.2", "PROXY TCP4 192.0.2.7 198.51.100.1 4711 443\r\n" + request},
		"a balancer that speaks for more": {"127.0.0.2", proxyHeader("192.0.2.7:4711") + proxyHeader("192.0.2.8:4711") + request},
	} {
		got, err := io.ReadAll(from(t, c.address, f.plain, c.said))
		if strings.Contains(string(got), " 200 ") {
			t.Errorf("%s: %q", name, got)
		}
		t.Logf("%s: %.40q, %v", name, got, err)
		secure := tls.Client(from(t, c.address, f.https, strings.TrimSuffix(c.said, request)), &tls.Config{RootCAs: f.roots, ServerName: "a" + domain})
		if err := secure.HandshakeContext(t.Context()); err == nil {
			t.Errorf("%s: the handshake succeeded", name)
		}
	}
	if n := app.count(); n != 0 {
		t.Errorf("%d requests arrived", n)
	}
	f.event(t, func(e audit.Event) bool {
		return e.Reason == name.ReasonBadRequest && e.Peer.String() == "127.0.0.2" && strings.Contains(e.Error, "PROXY")
	})
}

// TestVisitorsOfABalancerAreLimited counts connections for visitors, not for their balancer.
func TestVisitorsOfABalancerAreLimited(t *testing.T) {
	t.Parallel()
	f := balanced(t, func(cfg *Config) { cfg.Connections = 8 })
	app := record(t)
	f.expose("a", app.Server, Auth{Open: true})
	open := func(visitor string) bool {
		c := from(t, "127.0.0.2", f.https, proxyHeader(visitor))
		return tls.Client(c, &tls.Config{RootCAs: f.roots, ServerName: "a" + domain}).HandshakeContext(t.Context()) == nil
	}
	for _, visitor := range []string{"192.0.2.7:1", "192.0.2.7:2", "192.0.2.8:1", "192.0.2.8:2"} {
		if !open(visitor) {
			t.Errorf("%s was refused", visitor)
		}
	}
	if open("192.0.2.7:3") {
		t.Error("a visitor took more than a quarter")
	}
	f.event(t, func(e audit.Event) bool { return e.Reason == name.ReasonLimit && e.Peer.String() == "192.0.2.7" })
	if !open("192.0.2.9:1") {
		t.Error("another visitor was refused")
	}
}

// TestBalancerThatSaysNothing: without a complete header the connection ends.
func TestBalancerThatSaysNothing(t *testing.T) {
	t.Parallel()
	f := balanced(t, func(cfg *Config) { cfg.ReadHeaderTimeout = 50 * time.Millisecond })
	for _, said := range []string{"", "\r\n\r\n", proxyHeader("192.0.2.7:4711")[:20]} {
		if got, err := io.ReadAll(from(t, "127.0.0.2", f.https, said)); len(got) > 0 || err == nil {
			t.Errorf("%q: %q, %v", said, got, err)
		}
	}
}
