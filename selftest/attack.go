package selftest

import (
	"fmt"
	"net/netip"

	"boxgate/audit"
	"boxgate/policy"
)

// attack is one line of the card before its verdict: what is sent, and how the outcome is judged.
type attack struct {
	Line
	task task

	// reasons: a denial for one of them must be logged. None: the policy promises no log, or no denial.
	reasons []policy.Reason
	// about selects the decisions that can be about this attack.
	about func(audit.Event) bool
	// read judges what came back: how to put it, and whether it is proof of a hole. nil: [refusedAtOnce].
	read func(answer) (seen string, hole bool)
	// to is where the packets go; own says that nobody else sends to that address, so whatever goes there is a probe's.
	to  netip.AddrPort
	own bool
	// elsewhere says that the payload may leave the host for anywhere but the address in to: the policy allows a name.
	elsewhere bool
	canary    *canary
	// after looks at the host once everything is over. nil: nothing to look at.
	after func() (seen string, hole bool)
}

// side is what the attacks of one address family need to know.
type side struct {
	family                      string
	box, gateway, sink, another netip.Addr
	host                        []netip.Addr
	loopback                    netip.Addr
	canaries                    []*canary
	stranger                    func() netip.Addr // an address of the internet that nobody answers on, a new one each time
}

// builder collects the attacks of one run.
type builder struct {
	cfg     *Config
	token   func(id int) []byte
	attacks []*attack
	sides   []*side
}

// add takes an attack in and gives it its number.
func (b *builder) add(s *side, group, name, target string, make func(a *attack)) {
	a := &attack{Line: Line{Group: group, Attack: name, Family: s.family, Target: target}}
	a.task.ID = len(b.attacks)
	a.task.Token = b.token(a.task.ID)
	make(a)
	b.attacks = append(b.attacks, a)
}

// skip marks an attack as without meaning.
func (a *attack) skip(format string, args ...any) {
	a.Verdict, a.Why = Skipped, fmt.Sprintf(format, args...)
}

// refused says that the attack is to be refused for one of the reasons, and how it is put on the card.
func (a *attack) refused(reasons ...policy.Reason) {
	a.reasons = reasons
	a.Expected = "refused: " + string(reasons[0])
}

// judgedAt asks the policy about a destination, before anything is known of a name. When it is allowed the attack is
// skipped. also are reasons for which another part of the gateway may refuse it first.
func (b *builder) judgedAt(a *attack, proto policy.Protocol, to netip.AddrPort, also ...policy.Reason) {
	b.judged(a, policy.Request{Stage: policy.StageKernel, Addr: to.Addr(), Port: to.Port(), Protocol: proto}, also...)
	a.to, a.about = to, atAddress(to)
}

// judged asks the policy.
func (b *builder) judged(a *attack, r policy.Request, also ...policy.Reason) {
	r.Box = b.cfg.Box
	d := b.cfg.Policy.Decide(r)
	if d.Allowed() {
		a.Expected = "allowed"
		a.skip("allowed by policy: %s", ruleOf(d))
		return
	}
	a.refused(append([]policy.Reason{d.Reason}, also...)...)
}

func ruleOf(d policy.Decision) string {
	if d.Rule == "" {
		return string(d.Reason)
	}
	return string(d.Reason) + " " + d.Rule
}

// unnamed are the reasons for which the proxy refuses what carries no name that is allowed.
var unnamed = []policy.Reason{policy.ReasonNoName, policy.ReasonNotAllowed, policy.ReasonProtocol, policy.ReasonPeekTimeout}

// atAddress selects the decisions about an address and, unless it is 0, a port.
func atAddress(to netip.AddrPort) func(audit.Event) bool {
	return func(e audit.Event) bool {
		return e.Addr.Unmap() == to.Addr().Unmap() && (to.Port() == 0 || e.Port == to.Port())
	}
}

// inKernel selects the kernel's decisions about an address and, unless it is 0, a port. The proxy's on the same address
// do not count: they do not show that the kernel's rule stands.
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

// connect is a task that connects and sends.
func connect(to netip.AddrPort, data ...[]byte) task { return task{Kind: overTCP, To: to, Data: data} }

// send replaces what an attack does and keeps its number and token.
func (a *attack) send(t task) {
	t.ID, t.Token = a.task.ID, a.task.Token
	a.task = t
}

// refusedAtOnce: the kernel refuses, so there is no connection and no answer.
func refusedAtOnce(r answer) (string, bool) {
	switch r.Outcome {
	case outRefused:
		return "reset or prohibited", false
	case outSilent:
		return "no answer", false
	case outClosed, outOpen:
		return "CONNECTED", true
	default:
		return fmt.Sprintf("ANSWERED with %d bytes", len(r.Data)), true
	}
}
