package usage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/api"
	"boxgate/host/state"
	"boxgate/launcher"
	"boxgate/policy"
)

// StartSession implements [boxgate/api/session.Host]. A session without a terminal keeps its box awake while its command
// runs, like any command. One with a terminal does not, since a shell waiting at its prompt would keep the box awake
// forever; input wakes the box, and output counts as use.
func (u *Service) StartSession(ctx context.Context, id policy.BoxID, req api.SessionRequest, stdin io.Reader, stdout, stderr io.Writer) (api.Session, error) {
	s, caller := &session{done: func() {}}, api.CallerOf(ctx).Holder()
	err := u.doAwake(ctx, id, func(b *state.Box) (err error) {
		spec := launcher.ExecSpec{
			Args: req.Command, Env: b.EnvironmentWith(req.Env), Cwd: req.Dir, Stdin: stdin, Stdout: stdout, Stderr: stderr, Bound: true,
			Starter: caller.ID, Operator: caller.Operator,
		}
		if req.Terminal != nil {
			size := launcher.TerminalSize(*req.Terminal)
			spec.Terminal, spec.Stderr = &size, nil
			spec.Stdin = wakingInput{ctx, u, id, stdin}
			spec.Stdout = countingOutput{b, stdout}
		}
		s.command, err = u.sandboxes.Start(ctx, id, spec)
		return err
	})
	switch start := (*launcher.StartError)(nil); {
	case errors.As(err, &start):
		return nil, api.Errorf(api.ErrUnavailable, "%v", start)
	case err != nil && ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, err
	}
	if req.Terminal == nil {
		if _, done, err := u.acquire(ctx, id); err == nil {
			s.done = done
		}
	}
	return s, nil
}

// session adapts a command of the launcher to the API.
type session struct {
	command *launcher.Command
	done    func() // releases the box, so that it may be paused
}

// Pid implements [api.Session].
func (s *session) Pid() int { return s.command.Pid() }

// Signal implements [api.Session].
func (s *session) Signal(name string) error {
	if !api.IsSessionSignal(name) {
		return fmt.Errorf("signal %q cannot be sent", name)
	}
	if sig := unix.SignalNum("SIG" + name); sig != unix.SIGKILL {
		s.command.Signal(sig)
		return nil
	}
	s.command.Kill()
	return nil
}

// Resize implements [api.Session].
func (s *session) Resize(size api.TerminalSize) error {
	return s.command.Resize(launcher.TerminalSize(size))
}

// Wait implements [api.Session].
func (s *session) Wait(ctx context.Context) (api.ExecResult, error) {
	defer s.done()
	res, err := s.command.Wait(ctx)
	return api.ExecResult{ExitCode: res.Status, CPU: res.CPU, OutOfMemory: res.OutOfMemory}, err
}

// wakingInput is the input of a terminal. It wakes the box before the command gets data.
type wakingInput struct {
	ctx   context.Context
	usage *Service
	id    policy.BoxID
	r     io.Reader
}

// Read implements [io.Reader].
func (i wakingInput) Read(p []byte) (int, error) {
	n, err := i.r.Read(p)
	if n > 0 {
		_, done, werr := i.usage.acquire(i.ctx, i.id)
		if werr != nil {
			return 0, werr
		}
		done()
	}
	return n, err
}

// countingOutput is the output of a terminal. It counts as a use of the box.
type countingOutput struct {
	box *state.Box
	w   io.Writer
}

// Write implements [io.Writer].
func (o countingOutput) Write(p []byte) (int, error) {
	o.box.Gate.Touch(time.Now())
	return o.w.Write(p)
}
