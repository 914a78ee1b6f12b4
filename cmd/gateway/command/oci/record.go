package oci

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"boxgate/launcher/files"
)

// stateDir has a directory for each container: its record and the bundle that the runtime uses. Like the state of the runtimes, it is
// gone after a reboot.
const stateDir = "/run/boxgate-oci"

// record is a container of `gateway oci`.
type record struct {
	ID      string
	Runtime string // path
	Root    string // of the runtime's state
	Box     string // ID
	Member  bool   // the box is that of another container, whose network namespace it joined
	NetNS   string // device and inode of the network namespace
	Files   string // device and inode of the root with the CA; empty: the CA is in a mounted file
	Asked   asked  // of the container that the box was made for

	dir string
}

// place returns the directory of a container. Its ID is unique for each state directory of each runtime only.
func place(runtime, root, id string) string {
	sum := sha256.Sum256([]byte(runtime + "\x00" + root + "\x00" + id))
	return filepath.Join(stateDir, hex.EncodeToString(sum[:16]))
}

// lock waits until no other command changes the container at a place.
func lock(ctx context.Context, place string) (unlock func(), err error) {
	if err := os.MkdirAll(stateDir, 0o700); err != nil {
		return nil, fmt.Errorf("the state of containers: %w", err)
	}
	if info, err := os.Lstat(stateDir); err != nil || !info.IsDir() || info.Mode().Perm() != 0o700 {
		return nil, fmt.Errorf("%s is not a directory of mode 0700: remove it", stateDir)
	}
	path := place + ".lock"
	release, err := files.Lock(ctx, path, nil)
	if err != nil {
		return nil, err
	}
	return func() {
		_ = os.Remove(path) // a command that waits notices that its file has no name any longer
		release()
	}, nil
}

// load returns the record at a place, or nil if the place is empty.
func load(place string) (*record, error) {
	data, err := os.ReadFile(filepath.Join(place, "record.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	r := &record{dir: place}
	if err == nil {
		err = json.Unmarshal(data, r)
	}
	if err != nil {
		return nil, fmt.Errorf("the state of the container in %s: %w", place, err)
	}
	return r, nil
}

// save writes the record, and makes the directory of the container.
func (r *record) save() error {
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		return err
	}
	return files.WriteJSON(filepath.Join(r.dir, "record.json"), r)
}

// remove removes the files of the container.
func (r *record) remove() error { return os.RemoveAll(r.dir) }

// findRecords returns the records that match.
func findRecords(match func(*record) bool) (found []*record, err error) {
	entries, err := os.ReadDir(stateDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		if r, err := load(filepath.Join(stateDir, e.Name())); err == nil && r != nil && match(r) {
			found = append(found, r)
		}
	}
	return found, nil
}

// ownersOf returns the records of containers that own a network namespace. Without a deletion, as after a crash, the record of one that
// has ended stays, and the kernel may have given its namespace's number to another namespace since.
func ownersOf(netns string) ([]*record, error) {
	return findRecords(func(r *record) bool { return r.NetNS == netns && !r.Member })
}

// state returns the ID of the first process of the container by its runtime, 0 if it has ended.
func (r *record) state(ctx context.Context) (pid int, err error) {
	l := Line{Runtime: r.Runtime}
	if r.Root != "" {
		l.Globals = []string{"--root", r.Root}
	}
	return l.state(ctx, r.ID)
}

// process returns the ID of the first process of the container, or 0 if none is in its network namespace.
func (r *record) process(ctx context.Context) int {
	pid, err := r.state(ctx)
	if err != nil || pid <= 0 {
		return 0
	}
	if now, err := identity(fmt.Sprintf("/proc/%d/ns/net", pid)); err != nil || now != r.NetNS {
		return 0 // of an ended container, whose process ID another process has
	}
	return pid
}

// shares reports whether a namespace is that of a container with the same box. file is its name in /proc/PID/ns, id its identity.
func (r *record) shares(ctx context.Context, file, id string) (bool, error) {
	all, err := findRecords(func(other *record) bool { return other.Box == r.Box })
	if err != nil {
		return false, err
	}
	for _, other := range all {
		pid := other.process(ctx)
		if pid == 0 {
			continue
		}
		if own, err := identity(fmt.Sprintf("/proc/%d/ns/%s", pid, file)); err == nil && own == id {
			return true, nil
		}
	}
	return false, nil
}

// identity returns device and inode of a file.
func identity(path string) (string, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	return fmt.Sprintf("%d:%d", st.Dev, st.Ino), nil
}
