package policy

import (
	"net/netip"
	"slices"
	"strings"

	"boxgate/policy/name"
)

// Action is what is to be done with a connection or a request. The zero value is Refuse.
type Action uint8

// The actions.
const (
	Refuse      Action = iota
	AwaitClient        // nothing passes and nothing is dialled before the client has said more: ask again then
	AwaitServer        // the server is dialled, but told nothing; if it speaks first, or the client does, ask again
	Splice             // the bytes pass unread
	Intercept          // TLS is terminated, and each request inside is routed by itself
	Forward            // the request is forwarded
	Broker             // the gateway logs in to the server in the place of the box, see [rule.Login]
)

// Route is the answer to how a connection, or a request in it, may pass. The zero value refuses.
type Route struct {
	Action   Action
	ByName   bool     // to an address of Request.Name that the gateway finds out, whatever address was asked for; else to Request.Addr
	Request  Request  // as it was decided: Name is the name that the route goes by, zero for the address alone
	Decision Decision // why; allows unless Action is Refuse, or AwaitClient where the client must speak first
	// Upstream is the proxy by which the server is connected to; nil: none. There says that the proxy is given the name, and
	// finds out its address.
	Upstream *UpstreamProxy
	There    bool
	// From is from where the connection to the server, or to the proxy, leaves.
	From Source
	// Needs is the piece of evidence whose lack counted against the connection. Whoever can have it asks again with it.
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

// Keeps reports whether what passes in one way may go on under a route that was found later: in the same way, or in one
// that asks for less.
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

// Held returns the evidence by which what passes under the route is judged from now on: it is held to the name that it went
// by, or to none. dialled is the address that it reached, or is about to, and owned whether that is known to be the name's.
func (rt Route) Held(e Evidence, dialled netip.Addr, owned Answer) Evidence {
	if n := rt.Request.Name; n.IsZero() {
		e.Told = nil
	} else {
		e.Bound = n
	}
	e.Dialled, e.Owned = dialled, owned
	return e
}

// Route decides how a connection or a request may pass, from what is known of it. It is the one answer to that question:
// when the first bytes are there, for each address that is about to be dialled (Evidence.Dialled), and again whenever the
// policy changes. What is unknown counts against the connection, and Needs says what it was. Like Decide, which it
// asks about each destination, it never fails and is safe for concurrent use.
//
// What it ensures is that bytes nobody reads never reach a host whose requests are judged or changed; docs/security.md has
// the argument.
func (c *Compiled) Route(r Request, e Evidence) Route {
	r.Stage = StageConn
	if e.Opening == OpeningRequest || e.Opening == OpeningSecure {
		r.Stage = StageHTTP
	}
	q := &question{c, r, e}
	switch {
	case c == nil || c.domains == nil:
		return denied(r, c.Decide(r))
	case r.Protocol != TCP && r.Protocol != "": // which have no openings
		return q.refuse(r, name.ReasonProtocol, NeedNothing)
	}
	rt := q.byOpening()
	if rt.Action == Splice || rt.Action == AwaitServer || rt.Action == Forward || rt.Action == Broker {
		if rt = q.arrive(rt); rt.Action != Refuse {
			return q.by(rt)
		}
	}
	return rt
}

// question is what Route was asked.
type question struct {
	*Compiled
	r Request
	e Evidence
}

// byOpening decides by what the client has said.
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
		rt.Action = AwaitServer // or silence would be a way to speak later and unread
	}
	return rt
}

// logsIn reports whether the gateway logs in to a host on the port.
func (q *question) logsIn(n name.Name) bool { return q.headers.login(n, q.r.Port) != nil }

// broker decides a connection that may be for a host that the gateway logs in to: it must be for no other one. Other names that the box
// was told for the address do not count, unless their requests are judged: what is for them would not pass at an address with a login.
// Where a request rule covers the host as well, what is no request is refused as everywhere.
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

// clientSpeaksFirst reports whether a client that has said nothing, or not enough, must go on before anything passes: on
// the ports of HTTP and TLS, and where this may be for a host with rules. With half a request line also where names decide.
func (q *question) clientSpeaksFirst() bool {
	if q.e.Opening != OpeningSilent && q.e.Opening != OpeningPartial {
		return false
	}
	port := q.r.Port
	return isWeb(port) || q.e.Opening == OpeningPartial && q.NamesDecide(port) && !ServerSpeaksFirst(port) ||
		q.Intercepts(q.e.Bound, port) || slices.ContainsFunc(q.e.Told, func(n name.Name) bool { return q.Intercepts(n, port) })
}

// connect decides whether there may be a tunnel at all: by the name, or the address, that was asked for.
func (q *question) connect() Route {
	d := q.Decide(q.r)
	if !d.Allowed() {
		return q.unlessLocated(d)
	}
	return Route{Action: AwaitClient, Request: q.r, Decision: d}
}

// unlessLocated refuses what was asked of a proxy. Where the policy allows by address, not by name, and lets names be
// resolved for that, an address of the name is needed first.
func (q *question) unlessLocated(d Decision) Route {
	rt := denied(q.r, d)
	if d.Reason == name.ReasonNotAllowed && !q.r.Name.IsZero() && !q.r.Addr.IsValid() && !q.e.NoAddr && q.ResolvesOthers(q.r.Name) {
		rt.Needs = NeedAddr
	}
	return rt
}

// request decides about a request by the host it is for.
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

// named decides by the name in a ClientHello, which must be the one that CONNECT gave, if it gave one.
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

// asClaimed lets pass to the address that was asked for, which the policy allows whatever the name. Where a host with rules
// may be there the name could be a mere claim, so it goes to the owner of the name, if that may be looked up.
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

// byAddress decides what should carry a name and carries none, by the address alone: neither what CONNECT nor what DNS said
// about the address stands in for the name of a host that a server may find in the bytes. Where names decide on the port,
// or listed says so, the address must be in allowed_cidrs.
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
	if !bound.IsZero() { // it goes by the address, but its name must be allowed as well
		named := r
		named.Name = bound
		if d := q.Decide(named); !d.Allowed() {
			return denied(named, d)
		}
	}
	return Route{Action: Splice, Request: r, Decision: d}
}

// implied returns the names that a connection may be for when its bytes do not say.
func (q *question) implied() []name.Name {
	if !q.e.Bound.IsZero() {
		return []name.Name{q.e.Bound}
	}
	return q.e.Told
}

// byToldNames decides a protocol of its own, which names no host: by the name that CONNECT gave, else by the first that is
// allowed of those for which the box was told the address, else by the address alone.
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
		case q.Intercepts(n, r.Port): // what cannot be read must not pass where requests are judged
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

// arrive judges the address that the bytes reach, once it is known: the policy must allow it; it must not be that of a host
// with rules, if nobody reads the bytes; and it must be one of the name, if the route goes by the name.
func (q *question) arrive(rt Route) Route {
	at := q.e.Dialled
	if !at.IsValid() {
		if rt.ByName {
			return rt
		}
		at = q.r.Addr
	}
	r := rt.Request
	r.Stage, r.Addr, r.Method, r.Path = StageDial, at, "", ""
	d := q.Decide(r)
	if !d.Allowed() {
		return denied(r, d)
	}
	if rt.Action != Broker && q.isUnread() && !q.bearsUnread(d, r) {
		if ruled, need := q.ruledAt(); ruled {
			return q.refuse(r, name.ReasonProtocol, need)
		}
	}
	if q.e.Dialled.IsValid() && (rt.ByName || !q.asked()) && q.e.Owned != Yes {
		need := rt.Needs
		if need == NeedNothing && q.e.Owned == Unknown {
			need = NeedOwned
		}
		return q.refuse(r, name.ReasonPolicyChanged, need) // it went where it was asked to, by a name that does not lead there
	}
	return rt
}

// isUnread reports whether nobody knows which host the bytes are for. Where the gateway logs in to a host on the port, that
// is so for TLS with any name: servers that are reached by their address alone do not look at it.
func (q *question) isUnread() bool {
	return q.e.Opening.unread(q.r.Name) || q.e.Opening == OpeningTLS && q.headers.logins.Contains(q.r.Port)
}

// bearsUnread reports whether unread bytes may go to whoever else is at the address: the policy names the host itself, on a
// port where names are not the rule. Any other name may be one that the box made for the address. It is never so where the
// gateway logs in to a host on the port; and where the ceiling judges requests on it, the ceiling must name the host as well.
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

// listsName reports whether a destination is allowed because an entry other than "*" lists its name.
func (d Decision) listsName() bool {
	rule := strings.TrimPrefix(d.Rule, ruleCeiling+": ")
	return d.Reason == name.ReasonAllowedDomain && rule != "*" && !strings.HasPrefix(rule, "*:")
}

// asked reports whether the address that was dialled is the one that was asked for.
func (q *question) asked() bool {
	return name.CanonicalAddr(q.e.Dialled) == name.CanonicalAddr(q.r.Addr)
}

// ruled reports whether the address that was asked for may be that of a host with rules. Once another is dialled nobody asks
// about it any more.
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

// resolvable reports whether a name may be asked of the upstream DNS servers.
func (q *question) resolvable(n name.Name) bool {
	return q.Decide(Request{Stage: StageDNS, Box: q.r.Box, Name: n}).Allowed() || q.ResolvesOthers(n)
}

// refuse is the answer for a reason of the data path.
func (q *question) refuse(r Request, why name.Reason, need Need) Route {
	return Route{Request: r, Decision: Decision{Reason: why, Version: q.version}, Needs: need}
}

// denied is the answer where the policy denies a destination.
func denied(r Request, d Decision) Route { return Route{Request: r, Decision: d} }

// Opening is what a client has said so far, as far as it matters to where its bytes may go. The zero value is the
// narrowest: no other is refused where it passes.
type Opening uint8

// The openings.
const (
	OpeningUnreadable Opening = iota // begins like TLS, but is no ClientHello that is understood here
	OpeningTLS                       // a ClientHello; the Request has its name, if it gives one
	OpeningLenient                   // neither TLS nor HTTP here, but a lenient server may read TLS, HTTP or a PROXY header in it
	OpeningPartial                   // the beginning of a request line, and then a pause
	OpeningOther                     // another protocol
	OpeningSilent                    // nothing yet
	OpeningEnded                     // nothing, and the client will send nothing more
	OpeningConnect                   // a CONNECT to the Request's name or address; nothing of what comes in its tunnel
	OpeningRequest                   // an HTTP request in the clear; the Request has its host, if that is a name
	OpeningSecure                    // an HTTP request inside TLS that was terminated for the Request's name
)

// unread reports whether nobody knows which host the bytes are for: they may be for any at the address they reach.
func (o Opening) unread(name name.Name) bool {
	return o != OpeningRequest && o != OpeningSecure && (o != OpeningTLS || name.IsZero())
}

// Answer is what is known of something that takes time to find out. The zero value is counted as the worse of the others.
type Answer uint8

// The answers.
const (
	Unknown Answer = iota
	No
	Yes
)

// AnswerOf returns Yes or No.
func AnswerOf(yes bool) Answer {
	if yes {
		return Yes
	}
	return No
}

// Evidence is what is known of a connection, or of a request in it, besides what its [Request] says. The zero value is
// the narrowest.
type Evidence struct {
	Opening Opening
	Bound   name.Name   // the name that a CONNECT gave: the tunnel leads there or nowhere
	Told    []name.Name // the names for which DNS told the box the address it asks for
	Proxied bool        // the request was made to a proxy: where it gives a name, an address may be looked up for it
	NoAddr  bool        // an address was looked for (NeedAddr) and there is none
	Greeted bool        // the server has spoken before the client, and does not speak HTTP/2

	Dialled netip.Addr // the address that is about to be dialled, or was; invalid until it is known
	Ruled   Answer     // whether Dialled, before it is known Request.Addr, is the address of a host with rules on the port
	Owned   Answer     // whether Dialled is an address of the name that the route goes by

	Settled bool   // the way is known, see [Route.Settle]:
	By      string // the key of the upstream proxy, "" for none
	From    Source // from where connections leave
}

// Need is a piece of evidence that takes time to gather.
type Need uint8

// The pieces.
const (
	NeedNothing Need = iota
	NeedAddr         // Request.Addr: one of the name's (Bound, else that of the Request) with which Decide allows [Route.Request]
	NeedRuled        // Evidence.Ruled
	NeedOwned        // Evidence.Owned
)

// ServerSpeaksFirst reports whether a port is that of a protocol in which the server greets: FTP, SSH, SMTP, POP3, NNTP,
// IMAP, submission, MySQL, VNC.
func ServerSpeaksFirst(port uint16) bool { return slices.Contains(serverFirst, port) }

var serverFirst = []uint16{21, 22, 25, 110, 119, 143, 587, 2525, 3306, 5900}

// isWeb reports whether a port is one of those of HTTP and HTTPS, where the client speaks first and names its host.
func isWeb(port uint16) bool { return port == name.HTTPPort || port == name.HTTPSPort }
