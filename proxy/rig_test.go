package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	mrand "math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/proxy/route"
)

// rig is a proxy with one box, over loopback. In place of TPROXY each destination has a listener of its own, and the
// proxy is told which destination a listener stands for. Loopback is exempted from the protected ranges.
type rig struct {
	t        *testing.T
	p        *Proxy
	box      *policy.Box
	names    *names
	events   *events
	boxes    boxes
	upstream *authority // signs the servers
	boxCA    *authority // signs the leaves

	mu       sync.Mutex
	dst      map[netip.AddrPort]netip.AddrPort
	resolver *changing
	cfg      Config
}

func newRig(t *testing.T, spec policy.Spec, change ...func(*Config)) *rig {
	t.Helper()
	t.Parallel()
	r := &rig{
		t: t, box: &policy.Box{ID: "box1", V4: netip.MustParseAddr("127.0.0.1")}, names: &names{},
		events: &events{more: make(chan struct{}, 1)}, upstream: newAuthority(t), boxCA: newAuthority(t),
		dst: map[netip.AddrPort]netip.AddrPort{},
	}
	r.boxes = boxes{r.box.V4: r.box}
	r.policy(spec, nil)
	r.resolver = &changing{r.names}
	r.cfg = Config{Boxes: r.boxes, Resolver: r.resolver, Leaves: r.boxCA, Audit: r.events, Roots: r.upstream.pool()}
	for _, f := range change {
		f(&r.cfg)
	}
	r.with(func(*Config) {})
	return r
}

// with puts a proxy of another configuration in the place of the rig's, before it is used.
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
	r.p = p
	r.t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = p.Shutdown(ctx) // cuts what a test left open
	})
}

var versions sync.Map // of *policy.Box: how often its policy was set

// policy puts a policy in force, without rechecking.
func (r *rig) policy(spec policy.Spec, headers map[string]map[string]string) {
	r.t.Helper()
	rules, err := policy.ParseHeaders(headers)
	if err != nil {
		r.t.Fatal(err)
	}
	exempt := []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}
	n, _ := versions.LoadOrStore(r.box, new(uint64))
	*n.(*uint64)++
	c, err := policy.Compile(spec, rules, policy.NewProtected(exempt, nil), *n.(*uint64))
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
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.t.Fatal(err)
	}
	r.mu.Lock()
	r.dst[addrPort(ln.Addr())] = dst
	r.mu.Unlock()
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

func dialTo(t *testing.T, addr string) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(20 * time.Second)) // a broken proxy fails the test instead of hanging it
	return c.(*net.TCPConn)
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

// boxes and names stand for packages that the proxy is wired to.
type boxes map[netip.Addr]*policy.Box

func (b boxes) BoxByAddr(a netip.Addr) *policy.Box { return b[a] }

// changing is a resolver that a test puts another in the place of, before anything is looked up.
type changing struct{ route.Resolver }

type names struct {
	mu      sync.Mutex
	answers map[string][]netip.Addr
	grants  map[string][]netip.Addr
}

func (n *names) set(name string, addrs ...netip.Addr) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.answers == nil {
		n.answers = map[string][]netip.Addr{}
	}
	n.answers[name] = addrs
}

func (n *names) grant(name string, addrs ...netip.Addr) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.grants == nil {
		n.grants = map[string][]netip.Addr{}
	}
	n.grants[name] = addrs
}

func (n *names) Lookup(_ context.Context, _ *policy.Box, name policy.Name) ([]netip.Addr, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if a, ok := n.answers[name.String()]; ok {
		return a, nil
	}
	return nil, errors.New("no such name")
}

func (n *names) LookupBoth(ctx context.Context, b *policy.Box, name policy.Name) ([]netip.Addr, error) {
	return n.Lookup(ctx, b, name)
}

func (n *names) Granted(_ policy.BoxID, name policy.Name, a netip.Addr) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Contains(n.grants[name.String()], a)
}

func (n *names) GrantedNames(_ policy.BoxID, a netip.Addr) []policy.Name {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []policy.Name
	for name, addrs := range n.grants {
		if parsed, err := policy.ParseName(name); err == nil && slices.Contains(addrs, a) {
			out = append(out, parsed)
		}
	}
	return out
}

// want waits for an event that is as told, and returns it.
func (r *rig) want(what string, is func(audit.Event) bool) audit.Event {
	r.t.Helper()
	limit := time.After(15 * time.Second)
	for {
		r.events.mu.Lock()
		i := slices.IndexFunc(r.events.all, is)
		seen := slices.Clone(r.events.all)
		r.events.mu.Unlock()
		if i >= 0 {
			return seen[i]
		}
		select {
		case <-r.events.more:
		case <-limit:
			r.t.Fatalf("no event: %s; there are %+v", what, seen)
		}
	}
}

// wantReason waits for an event with the reason.
func (r *rig) wantReason(reason policy.Reason) audit.Event {
	r.t.Helper()
	return r.want(string(reason), func(e audit.Event) bool { return e.Reason == reason })
}

// await waits until a condition holds.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for limit := time.Now().Add(15 * time.Second); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("%s did not come", what)
		}
	}
}
