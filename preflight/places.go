package preflight

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// NeedWritable requires that the directory configured by key can be written to, or created. It has no side effects.
func NeedWritable(key, dir string) error {
	at := dir
	info, err := os.Stat(at)
	for err != nil && at != "/" && !errors.Is(err, unix.EACCES) {
		at = filepath.Dir(at)
		info, err = os.Stat(at)
	}
	switch {
	case err != nil:
		return fmt.Errorf("%s: %s cannot be entered: set another path", key, at)
	case !info.IsDir():
		return fmt.Errorf("%s: %s is not a directory: move it away or set another path", key, at)
	}
	switch err := unix.Access(at, unix.W_OK|unix.X_OK); {
	case errors.Is(err, unix.EROFS):
		return fmt.Errorf("%s: the file system of %s is mounted read-only: mount it writable (in a unit, ReadWritePaths=%s), or set another path", key, at, at)
	case err != nil:
		return fmt.Errorf("%s: %s cannot be written to: set another path, or its owner and mode", key, at)
	}
	return nil
}

// firstStart is the disk space in bytes that the first start needs for the store and its key.
const firstStart = 1 << 20

// NeedSpace requires that the file system of the directory configured by key has space for a first start.
func NeedSpace(key, dir string) error {
	at, fs, err := statfs(dir)
	free := fs.Bavail * uint64(fs.Bsize)
	if err != nil || free >= firstStart {
		return nil // unknown
	}
	return fmt.Errorf("%s: the disk of %s is full (%d KiB are free): make room, or set another path", key, at, free>>10)
}

// CheckFree returns an error if the file system of the directory configured by key is full, so that the gateway cannot store changes,
// and a warning if less than the reserve is free, so that no box can be created. The reserve counts as at most a tenth of the
// file system.
func CheckFree(key, dir string, reserve uint64) error {
	at, fs, err := statfs(dir)
	if err != nil {
		return nil //nolint:nilerr // reported by NeedWritable
	}
	free, kept := fs.Bavail*uint64(fs.Bsize), min(reserve, fs.Blocks*uint64(fs.Bsize)/10)
	const remedy = "delete boxes, snapshots or images, or enlarge it"
	switch {
	case free < firstStart:
		return fmt.Errorf("%s: the disk of %s is full (%d KiB are free), so changes cannot be stored: %s", key, at, free>>10, remedy)
	case fs.Files > 0 && fs.Ffree < fewFiles:
		return Warnf("%s: the disk of %s has room for only %d more files: %s", key, at, fs.Ffree, remedy)
	case free < kept:
		return Warnf("%s: %d MiB are free on the disk of %s, less than the %d MiB that are kept for the gateway (launcher.reserve), so no box, snapshot or image can be created: %s",
			key, free>>20, at, kept>>20, remedy)
	}
	return nil
}

// fewFiles is the number of free inodes below which a file system counts as nearly full.
const fewFiles = 2000

// statfs returns the state of the file system that contains dir, or its nearest existing parent, which it returns too.
func statfs(dir string) (at string, fs unix.Statfs_t, err error) {
	at = dir
	err = unix.Statfs(at, &fs)
	for err != nil && at != "/" && at != "." {
		at = filepath.Dir(at)
		err = unix.Statfs(at, &fs)
	}
	return at, fs, err
}
