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

// NeedRoom requires that the file system of the directory configured by key has space for a first start.
func NeedRoom(key, dir string) error {
	at := dir
	var fs unix.Statfs_t
	err := unix.Statfs(at, &fs)
	for err != nil && at != "/" {
		at = filepath.Dir(at)
		err = unix.Statfs(at, &fs)
	}
	free := fs.Bavail * uint64(fs.Bsize)
	if err != nil || free >= firstStart {
		return nil // unknown
	}
	return fmt.Errorf("%s: the disk of %s is full (%d KiB are free): make room, or set another path", key, at, free>>10)
}
