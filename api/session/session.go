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
	proc     api.Session
	in       *inbox
	out      *outbox
	kill     context.CancelCauseFunc
	over     chan struct{} // closed when the command has ended and the fields below are set
	res      api.ExecResult
	err      error

	forget func() // nobody can come back to it any more

	mu         sync.Mutex
	terminated bool
	current    *line       // its connection; nil: none
	waiting    *time.Timer // kills the command unless a client comes; nil while one is there
}

// begin starts the command of a start frame and returns its session, or why it did not start. The session ends with the
// command, but not with ctx.
func (e *Endpoints) begin(ctx context.Context, box policy.BoxID, f *fromClient) (*session, error) {
	req, prompt, err := f.request()
	if err != nil {
		return nil, err
	}
	ctx, kill := context.WithCancelCause(context.WithoutCancel(ctx))
	s := &session{box: box, reattach: f.Reattach, in: newInbox(), out: newOutbox(), kill: kill, over: make(chan struct{})}
	started := make(chan struct{})
	go func() {
		defer close(s.over)
		defer kill(nil)
		job := history.Job{Type: history.Shell, Prompt: prompt}
		_, s.res, s.err = e.history.Do(ctx, box, job, func(ctx context.Context, run *history.Run) (api.ExecResult, error) {
			s.id = run.ID()
			var err error
			if s.proc, err = e.host.StartSession(ctx, box, req, s.in, e.remember(run, s.out.stream("stdout")), e.remember(run, s.out.stream("stderr"))); err != nil {
				return api.ExecResult{}, err
			}
			close(started)
			return s.proc.Wait(unblocked(ctx, s.out))
		})
		s.in.discard()
		s.out.close()
	}()
	select {
	case <-started:
		return s, nil
	case <-s.over:
		return nil, s.err
	}
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

// await has the session wait for its client to come back after a connection broke, unless it has by now.
func (s *session) await(broken *line) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != broken {
		return
	}
	s.current = nil
	s.waiting = time.AfterFunc(patience, func() {
		s.kill(errLost)
		s.forget()
	})
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
	_ = s.proc.Resize(size) // one that has ended has none
	return nil
}
