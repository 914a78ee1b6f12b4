package testnet

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// curl runs curl in the gateway's namespace, with the addresses of the zone and the test CA.
func curl(t *testing.T, n *Net, host string, args ...string) (string, error) {
	t.Helper()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, n.CAPEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	all := []string{"-sS", "-m", "10", "--cacert", ca}
	for _, port := range []string{"80", "443"} {
		var addrs []string
		for _, a := range n.Addrs(host) {
			if a.Is6() {
				addrs = append(addrs, "["+a.String()+"]")
			} else {
				addrs = append(addrs, a.String())
			}
		}
		all = append(all, "--resolve", host+":"+port+":"+strings.Join(addrs, ","))
	}
	return n.Gateway().Run(t.Context(), "curl", append(all, args...)...)
}

func TestHTTPSOverBothFamiliesAndVersions(t *testing.T) {
	t.Parallel()
	n := ForTest(t, Options{Logf: t.Logf})
	for _, family := range []string{"-4", "-6"} {
		for version, proto := range map[string]string{"--http1.1": "HTTP/1.1", "--http2": "HTTP/2.0"} {
			out, err := curl(t, n, "api.example.com", family, version, "-H", "X-Seen: yes", "-d", "hello", "https://api.example.com/echo?q=1")
			if err != nil {
				t.Fatalf("curl %s %s: %v: %s", family, version, err, out)
			}
			var e Echo
			if err := json.Unmarshal([]byte(out), &e); err != nil {
				t.Fatalf("%v in %s", err, out)
			}
			if e.Proto != proto || e.Method != "POST" || e.Target != "/echo?q=1" || e.Host != "api.example.com" ||
				e.Header.Get("X-Seen") != "yes" || e.Body != 5 || e.SNI != "api.example.com" {
				t.Errorf("curl %s %s: echo is %+v", family, version, e)
			}
		}
	}
	requests := n.Received("api.example.com", Path("/echo"))
	if len(requests) != 4 || requests[0].Header.Get("X-Seen") != "yes" || requests[0].Body != 5 {
		t.Errorf("recorded %+v", requests)
	}
	connections := n.Received("api.example.com", Of(Connection))
	if len(connections) != 4 || connections[0].SNI != "api.example.com" || connections[0].First[0] != 22 {
		t.Errorf("recorded %+v", connections)
	}
	if others := n.Received("www.example.com"); len(others) != 0 {
		t.Errorf("www.example.com received %+v", others)
	}
}

func TestCertificatesTellHostsApart(t *testing.T) {
	t.Parallel()
	n := ForTest(t, Options{})
	for _, host := range []string{"bad-cert.example.com", "evil.example.net"} {
		out, err := curl(t, n, host, "https://"+host+"/")
		if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 60 {
			t.Errorf("%s: curl ended with %v (%s), not with an untrusted certificate", host, err, out)
		}
		if out, err := curl(t, n, host, "-k", "https://"+host+"/status/204", "-w", "%{http_code}"); err != nil || out != "204" {
			t.Errorf("%s without verification: %q, %v", host, out, err)
		}
	}
	// An honest host does not present another host's certificate, whatever name is requested.
	out, err := curl(t, n, "www.example.com", "--connect-to", "api.example.com:443:www.example.com:443", "https://api.example.com/")
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 60 {
		t.Errorf("www.example.com as api.example.com: %v (%s)", err, out)
	}
}

func TestPlainHTTPAndMetadata(t *testing.T) {
	t.Parallel()
	n := ForTest(t, Options{})
	if out, err := curl(t, n, "plain.example.com", "http://plain.example.com/"); err != nil || !strings.Contains(out, "plain.example.com") {
		t.Errorf("plain HTTP: %q, %v", out, err)
	}
	out, err := n.Gateway().Run(t.Context(), "curl", "-sS", "-m", "10", "http://169.254.169.254/latest/meta-data/")
	if err != nil || !strings.Contains(out, FakeCredential) {
		t.Errorf("metadata: %q, %v", out, err)
	}
	if got := n.Received("169.254.169.254", Path("/latest/meta-data/")); len(got) != 1 {
		t.Errorf("metadata host recorded %+v", got)
	}
}

func TestPages(t *testing.T) {
	t.Parallel()
	n := ForTest(t, Options{})
	if out, err := curl(t, n, "api.example.com", "https://api.example.com/bytes/100000"); err != nil || len(out) != 100000 {
		t.Errorf("/bytes: %d bytes, %v", len(out), err)
	}
	if out, err := curl(t, n, "api.example.com", "-i", "https://api.example.com/trailers"); err != nil || !strings.Contains(strings.ToLower(out), "grpc-status: 0") {
		t.Errorf("/trailers: %q, %v", out, err)
	}
	if out, err := curl(t, n, "api.example.com", "-i", "https://api.example.com/hints"); err != nil || !strings.Contains(out, "103") {
		t.Errorf("/hints: %q, %v", out, err)
	}
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return n.Gateway().DialContext(ctx, network, "198.51.100.13:80")
	}}}
	defer client.CloseIdleConnections()
	c, _, err := websocket.Dial(t.Context(), "ws://ws.example.com/ws", &websocket.DialOptions{HTTPClient: client})
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	if err := c.Write(t.Context(), websocket.MessageText, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, data, err := c.Read(t.Context()); err != nil || string(data) != "hello" {
		t.Errorf("WebSocket: %q, %v", data, err)
	}
	resp, err := client.Get("http://ws.example.com/sse")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	buf := make([]byte, 64)
	if k, err := io.ReadAtLeast(resp.Body, buf, 20); err != nil || !strings.HasPrefix(string(buf[:k]), "data: 0\n\ndata: 1\n\n") {
		t.Errorf("/sse: %q, %v", buf[:k], err)
	}
}

func TestRawEcho(t *testing.T) {
	t.Parallel()
	n := ForTest(t, Options{})
	for _, at := range []string{"198.51.100.77:7", "[2001:db8:1::77]:7", "203.0.113.9:4444"} {
		for _, network := range []string{"tcp", "udp"} {
			c, err := n.Gateway().DialContext(t.Context(), network, at)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(time.Minute))
			if _, err := c.Write([]byte("ping")); err != nil {
				t.Fatal(err)
			}
			buf := make([]byte, 4)
			if _, err := io.ReadFull(c, buf); err != nil || string(buf) != "ping" {
				t.Errorf("%s %s: %q, %v", network, at, buf, err)
			}
			got := n.Received(netip.MustParseAddrPort(at).Addr().String(), func(r Received) bool { return string(r.First) == "ping" })
			if want := map[string]int{"tcp": 1, "udp": 2}[network]; len(got) != want {
				t.Errorf("%s %s recorded %+v", network, at, got)
			}
		}
	}
	c, err := n.Gateway().DialContext(t.Context(), "tcp", "198.51.100.14:22")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	buf := make([]byte, 4)
	if _, err := io.ReadFull(c, buf); err != nil || string(buf) != "SSH-" {
		t.Errorf("banner: %q, %v", buf, err)
	}
}

// ask sends one query from the gateway's namespace.
func ask(t *testing.T, n *Net, network, server, name string, qtype uint16) *dns.Msg {
	t.Helper()
	c, err := n.Gateway().DialContext(t.Context(), network, server)
	if err != nil {
		t.Fatal(err)
	}
	conn := &dns.Conn{Conn: c}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	if err := conn.WriteMsg(new(dns.Msg).SetQuestion(dns.Fqdn(name), qtype)); err != nil {
		t.Fatal(err)
	}
	m, err := conn.ReadMsg()
	if err != nil {
		t.Fatalf("%s %s: %v", network, server, err)
	}
	return m
}

func TestDNS(t *testing.T) {
	t.Parallel()
	n := ForTest(t, Options{})
	for _, server := range n.DNSServers() {
		for _, network := range []string{"udp", "tcp"} {
			m := ask(t, n, network, server, "API.example.com", dns.TypeAAAA)
			if len(m.Answer) != 1 || m.Answer[0].(*dns.AAAA).AAAA.String() != "2001:db8:1::10" {
				t.Errorf("%s %s: %v", network, server, m)
			}
		}
	}
	server := n.DNSServers()[0]
	if m := ask(t, n, "udp", server, "alias.example.com", dns.TypeA); len(m.Answer) != 2 {
		t.Errorf("CNAME: %v", m)
	}
	if m := ask(t, n, "udp", server, "no.such.name", dns.TypeA); m.Rcode != dns.RcodeNameError {
		t.Errorf("unknown name: %v", m)
	}
	if m := ask(t, n, "udp", server, "v4only.example.com", dns.TypeAAAA); m.Rcode != dns.RcodeSuccess || len(m.Answer) != 0 {
		t.Errorf("no such type: %v", m)
	}
	if err := n.SetRecords("*.wild.example.org", `*.wild.example.org. 5 IN TXT "deep"`); err != nil {
		t.Fatal(err)
	}
	if m := ask(t, n, "udp", server, "a.b.wild.example.org", dns.TypeTXT); len(m.Answer) != 1 || m.Answer[0].Header().Name != "a.b.wild.example.org." {
		t.Errorf("wildcard: %v", m)
	}
	if got := n.Queries("a.b.wild.example.org"); len(got) != 1 || got[0].Type != "TXT" {
		t.Errorf("recorded %+v", got)
	}
}

func TestDNSOverTLS(t *testing.T) {
	t.Parallel()
	n := ForTest(t, Options{})
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(n.CAPEM())
	for _, host := range n.Addrs("dns.example.com") {
		c, err := n.Gateway().DialContext(t.Context(), "tcp", netip.AddrPortFrom(host, 853).String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		conn := &dns.Conn{Conn: tls.Client(c, &tls.Config{RootCAs: roots, ServerName: "dns.example.com"})}
		if err := conn.WriteMsg(new(dns.Msg).SetQuestion("www.example.com.", dns.TypeA)); err != nil {
			t.Fatal(err)
		}
		if m, err := conn.ReadMsg(); err != nil || len(m.Answer) != 1 {
			t.Errorf("%v: %v, %v", host, m, err)
		}
	}
}

func TestLongAnswersGoByTCP(t *testing.T) {
	t.Parallel()
	n := ForTest(t, Options{})
	var addrs []string
	for i := range 100 {
		addrs = append(addrs, fmt.Sprintf("198.51.100.%d", 100+i))
	}
	if err := n.AddHost("big.example.com", addrs...); err != nil {
		t.Fatal(err)
	}
	n.SetTTL("big.example.com", 7)
	if m := ask(t, n, "udp", n.DNSServers()[0], "big.example.com", dns.TypeA); !m.Truncated {
		t.Errorf("by UDP: %d answers, not truncated", len(m.Answer))
	}
	m := ask(t, n, "tcp", n.DNSServers()[0], "big.example.com", dns.TypeA)
	if len(m.Answer) != 100 || m.Answer[0].Header().Ttl != 7 {
		t.Errorf("by TCP: %d answers", len(m.Answer))
	}
}

func TestRebinding(t *testing.T) {
	t.Parallel()
	n := ForTest(t, Options{})
	server := n.DNSServers()[0]
	n.SetAnswerer("rebind.example.com", func(q dns.Question, count int) Answer {
		a := netip.MustParseAddr("198.51.100.50")
		if count > 1 {
			a = netip.MustParseAddr("10.0.0.5")
		}
		return Answer{Records: []dns.RR{addrRecord("rebind.example.com", a)}}
	})
	for i, want := range []string{"198.51.100.50", "10.0.0.5", "10.0.0.5"} {
		if m := ask(t, n, "udp", server, "rebind.example.com", dns.TypeA); m.Answer[0].(*dns.A).A.String() != want {
			t.Errorf("answer %d: %v, not %s", i+1, m.Answer, want)
		}
	}
	if err := n.AddHost("rebind.example.com", "192.168.7.7"); err != nil {
		t.Fatal(err)
	}
	n.SetAnswerer("rebind.example.com", nil)
	if m := ask(t, n, "udp", server, "rebind.example.com", dns.TypeA); m.Answer[0].(*dns.A).A.String() != "192.168.7.7" {
		t.Errorf("after AddHost: %v", m.Answer)
	}
	if out, err := n.Gateway().Run(t.Context(), "curl", "-sS", "-m", "10", "http://192.168.7.7/"); err != nil {
		t.Errorf("the private host does not answer: %s, %v", out, err)
	}
	if got := n.Received("rebind.example.com", Of(Request)); len(got) != 1 {
		t.Errorf("recorded %+v", got)
	}
}

func TestAwait(t *testing.T) {
	t.Parallel()
	n := ForTest(t, Options{})
	result := make(chan error, 1)
	go func() {
		_, err := n.Await(t.Context(), "www.example.com", 2, Path("/a"))
		result <- err
	}()
	for range 2 {
		if out, err := curl(t, n, "www.example.com", "https://www.example.com/a"); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	if err := <-result; err != nil {
		t.Error(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := n.Await(ended, "www.example.com", 3, Path("/a")); err == nil {
		t.Error("Await found what did not come")
	}
}

func TestPacketsSeeEveryProtocol(t *testing.T) {
	t.Parallel()
	n := ForTest(t, Options{Capture: true})
	for _, host := range []string{"198.51.100.10", "2001:db8:1::10"} {
		if out, err := n.Gateway().Run(t.Context(), "ping", "-c", "1", "-W", "5", host); err != nil {
			t.Fatalf("ping: %v: %s", err, out)
		}
	}
	out, err := curl(t, n, "api.example.com", "-4", "https://api.example.com/")
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var got []string
	for _, p := range n.Packets("api.example.com") {
		got = append(got, p.Dst.String()+" "+map[int]string{1: "icmp", 6: "tcp", 58: "icmp6"}[p.Protocol])
	}
	for _, want := range []string{"198.51.100.10 icmp", "2001:db8:1::10 icmp6", "198.51.100.10 tcp"} {
		if !slices.Contains(got, want) {
			t.Errorf("%s is not among %v", want, got)
		}
	}
	if p := n.Packets("evil.example.net"); len(p) != 0 {
		t.Errorf("evil.example.net got %v", p)
	}
}

func TestTwoInternetsSideBySide(t *testing.T) {
	t.Parallel()
	a, b := ForTest(t, Options{}), ForTest(t, Options{})
	if out, err := curl(t, a, "api.example.com", "https://api.example.com/"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if len(a.Received("api.example.com", Of(Request))) != 1 || len(b.Received("")) != 0 {
		t.Error("what one received, the other has recorded")
	}
}

func TestNothingInTheCallersNamespace(t *testing.T) {
	t.Parallel()
	home, err := NewNS()
	if err != nil {
		t.Fatal(err)
	}
	defer home.close()
	err = home.Do(func() error {
		n := ForTest(t, Options{Capture: true})
		links, err := netlink.LinkList()
		if err != nil || len(links) != 1 {
			t.Errorf("links %v (%v), want lo alone", links, err)
		}
		for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			if routes, err := netlink.RouteList(nil, family); err != nil || len(routes) != 0 {
				t.Errorf("routes %v (%v), want none", routes, err)
			}
		}
		return n.Close()
	})
	if err != nil {
		t.Error(err)
	}
}

func TestCloseLeavesNothing(t *testing.T) {
	n := ForTest(t, Options{Capture: true})
	inodes := []uint64{n.gateway.inode, n.internet.inode}
	child := exec.Command("sh", "-c", "sleep 1000 & echo started; wait")
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Gateway().Start(child); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, 7)); err != nil {
		t.Fatal(err)
	}
	if found, err := n.gateway.Processes(); err != nil || len(found) != 2 {
		t.Fatalf("processes %v, %v; want the shell and its child", found, err)
	}
	conn, err := n.Gateway().DialContext(t.Context(), "tcp", "198.51.100.10:7")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return n.Gateway().DialContext(ctx, network, "198.51.100.13:80")
	}}}
	socket, _, err := websocket.Dial(t.Context(), "ws://ws.example.com/ws", &websocket.DialOptions{HTTPClient: client})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.CloseNow()
	done := make(chan error, 1)
	go func() { done <- n.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, _, err := socket.Read(ctx); err == nil || ctx.Err() != nil {
		t.Errorf("the WebSocket was not ended: %v", err)
	}
	if err := child.Wait(); err == nil {
		t.Error("the child ended by itself")
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := n.Close(); err != nil {
		t.Errorf("the second Close: %v", err)
	}
	for _, path := range holders(t) {
		var st unix.Stat_t
		if unix.Stat(path, &st) == nil && slices.Contains(inodes, st.Ino) && st.Mode&unix.S_IFMT == unix.S_IFREG {
			t.Errorf("%s still holds a namespace", path)
		}
	}
	if err := n.Gateway().Do(func() error { return nil }); err == nil {
		t.Error("a closed namespace was entered")
	}
}

// holders returns the files that can hold a network namespace open: one per thread, and one per descriptor of this
// process.
func holders(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, pattern := range []string{"/proc/[0-9]*/task/[0-9]*/ns/net", "/proc/self/fd/*"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, found...)
	}
	return out
}
