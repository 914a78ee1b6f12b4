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
)

// The files of the state directory that the store owns.
const (
	fileDB     = "boxgate.db"
	fileSecret = "secret.key"
	fileAPIKey = "api-key"
)

// Options say where the store is and how its secrets are sealed.
type Options struct {
	// Dir is the state directory. It is made with mode 0700; one that others may enter is refused.
	Dir string
	// PassphraseEnv names an environment variable. If it is set and not empty, the data key is encrypted with that
	// passphrase instead of the key file Dir/secret.key, and the variable is removed from the environment, so that no
	// child process inherits it. A store is opened in the way it was made.
	PassphraseEnv string
	// LockTimeout is how long to wait for another process that has the store open; 0: one second.
	LockTimeout time.Duration
}

// DB is an open store. Safe for concurrent use.
type DB struct {
	dir  string
	bolt *bolt.DB
	seal *sealer
}

// Open opens the store, and makes it on the first start: the directory, the file, the key file (unless there is a
// passphrase). An error is a sentence that says what to do. Only one process can have a store open.
func Open(o Options) (*DB, error) {
	passphrase := takeEnv(o.PassphraseEnv)
	if err := ensureDir(o.Dir); err != nil {
		return nil, err
	}
	path := filepath.Join(o.Dir, fileDB)
	b, err := openFile(path, cmp.Or(o.LockTimeout, time.Second))
	if err != nil {
		return nil, err
	}
	db := &DB{dir: o.Dir, bolt: b}
	if err := migrate(b, path); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	if db.seal, err = openSealer(b, o.Dir, passphrase, o.PassphraseEnv); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return db, nil
}

// openFile opens the bbolt file and checks that it is ours alone.
func openFile(path string, wait time.Duration) (*bolt.DB, error) {
	b, err := openWhole(path, &bolt.Options{Timeout: wait, FreelistType: bolt.FreelistMapType})
	if errors.Is(err, berrors.ErrTimeout) {
		return nil, fmt.Errorf("another gateway is using %s: stop it, or give this one a state_dir of its own", path)
	}
	if err != nil {
		return nil, fmt.Errorf("the store %s cannot be opened: %w", path, err)
	}
	info, err := os.Stat(path)
	if err == nil {
		err = checkPrivate(path, info)
	}
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

// Close ends the use of the store. Transactions under way are finished first.
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
