package usage

import (
	"context"
	"errors"
	"io"
	"maps"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/host/state"
	"boxgate/launcher"
	"boxgate/policy"
)

// Exec implements the Host of [boxgate/api/exec].
func (u *Service) Exec(ctx context.Context, id policy.BoxID, req api.ExecRequest, stdout, stderr io.Writer) (api.ExecResult, error) {
	var res launcher.Result
	caller := api.CallerOf(ctx).Holder()
	err := u.doFor(ctx, id, req.Left, func(b *state.Box) (err error) {
		res, err = u.sandboxes.Exec(ctx, id, launcher.ExecSpec{
			Args: req.Command, Env: b.EnvironmentWith(req.Env), Cwd: req.Dir, Stdin: req.Stdin, Stdout: stdout, Stderr: stderr,
			Starter: caller.ID, Operator: caller.Operator,
		})
		return err
	})
	var start *launcher.StartError
	switch {
	case errors.As(err, &start):
		if stderr != nil {
			_, _ = io.WriteString(stderr, start.Error()+"\n")
		}
		return api.ExecResult{ExitCode: exitNoProgram}, nil
	case err != nil:
		if ctx.Err() != nil {
			return api.ExecResult{}, ctx.Err()
		}
		return api.ExecResult{}, api.Errorf(api.ErrUnavailable, "the command could not be run: %w", err)
	}
	return api.ExecResult{ExitCode: res.Status, CPU: res.CPU, OutOfMemory: res.OutOfMemory}, nil
}

// exitNoProgram is a shell's exit code for a program that does not exist or cannot be started.
const exitNoProgram = 127

// Tokens returns the placeholder tokens of a box's header rules by variable name, which commands get in place of secrets.
// It is for programs that start commands in attached boxes.
func (u *Service) Tokens(_ context.Context, id policy.BoxID) (map[string]string, error) {
	b, err := u.boxes.Find(id)
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	maps.Copy(out, b.Policy.Load().Tokens())
	return out, nil
}

// RunInit runs the box's init command, if any, in the background. It may be a server and never end.
func (u *Service) RunInit(b *state.Box) {
	id, command := b.ID, b.Record.InitCommand
	if command == "" {
		return
	}
	go func() {
		req := api.ExecRequest{Command: []string{"sh", "-c", command}}
		if res, err := u.Exec(context.Background(), id, req, nil, nil); err != nil || res.ExitCode != 0 {
			u.log.Warn("an init command ended", zap.String("box", string(id)), zap.Int("exit_code", res.ExitCode), zap.Error(err))
		}
	}()
}
