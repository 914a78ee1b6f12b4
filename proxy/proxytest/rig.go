// Package proxytest runs a proxy for tests, with one box and servers on loopback: real sockets and real TLS, without root.
// It is used by the external tests of proxy and of the packages below it.
package proxytest

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
	"syscall"
	"testing"
	"time"

	"boxgate/audit"
	"boxgate/internal/nightly"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy"
	"boxgate/proxy/origin"
)

// Rig is a proxy with one box, over loopback. Instead of TPROXY, each destination has a listener, and
// [proxy.Config.OriginalDst] maps the listener to its destination. Loopback is exempted from the protected ranges.
type Rig struct {
	Fence func() bool // if set, the header rules are ones of a fleet
	// Patience is how long a connection or a request of a client may last; 0: a minute. A broken proxy fails a test instead of hanging it.
	Patience time.Duration

	proxy.Parts // of Proxy
	T           testing.TB
	Proxy       *proxy.Proxy
	Box         *policy.Box // box1
	Names       *Names      // the resolver behind Resolver, unless a test replaces it
	Resolver    *Switch
	Events      *Events
	Boxes       *Boxes
	Upstream    *Authority    // signs the servers' certificates
	BoxCA       *Authority    // signs the leaves
	Orig        netip.Addr    // destination address of DialPair
	From        policy.Source // source address of connections to servers, under policies applied after it is set
	cfg         proxy.Config

	mu      sync.Mutex
	dst     map[netip.AddrPort]netip.AddrPort // by the listener's address
	fronts  map[netip.AddrPort]string         // addresses of the listeners of Front, by destination
	clients map[policy.BoxID]int              // open connections of DialPair
}

// New returns a rig with a policy and no header rules. The proxy is shut down when the test ends.
func New(t testing.TB, spec policy.Spec, change ...func(*proxy.Config)) *Rig {
	t.Helper()
	r := &Rig{
		T: t, Box: &policy.Box{ID: "box1", V4: Loopback}, Names: &Names{}, Boxes: &Boxes{}, Events: &Events{more: make(chan struct{}, 1)},
		Upstream: newAuthority(t), BoxCA: newAuthority(t), Orig: Loopback,
		dst: map[netip.AddrPort]netip.AddrPort{}, clients: map[policy.BoxID]int{},
	}
	r.Boxes.Add(r.Box)
	r.Policy(spec, nil)
	r.Resolver = &Switch{}
	r.Resolver.Set(r.Names)
	r.cfg = proxy.Config{Boxes: r.Boxes, Resolver: r.Resolver, Leaves: r.BoxCA, Audit: r.Events, Roots: r.Upstream.Pool(), OriginalDst: r.originalDst}
	for _, f := range change {
		f(&r.cfg)
	}
	r.With(func(*proxy.Config) {})
	return r
}

// Loopback is the address of the box, and of the servers on random ports.
var Loopback = netip.MustParseAddr("127.0.0.1")

// With replaces the proxy by one with a changed configuration. Call it before the proxy is used.
func (r *Rig) With(change func(*proxy.Config)) {
	r.T.Helper()
	change(&r.cfg)
	p, err := proxy.New(r.cfg)
	if err != nil {
		r.T.Fatal(err)
	}
	r.Proxy, r.Parts, r.fronts = p, p.Parts(), map[netip.AddrPort]string{}
	r.T.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = p.Shutdown(ctx) // cuts the connections that the test left open
	})
}

func (r *Rig) originalDst(c net.Conn) netip.AddrPort {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.dst[c.LocalAddr().(*net.TCPAddr).AddrPort()]
}

// NewBox adds a box that connects from addr. It has no policy yet.
func (r *Rig) NewBox(id policy.BoxID, addr string) *policy.Box {
	box := &policy.Box{ID: id, V4: netip.MustParseAddr(addr)}
	r.Boxes.Add(box)
	return box
}

// Policy applies a policy, without rechecking. headers maps patterns to names to values.
func (r *Rig) Policy(spec policy.Spec, headers map[string]map[string]string) {
	r.T.Helper()
	rules, err := policy.ParseHeaders(headers)
	if err != nil {
		r.T.Fatal(err)
	}
	r.enforce(spec, rules)
}

// Rules is Policy with header rules in JSON, and with the tokens of the box.
func (r *Rig) Rules(spec policy.Spec, doc string) {
	r.T.Helper()
	rules, err := policy.ParseHeaderRules([]byte(doc), nil)
	if err != nil {
		r.T.Fatal(err)
	}
	r.enforce(spec, policy.WithTokens(rules, BoxKey))
}

func (r *Rig) enforce(spec policy.Spec, rules []policy.HeaderRule) {
	r.T.Helper()
	exempt := []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}
	if r.Fence != nil {
		rules = policy.OfFleet(rules)
	}
	c, err := policy.Compile(spec, policy.Options{
		Fence:   r.Fence,
		Version: r.Box.Policy.Load().Version() + 1, Headers: rules, Protected: name.NewProtected(exempt, nil),
		Source: r.From, Unusable: func(netip.Addr) string { return "" },
	})
	if err != nil {
		r.T.Fatal(err)
	}
	r.Box.Policy.Store(c)
}

// Allow returns a policy that allows the given domains only.
func Allow(domains ...string) policy.Spec {
	return policy.Spec{Mode: policy.ModeCustom, AllowedDomains: domains}
}

// Listen returns the address to dial for a connection of the box to dst.
func (r *Rig) Listen(dst netip.AddrPort) string {
	r.T.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.listenLocked(dst)
}

func (r *Rig) listenLocked(dst netip.AddrPort) string {
	r.T.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.T.Fatal(err)
	}
	r.dst[ln.Addr().(*net.TCPAddr).AddrPort()] = dst
	r.run(func(ctx context.Context) error { return r.Proxy.ServeTransparent(ctx, ln) })
	return ln.Addr().String()
}

// Explicit starts a listener of the explicit proxy and returns its address.
func (r *Rig) Explicit() string {
	r.T.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.T.Fatal(err)
	}
	r.run(func(ctx context.Context) error { return r.Proxy.ServeExplicit(ctx, ln) })
	return ln.Addr().String()
}

func (r *Rig) run(serve func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- serve(ctx) }()
	r.T.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			r.T.Errorf("serve: %v", err)
		}
	})
}

// Dial connects as the box to dst.
func (r *Rig) Dial(dst netip.AddrPort) *net.TCPConn {
	r.T.Helper()
	return DialTo(r.T, r.Listen(dst))
}

// DialTo connects to an address of the rig. On a busy machine the proxy may take a connection for silent and reset it
// before this process has noticed that it is connected; then DialTo tries again.
func DialTo(t testing.TB, addr string) *net.TCPConn {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; {
		c, err := TryDial(t, addr)
		switch {
		case err == nil:
			return c
		case !errors.Is(err, syscall.ECONNRESET) || time.Now().After(end):
			t.Fatal(err)
		}
	}
}

// TryDial is DialTo without retries, for an address that may refuse.
func TryDial(t testing.TB, addr string) (*net.TCPConn, error) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(time.Minute)) // a broken proxy fails the test instead of hanging it
	return c.(*net.TCPConn), nil
}

// Server listens on the port at a random loopback address and calls handle for each connection, which must close it.
func (r *Rig) Server(port uint16, handle func(net.Conn)) netip.AddrPort {
	r.T.Helper()
	for range 50 {
		addr := netip.AddrFrom4([4]byte{127, byte(10 + mrand.IntN(200)), byte(mrand.IntN(256)), byte(1 + mrand.IntN(254))})
		ln, err := net.Listen("tcp", netip.AddrPortFrom(addr, port).String())
		if err != nil {
			continue
		}
		r.T.Cleanup(func() { ln.Close() })
		go func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				go handle(c)
			}
		}()
		return ln.Addr().(*net.TCPAddr).AddrPort()
	}
	if port < 1024 {
		nightly.Root(r.T)
	}
	r.T.Fatalf("no loopback address with port %d to be had", port)
	return netip.AddrPort{}
}

// TLSServer is a server with a certificate for name that sends a greeting and then echoes.
func (r *Rig) TLSServer(name string) netip.AddrPort {
	cert := r.Upstream.Certificate(r.T, name)
	return r.Server(443, func(c net.Conn) {
		defer c.Close()
		s := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{cert}})
		if _, err := io.WriteString(s, "hello from "+name+"\n"); err == nil {
			_, _ = io.Copy(s, s)
		}
	})
}

// Trap is a server that fails the test if it is reached.
func (r *Rig) Trap(port uint16) netip.AddrPort {
	return r.Server(port, func(c net.Conn) {
		c.Close()
		r.T.Errorf("a connection reached %s", c.LocalAddr())
	})
}

// Hello performs a TLS handshake with name and returns the first line read.
func (r *Rig) Hello(c net.Conn, name string) (string, error) {
	t := tls.Client(c, &tls.Config{ServerName: name, RootCAs: r.Upstream.Pool()})
	if err := t.Handshake(); err != nil {
		return "", err
	}
	return FirstLine(t)
}

// FirstLine reads up to the first newline, and no byte more.
func FirstLine(c io.Reader) (string, error) {
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

// Await waits until a condition holds.
func Await(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for limit := time.Now().Add(time.Minute); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("timeout waiting for %s", what)
		}
	}
}

// AccessDeniedAlert reports whether err is a received alert access_denied.
func AccessDeniedAlert(err error) bool {
	return err != nil && err.Error() == "remote error: tls: access denied"
}

// Target returns the target of TLS connections to a name on port 443, with any address.
func (r *Rig) Target(name string) origin.Target {
	asked := policy.Request{Box: r.Box.ID, Name: MustName(r.T, name), Port: 443, Protocol: policy.TCP}
	return origin.To(r.Core.Router.Route(r.T.Context(), r.Box.Policy.Load(), r.Box, asked, policy.Evidence{Opening: policy.OpeningTLS}), true)
}

// MustName parses a name.
func MustName(t testing.TB, s string) name.Name {
	t.Helper()
	n, err := name.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// CountOf returns the number of keys in m.
func CountOf(m *sync.Map) int {
	n := 0
	m.Range(func(any, any) bool { n++; return true })
	return n
}

// IdleUpstreams returns the number of idle connections to servers for box1 and b2.
func IdleUpstreams(l *Rig) int {
	return l.Core.Origins.Stats("box1").Idle + l.Core.Origins.Stats("b2").Idle
}

// Upstreams returns the number of connections to servers that count against the box's limit, including idle ones.
func (r *Rig) Upstreams() int { return r.Core.Origins.Stats(r.Box.ID).Open }

// Events collects the events of a proxy.
type Events struct {
	mu   sync.Mutex
	all  []audit.Event
	more chan struct{}
}

// Record implements [proxy.Recorder].
func (e *Events) Record(ev audit.Event) {
	e.mu.Lock()
	e.all = append(e.all, ev)
	e.mu.Unlock()
	select {
	case e.more <- struct{}{}:
	default:
	}
}

// Wait waits for n events of requests and returns them, without events of connections and of phase open. The latter are
// recorded only for long requests.
func (e *Events) Wait(t testing.TB, n int) []audit.Event {
	t.Helper()
	limit := time.After(time.Minute)
	for {
		e.mu.Lock()
		got := slices.DeleteFunc(slices.Clone(e.all), func(e audit.Event) bool {
			return e.Phase == audit.PhaseOpen || e.Stage == policy.StageConn
		})
		e.mu.Unlock()
		if len(got) >= n {
			return got
		}
		select {
		case <-e.more:
		case <-limit:
			t.Fatalf("%d events of requests, want %d; all events: %+v", len(got), n, e.List())
		}
	}
}

// List returns all events so far.
func (e *Events) List() []audit.Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.all)
}

// Want returns the first event that matches is, waiting for it.
func (r *Rig) Want(what string, is func(audit.Event) bool) audit.Event {
	r.T.Helper()
	limit := time.After(time.Minute)
	for {
		r.Events.mu.Lock()
		i := slices.IndexFunc(r.Events.all, is)
		seen := slices.Clone(r.Events.all)
		r.Events.mu.Unlock()
		if i >= 0 {
			return seen[i]
		}
		select {
		case <-r.Events.more:
		case <-limit:
			r.T.Fatalf("no event: %s; there are %+v", what, seen)
		}
	}
}

// WantReason waits for an event with the reason, ignoring events of phase open, which are recorded only for long traffic.
func (r *Rig) WantReason(reason name.Reason) audit.Event {
	r.T.Helper()
	return r.Want(string(reason), func(e audit.Event) bool { return e.Reason == reason && e.Phase != audit.PhaseOpen })
}

// DiscardEvents is a [proxy.Recorder] for benchmarks.
type DiscardEvents struct{}

// Record discards an event.
func (DiscardEvents) Record(audit.Event) {}
