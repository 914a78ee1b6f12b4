package ingress

import (
	"net/http"
	"strings"
	"time"

	"boxgate/audit"
	"boxgate/ingress/access"
	"boxgate/ingress/pages"
	"boxgate/ingress/signin"
	"boxgate/policy"
	"boxgate/policy/name"
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
