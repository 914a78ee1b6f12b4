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
	"boxgate/relay/h1"
	"boxgate/rule/placeholder"
)

// Exchange is one request passing through the proxy, with its single audit event.
type Exchange struct {
	s       *Session
	Event   audit.Event
	opening *audit.Opening
	named   named
	repairs h1.Repairs // of the response
}

// Begin opens the event before the first check. Unless another outcome is recorded, it is a denial.
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

// Under records that the allowed request is being sent to an upstream address. Long requests are recorded at this point as
// well as at their end.
func (x *Exchange) Under(at netip.Addr, asked policy.Request) {
	Dialled(&x.Event, at, asked.Addr)
	x.opening.Begin(x.s.Core.Audit, &x.Event)
}

// Dialled records the address that allowed traffic went to, and the address that the box dialled if it differs.
func Dialled(e *audit.Event, at, claimed netip.Addr) {
	e.Addr, e.Claimed = at.Unmap(), netip.Addr{}
	if claimed.IsValid() && claimed.Unmap() != e.Addr {
		e.Claimed = claimed
	}
}

// Judged records the decision, and marks an allowed request as forwarded; [Exchange.Refused] records later failures.
func (x *Exchange) Judged(m *Message, r *Decision) {
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

// Rewritten records the changes and additions to the request since it was judged.
func (x *Exchange) Rewritten(r *Decision) {
	x.Event.Headers = append(headerNames(r.Set, r.Swaps), r.changes...)
}

// Rejected records the reason why a judged request was refused before it was sent.
func (x *Exchange) Rejected(r *Decision) {
	x.Event.Rule = r.rule
	x.Failed(r.err)
}

// Refused records that the client was answered with p.
func (x *Exchange) Refused(p *problem.Problem) {
	e := &x.Event
	e.Verdict, e.Action, e.Headers = policy.Deny, audit.ActionRefuse, nil
	e.Reason, e.Rule, e.Status = p.Reason, p.Rule, p.Status
}

// Failed records the error of an exchange that had already begun.
func (x *Exchange) Failed(err error) {
	if err != nil && x.Event.Error == "" {
		x.Event.Error = err.Error()
	}
}

// Repaired records mistakes in the response that were repaired. The event names them unless another error is recorded.
func (x *Exchange) Repaired(r h1.Repairs) { x.repairs |= r }

// Leaked records a placeholder in a trailer: the request, partly forwarded, was aborted.
func (x *Exchange) Leaked() {
	e := &x.Event
	e.Verdict, e.Action, e.Headers = policy.Deny, audit.ActionRefuse, nil
	e.Reason, e.Rule, e.Error = name.ReasonPlaceholderLeak, "", placeholder.ErrLate.Error()
}

// Broken records the end of a tunnel: without or with an error, or because of a placeholder in a message, which was not
// sent.
func (x *Exchange) Broken(err error) {
	if errors.Is(err, placeholder.ErrLate) {
		x.Leaked()
		return
	}
	x.Failed(err)
}

// Unserved records the reason why an allowed request did not reach its upstream. If the address was denied, it records the
// address.
func (x *Exchange) Unserved(err error) {
	x.Failed(err)
	var denied *policy.DeniedError
	if errors.As(err, &denied) && denied.Request.Addr.IsValid() {
		x.Event.Addr, x.Event.Version = denied.Request.Addr, denied.Decision.Version
	}
}

// Cut records that an allowed exchange was aborted because of decision d of the current policy.
func (x *Exchange) Cut(d policy.Decision) {
	if e := &x.Event; e.Verdict == policy.Allow {
		e.Verdict, e.Action, e.Reason, e.Rule = policy.Deny, audit.ActionRefuse, CutReason(d), d.Rule
	}
}

// CutReason returns the reason for cutting traffic that was allowed and is now decided by d.
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
	if x.repairs != 0 && e.Error == "" {
		e.Error = "the response was malformed and repaired: " + x.repairs.String()
	}
	e.Duration = time.Since(e.Time)
	x.opening.End(e)
	if e.Reason == name.ReasonLimit && e.Phase == "" { // the end of an exchange recorded as open must not be lost
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

// Inflight is the part of a request in progress that later policies must still allow.
type Inflight struct {
	s             *Session
	Way           route.Routed
	sources       []string // as in its decision, with their rule
	revokedBefore uint64
	rule          name.Pattern

	via *Via
	at  netip.Addr // of via, if known
}

// Set initializes it from a decision, for the request to an address, which is the zero Addr if not yet known.
func (f *Inflight) Set(s *Session, r *Decision, to netip.Addr) {
	f.s, f.Way, f.sources, f.revokedBefore, f.rule = s, r.way, r.sources, r.revokedBefore, r.header.Pattern
	if f.via, f.at = r.Via, to; to.IsValid() && r.Via == nil {
		f.Way.Asked, f.Way.Known = r.way.At(to)
	}
}

// Revoked reports whether the request was sent with a secret that has been revoked since.
func (f *Inflight) Revoked() bool { return f.s.Core.Revoked.since(f.revokedBefore, f.sources) }

// Stands evaluates a policy for whether the request may continue. A request with a revoked secret may not.
func (f *Inflight) Stands(c *policy.Compiled) policy.Decision {
	if f.Revoked() {
		return policy.Decision{Reason: name.ReasonSecretUnavailable, Rule: f.rule.String(), Version: c.Version()}
	}
	if d := f.via.checkPolicy(f.s, c, f.at); d.Reason != "" {
		return d
	}
	now := f.s.Core.Router.Reroute(c, f.s.Box, f.Way)
	if why := f.Way.OverruledBy(now); why != nil {
		return why.Decision
	}
	return now.Decision
}
