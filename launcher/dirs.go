package launcher

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"boxgate/policy"
)

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
