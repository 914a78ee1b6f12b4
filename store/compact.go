package store

import (
	"errors"
	"os"
	"path/filepath"

	bolt "go.etcd.io/bbolt"

	"boxgate/store/layout"
	"boxgate/store/private"
)

// rewriteFile rewrites the file if a change of the key requires it: unused pages still contain values and the data key
// encrypted with the old key. The new file replaces the old one atomically; the caller must use the returned database
// from then on. If the disk is full, the old file stays and the next start tries again.
func rewriteFile(b *bolt.DB, path string, open func() (*bolt.DB, error)) (*bolt.DB, error) {
	wanted := false
	err := b.View(func(tx *bolt.Tx) error {
		meta := tx.Bucket(layout.Meta)
		wanted = meta != nil && meta.Get(layout.Compact) != nil
		return nil
	})
	if err != nil || !wanted {
		return b, err
	}
	fresh := path + layout.NewSuffix
	if err := copyInUse(b, fresh); err != nil {
		_ = os.Remove(fresh)
		return b, nil //nolint:nilerr // the store is intact; only data from before the key change is left in it
	}
	if err := errors.Join(os.Rename(fresh, path), private.SyncDir(filepath.Dir(path))); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	if err := b.Close(); err != nil { // not earlier: its lock keeps other processes from the file
		return nil, err
	}
	return open()
}

// copyInUse writes the used part of a database into a new file.
func copyInUse(b *bolt.DB, path string) error {
	fresh, err := bolt.Open(path, 0o600, &bolt.Options{FreelistType: bolt.FreelistMapType})
	if err != nil {
		return err
	}
	err = bolt.Compact(fresh, b, 1<<20)
	if err == nil {
		err = fresh.Update(func(tx *bolt.Tx) error { return tx.Bucket(layout.Meta).Delete(layout.Compact) })
	}
	return errors.Join(err, fresh.Sync(), fresh.Close())
}

// removeLeftovers removes partially written files that a crash has left, because they may contain keys.
func removeLeftovers(dir string) error {
	var errs []error
	if err := os.Remove(filepath.Join(dir, layout.FileDB+layout.NewSuffix)); !errors.Is(err, os.ErrNotExist) {
		errs = append(errs, err)
	}
	for _, name := range []string{layout.FileSecret, layout.FileSecret + layout.NewSuffix, layout.FileAPIKey, layout.FileNextKey} {
		left, err := filepath.Glob(filepath.Join(dir, "."+name+"-*"))
		errs = append(errs, err)
		for _, f := range left {
			errs = append(errs, os.Remove(f))
		}
	}
	return errors.Join(errs...)
}
