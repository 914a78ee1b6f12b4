package attack

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"boxgate/e2e/harness"
	"boxgate/internal/testnet"
	"boxgate/policy"
	"boxgate/policy/name"
)

// lenientServer serves two virtual hosts on one address. Like nginx and others, it accepts a Host field after garbage
// in front of the request line.
type lenientServer struct {
	mu    sync.Mutex
	heard []string
}

func (s *lenientServer) serve(c net.Conn) {
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(harness.Patience))
	b := make([]byte, 4096)
	n, _ := c.Read(b)
	if n == 0 {
		return
	}
	s.mu.Lock()
	s.heard = append(s.heard, string(b[:n]))
	s.mu.Unlock()
	site := "the default site"
	for _, host := range []string{"cdn.example.org", "static.example.org"} {
		if strings.Contains(string(b[:n]), host) {
			site = host
		}
	}
	_, _ = fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", len(site), site)
}

// takeHeard returns and clears the received requests.
func (s *lenientServer) takeHeard() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.heard
	s.heard = nil
	return out
}

// deniedHostBytes are first bytes in which lenient servers find a request for static.example.org, and strict parsers do
// not.
var deniedHostBytes = map[string]string{
	"an empty line first":        "\r\nGET / HTTP/1.1\r\nHost: static.example.org\r\n\r\n",
	"a line feed first":          "\nGET / HTTP/1.1\r\nHost: static.example.org\r\n\r\n",
	"a control byte first":       "\x01GET / HTTP/1.1\r\nHost: static.example.org\r\n\r\n",
	"a tab behind the method":    "GET\t/ HTTP/1.1\r\nHost: static.example.org\r\n\r\n",
	"a space behind the version": "GET / HTTP/1.1 \r\nHost: static.example.org\r\n\r\n",
	"a version in lower case":    "GET / http/1.1\r\nHost: static.example.org\r\n\r\n",
	"no version":                 "GET http://static.example.org/\r\n",
	"the preface of HTTP/2":      "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x12\x01\x05\x00\x00\x00\x01static.example.org",
	"a PROXY header, version 1":  "PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\nGET / HTTP/1.1\r\nHost: static.example.org\r\n\r\n",
	"a PROXY header, version 2": "\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c\xc0\x00\x02\x01\xc0\x00\x02\x02\x00\x01\x00\x02" +
		"GET / HTTP/1.1\r\nHost: static.example.org\r\n\r\n",
}

// tunnel opens a CONNECT through the explicit proxy of a family.
func tunnel(in *harness.Intruder, gateway, authority string) net.Conn {
	in.T.Helper()
	c := in.Dial(netip.AddrPortFrom(netip.MustParseAddr(gateway), 3128))
	if res, _ := harness.Exchange(in.T, c, bufio.NewReader(c), "CONNECT "+authority+" HTTP/1.1\r\nHost: "+authority+"\r\n\r\n"); res.StatusCode != 200 {
		in.T.Fatalf("CONNECT %s: %d", authority, res.StatusCode)
	}
	return c
}

// TestAttackDeniedVirtualHost requests a denied host at the address of an allowed one, in bytes that are a request to a
// lenient server but not to a strict parser: transparently, and in a tunnel to the allowed host.
func TestAttackDeniedVirtualHost(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	server := &lenientServer{}
	for _, port := range []uint16{80, 8080} {
		if err := w.Net.ServeConns("cdn.example.org", port, server.serve); err != nil {
			t.Fatal(err)
		}
	}
	spec := harness.Custom("*.example.org")
	spec["denied_domains"] = []string{"static.example.org"}
	in := w.Intrude(w.Create(map[string]any{"network_policy": spec}))
	open := w.Intrude(w.Create(map[string]any{"network_policy": map[string]any{"mode": "allow-all"}}))
	for port, reason := range map[uint16]name.Reason{80: name.ReasonNoName, 8080: name.ReasonProtocol} {
		for what, text := range deniedHostBytes {
			t.Run(fmt.Sprintf("%s on %d", what, port), func(t *testing.T) {
				in, open := in.On(t), open.On(t)
				for way, dial := range ways(in, "cdn.example.org", port) {
					since := time.Now()
					server.takeHeard()
					if answer, _ := harness.SendAndReadAll(dial(), text); strings.Contains(answer, "static.example.org") {
						t.Errorf("%s: %q", way, answer)
					}
					if heard := server.takeHeard(); len(heard) > 0 {
						t.Errorf("%s: the server heard %q", way, heard)
					}
					in.Denied(since, policy.StageConn, reason)
				}
				for way, dial := range ways(open, "cdn.example.org", port) { // the server would have been deceived
					if answer, _ := harness.SendAndReadAll(dial(), text); !strings.HasSuffix(answer, "static.example.org") {
						t.Errorf("where nothing is denied, %s: %q", way, answer)
					}
				}
			})
		}
		for way, dial := range ways(in, "cdn.example.org", port) { // the allowed host works
			host := map[uint16]string{80: "cdn.example.org", 8080: "cdn.example.org:8080"}[port]
			answer, _ := harness.SendAndReadAll(dial(), "GET / HTTP/1.1\r\nHost: "+host+"\r\nConnection: close\r\n\r\n")
			if !strings.HasSuffix(answer, "cdn.example.org") {
				t.Errorf("an honest request, %s: %q", way, answer)
			}
		}
	}
	tlsWithoutName(in)
}

// ways returns the ways to reach a port of a host, in both families.
func ways(in *harness.Intruder, host string, port uint16) map[string]func() net.Conn {
	authority := fmt.Sprintf("%s:%d", host, port)
	return map[string]func() net.Conn{
		"transparently, IPv4": func() net.Conn { return in.Dial(netip.AddrPortFrom(in.Resolve(host, "ip4"), port)) },
		"transparently, IPv6": func() net.Conn { return in.Dial(netip.AddrPortFrom(in.Resolve(host, "ip6"), port)) },
		"by CONNECT, IPv4":    func() net.Conn { return tunnel(in, "10.200.0.1", authority) },
		"by CONNECT, IPv6":    func() net.Conn { return tunnel(in, "fd42:b0c5::1", authority) },
	}
}

// tlsWithoutName makes TLS connections without SNI, where a server accepts any Host.
func tlsWithoutName(in *harness.Intruder) {
	for _, port := range []uint16{443, 8443} {
		for way, dial := range ways(in, "cdn.example.org", port) {
			since := time.Now()
			c := tls.Client(dial(), &tls.Config{InsecureSkipVerify: true})
			_ = c.SetDeadline(time.Now().Add(harness.Patience))
			if _, err := io.WriteString(c, "GET /nameless HTTP/1.1\r\nHost: static.example.org\r\n\r\n"); err == nil {
				in.T.Errorf("TLS without SNI on %d, %s: the handshake succeeded", port, way)
			}
			in.Denied(since, policy.StageConn, name.ReasonNoName)
		}
	}
	if seen := in.Net.Received("static.example.org", testnet.Path("/nameless")); len(seen) > 0 {
		in.T.Errorf("the server received %+v", seen)
	}
}
