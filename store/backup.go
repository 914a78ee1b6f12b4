package store

import (
	"errors"
	"fmt"
	"io"
	"os"

	"boxgate/store/layout"
)

// Backup writes a copy of the store from a single moment. Secrets are encrypted in it as in the store, so it is useful
// only with the key file or passphrase of that time, which it does not contain. The store is first copied to a file,
// which is unlinked before it is read, so that a slow writer does not block the store.
func (db *DB) Backup(w io.Writer) (int64, error) {
	dir, err := os.MkdirTemp(db.dir, "."+layout.FileDB+"-backup-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	path := dir + "/" + layout.FileDB
	if err := copyInUse(db.bolt, path); err != nil {
		return 0, fmt.Errorf("the store could not be copied: %w", err)
	}
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	if err := os.RemoveAll(dir); err != nil {
		return 0, err
	}
	n, err := io.Copy(w, f)
	return n, errors.Join(err, f.Close())
}
