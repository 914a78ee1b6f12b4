// Package ui serves the dashboard: pages about the boxes for people with a browser, below /ui/ of the admin listener.
//
// The dashboard is a client of the admin API in the same process. Each page sends its requests to the API's own handler as
// the caller who has signed in, so permissions, quotas, checks of bodies and the audit trail are those of the API, and no
// page can do anything that the API would refuse to this caller.
//
// Names, hosts, paths and reasons are written by boxes and visitors. They reach pages through html/template only, and
// scripts only as text nodes; characters that are invisible or change the direction of text are shown as escapes.
package ui

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/api/stream"
	"boxgate/ui/session"
)

// Prefix is the path of the dashboard.
const Prefix = "/ui/"

// contentPolicy is the Content-Security-Policy of every response: only the dashboard's own scripts, styles and images,
// in no frame, and no script from a string.
const contentPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; " +
	"base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// sendTime is how long a browser may take to receive a page, or one batch of a stream.
const sendTime = 30 * time.Second

// Options configure a [UI]. API and Sessions are required.
type Options struct {
	API      http.Handler   // the admin API
	Sessions *session.Store // the browsers that have signed in; it also refuses requests of other sites
	Fleet    bool           // the gateway is in a fleet, which has a page
	Log      *zap.Logger    // nil: no log
}

// UI is the http.Handler of the dashboard. Safe for concurrent use.
type UI struct {
	Options
	protected http.Handler // the pages
}

// New makes the dashboard.
func New(o Options) *UI {
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	u, mux := &UI{Options: o}, http.NewServeMux()
	u.protected = o.Sessions.Protect(mux)
	mux.HandleFunc("GET "+Prefix+"assets/{name}", serveAsset)
	for _, path := range []string{"sign-in", "sign-out", "oidc/"} {
		mux.Handle(Prefix+path, o.Sessions.Handler())
	}
	for _, rt := range u.routes() {
		mux.HandleFunc(rt.pattern, func(w http.ResponseWriter, r *http.Request) { u.servePage(w, r, rt) })
	}
	mux.HandleFunc(Prefix, func(w http.ResponseWriter, r *http.Request) {
		u.servePage(w, r, route{serve: func(*visit) (view, error) { return view{}, errNoPage }})
	})
	return u
}

// routes lists the pages. Each file of pages has a function that lists its own.
func (u *UI) routes() (list []route) {
	for _, pages := range [][]route{
		u.boxesRoutes(),
		u.boxRoutes(),
		u.decisionRoutes(),
		u.pagesRoutes(),
		u.allowRoutes(),
		u.policyRoutes(),
		u.historyRoutes(),
	} {
		list = append(list, pages...)
	}
	return list
}

// route is a page, or the receiver of a form.
type route struct {
	pattern string // of [http.ServeMux]
	serve   func(*visit) (view, error)
}

// errNoPage answers requests for an unknown path.
var errNoPage = &api.ResponseError{Status: http.StatusNotFound, Message: "There is no such page."}

// ServeHTTP implements [http.Handler].
func (u *UI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", contentPolicy)
	h.Set("X-Content-Type-Options", "nosniff")
	// Not no-referrer, with which the Origin of a form would be "null". No other site receives a referrer either way.
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Cache-Control", "no-store")
	u.protected.ServeHTTP(w, r)
}

// servePage serves a page to a caller who has signed in, and sends others to the sign-in. Forms have been checked to be
// of the caller's session.
func (u *UI) servePage(w http.ResponseWriter, r *http.Request, rt route) {
	s, ok := u.Sessions.Caller(r)
	as, still := u.Sessions.With(r)
	if !ok || !still {
		u.toSignIn(w, r)
		return
	}
	ctx, cancel := context.WithCancel(as.Context())
	defer cancel()
	v := &visit{ui: u, w: w, r: as.WithContext(ctx), session: s, client: api.NewClientOver(&inProcess{api: u.API, from: r})}
	page, err := rt.serve(v)
	switch {
	case err != nil && r.Context().Err() != nil: // the browser has left
	case err != nil:
		u.fail(w, r, s, err)
	case page.written:
	case page.location != "":
		http.Redirect(w, r, page.location, http.StatusSeeOther)
	default:
		u.render(w, r, s, page)
	}
}

// toSignIn sends a browser to the sign-in, which returns to the page. Streams cannot follow it.
func (u *UI) toSignIn(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Accept") == stream.EventStream {
		http.Error(w, "Sign in again.", http.StatusUnauthorized)
		return
	}
	u.Sessions.ToSignIn(w, r)
}

// SignIn writes the page of the sign-in, for [session.Options].
func (u *UI) SignIn(w http.ResponseWriter, _ *http.Request, status int, p session.Page) {
	u.write(w, "sign-in", status, document{Title: "Sign in", Head: "Sign in – boxgate", Data: p})
}

// fail answers with the page of an error.
func (u *UI) fail(w http.ResponseWriter, r *http.Request, s session.Session, err error) {
	refused, ok := errors.AsType[*api.ResponseError](err)
	if !ok {
		u.Log.Error("a page of the dashboard failed", zap.String("path", r.URL.Path), zap.Error(err))
		refused = &api.ResponseError{Status: http.StatusInternalServerError, Message: "The page cannot be shown. The log of the gateway has the reason."}
	}
	if refused.Status == http.StatusUnauthorized {
		u.toSignIn(w, r)
		return
	}
	u.render(w, r, s, view{status: refused.Status, name: "problem", title: problemTitle(refused.Status), data: refused})
}

// problemTitle returns the heading of the page of an error.
func problemTitle(status int) string {
	switch status {
	case http.StatusNotFound:
		return "Not found"
	case http.StatusForbidden:
		return "Not permitted"
	case http.StatusPreconditionFailed, http.StatusConflict:
		return "Changed elsewhere"
	}
	return cmp.Or(http.StatusText(status), "Status "+strconv.Itoa(status))
}

// visit is a request for a page by a caller who has signed in.
type visit struct {
	ui      *UI
	w       http.ResponseWriter
	r       *http.Request
	session session.Session
	client  *api.Client
}

// get reads a resource of the API as the caller.
func (v *visit) get(path string, out any) error { return v.client.Get(v.r.Context(), path, out) }

// optional is get for a part of a page that the caller may not see. It reports whether the part was read.
func (v *visit) optional(path string, out any) (bool, error) {
	err := v.get(path, out)
	if refused, ok := errors.AsType[*api.ResponseError](err); ok && (refused.Status == http.StatusForbidden || refused.Status == http.StatusConflict) {
		return false, nil
	}
	return err == nil, err
}

// view is the answer to a visit: a page, or with location a redirect.
type view struct {
	name     string // template
	title    string // of the page, without the names of the box and of the product
	box      *boxHead
	section  string // the entry of the navigation that is current
	status   int    // 0: 200
	data     any
	location string // path to redirect to after a form
	written  bool   // the page has written its own response
}
