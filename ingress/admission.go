package ingress

import (
	"time"

	"boxgate/ingress/access"
	"boxgate/ingress/account"
	"boxgate/ingress/link"
	"boxgate/ingress/signin"
)

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
