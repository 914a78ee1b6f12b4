package session

import (
	"crypto/sha256"
	_ "embed"
	"errors"
	"html/template"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"

	"boxgate/api"
	"boxgate/quota"
)

// Paths of [Store.Handler].
const (
	SignInPath  = "/ui/sign-in"
	SignOutPath = "/ui/sign-out"
	home        = "/ui/"
)

// formCookie is the cookie that binds the form of a sign-in to the browser that asked for it, so that no other site can sign a
// person in as somebody else.
const formCookie = "__Host-boxgate-form"

// formTime is how long the form of a sign-in may be open.
const formTime = time.Hour

// bodyTime is how long a form may take to arrive.
const bodyTime = 10 * time.Second

// Page is the page of a sign-in.
type Page struct {
	Token   string // of the form, as the field [TokenField]
	Next    string // the path to go on at, as the field "next"
	Problem string // why the person is not signed in; may be ""
	Issuer  string // the address of a link to sign in at the identity provider; may be ""
}

// Handler serves the paths below /ui/ that are about signing in. It must be behind [Store.Protect].
func (s *Store) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+SignInPath, s.showSignIn)
	mux.HandleFunc("POST "+SignInPath, s.signIn)
	mux.HandleFunc("POST "+SignOutPath, s.signOut)
	if s.options.Issuer != nil {
		mux.HandleFunc("GET "+StartPath, s.toIssuer)
		mux.HandleFunc("GET "+CallbackPath, s.fromIssuer)
	}
	return mux
}

// ToSignIn sends a browser without a session to the page of the sign-in, and then back to the page that it asked for.
func (s *Store) ToSignIn(w http.ResponseWriter, r *http.Request) {
	to := SignInPath
	if next := r.URL.RequestURI(); isSafe(r) && Local(next) != home {
		to += "?next=" + url.QueryEscape(next)
	}
	http.Redirect(w, r, to, http.StatusSeeOther)
}

// maxNext is the longest path to go on at.
const maxNext = 1 << 10

// Local returns the path, with a query, to go on at after a sign-in: next if it is a page of the dashboard, otherwise "/ui/".
func Local(next string) string {
	for i := range len(next) {
		if next[i] <= ' ' || next[i] >= 0x7f || next[i] == '\\' { // browsers drop some of these bytes, joining their neighbours
			return home
		}
	}
	to, err := url.Parse(next)
	if err != nil || len(next) > maxNext || !strings.HasPrefix(next, home) || to.Host != "" || to.Fragment != "" {
		return home
	}
	clean := path.Clean(to.Path) + "/"
	if !strings.HasPrefix(clean, home) || strings.HasPrefix(clean, SignInPath+"/") || strings.HasPrefix(clean, SignOutPath+"/") || strings.HasPrefix(clean, oidcPrefix) {
		return home
	}
	return next
}

// oidcPrefix is the prefix of the paths of a sign-in at an identity provider.
const oidcPrefix = "/ui/oidc/"

// showSignIn shows the form.
func (s *Store) showSignIn(w http.ResponseWriter, r *http.Request) {
	next := Local(r.URL.Query().Get("next"))
	if s.hasSession(w, r, next, SignInPath) {
		return
	}
	s.render(w, r, http.StatusOK, Page{Next: next})
}

// hasSession sends a browser that has signed in on to next, and one that may have, to path again: browsers hold the cookie of the session
// back when a link of another site is followed. It returns false for a browser that has not signed in.
func (s *Store) hasSession(w http.ResponseWriter, r *http.Request, next, path string) bool {
	if _, ok := s.Caller(r); ok {
		http.Redirect(w, r, next, http.StatusSeeOther)
		return true
	}
	site := r.Header.Get("Sec-Fetch-Site")
	if site != "cross-site" && site != "same-site" {
		return false
	}
	goOn(w, path+"?next="+url.QueryEscape(next))
	return true
}

// render writes the form with a token for this browser.
func (s *Store) render(w http.ResponseWriter, r *http.Request, status int, p Page) {
	cookie := cookieOf(r, formCookie)
	if cookie == "" {
		cookie = newSecret()
		setCookie(w, formCookie, cookie, formTime)
	}
	p.Token = s.token(cookie)
	if s.options.Issuer != nil {
		p.Issuer = StartPath + "?next=" + url.QueryEscape(p.Next)
	}
	w.Header().Set("Cache-Control", "no-store")
	s.options.Render(w, r, status, p)
}

// maxKey is the longest key that is looked up, as in requests to the API.
const maxKey = 512

// Texts of refused sign-ins.
const (
	badKey   = "This is not a valid API key. On the gateway's host, gateway api-key create makes one."
	badForm  = "The form was open for too long, or the browser keeps no cookies for this address. Try again; over plain HTTP use http://localhost."
	tooMany  = "Too many people are signed in. Sign out elsewhere, or try again later."
	tooOften = "This key or account has signed in too often. Try again in a minute."
	notSaved = "The audit trail cannot be written, so signing in is not possible now: make room on the disk of state_dir."
)

// signIn begins a session for a valid key.
func (s *Store) signIn(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxSign)
	err := r.ParseForm()
	p := Page{Next: Local(r.PostForm.Get("next"))}
	cookie := cookieOf(r, formCookie)
	if err != nil || cookie == "" || len(r.PostForm[TokenField]) != 1 || !equal(r.PostForm.Get(TokenField), s.token(cookie)) {
		p.Problem = badForm
		s.render(w, r, http.StatusForbidden, p)
		return
	}
	key := strings.TrimSpace(r.PostForm.Get("key"))
	var caller api.Caller
	ok := key != "" && len(key) <= maxKey
	if ok {
		caller, ok = s.options.Find(key)
	}
	if !ok {
		p.Problem = badKey
		_ = s.record(r, "POST "+SignInPath, api.Caller{}, http.StatusUnauthorized)
		s.render(w, r, http.StatusUnauthorized, p)
		return
	}
	e := &entry{caller: caller, digest: sha256.Sum256([]byte(key)), person: caller.Name, peer: s.options.Peer(r), expires: s.options.Now().Add(Lifetime)}
	s.finish(w, r, "POST "+SignInPath, e, key, p)
}

// finish begins a session, with the key that it was signed in with, if any; it ends an earlier one of the browser, and sends the browser on.
func (s *Store) finish(w http.ResponseWriter, r *http.Request, route string, e *entry, key string, p Page) {
	if s.options.Admitted != nil {
		if err := s.options.Admitted(r, e.caller.Holder()); err != nil {
			if exceeded, ok := errors.AsType[*quota.Error](err); ok {
				w.Header().Set("Retry-After", strconv.Itoa(int((exceeded.After+time.Second-1)/time.Second)))
			}
			w.Header().Set("Connection", "close")
			p.Problem = err.Error()
			s.render(w, r, http.StatusTooManyRequests, p)
			return
		}
	}
	if !s.signIns.count(e.caller.Key, s.options.Now()) {
		w.Header().Set("Retry-After", "60")
		p.Problem = tooOften
		s.render(w, r, http.StatusTooManyRequests, p)
		return
	}
	if err := s.record(r, route, e.caller, http.StatusSeeOther); err != nil {
		p.Problem = notSaved
		s.render(w, r, http.StatusServiceUnavailable, p)
		return
	}
	old := s.entryOf(r)
	cookie, ok := s.begin(e)
	if !ok {
		p.Problem = tooMany
		s.render(w, r, http.StatusServiceUnavailable, p)
		return
	}
	if old != nil {
		s.end(old)
	}
	setCookie(w, Cookie, cookie, e.expires.Sub(s.options.Now()))
	s.giveKey(w, r, e, key)
	dropCookie(w, formCookie)
	if e.issued {
		goOn(w, p.Next)
		return
	}
	http.Redirect(w, r, p.Next, http.StatusSeeOther)
}

func (s *Store) end(e *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endLocked(e)
}

func (s *Store) record(r *http.Request, route string, caller api.Caller, status int) error {
	if s.options.Record == nil {
		return nil
	}
	return s.options.Record(r, route, caller, status)
}

// signOut ends the session of the browser. [Store.Protect] has checked its token.
func (s *Store) signOut(w http.ResponseWriter, r *http.Request) {
	if e := s.entryOf(r); e != nil {
		s.end(e)
		_ = s.record(r, "POST "+SignOutPath, e.caller, http.StatusSeeOther) // the session has ended in any case
	}
	dropCookie(w, Cookie)
	s.dropKey(w, r)
	http.Redirect(w, r, SignInPath, http.StatusSeeOther)
}

//go:embed plain.html
var plainText string

var plain = template.Must(template.New("plain").Parse(plainText))

// renderPlain writes the page without the look of the dashboard.
func renderPlain(w http.ResponseWriter, _ *http.Request, status int, p Page) {
	pageHeader(w)
	w.WriteHeader(status)
	_ = plain.Execute(w, p)
}

// pageHeader sets the fields of a page that the dashboard does not render.
func pageHeader(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", "default-src 'none'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
}
