package session

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/http"
	"strings"
)

// TokenField is the field of each form with [Session.Token], and TokenHeader the field of the header for requests of scripts.
const (
	TokenField  = "token"
	TokenHeader = "X-Boxgate-Token"
)

// Limits of what a browser sends.
const (
	maxForm = 1 << 20 // bytes of a form of a page
	maxSign = 8 << 10 // bytes of the form of a sign-in
)

// token returns the token of the forms that a browser with a cookie gets.
func (s *Store) token(cookie string) string {
	mac := hmac.New(sha256.New, s.key[:])
	mac.Write([]byte(cookie))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// Protect refuses requests that no page of the dashboard can have caused: for other names of this host (DNS rebinding), of other
// sites, in frames, and forms without the token of their session. It reads the forms, so next must not limit their size.
func (s *Store) Protect(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r = bounded(w, r, s.bodyTime)
		switch {
		case !s.options.Hosts.Known(r):
			http.Error(w, "This is not a name of this dashboard; use its address or localhost, or add the name to admin.hosts.", http.StatusMisdirectedRequest)
		case !allowed(r):
			http.Error(w, "Requests of other sites are refused.", http.StatusForbidden)
		default:
			s.visit(w, r, next)
		}
	})
}

// visit serves a request of a browser, unless its caller has too many under way, or it is a form without the token of its session.
func (s *Store) visit(w http.ResponseWriter, r *http.Request, next http.Handler) {
	e := s.entryOf(r)
	if e != nil {
		n := weightOf(r)
		if !s.visits.begin(e.caller.Key, n) {
			w.Header().Set("Retry-After", "1")
			http.Error(w, "Too many pages are open with this key or account. Close some, or try again in a moment.", http.StatusTooManyRequests)
			return
		}
		defer s.visits.end(e.caller.Key, n)
	}
	if !isSafe(r) && r.URL.Path != SignInPath {
		if err := s.checkToken(w, r, e); err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
	}
	next.ServeHTTP(w, r)
}

func isSafe(r *http.Request) bool { return r.Method == http.MethodGet || r.Method == http.MethodHead }

// errToken refuses a form.
var errToken = errors.New("This form is not one of your session, or it has ended: open the page again.") //nolint:staticcheck // shown to people

// checkToken refuses a form that a page of the session of the request has not made. It reads nothing of a stranger.
func (s *Store) checkToken(w http.ResponseWriter, r *http.Request, e *entry) error {
	if e == nil || r.Method != http.MethodPost {
		return errToken
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	if r.ParseForm() != nil {
		return errToken
	}
	got := r.PostForm[TokenField]
	if header := r.Header.Values(TokenHeader); len(got) == 0 {
		got = header
	}
	if len(got) != 1 || !equal(got[0], s.token(cookieOf(r, Cookie))) {
		return errToken
	}
	return nil
}

// allowed reports whether a page of the dashboard, or the person at the browser, can have caused a request (Fetch Metadata Request
// Headers; Fetch standard, Origin). Another site may only link to the dashboard, in a whole window.
func allowed(r *http.Request) bool {
	site := r.Header.Values("Sec-Fetch-Site")
	if len(site) > 1 {
		return false
	}
	if len(site) == 1 && site[0] != "same-origin" && site[0] != "none" {
		return isSafe(r) && r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document"
	}
	if len(site) == 1 {
		dest := r.Header.Get("Sec-Fetch-Dest")
		return dest != "iframe" && dest != "frame" && dest != "object" && dest != "embed"
	}
	origin := r.Header.Values("Origin")
	switch len(origin) {
	case 0: // an old browser at a page, or no browser, which is bound by the token
		return true
	case 1:
		return strings.EqualFold(origin[0], originOf(r))
	}
	return false
}

// originOf returns the origin of the dashboard in the view of the browser.
func originOf(r *http.Request) string {
	if r.TLS != nil {
		return "https://" + r.Host
	}
	return "http://" + r.Host
}
