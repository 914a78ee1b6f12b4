package store

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"boxgate/store/layout"
)

// Named keys expire, are replaced and revoked independently, and are not in the file.
func TestNamedAPIKeys(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir, db, operators := withKey(t)
		ci, made, err := db.Keys.Create(APIKey{Name: "ci", Role: "box-creator", ExpiresAt: time.Now().Add(24 * time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		if got, ok := db.Keys.Find(ci.Reveal()); !ok || got.ID != made.ID || got.Role != "box-creator" || got.Name != "ci" {
			t.Error(got, ok)
		}
		if got, ok := db.Keys.Find(operators); !ok || got.ID != OperatorKey || got.Role != RoleAdmin {
			t.Error(got, ok)
		}
		for _, taken := range []string{"ci", OperatorKey} {
			if _, _, err := db.Keys.Create(APIKey{Name: taken, Role: RoleAdmin}); !errors.Is(err, ErrKeyNameTaken) {
				t.Error(taken, err)
			}
		}
		next, same, err := db.Keys.Replace(made.ID, time.Hour)
		if err != nil || same.ID != made.ID || !same.ExpiresAt.Equal(made.ExpiresAt) || !db.Keys.Check(ci.Reveal()) {
			t.Fatal(same, err)
		}
		time.Sleep(time.Hour)
		if db.Keys.Check(ci.Reveal()) || !db.Keys.Check(next.Reveal()) {
			t.Error("after the grace the old key works, or the new one does not")
		}
		if err := db.Keys.Rotate(0); err != nil || !db.Keys.Check(next.Reveal()) || db.Keys.Check(operators) {
			t.Error("a rotation of the operator's key", err)
		}
		time.Sleep(23 * time.Hour)
		if db.Keys.Check(next.Reveal()) {
			t.Error("a key works after its expiry")
		}
		if _, _, err := db.Keys.Replace(made.ID, 0); !errors.Is(err, ErrNotFound) {
			t.Error("an expired key was replaced:", err)
		}
		gone, kept, err := db.Keys.Create(APIKey{Name: "gone", Role: RoleAdmin})
		if err != nil || db.Keys.Delete(kept.ID) != nil || db.Keys.Check(gone.Reveal()) || db.Keys.Delete(OperatorKey) == nil {
			t.Error("revoked", err)
		}
		none, _, err := db.Keys.Create(APIKey{Name: "none"})
		if got, ok := db.Keys.Find(none.Reveal()); err != nil || !ok || got.Role != "" || got.ID == OperatorKey {
			t.Error("a key without a role has one:", got, ok, err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(filepath.Join(dir, layout.FileDB))
		if err != nil || bytes.Contains(data, []byte(ci.Reveal())) || bytes.Contains(data, []byte(next.Reveal())) {
			t.Error("a key is in the store", err)
		}
	})
}

// The latest use of a key is stored by SaveAPIKeyUses, to the minute, and visible before that.
func TestAPIKeyUsesAreSavedTogether(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	db := open(t, Options{Dir: dir})
	key, made, err := db.Keys.Create(APIKey{Name: "ci", Role: RoleAdmin})
	if err != nil {
		t.Fatal(err)
	}
	writes := func() int64 { s := db.bolt.Stats().TxStats; return s.GetWrite() }
	before := writes()
	for range 1000 {
		found, _ := db.Keys.Find(key.Reveal())
		db.Keys.NoteUse(found)
	}
	if writes() != before {
		t.Error("a use is a write")
	}
	used := func(db *DB) time.Time {
		keys, err := db.Keys.All()
		if err != nil || len(keys) != 1 {
			t.Fatal(keys, err)
		}
		return keys[0].LastUsed
	}
	if used(db).IsZero() {
		t.Error("a use is not known before it is stored")
	}
	if err := db.Keys.SaveUses(); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	db = open(t, Options{Dir: dir})
	if at := used(db); at.IsZero() || !at.Equal(at.Truncate(time.Minute)) {
		t.Error(at)
	}
	if got, ok := db.Keys.Find(key.Reveal()); !ok || got.ID != made.ID {
		t.Error(got, ok)
	}
}
