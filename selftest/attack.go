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

// attack is one line of the card before its verdict: what is sent, and how the outcome is judged.
type attack struct {
	Line
	task probe.Task

	// reasons: a denial for one of them must be logged. None: the policy promises no log, or no denial.
	reasons []name.Reason
	// about selects the decisions that can be about this attack.
	about func(audit.Event) bool
	// read judges what came back: how to put it, and whether it is proof of a hole. nil: [refusedAtOnce].
	read func(probe.Answer) (seen string, hole bool)
	// to is where the packets go; own says that nobody else sends to that address, so whatever goes there is a probe's.
	to  netip.AddrPort
	own bool
	// elsewhere says that the payload may leave the host for anywhere but the address in to: the policy allows a name.
	elsewhere bool
	// canary is the listener that to is on, if it is on one.
	canary interface{ Reached(tcp bool) bool }
	// after looks at the host once everything is over. nil: nothing to look at.
	after func() (seen string, hole bool)
}

// side is what the attacks of one address family need to know.
type side struct {
	family                      string
	box, gateway, sink, another netip.Addr
	host                        []netip.Addr
	loopback                    netip.Addr
	canaries                    []*watch.Canary
	stranger                    func() netip.Addr // an address of the internet that nobody answers on, a new one each time
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

// refused says that the attack must be refused for one of the reasons, and how the card words that.
func (a *attack) refused(reasons ...name.Reason) {
	a.reasons = reasons
	a.Expected = "refused: " + string(reasons[0])
}

// judgedAt asks the policy about a destination, before anything is known of a name. When it is allowed the attack is
// skipped. also are reasons for which another part of the gateway may refuse it first.
func (b *builder) judgedAt(a *attack, proto policy.Protocol, to netip.AddrPort, also ...name.Reason) {
	b.judged(a, policy.Request{Stage: policy.StageKernel, Addr: to.Addr(), Port: to.Port(), Protocol: proto}, also...)
	a.to, a.about = to, atAddress(to)
}

// judged asks the policy.
func (b *builder) judged(a *attack, r policy.Request, also ...name.Reason) {
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

// unnamed are the reasons for which the proxy refuses what carries no name that is allowed.
var unnamed = []name.Reason{name.ReasonNoName, name.ReasonNotAllowed, name.ReasonProtocol, name.ReasonPeekTimeout}

// concat is append to a slice that others share.
func concat(reasons []name.Reason, more ...name.Reason) []name.Reason {
	return append(slices.Clone(reasons), more...)
}

// noSuchName is what names of the self-test end in: nobody has it (RFC 2606).
const noSuchName = ".boxgate-selftest.invalid"

// listed returns a name that a list covers, the first that is no bare "*".
func (b *builder) listed(list []string) (name.Pattern, name.Name, bool) {
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
