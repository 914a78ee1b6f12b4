package exchange

import (
	"errors"
	"net/http"
	"net/netip"
	"time"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy/problem"
	"boxgate/proxy/route"
	"boxgate/rule/placeholder"
)

// Exchange is one request passing through the proxy, with its single audit event.
type Exchange struct {
	s       *Session
	Event   audit.Event
	opening *audit.Opening
	named   named
}

// Begin opens the event before the first check: unless something else is noted, it records a denial.
func (x *Exchange) Begin(s *Session) {
	if !s.asked.Load() {
		s.asked.Store(true)
	}
	opening := x.opening
	if opening == nil {
		opening = &audit.Opening{}
	}
	*x = Exchange{s: s, opening: opening, named: x.named, Event: audit.Event{
		Time: time.Now(), Box: s.Box.ID, Stage: policy.StageHTTP, Protocol: policy.TCP, Name: s.Name.String(),
		Addr: s.Orig.Addr(), Port: s.Port, Action: audit.ActionRefuse, Reason: name.ReasonInternal,
	}}
}

// Under notes that the allowed request is being sent to an upstream address. Requests that take long are recorded at
// this point as well.
func (x *Exchange) Under(at netip.Addr, asked policy.Request) {
	Dialled(&x.Event, at, asked.Addr)
	x.opening.Begin(x.s.Core.Audit, &x.Event)
}

// Dialled notes the address that allowed traffic went to, and the address the box asked for if it differs.
func Dialled(e *audit.Event, at, claimed netip.Addr) {
	e.Addr, e.Claimed = at.Unmap(), netip.Addr{}
	if claimed.IsValid() && claimed.Unmap() != e.Addr {
		e.Claimed = claimed
	}
}

// Judged notes the ruling, and marks an allowed request as forwarded; later failures are noted by [Exchange.Refused].
func (x *Exchange) Judged(m *Message, r *Ruling) {
	e := &x.Event
	e.Method, e.Path = r.Request.Method, r.Request.Path
	e.Name, e.Addr, e.Port = r.Request.Name.String(), r.Request.Addr, r.Request.Port
	if r.Request.Name.IsZero() {
		e.Name = m.Authority
	}
	e.Version, e.Reason, e.Rule = route.Version(r.Policy), r.Reason, r.rule
	x.Failed(r.err)
	if r.Refused != nil {
		e.Status = r.Refused.Status
		if r.Refused.Reason == name.ReasonAuthorityMismatch {
			e.Name = m.Authority // the name in the request, not that of the connection
		}
		return
	}
	if e.Via = r.way.Upstream.URL(); r.Via != nil {
		e.Via = r.Via.way.Upstream.URL()
	}
	e.Verdict, e.Headers = policy.Allow, x.named.headers(r.Set, r.Swaps)
	if r.identity != nil {
		e.Secret = r.header.OnConnections().Identity.CertificateSource()
	}
	e.Action = audit.ActionForward
	if x.s.Secure {
		e.Action = audit.ActionIntercept
	}
}

// Rewritten notes what was changed of the request and added to it since it was judged.
func (x *Exchange) Rewritten(r *Ruling) {
	x.Event.Headers = append(headerNames(r.Set, r.Swaps), r.changes...)
}

// Rejected notes why a request that was judged was refused before it was sent.
func (x *Exchange) Rejected(r *Ruling) {
	x.Event.Rule = r.rule
	x.Failed(r.err)
}

// Refused notes that the client was answered with p.
func (x *Exchange) Refused(p *problem.Problem) {
	e := &x.Event
	e.Verdict, e.Action, e.Headers = policy.Deny, audit.ActionRefuse, nil
	e.Reason, e.Rule, e.Status = p.Reason, p.Rule, p.Status
}

// Failed notes why an exchange failed after it had begun.
func (x *Exchange) Failed(err error) {
	if err != nil && x.Event.Error == "" {
		x.Event.Error = err.Error()
	}
}

// Leaked notes a placeholder in a trailer: the request, partly forwarded, was aborted.
func (x *Exchange) Leaked() {
	e := &x.Event
	e.Verdict, e.Action, e.Headers = policy.Deny, audit.ActionRefuse, nil
	e.Reason, e.Rule, e.Error = name.ReasonPlaceholderLeak, "", placeholder.ErrLate.Error()
}

// Broken notes how a tunnel ended: with nothing, an error, or a placeholder in a message, which was not sent.
func (x *Exchange) Broken(err error) {
	if errors.Is(err, placeholder.ErrLate) {
		x.Leaked()
		return
	}
	x.Failed(err)
}

// Unserved notes why an allowed request did not reach its upstream; a denial at the address includes the address.
func (x *Exchange) Unserved(err error) {
	x.Failed(err)
	var denied *policy.DeniedError
	if errors.As(err, &denied) && denied.Request.Addr.IsValid() {
		x.Event.Addr, x.Event.Version = denied.Request.Addr, denied.Decision.Version
	}
}

// Cut notes that an allowed exchange was aborted because of decision d of the policy now in force.
func (x *Exchange) Cut(d policy.Decision) {
	if e := &x.Event; e.Verdict == policy.Allow {
		e.Verdict, e.Action, e.Reason, e.Rule = policy.Deny, audit.ActionRefuse, CutReason(d), d.Rule
	}
}

// CutReason returns the reason for cutting what was allowed, and now is decided by d.
func CutReason(d policy.Decision) name.Reason {
	if d.Reason == name.ReasonSecretUnavailable {
		return d.Reason
	}
	return name.ReasonPolicyChanged
}

// End records the event.
func (x *Exchange) End() {
	e := &x.Event
	if why := x.s.Live.Stopped(); why != nil {
		e.Error = why.Error() // replaces errors that followed from it
	} else if d := x.s.Live.Denied(); d != nil {
		x.Cut(d.Decision)
	}
	e.Duration = time.Since(e.Time)
	x.opening.End(e)
	if e.Reason == name.ReasonLimit && e.Phase == "" { // the end of an exchange recorded as open must not get lost
		x.s.Usage.Excess.Add(*e)
		return
	}
	x.s.Core.Audit.Record(*e)
}

// UpstreamProblem returns the problem for an allowed request that could not be served.
func UpstreamProblem(err error) *problem.Problem {
	var denied *policy.DeniedError
	var up *problem.Upstream
	if errors.Is(err, errRuleChanged) {
		return &problem.Problem{Status: http.StatusBadGateway, Reason: name.ReasonSecretUnavailable,
			Detail: "What the gateway sets for this host has changed before the request could be sent. It may be made again."}
	}
	if !errors.As(err, &denied) && !errors.As(err, &up) {
		err = &problem.Upstream{Reason: name.ReasonUpstreamHTTP, Err: err}
	}
	p := problem.Of(err)
	return &p
}

// Inflight is what the policy must keep allowing while a request is in progress.
type Inflight struct {
	s       *Session
	Way     route.Routed
	sources []string // as in its ruling, with the rule that they are of
	asked   uint64
	rule    name.Pattern

	via *Via
	at  netip.Addr // of via, if it is known
}

// Set makes it that of a ruling, for the request to an address, the zero Addr if not yet known.
func (f *Inflight) Set(s *Session, r *Ruling, to netip.Addr) {
	f.s, f.Way, f.sources, f.asked, f.rule = s, r.way, r.sources, r.asked, r.header.Pattern
	if f.via, f.at = r.Via, to; to.IsValid() && r.Via == nil {
		f.Way.Asked, f.Way.Known = r.way.At(to)
	}
}

// Revoked reports whether the request was sent with a secret that has been revoked since.
func (f *Inflight) Revoked() bool { return f.s.Core.Revoked.since(f.asked, f.sources) }

// Stands asks a policy whether the request may continue. One that was sent with a secret that is revoked may not.
func (f *Inflight) Stands(c *policy.Compiled) policy.Decision {
	if f.Revoked() {
		return policy.Decision{Reason: name.ReasonSecretUnavailable, Rule: f.rule.String(), Version: c.Version()}
	}
	if d := f.via.stands(f.s, c, f.at); d.Reason != "" {
		return d
	}
	now := f.s.Core.Router.Reroute(c, f.s.Box, f.Way)
	if why := f.Way.OverruledBy(now); why != nil {
		return why.Decision
	}
	return now.Decision
}
