// Package server serves the admin API over HTTP. [New] combines the endpoints of all API packages, backed by the
// [Services], behind the check of API keys. [API.Server] adds the timeouts that the API needs.
//
// An endpoint is a row in the Routes of its package. A new package of endpoints is added to [API.packages].
package server

import (
	"context"
	"errors"
	"io"
	"net/http"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/api/access"
	"boxgate/api/approvals"
	"boxgate/api/boxes"
	"boxgate/api/capture"
	"boxgate/api/doctor"
	"boxgate/api/egress"
	"boxgate/api/exec"
	"boxgate/api/files"
	"boxgate/api/gateway"
	"boxgate/api/git"
	"boxgate/api/har"
	"boxgate/api/harness"
	"boxgate/api/history"
	"boxgate/api/keys"
	"boxgate/api/keysecrets"
	"boxgate/api/lifecycle"
	"boxgate/api/members"
	"boxgate/api/openapi"
	"boxgate/api/problem"
	"boxgate/api/process"
	"boxgate/api/report"
	"boxgate/api/rest"
	"boxgate/api/rules"
	"boxgate/api/schedules"
	"boxgate/api/session"
	"boxgate/api/settings"
	"boxgate/api/snapshots"
	"boxgate/api/strict"
	trailapi "boxgate/api/trail"
	"boxgate/api/urls"
	"boxgate/audit"
	"boxgate/internal/required"
	"boxgate/llm"
	"boxgate/policy/name"
	"boxgate/quota"
)

// Services are the parts of the gateway that answer the calls. All are required.
type Services struct {
	Boxes       boxes.Table
	Life        boxes.Host
	Lifecycle   lifecycle.Host
	Commands    exec.Host
	Sessions    session.Host
	Files       files.Host
	Git         git.Host
	Rules       rules.Host
	BoxRules    settings.Rules
	Explain     egress.Rules
	Settings    settings.Host
	Decisions   egress.Host
	Versions    egress.Versions
	URLs        urls.Host
	Schedules   schedules.Host
	Webhooks    harness.Webhooks
	Snapshots   snapshots.Host
	SelfTests   boxes.SelfTests
	Samples     boxes.Samples
	Doctor      doctor.Host
	Captures    har.Host
	Keys        keys.Host
	KeySecrets  keysecrets.Host
	TrailReader trailapi.Host
	Health      gateway.Health
	Store       gateway.Store
	Secrets     gateway.Secrets
	Authorities gateway.Authorities
	Approvals   approvals.Host
	Models      gateway.Models
}

// Config configures [New]. The services and FindKey are required.
type Config struct {
	Services
	// History stores the runs and log lines of boxes. nil: a new one.
	History *history.History
	// FindKey returns the caller that a valid key belongs to. It must take the same time for every invalid key.
	FindKey access.Finder
	// Peer returns the user of a request over the Unix socket. nil: users are not told apart, and all need a key.
	Peer access.PeerFinder
	// Trail receives changes and refusals. nil: no audit trail, for tests.
	Trail Trail
	// Admitted, if not nil, is called for each request with a valid key before it is served. An error refuses the request
	// and closes its connection.
	Admitted func(*http.Request, quota.Holder) error
	// Quotas holds the quotas of each key. nil: no quotas.
	Quotas *quota.Book
	// Hosts are additional names accepted in the Host header, next to the loopback names and the address of the listener.
	Hosts []string
	// HasSecret reports whether a secret exists, so that header rules may refer to it. nil: there are no secrets.
	HasSecret func(name string) bool
	// KeySecret finds a secret that an API key has stored, like the OfKey of [access.Secrets]. nil: there are none.
	KeySecret func(key, n string, host name.Pattern) (source, flaw string, found bool)
	// Elsewhere reaches the other hosts of the fleet. nil: there is no fleet.
	Elsewhere Elsewhere
	// Spread places new boxes of clients with a key of the fleet on the emptier of two hosts, unless they ask for another placement.
	Spread bool
	// Fleet shows the hosts of the fleet. nil: there is no fleet.
	Fleet members.Host
	// Watcher reports changes of files. nil: they are not watched.
	Watcher files.Watcher
	// E2B serves the dialect of E2B's SDK as well. nil: it is off.
	E2B *E2B
	// Meters are the APIs of the servers of agents' models that the operator names.
	Meters llm.Meters
	// Log receives one line per failure of the gateway. nil: no log.
	Log *zap.Logger
	// MaxBody is the largest request body in bytes. 0: 8 MiB.
	MaxBody int64
	// MaxRun is the largest body of a run of an agent, which contains files. 0: [harness.MaxBody].
	MaxRun int64
	// BodySilence is how long a client may pause within a request body. 0: 10 s.
	BodySilence time.Duration
	// Silence is how long a response may be silent before the API sends something that its reader ignores, so that no client or
	// proxy takes the connection for dead. 0: 15 s.
	Silence time.Duration
	// MaxOutput is the maximum number of bytes of each output stream in the answer of exec. Longer output is truncated
	// and marked as such. exec-stream has no limit. 0: 16 MiB.
	MaxOutput int
	// MaxRead is the maximum number of bytes of a file in an answer of files/read. 0: 16 MiB.
	MaxRead int64
	// MaxBuffered is the maximum number of bytes of output and files in all answers together. 0: 128 MiB.
	MaxBuffered int
}

// API is the http.Handler of the admin API. Safe for concurrent use.
type API struct {
	Config
	started  time.Time
	mux      *http.ServeMux
	guard    *access.Guard
	answers  rest.Answerer
	routes   []rest.Route
	public   map[string]bool   // patterns of the routes that need no key
	ids      map[string]string // of the routes, by their patterns
	stopping chan struct{}     // closed by stop, which ends streams
	stop     func()
	sessions *session.Endpoints
	running  *process.Service
	refusals refusals
	repeats  repeats
	dialect  *dialect // of E2B; nil: it is off
}

// New makes the API over the services of cfg.
func New(cfg Config) (_ *API, err error) {
	if err := required.Fields(cfg.Services); err != nil {
		return nil, err
	}
	if cfg.FindKey == nil {
		return nil, errors.New("api: FindKey is required")
	}
	if cfg.Log == nil {
		cfg.Log = zap.NewNop()
	}
	if cfg.History == nil {
		cfg.History = history.New(nil)
	}
	if cfg.HasSecret == nil {
		cfg.HasSecret = func(string) bool { return false }
	}
	if cfg.Quotas == nil {
		cfg.Quotas = quota.New(quota.Config{})
	}
	if cfg.MaxBody == 0 {
		cfg.MaxBody = 8 << 20
	}
	if cfg.MaxRun == 0 {
		cfg.MaxRun = harness.MaxBody
	}
	if cfg.Silence == 0 {
		cfg.Silence = rest.Silence
	}
	if cfg.MaxOutput == 0 {
		cfg.MaxOutput = 16 << 20
	}
	if cfg.MaxRead == 0 {
		cfg.MaxRead = 16 << 20
	}
	if cfg.MaxBuffered == 0 {
		cfg.MaxBuffered = 128 << 20
	}
	a := &API{
		Config: cfg, started: time.Now(), mux: http.NewServeMux(), guard: access.New(cfg.FindKey, cfg.Peer, cfg.Hosts), answers: rest.Answerer{Log: cfg.Log},
		public: make(map[string]bool), ids: make(map[string]string), stopping: make(chan struct{}),
	}
	a.answers.Broken = a.logBroken
	a.stop = sync.OnceFunc(func() { close(a.stopping) })
	a.sessions = session.New(cfg.Boxes, cfg.Sessions, cfg.History, a.bodies())
	a.running = process.New(a.sessions)
	a.addRoutes()
	a.dialect, err = newDialect(a)
	return a, err
}

// bodies returns the limits on request bodies.
func (a *API) bodies() strict.Bodies { return strict.Bodies{Most: a.MaxBody, Silence: a.BodySilence} }

// runBodies returns the reader for bodies that contain files.
func (a *API) runBodies() strict.Bodies {
	return strict.Bodies{Most: a.MaxRun, Silence: a.BodySilence, Time: harness.BodyTime}
}

// Server returns an http.Server for a, with timeouts against slow clients that do not affect streams. Its Shutdown ends
// the streams of decisions and the sessions immediately, and waits for running commands; [API.Wait] waits for the
// sessions. Call it once.
func (a *API) Server() *http.Server {
	srv := &http.Server{
		Handler:           a,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    32 << 10,
		ErrorLog:          audit.ServerLog(a.Log, nil),
	}
	srv.RegisterOnShutdown(func() {
		a.EndStreams()
		a.sessions.Stop()
	})
	return srv
}

// EndStreams ends the streams of decisions. Their readers are expected to reconnect.
func (a *API) EndStreams() { a.stop() }

// Wait waits, after the Shutdown of the server, until the commands of all sessions have ended and their clients have
// received the results.
func (a *API) Wait(ctx context.Context) error { return a.sessions.Wait(ctx) }

// ServeHTTP checks the origin of the request and its key, then runs the route, which checks the permissions of the key.
func (a *API) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	w := &rest.Writer{ResponseWriter: rw, Silence: a.Silence}
	if r.Body != nil && r.Body != http.NoBody {
		body := &incoming{ReadCloser: r.Body}
		r.Body, w.Unread = body, func() bool { return !body.sawEOF.Load() }
	}
	defer a.answers.Recover(w, r)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	if a.dialect.serves(r) {
		a.dialect.serve(w, r)
		return
	}
	_, pattern := a.mux.Handler(r)
	if a.public[pattern] {
		a.mux.ServeHTTP(w, r)
		return
	}
	r, leave, err := a.admit(w, r, pattern)
	if err != nil {
		a.answers.Fail(w, r, err)
		return
	}
	defer leave()
	if pattern == "" || r.URL.Path != cleanPath(r.URL.Path) || hostedOnly(r.URL.Path) != "" {
		a.answers.Fail(w, r, noRoute(a.mux, w, r))
		return
	}
	r, end := a.guard.WhileKeyWorks(r)
	defer end()
	if a.servedElsewhere(w, r, pattern) {
		return
	}
	a.mux.ServeHTTP(w, r)
}

// admit checks the origin and the key of a request, and charges it to the quotas of the key until leave is called. It records a refusal.
func (a *API) admit(w *rest.Writer, r *http.Request, pattern string) (_ *http.Request, leave func(), err error) {
	caller, err := a.guard.Admit(w, r)
	if err != nil {
		a.recordRefusal(r, pattern, err)
		return r, nil, err
	}
	r = r.WithContext(api.WithCaller(r.Context(), caller))
	if a.Elsewhere != nil {
		r = access.WithShownKey(r)
	}
	r, leave, err = a.openScope(r, caller.Holder())
	if err != nil {
		if exceeded, ok := errors.AsType[*quota.Error](err); ok && exceeded.Kind == quota.Connections {
			w.Header().Set("Connection", "close")
		}
		a.recordRefusal(r, pattern, err)
	}
	return r, leave, err
}

// openScope charges a request to the quotas of its key and gives it a scope. The scope ends with leave, or later with the
// work that the request started.
func (a *API) openScope(r *http.Request, holder quota.Holder) (_ *http.Request, leave func(), err error) {
	if a.Admitted != nil {
		if err := a.Admitted(r, holder); err != nil {
			return r, nil, err
		}
	}
	done, err := a.Quotas.Acquire(holder, quota.Requests, 1)
	if err != nil {
		return r, nil, err
	}
	scope, end := a.Quotas.Open(holder)
	return r.WithContext(quota.WithScope(r.Context(), scope)), func() { end(); done() }, nil
}

// maxBroken bounds the reason in a line of the log, in bytes.
const maxBroken = 4 << 10

// logBroken writes the reason why the response to a call breaks off to the log of its box.
func (a *API) logBroken(r *http.Request, why string) {
	if box := a.boxOf(r); box != "" {
		if len(why) > maxBroken {
			why = strings.ToValidUTF8(why[:maxBroken], "") + "…"
		}
		a.History.Log(box, "error", "system", "%s: %s", r.Pattern, why)
	}
}

// incoming is a request body that records whether it was read to its end.
type incoming struct {
	io.ReadCloser
	sawEOF atomic.Bool
}

// Read implements [io.Reader].
func (b *incoming) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		b.sawEOF.Store(true)
	}
	return n, err
}

// endpoints is a package of endpoints with its name and description in the OpenAPI document.
type endpoints struct {
	name, about string
	pkg         interface{ Routes() []rest.Route }
}

// packages returns all endpoints except that of the OpenAPI document.
func (a *API) packages() []endpoints {
	bodies, past, output := a.bodies(), a.History, capture.New(a.MaxBuffered)
	named := access.Secrets{Has: a.HasSecret, OfKey: a.KeySecret}
	return []endpoints{
		{"boxes", "Creating, attaching, listing and deleting boxes", &boxes.Endpoints{Boxes: a.Boxes, Host: a.Life, Snapshots: a.Snapshots, SelfTests: a.SelfTests, Samples: a.Samples, History: past, Bodies: bodies, Secrets: named, Meters: a.Meters, Others: a.others()}},
		{"lifecycle", "Pausing, resuming and starting boxes", &lifecycle.Endpoints{Boxes: a.Boxes, Host: a.Lifecycle, History: past, Bodies: bodies}},
		{"commands", "Commands in boxes", &exec.Endpoints{Boxes: a.Boxes, Host: a.Commands, Events: a.Decisions, History: past, Bodies: bodies, MaxOutput: a.MaxOutput, Output: output}},
		{"agents", "Agents of boxes", &harness.Endpoints{Boxes: a.Boxes, Runner: harness.Runner{Commands: a.Commands, Settings: a.Settings, History: past}, Webhooks: a.Webhooks, Bodies: a.runBodies()}},
		{"sessions", "Interactive commands", a.sessions},
		{"processes", "Commands that several calls share", &process.Endpoints{Boxes: a.Boxes, Processes: a.running, Bodies: bodies}},
		{"files", "Files of boxes", &files.Endpoints{Boxes: a.Boxes, Host: a.Files, Bodies: bodies, MaxRead: a.MaxRead, Output: output, Watcher: a.Watcher, Stopping: a.stopping}},
		{"git", "Git in boxes", &git.Endpoints{Boxes: a.Boxes, Host: a.Git, Commands: a.Commands, Rules: a.Rules, History: past, Bodies: bodies, MaxOutput: a.MaxOutput, Output: output}},
		{"rules", "Network policies and header rules", &rules.Endpoints{Boxes: a.Boxes, Host: a.Rules, History: past, Bodies: bodies, Secrets: named}},
		{"decisions", "Decisions about the traffic of boxes", &egress.Endpoints{Boxes: a.Boxes, Host: a.Decisions, Rules: a.Explain, Versions: a.Versions, Bodies: bodies, Stopping: a.stopping}},
		{"approvals", "Requests of boxes for access, and the answers to them", &approvals.Endpoints{Boxes: a.Boxes, Host: a.Approvals, History: past, Bodies: bodies}},
		{"har", "HTTP archives of the requests of boxes", &har.Endpoints{Boxes: a.Boxes, Host: a.Captures, Bodies: bodies, Stopping: a.stopping}},
		{"doctor", "Diagnoses of hosts", &doctor.Endpoints{Boxes: a.Boxes, Host: a.Doctor, Bodies: bodies}},
		{"urls", "Public URLs of boxes", &urls.Endpoints{Boxes: a.Boxes, Host: a.URLs, History: past, Bodies: bodies}},
		{"schedules", "Schedules of boxes", &schedules.Endpoints{Boxes: a.Boxes, Host: a.Schedules, History: past, Bodies: bodies}},
		{"snapshots", "Snapshots of boxes", &snapshots.Endpoints{Boxes: a.Boxes, Host: a.Snapshots, History: past, Bodies: bodies, Others: a.others()}},
		{"settings", "Other settings of boxes", &settings.Endpoints{Boxes: a.Boxes, Host: a.Settings, Rules: a.BoxRules, Headers: a.Rules, History: past, Bodies: bodies, Meters: a.Meters}},
		{"keys", "API keys", &keys.Endpoints{Boxes: a.Boxes, Host: a.Keys, Bodies: bodies}},
		{"secrets", "Secrets of API keys", &keysecrets.Endpoints{Host: a.KeySecrets, Bodies: bodies}},
		{"audit", "The audit trail", &trailapi.Endpoints{Boxes: a.Boxes, Host: a.TrailReader, Stopping: a.stopping}},
		{"reports", "Reports for auditors", report.New(a.Boxes, a.Decisions, a.TrailReader, a.Secrets, a.Versions)},
		{"fleet", "The hosts of the fleet", &members.Endpoints{Host: a.Fleet}},
		{"gateway", "The gateway itself", &gateway.Endpoints{
			Boxes: a.Boxes, Health: a.Health, Store: a.Store, Secrets: a.Secrets, Authorities: a.Authorities, Events: a.Decisions, Models: a.Models, Bodies: bodies, Started: a.started,
		}},
	}
}

// addRoutes registers the endpoints of every package, and the OpenAPI document that describes them, which is generated on
// first use.
func (a *API) addRoutes() {
	var describe func() ([]byte, error)
	self := rest.Route{
		Method: "GET", Path: "/openapi.json", ID: "getDescription", Summary: "This description", Produces: []string{"application/json"},
		Handle: func(w http.ResponseWriter, _ *http.Request) (rest.Reply, error) {
			doc, err := describe()
			if err != nil {
				return rest.Reply{}, err
			}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusOK)
			_, _ = w.Write(doc)
			return rest.Reply{Written: true}, nil
		},
	}
	subjects := []openapi.Subject{{Name: "description", Description: "The description of the API", Routes: []rest.Route{self}}}
	for _, r := range a.packages() {
		subjects = append(subjects, openapi.Subject{Name: r.name, Description: r.about, Routes: r.pkg.Routes()})
	}
	for _, s := range subjects {
		a.routes = append(a.routes, s.Routes...)
	}
	for _, rt := range a.routes {
		a.mux.Handle(rt.Pattern(), a.permitted(rt))
		a.public[rt.Pattern()], a.ids[rt.Pattern()] = rt.Public, rt.ID
	}
	describe = sync.OnceValues(func() ([]byte, error) { return openapi.Describe(subjects) })
}

// noRoute answers requests for an unknown path or method, in JSON, and with Allow if the path exists.
func noRoute(mux *http.ServeMux, w http.ResponseWriter, r *http.Request) error {
	if why := hostedOnly(r.URL.Path); why != "" {
		return api.Errorf(api.ErrNotSupported, "%s", why)
	}
	var allowed []string
	if r.URL.Path == cleanPath(r.URL.Path) {
		for _, m := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
			probe := &http.Request{Method: m, URL: r.URL, Host: r.Host}
			if _, pattern := mux.Handler(probe); pattern != "" {
				allowed = append(allowed, m)
			}
		}
	}
	if len(allowed) == 0 {
		return problem.Refuse(http.StatusNotFound, "no such path: %s; see /openapi.json", problem.Clip(r.URL.Path))
	}
	w.Header().Set("Allow", strings.Join(allowed, ", "))
	return problem.Refuse(http.StatusMethodNotAllowed, "%s is not allowed here; use %s", problem.Clip(r.Method), strings.Join(allowed, " or "))
}

// hostedBoxPaths maps paths below a box that only the hosted product serves to an alternative.
var hostedBoxPaths = map[string]string{
	"browser": "this gateway has no browser API; start a browser in the box with exec, and reach its port by a public URL",
	"steps":   "this gateway runs no built-in agents, so there are no steps; see runs for the commands of a box",
}

// hostedAccountPaths maps words that replace the ID of a box in paths of the hosted product to an alternative. Package boxes
// rejects them as names of boxes.
var hostedAccountPaths = map[string]string{
	"agent-credentials": "this gateway runs no built-in agents and keeps no credentials for them; have a header rule set the key in transit (config/attach-headers)",
	"github":            "this gateway is no GitHub App; give a token as github_token when you create a box or clone, and it becomes a header rule",
}

// hostedOnly returns the alternative to a path that only the hosted product serves, or "" for other paths.
func hostedOnly(path string) string {
	below, ok := strings.CutPrefix(path, "/v2/box/")
	if !ok {
		return ""
	}
	id, rest, _ := strings.Cut(below, "/")
	if why := hostedAccountPaths[id]; why != "" {
		return why
	}
	first, _, _ := strings.Cut(rest, "/")
	return hostedBoxPaths[first]
}

// cleanPath returns the path that the mux would redirect to. A redirect would lose the body, so other paths are refused.
func cleanPath(p string) string {
	clean := path.Clean("/" + p)
	if strings.HasSuffix(p, "/") && clean != "/" {
		clean += "/"
	}
	return clean
}
