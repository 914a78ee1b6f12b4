package disk

import (
	"fmt"

	"golang.org/x/sys/unix"
)

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
