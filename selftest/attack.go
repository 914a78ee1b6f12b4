package selftest

import (
	"fmt"
	"net/netip"
	"slices"

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
