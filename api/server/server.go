package server

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/api/access"
	"boxgate/api/boxes"
	"boxgate/api/egress"
	"boxgate/api/exec"
	"boxgate/api/files"
	"boxgate/api/gateway"
	"boxgate/api/git"
	"boxgate/api/harness"
	"boxgate/api/history"
	"boxgate/api/keys"
	"boxgate/api/lifecycle"
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
	URLs        urls.Host
	Schedules   schedules.Host
	Webhooks    harness.Webhooks
	Snapshots   snapshots.Host
	SelfTests   boxes.SelfTests
	Keys        keys.Host
	TrailReader trailapi.Host
	Health      gateway.Health
	Store       gateway.Store
	Secrets     gateway.Secrets
	Authorities gateway.Authorities
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
	// Log receives one line per failure of the gateway. nil: no log.
	Log *zap.Logger
	// MaxBody is the largest request body in bytes. 0: 8 MiB.
	MaxBody int64
	// BodySilence is how long a client may pause within a request body. 0: 10 s.
	BodySilence time.Duration
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
	public   map[string]bool // patterns of the routes that need no key
	stopping chan struct{}   // closed by stop, which ends streams
	stop     func()
	sessions *session.Endpoints
	refusals refusals
}

// New makes the API over the services of cfg.
func New(cfg Config) (*API, error) {
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
		public: make(map[string]bool), stopping: make(chan struct{}),
	}
	a.stop = sync.OnceFunc(func() { close(a.stopping) })
	a.sessions = session.New(cfg.Boxes, cfg.Sessions, cfg.History, a.bodies())
	a.addRoutes()
	return a, nil
}

// bodies returns the limits on request bodies.
func (a *API) bodies() strict.Bodies { return strict.Bodies{Most: a.MaxBody, Silence: a.BodySilence} }

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
	w := &rest.Writer{ResponseWriter: rw}
	if r.Body != nil && r.Body != http.NoBody {
		body := &incoming{ReadCloser: r.Body}
		r.Body, w.Unread = body, func() bool { return !body.sawEOF.Load() }
	}
	defer a.answers.Recover(w, r)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	_, pattern := a.mux.Handler(r)
	if a.public[pattern] {
		a.mux.ServeHTTP(w, r)
		return
	}
	caller, err := a.guard.Admit(w, r)
	if err != nil {
		a.recordRefusal(r, pattern, err)
		a.answers.Fail(w, r, err)
		return
	}
	r = r.WithContext(api.WithCaller(r.Context(), caller))
	r, leave, err := a.openScope(r, caller.Holder())
	if err != nil {
		if exceeded, ok := errors.AsType[*quota.Error](err); ok && exceeded.Kind == quota.Connections {
			w.Header().Set("Connection", "close")
		}
		a.recordRefusal(r, pattern, err)
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
	a.mux.ServeHTTP(w, r)
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
