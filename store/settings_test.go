package store

import (
	"encoding/binary"
	"errors"
	"path/filepath"
	"testing"

	bolt "go.etcd.io/bbolt"

	"boxgate/policy/name"
	"boxgate/store/layout"
)

// setting sets one variable.
func setting(label, value string) func(map[string]name.Secret) error {
	return func(vars map[string]name.Secret) error {
		vars[label] = name.NewSecret(value)
		return nil
	}
}

func TestEnvironment(t *testing.T) {
	t.Parallel()
	db := open(t, Options{Dir: newDir(t)})
	if err := errors.Join(db.Environment.Change(setting("A", "1")), db.Environment.Change(setting("B", ""))); err != nil {
		t.Fatal(err)
	}
	refused := errors.New("refused")
	err := db.Environment.Change(func(vars map[string]name.Secret) error {
		delete(vars, "A")
		return refused
	})
	if !errors.Is(err, refused) {
		t.Errorf("the error of the change is lost: %v", err)
	}
	vars, err := db.Environment.Variables()
	if b, ok := vars["B"]; err != nil || len(vars) != 2 || vars["A"].Reveal() != "1" || !ok || b.Reveal() != "" {
		t.Errorf("%d variables, %v", len(vars), err)
	}
}

func TestSchedules(t *testing.T) {
	t.Parallel()
	db := open(t, Options{Dir: newDir(t)})
	allocate(t, db, Box{ID: "b1"})
	allocate(t, db, Box{ID: "b11"})
	if err := errors.Join(
		db.Schedules.Add(Schedule{ID: "s2", Box: "b1"}, 2), db.Schedules.Add(Schedule{ID: "s1", Box: "b1"}, 2), db.Schedules.Add(Schedule{ID: "s1", Box: "b11"}, 2),
	); err != nil {
		t.Fatal(err)
	}
	if err := db.Schedules.Add(Schedule{ID: "s3", Box: "b1"}, 2); !errors.Is(err, ErrTooMany) {
		t.Errorf("one more than there may be: %v", err)
	}
	if s, err := db.Schedules.Change("b1", "s1", func(s *Schedule) error { s.Cron, s.ID = "0 9 * * *", "other"; return nil }); err != nil || s.Cron != "0 9 * * *" || s.ID != "s1" {
		t.Errorf("%+v, %v", s, err)
	}
	if list, err := db.Schedules.List("b1"); err != nil || len(list) != 2 || list[0].ID != "s1" || list[0].Cron == "" || list[1].Cron != "" {
		t.Errorf("%+v, %v", list, err)
	}
	if err := db.Schedules.Delete("b1", "s1"); err != nil {
		t.Error(err)
	}
	_, changed := db.Schedules.Change("b1", "s1", func(*Schedule) error { return nil })
	for _, err := range []error{changed, db.Schedules.Delete("b1", "s1")} {
		if !errors.Is(err, ErrNotFound) {
			t.Errorf("a schedule that is gone: %v", err)
		}
	}
	if list, err := db.Schedules.List(""); err != nil || len(list) != 2 {
		t.Errorf("%+v, %v", list, err)
	}
}

// TestAStoreOfSchema2Grows checks that missing buckets are created, and that the content stays the same.
func TestAStoreOfSchema2Grows(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	db, err := Open(Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	allocate(t, db, Box{ID: "b1", Name: "one"})
	err = db.bolt.Update(func(tx *bolt.Tx) error {
		for _, name := range layout.Added {
			if err := tx.DeleteBucket(name); err != nil {
				return err
			}
		}
		return db.seal.ChangeMeta(tx, func() error { return setSchema(tx, layout.SchemaTagged) })
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		db, err := Open(Options{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		b, err := db.Boxes.ByName("one")
		if err := errors.Join(err, db.Environment.Change(setting("A", "1")), db.Close()); err != nil || b.ID != "b1" {
			t.Fatalf("%+v, %v", b, err)
		}
	}
}

// TestARemovedBucketIsMissed checks that recreating a bucket does not hide that its documents are gone, and that a
// schema written without the key is refused.
func TestARemovedBucketIsMissed(t *testing.T) {
	t.Parallel()
	for what, change := range map[string]func(tx *bolt.Tx) error{
		"bucket": func(tx *bolt.Tx) error { return tx.DeleteBucket(layout.Schedules) },
		"schema": func(tx *bolt.Tx) error {
			return tx.Bucket(layout.Meta).Put(layout.Version, binary.BigEndian.AppendUint32(nil, layout.SchemaTagged))
		},
	} {
		dir := fullStore(t)
		b, err := bolt.Open(filepath.Join(dir, layout.FileDB), 0o600, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(b.Update(change), b.Close()); err != nil {
			t.Fatal(err)
		}
		if db, err := Open(Options{Dir: dir}); err == nil {
			t.Errorf("a store with another %s was opened", what)
			_ = db.Close()
		}
	}
}
