package document

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	bolt "go.etcd.io/bbolt"

	"boxgate/store/layout"
)

// fixture is a store file whose data key the sealer has.
type fixture struct {
	*Sealer
	t  testing.TB
	db *bolt.DB
}

// wrapped is the wrapping of a test's keyring: a marked copy of the data key.
func wrapped(content []byte) ([]byte, error) { return append([]byte("wrapped "), content...), nil }

// newFixture makes an empty store.
func newFixture(t testing.TB) *fixture {
	t.Helper()
	db, err := bolt.Open(filepath.Join(t.TempDir(), "db"), 0o600, &bolt.Options{NoSync: true, InitialMmapSize: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	f := &fixture{Sealer: NewSealer(), t: t, db: db}
	key, err := f.NewKey(wrapped)
	if err != nil {
		t.Fatal(err)
	}
	f.change(func(tx *bolt.Tx) error {
		_, err := tx.CreateBucket(layout.Meta)
		for _, name := range layout.Documents {
			_, made := tx.CreateBucket(name)
			err = errors.Join(err, made)
		}
		return errors.Join(err, PutKey(tx, key, layout.SealedByFile), f.InitTotal(tx))
	})
	return f
}

// change runs a transaction, which must succeed.
func (f *fixture) change(do func(tx *bolt.Tx) error) {
	f.t.Helper()
	if err := f.db.Update(do); err != nil {
		f.t.Fatal(err)
	}
}

// in runs a transaction on a table.
func (f *fixture) in(bucket []byte, do func(Table) error) error {
	return f.db.Update(func(tx *bolt.Tx) error {
		table, err := f.Table(tx, bucket)
		if err != nil {
			return err
		}
		return do(table)
	})
}

// put writes a document.
func (f *fixture) put(bucket []byte, key, document string) {
	f.t.Helper()
	if err := f.in(bucket, func(b Table) error { return b.Put([]byte(key), []byte(document)) }); err != nil {
		f.t.Fatal(err)
	}
}

// get returns a document.
func (f *fixture) get(bucket []byte, key string) (document string, err error) {
	err = f.in(bucket, func(b Table) error {
		data, err := b.Get([]byte(key))
		document = string(data)
		return err
	})
	return document, err
}

// check checks the whole store.
func (f *fixture) check() error { return f.db.View(f.Check) }

// TestTables checks putting, getting, replacing and deleting, and that the store is intact after each step.
func TestTables(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	whole := func() {
		t.Helper()
		if err := f.check(); err != nil {
			t.Error(err)
		}
	}
	whole()
	for _, d := range []string{"one", "one, replaced", ""} {
		f.put(layout.Boxes, "a1", d)
		if got, err := f.get(layout.Boxes, "a1"); got != d || err != nil {
			t.Errorf("%q, %v", got, err)
		}
		whole()
	}
	f.put(layout.Boxes, "a2", "two")
	f.put(layout.Boxes, "b1", "three")
	f.put(layout.Names, "a1", "another table")
	whole()
	err := f.in(layout.Boxes, func(b Table) error {
		var seen []string
		err := b.Each([]byte("a"), func(key, document []byte) error {
			seen = append(seen, string(key)+"="+string(document))
			return nil
		})
		if want := []string{"a1=", "a2=two"}; !slices.Equal(seen, want) {
			t.Errorf("%q, want %q", seen, want)
		}
		if keys := b.Keys([]byte("a")); len(keys) != 2 || string(keys[1]) != "a2" {
			t.Errorf("%q", keys)
		}
		if first, _ := b.Cursor().First(); string(first) != "a1" || !b.Has([]byte("b1")) || b.Has([]byte("b2")) {
			t.Errorf("the first is %q", first)
		}
		stop := errors.New("enough")
		if got := b.Each(nil, func(_, _ []byte) error { return stop }); !errors.Is(got, stop) {
			t.Error(got)
		}
		if missing, err := b.Get([]byte("c")); missing != nil || err != nil {
			t.Errorf("what is not there is %q, %v", missing, err)
		}
		return errors.Join(err, b.Delete([]byte("a2")), b.Delete([]byte("a2")))
	})
	if err != nil {
		t.Error(err)
	}
	whole()
}

// TestFailedTransactionsLeaveNothing checks that neither the document nor its part of the total stays.
func TestFailedTransactionsLeaveNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.put(layout.Boxes, "a", "kept")
	stop := errors.New("stop")
	err := f.in(layout.Boxes, func(b Table) error {
		return errors.Join(b.Put([]byte("b"), []byte("x")), b.Delete([]byte("a")), stop)
	})
	if got, getErr := f.get(layout.Boxes, "a"); !errors.Is(err, stop) || got != "kept" || getErr != nil || f.check() != nil {
		t.Errorf("%v: %q, %v, %v", err, got, getErr, f.check())
	}
}

// TestDocumentsAreBoundToTheirPlace checks that an attacker who can write the file but lacks the data key can neither
// change, move, remove or bring back a document, nor change the layout of the store.
func TestDocumentsAreBoundToTheirPlace(t *testing.T) {
	t.Parallel()
	raw := func(tx *bolt.Tx, bucket []byte, key string) []byte {
		return bytes.Clone(tx.Bucket(bucket).Get([]byte(key)))
	}
	for name, c := range map[string]struct {
		change  func(tx *bolt.Tx) error
		noticed bool // detected when the document "a" is read
	}{
		"changed": {func(tx *bolt.Tx) error {
			v := raw(tx, layout.Boxes, "a")
			v[len(v)-1] ^= 1
			return tx.Bucket(layout.Boxes).Put([]byte("a"), v)
		}, true},
		"shorter than a tag": {func(tx *bolt.Tx) error { return tx.Bucket(layout.Boxes).Put([]byte("a"), []byte("x")) }, true},
		"under another key":  {func(tx *bolt.Tx) error { return tx.Bucket(layout.Boxes).Put([]byte("a"), raw(tx, layout.Boxes, "b")) }, true},
		"in another table":   {func(tx *bolt.Tx) error { return tx.Bucket(layout.Boxes).Put([]byte("a"), raw(tx, layout.Names, "a")) }, true},
		"twice":              {func(tx *bolt.Tx) error { return tx.Bucket(layout.Names).Put([]byte("b"), raw(tx, layout.Boxes, "b")) }, false},
		"missing":            {func(tx *bolt.Tx) error { return tx.Bucket(layout.Boxes).Delete([]byte("b")) }, false},
		"no table":           {func(tx *bolt.Tx) error { return tx.DeleteBucket(layout.Names) }, false},
		"no total":           {func(tx *bolt.Tx) error { return tx.Bucket(layout.Meta).Delete(layout.Total) }, false},
		"a changed total": {func(tx *bolt.Tx) error {
			v := raw(tx, layout.Meta, string(layout.Total))
			v[0]++
			return tx.Bucket(layout.Meta).Put(layout.Total, v)
		}, false},
		"another schema":  {func(tx *bolt.Tx) error { return tx.Bucket(layout.Meta).Put(layout.Version, []byte{0, 0, 0, 1}) }, false},
		"another sealing": {func(tx *bolt.Tx) error { return tx.Bucket(layout.Meta).Put(layout.Sealing, []byte("passphrase")) }, false},
		"another key":     {func(tx *bolt.Tx) error { return tx.Bucket(layout.Meta).Put(layout.DataKey, []byte("unknown")) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.put(layout.Boxes, "a", "of a")
			f.put(layout.Boxes, "b", "of b")
			f.put(layout.Names, "a", "the name")
			f.change(c.change)
			if err := f.check(); err == nil {
				t.Error("the whole store is accepted")
			}
			if got, err := f.get(layout.Boxes, "a"); (err != nil) != c.noticed {
				t.Errorf("reading it: %q, %v", got, err)
			}
			if !c.noticed {
				return
			}
			for what, do := range map[string]func(Table) error{
				"deleted":  func(b Table) error { return b.Delete([]byte("a")) },
				"replaced": func(b Table) error { return b.Put([]byte("a"), []byte("x")) },
				"listed":   func(b Table) error { return b.Each(nil, func(_, _ []byte) error { return nil }) },
			} {
				if f.in(layout.Boxes, do) == nil {
					t.Errorf("it can be %s", what)
				}
			}
		})
	}
}

// TestAnOldDocumentIsNoticed includes the removal of as many other documents, and concurrent changes.
func TestAnOldDocumentIsNoticed(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.put(layout.Policies, "a", "deny")
	f.put(layout.Policies, "b", "deny")
	var old []byte
	f.change(func(tx *bolt.Tx) error {
		old = bytes.Clone(tx.Bucket(layout.Policies).Get([]byte("a")))
		return nil
	})
	f.put(layout.Policies, "a", "allow")
	f.change(func(tx *bolt.Tx) error { return tx.Bucket(layout.Policies).Put([]byte("a"), old) })
	if err := f.check(); !errors.Is(err, errTotal) {
		t.Errorf("a replaced document came back: %v", err)
	}
	f.put(layout.Policies, "a", "allow") // subtracts the tag of the old document, not of the replaced one
	if err := f.check(); !errors.Is(err, errTotal) {
		t.Errorf("it was written over: %v", err)
	}
	if err := f.db.Update(func(tx *bolt.Tx) error { return tx.Bucket(layout.Meta).Delete(layout.Total) }); err != nil {
		t.Fatal(err)
	}
	if err := f.in(layout.Policies, func(b Table) error { return b.Put([]byte("c"), nil) }); !errors.Is(err, errTotal) {
		t.Errorf("a document was written without a total: %v", err)
	}
	if err := f.in(layout.Policies, func(b Table) error { return b.Delete([]byte("b")) }); !errors.Is(err, errTotal) {
		t.Errorf("a document was deleted without a total: %v", err)
	}
}

// TestTotals checks that the order of documents does not matter, and that removed ones leave no trace.
func TestTotals(t *testing.T) {
	t.Parallel()
	var a, b total
	tags := [][tagSize]byte{}
	for i := range 50 {
		tags = append(tags, newTagger([]byte("key")).of(fmt.Appendf(nil, "%d", i)))
	}
	for _, tag := range tags {
		a.add(tag)
	}
	for _, tag := range slices.Backward(tags) {
		b.add(tag)
	}
	if a != b || a.documents != 50 {
		t.Errorf("%+v is not %+v", a, b)
	}
	for _, tag := range tags {
		a.subtract(tag)
	}
	if a != (total{}) {
		t.Errorf("%+v is left", a)
	}
	if newTagger([]byte("key")).of([]byte("ab"), []byte("c")) == newTagger([]byte("key")).of([]byte("a"), []byte("bc")) {
		t.Error("two lists of parts have the same tag")
	}
}

// TestRelabel checks that the layout changes along with its total, unless the total was wrong or the change fails.
func TestRelabel(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.put(layout.Boxes, "a", "x")
	label := func(schema byte, fail error) error {
		return f.db.Update(func(tx *bolt.Tx) error {
			return f.ChangeMeta(tx, func() error {
				return errors.Join(tx.Bucket(layout.Meta).Put(layout.Version, []byte{schema}), fail)
			})
		})
	}
	if err := errors.Join(label(7, nil), f.check()); err != nil {
		t.Error(err)
	}
	failed := errors.New("failed")
	if err := label(8, failed); !errors.Is(err, failed) || f.check() != nil {
		t.Errorf("%v, %v", err, f.check())
	}
	f.change(func(tx *bolt.Tx) error { return tx.Bucket(layout.Meta).Put(layout.Version, []byte{1}) })
	if err := label(9, nil); !errors.Is(err, errTotal) {
		t.Errorf("a wrong total was made right: %v", err)
	}
	f.change(func(tx *bolt.Tx) error { return tx.Bucket(layout.Meta).Put(layout.DataKey, []byte("unknown")) })
	for what, err := range map[string]error{"relabelled": label(9, nil), "begun": f.db.Update(f.InitTotal), "checked": f.check()} {
		if err == nil {
			t.Errorf("a store of an unknown key was %s", what)
		}
	}
}

// TestRewrite checks that under another data key every document exists in its changed form, and that the old key reads
// none.
func TestRewrite(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.put(layout.Boxes, "a", "x")
	f.put(layout.Boxes, "b", "y")
	f.put(layout.Names, "a", "z")
	fresh, err := f.NewKey(wrapped)
	if err != nil {
		t.Fatal(err)
	}
	rewrite := func(change func(bucket, key, value []byte) ([]byte, error)) error {
		return f.db.Update(func(tx *bolt.Tx) error {
			if err := PutKey(tx, fresh, layout.SealedByPassphrase); err != nil {
				return err
			}
			key, err := f.Key(tx)
			if err != nil {
				return err
			}
			return Rewrite(tx, key, change)
		})
	}
	failed := errors.New("failed")
	if err := rewrite(func(_, _, _ []byte) ([]byte, error) { return nil, failed }); !errors.Is(err, failed) || f.check() != nil {
		t.Errorf("%v, %v", err, f.check())
	}
	err = rewrite(func(bucket, key, value []byte) ([]byte, error) {
		return fmt.Appendf(nil, "%s/%s=%s", bucket, key, StripTag(value)), nil
	})
	if err := errors.Join(err, f.check()); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		bucket    []byte
		key, want string
	}{{layout.Boxes, "a", "boxes/a=x"}, {layout.Boxes, "b", "boxes/b=y"}, {layout.Names, "a", "names/a=z"}} {
		if got, err := f.get(c.bucket, c.key); got != c.want || err != nil {
			t.Errorf("%q, %v", got, err)
		}
	}
	forgetful := NewSealer()
	if err := f.db.View(forgetful.Check); err == nil {
		t.Error("a sealer without the key accepts the store")
	}
}
