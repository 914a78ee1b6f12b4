package proxy

import (
	"errors"
	"net/netip"
	"time"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/proxy/placeholder"
	"boxgate/proxy/problem"
	"boxgate/proxy/route"
)

// exchange is one request on its way through the proxy and the one audit event that tells of it.
type exchange struct {
	s       *session
	event   audit.Event
	opening *audit.Opening
}

// begin opens the event before the first check: whatever ends the request without saying more is a denial.
func (x *exchange) begin(s *session) {
	opening := x.opening
	if opening == nil {
		opening = &audit.Opening{}
	}
	*x = exchange{s: s, opening: opening, event: audit.Event{
		Time: time.Now(), Box: s.box.ID, Stage: policy.StageHTTP, Protocol: policy.TCP, Name: s.name.String(),
		Addr: s.orig.Addr(), Port: s.port, Action: audit.ActionRefuse, Reason: policy.ReasonInternal,
	}}
}

// under says that the request, which was allowed, is on its way to its upstream at an address: should that take long, it is
// told now.
func (x *exchange) under(at netip.Addr, asked policy.Request) {
	dialled(&x.event, at, asked.Addr)
	x.opening.Begin(x.s.p.cfg.Audit, x.event)
}

// dialled notes where traffic went that was allowed, and where the box was going if that is another address.
func dialled(e *audit.Event, at, claimed netip.Addr) {
	e.Addr, e.Claimed = at.Unmap(), netip.Addr{}
	if claimed.IsValid() && claimed.Unmap() != e.Addr {
		e.Claimed = claimed
	}
}

// judged notes the ruling, and an allowed request as forwarded: what fails later says so by [exchange.refused].
func (x *exchange) judged(m *message, r *ruling) {
	e := &x.event
	e.Method, e.Path = r.request.Method, r.request.Path
	e.Name, e.Addr, e.Port = r.request.Name.String(), r.request.Addr, r.request.Port
	if r.request.Name.IsZero() {
		e.Name = m.authority
	}
	e.Version, e.Reason, e.Rule = route.Version(r.policy), r.reason, r.rule
	x.failed(r.err)
	if r.refused != nil {
		e.Status = r.refused.Status
		if r.refused.Reason == policy.ReasonAuthorityMismatch {
			e.Name = m.authority // what was asked for, not what the connection stands for
		}
		return
	}
	e.Verdict, e.Headers = policy.Allow, headerNames(r.set, r.swaps)
	e.Action = audit.ActionForward
	if x.s.secure {
		e.Action = audit.ActionIntercept
	}
}

// refused notes that the client was told p.
func (x *exchange) refused(p *problem.Problem) {
	e := &x.event
	e.Verdict, e.Action, e.Headers = policy.Deny, audit.ActionRefuse, nil
	e.Reason, e.Rule, e.Status = p.Reason, p.Rule, p.Status
}

// failed notes why an exchange that had begun did not end well.
func (x *exchange) failed(err error) {
	if err != nil && x.event.Error == "" {
		x.event.Error = problem.Text(err)
	}
}

// leaked notes that a placeholder stood in a trailer: what had been forwarded of the request was broken off.
func (x *exchange) leaked() {
	e := &x.event
	e.Verdict, e.Action, e.Headers = policy.Deny, audit.ActionRefuse, nil
	e.Reason, e.Rule, e.Error = policy.ReasonPlaceholderLeak, "", placeholder.ErrLate.Error()
}

// unserved notes why an allowed request could not be brought to its upstream; a denial at the address names the address.
func (x *exchange) unserved(err error) {
	x.failed(err)
	var denied *policy.DeniedError
	if errors.As(err, &denied) && denied.Request.Addr.IsValid() {
		x.event.Addr, x.event.Version = denied.Request.Addr, denied.Decision.Version
	}
}

// cut notes that an allowed exchange was broken off because the policy now in force decides d.
func (x *exchange) cut(d policy.Decision) {
	if e := &x.event; e.Verdict == policy.Allow {
		e.Verdict, e.Action, e.Reason, e.Rule = policy.Deny, audit.ActionRefuse, policy.ReasonPolicyChanged, d.Rule
	}
}

// end records the event.
func (x *exchange) end() {
	e := &x.event
	if why := x.s.live.stopped(); why != nil {
		e.Error = why.Error() // whatever followed from it
	} else if d := x.s.live.denied(); d != nil {
		x.cut(d.Decision)
	}
	e.Duration = time.Since(e.Time)
	x.opening.End(e)
	if e.Reason == policy.ReasonLimit && e.Phase == "" { // the end of what was told as open must not get lost
		x.s.usage.Excess.Add(*e)
		return
	}
	x.s.p.cfg.Audit.Record(*e)
}

// upstreamProblem says in HTTP's words why an allowed request could not be served.
func upstreamProblem(err error) *problem.Problem {
	var denied *policy.DeniedError
	var up *problem.Upstream
	if !errors.As(err, &denied) && !errors.As(err, &up) {
		err = &problem.Upstream{Reason: policy.ReasonUpstreamHTTP, Err: err}
	}
	p := problem.Of(err)
	return &p
}

// inflight is what must stay allowed while a request is under way.
type inflight struct {
	s   *session
	way route.Routed
}

// stands asks a policy whether the request may go on.
func (f *inflight) stands(c *policy.Compiled) policy.Decision {
	now := f.s.p.router.Reroute(c, f.s.box, f.way)
	if why := f.way.OverruledBy(now); why != nil {
		return why.Decision
	}
	return now.Decision
}
