package selftest

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/selftest/probe"
	"boxgate/selftest/watch"
)

// attack is one line of the card before its verdict: the traffic to send, and how to judge the outcome.
type attack struct {
	Line
	task probe.Task

	// reasons lists the acceptable reasons. A denial with one of them must be logged. If it is empty, the policy
	// promises no log entry, or no denial.
	reasons []name.Reason
	// matches selects the decisions that can be about this attack.
	matches func(audit.Event) bool
	// judge judges the answer. It returns a description, and whether the answer proves a hole. nil means
	// [refusedAtOnce].
	judge func(probe.Answer) (seen string, hole bool)
	// to is the destination of the packets. If exclusive is set, only probes send to that address, so every packet there is a
	// probe's.
	to        netip.AddrPort
	exclusive bool
	// anyTarget allows the payload to leave the host for any address except to, because the policy allows a name.
	anyTarget bool
	// canary is the listener at to, if there is one.
	canary interface{ Reached(tcp bool) bool }
	// inspect inspects the host after the run. It may be nil.
	inspect func() (seen string, hole bool)
}

// side is the setting of the attacks of one address family.
type side struct {
	family                      string
	box, gateway, sink, another netip.Addr
	host                        []netip.Addr
	loopback                    netip.Addr
	canaries                    []*watch.Canary
	stranger                    func() netip.Addr // returns an unused internet address, a new one each time
}

// builder collects the attacks of one run.
type builder struct {
	cfg     *Config
	token   func(id int) []byte
	attacks []*attack
	sides   []*side
}

// add adds an attack and numbers it.
func (b *builder) add(s *side, group, name, target string, make func(a *attack)) {
	a := &attack{Line: Line{Group: group, Attack: name, Family: s.family, Target: target}}
	a.task.ID = len(b.attacks)
	a.task.Token = b.token(a.task.ID)
	make(a)
	b.attacks = append(b.attacks, a)
}

// skip marks an attack as not applicable.
func (a *attack) skip(format string, args ...any) {
	a.Verdict, a.Why = Skipped, fmt.Sprintf(format, args...)
}

// refused sets the reasons, one of which must be logged, and the expectation shown on the card.
func (a *attack) refused(reasons ...name.Reason) {
	a.reasons = reasons
	a.Expected = "refused: " + string(reasons[0])
}

// expectDenialAt is [builder.expectDenial] for a destination before any name is known. also lists reasons for which
// another part of the gateway may refuse first.
func (b *builder) expectDenialAt(a *attack, proto policy.Protocol, to netip.AddrPort, also ...name.Reason) {
	b.expectDenial(a, policy.Request{Stage: policy.StageKernel, Addr: to.Addr(), Port: to.Port(), Protocol: proto}, also...)
	a.to, a.matches = to, atAddress(to)
}

// expectDenial expects the policy's denial of a request. If the policy allows it, the attack is skipped.
func (b *builder) expectDenial(a *attack, r policy.Request, also ...name.Reason) {
	r.Box = b.cfg.Box
	d := b.cfg.Policy.Decide(r)
	if d.Allowed() {
		a.Expected = "allowed"
		a.skip("allowed by policy: %s", ruleOf(d))
		return
	}
	a.refused(append([]name.Reason{d.Reason}, also...)...)
}

func ruleOf(d policy.Decision) string {
	if d.Rule == "" {
		return string(d.Reason)
	}
	return string(d.Reason) + " " + d.Rule
}

// unnamed are the proxy's reasons for refusing a connection without an allowed name.
var unnamed = []name.Reason{name.ReasonNoName, name.ReasonNotAllowed, name.ReasonProtocol, name.ReasonPeekTimeout}

// concat appends to a copy of reasons, which is shared.
func concat(reasons []name.Reason, more ...name.Reason) []name.Reason {
	return append(slices.Clone(reasons), more...)
}

// noSuchName is the suffix of the self-test's names. They never exist (RFC 2606).
const noSuchName = ".boxgate-selftest.invalid"

// firstListed returns a name covered by the first entry of a list that is not a bare "*".
func (b *builder) firstListed(list []string) (name.Pattern, name.Name, bool) {
	for _, entry := range list {
		p, err := name.ParsePattern(entry)
		if err != nil || p.Name().IsZero() {
			continue
		}
		host := p.Name()
		if p.IsWildcard() {
			if host, err = name.Parse("boxgate-selftest." + host.String()); err != nil {
				continue
			}
		}
		return p, host, true
	}
	return name.Pattern{}, name.Name{}, false
}

const (
	maxHostAddrs = 3                      // of each family: a host may have hundreds
	loggedAtOnce = 15                     // the kernel logs bursts of 20 of each reason
	loggedEvery  = 130 * time.Millisecond // and then 10 a second
)

// build builds the list of attacks.
func (b *builder) build(prefix []byte) error {
	c := b.cfg
	stranger4, stranger6 := strangers("8.8.8.0/24"), strangers("2001:4860:4860::/64")
	b.sides = []*side{
		{family: "ipv4", box: c.V4, gateway: c.GatewayV4, sink: c.SinkV4, another: c.AnotherV4,
			loopback: netip.AddrFrom4([4]byte{127, 0, 0, 1}), stranger: stranger4},
		{family: "ipv6", box: c.V6, gateway: c.GatewayV6, sink: c.SinkV6, another: c.AnotherV6,
			loopback: netip.IPv6Loopback(), stranger: stranger6},
	}
	for _, s := range b.sides {
		for _, a := range c.HostAddrs {
			if a.Is4() == s.box.Is4() && len(s.host) < maxHostAddrs {
				s.host = append(s.host, a)
			}
		}
		for _, at := range append([]netip.Addr{s.gateway, s.loopback}, s.host...) {
			trap, err := watch.OpenCanary(at, prefix, c.V4, c.V6)
			if err != nil {
				return err
			}
			s.canaries = append(s.canaries, trap)
		}
		for _, group := range []func(*side){
			b.specialAddresses, b.ownHost, b.otherBoxes, b.forgedSources, b.oddPackets, b.otherAddresses, b.names,
			b.queries, b.explicit,
		} {
			group(s)
		}
	}
	b.pace()
	return nil
}

// pace spreads attacks that are refused for the same reason over time, so that the kernel logs each one.
func (b *builder) pace() {
	count := map[name.Reason]int{}
	for _, a := range b.attacks {
		if a.Verdict == Skipped || len(a.reasons) == 0 {
			continue
		}
		n := count[a.reasons[0]]
		count[a.reasons[0]] += max(1, len(a.task.Data)) // frames are packets
		if a.task.Kind != probe.Frame {
			count[a.reasons[0]] = n + 1
		}
		a.task.After = time.Duration(max(0, n-loggedAtOnce)) * loggedEvery
	}
}

// expected returns the denials that the attacks cause if the box is tight: one per attack, or one per packet.
func (b *builder) expected() []audit.Expected {
	var out []audit.Expected
	for _, a := range b.attacks {
		if a.Verdict == Skipped || a.matches == nil {
			continue
		}
		events := 1
		if a.task.Kind == probe.Frame {
			events = max(1, len(a.task.Data))
		}
		out = append(out, audit.Expected{Count: events, Match: func(e audit.Event) bool {
			return (len(a.reasons) == 0 || slices.Contains(a.reasons, e.Reason)) && a.matches(e)
		}})
	}
	return out
}

// watched returns the addresses that only attacks send to.
func (b *builder) watched() []netip.Addr {
	var out []netip.Addr
	for _, a := range b.attacks {
		if a.exclusive && a.Verdict != Skipped {
			out = append(out, a.to.Addr())
		}
	}
	return out
}

func (b *builder) closeCanaries() {
	for _, s := range b.sides {
		for _, c := range s.canaries {
			c.Close()
		}
	}
}

// atAddress selects the decisions about an address and, unless it is 0, a port.
func atAddress(to netip.AddrPort) func(audit.Event) bool {
	return func(e audit.Event) bool {
		return e.Addr.Unmap() == to.Addr().Unmap() && (to.Port() == 0 || e.Port == to.Port())
	}
}

// inKernel selects the kernel's decisions about an address and, unless it is 0, a port. The proxy's decisions do not
// count: they do not prove that the kernel's rule works.
func inKernel(proto policy.Protocol, to netip.AddrPort) func(audit.Event) bool {
	at := atAddress(to)
	return func(e audit.Event) bool { return e.Stage == policy.StageKernel && e.Protocol == proto && at(e) }
}

// aboutName selects the decisions about a name at a stage.
func aboutName(name string, stages ...policy.Stage) func(audit.Event) bool {
	return func(e audit.Event) bool {
		for _, s := range stages {
			if e.Stage == s && e.Name == name {
				return true
			}
		}
		return false
	}
}

// atAddressOrName selects the decisions about an address and port, or a name.
func atAddressOrName(to netip.AddrPort, name string) func(audit.Event) bool {
	at := atAddress(to)
	return func(e audit.Event) bool { return at(e) || name != "" && e.Name == name || e.Name == to.Addr().String() }
}
