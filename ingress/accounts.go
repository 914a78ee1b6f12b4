package ingress

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/url"
	"time"

	"boxgate/audit"
	"boxgate/ingress/access"
	"boxgate/ingress/account"
	"boxgate/ingress/pages"
	"boxgate/ingress/signin"
	"boxgate/policy/name"
)

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
	t, code, err := g.Accounts.Desk.Return(ctx, v.query, account.FlowOf(v.values("cookie")), now, func(t account.Ticket, id account.Identity) bool {
		target, ok := g.URLs.Lookup(t.Host)
		return ok && target.ID == t.URL && target.Access != nil && target.Access.Accounts.Allow(id)
	})
	if !errors.Is(err, account.ErrCode) {
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
	case errors.Is(err, account.ErrDown):
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
