package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"boxgate/store/document"
	"boxgate/store/keyring"
	"boxgate/store/layout"
	"boxgate/store/private"
)

// ErrLost is returned when a gateway has run here but its store is gone.
var ErrLost = errors.New("the store is gone")

// ensureFile creates the store if this is the first start. A file that is missing or empty after an earlier start is an
// error: with a new store, running boxes would have no owner, and the API would get a new key.
func ensureFile(o Options, path, passphrase string) error {
	info, err := os.Lstat(path)
	switch {
	case err == nil && info.Size() == 0:
		return emptyStoreError(o, path)
	case err == nil || !errors.Is(err, fs.ErrNotExist):
		return err
	}
	unlock, err := lockDir(o.Dir)
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := os.Lstat(path); err == nil {
		return nil // another process was first
	}
	if err := checkLost(o, path); err != nil {
		return err
	}
	return makeStore(o, path, passphrase)
}

// emptyStoreError returns the error for an empty store file.
func emptyStoreError(o Options, path string) error {
	return fmt.Errorf("%w: the file %s is empty: restore it from a backup, or, to start over without any box, delete "+
		"what is in %s", ErrLost, path, o.Dir)
}

// checkLost returns an error if a missing store must have existed before.
func checkLost(o Options, path string) error {
	trace := findTrace(o)
	if trace == "" {
		return nil
	}
	return fmt.Errorf("%w: the file %s is missing, but %s says that a gateway ran here: restore the file from a backup, "+
		"or, to start over without any box, reboot and delete what is in %s", ErrLost, path, trace, o.Dir)
}

// findTrace returns a file that only an earlier start can have left, or "".
func findTrace(o Options) string {
	patterns := append([]string{
		filepath.Join(o.Dir, layout.FileSecret), filepath.Join(o.Dir, layout.FileAPIKey), filepath.Join(o.Dir, layout.FileNextKey),
		filepath.Join(o.Dir, "boxes", "*"),
	}, o.Traces...)
	for _, p := range patterns {
		if found, err := filepath.Glob(p); err == nil && len(found) > 0 {
			return found[0]
		}
	}
	return ""
}

// lockDir serializes first starts.
func lockDir(dir string) (unlock func(), err error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(d.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("%w (%s): it is being created", ErrInUse, dir), d.Close())
	}
	return func() { _ = d.Close() }, nil
}

// makeStore creates the store and the key file under temporary names and then renames them, the store first. A start
// that dies before the first rename has no effect; after it, the next start finds the key file under its temporary name
// (see keyring.Open).
func makeStore(o Options, path, passphrase string) error {
	fresh, keyFile := path+layout.NewSuffix, filepath.Join(o.Dir, layout.FileSecret)
	for _, left := range []string{fresh, keyFile + layout.NewSuffix} {
		if err := os.Remove(left); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	k, err := keyring.Make(keyFile+layout.NewSuffix, passphrase, o.PassphraseEnv)
	if err != nil {
		return err
	}
	if err := o.reportStep("first key written"); err != nil {
		return err
	}
	if err := writeEmptyStore(fresh, k); err != nil {
		return fmt.Errorf("the store cannot be made: %w", err)
	}
	if err := o.reportStep("first store written"); err != nil {
		return err
	}
	if err := errors.Join(os.Rename(fresh, path), private.SyncDir(o.Dir), o.reportStep("first store in its place")); err != nil {
		return err
	}
	if passphrase != "" {
		return nil
	}
	return errors.Join(os.Rename(keyFile+layout.NewSuffix, keyFile), private.SyncDir(o.Dir))
}

// writeEmptyStore writes a store without documents.
func writeEmptyStore(path string, k keyring.Keyring) error {
	s := document.NewSealer()
	wrapped, err := s.NewKey(k.Wrap)
	if err != nil {
		return err
	}
	b, err := bolt.Open(path, 0o600, &bolt.Options{FreelistType: bolt.FreelistMapType})
	if err != nil {
		return err
	}
	err = b.Update(func(tx *bolt.Tx) error {
		for _, name := range append([][]byte{layout.Meta}, layout.Documents...) {
			if _, err := tx.CreateBucket(name); err != nil {
				return err
			}
		}
		if err := errors.Join(document.PutKey(tx, wrapped, k.Sealing), setSchema(tx, layout.SchemaNow)); err != nil {
			return err
		}
		return s.InitTotal(tx)
	})
	return errors.Join(err, b.Sync(), b.Close())
}
