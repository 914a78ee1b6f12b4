package attack

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/internal/lab"
	"boxgate/internal/nightly"
)

// withFewDescriptors makes the gateway start with the given `ulimit -n`.
func withFewDescriptors(t *testing.T, w *harness.World, n int) {
	t.Helper()
	limited := filepath.Join(t.TempDir(), "gateway")
	script := fmt.Sprintf("#!/bin/sh\nulimit -n %d && exec %s \"$@\"\n", n, w.Self)
	if err := os.WriteFile(limited, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	w.Self = limited
}

// visitedBox is a box with three public URLs: an HTTP application, a raw TCP application, and a raw TCP port that
// refuses.
type visitedBox struct {
	*harness.World
	in                *harness.Intruder
	http, raw, refuse *visited
}

// newVisitedBox starts a gateway with a load balancer at 127.0.0.1 and 2,048 descriptors, which allow 128 visitors on
// each listener.
func newVisitedBox(t *testing.T) *visitedBox {
	t.Helper()
	w := harness.NewStopped(t, lab.Options{Change: func(c *config.Config) {
		c.Ingress.ProxyProtocol = []string{"127.0.0.1/32"}
		c.Ingress.Limits.HeaderTimeout = time.Second
	}})
	withFewDescriptors(t, w, 2048)
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	b := &visitedBox{World: w, in: w.Intrude(w.Create(map[string]any{"network_policy": map[string]any{"mode": "deny-all"}}))}
	serveVisitors(b.in)
	b.http = visitURL(w, b.in.Box, map[string]any{"port": 8000})
	b.raw = visitURL(w, b.in.Box, map[string]any{"port": 8001, "protocol": "tcp"})
	b.refuse = visitURL(w, b.in.Box, map[string]any{"port": 8002, "protocol": "tcp"})
	return b
}

// serveVisitors serves in a box, until the test ends: "here" by HTTP on port 8000, and an echo on port 8001.
func serveVisitors(in *harness.Intruder) {
	in.T.Helper()
	for port, serve := range map[int]func(net.Listener){
		8000: func(ln net.Listener) {
			_ = http.Serve(ln, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "here") }))
		},
		8001: func(ln net.Listener) {
			for c, err := ln.Accept(); err == nil; c, err = ln.Accept() {
				go func() { _, _ = io.Copy(c, struct{ io.Reader }{c}); _ = c.Close() }()
			}
		},
	} {
		var ln net.Listener
		if err := in.InNetNS(func() (err error) { ln, err = net.Listen("tcp", fmt.Sprintf(":%d", port)); return err }); err != nil {
			in.T.Fatal(err)
		}
		in.T.Cleanup(func() { _ = ln.Close() })
		go serve(ln)
	}
}

// answered returns an error unless another visitor is answered and readyz reports the gateway ready.
func (b *visitedBox) answered() error {
	ready, err := b.Net.Gateway().Run(b.T.Context(), "curl", "-sS", "--max-time", "60", "--fail", "http://127.0.0.1:8600/readyz")
	if err != nil {
		return fmt.Errorf("readyz: %w: %s", err, ready)
	}
	tcp, err := b.Net.Gateway().DialContext(b.T.Context(), "tcp", "[::1]:443")
	if err != nil {
		return err
	}
	defer tcp.Close()
	_ = tcp.SetDeadline(time.Now().Add(time.Minute))
	c := tls.Client(tcp, &tls.Config{ServerName: b.http.host, RootCAs: b.http.roots})
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: "+b.http.host+"\r\nConnection: close\r\n\r\n")
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if said, _ := io.ReadAll(res.Body); string(said) != "here" {
		return fmt.Errorf("%s: %q", res.Status, said)
	}
	return nil
}

// released waits until no listener holds a connection, except the ones for this check, and no slot is in use.
func (b *visitedBox) released(after string) {
	b.T.Helper()
	var held []string
	b.Until("nothing is held after "+after, func() bool {
		held = held[:0]
		for line := range strings.Lines(string(b.Metrics())) {
			of, n, _ := strings.Cut(strings.TrimSpace(line), " ")
			counts := strings.HasPrefix(of, "boxgate_listener_connections{") || strings.HasPrefix(of, "boxgate_places_used{")
			own := strings.Contains(of, `"admin"`) || strings.Contains(of, `"metrics"`) && n == "1" || strings.Contains(of, "idle")
			if counts && !own && n != "0" {
				held = append(held, of+" "+n)
			}
			if strings.HasPrefix(of, "boxgate_listener_accepts{") && n != "1" {
				held = append(held, of+" "+n)
			}
		}
		if len(held) > 0 {
			b.T.Logf("after %s: %v", after, held)
		}
		return len(held) == 0
	})
}

// TestAttackLeakedPlaces: visitors of a raw TCP URL that reset or whose port refuses, and a load balancer whose health
// checks connect without sending, use slots only while they are connected. Another visitor is answered throughout and
// afterwards.
func TestAttackLeakedPlaces(t *testing.T) {
	t.Parallel()
	b := newVisitedBox(t)
	n := nightly.Size(1500, 5000)
	reset := func(v *visited) func() error {
		return func() error {
			tcp, err := b.Net.Internet().DialContext(t.Context(), "tcp", b.gateway())
			if err != nil {
				return err
			}
			_ = tcp.SetDeadline(time.Now().Add(time.Minute))
			c := tls.Client(tcp, &tls.Config{ServerName: v.host, RootCAs: v.roots})
			if c.HandshakeContext(t.Context()) == nil { // otherwise this address has too many connections for a moment
				_, _ = io.WriteString(c, "x")
				_, _ = c.Read(make([]byte, 1)) // until the port has answered or refused
			}
			resetNow(tcp)
			return nil
		}
	}
	healthCheck := func() error {
		c, err := b.Net.Gateway().DialContext(t.Context(), "tcp", "127.0.0.1:443")
		if err == nil {
			_ = c.Close()
		}
		return err
	}
	for what, do := range map[string]func() error{"resets": reset(b.raw), "refused ports": reset(b.refuse), "health checks": healthCheck} {
		var flood sync.WaitGroup
		left := make(chan struct{}, n)
		for range n {
			left <- struct{}{}
		}
		close(left)
		for range 8 {
			flood.Go(func() {
				for range left {
					if t.Failed() {
						return
					}
					if err := do(); err != nil {
						t.Errorf("%s: %v", what, err)
						return
					}
				}
			})
		}
		ended := make(chan struct{})
		go func() { flood.Wait(); close(ended) }()
		for done := false; !done && !t.Failed(); {
			if err := b.answered(); err != nil {
				t.Errorf("a visitor from elsewhere during %s: %v", what, err)
			}
			select {
			case <-ended:
				done = true
			default:
			}
		}
		b.released(fmt.Sprintf("%d %s", n, what))
		if err := b.answered(); err != nil {
			t.Errorf("a visitor from elsewhere after %s: %v", what, err)
		}
	}
}

// resetNow resets a TCP connection, and closes a Unix socket.
func resetNow(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
}

// gateway returns the address of the public URLs on the internet.
func (b *visitedBox) gateway() string {
	v4, _ := b.Net.GatewayAddrs()
	return netip.AddrPortFrom(v4, 443).String()
}

// TestEveryListenerReleases: however connections to any listener of the gateway end, from inside a box or outside,
// their resources are released, and every listener continues to accept.
func TestEveryListenerReleases(t *testing.T) {
	t.Parallel()
	b := newVisitedBox(t)
	gateway := func(address string) func() (net.Conn, error) {
		return func() (net.Conn, error) { return b.Net.Gateway().DialContext(t.Context(), "tcp", address) }
	}
	inside := func(address string) func() (net.Conn, error) {
		return func() (c net.Conn, err error) {
			err = b.in.InNetNS(func() (err error) { c, err = net.Dial("tcp", address); return err })
			return c, err
		}
	}
	api := b.V4("api.example.com").String()
	for name, dial := range map[string]func() (net.Conn, error){
		"public URLs": gateway("[::1]:443"), "public URLs by a balancer": gateway("127.0.0.1:443"), "redirects": gateway("[::1]:80"),
		"admin": gateway("127.0.0.1:8600"), "metrics": gateway("127.0.0.1:9600"),
		"admin socket":      func() (net.Conn, error) { return net.Dial("unix", b.Socket) },
		"transparent proxy": inside(api + ":443"), "transparent proxy, HTTP": inside(api + ":80"),
		"explicit proxy": inside("10.200.0.1:3128"), "DNS over TCP": inside("10.200.0.1:53"),
	} {
		var ending sync.WaitGroup
		for _, said := range []string{"", "\x16", "\x16\x03\x01\x02\x00\x01", "GET / HTTP/1.1\r\nHost: a.example.com\r\n\r\n", "CONNECT api.example.com:443 HTTP/1.1\r\n", strings.Repeat("garbage\r\n", 100)} {
			for how, end := range map[string]func(net.Conn){
				"close": func(c net.Conn) { _ = c.Close() }, "reset": resetNow,
				"half-close": func(c net.Conn) {
					_ = c.(interface{ CloseWrite() error }).CloseWrite()
					_, _ = io.Copy(io.Discard, c)
					_ = c.Close()
				},
				"silence": func(c net.Conn) { // for as long as a visitor may be silent
					_ = c.SetDeadline(time.Now().Add(2 * time.Second))
					_, _ = io.Copy(io.Discard, c)
					_ = c.Close()
				},
			} {
				c, err := dial()
				if err != nil {
					t.Errorf("%s, %s after %.20q: %v", name, how, said, err)
					continue
				}
				_ = c.SetDeadline(time.Now().Add(time.Minute))
				_, _ = io.WriteString(c, said)
				ending.Go(func() { end(c) })
			}
		}
		ending.Wait()
		b.released("connections to " + name)
	}
	b.SetPolicy(b.in.Box, harness.Custom("api.example.com"))
	for range 20 { // through the proxy, until the policy cuts them
		tcp, err := inside(api + ":443")()
		if err != nil {
			t.Fatal(err)
		}
		_ = tcp.SetDeadline(time.Now().Add(time.Minute))
		c := tls.Client(tcp, &tls.Config{ServerName: "api.example.com", InsecureSkipVerify: true})
		if err := c.HandshakeContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	if n := b.Metric(`boxgate_listener_connections{listener="proxy"}`); n != 20 {
		t.Errorf("%v connections of 20 are counted", n)
	}
	b.SetPolicy(b.in.Box, map[string]any{"mode": "deny-all"})
	b.released("a policy that cuts")
	if err := b.answered(); err != nil {
		t.Error(err)
	}
	b.NoInternalErrors()
}
