package box

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/config"
	"boxgate/firewall"
	"boxgate/host/state"
	"boxgate/internal/required"
	"boxgate/policy"
	"boxgate/selftest"
)

// ProbeCommand is the hidden command that a self-test runs in the box's network namespace.
const ProbeCommand = "probe"

// SelfTests attacks boxes from inside.
type SelfTests struct {
	cfg       config.Config
	addrs     config.Addresses
	ports     func() []selftest.Port // ports of the host that are closed to boxes
	explicit  uint16
	audit     *audit.Log
	boxes     *state.Table
	sandboxes state.Sandboxes

	running sync.Mutex // held during a self-test
}

// SelfTestsConfig configures a [SelfTests].
type SelfTestsConfig struct {
	Config    config.Config
	Addresses config.Addresses
	// Ports returns the ports of the host that are closed to boxes.
	Ports     func() []selftest.Port
	Explicit  uint16 // the port of the explicit proxy
	Audit     *audit.Log
	Boxes     *state.Table
	Sandboxes state.Sandboxes
}

// NewSelfTests returns the service.
func NewSelfTests(c SelfTestsConfig) (*SelfTests, error) {
	if err := required.Fields(c); err != nil {
		return nil, err
	}
	return &SelfTests{cfg: c.Config, addrs: c.Addresses, ports: c.Ports, explicit: c.Explicit, audit: c.Audit, boxes: c.Boxes, sandboxes: c.Sandboxes}, nil
}

// SelfTest implements the SelfTests of [boxgate/api/boxes]. Only one self-test runs at a time: two would share the
// kernel's rate limit for logged denials.
func (s *SelfTests) SelfTest(ctx context.Context, id policy.BoxID) (api.SelfTestReport, error) {
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

// selfTestConfig returns the targets of a self-test of b.
func (s *SelfTests) selfTestConfig(ctx context.Context, b *state.Box) (selftest.Config, error) {
	if b.IsRemote() {
		return selftest.Config{}, api.Errorf(api.ErrConflict, "box %s runs elsewhere: there is no network namespace here to attack from", b.ID)
	}
	netns, err := s.sandboxes.Namespace(ctx, b)
	if err != nil {
		return selftest.Config{}, fmt.Errorf("the network namespace of box %s: %w", b.ID, err)
	}
	pol := b.Policy.Load()
	if pol == nil {
		return selftest.Config{}, api.Errorf(api.ErrConflict, "the box has no active policy: it is being created or deleted")
	}
	addrs, err := s.outsideAddrs()
	if err != nil {
		return selftest.Config{}, err
	}
	v4, v6 := s.anotherBox(b)
	return selftest.Config{
		Box: b.ID, V4: b.V4, V6: b.V6, NetNS: netns, Policy: pol,
		GatewayV4: s.addrs.GatewayV4, GatewayV6: s.addrs.GatewayV6, SinkV4: s.addrs.SinkV4, SinkV6: s.addrs.SinkV6,
		ExplicitPort: s.explicit, HostAddrs: addrs, HostPorts: s.ports(),
		AnotherV4: v4, AnotherV6: v6, DenyPage: s.cfg.Proxy.Deny == "page", GuestStack: s.sandboxes.HasGuestStack(b),
		Events: func(ctx context.Context) <-chan audit.Event {
			return s.audit.Subscribe(ctx, audit.Filter{Box: b.ID, Denied: true}).Events()
		},
		Expect:  func(list []audit.Expected) func() { return s.audit.ExpectSelfTest(b.ID, list) },
		Command: []string{"/proc/self/exe", ProbeCommand},
	}, nil
}

// outsideAddrs returns the host's addresses that other machines can reach.
func (s *SelfTests) outsideAddrs() ([]netip.Addr, error) {
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

// anotherBox returns the addresses of another box, or unused addresses of the pool if there is only one.
func (s *SelfTests) anotherBox(b *state.Box) (v4, v6 netip.Addr) {
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

// reportOf converts a scorecard for the API.
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

// verdictOf converts a verdict for the API. An unknown one counts as not run.
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
