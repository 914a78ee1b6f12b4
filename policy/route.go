package policy

import (
	"net/netip"
	"slices"
	"strings"

	"boxgate/policy/name"
)

// Action is how a connection or a request is handled. The zero value is Refuse.
type Action uint8

// The actions.
const (
	Refuse      Action = iota
	AwaitClient        // wait for more bytes of the client, without dialling; then call Route again
	AwaitServer        // dial the server without sending; call Route again when the server or the client sends bytes
	Splice             // pass the bytes unread
	Intercept          // terminate TLS, and route each request inside separately
	Forward            // forward the request
	Broker             // log in to the server for the box, see [rule.Login]
)

// Route is how a connection, or a request in it, may pass. The zero value refuses.
type Route struct {
	Action   Action
	ByName   bool     // dial an address of Request.Name that the gateway resolves, and not Request.Addr
	Request  Request  // that was decided: Name is the name of the route, zero for a route by address only
	Decision Decision // allows unless Action is Refuse, or AwaitClient where the client must speak first
	// Upstream is the proxy for the connection to the server; nil: a direct connection. With There, the proxy resolves the name.
	Upstream *UpstreamProxy
	There    bool
	// From is the source of the connection to the server, or to the proxy.
	From Source
	// Audited reports that the policy itself refuses, and the route passes only while it is audited. No credential of the gateway may be
	// used on it.
	Audited bool
	// Needs is missing evidence that counted against the connection. A caller that can get it should call Route again with it.
	Needs Need
}

// Err returns nil unless the route refuses, else a *[DeniedError].
func (rt Route) Err() error {
	if rt.Action != Refuse {
		return nil
	}
	d := rt.Decision
	d.Verdict = Deny
	return d.Err(rt.Request)
}

// Keeps reports whether a connection or request that passes by the action was may continue under rt, a later route: its action is
// the same or less strict.
func (rt Route) Keeps(was Action) bool {
	switch was {
	case AwaitServer:
		return rt.Action == AwaitServer || rt.Action == Splice
	case Intercept:
		return rt.Action == Intercept || rt.Action == Splice
	case Splice, Forward, Broker:
		return rt.Action == was
	default:
		return false
	}
}

// Hold completes the evidence for later calls of Route about a connection that uses this route. It binds the connection to the name of
// the route, or to no name. dialled is the address of the server, and owned whether that is an address of the name.
func (rt *Route) Hold(e *Evidence, dialled netip.Addr, owned Tristate) {
	if n := rt.Request.Name; n.IsZero() {
		e.Told = nil
	} else {
		e.Bound = n
	}
	e.Dialled, e.Owned = dialled, owned
}

// Route decides how a connection or a request may pass, given the evidence. It is called when the first bytes have arrived, for each
// address before it is dialled (Evidence.Dialled), and again whenever the policy changes. Missing evidence counts against the
// connection, and is returned in Needs. Like Decide, which it uses for each destination, it never fails and is safe for
// concurrent use.
//
// It ensures that unread bytes never reach a host whose requests are judged or changed. docs/security.md has the argument.
func (c *Compiled) Route(r Request, e Evidence) Route {
	if c.IsAudited() {
		return c.routeAudited(r, e)
	}
	r.Stage = StageConn
	if e.Opening == OpeningRequest || e.Opening == OpeningSecure {
		r.Stage = StageHTTP
	}
	q := &question{c, r, e}
	switch {
	case c == nil || c.domains == nil:
		return denied(r, c.Decide(r))
	case r.Protocol != TCP && r.Protocol != "": // without openings
		return q.refuse(r, name.ReasonProtocol, NeedNothing)
	}
	rt := q.byOpening()
	if rt.Action == Splice || rt.Action == AwaitServer || rt.Action == Forward || rt.Action == Broker {
		if q.arrive(&rt); rt.Action != Refuse {
			q.by(&rt)
		}
	}
	return rt
}

// question contains the arguments of Route.
type question struct {
	*Compiled
	r Request
	e Evidence
}

// byOpening decides by the first bytes of the client.
func (q *question) byOpening() Route {
	port := q.r.Port
	switch o := q.e.Opening; {
	case o == OpeningConnect:
		return q.connect()
	case o == OpeningRequest || o == OpeningSecure:
		return q.request()
	case o == OpeningTLS && !q.r.Name.IsZero():
		return q.named()
	case o == OpeningTLS:
		return q.byAddress(name.ReasonNoName, false)
	case o == OpeningUnreadable || o > OpeningSecure:
		return q.byAddress(name.ReasonProtocol, true)
	case q.headers.logins.Contains(port) && slices.ContainsFunc(q.implied(), q.logsIn):
		return q.broker(q.implied())
	case q.clientSpeaksFirst():
		return Route{Action: AwaitClient, Request: q.r, Decision: Decision{Reason: name.ReasonPeekTimeout, Version: q.version}}
	case isWeb(port):
		return q.byAddress(name.ReasonNoName, false)
	case (o == OpeningLenient || o == OpeningPartial) && q.NamesDecide(port):
		return q.byAddress(name.ReasonProtocol, true)
	}
	rt := q.byToldNames()
	if rt.Action == Splice && q.e.Opening == OpeningSilent && !q.e.Greeted && q.NamesDecide(port) && !ServerSpeaksFirst(port) {
		rt.Action = AwaitServer // otherwise a silent client could later send bytes that are not read
	}
	return rt
}

// logsIn reports whether the gateway logs in to a host on the port.
func (q *question) logsIn(n name.Name) bool { return q.headers.login(n, q.r.Port) != nil }

// broker decides about a connection that may be for a host with a login. It must be for that host only. Other names that DNS resolved to
// the address are ignored unless their requests are judged, as connections to them would be refused at an address with a login. If a
// request rule covers the host as well, the connection is refused, as it does not consist of requests.
func (q *question) broker(names []name.Name) Route {
	if !slices.ContainsFunc(names, func(n name.Name) bool { return !q.logsIn(n) && q.Intercepts(n, q.r.Port) }) {
		names = slices.DeleteFunc(slices.Clone(names), func(n name.Name) bool { return !q.logsIn(n) })
	}
	r := q.r
	r.Name = names[0]
	d := q.Decide(r)
	switch {
	case slices.ContainsFunc(names, func(n name.Name) bool { return n != names[0] }):
		r.Name = name.Name{}
		return q.refuse(r, name.ReasonNoName, NeedNothing)
	case !d.Allowed():
		return denied(r, d)
	case q.judgesRequests(r.Name, r.Port):
		return q.refuse(r, name.ReasonProtocol, NeedNothing)
	}
	return Route{Action: Broker, ByName: true, Request: r, Decision: d}
}

// clientSpeaksFirst reports whether a client that has sent no bytes, or too few, must send more first: on the ports of HTTP and
// TLS, and if the connection may be for a host with rules. After half a request line also on ports where names decide.
func (q *question) clientSpeaksFirst() bool {
	if q.e.Opening != OpeningSilent && q.e.Opening != OpeningPartial {
		return false
	}
	port := q.r.Port
	return isWeb(port) || q.e.Opening == OpeningPartial && q.NamesDecide(port) && !ServerSpeaksFirst(port) ||
		q.Intercepts(q.e.Bound, port) || slices.ContainsFunc(q.e.Told, func(n name.Name) bool { return q.Intercepts(n, port) })
}

// connect decides about a CONNECT by the requested name or address. The bytes in the tunnel are decided about later.
func (q *question) connect() Route {
	d := q.Decide(q.r)
	if !d.Allowed() {
		return q.unlessLocated(d)
	}
	return Route{Action: AwaitClient, Request: q.r, Decision: d}
}

// unlessLocated refuses a request to the explicit proxy. If the policy may allow it by the address of its name, the address is
// needed first.
func (q *question) unlessLocated(d Decision) Route {
	rt := denied(q.r, d)
	if d.Reason == name.ReasonNotAllowed && !q.r.Name.IsZero() && !q.r.Addr.IsValid() && !q.e.NoAddr && q.ResolvesOthers(q.r.Name) {
		rt.Needs = NeedAddr
	}
	return rt
}

// request decides about a request by its host.
func (q *question) request() Route {
	d, secure := q.Decide(q.r), q.e.Opening == OpeningSecure
	host, port := q.r.Name, q.r.Port
	switch {
	case !d.Allowed() && q.e.Proxied:
		return q.unlessLocated(d)
	case !d.Allowed():
		return denied(q.r, d)
	case host.IsZero() && secure:
		return q.refuse(q.r, name.ReasonAuthorityMismatch, NeedNothing)
	case q.logsIn(host):
		return q.refuse(q.r, name.ReasonProtocol, NeedNothing)
	case secure && q.headers.refuses(&q.r).Reason != "":
		d = q.headers.refuses(&q.r)
		d.Version = q.version
		return denied(q.r, d)
	case host.IsZero() && d.Reason != name.ReasonAllowedCIDR && q.NamesDecide(port):
		return q.refuse(q.r, name.ReasonNoName, NeedNothing)
	case secure || d.DialName || !q.r.Addr.IsValid() || q.Intercepts(host, port) || q.goesFar(host):
		return Route{Action: Forward, ByName: true, Request: q.r, Decision: d}
	}
	return q.asClaimed(Forward, d)
}

// named decides by the name in a ClientHello, which must be the name in the CONNECT, if there was one.
func (q *question) named() Route {
	d := q.Decide(q.r)
	switch {
	case !q.e.Bound.IsZero() && q.r.Name != q.e.Bound:
		return q.refuse(q.r, name.ReasonAuthorityMismatch, NeedNothing)
	case !d.Allowed():
		return denied(q.r, d)
	case q.logsIn(q.r.Name):
		return q.broker([]name.Name{q.r.Name})
	case q.Intercepts(q.r.Name, q.r.Port):
		return Route{Action: Intercept, ByName: true, Request: q.r, Decision: d}
	case d.DialName || !q.r.Addr.IsValid() || q.goesFar(q.r.Name):
		return Route{Action: Splice, ByName: true, Request: q.r, Decision: d}
	}
	return q.asClaimed(Splice, d)
}

// asClaimed returns a route to the requested address, which the policy allows for any name. If a host with rules may have that address,
// the name could be false: the route then goes to an address of the name, if the name may be resolved.
func (q *question) asClaimed(a Action, d Decision) Route {
	rt := Route{Action: a, Request: q.r, Decision: d}
	ruled, need := q.ruled()
	switch {
	case !ruled:
		return rt
	case q.r.Name.IsZero() || !q.resolvable(q.r.Name):
		return q.refuse(q.r, name.ReasonAuthorityMismatch, need)
	}
	rt.ByName, rt.Needs = true, need
	return rt
}

// byAddress decides about bytes that should contain a host name but do not, by the address only: a server may find another name in the bytes
// than the names from CONNECT or DNS. If names decide on the port, or with listed, the address must be in
// allowed_cidrs.
func (q *question) byAddress(lack name.Reason, listed bool) Route {
	r, bound := q.r, q.e.Bound
	r.Name = name.Name{}
	d := q.Decide(r)
	switch {
	case d.Reason == name.ReasonNotAllowed || d.Reason == name.ReasonNoName:
		if !bound.IsZero() && !r.Addr.IsValid() && !q.e.NoAddr {
			return q.refuse(r, lack, NeedAddr)
		}
		return q.refuse(r, lack, NeedNothing)
	case !d.Allowed():
		return denied(r, d)
	case d.Reason != name.ReasonAllowedCIDR && (listed || q.NamesDecide(r.Port)), q.Intercepts(bound, r.Port):
		return q.refuse(r, lack, NeedNothing)
	}
	if ruled, need := q.ruled(); ruled {
		return q.refuse(r, lack, need)
	}
	if !bound.IsZero() { // the name must be allowed as well
		named := r
		named.Name = bound
		if d := q.Decide(named); !d.Allowed() {
			return denied(named, d)
		}
	}
	return Route{Action: Splice, Request: r, Decision: d}
}

// implied returns the possible names of a connection whose bytes contain no name.
func (q *question) implied() []name.Name {
	if !q.e.Bound.IsZero() {
		return []name.Name{q.e.Bound}
	}
	return q.e.Told
}

// byToldNames decides about a protocol without host names: by the name in the CONNECT, else by the first allowed name of the DNS
// answers with the address, else by the address only.
func (q *question) byToldNames() Route {
	var refused Route
	for i, n := range q.implied() {
		r := q.r
		r.Name = n
		d := q.Decide(r)
		rt := Route{Action: Splice, ByName: d.DialName || !r.Addr.IsValid(), Request: r, Decision: d}
		switch {
		case !d.Allowed():
			rt = denied(r, d)
		case q.Intercepts(n, r.Port): // unreadable bytes must not pass where requests are judged
			rt = q.refuse(r, name.ReasonProtocol, NeedNothing)
		default:
			return rt
		}
		if i == 0 || rt.Decision.Reason != name.ReasonNotAllowed {
			refused = rt
		}
	}
	if len(q.implied()) > 0 {
		return refused
	}
	r := q.r
	r.Name = name.Name{}
	d := q.Decide(r)
	if !d.Allowed() {
		return denied(r, d)
	}
	return Route{Action: Splice, Request: r, Decision: d}
}

// arrive checks the destination address of a route when it is known: the policy must allow it, it must not belong to a host with rules
// if the bytes are unread, and it must be an address of the name if the route goes by name.
func (q *question) arrive(rt *Route) {
	at := q.e.Dialled
	if !at.IsValid() {
		if rt.ByName {
			return
		}
		at = q.r.Addr
	}
	r := rt.Request
	r.Stage, r.Addr, r.Method, r.Path = StageDial, at, "", ""
	d := q.Decide(r)
	if rt.ByName && q.isRebound(r.Name, name.CanonicalAddr(at)) {
		*rt = Route{Request: r, Decision: Decision{Reason: name.ReasonProtectedRange, Rule: ruleClusterName, Version: q.version}, Needs: rt.Needs}
		return
	}
	if !d.Allowed() {
		*rt = denied(r, d)
		return
	}
	if rt.Action != Broker && q.isUnread() && !q.bearsUnread(d, r) {
		if ruled, need := q.ruledAt(); ruled {
			*rt = q.refuse(r, name.ReasonProtocol, need)
			return
		}
	}
	if q.e.Dialled.IsValid() && (rt.ByName || !q.asked()) && q.e.Owned != Yes {
		need := rt.Needs
		if need == NeedNothing && q.e.Owned == Unknown {
			need = NeedOwned
		}
		*rt = q.refuse(r, name.ReasonPolicyChanged, need) // the dialled address does not belong to the name
	}
}

// isUnread reports whether the host of the bytes is unknown. On a port with a login it is unknown for TLS with any name as well, as
// servers without virtual hosts ignore the name.
func (q *question) isUnread() bool {
	return q.e.Opening.unread(q.r.Name) || q.e.Opening == OpeningTLS && q.headers.logins.Contains(q.r.Port)
}

// bearsUnread reports whether unread bytes may reach other hosts at the address: the policy lists the host itself, and the port is not one of
// HTTP. Other names could have been created by the box for the address. On a port with a login it is always false. If the ceiling
// judges requests on the port, the ceiling must list the host as well.
func (q *question) bearsUnread(d Decision, r Request) bool {
	switch {
	case q.headers.logins.Contains(r.Port):
		return false
	case isWeb(r.Port), !d.listsName():
		return false
	case q.ceiling == nil || !slices.ContainsFunc(q.ceiling.ruled, func(p name.Pattern) bool { return p.Port() == 0 || p.Port() == r.Port }):
		return true
	}
	return q.ceiling.decide(r).listsName()
}

// listsName reports whether an entry other than "*" allows the name of a destination.
func (d Decision) listsName() bool {
	rule := strings.TrimPrefix(d.Rule, ruleCeiling+": ")
	return d.Reason == name.ReasonAllowedDomain && rule != "*" && !strings.HasPrefix(rule, "*:")
}

// asked reports whether the dialled address is the requested one.
func (q *question) asked() bool {
	return name.CanonicalAddr(q.e.Dialled) == name.CanonicalAddr(q.r.Addr)
}

// ruled reports whether the requested address may belong to a host with rules. After another address was dialled, Evidence.Ruled is about
// that one, and the answer is yes.
func (q *question) ruled() (bool, Need) {
	if q.e.Dialled.IsValid() && !q.asked() {
		return true, NeedNothing
	}
	return q.ruledAt()
}

func (q *question) ruledAt() (bool, Need) {
	if q.e.Ruled == Unknown {
		return true, NeedRuled
	}
	return q.e.Ruled == Yes, NeedNothing
}

// resolvable reports whether queries for a name may be sent to upstream DNS servers.
func (q *question) resolvable(n name.Name) bool {
	return q.Decide(Request{Stage: StageDNS, Box: q.r.Box, Name: n}).Allowed() || q.ResolvesOthers(n)
}

// refuse returns a refusal for a reason of the data path.
func (q *question) refuse(r Request, why name.Reason, need Need) Route {
	return Route{Request: r, Decision: Decision{Reason: why, Version: q.version}, Needs: need}
}

// denied returns a refusal for a decision of the policy.
func denied(r Request, d Decision) Route { return Route{Request: r, Decision: d} }

// Opening classifies the bytes that a client has sent so far. The zero value is the most restricted one: if it may pass,
// so may all others.
type Opening uint8

// The openings.
const (
	OpeningUnreadable Opening = iota // begins like TLS, but is not a ClientHello that the gateway can parse
	OpeningTLS                       // a ClientHello; the Request has its name, if any
	OpeningLenient                   // neither TLS nor HTTP, but a lenient server may interpret it as TLS, HTTP or a PROXY header
	OpeningPartial                   // the beginning of a request line, followed by a pause
	OpeningOther                     // another protocol
	OpeningSilent                    // no bytes yet
	OpeningEnded                     // no bytes, and the client has closed its side
	OpeningConnect                   // a CONNECT to the Request's name or address, without bytes of its tunnel
	OpeningRequest                   // an HTTP request in the clear; the Request has its host, if that is a name
	OpeningSecure                    // an HTTP request inside TLS that was terminated for the Request's name
)

// unread reports whether the host of the bytes is unknown: it may be any host at the destination address.
func (o Opening) unread(name name.Name) bool {
	return o != OpeningRequest && o != OpeningSecure && (o != OpeningTLS || name.IsZero())
}

// Tristate is the answer to a question that takes time. Unknown counts as the worse of Yes and No.
type Tristate uint8

// The answers.
const (
	Unknown Tristate = iota
	No
	Yes
)

// TristateOf returns Yes or No.
func TristateOf(yes bool) Tristate {
	if yes {
		return Yes
	}
	return No
}

// Evidence is additional knowledge about the [Request] of a connection or HTTP request. The zero value is the most
// restricted one.
type Evidence struct {
	Opening Opening
	Bound   name.Name   // name in the CONNECT, which is the only possible destination of the tunnel
	Told    []name.Name // names whose DNS answers for the box contained the requested address
	Proxied bool        // the request was sent to the explicit proxy, so that its name may be resolved
	NoAddr  bool        // the name was resolved (NeedAddr) and has no allowed address
	Greeted bool        // the server has sent bytes before the client, and does not speak HTTP/2

	Dialled netip.Addr // address that is about to be dialled, or was; invalid until known
	Ruled   Tristate   // whether Dialled (Request.Addr while that is unknown) belongs to a host with rules on the port
	Owned   Tristate   // whether Dialled is an address of the name of the route

	Enforced bool // credentials may be sent, so an audit does not apply, see [Route.Settle]

	Settled bool   // By and From are set, see [Route.Settle]
	By      string // key of the upstream proxy, "" for a direct connection
	From    Source // source of connections
}

// Need is a piece of evidence that takes time to gather.
type Need uint8

// The pieces.
const (
	NeedNothing Need = iota
	NeedAddr         // Request.Addr: an address of the name (Bound, else that of the Request) for which Decide allows [Route.Request]
	NeedRuled        // Evidence.Ruled
	NeedOwned        // Evidence.Owned
)

// ServerSpeaksFirst reports whether a port belongs to a protocol in which the server sends the first bytes: FTP, SSH, SMTP,
// POP3, NNTP, IMAP, submission, MySQL, VNC.
func ServerSpeaksFirst(port uint16) bool { return slices.Contains(serverFirst, port) }

var serverFirst = []uint16{21, 22, 25, 110, 119, 143, 587, 2525, 3306, 5900}

// isWeb reports whether a port is that of HTTP or HTTPS, where the client sends the first bytes and names its host.
func isWeb(port uint16) bool { return port == name.HTTPPort || port == name.HTTPSPort }
