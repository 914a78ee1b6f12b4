package server

import (
	"errors"
	"net/http"

	"boxgate/api"
	"boxgate/api/e2b"
	"boxgate/api/e2b/envd"
	"boxgate/api/e2b/token"
	"boxgate/api/problem"
	"boxgate/api/rest"
)

// E2B configures the dialect of E2B's SDK: its control API, whose calls are made of calls of this API, and the API that its sandboxes
// serve.
type E2B struct {
	// Maker makes the access tokens of boxes.
	Maker *token.Maker
	// Keys finds the API keys that tokens belong to.
	Keys token.Keys
	// Domain is the domain of public URLs, below which clients find the ports of boxes.
	Domain string
	// Images are the names of the images that boxes can have.
	Images []string
	// Disks are the limits of the disks of boxes by size, in bytes.
	Disks map[string]int64
	// PublicTraffic opens the ports of a new box to anyone if its creator does not choose.
	PublicTraffic bool
}

// dialect serves the dialect of E2B next to the API. A nil one serves no request.
type dialect struct {
	api       *API
	control   *e2b.Endpoints
	tokens    *token.Checker
	sandboxes *envd.Endpoints
}

// newDialect returns the dialect of an API; nil if it is off.
func newDialect(a *API) (*dialect, error) {
	if a.E2B == nil {
		return nil, nil
	}
	if a.E2B.Maker == nil || a.E2B.Keys == nil {
		return nil, errors.New("api: E2B lacks its tokens")
	}
	d := &dialect{api: a, tokens: &token.Checker{Maker: a.E2B.Maker, Keys: a.E2B.Keys, May: a}}
	d.control = e2b.New(e2b.Config{
		Own: http.HandlerFunc(d.own), Maker: a.E2B.Maker, Domain: a.E2B.Domain, Images: a.E2B.Images, Disks: a.E2B.Disks, PublicTraffic: a.E2B.PublicTraffic, Bodies: a.bodies(), Fleet: a.Elsewhere != nil, Log: a.Log,
	})
	var err error
	d.sandboxes, err = envd.New(envd.Config{
		Gate: gate{a}, Tokens: d.tokens, Boxes: a.Boxes, Processes: a.running, Files: a.Files, Watcher: a.Watcher, Bodies: a.bodies(), Log: a.Log,
	})
	return d, err
}

// serves reports whether a request is one of the dialect.
func (d *dialect) serves(r *http.Request) bool {
	return d != nil && (e2b.IsControl(r.URL.Path) || d.forSandbox(r))
}

// forSandbox reports whether a request is for the API that a sandbox serves. A signed URL lacks the header with its box, and is refused.
func (d *dialect) forSandbox(r *http.Request) bool {
	return e2b.IsSandbox(r.URL.Path) && (r.Header.Get(e2b.SandboxHeader) != "" || r.URL.Query().Has("signature"))
}

// serve serves a request of the dialect.
func (d *dialect) serve(w *rest.Writer, r *http.Request) {
	if d.forSandbox(r) {
		if err := d.api.guard.CheckOrigin(r); err != nil {
			d.control.Fail(w, r, err)
			return
		}
		if !d.sandboxElsewhere(w, r) {
			d.sandboxes.ServeHTTP(w, r)
		}
		return
	}
	original := r
	r = e2b.WithKey(r)
	r, leave, err := d.api.admit(w, r, d.control.Pattern(r))
	if err != nil {
		if status, _ := problem.StatusOf(err); status == http.StatusUnauthorized {
			err = errE2BKey
		}
		d.control.Fail(w, r, err)
		return
	}
	defer leave()
	r, end := d.api.guard.WhileKeyWorks(r)
	defer end()
	if !d.controlElsewhere(w, r, original) {
		d.control.ServeHTTP(w, r)
	}
}

// errE2BKey refuses a request without a valid key, with the name that its clients know the key by.
var errE2BKey = problem.Refuse(http.StatusUnauthorized, "E2B_API_KEY is not a valid API key of this gateway; make one with `gateway api-key create`")

// Tokens returns the checker of the access tokens of boxes. Without the dialect, it refuses every token.
func (a *API) Tokens() *token.Checker {
	if a.dialect == nil {
		return &token.Checker{}
	}
	return a.dialect.tokens
}

// Control returns a handler that serves the control API of E2B's dialect alone: nil if it is off.
func (a *API) Control() http.Handler {
	if a.dialect == nil {
		return nil
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !e2b.IsControl(r.URL.Path) {
			a.dialect.control.Fail(w, r, api.Errorf(api.ErrNotFound, "only the control API of E2B's dialect is served here"))
			return
		}
		r = r.Clone(r.Context())
		r.Header.Del(e2b.SandboxHeader) // of the paths that both APIs have
		a.ServeHTTP(w, r)
	})
}
