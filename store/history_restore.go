package store

import (
	"errors"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/policy"
	"boxgate/store/history"
	"boxgate/store/layout"
)

// continueHistory makes the history of a restored backup continue that of the store it replaces, which also has the versions
// since the backup, and gives the restored policies and header rules new numbers. So every version in earlier decisions still leads to
// its text, and no number has two. It reports whether the replaced store could be read. If not, the numbers jump, so
// that they are higher than any number in the lost history.
func continueHistory(db *DB, dir, aside string, o RestoreOptions) (kept bool, err error) {
	old, err := openReplaced(dir, aside, o)
	switch {
	case err == nil:
		defer func() { err = errors.Join(err, old.Close()) }()
		if err := importHistory(db, old); err != nil {
			return false, err
		}
		return true, restoreVersions(db, o.By, 1)
	case errors.Is(err, errNotReplaced):
		return true, restoreVersions(db, o.By, 1)
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return false, err
	}
	made, err := newestVersion(db)
	if err != nil {
		return false, err
	}
	return false, restoreVersions(db, o.By, jumpSince(made))
}

// errNotReplaced means that a restored backup replaces no store.
var errNotReplaced = errors.New("there is no store to replace")

// openReplaced opens a copy of the store that a backup replaces: the store itself is locked.
func openReplaced(dir, aside string, o RestoreOptions) (*DB, error) {
	to := filepath.Join(aside, "replaced")
	exists, err := privateCopy(filepath.Join(dir, layout.FileDB), to, layout.FileDB)
	if err != nil {
		return nil, err
	}
	if !exists {
		return nil, errNotReplaced
	}
	if _, err := privateCopy(filepath.Join(dir, layout.FileSecret), to, layout.FileSecret); err != nil {
		return nil, err
	}
	return Open(Options{Dir: to, Passphrase: o.Passphrase})
}

// importHistory replaces the lines of db by those of old, which continue them.
func importHistory(db, old *DB) error {
	return old.view(func(before *transaction) error {
		from, err := before.book()
		if err != nil {
			return err
		}
		ids, err := from.All()
		if err != nil {
			return err
		}
		return db.update(func(tx *transaction) error {
			book, err := tx.book()
			if err != nil {
				return err
			}
			for _, id := range ids {
				if err := book.Import(from, id); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// restoreVersions gives the committed policies and header rules of a restored store new numbers, at least jump above all
// earlier ones, and ends the history of boxes that it does not have.
func restoreVersions(db *DB, by string, jump uint64) error {
	return db.update(func(tx *transaction) error {
		book, err := tx.book()
		if err != nil {
			return err
		}
		origin := history.Origin{Cause: history.Restored, Remote: by}
		boxes, err := tx.table(layout.Boxes)
		if err != nil {
			return err
		}
		keys := boxes.Keys(nil)
		for _, id := range keys {
			if err := addCommitted(tx, book, policy.BoxID(id), origin, jump); err != nil {
				return err
			}
		}
		if err := addCommittedHeaders(tx, book, layout.Global, "", origin, jump); err != nil {
			return err
		}
		ids, err := book.All()
		if err != nil {
			return err
		}
		for _, id := range ids {
			exists := slices.ContainsFunc(keys, func(key []byte) bool { return string(key) == id.Owner })
			if !exists && id.Owner != layout.Global {
				if err := book.Delete(id.Owner, time.Now().UTC()); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// newestVersion returns when the newest version of a history was made.
func newestVersion(db *DB) (at time.Time, err error) {
	err = db.view(func(tx *transaction) error {
		book, err := tx.book()
		if err != nil {
			return err
		}
		ids, err := book.All()
		if err != nil {
			return err
		}
		for _, id := range ids {
			list, _, err := book.Latest(id, 0, 1)
			if err != nil {
				return err
			}
			for _, v := range list {
				if v.At.After(at) {
					at = v.At
				}
			}
		}
		return nil
	})
	return at, err
}

// leastJump is the least distance between the numbers before and after a restore that lost the history.
const leastJump = 1_000_000

// jumpSince returns the distance of version numbers after a history was lost: more than a box can have had since the
// newest version in the backup, at a thousand changes a second.
func jumpSince(made time.Time) uint64 {
	if since := time.Since(made); !made.IsZero() && since > 0 {
		return leastJump + uint64(since/time.Millisecond)
	}
	return leastJump
}
