package launcher

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	runc "github.com/containerd/go-runc"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"boxgate/launcher/boxfs"
	"boxgate/launcher/cgroup"
	"boxgate/launcher/container"
	"boxgate/launcher/enter"
	"boxgate/launcher/files"
	"boxgate/launcher/freezer"
	"boxgate/launcher/image"
	"boxgate/launcher/namespace"
	"boxgate/launcher/oci"
	"boxgate/launcher/process"
	"boxgate/launcher/rootfs"
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
	Agents     map[string]string // versions of programs in the image debian-agents, by agent; default: the pinned ones
	Disk       DiskLimits        // limits of the boxes' disks; default: no limits
	Reserve    int64             // bytes kept free on the disks of StateDir and ImageDir; default: 0
	IO         IOLimits          // per box, on the disk of StateDir, which New looks up; default: no limits
	Root       bool              // in boxes that are started from now on, set-user-ID programs may become the box's root
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
	tag          string         // distinguishes the control groups of this state directory from control groups of others
	runtime      *oci.Runtime   // the differences between OCI runtimes
	runc         *runc.Runc     // runs the OCI runtime
	entering     *enter.Program // starts commands without the runtime; nil: the runtime starts them
	filters      filters
	notEntered   atomic.Bool // a command was started by the runtime although entering is possible; this has been logged
	entersOnly   bool        // in tests: the runtime starts no commands if entering is possible
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
	transfers    boxfs.Limiter // of SFTP
	watches      boxfs.Limiter
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
	l.useEntering()
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
	args := l.runtime.Args
	if l.cfg.Root {
		args = append(slices.Clone(args), l.runtime.SetUserIDArgs...)
	}
	l.runc = &runc.Runc{Command: program, Root: l.dirs.runtimeRoot(), WorkDir: "/", ExtraArgs: args}
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
		return fmt.Errorf("launcher.enabled is false, but boxes were launched on this host (%d): set it to true, delete them, and set it to false again", len(entries))
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

// dirs computes the paths of a launcher's files:
//
//	{state}/boxes/{id}/box.json   the record
//	{state}/boxes/{id}/bundle/    config.json for the runtime
//	{state}/boxes/{id}/upper/     the box's writable layer; work/ belongs to overlayfs
//	{state}/boxes/{id}/limited/   has these two instead, if the box's disk is limited: a quota project, or the mount point of
//	{state}/boxes/{id}/disk       the box's file system
//	{state}/layers/{layer}/       a layer of snapshots; {layer}.partial: incomplete
//	{state}/trash/                 files of deleted boxes, to be removed
//	{run}/netns/{id}              the pinned network namespace
//	{run}/userns/{id}             the pinned user namespace
//	{run}/attached/{id}           the pinned network namespace of an attached box
//	{run}/mounts/{id}/            mount points used while a box is created
//	{run}/exec/                   files exchanged with the runtime when a command starts
//	{run}/bound/                  names of the control groups of commands that end with this process
//	{run}/runtime/                the OCI runtime's --root
//	{run}/last-run                see [LastRunFile]
type dirs struct{ state, run string }

// dirsOf returns the directories of a launcher; an empty runDir means the default.
func dirsOf(stateDir, runDir string) dirs {
	if runDir == "" {
		runDir = filepath.Join("/run/boxgate-boxes", stateTag(stateDir))
	}
	return dirs{state: stateDir, run: runDir}
}

// stateTag returns a short name for a state directory.
func stateTag(stateDir string) string {
	sum := sha256.Sum256([]byte(filepath.Clean(stateDir)))
	return hex.EncodeToString(sum[:5])
}

func (d dirs) boxes() string                      { return filepath.Join(d.state, "boxes") }
func (d dirs) layers() string                     { return filepath.Join(d.state, "layers") }
func (d dirs) trash() string                      { return filepath.Join(d.state, "trash") }
func (d dirs) box(id policy.BoxID) string         { return filepath.Join(d.boxes(), string(id)) }
func (d dirs) record(id policy.BoxID) string      { return filepath.Join(d.box(id), "box.json") }
func (d dirs) bundle(id policy.BoxID) string      { return filepath.Join(d.box(id), "bundle") }
func (d dirs) limited(id policy.BoxID) string     { return filepath.Join(d.box(id), "limited") }
func (d dirs) upper(id policy.BoxID) string       { return filepath.Join(d.written(id), "upper") }
func (d dirs) work(id policy.BoxID) string        { return filepath.Join(d.written(id), "work") }
func (d dirs) pins() string                       { return filepath.Join(d.run, "netns") }
func (d dirs) pin(id policy.BoxID) string         { return filepath.Join(d.pins(), string(id)) }
func (d dirs) userPins() string                   { return filepath.Join(d.run, "userns") }
func (d dirs) userPin(id policy.BoxID) string     { return filepath.Join(d.userPins(), string(id)) }
func (d dirs) attached() string                   { return filepath.Join(d.run, "attached") }
func (d dirs) attachedPin(id policy.BoxID) string { return filepath.Join(d.attached(), string(id)) }
func (d dirs) allMounts() string                  { return filepath.Join(d.run, "mounts") }
func (d dirs) mounts(id policy.BoxID) string      { return filepath.Join(d.allMounts(), string(id)) }
func (d dirs) lowerMount(id policy.BoxID) string  { return filepath.Join(d.mounts(id), "lower") }
func (d dirs) rootMount(id policy.BoxID) string   { return filepath.Join(d.mounts(id), "root") }
func (d dirs) runtimeRoot() string                { return filepath.Join(d.run, "runtime") }
func (d dirs) execFiles() string                  { return filepath.Join(d.run, "exec") }
func (d dirs) bound() string                      { return filepath.Join(d.run, "bound") }

// written returns the directory of a box's writable layer: a directory with a limit, if there is one.
func (d dirs) written(id policy.BoxID) string {
	if _, err := os.Lstat(d.limited(id)); err == nil {
		return d.limited(id)
	}
	return d.box(id)
}

// lastRun is the file name of [LastRunFile].
const lastRun = "last-run"

// ofRun returns everything that the launcher makes in the run directory.
func (d dirs) ofRun() []string {
	return []string{d.execFiles(), d.bound(), d.runtimeRoot(), d.allMounts(), d.userPins(), d.pins(), d.attached(), filepath.Join(d.run, lastRun)}
}

// LastRunFile is the file in a run directory that the gateway touches while it runs.
func LastRunFile(runDir string) string { return filepath.Join(runDir, lastRun) }

// StateDirs returns the directories that a launcher makes in its state directory, without the images.
func StateDirs(stateDir string) []string {
	d := dirs{state: stateDir}
	return []string{d.boxes(), d.layers(), d.trash()}
}

// RunEntries separates the launcher's files in its run directory from other files. Both lists are empty if the directory does
// not exist. runDir is [Config].RunDir.
func RunEntries(stateDir, runDir string) (own, others []string, err error) {
	d := dirsOf(stateDir, runDir)
	return sortOut(d.run, d.ofRun())
}

// sortOut splits the entries of a directory into those on the list and the others.
func sortOut(dir string, list []string) (own, others []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, nil, err
	}
	for _, e := range entries {
		if path := filepath.Join(dir, e.Name()); slices.Contains(list, path) {
			own = append(own, path)
		} else {
			others = append(others, path)
		}
	}
	return own, others, nil
}

// CheckRunDir refuses a run directory that another program uses. runDir is [Config].RunDir.
func CheckRunDir(stateDir, runDir string) error {
	own, others, err := RunEntries(stateDir, runDir)
	if err == nil && len(own) == 0 && len(others) > 0 {
		err = fmt.Errorf("launcher.run_dir: %s contains files of another program, such as %s: set a directory that only the gateway uses",
			dirsOf(stateDir, runDir).run, filepath.Base(others[0]))
	}
	return err
}

// make creates the directories that all boxes share. The mount points must be accessible to the mapped root of each box, so
// they are not in the state directory, which only root can access. Each box's directory is inaccessible to the other boxes.
func (d dirs) make() error {
	for _, dir := range []struct {
		path string
		mode os.FileMode
	}{
		{d.state, 0o700}, {d.boxes(), 0o700}, {d.layers(), 0o700}, {d.trash(), 0o700},
		{filepath.Dir(d.run), 0o711}, {d.run, 0o711}, {d.allMounts(), 0o711},
		{d.pins(), 0o700}, {d.userPins(), 0o700}, {d.attached(), 0o700}, {d.runtimeRoot(), 0o711}, {d.execFiles(), 0o700}, {d.bound(), 0o700},
	} {
		if _, err := os.Stat(dir.path); err == nil {
			continue // it already exists; its mode is up to its creator
		}
		if err := os.MkdirAll(dir.path, dir.mode); err != nil {
			return fmt.Errorf("cannot make the launcher's directories: %w", err)
		}
		if err := os.Chmod(dir.path, dir.mode); err != nil { // regardless of the umask
			return fmt.Errorf("cannot make the launcher's directories: %w", err)
		}
	}
	return nil
}

// record is the stored state of a box.
type record struct {
	ID    policy.BoxID `json:"id"`
	Image string       `json:"image"` // the name given when the box was created
	// ImageKey and Rootfs identify that image, since the name may have been given to another one. See [Launcher.imageOf].
	ImageKey string            `json:"image_key,omitempty"`
	Rootfs   string            `json:"rootfs,omitempty"`
	Layers   []string          `json:"layers,omitempty"` // over the image, the lowest first
	Size     Size              `json:"size"`
	Env      map[string]string `json:"env,omitempty"`     // of Spec
	Account  Account           `json:"account,omitzero"`  // of Spec
	Base     []string          `json:"base,omitempty"`    // of the image
	IDIndex  int               `json:"id_index"`          // number of its range of user IDs
	Project  uint32            `json:"project,omitempty"` // the disk's quota project; 0: no quota
	Roots    string            `json:"roots,omitempty"`   // those that the box was given, as by fingerprint; "": none
	Root     bool              `json:"root,omitempty"`    // Config.Root when it was started last
	Created  bool              `json:"created,omitempty"` // false: an unfinished box, to be removed after a restart
}

func (r record) ids() namespace.IDs { return namespace.IDsAt(r.IDIndex) }

// loadRecord returns the record of a box, or ErrNotFound.
func (l *Launcher) loadRecord(id policy.BoxID) (record, error) {
	if err := checkID(id); err != nil {
		return record{}, err
	}
	data, err := os.ReadFile(l.dirs.record(id))
	if errors.Is(err, fs.ErrNotExist) {
		return record{}, fmt.Errorf("box %s: %w", id, ErrNotFound)
	}
	if err != nil {
		return record{}, fmt.Errorf("box %s: %w", id, err)
	}
	var r record
	if err := json.Unmarshal(data, &r); err != nil {
		return record{}, fmt.Errorf("box %s: its record is damaged: %w", id, err)
	}
	if r.ID != id {
		return record{}, fmt.Errorf("box %s: its record is damaged: it names %q", id, string(r.ID))
	}
	return r, nil
}

func (l *Launcher) saveRecord(r record) error {
	if err := files.WriteJSON(l.dirs.record(r.ID), r); err != nil {
		return fmt.Errorf("box %s: its record cannot be written: %w", r.ID, err)
	}
	return nil
}

// captureLimits bound a capture, however much the box has written: captures queue up, and the box cannot be used while it
// is frozen.
type captureLimits struct {
	snapshot.Terms
	Total time.Duration
}

var defaultCaptureLimits = captureLimits{snapshot.Terms{Entries: 2 << 20, Frozen: time.Minute, Exclude: path.Base(rootfs.InitPath)}, 20 * time.Minute}

// errCaptureSlow is the cause when a capture exceeds captureLimits.Total.
var errCaptureSlow = errors.New("the snapshot took too long: the box has written too much, or the host is overloaded")

// runtimeTimeout bounds every call of the runtime. A box can stall some of them for ever: runc reads the box's /etc/passwd and
// /etc/group, and blocks until a writer appears if they are pipes.
const runtimeTimeout = time.Minute

// errRuntimeSlow is the cause when a call of the runtime exceeds runtimeTimeout.
var errRuntimeSlow = fmt.Errorf("the runtime did not finish within %v: the host is overloaded, or a file in the box blocks it", runtimeTimeout)

// withRuntimeTimeout returns a context for one call of the runtime, limited to runtimeTimeout.
func withRuntimeTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, runtimeTimeout, errRuntimeSlow)
}

// callRuntime makes one call of the runtime, limited to runtimeTimeout.
func callRuntime(ctx context.Context, call func(context.Context) error) error {
	ctx, cancel := withRuntimeTimeout(ctx)
	defer cancel()
	err := call(ctx)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
