package main

import (
	"context"
	"errors"
	"io"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/launcher"
	"boxgate/policy"
)

// Exec implements [api.Host].
func (h *host) Exec(ctx context.Context, id policy.BoxID, req api.ExecRequest, stdout, stderr io.Writer) (api.ExecResult, error) {
	b, err := h.find(id)
	if err != nil {
		return api.ExecResult{}, err
	}
	if err := b.begin(); err != nil {
		return api.ExecResult{}, err
	}
	defer b.end()
	code, err := h.launcher.Exec(ctx, id, launcher.ExecSpec{
		Args: req.Command, Env: b.env(), Cwd: req.Dir, Stdout: stdout, Stderr: stderr,
	})
	var start *launcher.StartError
	switch {
	case errors.As(err, &start):
		_, _ = io.WriteString(stderr, start.Error()+"\n")
		return api.ExecResult{ExitCode: exitNoProgram}, nil
	case err != nil:
		if ctx.Err() != nil {
			return api.ExecResult{}, ctx.Err()
		}
		return api.ExecResult{}, api.Errorf(api.ErrUnavailable, "the command could not be run: %w", err)
	}
	return api.ExecResult{ExitCode: code}, nil
}

// exitNoProgram is what a shell answers for a program that does not exist or cannot be started.
const exitNoProgram = 127

// env is the environment that was given with the box. It comes with every command and is not in the container's own
// configuration, which lies on disk as it is.
func (b *box) env() map[string]string {
	env := make(map[string]string, len(b.record.Env))
	for name, value := range b.record.Env {
		env[name] = value.Reveal()
	}
	return env
}

// begin notes that a command runs.
func (b *box) begin() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.gone(); err != nil {
		return err
	}
	if b.status != api.StatusIdle {
		return api.Errorf(api.ErrConflict, "the box is %s: %s", b.status, b.problem)
	}
	b.running++
	b.lastActivity = time.Now()
	return nil
}

// end notes that a command is over.
func (b *box) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.running--
	b.lastActivity = time.Now()
}

// runInit runs the box's init command in the background; it may be a server and never end.
func (h *host) runInit(b *box) {
	id, command := b.ID, b.record.InitCommand
	go func() {
		req := api.ExecRequest{Command: []string{"sh", "-c", command}}
		if res, err := h.Exec(context.Background(), id, req, io.Discard, io.Discard); err != nil || res.ExitCode != 0 {
			h.log.Warn("an init command ended", zap.String("box", string(id)), zap.Int("exit_code", res.ExitCode), zap.Error(err))
		}
	}()
}
