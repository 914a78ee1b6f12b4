package launcher

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"boxgate/launcher/boxfs"
	"boxgate/launcher/cgroup"
	"boxgate/launcher/container"
	"boxgate/launcher/enter"
	"boxgate/launcher/process"
	"boxgate/launcher/terminal"
	"boxgate/policy"
)

// useEntering prepares to start commands without the runtime, where that is possible; otherwise it logs the reason.
func (l *Launcher) useEntering() {
	l.entering = nil
	if !l.runtime.Enterable || l.cfg.AttachOnly {
		return
	}
	p, err := enter.New()
	if err != nil {
		l.log.Warn("commands in boxes are started by the runtime, which is slower", zap.Error(err))
		return
	}
	l.entering = p
}

// logNotEntered logs why the runtime starts a command: for the first one as information, since all others may be slower
// too.
func (l *Launcher) logNotEntered(id policy.BoxID, err error) {
	level := zap.DebugLevel
	if l.notEntered.CompareAndSwap(false, true) {
		level = zap.InfoLevel
	}
	l.log.Log(level, "a box cannot be entered; the runtime starts its command", zap.String("box", string(id)), zap.Error(err))
}

// enterBox starts a command by entering the box. On an error that wraps [enter.ErrNotEntered], no process of the box has
// run, and the runtime may start the command instead: it confines it in the same way.
func (l *Launcher) enterBox(ctx context.Context, id policy.BoxID, p *specs.Process, lim container.Limits, branch *cgroup.Branch, streams *process.Streams) (*Command, error) {
	started, err := l.enterWith(ctx, id, enter.Command{Process: p, Limits: container.Rlimits(lim)}, branch, streams.Far())
	if err != nil {
		return nil, err
	}
	streams.CloseFar() // only then do our ends see EOF when the command closes its own
	c, err := adoptStarted(started.PID, branch)
	if err != nil {
		_ = unix.Kill(started.PID, unix.SIGKILL)
		_ = process.ReapLater(started.PID)
		if started.Terminal != nil {
			started.Terminal.Close()
		}
		return nil, err
	}
	if !p.Terminal {
		return c, nil
	}
	if c.tty, err = terminal.Master(started.Terminal); err != nil {
		_, _ = c.proc.Await(endedContext())
		return nil, err
	}
	streams.Attach(c.tty)
	return c, nil
}

// enterWith starts a command, which has no filter and control groups yet, by entering the box. The errors are those of [Launcher.enterBox].
func (l *Launcher) enterWith(ctx context.Context, id policy.BoxID, command enter.Command, branch *cgroup.Branch, streams [3]*os.File) (enter.Started, error) {
	ctx, cancel := withRuntimeTimeout(ctx)
	defer cancel()
	var err error
	if command.Filter, err = l.filters.of(id, filepath.Join(l.dirs.bundle(id), "config.json")); err != nil {
		return enter.Started{}, errors.Join(enter.ErrNotEntered, err)
	}
	first, err := l.FirstProcess(id)
	if err != nil {
		return enter.Started{}, errors.Join(enter.ErrNotEntered, err)
	}
	defer first.Close()
	command.Lost = func() {
		process.ReapOrphans(branch.Has)
		_ = killHalfStarted(branch)
	}
	if command.Groups, command.Unified, err = l.cgroup(id).Directories(branch); err != nil {
		return enter.Started{}, errors.Join(enter.ErrNotEntered, err)
	}
	return l.entering.Start(ctx, first, command, streams)
}

// filesProcess starts a process that works on the files of a box with the credentials of a command of a user, as [boxfs.Config.Enter] describes.
// It is in a control group of its own below the box's, so that a process that the box kills while it starts is found and reaped.
func (l *Launcher) filesProcess(ctx context.Context, r record, user execUser, args, env []string, streams [3]*os.File) (_ boxfs.Process, err error) {
	config, err := l.commandProcess(r, user, ExecSpec{Args: args, Cwd: "/"})
	if err != nil {
		return nil, err
	}
	config.Env = env // that of commands has secrets of the box's user
	lim, err := r.Size.limits()
	if err != nil {
		return nil, err
	}
	started, err := l.motion.BeginStart(ctx, r.ID)
	if err != nil {
		return nil, fmt.Errorf("box %s: %w", r.ID, err)
	}
	defer started()
	self, err := enter.OpenSelf()
	if err != nil {
		return nil, err
	}
	defer self.Close()
	branch, err := l.cgroup(r.ID).NewBranch(branchName(), l.runtime.CgroupFlag)
	if err == nil && branch == nil {
		err = ErrOwnFilesOnly // the host has no control groups for single commands
	}
	if err != nil {
		return nil, err
	}
	leave := func() { l.branches.RemoveWhenEmpty(l.cgroup(r.ID), branch) }
	defer func() {
		if err != nil {
			leave()
		}
	}()
	if err := l.branches.Bind(branch); err != nil {
		return nil, err
	}
	entered, err := l.enterWith(ctx, r.ID, enter.Command{Process: config, Limits: container.Rlimits(lim), Executable: self}, branch, streams)
	if err != nil {
		return nil, l.explainExec(ctx, r.ID, args[0], err)
	}
	proc, err := process.Adopt(entered.PID, branch)
	if err != nil {
		_ = unix.Kill(entered.PID, unix.SIGKILL)
		_ = process.ReapLater(entered.PID)
		return nil, err
	}
	return &enteredProcess{Process: proc, pid: entered.PID, leave: leave}, nil
}

// enteredProcess implements [boxfs.Process].
type enteredProcess struct {
	*process.Process
	pid   int
	leave func() // removes its control group
}

// Pid implements [boxfs.Process].
func (e *enteredProcess) Pid() int { return e.pid }

// Wait implements [boxfs.Process].
func (e *enteredProcess) Wait() {
	_, _ = e.Await(context.Background()) // its exit status no longer matters
	e.leave()
}

// filters has the compiled seccomp filters of boxes. Boxes with the same profile share one. The zero value is ready to
// use. Safe for concurrent use.
type filters struct {
	mu       sync.Mutex
	boxes    map[policy.BoxID]*filter      // guarded by mu
	profiles map[[sha256.Size]byte]*filter // guarded by mu
}

type filter struct {
	key   [sha256.Size]byte // of the profile
	boxes int
	code  []unix.SockFilter
}

// of returns the filter of a box, whose runtime's configuration is in a file.
func (f *filters) of(id policy.BoxID, config string) ([]unix.SockFilter, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if known := f.boxes[id]; known != nil {
		return known.code, nil
	}
	data, err := os.ReadFile(config)
	if err != nil {
		return nil, err
	}
	var spec struct {
		Linux struct {
			Seccomp json.RawMessage `json:"seccomp"`
		} `json:"linux"`
	}
	if err := json.Unmarshal(data, &spec); err != nil {
		return nil, fmt.Errorf("%s: %w", config, err)
	}
	key := sha256.Sum256(spec.Linux.Seccomp)
	shared := f.profiles[key]
	if shared == nil {
		code, err := enter.Compile(spec.Linux.Seccomp)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", config, err)
		}
		shared = &filter{key: key, code: code}
	}
	if f.boxes == nil {
		f.boxes, f.profiles = map[policy.BoxID]*filter{}, map[[sha256.Size]byte]*filter{}
	}
	shared.boxes++
	f.boxes[id], f.profiles[key] = shared, shared
	return shared.code, nil
}

// forget forgets a box, which ends or gets a new configuration.
func (f *filters) forget(id policy.BoxID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	known := f.boxes[id]
	if known == nil {
		return
	}
	delete(f.boxes, id)
	if known.boxes--; known.boxes == 0 {
		delete(f.profiles, known.key)
	}
}
