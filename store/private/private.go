// Package private writes and checks files and directories that only their owner may read.
package private

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// EnsureDir creates the state directory, or checks that no other user can access it.
func EnsureDir(dir string) error {
	if dir == "" {
		return errors.New("the store needs a directory: set state_dir")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("the state directory cannot be created: %w", err)
	}
	return CheckDir(dir)
}

// CheckDir requires a state directory that no other user can access, without side effects. The error is [fs.ErrNotExist]
// if the directory does not exist.
func CheckDir(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("the state directory cannot be read: %w", err)
	}
	if !info.IsDir() {
		return fmt.Errorf("the state directory %s is not a directory: move it away or set another path", dir)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("others may enter the state directory %s (mode %04o): run chmod 700 %s", dir, info.Mode().Perm(), dir)
	}
	return checkOwner(dir, info)
}

// Check refuses a file that other users can read or write, or that another user owns.
func Check(path string, info fs.FileInfo) error {
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file", path)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("others may read %s (mode %04o): run chmod 600 %s, and consider its contents leaked",
			path, info.Mode().Perm(), path)
	}
	return checkOwner(path, info)
}

// checkOwner refuses a file that another user could change.
func checkOwner(path string, info fs.FileInfo) error {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("%s belongs to another user: run chown %d %s", path, os.Geteuid(), path)
	}
	return nil
}

// Write writes data to a file of mode 0600, atomically and durably.
func Write(path string, data []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*") // CreateTemp uses mode 0600
	if err != nil {
		return WithPath(err, path)
	}
	defer func() {
		if err != nil {
			err = errors.Join(WithPath(err, path), os.Remove(f.Name()))
		}
	}()
	if _, err = f.Write(data); err != nil {
		return errors.Join(err, f.Close())
	}
	if err = errors.Join(f.Sync(), f.Close()); err != nil {
		return err
	}
	if err = os.Rename(f.Name(), path); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// WithPath replaces the path in an error about a temporary file by that of the final file, which users know.
func WithPath(err error, path string) error {
	if failed, ok := errors.AsType[*fs.PathError](err); ok {
		return &fs.PathError{Op: failed.Op, Path: path, Err: failed.Err}
	}
	if failed, ok := errors.AsType[*os.LinkError](err); ok {
		return &fs.PathError{Op: failed.Op, Path: path, Err: failed.Err}
	}
	return err
}

// SyncDir makes a rename durable.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
