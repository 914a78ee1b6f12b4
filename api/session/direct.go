package session

import (
	"context"
	"io"
	"time"

	"boxgate/api"
	"boxgate/api/history"
	"boxgate/policy"
)

// Direct is a command whose streams this process moves, for a client of another protocol than this API's.
type Direct struct {
	Request api.SessionRequest
	Prompt  string        // for the history of the box
	Timeout time.Duration // after which the command is killed; 0: never
	In      io.Reader
	Out     io.Writer
	Err     io.Writer // not used with a terminal
	// Started is called once the command runs, with the ID of its run.
	Started func(proc api.Session, run string)
}

// Run runs a command to its end. It counts as a session: it takes a slot of its box and of the caller of ctx, is in the history, and
// ends with [Endpoints.Stop]. When ctx ends, the command is killed. A command that could not be run is an error.
func (e *Endpoints) Run(ctx context.Context, box policy.BoxID, d Direct) (api.ExecResult, error) {
	ctx, leave, err := e.Enter(ctx, box)
	if err != nil {
		return api.ExecResult{}, err
	}
	defer leave()
	job := history.Job{Type: history.Shell, User: d.Request.User, Prompt: d.Prompt, Timeout: d.Timeout}
	_, res, err := e.history.Do(ctx, box, job, func(ctx context.Context, run *history.Run) (api.ExecResult, error) {
		out, stderr := e.recordOutput(run, d.Out.Write), e.recordOutput(run, d.Err.Write)
		proc, err := e.host.StartSession(ctx, box, d.Request, d.In, out, stderr)
		if err != nil {
			return api.ExecResult{}, err
		}
		d.Started(proc, run.ID())
		return proc.Wait(ctx)
	})
	if err != nil && context.Cause(ctx) != nil {
		err = context.Cause(ctx)
	}
	return res, err
}

// Enter takes a slot of a box, and of the caller of ctx, for something that is counted like a session, until leave is called. The
// returned context ends with [Endpoints.Stop] too.
func (e *Endpoints) Enter(ctx context.Context, box policy.BoxID) (_ context.Context, leave func(), err error) {
	release, err := e.open.acquireSlot(api.CallerOf(ctx), box)
	if err != nil {
		return nil, nil, err
	}
	ctx, end := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-e.stopping:
			end(errStopping)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { end(nil); release() }, nil
}
