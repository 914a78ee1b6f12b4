package ingress

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"boxgate/audit"
	"boxgate/ingress/access"
	"boxgate/ingress/account"
	"boxgate/ingress/pages"
	"boxgate/ingress/signin"
	"boxgate/internal/openid"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/relay/h1"
)

// formMost is the largest size of a sign-in form.
const formMost = 8 << 10

// entrance serves a browser's sign-in and sign-out: the gateway's own paths, and a token in the query that is exchanged for a
// session. It reports whether the request was answered.
func (g *core) entrance(v *visit, tally *tally, now time.Time) (answered bool) {
	if strings.HasPrefix(v.path, pages.Reserved) {
		g.reserved(v, tally, now)
		return true
	}
	token, ok := signin.Parameter(v.query, signin.TokenParameter)
	if !ok || v.target.Auth.Bearer == nil || !navigates(&v.asked) {
		return false
	}
	if wait := tally.barred(now); wait > 0 {
		v.barred(wait)
		return true
	}
	if !v.target.Auth.Bearer.equal(BearerDigest(token)) {
		g.wrong(v, tally, now)
		return true
	}
	g.begin(v, audit.CredentialBearer, signin.Clean(v.path+"?"+v.query), now)
	return true
}

// reserved serves the paths that no application sees.
func (g *core) reserved(v *visit, tally *tally, now time.Time) {
	switch {
	case v.target.Auth.open():
		v.refuse(http.StatusNotFound, name.ReasonURLUnknown, "There is no such page.")
	case v.path == pages.SignInPath && v.method == http.MethodPost:
		g.signIn(v, tally)
	case v.path == pages.SignInPath && isSafe(v.method):
		v.next = signin.Next(v.query)
		g.askCredential(v, false)
	case (v.path == pages.StartPath || v.path == pages.ReturnPath) && v.method == http.MethodGet && !mayNavigate(&v.asked):
		v.unnavigated()
	case v.path == pages.StartPath && v.method == http.MethodGet:
		g.startAccount(v, now)
	case v.path == pages.ReturnPath && v.method == http.MethodGet:
		g.finishAccount(v, now)
	case v.path == pages.SignOutPath && v.method == http.MethodPost:
		g.signOut(v, now)
	case v.path == pages.SignOutPath && isSafe(v.method):
		v.allow(audit.CredentialNone)
		fields, body := pages.SignOutPage()
		v.client.reply(http.StatusOK, fields, body)
	default:
		v.refuse(http.StatusNotFound, name.ReasonURLUnknown, "There is no such page.")
	}
}

// signIn handles the sign-in form. Other sites cannot make a browser send it. The sender may be a slow stranger, so the
// request takes a place, must be complete within the time for a head, and can be cut. The checks made before the body arrived
// are repeated, and each form counts as an attempt, so that many forms in progress allow no more attempts.
func (g *core) signIn(v *visit, tally *tally) {
	if foreign(&v.asked, nil) {
		v.refuse(http.StatusForbidden, name.ReasonURLOrigin, "Another site made this request.")
		return
	}
	v.by.until = v.target.Access.ends()
	if !g.registerRequest(v) {
		return
	}
	until := v.began.Add(g.ReadHeaderTimeout)
	body, err := v.client.form(formMost, until)
	now, auth := time.Now(), v.target.Auth
	if again, found := g.URLs.Lookup(v.event.Name); !found || !again.same(v.target) || v.target.Access.expired(now) {
		v.revoked()
		return
	}
	if err != nil {
		v.formless(err, !now.Before(until))
		return
	}
	form, ok := signin.ParseForm(body)
	v.next = form.Next
	if wait := tally.attempt(now); wait > 0 {
		v.barred(wait)
		return
	}
	switch {
	case ok && form.Token != "" && auth.Bearer.equal(BearerDigest(form.Token)):
		tally.right()
		g.begin(v, audit.CredentialBearer, form.Next, now)
	case ok && form.Password != "" && !strings.Contains(form.User, ":") && auth.Basic.equal(BasicDigest(form.User, form.Password)):
		tally.right()
		g.begin(v, audit.CredentialBasic, form.Next, now)
	default:
		g.askCredential(v, true)
	}
}

// formless refuses a sign-in whose form could not be read.
func (v *visit) formless(err error, late bool) {
	v.event.Error = err.Error()
	if late {
		v.refuse(http.StatusRequestTimeout, name.ReasonBadRequest, "The form did not come in time.")
		return
	}
	v.refuse(http.StatusBadRequest, name.ReasonBadRequest, "The form could not be read.")
}

// begin signs a browser in and sends it to a path.
func (g *core) begin(v *visit, by audit.Credential, next string, now time.Time) {
	a := v.target.Access
	if !a.signsIn() {
		v.refuse(http.StatusUnauthorized, name.ReasonURLAuth, "Nobody can sign in to this public URL with a browser.", v.target.Auth.challenges()...)
		return
	}
	s := access.New(false, now, earlier(now.Add(g.SessionTime), a.Expires))
	v.allow(by)
	v.goTo(signin.Local(next, pages.Reserved), a.Sessions.SetCookie(v.target.ID, s, now))
}

// signOut ends the session of a browser, and its open requests.
func (g *core) signOut(v *visit, now time.Time) {
	if foreign(&v.asked, nil) {
		v.refuse(http.StatusForbidden, name.ReasonURLOrigin, "Another site made this request.")
		return
	}
	unset := [2]string{"Set-Cookie", access.Unset}
	s, ok := v.target.Access.session(v.target.ID, v.values("cookie"), now)
	if ok {
		if err := g.endSession(v.target, s, now); err != nil {
			v.event.Error = err.Error()
			v.refuseWith(http.StatusInternalServerError, name.ReasonInternal, "You are signed out, but that could not be stored.", unset)
			return
		}
	}
	v.allow(audit.CredentialNone)
	fields, body := pages.Notice{Status: http.StatusOK, Detail: "You are signed out of this address."}.Page()
	v.client.reply(http.StatusOK, append(fields, unset), body)
}

// endSession ends a session, and returns when all its requests have ended.
func (g *core) endSession(t Target, s access.Session, now time.Time) error {
	t.Access.Ended.Add(s, now)
	g.active.cut(func(r *request) bool { return r.target.ID == t.ID && t.Access.hasEnded(r.by) })
	if g.SignOut == nil {
		return nil
	}
	return g.SignOut(t)
}

// wrong refuses a credential, and counts it.
func (g *core) wrong(v *visit, tally *tally, now time.Time) {
	tally.failed(now)
	g.askCredential(v, true)
}

// askCredential refuses a request without a valid credential. A browser gets the sign-in page if the URL has one.
func (g *core) askCredential(v *visit, failed bool) {
	auth, a := v.target.Auth, v.target.Access
	n := pages.Notice{Status: http.StatusUnauthorized, Reason: name.ReasonURLAuth, Detail: "This public URL needs a credential."}
	challenges := auth.challenges()
	accounts := g.Accounts != nil && a != nil && a.Accounts != nil
	if v.html && a.signsIn() && (auth.Bearer != nil || auth.Basic != nil || accounts) {
		n.Form = &pages.Form{Bearer: auth.Bearer != nil, Basic: auth.Basic != nil, Provider: accounts, Next: signin.Local(v.wanted(), pages.Reserved), Failed: failed}
		challenges = challenges[:1] // with a challenge for Basic, which is last, the browser would ask before it shows the page
	}
	var fields [][2]string
	for _, c := range challenges {
		fields = append(fields, [2]string{"Www-Authenticate", c})
	}
	v.notify(n, fields...)
}

// wanted returns the path to which a browser returns after it has signed in.
func (v *visit) wanted() string {
	if v.next == "" && v.method == http.MethodGet {
		return strings.TrimSuffix(signin.Clean(v.path+"?"+v.query), "?")
	}
	return v.next
}

// allow records that the gateway itself served the request.
func (v *visit) allow(by audit.Credential) {
	v.event.Verdict, v.event.Reason, v.event.Action, v.event.Credential = policy.Allow, name.ReasonURL, audit.ActionAnswer, by
}

// navigates reports whether a request comes from a browser that opens an address, and not from a page or a program.
func navigates(q *asked) bool {
	return q.html && q.method == http.MethodGet && !opensWebSocket(q) && mayNavigate(q)
}

// mayNavigate reports whether a browser that opens an address may have sent a request: its Fetch Metadata
// (https://www.w3.org/TR/fetch-metadata/) are those of a navigation, or absent. A page can neither set nor hide these fields.
func mayNavigate(q *asked) bool {
	mode, dest := q.first("sec-fetch-mode"), q.first("sec-fetch-dest")
	return (mode == "" || mode == "navigate") && (dest == "" || dest == "document")
}

// unnavigated refuses a step of a sign-in that a page made in the background or in a frame, where the user cannot see it.
func (v *visit) unnavigated() {
	v.refuse(http.StatusForbidden, name.ReasonURLOrigin, "A sign-in takes place in a window of its own: open this address in the browser.")
}

// Accounts lets visitors sign in with their accounts at an identity provider.
type Accounts struct {
	Desk *account.Desk
	// Origin is the address of the gateway that is registered at the provider, such as https://auth.preview.example.org. It
	// must not be a public URL's. The public URLs use the same port.
	Origin string

	host string // of Origin
	port string // of Origin and of the public URLs, with its colon, such as ":8443"; "": the default
}

// exchangesMost is how many codes are exchanged at the provider at a time; see [places] for one visitor's share.
const exchangesMost = 16

// knownToProvider serves the host of Origin. It reports whether the request was for that host.
func (g *core) knownToProvider(ctx context.Context, v *visit, host string) bool {
	if g.Accounts == nil || host != g.Accounts.host {
		return false
	}
	now, tally := time.Now(), g.tallies.of("", v.network)
	switch {
	case tally.request(now):
		v.tooMany()
	case tally.barred(now) > 0:
		v.barred(tally.barred(now))
	case !mayNavigate(&v.asked):
		v.unnavigated()
	case !g.registerRequest(v): // the client has been answered
	case v.path == pages.StartPath && v.method == http.MethodGet:
		g.toProvider(ctx, v, now)
	case v.path == pages.ReturnPath && v.method == http.MethodGet:
		g.fromProvider(ctx, v, tally, now)
	default:
		v.refuse(http.StatusNotFound, name.ReasonURLUnknown, "There is no such page.")
	}
	return true
}

// startAccount begins a sign-in with an account at a public URL: it sends the browser to the host of Origin.
func (g *core) startAccount(v *visit, now time.Time) {
	a := v.target.Access
	if g.Accounts == nil || !a.signsIn() || a.Accounts == nil {
		v.refuse(http.StatusNotFound, name.ReasonURLUnknown, "There is no such page.")
		return
	}
	ticket, cookie := g.Accounts.Desk.Begin(v.target.ID, v.event.Name, signin.Local(signin.Next(v.query), pages.Reserved), now)
	v.allow(audit.CredentialNone)
	v.goTo(g.Accounts.Origin+pages.StartPath+"?ticket="+url.QueryEscape(ticket), account.SetCookie(cookie))
}

// toProvider sends a browser from the host of Origin on to the provider.
func (g *core) toProvider(ctx context.Context, v *visit, now time.Time) {
	ticket, _ := signin.Value(v.query, "ticket")
	to, cookie, err := g.Accounts.Desk.Send(ctx, ticket, now)
	if err != nil {
		g.noAccount(v, err)
		return
	}
	v.allow(audit.CredentialNone)
	v.goTo(to, account.SetCookie(cookie))
}

// fromProvider handles a browser that returns from the provider, and sends it to the URL where its sign-in began. Any client
// can make the gateway ask the provider about a code, so attempts are limited in rate and in number at a time.
func (g *core) fromProvider(ctx context.Context, v *visit, tally *tally, now time.Time) {
	if !g.exchanges.acquire("", v.network) {
		v.refuseWith(http.StatusServiceUnavailable, name.ReasonLimit, "There are too many sign-ins at this time.", [2]string{"Retry-After", "5"})
		return
	}
	defer g.exchanges.release("", v.network)
	if wait := tally.attempt(now); wait > 0 {
		v.barred(wait)
		return
	}
	t, code, err := g.Accounts.Desk.Return(ctx, v.query, account.FlowOf(v.values("cookie")), now, func(t account.Ticket, id openid.Identity) bool {
		target, ok := g.URLs.Lookup(t.Host)
		return ok && target.ID == t.URL && target.Access != nil && target.Access.Accounts.Allow(id)
	})
	if !errors.Is(err, openid.ErrCode) {
		tally.right()
	}
	if err != nil {
		g.noAccount(v, err)
		return
	}
	v.allow(audit.CredentialAccount)
	v.goTo("https://"+t.Host+g.Accounts.port+pages.ReturnPath+"?code="+url.QueryEscape(code), account.SetCookie(""))
}

// finishAccount ends a sign-in with an account at the public URL: it begins a session.
func (g *core) finishAccount(v *visit, now time.Time) {
	a := v.target.Access
	if g.Accounts == nil || !a.signsIn() || a.Accounts == nil {
		v.refuse(http.StatusNotFound, name.ReasonURLUnknown, "There is no such page.")
		return
	}
	code, _ := signin.Value(v.query, "code")
	next, until, err := g.Accounts.Desk.Finish(v.target.ID, code, account.FlowOf(v.values("cookie")), now)
	if err != nil {
		g.noAccount(v, err)
		return
	}
	s := access.New(true, now, earlier(until, a.Expires))
	v.allow(audit.CredentialAccount)
	v.goTo(signin.Local(next, pages.Reserved), account.SetCookie(""), a.Sessions.SetCookie(v.target.ID, s, now))
}

// noAccount refuses a sign-in with an account. The cause is only logged. An invalid ticket does not count as a guess at a
// credential: tickets are authenticated with 256 bits, and any web page can make a browser send one.
func (g *core) noAccount(v *visit, err error) {
	v.event.Error = err.Error()
	switch {
	case errors.Is(err, openid.ErrDown):
		v.refuseWith(http.StatusServiceUnavailable, name.ReasonURLUnavailable, "The identity provider does not answer.", [2]string{"Retry-After", "5"})
	case errors.Is(err, account.ErrTicket):
		v.refuse(http.StatusForbidden, name.ReasonURLAuth, "This sign-in was begun elsewhere, has taken too long, or is complete already.")
	default:
		v.refuse(http.StatusForbidden, name.ReasonURLAuth, "Your account does not open this address.")
	}
}

// goTo sends a browser to an address, with cookies.
func (v *visit) goTo(address string, cookies ...string) {
	fields := [][2]string{{"Location", address}, {"Cache-Control", "no-store"}, {"Referrer-Policy", "no-referrer"}}
	for _, c := range cookies {
		fields = append(fields, [2]string{"Set-Cookie", c})
	}
	v.client.reply(http.StatusSeeOther, fields, nil)
}

// checkAccounts parses the origin, which must be only a scheme and a host.
func checkAccounts(a *Accounts) error {
	if a == nil {
		return nil
	}
	u, err := url.Parse(a.Origin)
	if err != nil || u.Scheme != "https" || u.Host == "" || a.Origin != "https://"+u.Host || net.ParseIP(u.Hostname()) != nil {
		return errors.New("ingress: the origin that the identity provider knows must be https:// and a host name")
	}
	if a.host = u.Hostname(); u.Port() != "" {
		a.port = ":" + u.Port()
	}
	return nil
}

// Digest is the SHA-256 of a credential. The credentials are long and random, so a plain hash hides them.
type Digest [sha256.Size]byte

// BearerDigest is the digest of a bearer token.
func BearerDigest(token string) Digest { return sha256.Sum256([]byte("bearer\x00" + token)) }

// BasicDigest is the digest of a user name and password. The user name holds no colon (RFC 7617, 2).
func BasicDigest(user, password string) Digest {
	return sha256.Sum256([]byte("basic\x00" + user + ":" + password))
}

// Auth lists the credentials that a public URL accepts. The zero value lets no visitor in.
type Auth struct {
	Open   bool    // no credential is needed, provided that Bearer and Basic are nil
	Bearer *Digest // digest of a bearer token
	Basic  *Digest // digest of a user name and password
	// Withheld is the digest of a bearer token that the URL does not accept, but that its application must not get: it opens other ports
	// of the box. nil: none.
	Withheld *Digest
}

// open reports whether no credential is needed; the Authorization header then belongs to the application in the box.
func (a Auth) open() bool { return a.Open && a.Bearer == nil && a.Basic == nil }

// permits reports whether these values of Authorization contain a credential of the URL. There must be exactly one value,
// unless the URL is open. Credentials in the query do not count.
func (a Auth) permits(values []string) bool {
	return a.open() || len(values) == 1 && a.accepts(values[0])
}

// accepts reports whether a value of Authorization is a credential of the URL.
func (a Auth) accepts(value string) bool {
	if a.Bearer == nil && a.Basic == nil || len(value) > 4096 {
		return false
	}
	scheme, rest, _ := strings.Cut(value, " ")
	rest = strings.Trim(rest, " ")
	switch {
	case strings.EqualFold(scheme, "Bearer"):
		return a.Bearer.equal(BearerDigest(rest))
	case strings.EqualFold(scheme, "Basic"):
		plain, err := base64.StdEncoding.DecodeString(rest)
		user, password, found := strings.Cut(string(plain), ":")
		return err == nil && found && a.Basic.equal(BasicDigest(user, password))
	}
	return false
}

// knows reports whether a value of Authorization is a credential that the application must not get.
func (a Auth) knows(value string) bool {
	return a.accepts(value) || a.Withheld != nil && Auth{Bearer: a.Withheld}.accepts(value)
}

// kind returns the kind of the credential that permits has accepted.
func (a Auth) kind(values []string) audit.Credential {
	if a.open() {
		return audit.CredentialNone
	}
	if scheme, _, _ := strings.Cut(values[0], " "); strings.EqualFold(scheme, "Basic") {
		return audit.CredentialBasic
	}
	return audit.CredentialBearer
}

// equal compares in constant time. A nil digest is equal to no other.
func (d *Digest) equal(other Digest) bool {
	return d != nil && subtle.ConstantTimeCompare(d[:], other[:]) == 1
}

// same reports whether two URLs accept the same credentials.
func (a Auth) same(b Auth) bool {
	return a.Open == b.Open && sameDigest(a.Bearer, b.Bearer) && sameDigest(a.Basic, b.Basic)
}

func sameDigest(a, b *Digest) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

// challenges returns the values of WWW-Authenticate (RFC 9110, 11.6.1).
func (a Auth) challenges() []string {
	var list []string
	if a.Bearer != nil || a.Basic == nil {
		list = append(list, `Bearer realm="boxgate"`)
	}
	if a.Basic != nil {
		list = append(list, `Basic realm="boxgate", charset="UTF-8"`)
	}
	return list
}

// errForm reports a body that no browser sends as the sign-in form.
var errForm = errors.New("the form is too large or has no length")

// form implements [replier]. The connection ends after the response.
func (c *client) form(most int, until time.Time) (content []byte, err error) {
	size := c.Req.Body.Length
	if c.Req.Body.Chunked || size > int64(most) {
		return nil, errForm
	}
	c.In.Take(c.Head)
	c.Head = 0
	c.body.begin(c)
	for {
		part, n, done, err := c.body.Next(c.In.Bytes())
		if err != nil {
			return nil, err
		}
		content = append(content, part...)
		if c.In.Take(n); done {
			return content, nil
		}
		if n > 0 && len(c.In.Bytes()) > 0 {
			continue
		}
		if err := c.ReadUntil(until, c.In.Fill); err != nil {
			return nil, h1.NoEOF(err)
		}
	}
}

// form implements [replier].
func (s *stream) form(most int, until time.Time) ([]byte, error) {
	if s.Req.Body.Chunked || s.Req.Body.Length > int64(most) {
		return nil, errForm
	}
	defer time.AfterFunc(time.Until(until), s.In.CloseRead).Stop()
	return io.ReadAll(io.LimitReader(s.In, int64(most)+1))
}

// Challenge answers the HTTP-01 challenges of ACME: it returns the body for a path at a host, if there is one.
type Challenge func(host, path string) (body string, ok bool)

// redirection redirects plain HTTP requests for known URLs to HTTPS. It neither checks credentials nor forwards requests.
type redirection struct {
	httpsPort uint16
	challenge Challenge // may be nil
}

// challengePath is the prefix where issuers look for answers to HTTP-01 challenges (RFC 8555, 8.3). Requests for it are not
// redirected: issuers follow redirects, so the box could answer, and obtain its own certificates for the host.
const challengePath = "/.well-known/acme-challenge/"

// answer answers a request for a target. The gateway's parameters have crossed the network in the clear, so the redirect omits
// them.
func (r *redirection) answer(g *core, v *visit, target string) {
	host, ok := hostOf(&v.asked)
	if ok && r.challenge != nil && v.method == http.MethodGet {
		if body, ok := r.challenge(host, v.path); ok {
			v.event.Verdict, v.event.Reason, v.event.Action = policy.Allow, name.ReasonURL, audit.ActionAnswer
			v.client.reply(http.StatusOK, [][2]string{{"Content-Type", "application/octet-stream"}}, []byte(body))
			return
		}
	}
	if !ok || v.path == "*" { // no URL has this target
		v.refuse(http.StatusMisdirectedRequest, name.ReasonURLUnknown, "This address is not a public URL.")
		return
	}
	if strings.HasPrefix(v.path, challengePath) {
		v.refuse(http.StatusNotFound, name.ReasonURLUnknown, "The gateway has no such challenge.")
		return
	}
	to, ok := g.URLs.Lookup(host)
	if !ok {
		to, ok = g.targetElsewhere(host)
	}
	if !ok || to.Protocol == TCP {
		v.refuse(http.StatusNotFound, name.ReasonURLUnknown, "There is no such public URL.")
		return
	}
	v.event.Name, v.event.Box = host, to.logged()
	if g.tallies.of(to.ID, v.network).request(v.began) {
		v.tooMany()
		return
	}
	v.event.Verdict, v.event.Reason, v.event.Action = policy.Allow, name.ReasonURL, audit.ActionAnswer
	if r.httpsPort != 443 {
		host = net.JoinHostPort(host, strconv.Itoa(int(r.httpsPort)))
	}
	v.client.reply(http.StatusPermanentRedirect, [][2]string{{"Location", "https://" + host + signin.Clean(target)}, {"Cache-Control", "no-store"}}, nil)
}
