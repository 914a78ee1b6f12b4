package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/audit"
	"boxgate/certs"
	"boxgate/config"
	"boxgate/internal/lab"
	"boxgate/internal/testnet"
	"boxgate/policy"
)

// canary is the secret of the attack tests. It must arrive at the host it is for and be seen nowhere else.
const canary = "sk-canary-4f1d9a7c2b8e6035d1c7"

// alertDenied is the TLS alert access_denied: what curl reports as exit 35.
const alertDenied = "\x15\x03\x03\x00\x02\x02\x31"

// intruder opens sockets in the network namespace of a box and writes to them what no library would.
type intruder struct {
	*world
	box   string
	roots *x509.CertPool // of the box's own CA
	dns   string         // address and port of the DNS server of the box
}

// intrude returns an intruder in a box.
func (w *world) intrude(box string) *intruder {
	w.t.Helper()
	out, code := w.gatewayCommand("ca", "--box", box)
	in := &intruder{world: w, box: box, roots: x509.NewCertPool(), dns: "10.200.0.1:53"}
	if code != 0 || !in.roots.AppendCertsFromPEM([]byte(out)) {
		w.t.Fatalf("gateway ca: %d %s", code, out)
	}
	return in
}

// on returns the same intruder for a subtest.
func (in *intruder) on(t *testing.T) *intruder {
	w, other := *in.world, *in
	w.t, other.world = t, &w
	return &other
}

// inNetNS runs f in the network namespace of the box; the sockets it opens stay there.
func (in *intruder) inNetNS(f func() error) error {
	pin, err := os.Open(filepath.Join(lab.RunDir(in.Dir), "netns", in.box))
	if err != nil {
		return err
	}
	defer pin.Close()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		if err := unix.Setns(int(pin.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}

// connect dials an address from within the box.
func (in *intruder) connect(to netip.AddrPort) (c net.Conn, err error) {
	err = in.inNetNS(func() (err error) {
		d := net.Dialer{Timeout: 10 * time.Second}
		c, err = d.DialContext(context.Background(), "tcp", to.String())
		return err
	})
	return c, err
}

// dial is connect for a connection that must come about. It ends with the test at the latest.
func (in *intruder) dial(to netip.AddrPort) net.Conn {
	in.t.Helper()
	c, err := in.connect(to)
	if err != nil {
		in.t.Fatalf("connecting to %v: %v", to, err)
	}
	in.t.Cleanup(func() { c.Close() })
	return c
}

// dialHost connects to a host by the address that the box's DNS gives for it.
func (in *intruder) dialHost(host string, port uint16) net.Conn {
	in.t.Helper()
	return in.dial(netip.AddrPortFrom(in.resolve(host, "ip4"), port))
}

// resolve asks the box's DNS server; network is "ip4" or "ip6".
func (in *intruder) resolve(host, network string) netip.Addr {
	in.t.Helper()
	r := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (c net.Conn, err error) {
		err = in.inNetNS(func() (err error) {
			c, err = new(net.Dialer).DialContext(ctx, network, in.dns)
			return err
		})
		return c, err
	}}
	addrs, err := r.LookupNetIP(in.t.Context(), network, host+".")
	if err != nil {
		in.t.Fatal(err)
	}
	return addrs[0].Unmap()
}

// tls makes a TLS connection over c to a host that the box trusts, and fails the test if it cannot.
func (in *intruder) tls(c net.Conn, sni string, alpn ...string) *tls.Conn {
	in.t.Helper()
	s := tls.Client(c, &tls.Config{ServerName: sni, RootCAs: in.roots, NextProtos: alpn})
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	if err := s.HandshakeContext(in.t.Context()); err != nil {
		in.t.Fatalf("handshake with %s: %v", sni, err)
	}
	return s
}

// talk writes what is given and returns everything that comes until the other side ends the connection. reset says that
// the end was a reset.
func talk(c net.Conn, text string) (answer string, reset bool) {
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	_, err := io.WriteString(c, text) // the other side may have heard enough before the end
	answer, reset = hear(c)
	return answer, reset || errors.Is(err, syscall.ECONNRESET) // which is told once
}

// hear returns everything that comes until the other side ends the connection.
func hear(c net.Conn) (answer string, reset bool) {
	data, err := io.ReadAll(c)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return string(data) + "(the connection stays open)", false
	case errors.Is(err, syscall.ECONNRESET):
		return string(data), true
	}
	return string(data), false
}

// denied waits for a denial for the reason that was made since then, at the stage.
func (in *intruder) denied(since time.Time, stage policy.Stage, reason policy.Reason) audit.Event {
	in.t.Helper()
	var events []audit.Event
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for limit := time.Now().Add(3 * time.Second); time.Now().Before(limit); <-look.C {
		events = in.events(in.box)
		for _, e := range events {
			if !e.Time.Before(since) && e.Stage == stage && e.Verdict == policy.Deny && e.Reason == reason {
				return e
			}
		}
	}
	in.t.Errorf("no decision at stage %s says %s", stage, reason)
	for _, e := range events {
		if !e.Time.Before(since) {
			in.t.Logf("decision: %s", audit.Line(e))
		}
	}
	return audit.Event{}
}

// requests returns the requests that a host received for a path.
func (in *intruder) requests(host, path string) []testnet.Received {
	return in.Net.Received(host, testnet.Path(path))
}

// origin is a web server of the test's own, which speaks HTTP/1.1 alone, keeps every byte it is sent, and answers every
// request with 200.
type origin struct {
	mu     sync.Mutex
	conns  []*originConn
	answer string // in the place of the usual one
}

// originConn is what one connection brought; taken of it was looked at.
type originConn struct {
	data  strings.Builder
	taken int
}

// originName is the host of an origin.
const originName = "origin.example.com"

// withOrigin makes a CA for an origin and returns what changes the configuration so that the gateway trusts it, and what
// starts the server in the world that was made with it.
func withOrigin(t *testing.T) (change func(*config.Config), start func(*world) *origin) {
	t.Helper()
	ca, err := certs.NewCA("origin")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "origin-ca.pem")
	if err := os.WriteFile(file, ca.CertificatePEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	issued, err := certs.NewIssued(ca, originName)
	if err != nil {
		t.Fatal(err)
	}
	change = func(c *config.Config) { c.Proxy.UpstreamCAFiles = append(c.Proxy.UpstreamCAFiles, file) }
	return change, func(w *world) *origin {
		o := &origin{}
		if err := w.Net.AddHost(originName, "198.51.100.77", "2001:db8:1::77"); err != nil {
			t.Fatal(err)
		}
		cfg := &tls.Config{GetCertificate: issued.GetCertificate, NextProtos: []string{"http/1.1"}}
		o.listen(t, w, "198.51.100.77:443", cfg)
		o.listen(t, w, "198.51.100.77:80", nil)
		return o
	}
}

// listen serves on an address of the internet; the servers that listen on every address share the port.
func (o *origin) listen(t *testing.T, w *world, at string, cfg *tls.Config) {
	t.Helper()
	var ln net.Listener
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		return errors.Join(c.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
		}), err)
	}}
	err := w.Net.Internet().Do(func() (err error) {
		ln, err = lc.Listen(context.Background(), "tcp", at)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	if cfg != nil {
		ln = tls.NewListener(ln, cfg)
	}
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go o.serve(c)
		}
	}()
}

func (o *origin) serve(c net.Conn) {
	defer c.Close()
	kept := &originConn{}
	o.mu.Lock()
	o.conns = append(o.conns, kept)
	o.mu.Unlock()
	buf, answered := make([]byte, 64<<10), 0
	for {
		n, err := c.Read(buf)
		o.mu.Lock()
		kept.data.Write(buf[:n])
		whole, answer := wholeRequests(kept.data.String()), o.answer
		o.mu.Unlock()
		if answer == "" {
			answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
		}
		for ; answered < whole; answered++ {
			_, _ = io.WriteString(c, answer) // a client that has gone is seen by the next read
		}
		if err != nil {
			return
		}
	}
}

// answers makes the origin answer every request from now on with these bytes.
func (o *origin) answers(with string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.answer = with
}

// wholeRequests counts the requests that are complete, as a server sees it that believes the first framing it finds.
func wholeRequests(data string) (n int) {
	for {
		head, rest, ok := strings.Cut(data, "\r\n\r\n")
		if !ok {
			return n
		}
		if strings.Contains(head, "\r\nTransfer-Encoding: chunked") {
			_, last, ended := strings.Cut("\r\n"+rest, "\r\n0\r\n")
			if _, rest, ok = strings.Cut("\r\n"+last, "\r\n\r\n"); !ended || !ok {
				return n
			}
		} else if _, length, found := strings.Cut(head, "\r\nContent-Length: "); found {
			size := 0
			if _, err := fmt.Sscanf(length, "%d", &size); err != nil || size > len(rest) {
				return n
			}
			rest = rest[size:]
		}
		data = rest
		n++
	}
}

// received returns every byte that came since the last call, connection after connection.
func (o *origin) received() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var all string
	for _, c := range o.conns {
		all += c.data.String()[c.taken:]
		c.taken = c.data.Len()
	}
	return all
}

// onceDial gives out one connection, to whoever dials first.
func onceDial(c net.Conn) func(context.Context, string, string) (net.Conn, error) {
	return func(context.Context, string, string) (net.Conn, error) {
		if c == nil {
			return nil, net.ErrClosed
		}
		once := c
		c = nil
		return once, nil
	}
}

// tlsUnchecked makes a TLS client that takes any certificate.
func tlsUnchecked(c net.Conn, sni string) *tls.Conn {
	return tls.Client(c, &tls.Config{ServerName: sni, InsecureSkipVerify: true})
}
