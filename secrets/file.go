package secrets

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/policy/name"
)

// A file that is empty or changes while it is read is probably being written. Reading is retried this often, with this
// delay.
const (
	readTries = 3
	readPause = 20 * time.Millisecond
)

var errChanging = errors.New("it keeps changing while it is read; write a new file and rename it to this name")

// readFile returns the value in a file. It opens the file each time, to notice both a changed file and a replaced one
// (by rename, or by changing a symbolic link).
func readFile(ctx context.Context, path string, f form) (name.Secret, error) {
	for try := 1; ; try++ {
		raw, stable, err := readOnce(path, f.maxRaw())
		switch {
		case err != nil:
			return name.Secret{}, err
		case stable && (len(raw) > 0 || try == readTries):
			return f.valueOf(raw)
		case try == readTries:
			clear(raw)
			return name.Secret{}, errChanging
		}
		clear(raw)
		select {
		case <-time.After(readPause):
		case <-ctx.Done():
			return name.Secret{}, errChanging
		}
	}
}

// missingTime is how long a file may be missing before it counts as deleted: some programs remove a file before they
// create its replacement.
const missingTime = 500 * time.Millisecond

// awaitFile is [readFile] for a file that may be about to be replaced: it waits for a missing file.
func awaitFile(ctx context.Context, path string, f form, patience time.Duration) (name.Secret, error) {
	for deadline := time.Now().Add(patience); ; {
		v, err := readFile(ctx, path, f)
		if !errors.Is(err, fs.ErrNotExist) || !time.Now().Before(deadline) {
			return v, err
		}
		select {
		case <-time.After(readPause):
		case <-ctx.Done():
			return v, err
		}
	}
}

// readOnce reads at most limit+1 bytes of the file, and reports whether it stayed unchanged meantime.
func readOnce(path string, limit int) (raw []byte, stable bool, err error) {
	// Without O_NONBLOCK, opening a named pipe would block until it has a writer.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, false, causeOf(err)
	}
	defer f.Close()
	before, err := f.Stat() // of the open file, which cannot be replaced in between
	if err != nil {
		return nil, false, causeOf(err)
	}
	if err := checkFile(path, before); err != nil {
		return nil, false, err
	}
	raw, err = io.ReadAll(io.LimitReader(f, int64(limit)+1))
	if err != nil {
		return nil, false, causeOf(err)
	}
	after, err := f.Stat()
	if err != nil {
		return nil, false, causeOf(err)
	}
	return raw, before.Size() == after.Size() && before.ModTime().Equal(after.ModTime()), nil
}

// causeOf returns a file system error without its path, which the message contains already.
func causeOf(err error) error {
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		return at.Err
	}
	return err
}

// checkFile refuses a file that others can read or write, or that another user owns. Its group may read it.
func checkFile(path string, info fs.FileInfo) error {
	mode := info.Mode()
	switch {
	case !mode.IsRegular():
		return errors.New("it is not a regular file")
	case mode.Perm()&0o007 != 0:
		return fmt.Errorf("it is readable or writable by everybody (mode %04o): run chmod o= %s, and consider the secret leaked",
			mode.Perm(), path)
	case mode.Perm()&0o020 != 0:
		return fmt.Errorf("it is group-writable (mode %04o): run chmod g-w %s", mode.Perm(), path)
	}
	return checkOwner(path, info)
}

// checkOwner refuses a file that another user could change.
func checkOwner(path string, info fs.FileInfo) error {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("it belongs to another user: run chown %d %s", os.Geteuid(), path)
	}
	return nil
}
