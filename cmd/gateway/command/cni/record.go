package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"boxgate/api"
)

// defaultStateDir has a record for each attachment. It is emptied by a reboot, like the kernel state that the records are about.
const defaultStateDir = "/run/boxgate-cni"

// maxRecord bounds a record in bytes.
const maxRecord = 64 << 10

// record is what DEL must know about an attachment. It is locked while it is open, so that calls for one attachment run one after the
// other. Close it.
type record struct {
	file *os.File
	path string

	// Ref is the reference of the attachment; empty in a record that was not written.
	Ref string `json:"ref"`
	// Removed are the addresses, as CIDRs, of the interface of the plugin before this one.
	Removed []string `json:"removed,omitempty"`
}

// openRecord opens and locks the record of an attachment. It waits for another call for it.
func openRecord(dir, ref string) (*record, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, api.CNIName(ref))
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, err
		}
		if err := flock(f); err != nil {
			return nil, errors.Join(fmt.Errorf("locking %s: %w", path, err), f.Close())
		}
		if !isStill(f, path) { // removed by the call that had the lock
			f.Close()
			continue
		}
		r := &record{file: f, path: path}
		text, err := io.ReadAll(io.LimitReader(f, maxRecord))
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		_ = json.Unmarshal(text, r) // ADD goes on only after the record was written completely
		return r, nil
	}
}

// flock locks a file, and waits for its present owner.
func flock(f *os.File) error {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// isStill reports whether a path still names an open file.
func isStill(f *os.File, path string) bool {
	open, err := f.Stat()
	if err != nil {
		return false
	}
	now, err := os.Lstat(path)
	return err == nil && os.SameFile(open, now)
}

// write writes the record.
func (r *record) write() error {
	text, err := json.Marshal(r)
	if err == nil {
		err = r.file.Truncate(0)
	}
	if err == nil {
		_, err = r.file.WriteAt(text, 0)
	}
	return err
}

// remove removes the record. It stays locked until it is closed.
func (r *record) remove() error {
	err := os.Remove(r.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Close unlocks the record. One that was not written is removed.
func (r *record) Close() error {
	var err error
	if r.Ref == "" {
		err = r.remove()
	}
	return errors.Join(err, r.file.Close())
}

// recordsOf returns the references of the records of a network.
func recordsOf(dir, network string) (refs []string, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, entry := range entries {
		text, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		var r record
		if err != nil || json.Unmarshal(text, &r) != nil || !strings.HasPrefix(r.Ref, network+"/") {
			continue // removed meanwhile, or being written
		}
		refs = append(refs, r.Ref)
	}
	return refs, err
}
