// Package exchange implements what requests of all HTTP versions share: judging them, setting headers, masking secrets
// in their responses, and recording one event for each.
package exchange

import (
	"errors"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"boxgate/audit"
	"boxgate/boundary"
	"boxgate/llm"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy/har"
	"boxgate/proxy/live"
	"boxgate/proxy/origin"
	"boxgate/proxy/problem"
	"boxgate/proxy/route"
	"boxgate/proxy/tunnel"
	"boxgate/proxy/usage"
	"boxgate/relay/h1"
	"boxgate/rule/placeholder"
)

// ClientIdle is how long a client connection may stay open without a request.
const ClientIdle = 5 * time.Minute

// Session is one client connection whose requests are judged one by one.
type Session struct {
	Core  *Core
	Box   *policy.Box
	Usage *usage.Box // counters of the box
	Name  name.Name  // SNI of an intercepted connection; zero on plain HTTP (Host decides per request)
	// Orig is the original destination. Its Addr is invalid for the sink and the explicit proxy; the destination then is a
	// name, or an address literal as authority of an explicit request.
	Orig   netip.AddrPort
	Port   uint16 // destination port; 0 on the explicit proxy: the port in each request's authority, default 80
	Secure bool   // TLS terminated: header rules apply
	// Explicit is set for requests to the explicit proxy: they must be in absolute form with the scheme http.
	Explicit bool
	Client   net.Conn            // TLS when secure; for plain HTTP a conn that replays the peeked bytes first
	TLS      *usage.Interception // of Client; nil without TLS termination
	Origin   origin.Client       // for the connections to servers
	Live     *live.Conn          // registration in the live table: byte counters (client's conn counts by itself), close for Recheck

	asked atomic.Bool
}

// Asked reports whether a request has begun, however malformed.
func (s *Session) Asked() bool { return s.asked.Load() }

// Core is shared by the exchanges of all sessions. All fields but Tokens, Secrets, Revoked and Clock are required.
type Core struct {
	Router     *route.Router
	Origins    *origin.Origins
	Tunnels    *tunnel.Pool
	Audit      Recorder
	Tokens     Tokens  // nil: forwarding rules refuse their requests
	Secrets    Secrets // nil: rules with secrets refuse their requests
	Log        *zap.Logger
	Revoked    Revocations
	identities identities
	Clock      func() time.Time // nil: the system's
	Inside     Inside           // nil: boxes have no endpoint
	Meter      llm.Meter        // nil: rules that meter refuse their requests to models
	MaxStreams int              // requests of a box over HTTP/2 in progress at a time
}

// Inside is the endpoint of the gateway for boxes. Safe for concurrent use.
type Inside interface {
	// Serves reports whether the requests of a box to a host are for the endpoint.
	Serves(box *policy.Box, host name.Name) bool
	// Asked returns the ID of the open request of a box for a denied destination, or "".
	Asked(box *policy.Box, d boundary.Denial) string
	// ServeBox answers a request of a box. The context of the request ends with its connection.
	ServeBox(box *policy.Box, w http.ResponseWriter, r *http.Request)
}

// IsInside reports whether the requests of a box to a host are for the endpoint of the gateway.
func (k *Core) IsInside(box *policy.Box, host name.Name) bool {
	return k.Inside != nil && host == boundary.Name && k.Inside.Serves(box, host)
}

// Advise adds the steps that a program in a box can take to a problem, if the box has the endpoint that they refer to. The problem is
// about a request if asked has a method.
func (k *Core) Advise(box *policy.Box, p *problem.Problem, asked boundary.Denial) {
	if k.IsInside(box, boundary.Name) && p.NextSteps == nil {
		asked.Reason, asked.Rule, asked.Asked = p.Reason, p.Rule, k.Inside.Asked(box, asked)
		p.NextSteps = boundary.NextSteps(box.Policy.Load(), asked)
	}
}

// NewSession returns a session for one client connection of a box. The caller sets its destination and whether it is
// secure.
func (k *Core) NewSession(box *policy.Box, taken *usage.Box, live *live.Conn, conn net.Conn) *Session {
	return &Session{
		Core: k, Box: box, Usage: taken, Live: live, Client: conn,
		Origin: origin.Client{Box: box, Memory: taken.Memory, Denied: live.Denied},
	}
}

// Recorder records one event per decision. It never blocks. Safe for concurrent use.
type Recorder interface {
	Record(audit.Event)
}

// Exchange is one request passing through the proxy, with its single audit event.
type Exchange struct {
	s       *Session
	Event   audit.Event
	opening *audit.Opening
	named   named
	repairs h1.Repairs // of the response
	sent    bool       // to a server, at least in part
	entry   *har.Entry // of the capture of the box; nil without one
	meter   *metering  // nil unless the request is metered
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
	now := time.Now()
	*x = Exchange{s: s, opening: opening, named: x.named, entry: s.newEntry(now), Event: audit.Event{
		Time: now, Box: s.Box.ID, Stage: policy.StageHTTP, Protocol: policy.TCP, Name: s.Name.String(),
		Addr: s.Orig.Addr(), Port: s.Port, Action: audit.ActionRefuse, Reason: name.ReasonInternal,
	}}
}

// Under records that the allowed request is being sent to an upstream address. Long requests are recorded at this point as
// well as at their end.
func (x *Exchange) Under(at netip.Addr, asked policy.Request) {
	x.sent = true
	x.noteSent()
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
	e.Seen = audit.Seen{Known: true, Opening: policy.OpeningRequest, Source: audit.NameSent, Proxied: x.s.Explicit, Query: r.Request.Query}
	if x.s.Secure {
		e.Seen.Opening = policy.OpeningSecure
	}
	if r.Request.Name.IsZero() {
		e.Name, e.Seen.Source = m.Authority, audit.NameNone
	}
	e.Version, e.Reason, e.Rule = route.Version(r.Policy), r.Reason, r.rule
	if r.Request.Content != nil {
		e.Messages = r.Request.Content.Summary()
	}
	x.Failed(r.err)
	if r.Refused != nil {
		e.Status = r.Refused.Status
		if r.Refused.Reason == name.ReasonAuthorityMismatch {
			e.Name = m.Authority // the name in the request, not that of the connection
		}
		return
	}
	if e.Via = r.to.Upstream.URL(); r.Via != nil {
		e.Via = r.Via.way.Upstream.URL()
	}
	x.noteChanges(r)
	e.Verdict, e.Headers = policy.Allow, x.named.headers(r.Set, r.Swaps)
	e.Secrets = usedSecrets(r)
	if r.identity != nil {
		e.Secret = r.header.OnConnections().Identity.CertificateSource()
	}
	e.Action = audit.ActionForward
	if x.s.Secure {
		e.Action = audit.ActionIntercept
	}
}

// usedSecrets returns the secrets of the configuration for an allowed request. Without an upstream proxy the list is that of the rule,
// which does not change.
func usedSecrets(r *Decision) []string {
	proxy := r.to.Upstream
	if r.Via != nil {
		proxy = r.Via.way.Upstream
	}
	own := proxy.Secrets()
	if len(own) == 0 {
		return r.sources
	}
	return slices.Concat(r.sources, own)
}

// Rewritten records the changes and additions to the request since it was judged.
func (x *Exchange) Rewritten(r *Decision) {
	x.noteChanges(r)
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
	if !x.sent {
		e.Secrets = nil
	}
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
	x.settle()
	if x.repairs != 0 && e.Error == "" {
		e.Error = "the response was malformed and repaired: " + x.repairs.String()
	}
	e.Duration = time.Since(e.Time)
	x.entry.Finish(e)
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
	if errors.Is(err, errFenced) {
		return problem.Fenced("", "")
	}
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
	f.s, f.sources, f.revokedBefore, f.rule = s, r.sources, r.revokedBefore, r.header.Pattern
	f.Way = r.to.Routed
	if f.via, f.at = r.Via, to; to.IsValid() && r.Via == nil {
		f.Way.Bind(to)
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
