package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/config"
	"boxgate/firewall"
	"boxgate/host/state"
	"boxgate/policy"
	"boxgate/selftest"
)

// ProbeCommand is the hidden command that a self-test starts in the box's network namespace.
const ProbeCommand = "probe"

// selfTests attacks boxes from inside.
type selfTests struct {
	cfg       config.Config
	addrs     config.Addresses
	listeners *Listeners
	audit     *audit.Log
	boxes     *state.Table
	sandboxes state.Sandboxes

	running sync.Mutex // held by the self-test that runs
}

// SelfTest implements the SelfTests of [boxgate/api/boxes]. One self-test runs at a time: two would share the kernel's limit on logged refusals.
func (s *selfTests) SelfTest(ctx context.Context, id policy.BoxID) (api.SelfTestReport, error) {
	b, err := s.boxes.Find(id)
	if err != nil {
		return api.SelfTestReport{}, err
	}
	if !s.running.TryLock() {
		return api.SelfTestReport{}, api.Errorf(api.ErrConflict, "another self-test is running; it takes some seconds")
	}
	defer s.running.Unlock()
	cfg, err := s.selfTestConfig(ctx, b)
	if err != nil {
		return api.SelfTestReport{}, err
	}
	card, err := selftest.Run(ctx, cfg)
	if untestable := (*selftest.UntestableError)(nil); errors.As(err, &untestable) {
		report := reportOf(id, card)
		report.Untestable = untestable.Reason
		return report, nil
	}
	if err != nil {
		if ctx.Err() != nil {
			return api.SelfTestReport{}, ctx.Err()
		}
		return api.SelfTestReport{}, api.Errorf(api.ErrUnavailable, "the self-test could not be run: %w", err)
	}
	if b.Policy.Load() != cfg.Policy {
		return api.SelfTestReport{}, api.Errorf(api.ErrConflict, "the policy of the box changed while it was tested; run the self-test again")
	}
	return reportOf(id, card), nil
}

// selfTestConfig says what to attack.
func (s *selfTests) selfTestConfig(ctx context.Context, b *state.Box) (selftest.Config, error) {
	netns, err := s.sandboxes.Namespace(ctx, b)
	if err != nil {
		return selftest.Config{}, fmt.Errorf("the network namespace of box %s: %w", b.ID, err)
	}
	pol := b.Policy.Load()
	if pol == nil {
		return selftest.Config{}, api.Errorf(api.ErrConflict, "the box has no policy in force: it is being created or deleted")
	}
	addrs, err := s.outsideAddrs()
	if err != nil {
		return selftest.Config{}, err
	}
	v4, v6 := s.anotherBox(b)
	return selftest.Config{
		Box: b.ID, V4: b.V4, V6: b.V6, NetNS: netns, Policy: pol,
		GatewayV4: s.addrs.GatewayV4, GatewayV6: s.addrs.GatewayV6, SinkV4: s.addrs.SinkV4, SinkV6: s.addrs.SinkV6,
		ExplicitPort: explicitPort, HostAddrs: addrs, HostPorts: s.listeners.closedToBoxes(),
		AnotherV4: v4, AnotherV6: v6, DenyPage: s.cfg.Proxy.Deny == "page", GuestStack: s.sandboxes.HasGuestStack(b),
		Events: func(ctx context.Context) <-chan audit.Event {
			return s.audit.Subscribe(ctx, audit.Filter{Box: b.ID, Denied: true}).Events()
		},
		Expect:  func(list []audit.Expected) func() { return s.audit.ExpectSelfTest(b.ID, list) },
		Command: []string{"/proc/self/exe", ProbeCommand},
	}, nil
}

// outsideAddrs are the addresses by which others know the host.
func (s *selfTests) outsideAddrs() ([]netip.Addr, error) {
	list, err := firewall.HostAddresses()
	if err != nil {
		return nil, fmt.Errorf("reading the host's addresses: %w", err)
	}
	var out []netip.Addr
	for _, a := range list {
		if !a.IsLoopback() && !a.IsLinkLocalUnicast() && !slices.Contains(s.addrs.Own(), a) {
			out = append(out, a)
		}
	}
	return out, nil
}

// anotherBox returns the addresses of another box, or of none if there is only one.
func (s *selfTests) anotherBox(b *state.Box) (v4, v6 netip.Addr) {
	for _, other := range s.boxes.All() {
		if other.ID != b.ID {
			return other.V4, other.V6
		}
	}
	v4, v6 = s.addrs.SinkV4.Next(), s.addrs.SinkV6.Next()
	if v4 == b.V4 {
		v4 = v4.Next()
	}
	if v6 == b.V6 {
		v6 = v6.Next()
	}
	return v4, v6
}

// closedToBoxes are the ports on which the gateway serves others.
func (l *Listeners) closedToBoxes() []selftest.Port {
	var ports []selftest.Port
	add := func(name string, ln net.Listener) {
		if ln == nil {
			return
		}
		if _, isTCP := ln.Addr().(*net.TCPAddr); isTCP {
			ports = append(ports, selftest.Port{Name: name, Port: portOf(ln)})
		}
	}
	for _, ln := range l.admin {
		add("admin API", ln)
	}
	add("metrics", l.metrics)
	add("public URLs", l.https)
	add("public URLs, plain", l.http)
	return append(ports, selftest.Port{Name: "transparent proxy, asked directly", Port: l.proxyPort})
}

// reportOf translates a scorecard for the API.
func reportOf(id policy.BoxID, card selftest.Card) api.SelfTestReport {
	r := api.SelfTestReport{Box: id, Mode: card.Mode, Version: card.Version, Started: card.Started, Duration: card.Duration}
	for _, l := range card.Lines {
		r.Probes = append(r.Probes, api.SelfTestProbe{
			Group: l.Group, Attack: l.Attack, Family: l.Family, Target: l.Target, Expected: l.Expected, Seen: l.Seen,
			Verdict: verdictOf(l.Verdict), Why: l.Why,
		})
	}
	return r
}

// verdictOf translates a verdict for the API. An unknown one proves nothing.
func verdictOf(v selftest.Verdict) api.SelfTestVerdict {
	switch v {
	case selftest.Tight:
		return api.ProbeTight
	case selftest.Hole:
		return api.ProbeHole
	case selftest.Skipped:
		return api.ProbeSkipped
	default:
		return api.ProbeNotRun
	}
}
