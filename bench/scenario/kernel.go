package scenario

import (
	"context"
	"errors"
	"fmt"

	"boxgate/bench/field"
	"boxgate/bench/load"
	"boxgate/bench/peer"
	"boxgate/bench/proc"
)

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
