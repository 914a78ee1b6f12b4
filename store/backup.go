package store

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	bolt "go.etcd.io/bbolt"

	"boxgate/policy/name"
	"boxgate/store/layout"
	"boxgate/store/private"
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

// ReplacedFile is the store that a restored one has replaced.
const ReplacedFile = layout.FileDB + ".before-restore"

// RestoreOptions configure a restore.
type RestoreOptions struct {
	Dir        string      // the state directory, with the key file of the backup unless it has a passphrase
	From       string      // the backup
	Passphrase name.Secret // of the backup, if it has one
	// KeepAPIKeys keeps the named API keys of the backup, including keys that were revoked since.
	KeepAPIKeys bool
	// By is the user who restores, for the history of policies; may be "".
	By string
}

// Restore replaces the store of a stopped gateway by a backup. If the gateway runs the error is [ErrInUse]. The backup
// is opened and verified next to the store, and replaces it in one step, so a failure leaves the store unchanged. The
// operator's API key is replaced, and named keys are deleted unless KeepAPIKeys is set, because the backup may contain
// keys that were revoked later. The history of policies continues that of the replaced store, if that can be read with the
// same key. The replaced store stays as [ReplacedFile].
func Restore(o RestoreOptions) (VerifyReport, error) {
	if err := private.EnsureDir(o.Dir); err != nil {
		return VerifyReport{}, err
	}
	release, err := Lock(o.Dir)
	if err != nil {
		return VerifyReport{}, fmt.Errorf("%w: stop the gateway first (%w)", ErrInUse, err)
	}
	defer release()
	aside, err := os.MkdirTemp(o.Dir, "."+layout.FileDB+"-restore-")
	if err != nil {
		return VerifyReport{}, private.WithPath(err, o.Dir)
	}
	defer os.RemoveAll(aside)
	report, err := restore(aside, o)
	if err != nil {
		err = &restoreError{err, strings.NewReplacer(filepath.Join(aside, layout.FileDB), o.From, aside, o.Dir)}
	}
	return report, err
}

// restoreError is an error about the temporary directory of a restore. Its text has the paths of the originals instead.
type restoreError struct {
	error
	named *strings.Replacer
}

// Error returns the text.
func (e *restoreError) Error() string { return e.named.Replace(e.error.Error()) }

// Unwrap returns the underlying error.
func (e *restoreError) Unwrap() error { return e.error }

// restore prepares a backup in the directory aside, and moves it over the store.
func restore(aside string, o RestoreOptions) (VerifyReport, error) {
	if err := copyFile(o.From, filepath.Join(aside, layout.FileDB)); err != nil {
		return VerifyReport{}, err
	}
	secret := filepath.Join(o.Dir, layout.FileSecret)
	if err := copyFile(secret, filepath.Join(aside, layout.FileSecret)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return VerifyReport{}, err
	}
	report, err := prepareBackup(aside, o)
	if err != nil || len(report.Problems) > 0 {
		return report, err
	}
	return report, replaceStore(o.Dir, aside)
}

// prepareBackup opens a backup in a separate directory, verifies it and changes its API keys.
func prepareBackup(aside string, o RestoreOptions) (report VerifyReport, err error) {
	db, err := Open(Options{Dir: aside, Passphrase: o.Passphrase})
	if err != nil {
		return report, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if report, err = db.Verify(); err != nil || len(report.Problems) > 0 {
		return report, err
	}
	if !o.KeepAPIKeys {
		_, err = db.Keys.deleteWhere(func(k APIKey) bool { return k.ID != OperatorKey })
	}
	if err := errors.Join(err, db.Keys.Rotate(0)); err != nil {
		return report, err
	}
	kept, err := continueHistory(db, o.Dir, aside, o)
	report.HistoryLost = !kept
	return report, err
}

// replaceStore moves the store in aside over that in dir. The API key goes first, as the next one: the next start
// adopts it if its store has it.
func replaceStore(dir, aside string) error {
	store := filepath.Join(dir, layout.FileDB)
	err := os.Rename(filepath.Join(aside, layout.FileAPIKey), filepath.Join(dir, layout.FileNextKey))
	if err != nil {
		return err
	}
	before := filepath.Join(dir, ReplacedFile)
	if err := os.Remove(before); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.Link(store, before); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return errors.Join(os.Rename(filepath.Join(aside, layout.FileDB), store), private.SyncDir(dir))
}

// privateCopy copies a file into a directory under the given name, making the directory, and reports whether the file exists.
func privateCopy(from, dir, name string) (exists bool, err error) {
	if err := private.EnsureDir(dir); err != nil {
		return false, err
	}
	err = copyFile(from, filepath.Join(dir, name))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// copyFile copies a file so that only its owner can read it. If from is missing the error is [os.ErrNotExist].
func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Sync(), out.Close())
}

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
