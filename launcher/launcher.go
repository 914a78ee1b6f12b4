package launcher

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"

	runc "github.com/containerd/go-runc"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"boxgate/launcher/boxfs"
	"boxgate/launcher/cgroup"
	"boxgate/launcher/container"
	"boxgate/launcher/freezer"
	"boxgate/launcher/image"
	"boxgate/launcher/namespace"
	"boxgate/launcher/oci"
	"boxgate/launcher/process"
	"boxgate/launcher/snapshot"
	"boxgate/launcher/trash"
	"boxgate/policy"
)

// Errors of a Launcher.
var (
	// ErrNotFound: there is no box with that ID.
	ErrNotFound = errors.New("no such box")
	// ErrExists: a box with that ID already exists.
	ErrExists = errors.New("the box already exists")
	// ErrNotRunning: the box has no process to act on (its first process ended, or it was never created).
	ErrNotRunning = errors.New("the box is not running")
	// ErrPaused: the box is paused; resume it first.
	ErrPaused = freezer.ErrPaused
)

// Config configures a Launcher: where it keeps its files and how it runs boxes. StateDir is required.
type Config struct {
	StateDir string // records and writable layers of the boxes; an absolute path
	ImageDir string // unpacked images; default {StateDir}/images. Several launchers may share one.
	// RunDir is for files that do not survive a reboot: namespace pins and the runtime's state. Default: a directory below
	// /run/boxgate-boxes named after StateDir, so that launchers with different state never conflict. It should be on a
	// file system in memory, because the environment of commands passes through it.
	RunDir  string
	Runtime string // OCI runtime binary; default [oci.Default]
	// AttachOnly: the launcher starts no boxes and only pins the namespaces of attached ones. It needs no runtime.
	AttachOnly bool
	Images     map[string]string // name → image (see EnsureImage); the entry "default" is used when a Spec has no image
	Disk       DiskLimits        // limits of the boxes' disks; default: no limits
	Reserve    int64             // bytes kept free on the disks of StateDir and ImageDir; default: 0
	IO         IOLimits          // per box, on the disk of StateDir, which New looks up; default: no limits
	Log        *zap.Logger       // default: silent
	// TakesOver: the previous process is still running and still waits for commands in the boxes.
	TakesOver bool
}

// IOLimits limit disk reads and writes of a box, in bytes and operations per second; 0 is no limit.
type IOLimits = container.IO

// Launcher creates, runs and removes boxes. It is safe for concurrent use; calls that change one box (Create, Delete,
// Pause, Resume) are serialized.
type Launcher struct {
	cfg          Config
	dirs         dirs
	tag          string       // distinguishes the control groups of this state directory from control groups of others
	runtime      *oci.Runtime // the differences between OCI runtimes
	runc         *runc.Runc   // runs the OCI runtime
	log          *zap.Logger
	execs        execCount
	starts       *startSlots
	background   process.Background
	branches     cgroup.LeftBranches
	trash        *trash.Trash
	images       image.Store
	layers       snapshot.Layers
	captures     captureLimits
	motion       freezer.Boxes
	fileSessions boxfs.Limiter
	starting     sync.Map // the IDs of boxes whose first process the runtime is starting

	onEnd func(policy.BoxID) // see OnGroupRemoval

	mu    sync.Mutex
	locks map[policy.BoxID]*boxLock // guarded by mu
}

// New checks the configuration and creates the launcher's directories. It needs root.
//
// It also makes the calling process the reaper of orphaned descendants (PR_SET_CHILD_SUBREAPER): the runtime exits and
// leaves the commands in boxes to the launcher, which can then wait for their exit status without one more process per
// command. Do not call wait4(-1) in the same process.
func New(cfg Config) (*Launcher, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("starting boxes needs root: run it with sudo")
	}
	if !filepath.IsAbs(cfg.StateDir) {
		return nil, fmt.Errorf("the launcher's state directory %q is not an absolute path", cfg.StateDir)
	}
	if cfg.Runtime == "" {
		cfg.Runtime = oci.Default
	}
	if err := cfg.needRuntime(); err != nil {
		return nil, err
	}
	if cfg.Log == nil {
		cfg.Log = zap.NewNop()
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("cannot become the reaper of the boxes' commands: %w", err)
	}
	l := &Launcher{
		cfg:    cfg,
		dirs:   dirsOf(cfg.StateDir, cfg.RunDir),
		tag:    stateTag(cfg.StateDir),
		log:    cfg.Log,
		starts: newStartSlots(),
		trash:  trash.New(dirs{state: cfg.StateDir}.trash(), cfg.Log),
		images: ImageStore(cfg),
		locks:  map[policy.BoxID]*boxLock{},
	}
	l.branches.Bound = l.dirs.bound()
	l.layers, l.captures = snapshot.Layers{Dir: l.dirs.layers(), Images: l.images}, defaultCaptureLimits
	l.useRuntime(cfg.Runtime)
	if err := CheckRunDir(cfg.StateDir, cfg.RunDir); err != nil {
		return nil, err
	}
	if err := l.dirs.make(); err != nil {
		return nil, err
	}
	var err error
	if l.cfg.IO, err = cfg.IO.ForDir(cfg.StateDir); err != nil {
		return nil, err
	}
	return l, nil
}

// useRuntime sets the OCI runtime, a name or a path.
func (l *Launcher) useRuntime(program string) {
	l.runtime = oci.ByName(program)
	l.runc = &runc.Runc{Command: program, Root: l.dirs.runtimeRoot(), WorkDir: "/", ExtraArgs: l.runtime.Args}
}

// needRuntime checks that the runtime is installed. With AttachOnly it checks that no box was ever launched.
func (c Config) needRuntime() error {
	if c.AttachOnly {
		return RequireNoBoxes(c.StateDir)
	}
	if _, err := exec.LookPath(c.Runtime); err != nil {
		return fmt.Errorf("the OCI runtime %q is missing: %s", c.Runtime, runtimeRemedy(c.Runtime))
	}
	return nil
}

// RequireNoBoxes fails if a box was launched with a state directory, because its processes would go unsupervised.
func RequireNoBoxes(stateDir string) error {
	entries, err := os.ReadDir(dirs{state: stateDir}.boxes())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if len(entries) > 0 {
		return fmt.Errorf("launcher.enabled is false, but %d box(es) were launched on this host: set it to true, delete them, and set it to false again", len(entries))
	}
	return nil
}

// runtimeRemedy returns the advice for a missing runtime. Packages install into PATH, so for a configured path it names no
// package.
func runtimeRemedy(program string) string {
	if r := oci.ByName(program); r.Package != "" && program == r.Name {
		return r.Install
	}
	return "install it, or name another in launcher.runtime"
}

// RunDirOf returns the run directory of a launcher. runDir is [Config].RunDir.
func RunDirOf(stateDir, runDir string) string { return dirsOf(stateDir, runDir).run }

// TracePatterns returns patterns of the files outside the state directory that exist only while a launcher with these directories
// has boxes. runDir is [Config].RunDir.
func TracePatterns(stateDir, runDir string) []string {
	d := dirsOf(stateDir, runDir)
	return []string{filepath.Join(d.pins(), "*"), filepath.Join(d.attached(), "*")}
}

// boxLock serializes calls that change one box. users counts holders and waiters, so that the locks of deleted boxes can be
// freed.
type boxLock struct {
	sync.Mutex
	users int
}

// lock locks a box and returns the function that unlocks it.
func (l *Launcher) lock(id policy.BoxID) (unlock func()) {
	l.mu.Lock()
	b := l.locks[id]
	if b == nil {
		b = &boxLock{}
		l.locks[id] = b
	}
	b.users++
	l.mu.Unlock()
	b.Lock()
	return func() {
		b.Unlock()
		l.mu.Lock()
		defer l.mu.Unlock()
		if b.users--; b.users == 0 {
			delete(l.locks, id)
		}
	}
}

// RunDir returns the directory of the files that do not survive a reboot.
func (l *Launcher) RunDir() string { return l.dirs.run }

// Close removes the run directory if there are no boxes. It does not touch boxes: they keep running, and a launcher with
// the same configuration adopts them.
func (l *Launcher) Close() error {
	if entries, err := os.ReadDir(l.dirs.boxes()); err != nil || len(entries) > 0 {
		return err
	}
	for _, path := range oci.Namespaces(l.dirs.runtimeRoot()) {
		_ = namespace.Unpin(path)
	}
	for _, d := range []string{l.dirs.execFiles(), l.dirs.bound(), l.dirs.runtimeRoot(), l.dirs.allMounts(), l.dirs.userPins(), l.dirs.pins(), l.dirs.attached(), l.dirs.run} {
		_ = os.Remove(d) // fails if it is not empty
	}
	return nil
}
