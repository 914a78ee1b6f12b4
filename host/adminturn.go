package host

import (
	"cmp"
	"context"
	"crypto/sha256"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"boxgate/api"
)

// adminTurn is whose turn it is to answer requests to the admin API: this process's or that of its successor. While that is not
// decided, requests wait.
type adminTurn struct {
	lookUp func(key string) (api.Key, bool)
	dial   func(ctx context.Context) (net.Conn, error) // to the admin API of the successor

	mu      sync.Mutex
	waiting chan struct{}                     // closed when it is decided; nil: it is this process's
	passed  bool                              // it is the successor's
	open    sync.WaitGroup                    // requests that this process answers; Add under mu and only while it is its turn
	changes int                               // those of them that may change something
	quiet   chan struct{}                     // closed when there are none; nil: nobody waits for that
	bodies  map[*http.ResponseController]bool // the connections of those whose body has not come whole: whether it is to come soon
	rest    time.Duration                     // what the rest of a body may take; 0: bodyTime
	keys    map[[32]byte]api.Key              // by digest, those that were valid when the turn was passed on; grows with valid keys alone
}

// inBoxes are the requests about a box, by what follows its name in their path, that do something in the box and may take as long
// as they like. They change nothing in the store.
var inBoxes = []string{"exec", "exec-stream", "code", "code-stream", "run", "files", "git", "selftest", "egress"}

// changesState reports whether a request may change what the store holds.
func changesState(r *http.Request) bool {
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return false
	}
	parts := strings.Split(r.URL.Path, "/") // "", "v2", "box", its name, and so on
	inBox := r.Method == http.MethodPost && len(parts) >= 5 && parts[1] == "v2" && parts[2] == "box" && parts[3] != "settings" && slices.Contains(inBoxes, parts[4])
	return !inBox
}

// bodyTime is how long the rest of the body of a change may take to come once the turn is to be passed on.
const bodyTime = 5 * time.Second

// arriving is the body of a change: whoever sends it slowly must not keep the turn from being passed on.
type arriving struct {
	io.ReadCloser
	turn *adminTurn
	conn *http.ResponseController
}

// Read implements [io.Reader].
func (a *arriving) Read(p []byte) (int, error) {
	n, err := a.ReadCloser.Read(p)
	if err != nil {
		a.turn.arrived(a.conn)
	}
	return n, err
}

// hurry bounds the time in which the rest of a body may come. The caller holds t.mu.
func (t *adminTurn) hurry(conn *http.ResponseController) {
	t.bodies[conn] = true
	_ = conn.SetReadDeadline(time.Now().Add(cmp.Or(t.rest, bodyTime)))
}

// arrived notes that no more of a body is to be read.
func (t *adminTurn) arrived(conn *http.ResponseController) {
	t.mu.Lock()
	defer t.mu.Unlock()
	hurried := t.bodies[conn]
	if delete(t.bodies, conn); hurried {
		_ = conn.SetReadDeadline(time.Time{}) // what is read now tells whether the client has gone
	}
}

// serve answers a request that was counted.
func (t *adminTurn) serve(own http.Handler, w http.ResponseWriter, r *http.Request, changes bool) {
	defer t.open.Done()
	if changes {
		defer t.changed()
	}
	if changes && r.Body != nil && r.Body != http.NoBody {
		conn := http.NewResponseController(w)
		t.mu.Lock()
		if t.bodies == nil {
			t.bodies = map[*http.ResponseController]bool{}
		}
		if t.bodies[conn] = false; t.quiet != nil {
			t.hurry(conn)
		}
		t.mu.Unlock()
		defer t.arrived(conn)
		r.Body = &arriving{r.Body, t, conn}
	}
	own.ServeHTTP(w, r)
}

// newAdminTurn returns the turn of this process. lookUp finds API keys; dial connects to the admin API of the successor.
func newAdminTurn(lookUp func(key string) (api.Key, bool), dial func(context.Context) (net.Conn, error)) *adminTurn {
	return &adminTurn{lookUp: lookUp, dial: dial}
}

// over has own answer the requests for which it is this process's turn.
func (t *adminTurn) over(own http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { t.inTurn(own, w, r) })
}

// inTurn answers a request in this process or its successor.
func (t *adminTurn) inTurn(own http.Handler, w http.ResponseWriter, r *http.Request) {
	changes := changesState(r)
	for {
		t.mu.Lock()
		waiting, passed := t.waiting, t.passed
		if own := waiting == nil && !passed; own {
			t.open.Add(1)
			if changes {
				t.changes++
			}
		}
		t.mu.Unlock()
		switch {
		case passed:
			t.forward(w, r)
			return
		case waiting == nil:
			t.serve(own, w, r, changes)
			return
		}
		select {
		case <-waiting:
		case <-r.Context().Done():
			return
		}
	}
}

func (t *adminTurn) changed() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.changes--; t.changes == 0 && t.quiet != nil {
		close(t.quiet)
		t.quiet = nil
	}
}

// find returns who a key belongs to, if it is valid, or was when the turn was passed on and has not expired.
func (t *adminTurn) find(key string) (api.Caller, bool) {
	digest := sha256.Sum256([]byte(key))
	t.mu.Lock()
	away, known := t.waiting != nil || t.passed, t.keys[digest]
	t.mu.Unlock()
	if away {
		expired := !known.ExpiresAt.IsZero() && !time.Now().Before(known.ExpiresAt)
		return known.Caller, known.Key != "" && !expired
	}
	found, ok := t.lookUp(key)
	if !ok {
		return api.Caller{}, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.keys == nil {
		t.keys = map[[32]byte]api.Key{}
	}
	t.keys[digest] = found
	return found.Caller, true
}

// forgetKeys makes no key valid any longer for requests that this process answers.
func (t *adminTurn) forgetKeys() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.keys = nil
}

// hold makes requests wait, and returns once no change is under way. If that takes longer than ctx, requests go on.
func (t *adminTurn) hold(ctx context.Context) error {
	t.mu.Lock()
	t.waiting = make(chan struct{})
	quiet := make(chan struct{})
	if t.changes == 0 {
		close(quiet)
	} else {
		t.quiet = quiet
	}
	for conn := range t.bodies {
		t.hurry(conn)
	}
	t.mu.Unlock()
	select {
	case <-quiet:
		return nil
	case <-ctx.Done():
		t.decide(false)
		return ctx.Err()
	}
}

// wait waits until the requests have ended that this process answers.
func (t *adminTurn) wait(ctx context.Context) error {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		t.open.Wait()
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// decide ends the wait: the requests are the successor's, or this process's.
func (t *adminTurn) decide(passed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.passed, t.quiet = passed, nil
	if t.waiting != nil {
		close(t.waiting)
		t.waiting = nil
	}
}

// forward has the successor answer a request that came on a connection to this process, and ends the connection.
func (t *adminTurn) forward(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Connection", "close")
	transport := &http.Transport{
		DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return t.dial(ctx) },
		ResponseHeaderTimeout: 10 * time.Minute,
	}
	defer transport.CloseIdleConnections()
	proxy := &httputil.ReverseProxy{
		Transport: transport, FlushInterval: -1,
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(&url.URL{Scheme: "http", Host: "gateway"})
			p.Out.Host = r.Host
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) {
			w.Header().Set("Retry-After", "1")
			http.Error(w, `{"error": "the gateway is being replaced; try again"}`, http.StatusServiceUnavailable)
		},
	}
	proxy.ServeHTTP(w, r)
}
