package store

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
	"golang.org/x/sys/unix"

	"boxgate/policy/name"
	"boxgate/store/document"
	"boxgate/store/keyring"
	"boxgate/store/layout"
	"boxgate/store/pages"
	"boxgate/store/private"
)

// Options configure where the store is and how its secrets are sealed.
type Options struct {
	// Dir is the state directory. It is created with mode 0700; one that other users can enter is refused.
	Dir string
	// PassphraseEnv names an environment variable. If it is set and not empty, the data key is encrypted with that
	// passphrase instead of the key file Dir/secret.key, and the variable is removed from the environment, so that no
	// child process inherits it. A store must be opened in the way it was created.
	PassphraseEnv string
	// Passphrase, if not empty, is used instead of the one in PassphraseEnv.
	Passphrase name.Secret
	// Traces are patterns ([filepath.Match]) of files outside of Dir that show that a gateway has run here. If any of
	// them exists, a missing store is not created: see [ErrLost].
	Traces []string
	// LockTimeout is how long to wait for another process that has the store open; 0: one second.
	LockTimeout time.Duration

	onStep func(step string) error // for tests: called with each step of a first start; its error is returned
}

// reportStep marks a completed step of a first start.
func (o Options) reportStep(step string) error {
	if o.onStep == nil {
		return nil
	}
	return o.onStep(step)
}

// DB is an open store. Its own methods concern the file as a whole; the records are in the parts. The DB and its parts
// are safe for concurrent use; the parts end with [DB.Close].
type DB struct {
	*file

	Boxes        Boxes
	Usages       Usages
	Rules        Rules
	History      History
	Authorities  Authorities
	URLs         URLs
	Schedules    Schedules
	Snapshots    Snapshots
	Approvals    Approvals
	Models       Models
	Keys         Keys
	KeySecrets   KeySecrets
	Environment  Environment
	Installation Installation
}

// newDB returns the parts of a file.
func newDB(f *file) *DB {
	return &DB{
		file: f, Boxes: Boxes{f}, Usages: Usages{f}, Rules: Rules{f}, History: History{f}, Authorities: Authorities{f}, URLs: URLs{f}, Schedules: Schedules{f},
		Snapshots: Snapshots{f}, Approvals: Approvals{f}, Models: Models{f}, Keys: newKeys(f), KeySecrets: KeySecrets{f}, Environment: Environment{f}, Installation: Installation{f},
	}
}

// Errors for errors.Is. Every other error means that the file could not be read or written.
var (
	ErrNotFound     = errors.New("not found")
	ErrNameTaken    = errors.New("the name is in use by another box")
	ErrKeyNameTaken = errors.New("the name is in use by another API key")
	ErrManyKeys     = errors.New("there are too many API keys")
	ErrHostTaken    = errors.New("the host name is in use by another public URL")
	ErrHostUnproven = errors.New("control of the host name is not proven")
	ErrExhausted    = errors.New("every address of the pools is in use")
	ErrInUse        = errors.New("another gateway is using the store")
	ErrPassphrase   = errors.New("the passphrase is wrong")
	ErrConflict     = errors.New("changed concurrently")
)

// Open opens the store, and on the first start creates it: the directory, the file, and the key file unless there is a
// passphrase. Errors contain the remedy. Only one process can have a store open.
//
// Every document is checked before any is used: see package document.
func Open(o Options) (*DB, error) {
	passphrase := cmp.Or(o.Passphrase.Reveal(), takeEnv(o.PassphraseEnv))
	if err := private.EnsureDir(o.Dir); err != nil {
		return nil, err
	}
	path := filepath.Join(o.Dir, layout.FileDB)
	if err := ensureFile(o, path, passphrase); err != nil {
		return nil, err
	}
	openAgain := func() (*bolt.DB, error) { return openFile(path, cmp.Or(o.LockTimeout, time.Second)) }
	b, err := openAgain()
	if err != nil {
		return nil, err
	}
	if err := removeLeftovers(o.Dir); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	if b, err = rewriteFile(b, path, openAgain); err != nil {
		return nil, err
	}
	f := &file{dir: o.Dir, bolt: b}
	if f.seal, err = openSealer(b, o.Dir, passphrase, o.PassphraseEnv, path); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	if err := b.View(f.seal.Check); err != nil {
		return nil, errors.Join(fmt.Errorf("the store %s: %w; %w", path, err, pages.ErrDamaged), b.Close())
	}
	if err := beginHistory(f); err != nil {
		return nil, errors.Join(fmt.Errorf("the store %s: the history of policies cannot begin: %w", path, err), b.Close())
	}
	return newDB(f), nil
}

// openFile opens the bbolt file and checks that only its owner can access it. The process that had it open may have
// replaced it (see rewriteFile), so that the acquired lock is on a deleted file: then openFile starts over.
func openFile(path string, wait time.Duration) (*bolt.DB, error) {
	for {
		before, _ := os.Stat(path)
		b, err := openChecked(path, wait)
		if err != nil || before == nil {
			return b, err
		}
		after, err := os.Stat(path)
		if err != nil {
			return nil, errors.Join(err, b.Close())
		}
		if os.SameFile(before, after) {
			return b, nil
		}
		if err := b.Close(); err != nil {
			return nil, err
		}
	}
}

func openChecked(path string, wait time.Duration) (*bolt.DB, error) {
	b, err := pages.Open(path, bolt.Options{Timeout: wait, FreelistType: bolt.FreelistMapType})
	if errors.Is(err, berrors.ErrTimeout) {
		return nil, fmt.Errorf("%w (%s): stop it, or give this one a state_dir of its own", ErrInUse, path)
	}
	if err != nil {
		return nil, fmt.Errorf("the store %s cannot be opened: %w", path, err)
	}
	info, err := os.Stat(path)
	if err == nil {
		err = private.Check(path, info)
	}
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

// Close closes the store. It waits for running transactions.
func (db *DB) Close() error { return db.bolt.Close() }

// takeEnv returns the value of an environment variable and removes it.
func takeEnv(name string) string {
	if name == "" {
		return ""
	}
	v := os.Getenv(name)
	_ = os.Unsetenv(name)
	return v
}

// CheckDir requires a state directory that no other user can access, without side effects. The error is [fs.ErrNotExist]
// if the directory does not exist.
func CheckDir(dir string) error { return private.CheckDir(dir) }

// IsStoreFile reports whether the store owns a file or directory of that name in a state directory.
func IsStoreFile(name string) bool {
	return slices.ContainsFunc(layout.Files, func(pattern string) bool {
		matched, err := filepath.Match(pattern, name)
		return err == nil && matched
	})
}

// Names of the store's files in a state directory.
const (
	FileName    = layout.FileDB
	KeyFileName = layout.FileSecret // the key that encrypts its secrets, unless there is a passphrase
)

// InUse reports whether a process has the store of a state directory open.
func InUse(dir string) bool {
	f, err := os.Open(filepath.Join(dir, layout.FileDB))
	if err != nil {
		return false
	}
	defer f.Close()
	return errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
}

// Lock keeps gateways from opening the store of a state directory until release is called. It fails if a gateway has it
// open. Without a store it is a no-op.
func Lock(dir string) (release func(), err error) {
	f, err := os.Open(filepath.Join(dir, layout.FileDB))
	if errors.Is(err, os.ErrNotExist) {
		return func() {}, nil
	}
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("the store in %s is in use: %w", dir, err)
	}
	return func() { f.Close() }, nil
}

// file is the open file that a [DB] and its parts share. Safe for concurrent use.
type file struct {
	dir  string
	bolt *bolt.DB
	seal *document.Sealer

	holdings holdings
	keyUses  keyUses                 // not stored yet
	rotating sync.Mutex              // one change of keys at a time
	onStep   func(step string) error // for tests: called with each step of a change of keys; its error is returned
}

// path returns the path of a file in the state directory.
func (f *file) path(name string) string { return filepath.Join(f.dir, name) }

// reportStep marks a completed step of a change of keys.
func (f *file) reportStep(step string) error {
	if f.onStep == nil {
		return nil
	}
	return f.onStep(step)
}

// transaction is one transaction over all documents. What several parts need in it are functions that take it, such as
// getBox.
type transaction struct {
	*bolt.Tx
	file      *file
	documents *document.Transaction
}

// view runs do in a transaction that only reads.
func (f *file) view(do func(*transaction) error) error {
	return f.bolt.View(func(tx *bolt.Tx) error { return do(&transaction{tx, f, f.seal.Begin(tx)}) })
}

// update runs do in a transaction, which is committed unless do returns an error.
func (f *file) update(do func(*transaction) error) error {
	return f.bolt.Update(func(tx *bolt.Tx) error { return f.change(tx, do) })
}

// batch is update in a transaction that concurrent calls share. do may be called more than once.
func (f *file) batch(do func(*transaction) error) error {
	return f.bolt.Batch(func(tx *bolt.Tx) error { return f.change(tx, do) })
}

// change runs do in a transaction that changes documents.
func (f *file) change(tx *bolt.Tx, do func(*transaction) error) error {
	documents := f.seal.Begin(tx)
	if err := do(&transaction{tx, f, documents}); err != nil {
		return err
	}
	return documents.Flush()
}

// table returns the documents of a bucket.
func (tx *transaction) table(bucket []byte) (document.Table, error) {
	return tx.documents.Table(bucket)
}

// get returns a document, or nil if it does not exist.
func (tx *transaction) get(bucket, key []byte) ([]byte, error) {
	t, err := tx.table(bucket)
	if err != nil {
		return nil, err
	}
	return t.Get(key)
}

// put writes a document, replacing the existing one.
func (tx *transaction) put(bucket, key, data []byte) error {
	t, err := tx.table(bucket)
	if err != nil {
		return err
	}
	return t.Put(key, data)
}

// delete deletes a document, if it exists.
func (tx *transaction) delete(bucket, key []byte) error {
	t, err := tx.table(bucket)
	if err != nil {
		return err
	}
	return t.Delete(key)
}

// sealJSON encodes and encrypts v for one place.
func (tx *transaction) sealJSON(bucket []byte, key string, v any) ([]byte, error) {
	return tx.file.seal.SealJSON(tx.Tx, bucket, key, v)
}

// openJSON is the reverse of sealJSON.
func (tx *transaction) openJSON(bucket []byte, key string, sealed []byte, v any) error {
	return tx.file.seal.OpenJSON(tx.Tx, bucket, key, sealed, v)
}

// getSealed decodes a document that is sealed as a whole into v, and reports whether it exists.
func (tx *transaction) getSealed(bucket []byte, key string, v any) (found bool, err error) {
	sealed, err := tx.get(bucket, []byte(key))
	if err != nil || sealed == nil {
		return false, err
	}
	return true, tx.openJSON(bucket, key, sealed, v)
}

// putSealed seals v as a whole and writes it.
func (tx *transaction) putSealed(bucket []byte, key string, v any) error {
	sealed, err := tx.sealJSON(bucket, key, v)
	if err != nil {
		return err
	}
	return tx.put(bucket, []byte(key), sealed)
}

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
