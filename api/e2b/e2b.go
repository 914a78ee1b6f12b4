// Package e2b serves the control API of E2B's SDK (npm e2b). It is a translator: each of its calls consists of calls of boxgate's own
// API, made in this process with the permissions of the caller's key, so it can do no more than they can, and the audit trail has
// their entries. docs/e2b.md lists the SDK's methods with their effects.
//
// Package token below makes the access tokens with which the SDK works in a box.
package e2b

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/api/e2b/token"
	"boxgate/api/problem"
	"boxgate/api/strict"
	"boxgate/quota"
)

// Config configures [New]. Own and Maker are required.
type Config struct {
	// Own serves the calls of boxgate's own API. It checks the permissions of the caller in the context of a request, and records it.
	Own http.Handler
	// Maker makes the access tokens of boxes.
	Maker *token.Maker
	// Domain is the domain below which clients find the ports of boxes, with a port unless that is 443.
	Domain string
	// Images are the names of the images that boxes can have, as runtimes in boxgate's API.
	Images []string
	// Disks are the limits of the disks of boxes by size, in bytes.
	Disks map[string]int64
	// PublicTraffic opens the ports of a new box to anyone if its creator does not choose.
	PublicTraffic bool
	Fleet         bool // this host is a member of a fleet
	// Bodies reads the bodies of requests.
	Bodies strict.Bodies
	Log    *zap.Logger
}

// Endpoints serves the control API. Create it with [New]. Safe for concurrent use.
type Endpoints struct {
	Config
	mux *http.ServeMux
}

// KeyHeader is the request header with the API key.
const KeyHeader = "X-Api-Key"

// SandboxHeader is the request header with the ID of the box, of requests to the API of a sandbox.
const SandboxHeader = "E2b-Sandbox-Id"

// Version is the version of the sandboxes' API that is announced. Clients decide by it which calls they make.
const Version = "0.6.4"

// clientID is a constant that old clients append to the ID of a sandbox if it is not empty. E2B's own is a constant, too.
const clientID = "boxgate"

// New returns the endpoints.
func New(c Config) *Endpoints {
	if c.Log == nil {
		c.Log = zap.NewNop()
	}
	e := &Endpoints{Config: c, mux: http.NewServeMux()}
	for _, rt := range e.routes() {
		e.mux.Handle(rt.pattern, e.serve(rt.handle))
	}
	return e
}

// handler serves a request. It returns the status and the body of the response; a nil body is no body.
type handler func(w http.ResponseWriter, r *http.Request) (status int, body any, err error)

// route is an endpoint.
type route struct {
	pattern string // of [http.ServeMux]
	handle  handler
}

// routes lists the endpoints. The versions of an endpoint differ only in fields that are optional here.
func (e *Endpoints) routes() []route {
	return append(e.refusedRoutes(), []route{
		{"GET /health", e.health},
		{"POST /sandboxes", e.create},
		{"POST /v2/sandboxes", e.create},
		{"GET /sandboxes", e.list},
		{"GET /v2/sandboxes", e.list},
		{"GET /sandboxes/{id}", e.get},
		{"DELETE /sandboxes/{id}", e.kill},
		{"POST /sandboxes/{id}/timeout", e.setTimeout},
		{"POST /sandboxes/{id}/refreshes", e.refresh},
		{"POST /sandboxes/{id}/pause", e.pause},
		{"POST /sandboxes/{id}/resume", e.resume},
		{"POST /sandboxes/{id}/connect", e.connect},
		{"POST /v2/sandboxes/{id}/connect", e.connect},
		{"PUT /sandboxes/{id}/network", e.setNetwork},
		{"GET /sandboxes/{id}/metrics", e.metrics},
		{"GET /sandboxes/metrics", e.allMetrics},
		{"GET /sandboxes/{id}/logs", e.logs},
		{"GET /v2/sandboxes/{id}/logs", e.logsV2},
		{"POST /sandboxes/{id}/snapshots", e.snapshot},
		{"POST /sandboxes/{id}/fork", e.fork},
		{"GET /snapshots", e.listSnapshots},
		{"GET /templates", e.listTemplates},
		{"GET /v2/templates", e.listTemplates},
		{"GET /templates/{template}", e.getTemplate},
		{"DELETE /templates/{template}", e.deleteTemplate},
		{"GET /templates/{template}/{part}", e.getPart}, // aliases/{alias}, and {template}/tags
		{"GET /secrets", e.listSecrets},
		{"GET /secrets/{secret}", e.getSecret},
		{"POST /secrets", e.createSecret},
		{"POST /secrets/{secret}", e.updateSecret},
		{"DELETE /secrets/{secret}", e.deleteSecret},
	}...)
}

// roots are the first parts of the paths of the control API, below a version.
var roots = map[string]bool{"sandboxes": true, "templates": true, "snapshots": true, "secrets": true, "volumes": true, "volumecontent": true, "teams": true}

// IsControl reports whether a path belongs to the control API. No path of boxgate's own API does.
func IsControl(path string) bool {
	path = strings.TrimPrefix(path, "/")
	for _, version := range []string{"v2/", "v3/"} {
		if below, ok := strings.CutPrefix(path, version); ok {
			first, _, _ := strings.Cut(below, "/")
			return first == "sandboxes" || first == "templates"
		}
	}
	first, rest, below := strings.Cut(path, "/")
	return roots[first] || first == "health" && !below && rest == ""
}

// IsSandbox reports whether a path belongs to the API that a sandbox serves.
func IsSandbox(path string) bool {
	switch path {
	case "/health", "/envs", "/metrics", "/init", "/files", "/files/compose":
		return true
	}
	return strings.HasPrefix(path, "/process.Process/") || strings.HasPrefix(path, "/filesystem.Filesystem/")
}

// WithKey returns a request with its API key in the header of boxgate's own API. A request with two different keys is refused.
func WithKey(r *http.Request) *http.Request {
	keys := r.Header.Values(KeyHeader)
	if len(keys) == 0 {
		return r
	}
	r = r.Clone(r.Context())
	for _, key := range keys {
		r.Header.Add(api.KeyHeader, key)
	}
	r.Header.Del(KeyHeader)
	return r
}

// Pattern returns the pattern of the endpoint of a request, "" for an unknown one.
func (e *Endpoints) Pattern(r *http.Request) string {
	_, pattern := e.mux.Handler(r)
	return pattern
}

// ServeHTTP serves a request whose caller is in its context.
func (e *Endpoints) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if e.Pattern(r) == "" || strings.Contains(r.URL.Path, "//") {
		e.Fail(w, r, api.Errorf(api.ErrNotFound, "%s %s is not part of E2B's API as this gateway serves it; see docs/e2b.md", problem.Clip(r.Method), problem.Clip(r.URL.Path)))
		return
	}
	e.mux.ServeHTTP(w, r)
}

// serve returns an http.Handler for an endpoint.
func (e *Endpoints) serve(h handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status, body, err := h(w, r)
		if err != nil {
			e.Fail(w, r, err)
			return
		}
		writeJSON(w, status, body)
	})
}

// errorView is the body of every failure.
type errorView struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

// viewOf returns the form of an error in E2B's API: a body or a query that is refused has the status 400 there.
func viewOf(err error) errorView {
	status, body := problem.StatusOf(err)
	if own, ok := errors.AsType[*failure](err); ok {
		status, body.Error = own.status, own.message
	}
	if status == http.StatusUnprocessableEntity {
		status = http.StatusBadRequest
	}
	return errorView{status, body.Error}
}

// Fail answers a request with an error.
func (e *Endpoints) Fail(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil && errors.Is(err, r.Context().Err()) {
		return
	}
	view := viewOf(err)
	if view.Code == http.StatusInternalServerError {
		if _, own := errors.AsType[*failure](err); !own { // those have been logged
			e.Log.Error("a request of E2B's dialect failed", zap.String("method", r.Method), zap.String("path", r.URL.Path), zap.Error(err))
		}
	}
	if exceeded, ok := errors.AsType[*quota.Error](err); ok {
		w.Header().Set("Retry-After", strconv.Itoa(int((exceeded.After+time.Second-1)/time.Second)))
	} else if own, ok := errors.AsType[*failure](err); ok && own.retry != "" {
		w.Header().Set("Retry-After", own.retry)
	}
	writeJSON(w, view.Code, view)
}

// writeJSON writes a response. A nil body is an absent one.
func writeJSON(w http.ResponseWriter, status int, body any) {
	if body == nil {
		w.WriteHeader(status)
		return
	}
	data, err := json.Marshal(body)
	if err != nil {
		status, data = http.StatusInternalServerError, []byte(`{"code":500,"message":"internal error"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	w.WriteHeader(status)
	_, _ = w.Write(data)
}

// health serves the probe of the control API.
func (e *Endpoints) health(http.ResponseWriter, *http.Request) (int, any, error) {
	return http.StatusOK, "OK", nil
}
