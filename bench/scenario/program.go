package scenario

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"boxgate/bench/field"
	"boxgate/bench/load"
	"boxgate/bench/origin"
	"boxgate/bench/peer"
	"boxgate/bench/proc"
	"boxgate/internal/testnet"
)

// Program is a measured program.
type Program interface {
	Name() string
	Plays(peer.Role) bool
	Start(context.Context) error
	Stop() error
	// Target returns the source of the load for a role, and how it reaches the running program.
	Target(peer.Role) (Target, error)
}

// Target is one role of a running program.
type Target struct {
	From *testnet.NS
	Load load.Options // all options that do not depend on the case
	TLS  string       // required TLS parameters
}

// negotiated is the TLS that clients must get, so that all programs do the same work.
const negotiated = "TLS 1.3 TLS_AES_128_GCM_SHA256 X25519 ECDSA"

// names are the hosts that clients request, by role.
var names = map[peer.Role]string{
	peer.Intercept: "up", peer.InterceptH2: "up", peer.GRPC: "grpc", peer.Upload: "sink", peer.Splice: "hello",
	peer.SpliceBulk: "bulk", peer.Public: "public", peer.PublicH2: "public", peer.WebSocket: "public",
	peer.Routed: "up", peer.RoutedNew: "hello",
}

// addresses are the addresses of the hosts, by role.
var addresses = map[peer.Role]string{
	peer.Intercept: origin.Web, peer.InterceptH2: origin.Web, peer.GRPC: origin.GRPC, peer.Upload: origin.Sink,
	peer.Splice: origin.Hello, peer.SpliceBulk: origin.Web, peer.Routed: origin.Web, peer.RoutedNew: origin.Hello,
}

// at returns the address and port of a role's host.
func at(role peer.Role) string {
	if role == peer.Routed {
		return addresses[role] + ":" + origin.Plain
	}
	return addresses[role] + ":443"
}

// paths are the paths that clients request, by role.
var paths = map[peer.Role]string{
	peer.Intercept: "/1k", peer.InterceptH2: "/1k", peer.GRPC: origin.Method, peer.Upload: "/", peer.SpliceBulk: "/open/64m",
	peer.Public: "/1k", peer.PublicH2: "/1k", peer.WebSocket: "/", peer.Routed: "/1k",
}

// common returns the load options of a role that do not depend on the program.
func common(role peer.Role) load.Options {
	o := load.Options{Name: names[role] + "." + origin.Suffix, Path: paths[role], Size: 1024, Plain: role == peer.Routed}
	if public(role) {
		o.Header = []string{"Authorization: " + origin.Value}
	}
	return o
}

// public reports whether a role is that of a server of public URLs.
func public(role peer.Role) bool {
	return role == peer.Public || role == peer.PublicH2 || role == peer.WebSocket
}

// kernel reports whether a role is that of a router.
func kernel(role peer.Role) bool { return role == peer.Routed || role == peer.RoutedNew }

// gateway is boxgate, or one of its builds.
type gateway struct {
	*field.Gateway
	name      string
	source    string // directory of the module it was built from
	furnished bool
	hops      struct {
		round  int
		ratios map[string]Sample
	}
	decision struct {
		round           int
		ns, allocations float64
	}
}

// NewGateway returns a gateway as a program. source is the directory of the module it was built from.
func NewGateway(name, source string, g *field.Gateway) Program {
	return &gateway{Gateway: g, name: name, source: source}
}

func (g *gateway) Name() string { return g.name }

func (g *gateway) Plays(peer.Role) bool { return true }

// Start starts the gateway. The boxes are attached at the first start and restored at later ones.
func (g *gateway) Start(ctx context.Context) error {
	if err := g.Gateway.Start(ctx); err != nil || g.furnished {
		return err
	}
	g.furnished = true
	return g.AttachBoxes(ctx)
}

func (g *gateway) Target(role peer.Role) (Target, error) {
	pids, err := proc.Tree(g.PID())
	o := common(role)
	o.PIDs = pids
	switch {
	case role == peer.Resolve:
		o.Dial = field.Resolver
	case public(role):
		url := g.URL
		if role == peer.WebSocket {
			url = g.Echo
		}
		o.Dial, o.Name, o.Header = g.Public+":443", url.Host, []string{"Authorization: Bearer " + url.Token}
		return Target{From: g.Upstream(), Load: o, TLS: negotiated}, err
	case kernel(role):
		o.Dial = at(role)
		return Target{From: g.Routed, Load: o}, err
	default:
		o.Dial, o.Ask = at(role), field.Resolver
	}
	return Target{From: g.Box, Load: o, TLS: negotiated}, err
}

// peerProgram is a peer.
type peerProgram struct {
	*peer.Peer
	field   *field.Field
	root    peer.Root
	running *peer.Process
}

// NewPeer returns the peer as a program.
func NewPeer(p *peer.Peer, f *field.Field, r peer.Root) Program {
	return &peerProgram{Peer: p, field: f, root: r}
}

func (p *peerProgram) Name() string { return p.Peer.Name }

func (p *peerProgram) Start(ctx context.Context) (err error) {
	p.running, err = p.Peer.Start(ctx, p.root, p.field)
	return err
}

func (p *peerProgram) Stop() error {
	if p.running == nil {
		return nil
	}
	err := p.running.Stop()
	p.running = nil
	return err
}

func (p *peerProgram) Target(role peer.Role) (Target, error) {
	if p.running == nil {
		return Target{}, errors.New(p.Name() + " does not run")
	}
	pids, err := proc.Tree(p.running.PID)
	o := common(role)
	o.PIDs, o.Connect = pids, p.Explicit
	from, host := p.field.Client, origin.Web // redirected to the peer
	switch {
	case role == peer.Resolve:
		host = field.PeersListen
	case public(role):
		from, host = p.field.Upstream, field.PeersPublic
	}
	o.Dial = fmt.Sprintf("%s:%d", host, p.Port(role))
	return Target{From: from, Load: o, TLS: cmp.Or(p.TLS, negotiated)}, err
}

// noProxy is the baseline without a proxy: the load generator connects to the origin.
type noProxy struct{ field *field.Field }

// NewDirect returns the baseline without a proxy as a program.
func NewDirect(f *field.Field) Program { return noProxy{f} }

// Direct is the name of the baseline without a proxy.
const Direct = "no proxy"

func (d noProxy) Name() string { return Direct }

func (d noProxy) Plays(role peer.Role) bool { return addresses[role] != "" && !kernel(role) }

func (d noProxy) Start(context.Context) error { return nil }

func (d noProxy) Stop() error { return nil }

func (d noProxy) Target(role peer.Role) (Target, error) {
	o := common(role)
	o.Dial = at(role)
	o.Header = []string{origin.Header + ": " + origin.Value}
	return Target{From: d.field.Client, Load: o, TLS: negotiated}, nil
}

// The baselines for boxgate's path through the kernel.
const (
	Bare   = "bare routing" // a veth, a route and a masquerade
	Tproxy = "plain TPROXY" // a few nftables rules before a listener that copies
)

// bareRouting is the baseline without a program: the kernel forwards by itself.
type bareRouting struct{ noProxy }

// NewBare returns bare routing as a program.
func NewBare(f *field.Field) Program { return bareRouting{noProxy{f}} }

func (bareRouting) Name() string { return Bare }

func (bareRouting) Plays(role peer.Role) bool { return kernel(role) }

func (b bareRouting) Target(role peer.Role) (Target, error) {
	o := common(role)
	o.Dial = at(role)
	return Target{From: b.field.Client, Load: o}, nil
}

// transparent is a transparent listener that gets its connections from nftables.
type transparent struct {
	field   *field.Field
	root    peer.Root
	running *peer.Process
}

// NewTproxy returns a transparent listener as a program.
func NewTproxy(f *field.Field, r peer.Root) Program { return &transparent{field: f, root: r} }

func (*transparent) Name() string { return Tproxy }

func (*transparent) Plays(role peer.Role) bool { return role == peer.Splice || role == peer.SpliceBulk }

func (s *transparent) Start(ctx context.Context) (err error) {
	s.running, err = s.root.StartTransparent(ctx, s.field)
	return err
}

func (s *transparent) Stop() error {
	if s.running == nil {
		return nil
	}
	err := s.running.Stop()
	s.running = nil
	return err
}

func (s *transparent) Target(role peer.Role) (Target, error) {
	if s.running == nil {
		return Target{}, errors.New(Tproxy + " does not run")
	}
	pids, err := proc.Tree(s.running.PID)
	o := common(role)
	o.Dial, o.PIDs = at(role), pids
	return Target{From: s.field.TransparentClient, Load: o, TLS: negotiated}, err
}

// router returns the scenario of kernel forwarding with a number of attached boxes. least is the goal for the
// throughput, relative to bare routing.
func router(f Form, id string, boxes int, least float64) Scenario {
	wide := f
	wide.Window *= 2 // softirq time is counted in ticks
	plainBulk := func(o *load.Options, round int) {
		download(wide)(o, round)
		o.Path = "/64m"
	}
	return Scenario{
		ID: id, Title: fmt.Sprintf("Forwarded by the kernel, %d boxes attached", boxes), Cost: perPacket,
		Note: "What a policy allows by address is forwarded in the kernel and never reaches the gateway's process. The cost is the time that the whole machine spends in softirqs, " +
			"divided by the packets at the client, as coarse as the kernel counts it; what matters is the throughput beside bare routing: a veth, a route and a masquerade. " +
			"Requests: HTTP, 1 KiB, 16 connections. New: 16 at a time. Bulk: 64 MiB, 2 at a time.",
		Cases: []Case{
			{Name: "requests", Role: peer.Routed, Only: []string{Bare}, Coarse: true, Boxes: boxes, Set: window(wide, load.KeepAlive, 16, 0)},
			{Name: "new connections", Role: peer.RoutedNew, Only: []string{Bare}, Coarse: true, Boxes: boxes, Set: window(wide, load.Tunnel, 16, 0)},
			{Name: "bulk", Rate: megabytes, Role: peer.Routed, Only: []string{Bare}, Coarse: true, Boxes: boxes, Set: plainBulk},
		},
		Targets: []Goal{{Peer: Bare, Of: Rate, Bound: least}},
	}
}

// steering returns the scenario of connections that the kernel redirects to the gateway.
func steering(f Form) Scenario {
	wide := f
	wide.Window *= 2
	return Scenario{
		ID: "S8c", Title: "Led to the gateway by the kernel", Cost: perPacket,
		Note: "The same cost for connections that nftables lead to the gateway's process, which passes them on by their server name, beside the least that does so: " +
			"two rules of TPROXY before a listener that copies what it accepts, unread. New: 16 at a time. Bulk: 64 MiB over TLS, 2 at a time.",
		Cases: []Case{
			{Name: "new connections", Role: peer.Splice, Only: []string{Tproxy}, Coarse: true, Set: window(wide, load.Tunnel, 16, 0)},
			{Name: "bulk", Rate: megabytes, Role: peer.SpliceBulk, Only: []string{Tproxy}, Coarse: true, Set: download(wide)},
		},
	}
}
