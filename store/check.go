package store

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"boxgate/store/document"
	"boxgate/store/layout"
	"boxgate/store/pages"
	"boxgate/store/private"
)

// Check finds problems that would keep [Open] from opening the store, without changing anything. A store that is open
// in another process is fine, and so is a missing one that may be created.
func Check(o Options) error {
	if err := private.CheckDir(o.Dir); errors.Is(err, os.ErrNotExist) {
		return nil // created along with the store
	} else if err != nil {
		return err
	}
	path := filepath.Join(o.Dir, layout.FileDB)
	if missing, err := checkFile(o, path); err != nil || missing {
		return err
	}
	b, err := pages.Open(path, bolt.Options{ReadOnly: true, Timeout: cmp.Or(o.LockTimeout, time.Second)})
	if errors.Is(err, berrors.ErrTimeout) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("the store %s cannot be opened: %w", path, err)
	}
	return errors.Join(o.checkOpen(b, path), b.Close())
}

// checkFile reports whether the store is missing, or returns why the file cannot be a store.
func checkFile(o Options, path string) (missing bool, err error) {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return true, checkLost(o, path)
	case err != nil:
		return false, err
	case info.Size() == 0:
		return false, emptyStoreError(o, path)
	}
	return false, private.Check(path, info)
}

// checkOpen checks a store that is open for reading: its key, its layout and its documents.
func (o Options) checkOpen(b *bolt.DB, path string) error {
	keyFile := filepath.Join(o.Dir, layout.FileSecret)
	if _, err := os.Lstat(keyFile); errors.Is(err, os.ErrNotExist) {
		if _, err := os.Lstat(keyFile + layout.NewSuffix); err == nil {
			return nil // of an interrupted first start, which the next one completes
		}
	}
	k, err := openKey(b, o.Dir, cmp.Or(o.Passphrase.Reveal(), os.Getenv(o.PassphraseEnv)), o.PassphraseEnv, path)
	if err != nil {
		return err
	}
	defer clear(k.content)
	version, err := schemaOf(b)
	if err != nil {
		return fmt.Errorf("the store %s: %w", path, err)
	}
	if err := tooNew(path, max(version, k.schema)); err != nil {
		return err
	}
	if version < layout.SchemaTagged {
		return nil // tagged by the next Open
	}
	s := document.NewSealer()
	if err := s.AddKey(k.wrapped, k.key); err != nil {
		return err
	}
	if err := b.View(s.Check); err != nil {
		return fmt.Errorf("the store %s: %w; %w", path, err, pages.ErrDamaged)
	}
	return nil
}
