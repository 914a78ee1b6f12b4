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
	"boxgate/launcher/image"
	"boxgate/launcher/motion"
	"boxgate/launcher/namespace"
	"boxgate/launcher/oci"
	"boxgate/launcher/process"
	"boxgate/launcher/snapshot"
	"boxgate/launcher/trash"
	"boxgate/policy"
)

// Errors a caller may want to tell apart.
var (
	// ErrNotFound: there is no box with that ID.
	ErrNotFound = errors.New("no such box")
	// ErrExists: a box with that ID already exists.
	ErrExists = errors.New("the box already exists")
	// ErrNotRunning: the box has no process to act on (its first process ended, or it was never created).
	ErrNotRunning = errors.New("the box is not running")
	// ErrPaused: the box is paused; resume it first.
	ErrPaused = motion.ErrStill
)

// Config says where a launcher keeps its files and what it runs boxes with. StateDir is required.
type Config struct {
	StateDir string // records and writable layers of the boxes; an absolute path
	ImageDir string // unpacked images; default {StateDir}/images. Several launchers may share one.
	// RunDir holds what does not outlive a reboot: namespace pins and the runtime's state. Default: a directory below
	// /run/boxgate-boxes named after StateDir, so that launchers with different state never conflict. The environment
	// of commands passes through it, so it should be on a file system in memory.
	RunDir  string
	Runtime string // OCI runtime binary; default [oci.Default]
	// AttachOnly says that no box is launched: only namespaces of others are pinned. No runtime is needed then.
	AttachOnly bool
	Images     map[string]string // name → image (see EnsureImage); the entry "default" is used when a Spec names none
	Disk       DiskLimits        // of what boxes write; default: none
	Reserve    int64             // bytes that are kept free on the disks of StateDir and ImageDir; default: none
	IO         IOLimits          // of each box on the disk of StateDir, which New finds; default: none
	Log        *zap.Logger       // default: silent
	// TakesOver says that the process that used the boxes before still runs, and commands in them that it waits for.
	TakesOver bool
}

// IOLimits bound what a box reads and writes per second; 0 is no limit.
type IOLimits = container.IO

// Launcher creates, runs and removes boxes. It is safe for concurrent use; calls that change one box (Create, Delete,
// Pause, Resume) are serialized.
type Launcher struct {
	cfg        Config
	dirs       dirs
	tag        string       // distinguishes the control groups of this state directory from those of others
	runtime    *oci.Runtime // what the OCI runtime does differently from others
	runc       *runc.Runc   // calls it
	log        *zap.Logger
	execs      execCount
	starts     *starts
	background process.Background
	branches   cgroup.Remains
	trash      *trash.Trash
	images     image.Store
	layers     snapshot.Layers
	captures   captureLimits
	motion     motion.Boxes
	fileTurns  boxfs.Turns
	starting   sync.Map // the IDs of boxes whose first process the runtime is starting

	ending func(policy.BoxID) // see OnEnd

	mu    sync.Mutex
	locks map[policy.BoxID]*boxLock // guarded by mu
}

// New checks the configuration and creates the launcher's directories. It needs root.
//
// It also makes the calling process the reaper of orphaned descendants (PR_SET_CHILD_SUBREAPER): commands in boxes are
// children of the runtime, which leaves them to the launcher, so that their exit status is available without one more
// process per command. Do not call wait4(-1) in the same process.
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
		starts: newStarts(),
		trash:  trash.New(dirs{state: cfg.StateDir}.trash(), cfg.Log),
		images: ImageStore(cfg),
		locks:  map[policy.BoxID]*boxLock{},
	}
	l.branches.Bound = l.dirs.bound()
	l.layers, l.captures = snapshot.Layers{Dir: l.dirs.layers(), Images: l.images}, ofCaptures
	l.useRuntime(cfg.Runtime)
	if err := CheckRunDir(cfg.StateDir, cfg.RunDir); err != nil {
		return nil, err
	}
	if err := l.dirs.make(); err != nil {
		return nil, err
	}
	var err error
	if l.cfg.IO, err = cfg.IO.Of(cfg.StateDir); err != nil {
		return nil, err
	}
	return l, nil
}

// useRuntime sets the OCI runtime of boxes, given by its name or path.
func (l *Launcher) useRuntime(program string) {
	l.runtime = oci.ByName(program)
	l.runc = &runc.Runc{Command: program, Root: l.dirs.runtimeRoot(), WorkDir: "/", ExtraArgs: l.runtime.Args}
}

// needRuntime requires the runtime where boxes are launched, and where they are not, that none was.
func (c Config) needRuntime() error {
	if c.AttachOnly {
		return NeedNoBoxes(c.StateDir)
	}
	if _, err := exec.LookPath(c.Runtime); err != nil {
		return fmt.Errorf("the OCI runtime %q is missing: %s", c.Runtime, runtimeRemedy(c.Runtime))
	}
	return nil
}

// NeedNoBoxes requires that no box was launched with a state directory: nothing would look after its processes.
func NeedNoBoxes(stateDir string) error {
	entries, err := os.ReadDir(dirs{state: stateDir}.boxes())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if len(entries) > 0 {
		return fmt.Errorf("launcher.enabled is false, but %d box(es) were launched on this host: set it to true, delete them, and set it to false again", len(entries))
	}
	return nil
}

// runtimeRemedy says what to do about a missing runtime. A package installs a program into PATH, not at any path that is configured.
func runtimeRemedy(program string) string {
	if r := oci.ByName(program); r.Package != "" && program == r.Name {
		return r.Install
	}
	return "install it, or name another in launcher.runtime"
}

// RunDirOf returns where a launcher keeps what boxes need while they run. runDir is that of [Config].
func RunDirOf(stateDir, runDir string) string { return dirsOf(stateDir, runDir).run }

// Traces returns patterns of the files that a launcher with these directories keeps while it has boxes, outside of its
// state directory. runDir is that of [Config].
func Traces(stateDir, runDir string) []string {
	d := dirsOf(stateDir, runDir)
	return []string{filepath.Join(d.pins(), "*"), filepath.Join(d.attached(), "*")}
}

// boxLock serializes calls that change one box. users counts holders and waiters, so that locks of deleted boxes do not
// pile up.
type boxLock struct {
	sync.Mutex
	users int
}

// lock waits for its turn with a box and returns what ends it.
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

// RunDir is where the launcher keeps what does not outlive a reboot.
func (l *Launcher) RunDir() string { return l.dirs.run }

// Close removes the run directory if no box uses it. Boxes are not touched: they run on, and a launcher with the same
// configuration picks them up.
func (l *Launcher) Close() error {
	if entries, err := os.ReadDir(l.dirs.boxes()); err != nil || len(entries) > 0 {
		return err
	}
	for _, path := range oci.Namespaces(l.dirs.runtimeRoot()) {
		_ = namespace.Unpin(path)
	}
	for _, d := range []string{l.dirs.execFiles(), l.dirs.bound(), l.dirs.runtimeRoot(), l.dirs.allMounts(), l.dirs.userPins(), l.dirs.pins(), l.dirs.attached(), l.dirs.run} {
		_ = os.Remove(d) // what is not empty stays
	}
	return nil
}
