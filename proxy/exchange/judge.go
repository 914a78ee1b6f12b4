package exchange

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"boxgate/boundary"
	"boxgate/internal/fault"
	"boxgate/policy"
	"boxgate/policy/content"
	"boxgate/policy/match"
	"boxgate/policy/name"
	"boxgate/proxy/har"
	"boxgate/proxy/origin"
	"boxgate/proxy/problem"
	"boxgate/proxy/scrub"
	"boxgate/relay/h1"
	"boxgate/rule"
	"boxgate/rule/placeholder"
)

// This part judges one request. HTTP/1.1 and HTTP/2 share the judge; neither forwards data before it has allowed the
// request.

// Message is the judge's input from a request, whatever the HTTP version.
type Message struct {
	Method    string
	Authority string // Host or :authority
	Target    string // the authority of an absolute-form target; may be empty
	Scheme    string // the scheme of an absolute-form target or of :scheme; may be empty
	Path      string // with the query
	Websocket bool   // an extended CONNECT for a WebSocket (RFC 8441)
	Upgrades  bool   // a request for a WebSocket over HTTP/1.1
	Tokens    placeholder.Scan
	Head      Head             // nil: no field is known
	Content   *content.Content // messages in the body that were read, see [Session.ReadMessages]
}

// Head is the head of a request, some of whose fields rules may need.
type Head interface {
	// Forwarded returns the fields that rules need and that are forwarded unchanged.
	Forwarded(*match.Needs) []match.Field
}

// Decision is the judge's result. Unless it refuses, the request may be sent to its name if the route is by name, otherwise
// to its address, with the headers in Set.
type Decision struct {
	Refused    *problem.Problem
	Inside     bool             // the gateway answers the request itself: see [Core.Inside]
	Request    policy.Request   // as evaluated by the policy
	to         origin.Target    // its route, also for rechecks
	Policy     *policy.Compiled // the policy that decided
	Reason     name.Reason
	rule       string
	byName     bool
	header     policy.HeaderRule  // of the destination; the zero rule if it has none
	Set        []rule.Field       // header fields with their values for this request: the rule's, then those for a proxy and of the signature
	ownFields  int                // number of the rule's own fields in Set, which are masked in the response
	Swaps      []placeholder.Swap // for the placeholders in the request
	Scrub      *scrub.Set         // masked in the response; may be nil
	errorsOnly bool               // mask only in error responses
	maskTexts  []string           // texts to mask, in addition to those of Set, Swaps and literals
	changes    []string           // changes other than headers, for the log
	err        error              // reason of the refusal, for the log
	unread     content.Kind       // messages that the decision lacks

	Via           *Via             // the proxy to which it is sent; nil: to its server
	identity      *origin.Identity // the client certificate for the connection; may be nil
	values        values           // of secrets, for this request
	sources       []string         // secrets of the configuration that are sent
	revokedBefore uint64           // count of revocations before these secrets were fetched
	capture       *har.Capture     // gets the secrets that are sent; may be nil
}

// Judge decides a request under the current policy and resolves the secrets it needs. It replaces the decision in r, in
// place as it is large, and refuses by default.
func (s *Session) Judge(ctx context.Context, m *Message, r *Decision) { s.judge(ctx, m, r, true) }

// JudgeNow is [Session.Judge] without blocking. It returns false, with a decision that refuses, if it would wait for a lookup
// or a secret. It also returns false if the response must be scrubbed or the request rewritten.
func (s *Session) JudgeNow(ctx context.Context, m *Message, r *Decision) bool {
	return s.judge(ctx, m, r, false) && r.Scrub == nil && !r.Rewrites()
}

// judge decides a request. Without wait, known reports whether the decision is complete; an incomplete one refuses.
func (s *Session) judge(ctx context.Context, m *Message, r *Decision, wait bool) (known bool) {
	r.begin(s, m)
	if r.Refused = s.judgeForm(m); r.Refused == nil {
		r.Refused = s.judgeAuthority(m, &r.Request)
	}
	if r.Refused != nil {
		s.adviseOnProxy(m, r)
		r.Refused.Host = r.Request.Name.String()
		r.Reason = r.Refused.Reason
		return true
	}
	fault.Mark(ctx, "proxy: request read")
	if !s.Secure && s.isInside(&r.Request) {
		r.Inside, r.Reason = true, name.ReasonGateway
		r.Policy = s.Box.Policy.Load()
		return true
	}
	r.Policy = s.Box.Policy.Load()
	if needs := r.Policy.Needs(r.Request.Name, r.Request.Port); needs != nil && m.Head != nil {
		r.Request.Fields = &match.Fields{Needs: needs, List: m.Head.Forwarded(needs)}
	}
	switch known = s.routeRequest(ctx, r, wait); {
	case !known:
		return r.unjudged()
	case r.Refused != nil:
		return true
	}
	switch {
	case !s.Secure || r.to.Audited:
		r.header = r.Policy.ScrubRule(r.Request.Name)
	case !r.pickHeaders():
		return true
	}
	if !wait && !r.decided() {
		return r.unjudged()
	}
	r.fillValues(ctx, s, m)
	r.maskCaptured()
	r.setScrub(s)
	return true
}

// begin sets the request to be decided, and removes all other parts of an earlier decision.
func (r *Decision) begin(s *Session, m *Message) {
	*r = Decision{capture: s.Usage.Capture.Load()} // which may have begun since the request arrived
	q := &r.Request
	q.Stage, q.Box, q.Protocol = policy.StageHTTP, s.Box.ID, policy.TCP
	q.Name, q.Addr, q.Port = s.Name, s.Orig.Addr(), s.Port
	q.Method, q.Content = m.Method, m.Content
	q.Path, q.Query, _ = strings.Cut(m.Path, "?")
	if m.Websocket { // the upstream gets an HTTP/1.1 upgrade
		q.Method = "GET"
	}
}

// isInside reports whether a request over plain HTTP is for the endpoint of the gateway: it names that host and port, and its
// connection went to no other address.
func (s *Session) isInside(r *policy.Request) bool {
	return r.Port == boundary.Port && !s.Orig.Addr().IsValid() && s.Core.IsInside(s.Box, r.Name)
}

// pickHeaders finds the header rule for an allowed request. It returns false, and refuses the request, if a rule refuses it
// and the route has not already done so.
func (r *Decision) pickHeaders() bool {
	var d policy.Decision
	if r.header, d = r.Policy.HeaderRule(r.Request); d.Reason == "" {
		return true
	}
	refused := problem.Of(d.Err(r.Request))
	r.Refused, r.Reason, r.rule = &refused, d.Reason, d.Rule
	return false
}

// unjudged replaces the decision by that for a request that was not judged, and returns false. It refuses, in case it is used.
func (r *Decision) unjudged() bool {
	*r = Decision{}
	r.Refused, r.Reason = &problem.Problem{Status: 500, Reason: name.ReasonInternal}, name.ReasonInternal
	return false
}

// decided reports whether the rest of a decision can be completed without waiting: no value has a source, and the response is
// not masked.
func (r *Decision) decided() bool {
	on := r.header.OnConnections()
	return !r.header.Scrub && on.Identity == nil && on.Redirect == nil && !r.header.OnRequests().Sourced()
}

// routeRequest routes the request, and refuses it in the decision if the route does. Without wait, it reports whether the
// route is known.
func (s *Session) routeRequest(ctx context.Context, r *Decision, wait bool) (known bool) {
	way := &r.to.Routed
	way.Asked, way.Known.Opening, way.Known.Proxied = r.Request, policy.OpeningRequest, s.Explicit
	if s.Secure {
		way.Known.Opening = policy.OpeningSecure
	}
	if wait {
		s.Core.Router.Update(ctx, r.Policy, s.Box, way)
	} else if !way.UpdateNow(r.Policy) {
		return false
	}
	r.Request, r.byName = way.Asked, way.ByName
	r.Reason, r.rule = way.Decision.Reason, way.Decision.Rule
	switch {
	case way.Action == policy.Forward:
	case r.Reason == name.ReasonAuthorityMismatch:
		r.Refused = mismatch()
	case r.Reason == name.ReasonNoName:
		r.Refused = nameless()
	default:
		refused := problem.Of(way.Err())
		r.Refused, r.unread = &refused, way.Decision.Unread
		if flaw := way.Decision.Flaw; flaw != "" && r.unread == 0 {
			r.err = errors.New(flaw)
		}
	}
	return true
}

// judgeForm refuses requests whose form is not one for origin servers.
func (s *Session) judgeForm(m *Message) *problem.Problem {
	// Methods are case-sensitive (RFC 9110, 9.1), but not all servers comply.
	switch strings.ToUpper(m.Method) {
	case "CONNECT":
		if !m.Websocket {
			return &problem.Problem{Status: 405, Reason: name.ReasonMethod, Detail: "CONNECT is not served on this connection."}
		}
	case "TRACE", "TRACK": // servers would echo the gateway's headers to the client
		return &problem.Problem{Status: 405, Reason: name.ReasonMethod, Detail: "TRACE and TRACK are not served."}
	}
	want := "http"
	if s.Secure {
		want = "https"
	}
	if m.Scheme != "" && !strings.EqualFold(m.Scheme, want) {
		return BadRequest("The scheme of the request target is not that of the connection.")
	}
	if s.Explicit && m.Target == "" {
		return BadRequest("A request to a proxy must name its target in absolute form.")
	}
	if m.Target != "" && !sameAuthority(m.Target, m.Authority, s.DefaultPort()) {
		return BadRequest("The authority of the request target is not that of Host.")
	}
	return nil
}

// errForProxy is the logged error of a request to a proxy that the box is configured to use.
var errForProxy = errors.New("the request is for a proxy: name it as upstream_proxy in the policy, and take it out of the box's own settings")

// adviseOnProxy adds advice to a refused request that a client sends only to a proxy. It occurs where a company has a proxy
// whose name is allowed, and boxes are configured to use it.
func (s *Session) adviseOnProxy(m *Message, r *Decision) {
	connect := r.Refused.Reason == name.ReasonMethod && strings.EqualFold(m.Method, "CONNECT")
	absolute := r.Refused.Reason == name.ReasonAuthorityMismatch && m.Target != ""
	if s.Explicit || !connect && (!absolute || s.Secure) {
		return
	}
	r.err = errForProxy
	r.Refused.Detail += " To have connections go by a proxy, name it as upstream_proxy in the box's policy, " +
		"and let clients connect to the hosts themselves: unset HTTPS_PROXY and the like in the box."
}

// BadRequest returns the problem that refuses a malformed request.
func BadRequest(detail string) *problem.Problem {
	return &problem.Problem{Status: 400, Reason: name.ReasonBadRequest, Detail: detail}
}

// judgeAuthority compares the request's authority with the connection: with SNI and port if TLS was terminated, otherwise
// with the port only; then the authority provides the name. It completes the policy request.
func (s *Session) judgeAuthority(m *Message, r *policy.Request) *problem.Problem {
	host, port, ok := SplitAuthority(m.Authority, s.DefaultPort())
	if !ok {
		return BadRequest("Host is not a host name with an optional port.")
	}
	if s.Explicit {
		r.Port = port
	} else if port != s.Port {
		return mismatch()
	}
	if s.Secure {
		if s.Name.IsZero() || !isName(host, s.Name) {
			return mismatch()
		}
		return nil
	}
	if addr, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		return s.judgeLiteral(addr.Unmap(), r)
	}
	hostName, err := name.Parse(host)
	if err != nil {
		return BadRequest("Host is not a host name with an optional port.")
	}
	r.Name = hostName
	return nil
}

// judgeLiteral judges an address as authority: allowed on the explicit proxy, elsewhere only if it is the destination.
func (s *Session) judgeLiteral(addr netip.Addr, r *policy.Request) *problem.Problem {
	r.Name = name.Name{}
	if s.Explicit {
		r.Addr = addr
		return nil
	}
	if addr != s.Orig.Addr().Unmap() {
		return mismatch()
	}
	return nil
}

func mismatch() *problem.Problem {
	return &problem.Problem{Status: 421, Reason: name.ReasonAuthorityMismatch,
		Detail: "The authority of the request is not that of the connection."}
}

func nameless() *problem.Problem {
	return &problem.Problem{Status: 403, Reason: name.ReasonNoName,
		Detail: "The host must be given by its name: on this port the policy judges names."}
}

// DefaultPort returns the port of an authority without one.
func (s *Session) DefaultPort() uint16 {
	if s.Secure {
		return 443
	}
	return 80
}

// WithoutQuery returns a request target without its query.
func WithoutQuery(path string) string {
	path, _, _ = strings.Cut(path, "?")
	return path
}

// SplitAuthority parses "host" or "host:port"; v6 literals are in brackets. It does not validate the host.
func SplitAuthority(authority string, def uint16) (host string, port uint16, ok bool) {
	end := strings.IndexByte(authority, ']') + 1 // 0 without brackets
	if (end > 0) != strings.HasPrefix(authority, "[") {
		return "", 0, false
	}
	colon := strings.IndexByte(authority[end:], ':')
	if colon < 0 {
		return authority, def, authority != "" && (end == 0 || end == len(authority))
	}
	host, digits := authority[:end+colon], authority[end+colon+1:]
	n, err := strconv.ParseUint(digits, 10, 16)
	if err != nil || n == 0 || digits[0] == '+' || host == "" || (end > 0 && colon != 0) {
		return "", 0, false
	}
	return host, uint16(n), true
}

// sameAuthority compares two authorities of one request; a missing port means the default.
func sameAuthority(a, b string, def uint16) bool {
	hostA, portA, okA := SplitAuthority(a, def)
	hostB, portB, okB := SplitAuthority(b, def)
	return okA && okB && portA == portB && strings.EqualFold(hostA, hostB)
}

// isName reports whether host is a spelling of n. The fast path covers common spellings.
func isName(host string, n name.Name) bool {
	if h1.EqualFold([]byte(host), n.String()) {
		return true
	}
	parsed, err := name.Parse(host)
	return err == nil && parsed == n
}

// Revocations records the revocations of secrets. The zero value is empty. Safe for concurrent use.
type Revocations struct {
	count atomic.Uint64 // of all revocations

	mu   sync.Mutex
	last map[string]uint64 // secret → count after its latest revocation; see ofAll for those of an API key
	used map[string]bool   // secrets that were sent with a request
	each map[string]int    // ID of an API key → number of its secrets in last
}

// maxRevoked is the number of revoked secrets of an API key that are told apart. API keys can make and delete secrets without end.
const maxRevoked = 256

// Revoke records a revocation. Requests in progress that were sent with the secret are cut when their connections are
// rechecked.
func (v *Revocations) Revoke(secret string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.last == nil {
		v.last = map[string]uint64{}
	}
	_, known := v.last[secret]
	v.last[secret] = v.count.Load() + 1
	if owner, _, ok := name.SplitKeySecret(secret); ok && !known {
		v.boundOwner(owner)
	}
	v.count.Add(1)
}

// boundOwner counts another revoked secret of an API key. When there are too many, the revocation counts for all secrets of the key. The
// caller holds v.mu.
func (v *Revocations) boundOwner(owner string) {
	if v.each == nil {
		v.each = map[string]int{}
	}
	if v.each[owner]++; v.each[owner] <= maxRevoked {
		return
	}
	ofOwner := func(secret string) bool { key, _, ok := name.SplitKeySecret(secret); return ok && key == owner }
	maps.DeleteFunc(v.last, func(secret string, _ uint64) bool { return ofOwner(secret) })
	v.last[ofAll(owner)], v.each[owner] = v.count.Load()+1, 0
}

// ofAll returns the key of v.last for all secrets of an API key. It is the name of no secret.
func ofAll(owner string) string { return name.KeySecret(owner, "") }

// Forget forgets that a secret was used, once the connections with it were cut.
func (v *Revocations) Forget(secret string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.used, secret)
}

// Used reports whether a secret was sent with a request.
func (v *Revocations) Used(secret string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.used[secret]
}

// markUsed records that secrets are sent.
func (v *Revocations) markUsed(secrets []string) {
	if len(secrets) == 0 {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, s := range secrets {
		if !v.used[s] {
			if v.used == nil {
				v.used = map[string]bool{}
			}
			v.used[s] = true
		}
	}
}

// since reports whether one of the secrets was revoked after the count was then.
func (v *Revocations) since(then uint64, secrets []string) bool {
	if len(secrets) == 0 || v.count.Load() == then {
		return false
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.ContainsFunc(secrets, func(s string) bool {
		owner, _, ofKey := name.SplitKeySecret(s)
		return v.last[s] > then || ofKey && v.last[ofAll(owner)] > then
	})
}

// Revoked reports whether a secret of the request was revoked after the request was judged.
func (r *Decision) Revoked(s *Session) bool { return s.Core.Revoked.since(r.revokedBefore, r.sources) }

// sourcesOf returns the secrets of the configuration that a decision sends. The list must not be modified.
func (r *Decision) sourcesOf() []string {
	does := r.header.OnRequests()
	names := slices.Clip(does.Sources)
	if len(r.Swaps) > 0 {
		names = append(names, does.Swapped...)
	}
	if i := r.header.OnConnections().Identity; i != nil {
		names = append(names, i.Sources()...)
	}
	return names
}

// RetryAfter is the Retry-After of a request over the rate limit, in seconds (RFC 9110, 10.2.3).
const RetryAfter = "1"

// TooMany refuses a request of a box that exceeds its rate limit. Requests are counted before they are judged: a flood
// causes no policy decisions, and refused requests count as well.
func TooMany() *problem.Problem {
	return &problem.Problem{Status: http.StatusTooManyRequests, Reason: name.ReasonLimit,
		Detail: "The box sends more requests a second than it may.", Fields: [][2]string{{"Retry-After", RetryAfter}}}
}

// NoMemory is the problem for a request beyond its box's memory limit.
func NoMemory() *problem.Problem {
	return &problem.Problem{Status: http.StatusServiceUnavailable, Reason: name.ReasonLimit,
		Detail: "The box has reached its memory limit in the gateway."}
}

// Named records the destination of a request that was never judged.
func (x *Exchange) Named(m *Message) {
	e := &x.Event
	e.Method, e.Path = m.Method, WithoutQuery(m.Path)
	if e.Name == "" {
		e.Name = m.Authority
	}
}
