package launcher

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"boxgate/launcher/container"
	"boxgate/launcher/rootfs"
	"boxgate/policy"
)

// StartError reports that a command could not be started in a box, for example for lack of the program or directory.
type StartError struct {
	Program string
	Message string // the runtime's message
}

// Error returns the program and the runtime's message.
func (e *StartError) Error() string { return fmt.Sprintf("cannot start %q: %s", e.Program, e.Message) }

// Result describes how a command ended.
type Result struct {
	Status int           // its exit status, or 128 plus the signal number that killed it
	CPU    time.Duration // used by the command and its descendants until it ended; 0 if unknown
	// OutOfMemory: the command was killed while the kernel killed processes of the box for lack of memory. If several
	// commands are killed in that period, it is set for all of them.
	OutOfMemory bool
}

// Exec runs a command in a box to its end: Start and Wait. If the command cannot be started, it returns status 127 and a
// *StartError.
func (l *Launcher) Exec(ctx context.Context, id policy.BoxID, spec ExecSpec) (Result, error) {
	c, err := l.Start(ctx, id, spec)
	if err != nil {
		var start *StartError
		if errors.As(err, &start) {
			return Result{Status: 127}, err
		}
		return Result{Status: -1}, err
	}
	return c.Wait(ctx)
}

// graceAfter returns a context that ends a grace period after ctx.
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

// execUser is the user that a command runs as, with IDs of the box.
type execUser struct {
	uid, gid   int
	name, home string
}

// parseUser parses ExecSpec.User. Other names than the two that every box has are not looked up, because the box can write
// its own user database.
func parseUser(s string) (execUser, error) {
	switch s {
	case "", rootfs.User:
		return execUser{rootfs.UID, rootfs.UID, rootfs.User, rootfs.Home}, nil
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
	return execUser{int(uid), int(gid), u, rootfs.Home}, nil
}

// commandProcess converts a command to the runtime's format.
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
		cwd = path.Join(rootfs.Home, cwd)
	}
	env, box := spec.Env, (*specs.Box)(nil)
	if t := spec.Terminal; t != nil {
		env, box = withTerm(env), &specs.Box{Height: uint(t.Rows), Width: uint(t.Cols)}
	}
	return container.Command{
		Args: spec.Args, Env: environment(r.Base, user, r.Env, env), Cwd: path.Clean(cwd), UID: user.uid, GID: user.gid, Limits: lim,
		Terminal: box,
	}.Process(), nil
}

// withTerm sets the default TERM, which the caller's environment can override.
func withTerm(env map[string]string) map[string]string {
	with := map[string]string{"TERM": "xterm-256color"}
	maps.Copy(with, env)
	return with
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
