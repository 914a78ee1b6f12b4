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

// patience is how long a session whose connection broke waits for its client.
const patience = time.Minute

var (
	errHungUp = errors.New("its client closed the session")
	errLost   = errors.New("its client did not come back")
)

// session is a command and what passes between it and its client.
type session struct {
	id       string // the run's
	box      policy.BoxID
	reattach bool
	acks     bool          // input is acknowledged
	started  chan struct{} // closed when proc is set and the ID known to the registry
	proc     api.Session
	in       *inbox
	out      *outbox
	kill     context.CancelCauseFunc
	over     chan struct{} // closed when the command has ended and the fields below are set
	res      api.ExecResult
	err      error

	forget    func() // nobody can come back to it any more
	forgotten bool   // guarded by the registry's mu

	mu         sync.Mutex
	early      []func() // what to do once the command has started
	begun      bool     // it has, and nothing is in early
	terminated bool
	stopping   bool
	current    *line       // its connection; nil: none
	waiting    *time.Timer // kills the command unless a client comes; nil while one is there
}

// begin begins a session: its command starts in the background. It ends with the command, but not with ctx.
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

// run is the command of a session from its start to its end.
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

// running reports whether the command has started. It may have ended since.
func (s *session) running() bool {
	select {
	case <-s.started:
		return true
	default:
		return false
	}
}

// maxEarly is how much a client may ask for before its command has started.
const maxEarly = 64

// onceStarted does something to the command, in the order in which it was asked for.
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

// catchUp does what was asked for before the command had started.
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

// unblocked is a context with whose end the command's output is taken, and thrown away.
func unblocked(ctx context.Context, out *outbox) context.Context {
	context.AfterFunc(ctx, out.close)
	return ctx
}

// remember copies the beginning of a run's output into the history on its way to w.
func (e *Endpoints) remember(r *history.Run, w writerFunc) writerFunc {
	return func(b []byte) (int, error) {
		e.history.Wrote(r, b)
		return w(b)
	}
}

// attach makes a connection that of the session. The one that it had is ended, and obeys no frame any more when attach returns.
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

// errTaken ends the connection of a session that its client has come back to on another one.
var errTaken = errors.New("the session was taken over by another connection")

// leave takes leave of a connection that has ended, unless another one has taken over by now. The session waits for its client to come
// back if that may be, and ends otherwise.
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

// stop ends the session. Its connection, if it has one, is told by others.
func (s *session) stop() {
	s.kill(errStopping)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopping = true
	if s.current == nil {
		s.forget()
	}
}

// terminate asks the command to end, and kills it if it has not after a while. Only the first call counts.
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

// last is the frame that says how the session ended; the command has ended.
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
	return s.onceStarted(func() { _ = s.proc.Resize(size) }) // one that has ended has none
}
