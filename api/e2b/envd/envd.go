// Package envd serves the API that a sandbox of E2B has: its processes and files. It translates the calls of E2B's SDK to boxgate's own
// processes ([boxgate/api/process]) and files ([boxgate/api/files]), and keeps no state of its own but the watchers that clients poll.
//
// Calls carry the access token of the box, or a signature for one file.
package envd

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"path"
	"strings"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/api/e2b/token"
	"boxgate/api/files"
	"boxgate/api/problem"
	"boxgate/api/process"
	"boxgate/api/rest"
	"boxgate/api/strict"
	"boxgate/internal/required"
	"boxgate/policy"
)

// The headers of requests.
const (
	// SandboxHeader has the ID of the box, where the host name has none.
	SandboxHeader = "E2b-Sandbox-Id"
	tokenHeader   = "X-Access-Token"
)

// Call is an authenticated call, which does the work of one endpoint of boxgate's own API.
type Call struct {
	Caller api.Caller
	Valid  func() bool // whether its credential is still valid
	Box    policy.BoxID
	Route  string // ID of the endpoint, whose permissions, quotas and records apply
	Name   string // method and path, for the audit trail
}

// Gate admits calls; implemented by [boxgate/api/server.API].
type Gate interface {
	// Begin checks the permissions and quotas of a call and records it. The context of the returned request has the caller, and ends when
	// the credential of the call is no longer valid. end must be called with the result.
	Begin(r *http.Request, c Call) (_ *http.Request, end func(error), err error)
	// Refused records a call without a valid credential.
	Refused(r *http.Request, name string, err error)
}

// Tokens checks credentials; implemented by [token.Checker].
type Tokens interface {
	Check(ctx context.Context, box policy.BoxID, token string) (token.Access, bool)
	CheckSignature(ctx context.Context, box policy.BoxID, s token.Signed, now time.Time) (token.Access, bool)
	Valid(ctx context.Context, a token.Access) bool
	// Made reports whether a valid API key has made this token for a box, which need not exist.
	Made(box policy.BoxID, token string) bool
}

// Config configures [New]. All fields but Watcher are required.
type Config struct {
	Gate      Gate
	Tokens    Tokens
	Boxes     rest.Finder
	Processes *process.Service
	Files     files.Host
	Watcher   files.Watcher // nil: files are not watched
	Bodies    strict.Bodies
	Log       *zap.Logger
}

// Endpoints serves the API of sandboxes. Create it with [New]. Safe for concurrent use.
type Endpoints struct {
	cfg      Config
	rpcs     map[string]rpc
	watchers watchers
}

// New makes the endpoints.
func New(cfg Config) (*Endpoints, error) {
	must := cfg
	if must.Watcher == nil {
		must.Watcher = noWatcher{}
	}
	if err := required.Fields(must); err != nil {
		return nil, err
	}
	cfg.Watcher = must.Watcher
	e := &Endpoints{cfg: cfg, rpcs: map[string]rpc{}}
	e.addProcess()
	e.addFilesystem()
	e.addWatchers()
	return e, nil
}

// noWatcher refuses every watch.
type noWatcher struct{}

// WatchFiles implements [files.Watcher].
func (noWatcher) WatchFiles(context.Context, policy.BoxID, string, files.WatchOptions, func([]files.Event) error) error {
	return api.Errorf(api.ErrNotSupported, "files are not watched by this gateway")
}

// ServeHTTP serves a request that names its box in [SandboxHeader].
func (e *Endpoints) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get(SandboxHeader) == "" {
		e.Fail(w, r, problem.Refuse(http.StatusUnauthorized, "a signed URL needs the ID of the box in its host name: use E2B_DOMAIN instead of E2B_SANDBOX_URL"))
		return
	}
	e.ServeBox(w, r, r.Header.Get(SandboxHeader))
}

// ServeBox serves a request for the box with this ID, whatever box its header names.
func (e *Endpoints) ServeBox(w http.ResponseWriter, r *http.Request, id string) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	route, name, ok := e.routeOf(r)
	if !ok {
		e.Fail(w, r, api.Errorf(api.ErrNotFound, "no such path: %s", problem.Clip(r.URL.Path)))
		return
	}
	box, err := e.cfg.Boxes.Box(r.Context(), id)
	if errors.Is(err, api.ErrNotFound) || err == nil && string(box.ID) != id {
		e.refuseUnknown(w, r, name, id)
		return
	}
	if err != nil {
		e.Fail(w, r, err)
		return
	}
	access, err := e.authenticate(r, box.ID)
	if err != nil {
		e.cfg.Gate.Refused(r, name, err)
		e.Fail(w, r, err)
		return
	}
	call := Call{
		Caller: access.Caller, Box: box.ID, Route: route, Name: name,
		Valid: func() bool { return e.cfg.Tokens.Valid(context.WithoutCancel(r.Context()), access) },
	}
	begun, end, err := e.cfg.Gate.Begin(r, call)
	if err != nil {
		e.Fail(w, r, err)
		return
	}
	err = errors.New("it panicked")
	defer func() { end(err) }()
	err = e.serve(w, begun, box)
}

// serve serves an admitted request, and returns the error that it was answered with.
func (e *Endpoints) serve(w http.ResponseWriter, r *http.Request, box api.Box) error {
	if box.PausedAtEnd && !box.AutoResume { // only a call of connect resumes it
		gone(w, string(box.ID))
		return api.Errorf(api.ErrConflict, "sandbox %s was paused at its end", box.ID)
	}
	if rpc, ok := e.rpcs[r.URL.Path]; ok {
		return e.serveRPC(w, r, box, rpc)
	}
	err := e.serveREST(w, r, box)
	if err != nil {
		e.Fail(w, r, err)
	}
	return err
}

// The paths besides the procedures, with the endpoint of boxgate's own API whose permissions they need.
var paths = map[string]string{
	"GET /health":  "getBoxStatus",
	"GET /envs":    "listProcesses",
	"GET /metrics": "getBox",
	"GET /files":   "downloadFile",
	"POST /files":  "uploadFiles",
	"POST /init":   "getBoxStatus", // refused
}

// routeOf returns the endpoint of boxgate's own API that a request does the work of, and a name of the request for records.
func (e *Endpoints) routeOf(r *http.Request) (route, name string, ok bool) {
	name = r.Method + " " + r.URL.Path
	if rpc, ok := e.rpcs[r.URL.Path]; ok && r.Method == http.MethodPost {
		return rpc.route, name, true
	}
	route, ok = paths[name]
	return route, name, ok
}

// refuseUnknown answers a request for a box that does not exist. Only clients with a token for its ID learn that: others get the same answer
// as from a box that does, after the same checks, since they could otherwise find out which boxes there are.
func (e *Endpoints) refuseUnknown(w http.ResponseWriter, r *http.Request, name, id string) {
	if shown := r.Header.Values(tokenHeader); len(shown) == 1 && e.cfg.Tokens.Made(policy.BoxID(id), shown[0]) {
		gone(w, id)
		return
	}
	if len(r.Header.Values(tokenHeader)) == 0 {
		_, _ = e.authenticate(r, policy.BoxID(id)) // a signature is compared with one for each API key, which takes time
	}
	err := refusal(r)
	e.cfg.Gate.Refused(r, name, err)
	e.Fail(w, r, err)
}

// isSigned reports whether a request carries a signature, for its file.
func isSigned(r *http.Request) bool { return r.URL.Path == "/files" && r.URL.Query().Has("signature") }

// refusal returns the refusal of a request whose credential is missing or not valid.
func refusal(r *http.Request) error {
	switch {
	case len(r.Header.Values(tokenHeader)) > 0:
		return problem.Refuse(http.StatusUnauthorized, "the access token is not valid for this sandbox: its API key was revoked, or may not use it")
	case isSigned(r):
		return problem.Refuse(http.StatusUnauthorized, "the signature is not valid, or has expired")
	}
	return problem.Refuse(http.StatusUnauthorized, "the access token of the sandbox is required, in the header %s", tokenHeader)
}

// authenticate checks the credential of a request: the access token of the box, or for its files a signature.
func (e *Endpoints) authenticate(r *http.Request, box policy.BoxID) (token.Access, error) {
	if shown := r.Header.Values(tokenHeader); len(shown) > 0 {
		if a, ok := e.cfg.Tokens.Check(r.Context(), box, shown[0]); ok && len(shown) == 1 {
			return a, nil
		}
		return token.Access{}, refusal(r)
	}
	if isSigned(r) {
		query := r.URL.Query()
		s := token.Signed{
			Path: query.Get("path"), User: query.Get("username"), Signature: query.Get("signature"), Expires: query.Get("signature_expiration"), Operation: token.Read,
		}
		if r.Method == http.MethodPost {
			s.Operation = token.Write
		}
		if a, ok := e.cfg.Tokens.CheckSignature(r.Context(), box, s, time.Now()); ok {
			return a, nil
		}
	}
	return token.Access{}, refusal(r)
}

// serveREST serves the paths besides the procedures.
func (e *Endpoints) serveREST(w http.ResponseWriter, r *http.Request, box api.Box) error {
	switch r.Method + " " + r.URL.Path {
	case "GET /health":
		switch box.Status {
		case api.StatusIdle, api.StatusRunning:
			w.WriteHeader(http.StatusNoContent)
		default:
			gone(w, string(box.ID))
		}
		return nil
	case "GET /envs":
		return writeJSON(w, map[string]string{}) // the variables of a box are never returned
	case "GET /metrics":
		return e.metrics(w, box)
	case "GET /files":
		return e.download(w, r, box)
	case "POST /files":
		return e.upload(w, r, box)
	}
	return api.Errorf(api.ErrForbidden, "%s is refused: the gateway configures sandboxes itself", r.URL.Path)
}

// metrics is the use of a box at one time.
type metrics struct {
	At     int64 `json:"ts"`
	Memory int64 `json:"mem_used"`
	Disk   int64 `json:"disk_used"`
}

func (e *Endpoints) metrics(w http.ResponseWriter, box api.Box) error {
	return writeJSON(w, metrics{At: time.Now().Unix(), Memory: box.Usage.Memory, Disk: box.Usage.DiskBytes})
}

// gone answers a request for a box that does not exist or does not run. Clients of procedures and paths alike take the status for that.
func gone(w http.ResponseWriter, id string) {
	writeRESTError(w, http.StatusBadGateway, "sandbox "+problem.Clip(id)+" is not running")
}

// Fail answers with an error in the form that the path of the request has.
func (e *Endpoints) Fail(w http.ResponseWriter, r *http.Request, err error) {
	status, body := problem.StatusOf(err)
	if status >= http.StatusInternalServerError && r.Context().Err() == nil {
		e.cfg.Log.Error("a request to a sandbox failed", zap.String("path", r.URL.Path), zap.Int("status", status), zap.Error(err))
	}
	if status == http.StatusUnprocessableEntity {
		status = http.StatusBadRequest
	}
	writeError(w, r, status, body.Error)
}

// restError is the body of an error.
type restError struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

func writeError(w http.ResponseWriter, r *http.Request, status int, message string) {
	if strings.HasPrefix(r.URL.Path, processService) || strings.HasPrefix(r.URL.Path, filesystemService) {
		writeRPCError(w, r, status, message)
		return
	}
	writeRESTError(w, status, message)
}

func writeRESTError(w http.ResponseWriter, status int, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	data, _ := json.Marshal(restError{status, message})
	_, _ = w.Write(data)
}

func writeJSON(w http.ResponseWriter, body any) error {
	data, err := json.Marshal(body)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	_, err = rest.SteadyWriter(w).Write(data)
	return err
}

// userOf returns the user of boxgate's own API for a name of E2B's.
func userOf(box api.Box, name string) (user string, err error) {
	switch name {
	case "", "user", api.OrdinaryUser, box.UserName():
		return "", nil
	case "root":
		return "root", nil
	}
	return "", problem.Refuse(http.StatusUnauthorized, "invalid username: %q; a sandbox has the users user and root", problem.Clip(name))
}

// basicUser returns the user that a request names as that of Basic authorization.
func basicUser(r *http.Request, box api.Box) (string, error) {
	name, _, _ := r.BasicAuth()
	return userOf(box, name)
}

// homeOf returns the home directory of a user of a box.
func homeOf(box api.Box, user string) string {
	if user == "root" {
		return "/root"
	}
	return box.HomeDir()
}

// resolve returns the absolute path of a file: relative ones and ~ are below the home directory of the user.
func resolve(box api.Box, user, name string) (string, error) {
	home := homeOf(box, user)
	switch {
	case strings.ContainsRune(name, 0) || len(name) > maxPath:
		return "", problem.Invalid("/path", "is not a path")
	case name == "", name == "~":
		return home, nil
	case strings.HasPrefix(name, "~/"):
		return path.Join(home, name[2:]), nil
	case name[0] == '~':
		return "", problem.Invalid("/path", "cannot expand the home directory of another user")
	case name[0] == '/':
		return name, nil
	}
	return path.Join(home, name), nil
}

// maxPath is the longest path that the kernel accepts.
const maxPath = 4095
