package launcher

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"boxgate/launcher/container"
	"boxgate/launcher/furnish"
	"boxgate/launcher/process"
	"boxgate/policy"
)

// StartError is returned when a command could not be started in a box: no such program, no such directory.
type StartError struct {
	Program string
	Message string // the runtime's own message
}

// Error returns the program and the runtime's message.
func (e *StartError) Error() string { return fmt.Sprintf("cannot start %q: %s", e.Program, e.Message) }

// Exec runs a command in a box and returns its exit status once it has ended and all its output has been delivered: the
// status it exited with, or 128 plus the number of the signal that killed it. For a command that could not be started
// it returns 127 and a *StartError.
//
// When ctx ends first, the command and its process group are killed and the error is ctx's. What a command leaves
// running in the background, in a group of its own or after its own end, keeps running; Exec does not wait for it, even
// if it has the command's output open, and discards what it still writes there. Of outputs kept open like that, the
// last 64 of a box are kept; a process that writes to an older one gets EPIPE.
func (l *Launcher) Exec(ctx context.Context, id policy.BoxID, spec ExecSpec) (int, error) {
	r, err := l.load(id)
	if err != nil {
		return -1, err
	}
	if !r.Created {
		return -1, fmt.Errorf("box %s: %w", id, ErrNotRunning)
	}
	user, err := parseUser(spec.User)
	if err != nil {
		return -1, err
	}
	config, err := commandProcess(r, user, spec)
	if err != nil {
		return -1, err
	}
	defer l.execs.begin(id)()
	ends := process.Stdio{In: spec.Stdin, Out: spec.Stdout, Err: spec.Stderr}
	streams, err := process.Open(ends, r.ids().Host(user.uid))
	if err != nil {
		return -1, err
	}
	command, err := l.startCommand(ctx, r, config, streams)
	if err != nil {
		streams.Abandon()
		var start *StartError
		if errors.As(err, &start) {
			return 127, err
		}
		return -1, err
	}
	finish := streams.Pump(ends, func(left *os.File) { l.background.Swallow(id, left) })
	defer finish()
	return command.Await(ctx)
}

// startCommand makes the runtime start a process and leave it to us. It does not stop immediately when ctx ends, or the
// runtime would leave a half-started process behind.
func (l *Launcher) startCommand(ctx context.Context, r record, p *specs.Process, streams *process.Streams) (*process.Process, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	started, err := l.motion.Begin(ctx, r.ID)
	if err != nil {
		return nil, fmt.Errorf("box %s: %w", r.ID, err)
	}
	defer started()
	lim, err := r.Size.limits()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(l.dirs.execFiles(), string(r.ID)+"-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	files := execFiles{filepath.Join(dir, "process.json"), filepath.Join(dir, "pid"), filepath.Join(dir, "log")}
	data, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(files.process, data, 0o600); err != nil {
		return nil, err
	}
	startCtx, cancel := graceAfter(ctx, 5*time.Second)
	defer cancel()
	if err := l.runtimeExec(startCtx, r.ID, lim, files, streams); err != nil {
		return nil, l.explainExec(ctx, r.ID, p.Args[0], runtimeError(files.log, err))
	}
	pid, err := readPid(files.pid)
	if err != nil {
		return nil, err
	}
	return process.Adopt(pid)
}

// execFiles are the files exchanged with the runtime when a command starts: the process to start, its ID, and the
// runtime's log.
type execFiles struct{ process, pid, log string }

// runtimeExec calls the runtime's exec. go-runc's own exec writes the process with all its environment to the system's
// directory for temporary files, where it stays if this program is killed. Our files are in a private directory,
// usually on a file system in memory, and Recover empties it.
func (l *Launcher) runtimeExec(ctx context.Context, id policy.BoxID, lim container.Limits, files execFiles, streams *process.Streams) error {
	cmd := l.runtimeCommand(ctx, files.log, "exec", "--process", files.process, "--detach", "--pid-file", files.pid, string(id))
	streams.Connect(cmd)
	err := container.StartLimited(cmd, lim)
	streams.CloseFar() // only then do our ends notice that the command has closed its own
	if err != nil {
		return err
	}
	return cmd.Wait()
}

// explainExec finds out why a command did not start: because of the box, or because of the command.
func (l *Launcher) explainExec(ctx context.Context, id policy.BoxID, program string, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	st, serr := l.State(ctx, id)
	switch {
	case serr != nil:
		return serr
	case st.State == StatePaused:
		return fmt.Errorf("box %s: %w", id, ErrPaused)
	case st.State == StateError:
		return fmt.Errorf("box %s: %w", id, ErrNotRunning)
	default:
		return &StartError{Program: program, Message: err.Error()}
	}
}

// graceAfter returns a context that ends some time after another one does.
func graceAfter(ctx context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	late, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var timer *time.Timer
	var mu sync.Mutex
	stop := context.AfterFunc(ctx, func() {
		mu.Lock()
		defer mu.Unlock()
		timer = time.AfterFunc(grace, cancel)
	})
	return late, func() {
		stop()
		cancel()
		mu.Lock()
		defer mu.Unlock()
		if timer != nil {
			timer.Stop()
		}
	}
}

// execUser is the user a command runs as, with IDs of the box.
type execUser struct {
	uid, gid   int
	name, home string
}

// parseUser parses ExecSpec.User. Names other than the two that every box has are not looked up, because the box can
// write its own user database.
func parseUser(s string) (execUser, error) {
	switch s {
	case "", furnish.User:
		return execUser{furnish.UID, furnish.UID, furnish.User, furnish.Home}, nil
	case "root":
		return execUser{0, 0, "root", "/root"}, nil
	}
	u, g, hasGroup := strings.Cut(s, ":")
	if !hasGroup {
		g = u
	}
	uid, uerr := strconv.ParseUint(u, 10, 16)
	gid, gerr := strconv.ParseUint(g, 10, 16)
	if uerr != nil || gerr != nil {
		return execUser{}, fmt.Errorf(`user %q is unknown: use boxuser, root, UID or UID:GID with IDs below 65536`, s)
	}
	return execUser{int(uid), int(gid), u, furnish.Home}, nil
}

// commandProcess is a command in the runtime's format.
func commandProcess(r record, user execUser, spec ExecSpec) (*specs.Process, error) {
	if len(spec.Args) == 0 || spec.Args[0] == "" {
		return nil, errors.New("no command given")
	}
	for _, a := range spec.Args {
		if strings.ContainsRune(a, 0) {
			return nil, errors.New("an argument contains NUL")
		}
	}
	if strings.ContainsRune(spec.Cwd, 0) {
		return nil, errors.New("the working directory contains NUL")
	}
	if err := checkEnv(spec.Env); err != nil {
		return nil, err
	}
	lim, err := r.Size.limits()
	if err != nil {
		return nil, err
	}
	cwd := spec.Cwd
	if !path.IsAbs(cwd) {
		cwd = path.Join(furnish.Home, cwd)
	}
	return container.Command{
		Args: spec.Args, Env: environment(r.Base, user, r.Env, spec.Env), Cwd: path.Clean(cwd), UID: user.uid, GID: user.gid, Limits: lim,
	}.Process(), nil
}

// execCount counts the active commands of each box.
type execCount struct {
	mu     sync.Mutex
	active map[policy.BoxID]int // guarded by mu
}

func (c *execCount) begin(id policy.BoxID) (end func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.active == nil {
		c.active = map[policy.BoxID]int{}
	}
	c.active[id]++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.active[id]--; c.active[id] == 0 {
			delete(c.active, id)
		}
	}
}

func (c *execCount) busy(id policy.BoxID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.active[id] > 0
}
