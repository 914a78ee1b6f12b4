package proxy

import (
	"context"
	"crypto/tls"
	"io"
	mrand "math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"boxgate/internal/nightly"
	"boxgate/policy"
)

// rig is a proxy with one box, over loopback. In place of TPROXY each destination has a listener of its own, and the
// proxy is told which destination a listener stands for. Loopback is exempted from the protected ranges.
type rig struct {
	t        testing.TB
	p        *Proxy
	box      *policy.Box
	names    *names
	events   *events
	boxes    *boxes
	upstream *authority // signs the servers
	boxCA    *authority // signs the leaves
	orig     netip.Addr // where the connections of dialPair are going

	mu       sync.Mutex
	dst      map[netip.AddrPort]netip.AddrPort // by the address of the listener
	fronts   map[netip.AddrPort]string         // listeners of dialPair, by destination
	clients  map[policy.BoxID]int              // connections of dialPair
	resolver *changing
	cfg      Config
}

func newRig(t testing.TB, spec policy.Spec, change ...func(*Config)) *rig {
	t.Helper()
	r := &rig{
		t: t, box: &policy.Box{ID: "box1", V4: loopback}, names: &names{}, boxes: &boxes{}, events: &events{more: make(chan struct{}, 1)},
		upstream: newAuthority(t), boxCA: newAuthority(t), orig: loopback,
		dst: map[netip.AddrPort]netip.AddrPort{}, clients: map[policy.BoxID]int{},
	}
	r.boxes.add(r.box)
	r.policy(spec, nil)
	r.resolver = &changing{}
	r.resolver.set(r.names)
	r.cfg = Config{Boxes: r.boxes, Resolver: r.resolver, Leaves: r.boxCA, Audit: r.events, Roots: r.upstream.pool()}
	for _, f := range change {
		f(&r.cfg)
	}
	r.with(func(*Config) {})
	return r
}

var loopback = netip.MustParseAddr("127.0.0.1")

// with replaces the proxy by one of another configuration, before it is used.
func (r *rig) with(change func(*Config)) {
	r.t.Helper()
	change(&r.cfg)
	p, err := New(r.cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	p.originalDst = func(c net.Conn) netip.AddrPort {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.dst[localAddr(c)]
	}
	r.p, r.fronts = p, map[netip.AddrPort]string{}
	r.t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = p.Shutdown(ctx) // cuts what a test left open
	})
}

// newBox adds a box, which connects from an address of its own. It has no policy yet.
func (r *rig) newBox(id policy.BoxID, addr string) *policy.Box {
	box := &policy.Box{ID: id, V4: netip.MustParseAddr(addr)}
	r.boxes.add(box)
	return box
}

// policy puts a policy in force, without rechecking. headers are pattern → name → value.
func (r *rig) policy(spec policy.Spec, headers map[string]map[string]string) {
	r.t.Helper()
	rules, err := policy.ParseHeaders(headers)
	if err != nil {
		r.t.Fatal(err)
	}
	r.enforce(spec, rules)
}

// rules is policy with header rules of the full form, and with the tokens of the box.
func (r *rig) rules(spec policy.Spec, doc string) {
	r.t.Helper()
	rules, err := policy.ParseHeaderRules([]byte(doc), nil)
	if err != nil {
		r.t.Fatal(err)
	}
	r.enforce(spec, policy.WithTokens(rules, boxKey))
}

func (r *rig) enforce(spec policy.Spec, rules []policy.HeaderRule) {
	r.t.Helper()
	exempt := []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}
	c, err := policy.Compile(spec, rules, policy.NewProtected(exempt, nil), r.box.Policy.Load().Version()+1)
	if err != nil {
		r.t.Fatal(err)
	}
	r.box.Policy.Store(c)
}

// allow is a policy that lists names and nothing else.
func allow(domains ...string) policy.Spec {
	return policy.Spec{Mode: policy.ModeCustom, AllowedDomains: domains}
}

// listen returns the address to dial for a connection that the box makes to dst.
func (r *rig) listen(dst netip.AddrPort) string {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.listenLocked(dst)
}

func (r *rig) listenLocked(dst netip.AddrPort) string {
	r.t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.t.Fatal(err)
	}
	r.dst[addrPort(ln.Addr())] = dst
	r.run(func(ctx context.Context) error { return r.p.ServeTransparent(ctx, ln) })
	return ln.Addr().String()
}

// explicit returns the address of the explicit proxy.
func (r *rig) explicit() string {
	r.t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.t.Fatal(err)
	}
	r.run(func(ctx context.Context) error { return r.p.ServeExplicit(ctx, ln) })
	return ln.Addr().String()
}

func (r *rig) run(serve func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- serve(ctx) }()
	r.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Errorf("serve: %v", err)
		}
	})
}

// dial connects as the box to dst.
func (r *rig) dial(dst netip.AddrPort) *net.TCPConn {
	r.t.Helper()
	return dialTo(r.t, r.listen(dst))
}

func dialTo(t testing.TB, addr string) *net.TCPConn {
	t.Helper()
	c, err := tryDial(t, addr)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func tryDial(t testing.TB, addr string) (*net.TCPConn, error) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(time.Minute)) // a broken proxy fails the test instead of hanging it
	return c.(*net.TCPConn), nil
}

// server listens on the port at a loopback address of its own and hands each connection to handle, which closes it.
func (r *rig) server(port uint16, handle func(net.Conn)) netip.AddrPort {
	r.t.Helper()
	for range 50 {
		addr := netip.AddrFrom4([4]byte{127, byte(10 + mrand.IntN(200)), byte(mrand.IntN(256)), byte(1 + mrand.IntN(254))})
		ln, err := net.Listen("tcp", netip.AddrPortFrom(addr, port).String())
		if err != nil {
			continue
		}
		r.t.Cleanup(func() { ln.Close() })
		go func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				go handle(c)
			}
		}()
		return addrPort(ln.Addr())
	}
	if port < 1024 {
		nightly.Root(r.t)
	}
	r.t.Fatalf("no loopback address with port %d to be had", port)
	return netip.AddrPort{}
}

// tlsServer is a server that proves to be name, says hello and echoes.
func (r *rig) tlsServer(name string) netip.AddrPort {
	cert := r.upstream.leaf(r.t, name)
	return r.server(443, func(c net.Conn) {
		defer c.Close()
		s := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{cert}})
		if _, err := io.WriteString(s, "hello from "+name+"\n"); err == nil {
			_, _ = io.Copy(s, s)
		}
	})
}

// trap is a server that must not be reached.
func (r *rig) trap(port uint16) netip.AddrPort {
	return r.server(port, func(c net.Conn) {
		c.Close()
		r.t.Errorf("a connection reached %s", c.LocalAddr())
	})
}

// hello makes a TLS handshake with name and returns the first line of what is read, or the error.
func (r *rig) hello(c net.Conn, name string) (string, error) {
	t := tls.Client(c, &tls.Config{ServerName: name, RootCAs: r.upstream.pool()})
	if err := t.Handshake(); err != nil {
		return "", err
	}
	return firstLine(t)
}

func firstLine(c io.Reader) (string, error) {
	var line []byte
	b := make([]byte, 1)
	for {
		if _, err := io.ReadFull(c, b); err != nil {
			return string(line), err
		}
		if b[0] == '\n' {
			return string(line), nil
		}
		line = append(line, b[0])
	}
}

// await waits until a condition holds.
func await(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for limit := time.Now().Add(time.Minute); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("%s did not come", what)
		}
	}
}
