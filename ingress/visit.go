package ingress

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"boxgate/audit"
	"boxgate/ingress/access"
	"boxgate/ingress/account"
	"boxgate/ingress/link"
	"boxgate/ingress/pages"
	"boxgate/ingress/signin"
	"boxgate/policy"
	"boxgate/policy/name"
)

// visit is one request to a public URL, from the first check to its event.
type visit struct {
	asked
	client  replier
	cut     func() // makes the request end soon, as in [active.begin]
	began   time.Time
	event   audit.Event
	opening *audit.Opening
	target  Target
	entry   *request // registered once it is admitted
	by      admission
	next    string // path after the sign-in; "": the request's own
	byField bool   // the token was not in Authorization
	placed  bool   // it holds a place
	own     bool   // it holds a place of requests that this process serves
	handed  bool   // it holds a place of connections and requests for another host
	uses    bool   // it keeps the box awake
}

// replier answers a request.
type replier interface {
	// reply sends a complete response of the gateway's own, unless a response has begun.
	reply(status int, fields [][2]string, body []byte)
	// form reads the body of a request that is not forwarded. It fails if the body exceeds most bytes or is not complete by
	// until. The head is invalid afterwards.
	form(most int, until time.Time) ([]byte, error)
}

// begin replaces the visit, in place as it is large, by that of a new request. It opens its event, which records a denial
// unless changed. opening and entry must not be in use by another request, nor be copied or overwritten: a timer or a cut
// that has found the request may still access them. now is the time, when the head has arrived whole.
func (v *visit) begin(now time.Time, q asked, client replier, cut func(), opening *audit.Opening, entry *request) {
	*v = visit{}
	v.asked, v.client, v.cut, v.opening, v.entry, v.began = q, client, cut, opening, entry, now
	e := &v.event
	e.Time, e.Stage, e.Protocol = v.began, policy.StageURL, policy.TCP
	e.Name, e.Peer, e.Method, e.Path = q.host, q.peer, q.method, q.path
	e.Action, e.Reason = audit.ActionRefuse, name.ReasonInternal
}

// admit runs the checks in order: name, lookup, rate, credential, origin, places, wake. If it reports false, the client has
// been answered. ctx must end when the request is cut.
func (g *core) admit(ctx context.Context, v *visit, permits func(*visit) bool) bool {
	return g.check(ctx, v, permits) && g.wake(ctx, v, g.enter(v)) && g.allow(v)
}

// check runs the checks of admit up to the places. It does not block unless [core.mayWait] reports true.
func (g *core) check(ctx context.Context, v *visit, permits func(*visit) bool) bool {
	host, ok := hostOf(&v.asked)
	if !ok {
		v.refuse(http.StatusMisdirectedRequest, name.ReasonURLUnknown, "This address is not a public URL.")
		return false
	}
	v.event.Name = host
	if v.sender != nil && v.sender.left() {
		v.refuse(http.StatusServiceUnavailable, name.ReasonURLUnavailable, "The host that passes the request on has left the fleet.")
		return false
	}
	if r := g.elsewhere(v, host); r != nil {
		return g.handOver(v, r)
	}
	if g.knownToProvider(ctx, v, host) {
		return false
	}
	if v.target, ok = g.URLs.Lookup(host); !ok || v.target.Handler != nil && v.inside {
		v.refuse(http.StatusNotFound, name.ReasonURLUnknown, "There is no such public URL.")
		return false
	}
	if v.raw != (v.target.Protocol == TCP) {
		v.refuse(http.StatusMisdirectedRequest, name.ReasonURLUnknown, "This public URL does not speak HTTP.")
		return false
	}
	v.event.Box = v.target.logged()
	v.event.Addr, v.event.Port = v.target.Addr.Addr(), v.target.Addr.Port()
	if !g.authenticate(v, permits) {
		return false
	}
	if v.foreign() {
		v.refuse(http.StatusForbidden, name.ReasonURLOrigin, "Another site made this request with the password or the sign-in that your browser keeps for this URL.")
		return false
	}
	if !g.registerRequest(v) {
		return false
	}
	// A request that was looked up before the URL was revoked, and registered after open requests were cut, would
	// outlive it: look again.
	if again, ok := g.URLs.Lookup(host); !ok || !again.same(v.target) || again.Access.hasEnded(v.by) {
		v.refuse(http.StatusUnauthorized, name.ReasonURLAuth, "The public URL has just changed.")
		return false
	}
	return true
}

// mayWait reports whether the checks of a request may block: for a form, or for the identity provider.
func (g *core) mayWait(v *visit) bool {
	return strings.HasPrefix(v.path, pages.Reserved) || g.Accounts != nil && bareHost(v.host) == g.Accounts.host
}

// allow records that an admitted request is forwarded. A 502 changes that again. The gateway's own handlers admit strangers, whom they
// refuse themselves: their requests are coalesced like other answers of the gateway, and are recorded when they end.
func (g *core) allow(v *visit) bool {
	v.event.Verdict, v.event.Reason, v.event.Action = policy.Allow, name.ReasonURL, audit.ActionForward
	if v.target.Handler != nil {
		v.event.Action = audit.ActionAnswer
	} else if g.Audit != nil {
		v.opening.Begin(g.Audit, &v.event)
	}
	return true
}

// registerRequest takes a place for a request, and registers the request to be cut. If there is no place, it answers the
// client and reports false.
func (g *core) registerRequest(v *visit) bool {
	if v.placed = g.acquirePlace(v); !v.placed || !g.acquireOwn(v) {
		v.tooMany()
		return false
	}
	g.active.begin(v.entry, v.target, v.by, v.cut)
	return true
}

// acquirePlace takes a place for a request, and reports whether there was one. Boxes may take only part of the places, so that
// visitors from elsewhere get some.
func (g *core) acquirePlace(v *visit) bool {
	return g.acquirePlaceAt(v.target.Box, v.network, v.inside)
}

// acquirePlaceAt is acquirePlace for a network of visitors, or of a box if inside is set.
func (g *core) acquirePlaceAt(box policy.BoxID, network netip.Prefix, inside bool) bool {
	if inside && !g.inside.acquire(string(box), network) {
		return false
	}
	if g.places.acquire(string(box), network) {
		return true
	}
	if inside {
		g.inside.release(string(box), network)
	}
	return false
}

// leavePlace releases the place.
func (g *core) leavePlace(v *visit) { g.leavePlaceAt(v.target.Box, v.network, v.inside) }

func (g *core) leavePlaceAt(box policy.BoxID, network netip.Prefix, inside bool) {
	g.places.release(string(box), network)
	if inside {
		g.inside.release(string(box), network)
	}
}

// authenticate checks the request rate and the credential of a visitor. A request without a credential does not count as an
// attempt: browsers send many.
func (g *core) authenticate(v *visit, permits func(*visit) bool) bool {
	now, tally := v.began, g.tallies.of(v.target.ID, v.network)
	if tally.request(now) {
		v.tooMany()
		return false
	}
	if v.target.Access.expired(now) {
		v.expired()
		return false
	}
	wait := tally.barred(now)
	if elsewhere(&v.asked) && v.guesses(g.TokenFields) {
		tally = g.tallies.elsewhere(v.target.ID, v.network)
		wait = max(wait, tally.barred(now))
	}
	if wait > 0 && !v.target.Auth.open() && !v.proven(now) {
		v.barred(wait)
		return false
	}
	if g.entrance(v, tally, now) {
		return false
	}
	v.by.until = v.target.Access.ends()
	if permits(v) || v.permitsToken(g.TokenFields) || v.signedIn(now) {
		return true
	}
	if v.byLink(now) {
		return true
	}
	if len(v.values("authorization")) > 0 || v.sendsToken(g.TokenFields) {
		tally.failed(now)
	}
	v.event.Error = v.linkRefused(now)
	g.askCredential(v, false)
	return false
}

// linkRefused returns why the signed URL of a refused request does not permit it, for the decision log; "": the request has none.
func (v *visit) linkRefused(now time.Time) string {
	if _, sent := signin.Parameter(v.query, signin.LinkParameter); !sent {
		return ""
	}
	switch l, ok := v.target.Access.link(v.target.ID, v.query); {
	case !ok:
		return "the signature of its link is wrong, or of an earlier creation of the URL"
	case !now.Before(l.Expires):
		return "its signed link has expired"
	}
	return "its signed link does not permit this request"
}

// guesses reports whether a request carries a credential that could be a guess: a token or a password.
func (v *visit) guesses(fields []string) bool {
	_, token := signin.Parameter(v.query, signin.TokenParameter)
	return token || len(v.values("authorization")) > 0 || v.sendsToken(fields)
}

// sendsToken reports whether a request has one of the fields for tokens.
func (v *visit) sendsToken(fields []string) bool {
	return slices.ContainsFunc(fields, func(name string) bool { return len(v.values(name)) > 0 })
}

// permitsToken reports whether a request carries the token of its URL in one of the fields for tokens, alone.
func (v *visit) permitsToken(fields []string) bool {
	if v.target.Auth.Bearer == nil {
		return false
	}
	for _, name := range fields {
		if values := v.values(name); len(values) == 1 && v.target.Auth.Bearer.equal(BearerDigest(values[0])) {
			v.event.Credential, v.byField = audit.CredentialBearer, true
			return true
		}
	}
	return false
}

// proven reports whether a request carries a valid session or signed link. The gateway has authenticated these and they cannot
// be guessed, so they are accepted even from an address with too many wrong credentials. Invalid ones do not count as wrong
// credentials: any web page can make a browser send links, and recreating a URL invalidates its links.
func (v *visit) proven(now time.Time) bool {
	if _, ok := v.target.Access.session(v.target.ID, v.values("cookie"), now); ok {
		return true
	}
	_, ok := v.link(now)
	return ok
}

// link returns the signed URL that permits the request. Signed URLs open no WebSockets, which would outlast the one request.
func (v *visit) link(now time.Time) (l link.Link, ok bool) {
	l, ok = v.target.Access.link(v.target.ID, v.query)
	return l, ok && !opensWebSocket(&v.asked) && l.Permits(v.method, v.path, now)
}

// byLink reports whether a signed URL permits the request.
func (v *visit) byLink(now time.Time) bool {
	l, ok := v.link(now)
	if !ok {
		return false
	}
	v.by.until = earlier(v.by.until, l.Expires)
	v.event.Credential = audit.CredentialLink
	return true
}

// barred refuses a request without checking its credential: too many from its network were wrong.
func (v *visit) barred(wait time.Duration) {
	v.refuseWith(http.StatusTooManyRequests, name.ReasonLimit, "Too many wrong credentials have come from this address.",
		[2]string{"Retry-After", strconv.Itoa(int(wait/time.Second) + 1)})
}

// signedIn reports whether the browser has a valid session.
func (v *visit) signedIn(now time.Time) bool {
	s, ok := v.target.Access.session(v.target.ID, v.values("cookie"), now)
	if !ok {
		return false
	}
	v.by = admission{session: s, until: earlier(v.by.until, s.Expires)}
	if v.event.Credential = audit.CredentialSession; s.Account {
		v.event.Credential = audit.CredentialAccount
	}
	return true
}

// foreign reports whether another site made a browser send a request with a stored credential.
func (v *visit) foreign() bool {
	switch v.event.Credential {
	case audit.CredentialBasic:
		return foreign(&v.asked, v.target.Access)
	case audit.CredentialSession, audit.CredentialAccount:
		return foreign(&v.asked, v.target.Access) || foreignRead(&v.asked, v.target.Access)
	}
	return false
}

// keepsAuthorization reports whether the Authorization field belongs to the application: the gateway needs no credential, or
// accepted a different one.
func (v *visit) keepsAuthorization() bool {
	if v.byField {
		return true
	}
	switch v.event.Credential {
	case audit.CredentialNone, audit.CredentialSession, audit.CredentialAccount, audit.CredentialLink:
		return true
	}
	return false
}

// expired refuses a request to an expired URL: like a wrong credential, or like an unknown URL if it needed no credential.
func (v *visit) expired() {
	if v.target.Auth.open() {
		v.refuse(http.StatusNotFound, name.ReasonURLUnknown, "There is no such public URL.")
		return
	}
	v.refuse(http.StatusUnauthorized, name.ReasonURLAuth, "The credential of this public URL has expired.", v.target.Auth.challenges()...)
}

// record ends a visit.
func (g *core) record(v *visit) {
	if v.entry.of != nil {
		defer v.entry.unregister()
	}
	g.releaseBox(v)
	if v.placed {
		g.leavePlace(v)
	}
	g.leaveOwn(v)
	g.leaveHandOver(v)
	v.event.Duration = time.Since(v.began)
	v.opening.End(&v.event)
	if g.Audit != nil {
		g.Audit.Record(v.event)
	}
}

// panicked records and logs that serving the request panicked, without the panic's text, which might quote traffic.
func (g *core) panicked(v *visit) {
	v.event.Verdict, v.event.Reason, v.event.Action = policy.Deny, name.ReasonInternal, audit.ActionRefuse
	g.Log.Error("panic while serving a public URL", zap.String("box", string(v.target.Box)), zap.ByteString("stack", debug.Stack()))
}

// refuse answers with a page or problem details (RFC 9457).
func (v *visit) refuse(status int, reason name.Reason, detail string, challenges ...string) {
	var fields [][2]string
	for _, c := range challenges {
		fields = append(fields, [2]string{"Www-Authenticate", c})
	}
	v.refuseWith(status, reason, detail, fields...)
}

// tooMany refuses a request beyond a limit of rate or places.
func (v *visit) tooMany() {
	v.refuseWith(http.StatusTooManyRequests, name.ReasonLimit, "There are too many requests at this time.", [2]string{"Retry-After", "1"})
}

// refuseWith is refuse with further fields.
func (v *visit) refuseWith(status int, reason name.Reason, detail string, more ...[2]string) {
	v.notify(pages.Notice{Status: status, Reason: reason, Detail: detail}, more...)
}

// notify refuses with a notice: a page for a browser, problem details for a program.
func (v *visit) notify(n pages.Notice, more ...[2]string) {
	v.event.Verdict, v.event.Action, v.event.Reason = policy.Deny, audit.ActionRefuse, n.Reason
	answer := n.Problem
	if v.html {
		answer = n.Page
	}
	fields, body := answer()
	v.client.reply(n.Status, append(fields, more...), body)
}

// asleep answers that the box could not be woken, or not yet. The cause is only logged, as the client may be a stranger.
func (v *visit) asleep(err error) {
	v.event.Error = err.Error()
	if errors.Is(err, ErrDown) {
		v.refuse(http.StatusBadGateway, name.ReasonURLUnavailable, "The box has stopped because of an error. Its owner can see why, and start it again.")
		return
	}
	if errors.Is(err, ErrEnded) {
		v.refuse(http.StatusBadGateway, name.ReasonURLUnavailable, "The box has reached its end, and is paused. Its owner can resume it.")
		return
	}
	if errors.Is(err, ErrSpent) {
		v.refuse(http.StatusServiceUnavailable, name.ReasonQuota, "The box has sent and received as much as it may for now.")
		return
	}
	v.refuseWith(http.StatusServiceUnavailable, name.ReasonURLUnavailable, "The box is being started.", [2]string{"Retry-After", "5"})
}

// unavailable answers that the box cannot be reached. The cause is only logged, as the client may be a stranger.
func (v *visit) unavailable(err error) {
	v.event.Error = err.Error()
	v.refuse(http.StatusBadGateway, name.ReasonURLUnavailable, "The box does not answer on this port.")
}

// revoked answers that the URL, its credential or its box has gone during the request.
func (v *visit) revoked() {
	v.event.Error = errCut.Error()
	v.refuse(http.StatusUnauthorized, name.ReasonURLAuth, "The public URL has just changed.")
}

// refusedUnread records the refusal of a request that could not be read.
func (g *core) refusedUnread(began time.Time, why string) {
	if g.Audit == nil {
		return
	}
	g.Audit.Record(audit.Event{
		Time: began, Stage: policy.StageURL, Protocol: policy.TCP, Verdict: policy.Deny, Action: audit.ActionRefuse,
		Reason: name.ReasonBadRequest, Duration: time.Since(began), Error: why,
	})
}

// Access contains the settings of a public URL that are not credentials. It is immutable: a changed URL gets a new one. A nil
// Access has no sessions, links or accounts, and never expires.
type Access struct {
	Created  time.Time  // when the URL was created, for [Config.SignOut]
	Sessions access.Key // authenticates the sessions of browsers; zero: no sessions
	Links    access.Key // authenticates signed URLs; zero: no signed URLs
	Expires  time.Time  // when the URL stops letting visitors in; zero: never
	// Origins are further origins whose pages may use the URL's credentials that browsers keep: a password or a session.
	Origins []string
	// Accounts selects the accounts at the identity provider that are let in; nil: no accounts.
	Accounts *account.Rules
	// Ended lists the sessions that were ended early. All targets of one URL share it; nil: no sessions.
	Ended *access.Ended
}

// expired reports whether the URL no longer lets visitors in.
func (a *Access) expired(now time.Time) bool {
	return a != nil && !a.Expires.IsZero() && !now.Before(a.Expires)
}

// ends returns when admissions to the URL expire; zero: never.
func (a *Access) ends() time.Time {
	if a == nil {
		return time.Time{}
	}
	return a.Expires
}

// lists reports whether an origin is in Origins.
func (a *Access) lists(origin string) bool {
	if a != nil {
		for _, o := range a.Origins {
			if o == origin {
				return true
			}
		}
	}
	return false
}

// session returns the valid session in a request's cookies.
func (a *Access) session(url string, cookies []string, now time.Time) (access.Session, bool) {
	if !a.signsIn() {
		return access.Session{}, false
	}
	s, ok := a.Sessions.Find(url, cookies, now)
	if !ok || a.Ended.Has(s) {
		return access.Session{}, false
	}
	return s, true
}

// signsIn reports whether browsers can sign in to the URL.
func (a *Access) signsIn() bool { return a != nil && a.Ended != nil && a.Sessions != (access.Key{}) }

// hasEnded reports whether the session of an admission has been ended.
func (a *Access) hasEnded(by admission) bool {
	return by.session != access.Session{} && (!a.signsIn() || a.Ended.Has(by.session))
}

// link returns the signed URL in a query.
func (a *Access) link(url, query string) (link.Link, bool) {
	signature, sent := signin.Parameter(query, signin.LinkParameter)
	if !sent || a == nil {
		return link.Link{}, false
	}
	return link.Open(a.Links, url, signature)
}

// admission is the reason why a request was let in, and its end. A request is cut at that time, and when its session is ended.
type admission struct {
	session access.Session // zero: not by a session
	until   time.Time      // zero: no limit
}

// earlier returns the earlier of two times. Zero means never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// asked is the head of a request as the checks see it, whatever the version of HTTP. All of it is untrusted.
type asked struct {
	method  string
	host    string       // Host or :authority
	path    string       // as sent, without the query
	query   string       // as sent
	html    bool         // the client accepts HTML: it is a browser that navigates
	sni     string       // server name of the TLS connection; "" without one
	secure  bool         // the client speaks TLS
	peer    netip.Addr   // the client; zero: unknown
	network netip.Prefix // of the client; zero: unknown
	inside  bool         // the client is a box
	sender  *sender      // the host that vouches for the client; nil: it has connected to this host
	raw     bool         // the client wants a connection (raw TCP), not an HTTP request
	direct  bool         // the target is a path or an asterisk: not an absolute-form URL or an authority
	// values returns the values of a field, one for each line. name is in lower case.
	values func(name string) []string
}

// first returns the first value of a field, or "".
func (q *asked) first(name string) string {
	if values := q.values(name); len(values) > 0 {
		return values[0]
	}
	return ""
}

// hostOf returns the host of a request, in lower case without port and trailing dot. It refuses a host that other software
// could read differently: an IP address, an absolute-form target (it overrides the Host header), a plain CONNECT, and a Host
// that differs from the server name of the TLS connection.
func hostOf(q *asked) (string, bool) {
	if !q.direct {
		return "", false
	}
	host, ok := splitHost(q.host)
	if !ok {
		return "", false
	}
	if host == "" || isAddress(host) {
		return "", false
	}
	if q.sni != "" && bareHost(q.sni) != host {
		return "", false
	}
	return host, true
}

// isAddress reports whether a host is an IP address. Most hosts do not even look like one, and are not parsed.
func isAddress(host string) bool {
	if last := host[len(host)-1]; strings.IndexByte(host, ':') < 0 && (last < '0' || last > '9') && last != ']' {
		return false
	}
	_, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil
}

// splitHost is [bareHost], but it requires that the port, if any, is a number.
func splitHost(hostport string) (host string, ok bool) {
	if i := strings.LastIndexByte(hostport, ':'); i >= 0 && !strings.HasSuffix(hostport, "]") {
		if _, err := strconv.ParseUint(hostport[i+1:], 10, 16); err != nil {
			return "", false
		}
	}
	return bareHost(hostport), true
}

func bareHost(hostport string) string {
	if strings.IndexByte(hostport, ':') >= 0 {
		if h, _, err := net.SplitHostPort(hostport); err == nil {
			hostport = h
		}
	}
	return strings.ToLower(strings.TrimSuffix(hostport, "."))
}

// Target is the destination of a public URL.
type Target struct {
	ID  string // of the URL; never reused for another one
	Box policy.BoxID
	// Owner is the ID of the API key that made the URL.
	Owner string
	Addr  netip.AddrPort // of the box's port
	Auth  Auth
	// Protocol is the application's.
	Protocol Protocol
	// Host is the Host field that the application gets; "": the visitor's.
	Host string
	// TLS means that the application speaks TLS. Its certificate is not verified: the box has both, the port and the name.
	TLS bool
	// Handler serves the requests in this process, instead of the box, as [served] describes; the connections of boxes do not get there. nil: the box.
	Handler http.Handler
	// Unknown means that there is no such box: the visitor made up its ID, which is not logged. Only with a Handler.
	Unknown bool
	// Access contains further settings; nil: none are set.
	Access *Access

	remote *remote // the other host that serves the request; nil: this one
}

// logged returns the box of a target in the decision log; "": none.
func (t Target) logged() policy.BoxID {
	if t.Unknown {
		return ""
	}
	return t.Box
}

// same reports whether two lookups found the same target.
func (t Target) same(o Target) bool {
	return t.ID == o.ID && t.Box == o.Box && t.Addr == o.Addr && t.Protocol == o.Protocol && t.Auth.same(o.Auth)
}

// incarnation is the key of a connection pool: neither two URLs nor two incarnations of one share connections.
type incarnation struct {
	id   string
	box  policy.BoxID
	addr netip.AddrPort
}

func (t Target) incarnation() incarnation {
	if t.remote != nil {
		return t.remote.key()
	}
	return incarnation{t.ID, t.Box, t.Addr}
}

// awake reports whether a target needs no box that is awake: it is in this process, or on another host.
func (t Target) awake() bool { return t.Handler != nil || t.remote != nil }
