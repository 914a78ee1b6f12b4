package usage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

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
			Args: req.Command, Env: b.EnvironmentWith(req.Env), Cwd: req.Dir, User: req.User, Stdin: req.Stdin, Stdout: stdout, Stderr: stderr,
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
	return resultOf(res), nil
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

// StartSession implements [boxgate/api/session.Host]. A session without a terminal keeps its box awake while its command
// runs, like any command. One with a terminal does not, since a shell waiting at its prompt would keep the box awake
// forever; input wakes the box, and output counts as use.
func (u *Service) StartSession(ctx context.Context, id policy.BoxID, req api.SessionRequest, stdin io.Reader, stdout, stderr io.Writer) (api.Session, error) {
	s, caller := &session{done: func() {}}, api.CallerOf(ctx).Holder()
	err := u.doAwake(ctx, id, func(b *state.Box) (err error) {
		spec := launcher.ExecSpec{
			Args: req.Command, Env: b.EnvironmentWith(req.Env), Cwd: req.Dir, User: req.User, Stdin: stdin, Stdout: stdout, Stderr: stderr, Bound: true,
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
		return nil, api.Errorf(api.ErrNotStarted, "%v", start)
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
	return resultOf(res), err
}

// resultOf converts the result of a command.
func resultOf(r launcher.Result) api.ExecResult {
	signal := ""
	if r.Signal != 0 {
		signal = strings.TrimPrefix(unix.SignalName(r.Signal), "SIG") // "" for a real-time signal
	}
	return api.ExecResult{ExitCode: r.Status, Signal: signal, CPU: r.CPU, OutOfMemory: r.OutOfMemory}
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

// Settings changes the settings of boxes.
type Settings interface {
	Configure(ctx context.Context, id policy.BoxID, change func(*api.Configuration) error) (api.Box, error)
}

// Git sets the author of git commits made in boxes.
type Git struct {
	usage    *Service
	settings Settings
}

// NewGit returns the service.
func NewGit(u *Service, settings Settings) *Git { return &Git{u, settings} }

// gitIdentity is the default author of commits.
var gitIdentity = launcher.GitIdentity{Name: "Upstash Box", Email: "box@upstash.com"}

// GitIdentityOf returns the author of commits in a box, as long as the box has no git configuration of its own.
func GitIdentityOf(h api.Hosted) launcher.GitIdentity {
	is := gitIdentity
	if h.GitUserName != "" {
		is.Name = h.GitUserName
	}
	if h.GitUserEmail != "" {
		is.Email = h.GitUserEmail
	}
	return is
}

// SetGitIdentity implements the Host of [boxgate/api/git]. The box is configured first, then the identity is stored for
// boxes restored from snapshots.
func (g *Git) SetGitIdentity(ctx context.Context, id policy.BoxID, name, email string) (nowName, nowEmail string, err error) {
	for _, set := range []struct{ key, value string }{{"user.name", name}, {"user.email", email}} {
		if set.value == "" {
			continue
		}
		if err := g.configure(ctx, id, set.key, set.value); err != nil {
			return "", "", err
		}
	}
	box, err := g.settings.Configure(ctx, id, func(c *api.Configuration) error {
		if name != "" {
			c.Hosted.GitUserName = name
		}
		if email != "" {
			c.Hosted.GitUserEmail = email
		}
		return nil
	})
	is := GitIdentityOf(box.Hosted)
	return is.Name, is.Email, err
}

// configure sets a value in the system-wide git configuration of a box.
func (g *Git) configure(ctx context.Context, id policy.BoxID, key, value string) error {
	var out bytes.Buffer
	var res launcher.Result
	err := g.usage.doAwake(ctx, id, func(*state.Box) (err error) {
		res, err = g.usage.sandboxes.Exec(ctx, id, launcher.ExecSpec{
			User: "root", Cwd: "/", Args: []string{"git", "config", "--file", "/etc/gitconfig", "--replace-all", key, value}, Stderr: &out,
		})
		return err
	})
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return api.Errorf(api.ErrConflict, "git cannot be configured in the box: %w", err)
	case res.Status != 0:
		return api.Errorf(api.ErrConflict, "git cannot be configured in the box: %s", strings.ToValidUTF8(clip(strings.TrimSpace(out.String())), "?"))
	}
	return nil
}
