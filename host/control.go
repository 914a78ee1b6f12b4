package host

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/api"
	"boxgate/api/e2b"
	"boxgate/host/nslock"
	"boxgate/host/usage"
	"boxgate/ui"
)

// AskControl sends a command to the gateway of this network namespace, and decodes its answer into out.
func AskControl(ctx context.Context, word string, out any) error {
	path, err := nslock.Socket()
	if err != nil {
		return err
	}
	c, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err != nil {
		if os.Geteuid() != 0 {
			return errors.New("only root can ask the gateway for this: run the command with sudo")
		}
		return errors.New("no gateway runs in this network namespace. Is it running? `systemctl status boxgate`, or start it with `gateway serve`")
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	if !isRoot(c) {
		return errors.New("the control socket of this network namespace was not opened by root")
	}
	answer := ControlAnswer{Answer: out}
	if err := errors.Join(json.NewEncoder(c).Encode(map[string]string{"do": word}), json.NewDecoder(c).Decode(&answer)); err != nil {
		return errors.New("the gateway did not answer: look at its log")
	}
	if answer.Error != "" {
		return errors.New(answer.Error)
	}
	return nil
}

// RenewedRoots is the result of [Host.RenewRoots].
type RenewedRoots = usage.Renewed

// RenewRoots adds the configured roots to the certificates of the running launched boxes; see [usage.Service.RenewRoots].
func (h *Host) RenewRoots(ctx context.Context) RenewedRoots { return h.usage.RenewRoots(ctx) }

// isRoot reports whether the peer's process belongs to root.
func isRoot(c net.Conn) bool {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return false
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return false
	}
	var peer *unix.Ucred
	ctlErr := raw.Control(func(fd uintptr) { peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	return ctlErr == nil && err == nil && peer.Uid == 0
}

// serveControl serves `gateway reload`, its request for roots, and `gateway upgrade` on the control socket of the network namespace, for root
// only.
func (h *Host) serveControl(ctx context.Context) error {
	ln := h.parts.listeners.Namespace
	if ln == nil {
		return nil
	}
	defer context.AfterFunc(ctx, func() { _ = ln.Close() })()
	var answers sync.WaitGroup
	defer answers.Wait() // a replaced process still sends its answer before it exits
	for {
		c, err := ln.AcceptUnix()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return nil
			}
			return err
		}
		answers.Go(func() {
			defer c.Close()
			var asked struct{ Do string }
			_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
			defer context.AfterFunc(ctx, func() { _ = c.SetReadDeadline(time.Now()) })()
			if !isRoot(c) || json.NewDecoder(io.LimitReader(c, 4096)).Decode(&asked) != nil {
				return
			}
			answer, err := h.options.Control(ctx, asked.Do)
			out := ControlAnswer{Answer: answer}
			if err != nil {
				out.Error = err.Error()
			}
			_ = c.SetWriteDeadline(time.Now().Add(10 * time.Second))
			_ = json.NewEncoder(c).Encode(out)
		})
	}
}

// ControlAnswer is the answer on the control socket of the network namespace.
type ControlAnswer struct {
	Answer any    `json:"answer,omitempty"`
	Error  string `json:"error,omitempty"`
}

// adminTurn decides whether this process or its successor answers requests to the admin API. While a handover is
// undecided, requests wait.
type adminTurn struct {
	lookUp     func(hash [sha256.Size]byte) (api.Key, bool)
	dial       func(ctx context.Context) (net.Conn, error) // connects to the successor's admin API
	leaseEnded func() bool                                 // whether the fleet's keys must be refused; nil: the host is not a member of a fleet
	// needsNoKey reports whether the user of a request needs no key; nil: all do.
	needsNoKey func(*http.Request) bool

	mu          sync.Mutex
	waiting     chan struct{}                     // closed when the handover is decided; nil: not waiting
	passed      bool                              // the successor answers
	open        sync.WaitGroup                    // requests answered by this process; Add only with mu held, while this process answers
	changes     int                               // requests among them that may change state
	changesDone chan struct{}                     // closed when changes reaches 0; nil: no waiter
	bodies      map[*http.ResponseController]bool // connections whose request body is still arriving; true: a read deadline is set
	bodyTimeout time.Duration                     // time limit for the rest of a body; 0: bodyTime
	keys        map[[32]byte]api.Key              // by digest: keys seen valid, which stay valid after the turn has passed on; invalid keys are never added
	forgotten   uint64                            // number of calls of forgetKey
}

// inBoxes lists the subresources of a box whose POST requests only act inside the box and may take arbitrarily long. They
// do not change the store.
var inBoxes = []string{"exec", "exec-stream", "exec-detached", "code", "code-stream", "run", "files", "git", "selftest", "egress"}

// changesState reports whether a request may change the store. Requests to the API that a sandbox of E2B serves only act inside the box.
func changesState(r *http.Request) bool {
	if r.Method == http.MethodGet || r.Method == http.MethodHead || r.Header.Get(e2b.SandboxHeader) != "" && e2b.IsSandbox(r.URL.Path) {
		return false
	}
	parts := strings.Split(r.URL.Path, "/") // "", "v2", "box", name, …
	inBox := r.Method == http.MethodPost && len(parts) >= 5 && parts[1] == "v2" && parts[2] == "box" && parts[3] != "settings" && slices.Contains(inBoxes, parts[4])
	return !inBox
}

// bodyTime is how long the rest of a change's body may take to arrive once a handover has begun.
const bodyTime = 5 * time.Second

// changeBody is the body of a change. It lets a handover set a deadline for slow bodies.
type changeBody struct {
	io.ReadCloser
	turn *adminTurn
	conn *http.ResponseController
}

// Read implements [io.Reader].
func (a *changeBody) Read(p []byte) (int, error) {
	n, err := a.ReadCloser.Read(p)
	if err != nil {
		a.turn.endBody(a.conn)
	}
	return n, err
}

// setBodyDeadline sets a read deadline for the rest of a body. The caller holds t.mu.
func (t *adminTurn) setBodyDeadline(conn *http.ResponseController) {
	t.bodies[conn] = true
	_ = conn.SetReadDeadline(time.Now().Add(cmp.Or(t.bodyTimeout, bodyTime)))
}

// endBody records that a body was read completely.
func (t *adminTurn) endBody(conn *http.ResponseController) {
	t.mu.Lock()
	defer t.mu.Unlock()
	hurried := t.bodies[conn]
	if delete(t.bodies, conn); hurried {
		_ = conn.SetReadDeadline(time.Time{}) // later reads only detect a disconnected client
	}
}

// serve answers a request that serveOrForward has counted.
func (t *adminTurn) serve(own http.Handler, w http.ResponseWriter, r *http.Request, changes bool) {
	defer t.open.Done()
	if changes {
		defer t.endChange()
	}
	if changes && r.Body != nil && r.Body != http.NoBody {
		conn := http.NewResponseController(w)
		t.mu.Lock()
		if t.bodies == nil {
			t.bodies = map[*http.ResponseController]bool{}
		}
		if t.bodies[conn] = false; t.changesDone != nil {
			t.setBodyDeadline(conn)
		}
		t.mu.Unlock()
		defer t.endBody(conn)
		r.Body = &changeBody{r.Body, t, conn}
	}
	own.ServeHTTP(w, r)
}

// newAdminTurn returns an adminTurn of this process. lookUp finds API keys by their SHA-256; dial connects to the successor's admin API.
func newAdminTurn(lookUp func(hash [sha256.Size]byte) (api.Key, bool), dial func(context.Context) (net.Conn, error)) *adminTurn {
	return &adminTurn{lookUp: lookUp, dial: dial}
}

// wrap returns a handler that lets own answer while it is this process's turn.
func (t *adminTurn) wrap(own http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { t.serveOrForward(own, w, r) })
}

// serveOrForward answers a request in this process or forwards it to the successor.
func (t *adminTurn) serveOrForward(own http.Handler, w http.ResponseWriter, r *http.Request) {
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

// enter counts work of this process that no HTTP request has started, until leave is called. It returns false once a handover has begun.
func (t *adminTurn) enter() (leave func(), ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.waiting != nil || t.passed {
		return nil, false
	}
	t.open.Add(1)
	return sync.OnceFunc(t.open.Done), true
}

func (t *adminTurn) endChange() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.changes--; t.changes == 0 && t.changesDone != nil {
		close(t.changesDone)
		t.changesDone = nil
	}
}

// findKey returns the caller that a key identifies, if the key is valid. After the turn has passed on, keys that were valid
// then remain so until they expire.
func (t *adminTurn) findKey(key string) (api.Caller, bool) {
	return t.findHash(sha256.Sum256([]byte(key)))
}

// findHash is findKey for the SHA-256 of a key.
func (t *adminTurn) findHash(digest [sha256.Size]byte) (api.Caller, bool) {
	t.mu.Lock()
	away, known, forgotten := t.waiting != nil || t.passed, t.keys[digest], t.forgotten
	t.mu.Unlock()
	if away {
		expired := !known.ExpiresAt.IsZero() && !time.Now().Before(known.ExpiresAt)
		fenced := known.Fleet && (t.leaseEnded == nil || t.leaseEnded())
		return known.Caller, known.Key != "" && !expired && !fenced
	}
	found, ok := t.lookUp(digest)
	if !ok {
		return api.Caller{Fleet: found.Fleet}, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.keys == nil {
		t.keys = map[[32]byte]api.Key{}
	}
	if t.forgotten == forgotten { // otherwise the key may have ended in the meantime
		t.keys[digest] = found
	}
	return found.Caller, true
}

// forgetKey invalidates the key of that ID where it was remembered for requests to this process. Without an ID, as older versions send the
// order, it invalidates all.
func (t *adminTurn) forgetKey(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forgotten++
	maps.DeleteFunc(t.keys, func(_ [32]byte, k api.Key) bool { return id == "" || k.Key == id })
}

// holdRequests makes new requests wait, and returns once all running changes have finished. If ctx is done first, requests are
// admitted again.
func (t *adminTurn) holdRequests(ctx context.Context) error {
	t.mu.Lock()
	t.waiting = make(chan struct{})
	quiet := make(chan struct{})
	if t.changes == 0 {
		close(quiet)
	} else {
		t.changesDone = quiet
	}
	for conn := range t.bodies {
		t.setBodyDeadline(conn)
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

// awaitRequests waits for the requests that this process answers.
func (t *adminTurn) awaitRequests(ctx context.Context) error {
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

// decide ends the wait: passed sends all requests to the successor, otherwise this process answers them.
func (t *adminTurn) decide(passed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.passed, t.changesDone = passed, nil
	if t.waiting != nil {
		close(t.waiting)
		t.waiting = nil
	}
}

// errReplaced answers requests that a successor will serve.
const errReplaced = `{"error": "the gateway is being replaced; try again"}`

// forward proxies a request to the successor, and closes the client's connection afterwards. The successor would not know the user
// of a request without a key, who has to repeat it.
func (t *adminTurn) forward(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Connection", "close")
	if r.Header[api.KeyHeader] == nil && r.Header["Authorization"] == nil && t.needsNoKey != nil && t.needsNoKey(r) {
		w.Header().Set("Retry-After", "1")
		http.Error(w, errReplaced, http.StatusServiceUnavailable)
		return
	}
	if strings.HasPrefix(r.URL.Path, ui.Prefix) { // the successor sees neither the browser nor whether it uses TLS; on its next connection it does
		w.Header().Set("Retry-After", "1")
		if r.Method == http.MethodGet {
			w.Header().Set("Refresh", "1")
		}
		http.Error(w, "The gateway is being replaced; try again.", http.StatusServiceUnavailable)
		return
	}
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
			http.Error(w, errReplaced, http.StatusServiceUnavailable)
		},
	}
	proxy.ServeHTTP(w, r)
}
