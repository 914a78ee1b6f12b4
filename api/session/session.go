// Package session serves interactive commands over a WebSocket: input, output, a terminal, signals.
//
// Frames are JSON objects in text messages. The first is the client's start frame; docs/boxes.md describes them all.
package session

import (
	"context"
	"errors"
	"io"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"boxgate/api"
	"boxgate/api/access"
	"boxgate/api/history"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/api/strict"
	"boxgate/policy"
)

// Host starts the commands of sessions.
type Host interface {
	// StartSession starts a command in a box. EOF on stdin closes the command's input, and blocked writers block the
	// command. ctx is that of the whole session, not only of its start. A command that cannot be started is an
	// ErrUnavailable.
	StartSession(ctx context.Context, id policy.BoxID, req api.SessionRequest, stdin io.Reader, stdout, stderr io.Writer) (api.Session, error)
}

// Endpoints serves sessions. Use [New].
type Endpoints struct {
	boxes    rest.Finder
	host     Host
	history  *history.History
	bodies   strict.Bodies
	stopping chan struct{} // closed by Stop
	open     *registry
}

// New makes the endpoints.
func New(boxes rest.Finder, host Host, past *history.History, bodies strict.Bodies) *Endpoints {
	return &Endpoints{boxes: boxes, host: host, history: past, bodies: bodies, stopping: make(chan struct{}), open: newRegistry()}
}

// Stop ends all sessions, including sessions that wait for their client to reconnect: commands are killed and clients
// receive the reason. New sessions are refused. Call it once.
func (e *Endpoints) Stop() {
	close(e.stopping)
	for _, s := range e.open.stop() {
		s.stop()
	}
}

// Wait waits, after Stop, until all commands have ended and all clients have received the reason.
func (e *Endpoints) Wait(ctx context.Context) error {
	select {
	case <-e.open.empty:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// query is the query of the route.
type query struct {
	Session string `json:"session,omitempty" doc:"execId of the session to reconnect to; absent: start a new session"`
	Offset  int64  `json:"offset,omitempty" min:"0" doc:"number of output bytes received so far"`
}

// Routes lists the endpoints.
func (e *Endpoints) Routes() []rest.Route {
	return []rest.Route{
		{Method: "GET", Path: "/v2/box/{id}/exec-session", ID: "openSession", Summary: "Run an interactive command over a WebSocket: input, output, signals and a terminal", Query: reflect.TypeFor[query](), Status: 101, Handle: e.serve},
	}
}

// reconnectTimeout is how long a session waits for its client to reconnect.
const reconnectTimeout = time.Minute

var (
	errHungUp = errors.New("its client closed the session")
	errLost   = errors.New("its client did not come back")
)

// session is a command and the data exchanged with its client.
type session struct {
	id       string // ID of the run
	box      policy.BoxID
	reattach bool
	acks     bool          // input is acknowledged
	started  chan struct{} // closed once proc is set and the registry has the ID
	proc     api.Session
	in       *inbox
	out      *outbox
	kill     context.CancelCauseFunc
	done     chan struct{} // closed once the command has ended and the fields below are set
	res      api.ExecResult
	err      error

	forget    func() // makes the session unavailable for reconnecting
	forgotten bool   // guarded by the registry's mu

	mu             sync.Mutex
	pending        []func() // actions to run once the command has started
	begun          bool     // the command has started and pending is empty
	terminated     bool
	stopping       bool
	conn           *connection // nil: not connected
	reconnectTimer *time.Timer // kills the command unless the client reconnects; nil while connected
}

// newSession creates a session and starts its command in the background. The session ends with the command and with the credential of ctx,
// not with ctx.
func (e *Endpoints) newSession(ctx context.Context, box api.Box, f *fromClient, release func()) (*session, error) {
	req, prompt, err := f.request(box)
	if err != nil {
		return nil, err
	}
	ctx, kill := access.Outlive(ctx)
	s := &session{
		box: box.ID, reattach: f.Reattach, acks: f.Reattach || f.AckInput, out: newOutbox(), kill: kill,
		started: make(chan struct{}), done: make(chan struct{}),
	}
	s.in = newInbox(s.acks, &e.open.input)
	if err := e.open.add(s, release); err != nil {
		kill(err)
		return nil, err
	}
	go e.runCommand(ctx, s, req, prompt)
	return s, nil
}

// runCommand runs the command of a session.
func (e *Endpoints) runCommand(ctx context.Context, s *session, req api.SessionRequest, prompt string) {
	defer close(s.done)
	defer s.kill(nil)
	job := history.Job{Type: history.Shell, User: req.User, Prompt: prompt}
	_, s.res, s.err = e.history.Do(ctx, s.box, job, func(ctx context.Context, run *history.Run) (api.ExecResult, error) {
		proc, err := e.host.StartSession(ctx, s.box, req, s.in, e.recordOutput(run, s.out.stream("stdout")), e.recordOutput(run, s.out.stream("stderr")))
		if err != nil {
			return api.ExecResult{}, err
		}
		s.proc = proc
		e.open.publish(s, run.ID())
		close(s.started)
		s.runPending()
		return proc.Wait(discardOnDone(ctx, s.out))
	})
	if cause := context.Cause(ctx); s.err != nil && keyEnded(cause) {
		s.err = cause
	}
	s.in.discard()
	s.out.close()
}

// running reports whether the command has started. It may already have ended.
func (s *session) running() bool {
	select {
	case <-s.started:
		return true
	default:
		return false
	}
}

// maxPending bounds the number of actions requested before the command has started.
const maxPending = 64

// afterStart runs an action as soon as the command has started. Actions run in the order of the calls.
func (s *session) afterStart(do func()) error {
	s.mu.Lock()
	if s.begun {
		s.mu.Unlock()
		do()
		return nil
	}
	defer s.mu.Unlock()
	if len(s.pending) >= maxPending {
		return problem.Invalid("/type", "is the %dth frame before the command has started; wait for it", maxPending+1)
	}
	s.pending = append(s.pending, do)
	return nil
}

// runPending runs the actions requested before the command started.
func (s *session) runPending() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.pending) > 0 {
		early := s.pending
		s.pending = nil
		s.mu.Unlock()
		for _, do := range early {
			do()
		}
		s.mu.Lock()
	}
	s.begun = true
}

// discardOnDone returns ctx. When ctx ends, further output of the command is discarded, so that it does not block.
func discardOnDone(ctx context.Context, out *outbox) context.Context {
	context.AfterFunc(ctx, out.close)
	return ctx
}

// recordOutput records the beginning of a run's output in the history and passes the output on to w.
func (e *Endpoints) recordOutput(r *history.Run, w writerFunc) writerFunc {
	return func(b []byte) (int, error) {
		e.history.AppendOutput(r, b)
		return w(b)
	}
}

// attach makes c the connection of the session. A previous connection is ended; once attach returns, it handles no more
// frames.
func (s *session) attach(c *connection) {
	s.mu.Lock()
	before := s.conn
	s.conn = c
	if s.reconnectTimer != nil {
		s.reconnectTimer.Stop()
		s.reconnectTimer = nil
	}
	s.mu.Unlock()
	if before != nil {
		before.cancel(errReplaced)
		<-before.drained
	}
}

// errReplaced ends the previous connection when the client reconnects.
var errReplaced = errors.New("the session was taken over by another connection")

// disconnect removes a connection that has ended, unless another connection has replaced it. If the client may come back, the
// session waits for it; otherwise the session ends.
func (s *session) disconnect(c *connection, mayComeBack bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != c {
		return
	}
	s.conn = nil
	if !mayComeBack || s.stopping {
		s.kill(errHungUp)
		s.forget()
		return
	}
	s.reconnectTimer = time.AfterFunc(reconnectTimeout, func() {
		s.kill(errLost)
		s.forget()
	})
}

// stop ends the session. Its connection, if any, is closed by watch.
func (s *session) stop() {
	s.kill(errStopping)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopping = true
	if s.conn == nil {
		s.forget()
	}
}

// terminate sends SIGTERM to the command, and SIGKILL after the grace period. Only the first call has an effect.
func (s *session) terminate(grace time.Duration) {
	s.mu.Lock()
	first := !s.terminated
	s.terminated = true
	s.mu.Unlock()
	if !first {
		return
	}
	_ = s.proc.Signal("TERM")
	timer := time.AfterFunc(grace, func() { _ = s.proc.Signal("KILL") })
	go func() {
		<-s.done
		timer.Stop()
	}()
}

// finalFrame returns the session's final frame. The command must have ended.
func (s *session) finalFrame() toClient {
	if s.err != nil {
		_, body := problem.StatusOf(s.err)
		return toClient{Type: "error", Message: body.Error}
	}
	return toClient{Type: "exit", Code: &s.res.ExitCode}
}

// resize sets the size of the terminal.
func (s *session) resize(f *fromClient) error {
	var p problem.List
	size := api.TerminalSize{Rows: f.dimension(&p, "/rows", f.Rows, 24), Cols: f.dimension(&p, "/cols", f.Cols, 80)}
	if err := p.Err(); err != nil {
		return err
	}
	return s.afterStart(func() { _ = s.proc.Resize(size) }) // an ended command has no terminal to resize
}

// Limits on concurrent sessions: per box, and for all keys that are not admin keys. Sessions of admin keys are limited
// per box only.
const (
	maxPerBox = 32
	maxOthers = 1024
)

// registry counts sessions and finds a session for a client that reconnects.
type registry struct {
	mu     sync.Mutex
	counts map[policy.BoxID]int // guarded by mu, as are the fields below
	total  int
	others int // sessions of keys that are not admin keys
	byID   map[string]*session
	all    map[*session]bool // sessions that still occupy a slot
	closed bool              // new sessions are refused

	empty chan struct{} // closed once closed is set and the last session is gone

	input budget // for input of all sessions beyond maxUnread each
}

func newRegistry() *registry {
	return &registry{
		counts: map[policy.BoxID]int{}, byID: map[string]*session{}, all: map[*session]bool{}, empty: make(chan struct{}),
		input: budget{limit: maxInputs},
	}
}

// acquireSlot takes a slot for a session of the caller, until release is called.
func (r *registry) acquireSlot(caller api.Caller, box policy.BoxID) (release func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, errStopping
	}
	if r.counts[box] >= maxPerBox {
		return nil, api.Errorf(api.ErrLimit, "box %s has %d sessions open, which is the limit; close some", box, maxPerBox)
	}
	operator := caller.Holder().Operator
	if r.others >= maxOthers && !operator {
		return nil, api.Errorf(api.ErrLimit, "%d sessions are open, which is the limit for keys that are not admin keys; close some", maxOthers)
	}
	r.counts[box]++
	r.total++
	if !operator {
		r.others++
	}
	return sync.OnceFunc(func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.total--
		if !operator {
			r.others--
		}
		if r.counts[box]--; r.counts[box] == 0 {
			delete(r.counts, box)
		}
		if r.closed && r.total == 0 {
			close(r.empty)
		}
	}), nil
}

// stop refuses new sessions and returns the existing ones.
func (r *registry) stop() []*session {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	if r.total == 0 {
		close(r.empty)
	}
	return slices.Collect(maps.Keys(r.all))
}

// add makes the session release its slot once it is forgotten and its command has ended. It fails after stop.
func (r *registry) add(s *session, release func()) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return errStopping
	}
	r.all[s] = true
	s.forget = sync.OnceFunc(func() {
		r.mu.Lock()
		s.forgotten = true
		delete(r.byID, s.id)
		r.mu.Unlock()
		go func() {
			<-s.done
			r.mu.Lock()
			delete(r.all, s)
			r.mu.Unlock()
			release()
		}()
	})
	return nil
}

// publish makes the session findable by its ID, unless it was already forgotten.
func (r *registry) publish(s *session, id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.id = id
	if !s.forgotten {
		r.byID[id] = s
	}
}

// find returns the session of the box with that ID, or nil.
func (r *registry) find(box policy.BoxID, id string) *session {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.byID[id]; s != nil && s.box == box {
		return s
	}
	return nil
}
