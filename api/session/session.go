package session

import (
	"context"
	"errors"
	"sync"
	"time"

	"boxgate/api"
	"boxgate/api/history"
	"boxgate/api/problem"
	"boxgate/policy"
)

// patience is how long a session waits for its client to reconnect.
const patience = time.Minute

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
	over     chan struct{} // closed once the command has ended and the fields below are set
	res      api.ExecResult
	err      error

	forget    func() // makes the session unavailable for reconnecting
	forgotten bool   // guarded by the registry's mu

	mu         sync.Mutex
	early      []func() // actions to run once the command has started
	begun      bool     // the command has started and early is empty
	terminated bool
	stopping   bool
	current    *line       // nil: not connected
	waiting    *time.Timer // kills the command unless the client reconnects; nil while connected
}

// begin creates a session and starts its command in the background. The session ends with the command, not with ctx.
func (e *Endpoints) begin(ctx context.Context, box policy.BoxID, f *fromClient, leave func()) (*session, error) {
	req, prompt, err := f.request()
	if err != nil {
		return nil, err
	}
	ctx, kill := context.WithCancelCause(context.WithoutCancel(ctx))
	s := &session{
		box: box, reattach: f.Reattach, acks: f.Reattach || f.AckInput, out: newOutbox(), kill: kill,
		started: make(chan struct{}), over: make(chan struct{}),
	}
	s.in = newInbox(s.acks, &e.open.input)
	if err := e.open.add(s, leave); err != nil {
		kill(err)
		return nil, err
	}
	go e.run(ctx, s, req, prompt)
	return s, nil
}

// run runs the command of a session.
func (e *Endpoints) run(ctx context.Context, s *session, req api.SessionRequest, prompt string) {
	defer close(s.over)
	defer s.kill(nil)
	job := history.Job{Type: history.Shell, Prompt: prompt}
	_, s.res, s.err = e.history.Do(ctx, s.box, job, func(ctx context.Context, run *history.Run) (api.ExecResult, error) {
		proc, err := e.host.StartSession(ctx, s.box, req, s.in, e.remember(run, s.out.stream("stdout")), e.remember(run, s.out.stream("stderr")))
		if err != nil {
			return api.ExecResult{}, err
		}
		s.proc = proc
		e.open.know(s, run.ID())
		close(s.started)
		s.catchUp()
		return proc.Wait(unblocked(ctx, s.out))
	})
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

// maxEarly bounds the number of actions requested before the command has started.
const maxEarly = 64

// onceStarted runs an action as soon as the command has started. Actions run in the order of the calls.
func (s *session) onceStarted(do func()) error {
	s.mu.Lock()
	if s.begun {
		s.mu.Unlock()
		do()
		return nil
	}
	defer s.mu.Unlock()
	if len(s.early) >= maxEarly {
		return problem.Invalid("/type", "is the %dth frame before the command has started; wait for it", maxEarly+1)
	}
	s.early = append(s.early, do)
	return nil
}

// catchUp runs the actions requested before the command started.
func (s *session) catchUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.early) > 0 {
		early := s.early
		s.early = nil
		s.mu.Unlock()
		for _, do := range early {
			do()
		}
		s.mu.Lock()
	}
	s.begun = true
}

// unblocked returns ctx. When ctx ends, further output of the command is discarded, so that it does not block.
func unblocked(ctx context.Context, out *outbox) context.Context {
	context.AfterFunc(ctx, out.close)
	return ctx
}

// remember records the beginning of a run's output in the history and passes the output on to w.
func (e *Endpoints) remember(r *history.Run, w writerFunc) writerFunc {
	return func(b []byte) (int, error) {
		e.history.Wrote(r, b)
		return w(b)
	}
}

// attach makes l the connection of the session. A previous connection is ended; once attach returns, it handles no more
// frames.
func (s *session) attach(l *line) {
	s.mu.Lock()
	before := s.current
	s.current = l
	if s.waiting != nil {
		s.waiting.Stop()
		s.waiting = nil
	}
	s.mu.Unlock()
	if before != nil {
		before.end(errTaken)
		<-before.left
	}
}

// errTaken ends the previous connection when the client reconnects.
var errTaken = errors.New("the session was taken over by another connection")

// leave removes a connection that has ended, unless another connection has replaced it. If the client may come back, the
// session waits for it; otherwise the session ends.
func (s *session) leave(l *line, mayComeBack bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != l {
		return
	}
	s.current = nil
	if !mayComeBack || s.stopping {
		s.kill(errHungUp)
		s.forget()
		return
	}
	s.waiting = time.AfterFunc(patience, func() {
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
	if s.current == nil {
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
		<-s.over
		timer.Stop()
	}()
}

// last returns the session's final frame. The command must have ended.
func (s *session) last() toClient {
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
	return s.onceStarted(func() { _ = s.proc.Resize(size) }) // an ended command has no terminal to resize
}
