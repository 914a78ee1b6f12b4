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

	"boxgate/policy"
)

// A file that is empty or changes while it is read is being written: it is read again, this often and after this time.
const (
	readTries = 3
	readPause = 20 * time.Millisecond
)

var errChanging = errors.New("it keeps changing while it is read; write a new file and rename it to this name")

// readFile returns the value in a file. The file is opened and read anew each time, so a changed file and one that was
// put in its place (by rename, or by changing a symbolic link) are both seen.
func readFile(ctx context.Context, path string) (policy.Secret, error) {
	for try := 1; ; try++ {
		raw, stable, err := readOnce(path)
		switch {
		case err != nil:
			return policy.Secret{}, err
		case stable && (len(raw) > 0 || try == readTries):
			return valueOf(raw)
		case try == readTries:
			clear(raw)
			return policy.Secret{}, errChanging
		}
		clear(raw)
		select {
		case <-time.After(readPause):
		case <-ctx.Done():
			return policy.Secret{}, errChanging
		}
	}
}

// readOnce reads the file and reports whether it stayed the same meanwhile.
func readOnce(path string) (raw []byte, stable bool, err error) {
	// Without O_NONBLOCK a pipe under that name would hold us until somebody writes to it.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, false, causeOf(err)
	}
	defer f.Close()
	before, err := f.Stat() // of the open file: it cannot be exchanged in between
	if err != nil {
		return nil, false, causeOf(err)
	}
	if err := checkFile(path, before); err != nil {
		return nil, false, err
	}
	raw, err = io.ReadAll(io.LimitReader(f, int64(maxRaw)+1))
	if err != nil {
		return nil, false, causeOf(err)
	}
	after, err := f.Stat()
	if err != nil {
		return nil, false, causeOf(err)
	}
	return raw, before.Size() == after.Size() && before.ModTime().Equal(after.ModTime()), nil
}

// causeOf returns an error of the file system without its path, which is said already.
func causeOf(err error) error {
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		return at.Err
	}
	return err
}

// checkFile refuses a file that others may read, that others may write, or that someone else owns. A group may read it.
func checkFile(path string, info fs.FileInfo) error {
	mode := info.Mode()
	switch {
	case !mode.IsRegular():
		return errors.New("it is not a regular file")
	case mode.Perm()&0o007 != 0:
		return fmt.Errorf("everybody may read or write it (mode %04o): run chmod o= %s, and consider the secret to be known",
			mode.Perm(), path)
	case mode.Perm()&0o020 != 0:
		return fmt.Errorf("its group may write it (mode %04o): run chmod g-w %s", mode.Perm(), path)
	}
	return checkOwner(path, info)
}

// checkOwner refuses what another user could change under our hands.
func checkOwner(path string, info fs.FileInfo) error {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("it belongs to another user: run chown %d %s", os.Geteuid(), path)
	}
	return nil
}
