package files

import (
	"context"
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Usage is the disk usage of a tree.
type Usage struct {
	Bytes  int64
	Inodes int64
	Whole  bool // false: the tree has more entries or levels than were counted
}

// The tree may have been made by a box, and may be changing. Entries beyond these limits are not counted.
const (
	maxUsageDepth   = 256 // one descriptor per level
	maxUsageEntries = 4 << 20
)

// DiskUsage adds up everything below a directory, which may belong to a running box: it follows no link, crosses no mount
// point, and uses bounded descriptors and memory. A file with several names counts once if all of them are in the tree.
// Entries that disappear during the call are not counted.
func DiskUsage(ctx context.Context, path string) (Usage, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return Usage{}, &os.PathError{Op: "open", Path: path, Err: err}
	}
	w := usageWalk{ctx: ctx, whole: true}
	err = w.dir(os.NewFile(uintptr(fd), path), 1)
	return Usage{Bytes: w.blocks * 512, Inodes: w.inodes, Whole: w.whole}, err
}

type usageWalk struct {
	ctx     context.Context
	blocks  int64
	inodes  int64
	entries int
	whole   bool
}

// dir counts the entries of a directory, and closes it.
func (w *usageWalk) dir(d *os.File, depth int) error {
	defer d.Close()
	for {
		names, err := d.Readdirnames(256)
		for _, name := range names {
			if err := w.entry(d, name, depth); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, unix.ENOENT) { // ENOENT: the directory was removed
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (w *usageWalk) entry(d *os.File, name string, depth int) error {
	if w.ctx.Err() != nil {
		return context.Cause(w.ctx)
	}
	if w.entries++; w.entries > maxUsageEntries {
		w.whole = false
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstatat(int(d.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return nil // it has been removed
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		w.blocks += st.Blocks / max(int64(st.Nlink), 1)
		w.inodes++
		return nil
	}
	w.blocks += st.Blocks
	w.inodes++
	if depth == maxUsageDepth {
		w.whole = false
		return nil
	}
	below, err := openBelow(d, name)
	if err != nil {
		return nil // it has been removed or replaced
	}
	return w.dir(below, depth+1)
}
