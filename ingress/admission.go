package ingress

import (
	"time"

	"boxgate/ingress/access"
	"boxgate/ingress/account"
	"boxgate/ingress/link"
	"boxgate/ingress/signin"
)

// Access is what a public URL has beyond its credentials. It does not change: a URL that changes gets another one. nil has
// nothing, and never ends.
type Access struct {
	Created  time.Time  // when the URL was created, for [Config.SignOut]
	Sessions access.Key // authenticates the sessions of browsers; zero: there are none
	Links    access.Key // authenticates signed URLs; zero: there are none
	Expires  time.Time  // when the URL no longer lets anybody in; zero: never
	// Origins are those, other than the URL's own, whose pages may use what browsers keep for it: a password or a session.
	Origins []string
	// Accounts says whose accounts at the identity provider it lets in; nil: nobody's.
	Accounts *account.Rules
	// Ended has the sessions that were ended before their time. It is the same for all targets of one URL; nil: there are no sessions.
	Ended *access.Ended
}

// expired reports whether the URL lets nobody in any more.
func (a *Access) expired(now time.Time) bool {
	return a != nil && !a.Expires.IsZero() && !now.Before(a.Expires)
}

// ends returns when what the URL lets in ends; zero: never.
func (a *Access) ends() time.Time {
	if a == nil {
		return time.Time{}
	}
	return a.Expires
}

// lists reports whether an origin is one of those whose pages may use what browsers keep.
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

// session returns the session that a request's cookies carry.
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

// hasEnded reports whether what let a request in has been taken back.
func (a *Access) hasEnded(by admission) bool {
	return by.session != access.Session{} && (!a.signsIn() || a.Ended.Has(by.session))
}

// link returns the signed URL that a query carries.
func (a *Access) link(url, query string) (link.Link, bool) {
	signature, sent := signin.Parameter(query, signin.LinkParameter)
	if !sent || a == nil {
		return link.Link{}, false
	}
	return link.Open(a.Links, url, signature)
}

// admission is what let a request in, and until when. Requests are cut at that moment, and when their session is ended.
type admission struct {
	session access.Session // zero: none
	until   time.Time      // zero: without end
}

// earlier returns the earlier of two moments, of which zero is never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
