package launcher

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"boxgate/launcher/boxfs"
	"boxgate/launcher/cgroup"
	"boxgate/launcher/container"
	"boxgate/launcher/enter"
	"boxgate/launcher/process"
	"boxgate/launcher/rootfs"
	"boxgate/launcher/terminal"
	"boxgate/policy"
)

// Command is a running command in a box. [Command.Wait] must be called once.
type Command struct {
	proc   *process.Process
	branch *cgroup.Branch
	tty    *os.File // master side of its terminal, or nil
	inner  int
	// Called in this order after the command has ended; its background processes keep running.
	releaseBranch, finishOutput, cleanUp func()

	box       cgroup.Group
	oomBefore uint64 // the box's OOM kill count when the command started
}

// Start starts a command in its own control group below the box's, so that its CPU time can be measured and its whole
// process tree killed. If the command cannot be started, the error is a *StartError.
func (l *Launcher) Start(ctx context.Context, id policy.BoxID, spec ExecSpec) (*Command, error) {
	r, err := l.loadRecord(id)
	if err != nil {
		return nil, err
	}
	if !r.Created {
		return nil, fmt.Errorf("box %s: %w", id, ErrNotRunning)
	}
	user, err := parseUser(r.Account, spec.User)
	if err != nil {
		return nil, err
	}
	config, err := l.commandProcess(r, user, spec)
	if err != nil {
		return nil, err
	}
	ends := process.Stdio{In: spec.Stdin, Out: spec.Stdout, Err: spec.Stderr}
	open := func() (*process.Streams, error) { return process.Open(ends, r.ids().Host(user.uid)) }
	if spec.Terminal != nil {
		open = process.OpenForTerminal
	}
	streams, err := open()
	if err != nil {
		return nil, err
	}
	end, kills := l.execs.begin(id), l.cgroup(id).OOMKills()
	c, err := l.startWithSlot(ctx, r, config, spec, streams)
	if err != nil {
		streams.CloseAll()
		end()
		return nil, err
	}
	c.box, c.oomBefore = l.cgroup(id), kills
	c.finishOutput = streams.Pump(ends, func(left *os.File) { l.background.Discard(id, left) }, func(n int) { l.background.WaitDiscard(id, n) })
	c.releaseBranch = func() { l.branches.Unbind(c.branch) }
	c.cleanUp = func() {
		l.branches.RemoveWhenEmpty(l.cgroup(id), c.branch)
		end()
	}
	return c, nil
}

// Pid returns the command's process ID inside the box.
func (c *Command) Pid() int { return c.inner }

// Signal sends a signal to the command and all its descendants, wherever they have moved in the process tree.
func (c *Command) Signal(sig unix.Signal) { c.proc.Signal(sig) }

// Kill kills the command and all its descendants.
func (c *Command) Kill() { c.proc.Kill() }

// Resize sets the size of the command's terminal, if it has one.
func (c *Command) Resize(s terminal.Size) error {
	if c.tty == nil {
		return nil
	}
	return terminal.Resize(c.tty, s)
}

// Wait waits for the command to end and all its output to be delivered.
//
// When ctx ends first, Wait kills the command and all its descendants and returns ctx's error. Background processes of a
// command that ended normally keep running; Wait does not wait for them even if they hold the command's output open, and
// discards what they write. Of such outputs, the last 64 of a box are kept open; a process that writes to an older one gets
// EPIPE.
func (c *Command) Wait(ctx context.Context) (Result, error) {
	defer c.cleanUp()
	defer c.finishOutput()
	status, err := c.proc.Await(ctx)
	c.releaseBranch()
	res := Result{Status: status, Signal: c.proc.KilledBy(), CPU: c.branch.CPU()}
	res.OutOfMemory = status == signalled+int(unix.SIGKILL) && c.box.OOMKills() > c.oomBefore
	return res, err
}

// signalled is added to a signal number to form the exit status of a command killed by that signal.
const signalled = 128

// startWithSlot is startCommand with a slot of [startSlots]. The operator needs no slot.
func (l *Launcher) startWithSlot(ctx context.Context, r record, p *specs.Process, spec ExecSpec, streams *process.Streams) (*Command, error) {
	if spec.Operator {
		return l.startCommand(ctx, r, p, spec.Bound, streams)
	}
	done, err := l.starts.acquire(ctx, starterOf(r.ID, spec))
	if err != nil {
		return nil, err
	}
	defer done()
	return l.startCommand(ctx, r, p, spec.Bound, streams)
}

// startCommand starts a process, by entering the box or with the runtime. The runtime is not stopped immediately when ctx
// ends, because it would leave a half-started process behind.
func (l *Launcher) startCommand(ctx context.Context, r record, p *specs.Process, bound bool, streams *process.Streams) (_ *Command, err error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	started, err := l.motion.BeginStart(ctx, r.ID)
	if err != nil {
		return nil, fmt.Errorf("box %s: %w", r.ID, err)
	}
	defer started()
	lim, err := r.Size.limits()
	if err != nil {
		return nil, err
	}
	branch, err := l.cgroup(r.ID).NewBranch(branchName(), l.runtime.CgroupFlag)
	if err != nil {
		return nil, l.explainExec(ctx, r.ID, p.Args[0], err)
	}
	defer func() {
		if err != nil {
			l.branches.RemoveWhenEmpty(l.cgroup(r.ID), branch)
		}
	}()
	if bound {
		if err := l.branches.Bind(branch); err != nil {
			return nil, err
		}
	}
	if l.entering != nil {
		c, err := l.enterBox(ctx, r.ID, p, lim, branch, streams)
		if err == nil {
			return c, nil
		}
		if !errors.Is(err, enter.ErrNotEntered) || l.entersOnly {
			return nil, l.explainExec(ctx, r.ID, p.Args[0], err)
		}
		l.logNotEntered(r.ID, err)
	}
	return l.startByRuntime(ctx, r.ID, p, lim, branch, streams)
}

// startByRuntime starts a command with the runtime's exec.
func (l *Launcher) startByRuntime(ctx context.Context, id policy.BoxID, p *specs.Process, lim container.Limits, branch *cgroup.Branch, streams *process.Streams) (*Command, error) {
	files, remove, err := l.newExecFiles(id, p)
	if err != nil {
		return nil, err
	}
	defer remove()
	var console *terminal.Socket
	if p.Terminal {
		if console, err = terminal.Listen(files.console); err != nil {
			return nil, err
		}
		defer console.Close()
	}
	startCtx, cancel := graceAfter(ctx, startGrace)
	defer cancel()
	if err := l.runtimeExec(startCtx, id, lim, files, branch, streams); err != nil {
		return nil, l.explainExec(ctx, id, p.Args[0], err)
	}
	c, err := l.adopt(id, files, branch)
	if err != nil || console == nil {
		return c, err
	}
	if c.tty, err = console.Receive(); err != nil {
		_, _ = c.proc.Await(endedContext())
		return nil, &StartError{Program: p.Args[0], Message: err.Error()}
	}
	if size := p.ConsoleSize; size != nil { // see [oci.Runtime].LateTerminalSize
		_ = terminal.Resize(c.tty, terminal.Size{Rows: uint16(size.Height), Cols: uint16(size.Width)})
	}
	streams.Attach(c.tty)
	return c, nil
}

// endedContext returns a cancelled context, with which Await kills the process immediately.
func endedContext() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// adopt wraps the process that the runtime has started.
func (l *Launcher) adopt(id policy.BoxID, files execFiles, branch *cgroup.Branch) (*Command, error) {
	if l.runtime.OwnProcesses {
		return l.adoptGuest(id, files)
	}
	return adopt(files.pid, branch)
}

// adoptGuest wraps the runtime's process on the host that represents a process in a guest kernel.
func (l *Launcher) adoptGuest(id policy.BoxID, files execFiles) (*Command, error) {
	pid, err := readPid(files.pid)
	if err != nil {
		return nil, err
	}
	inner, err := readPid(files.inner)
	if err != nil {
		return nil, err
	}
	proc, err := process.Adopt(pid, guest{l, id, inner})
	if err != nil {
		return nil, err
	}
	return &Command{proc: proc, inner: inner}, nil
}

// adopt wraps the process whose ID the runtime has written to pidFile.
func adopt(pidFile string, branch *cgroup.Branch) (*Command, error) {
	pid, err := readPid(pidFile)
	if err != nil {
		return nil, err
	}
	return adoptStarted(pid, branch)
}

// adoptStarted wraps a child of this process.
func adoptStarted(pid int, branch *cgroup.Branch) (*Command, error) {
	var tree process.Tree
	if branch != nil {
		tree = branch
	}
	proc, err := process.Adopt(pid, tree)
	if err != nil {
		return nil, err
	}
	inner, err := proc.NamespacePID()
	if err != nil {
		inner = 0
	}
	return &Command{proc: proc, branch: branch, inner: inner}, nil
}

// startGrace is how long a cancelled command may still take to start.
const startGrace = 5 * time.Second

// branchName returns a new name for the control group of a command.
func branchName() string {
	var id [8]byte
	_, _ = rand.Read(id[:])
	return cgroup.BranchPrefix + hex.EncodeToString(id[:])
}

// execFiles are the files exchanged with the runtime when a command starts: the process to start, its process ID, the
// runtime's log, the socket for its terminal (if terminal is set), and its process ID in a guest kernel.
type execFiles struct {
	process, pid, log, console, inner string
	terminal                          bool
}

// started returns the ID of the process that the runtime has started; 0 if it has not written one.
func (f execFiles) started() int {
	pid, err := readPid(f.pid)
	if err != nil {
		return 0
	}
	return pid
}

// newExecFiles writes the process to start to a file that only we and the runtime can read.
func (l *Launcher) newExecFiles(id policy.BoxID, p *specs.Process) (_ execFiles, remove func(), err error) {
	dir, err := os.MkdirTemp(l.dirs.execFiles(), string(id)+"-")
	if err != nil {
		return execFiles{}, nil, err
	}
	remove = func() { _ = os.RemoveAll(dir) }
	files := execFiles{
		process: filepath.Join(dir, "process.json"), pid: filepath.Join(dir, "pid"), log: filepath.Join(dir, "log"),
		console: filepath.Join(dir, "tty"), inner: filepath.Join(dir, "inner"), terminal: p.Terminal,
	}
	data, err := json.Marshal(p)
	if err == nil {
		err = os.WriteFile(files.process, data, 0o600)
	}
	if err != nil {
		remove()
		return execFiles{}, nil, err
	}
	return files, remove, nil
}

// runtimeExec runs the runtime's exec. go-runc's own exec writes the process with all its environment to the system's
// temporary directory, where it stays if this program is killed. Our files are in a private directory, usually on a file
// system in memory, and Recover empties it.
func (l *Launcher) runtimeExec(ctx context.Context, id policy.BoxID, lim container.Limits, files execFiles, branch *cgroup.Branch, streams *process.Streams) error {
	ctx, cancel := l.whileStarting(ctx, id)
	defer cancel()
	args := append([]string{"exec", "--process", files.process, "--detach", "--pid-file", files.pid}, branch.Args()...)
	if files.terminal {
		args = append(args, "--console-socket", files.console)
	}
	if l.runtime.OwnProcesses {
		args = append(args, "--internal-pid-file", files.inner)
	}
	cmd := l.runtimeCommand(ctx, files.log, append(args, string(id))...)
	streams.Connect(cmd)
	err := l.startLimited(cmd, lim)
	streams.CloseFar() // only then do our ends see EOF when the command closes its own
	if err != nil {
		return err
	}
	if err = cmd.Wait(); err == nil {
		return nil
	}
	process.ReapOrphans(func(pid int) bool { return branch.Has(pid) || pid == files.started() })
	if ctx.Err() != nil {
		err = errors.Join(err, killHalfStarted(branch))
	}
	return whyFailed(ctx, files.log, err)
}

// explainExec returns why a command did not start: the state of the box, or a *StartError for the command.
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
	case st.State == StateError || st.State == StateStopped:
		return fmt.Errorf("box %s: %w", id, ErrNotRunning)
	default:
		return &StartError{Program: program, Message: err.Error()}
	}
}

// obstacleDelay is how long a command may take to start before the launcher checks whether the box stalls it.
const obstacleDelay = 2 * time.Second

// whileStarting returns a context for the start of a command in a box. If the box stalls the start, it is cancelled with
// that cause.
func (l *Launcher) whileStarting(ctx context.Context, id policy.BoxID) (context.Context, context.CancelFunc) {
	ctx, giveUp := context.WithCancelCause(ctx)
	ctx, cancel := withRuntimeTimeout(ctx)
	look := time.AfterFunc(obstacleDelay, func() {
		if err := l.findObstacle(id); err != nil {
			giveUp(err)
		}
	})
	return ctx, func() {
		look.Stop()
		cancel()
		giveUp(nil)
	}
}

// findObstacle returns an error if files of the box keep the runtime from starting commands in it.
func (l *Launcher) findObstacle(id policy.BoxID) error {
	root, err := l.openRoot(id)
	if err != nil {
		return nil //nolint:nilerr // best effort
	}
	defer root.Close()
	for _, name := range []string{"/etc/passwd", "/etc/group"} {
		if !boxfs.IsFileOrMissing(root, name) {
			return fmt.Errorf("%s in the box is not a file, so the runtime cannot start commands in the box: replace it by a file from inside the box, "+
				"or delete the box", name)
		}
	}
	return nil
}

// killHalfStarted kills and reaps the processes that the runtime has started in the control group of a command. The runtime, their
// parent, has been killed.
func killHalfStarted(branch *cgroup.Branch) error {
	pids, err := branch.Members()
	for _, pid := range pids {
		if berr := process.ReapLater(pid); !errors.Is(berr, unix.ESRCH) {
			err = errors.Join(err, berr)
		}
	}
	return errors.Join(err, branch.Kill())
}

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
	Signal unix.Signal   // the signal that killed it; 0: none, or the runtime, which started it, has only reported Status
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

// parseUser parses ExecSpec.User for a box with an account. Other names than root's and the account's are not looked up, because the box
// can write its own user database.
func parseUser(account Account, s string) (execUser, error) {
	switch {
	case s == "" || account.Has(s):
		return execUser{rootfs.UID, rootfs.UID, account.UserName(), account.HomeDir()}, nil
	case s == "root":
		return execUser{0, 0, "root", "/root"}, nil
	}
	u, g, hasGroup := strings.Cut(s, ":")
	if !hasGroup {
		g = u
	}
	uid, uerr := strconv.ParseUint(u, 10, 16)
	gid, gerr := strconv.ParseUint(g, 10, 16)
	if uerr != nil || gerr != nil {
		return execUser{}, fmt.Errorf(`user %q is unknown: use %s, root, UID or UID:GID with IDs below 65536`, s, account.UserName())
	}
	return execUser{int(uid), int(gid), u, account.HomeDir()}, nil
}

// commandProcess converts a command to the runtime's format. Set-user-ID programs have their effect only if the box was started
// with Config.Root, and this launcher has it too.
func (l *Launcher) commandProcess(r record, user execUser, spec ExecSpec) (*specs.Process, error) {
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
		cwd = path.Join(r.Account.HomeDir(), cwd)
	}
	base, env, box := r.Base, spec.Env, (*specs.Box)(nil)
	if user.uid == 0 {
		base = append(slices.Clone(base), "PATH="+l.pathOfRoot(r))
	}
	if t := spec.Terminal; t != nil {
		env, box = withTerm(env), &specs.Box{Height: uint(t.Rows), Width: uint(t.Cols)}
	}
	return container.Command{
		Args: spec.Args, Env: environment(base, user, r.Env, env), Cwd: path.Clean(cwd), UID: user.uid, GID: user.gid, Limits: lim,
		Terminal: box, SetUserID: l.cfg.Root && r.Root,
	}.Process(), nil
}

// pathOfRoot returns root's PATH in a running box. Where the box's directories cannot be examined, it is the default one.
func (l *Launcher) pathOfRoot(r record) string {
	root, err := l.openRoot(r.ID)
	if err != nil {
		return defaultPath
	}
	defer root.Close()
	return pathOfRoot(r.Base, root, r.ids().Host(rootfs.UID))
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

// maxSlotTime is how long the start of a command may occupy a slot. A box can stall the runtime, which reads files of the
// box.
const maxSlotTime = 500 * time.Millisecond

// startSlots limits how many commands start at the same time. Each start costs some ten milliseconds of CPU in processes of the
// host, so a box that starts hundreds together would delay everything else, policy changes included. There are a few slots
// per core. Waiting starters (API keys or boxes) get them round-robin, however many commands each of them has queued.
// Create it with [newStartSlots]. Safe for concurrent use.
type startSlots struct {
	mu      sync.Mutex
	free    int
	order   []starter                     // starters that wait, each once
	waiting map[starter][]chan<- struct{} // the queue of each starter in order; a channel is closed to pass on a slot
}

// starter is an API key, or a box if no key starts the command.
type starter struct {
	key string
	box policy.BoxID
}

func starterOf(box policy.BoxID, spec ExecSpec) starter {
	if spec.Starter != "" {
		return starter{key: spec.Starter}
	}
	return starter{box: box}
}

func newStartSlots() *startSlots {
	return &startSlots{free: 2 * runtime.GOMAXPROCS(0), waiting: map[starter][]chan<- struct{}{}}
}

// acquire waits for a slot. done releases it; after maxSlotTime it is released in any case.
func (s *startSlots) acquire(ctx context.Context, id starter) (done func(), err error) {
	turn := make(chan struct{})
	s.mu.Lock()
	if s.free > 0 {
		s.free--
		close(turn)
	} else {
		if len(s.waiting[id]) == 0 {
			s.order = append(s.order, id)
		}
		s.waiting[id] = append(s.waiting[id], turn)
	}
	s.mu.Unlock()
	select {
	case <-turn:
	case <-ctx.Done():
		s.cancelWait(id, turn)
		return nil, context.Cause(ctx)
	}
	end := sync.OnceFunc(s.release)
	late := time.AfterFunc(maxSlotTime, end)
	return func() { late.Stop(); end() }, nil
}

// cancelWait gives up waiting for a slot. A slot that was assigned in the meantime goes to the next starter.
func (s *startSlots) cancelWait(id starter, turn chan<- struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.waiting[id], turn)
	if i < 0 {
		s.releaseLocked()
		return
	}
	if s.waiting[id] = slices.Delete(s.waiting[id], i, i+1); len(s.waiting[id]) == 0 {
		delete(s.waiting, id)
		s.order = slices.DeleteFunc(s.order, func(other starter) bool { return other == id })
	}
}

func (s *startSlots) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.releaseLocked()
}

// releaseLocked passes the slot to the first starter in line, which then moves to the end.
func (s *startSlots) releaseLocked() {
	if len(s.order) == 0 {
		s.free++
		return
	}
	id := s.order[0]
	s.order = s.order[1:]
	next := s.waiting[id]
	close(next[0])
	if len(next) == 1 {
		delete(s.waiting, id)
		return
	}
	s.waiting[id] = next[1:]
	s.order = append(s.order, id)
}
