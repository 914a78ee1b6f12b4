// Package disk bounds the writable layer of a box: with project quotas, or with a separate file system in a file, mounted
// through a loop device.
package disk

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// The modes of disk limits. An empty one is Off.
const (
	Auto      = "auto"    // by project quotas if the state directory has them, otherwise no limit
	ByProject = "project" // by project quotas
	Loop      = "loop"    // by a separate file system for each box, in a file
	Off       = "off"
)

// Limits limit the writable layers of boxes.
type Limits struct {
	Mode  string
	Bytes map[string]int64 // by the size of the box
	Files int64
}

// Of returns the limit for a box of that size.
func (d Limits) Of(size string) Limit { return Limit{Bytes: d.Bytes[size], Files: d.Files} }

// ErrUnlimited means that disks are not limited, because the state directory has no project quotas.
var ErrUnlimited = errors.New("the disks of boxes are not limited: one box can fill the disk of state_dir, which stops the others and " +
	"keeps the gateway from storing changes. Mount state_dir with project quotas (xfs: mount -o prjquota; ext4: tune2fs -O project,quota and " +
	"mount -o prjquota), or set launcher.disk.mode to loop, or to off if that is meant")

// Check returns why the limits cannot be enforced in a state directory. It returns ErrUnlimited if they are not enforced
// and the mode permits that.
func (d Limits) Check(stateDir string) error {
	switch d.Mode {
	case ByProject, Auto:
		err := HasProjects(existingParent(stateDir))
		if d.Mode == Auto && errors.Is(err, ErrNoProjects) {
			return ErrUnlimited
		}
		if err != nil {
			return fmt.Errorf("launcher.disk.mode is project, but %s cannot be limited so: mount it with prjquota, or use mode loop (%w)", stateDir, err)
		}
	case Loop:
		if _, err := exec.LookPath(Formatter); err != nil {
			return fmt.Errorf("launcher.disk.mode is loop, which needs %s: apt-get install e2fsprogs", Formatter)
		}
		if _, err := os.Stat("/dev/loop-control"); err != nil {
			return errors.New("launcher.disk.mode is loop, but this kernel has no loop devices: modprobe loop")
		}
	}
	return nil
}

// existingParent returns the nearest existing parent directory.
func existingParent(dir string) string {
	for dir != "/" {
		if _, err := os.Stat(dir); err == nil {
			break
		}
		dir = filepath.Dir(dir)
	}
	return dir
}

// Reserve is the space kept free on a file system. Boxes, snapshots, images and the audit history must stop before it is
// used, so that the gateway can still store changes. The zero value has no reserve.
type Reserve struct {
	Dir   string // on the file system
	Bytes int64  // at most a tenth of a small file system
}

// fewFiles is how many inodes must also stay free.
const fewFiles = 2000

// FullError means that an operation would use the reserve.
type FullError struct {
	Dir            string
	Free, Reserved int64 // bytes
	Files          bool  // inodes are missing, not bytes
}

// Error returns how much is left, and the remedy.
func (e *FullError) Error() string {
	what := fmt.Sprintf("%d MiB left, of which %d MiB are kept for the gateway (launcher.reserve)", e.Free>>20, e.Reserved>>20)
	if e.Files {
		what = "hardly any room for more files"
	}
	return fmt.Sprintf("the disk of %s has %s; delete boxes, snapshots or images, or enlarge it", e.Dir, what)
}

// FreeBytes returns how many bytes are free; 0 if unknown.
func (r Reserve) FreeBytes() int64 {
	var st unix.Statfs_t
	if err := unix.Statfs(existingParent(r.Dir), &st); err != nil {
		return 0
	}
	return int64(st.Bavail) * st.Bsize
}

// ReservedBytes returns how many bytes are kept free; 0 if unknown.
func (r Reserve) ReservedBytes() int64 {
	var st unix.Statfs_t
	if err := unix.Statfs(existingParent(r.Dir), &st); err != nil {
		return 0
	}
	return r.keptOf(st)
}

// keptOf is [Reserve.Reserved] for a given file system.
func (r Reserve) keptOf(st unix.Statfs_t) int64 {
	return min(max(r.Bytes, 0), int64(st.Blocks)*st.Bsize/10)
}

// Check returns a [*FullError] if n more bytes do not fit without using the reserve.
func (r Reserve) Check(n int64) error {
	if r.Bytes <= 0 {
		return nil
	}
	var st unix.Statfs_t
	if err := unix.Statfs(existingParent(r.Dir), &st); err != nil {
		return fmt.Errorf("the room on the disk of %s: %w", r.Dir, err)
	}
	free, kept := int64(st.Bavail)*st.Bsize, r.keptOf(st)
	files := st.Files > 0 && st.Ffree < min(fewFiles, st.Files/10)
	if free-n < kept || files {
		return &FullError{Dir: r.Dir, Free: free, Reserved: kept, Files: files && free-n >= kept}
	}
	return nil
}
