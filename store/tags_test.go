package store

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"filippo.io/age"
	bolt "go.etcd.io/bbolt"

	"boxgate/store/document"
	"boxgate/store/keyring"
	"boxgate/store/layout"
)

// edit changes the file of a store without its key.
func edit(t *testing.T, dir string, change func(tx *bolt.Tx) error) {
	t.Helper()
	b, err := bolt.Open(filepath.Join(dir, layout.FileDB), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(b.Update(change), b.Close()); err != nil {
		t.Fatal(err)
	}
}

// asSchema1 converts a store to one written before documents had tags.
func asSchema1(t *testing.T, dir string) {
	t.Helper()
	path := filepath.Join(dir, layout.FileSecret)
	file, err := keyring.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	k := keyring.OfFile(path, file.Identities)
	edit(t, dir, func(tx *bolt.Tx) error {
		content, _, err := k.Unwrap(tx.Bucket(layout.Meta).Get(layout.DataKey))
		if err != nil {
			return err
		}
		wrapped, err := k.Wrap(content[:len(content)-1])
		return errors.Join(err, document.PutKey(tx, wrapped, k.Sealing), stripped(tx))
	})
	unmark(t, path, file.Identities[0])
}

// unmark writes a key file as older versions did.
func unmark(t *testing.T, path string, id *age.X25519Identity) {
	t.Helper()
	if err := os.WriteFile(path, []byte(id.String()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}

// stripped removes the tags of every document, which needs only the file.
func stripped(tx *bolt.Tx) error {
	for _, name := range layout.Documents {
		bucket, plain := tx.Bucket(name), map[string][]byte{}
		err := bucket.ForEach(func(k, v []byte) error {
			plain[string(k)] = bytes.Clone(document.StripTag(v))
			return nil
		})
		for k, v := range plain {
			err = errors.Join(err, bucket.Put([]byte(k), v))
		}
		if err != nil {
			return err
		}
	}
	return errors.Join(setSchema(tx, layout.SchemaPlain), tx.Bucket(layout.Meta).Delete(layout.Total))
}

// allowIt turns the denied domain of every policy into an allowed one.
func allowIt(tx *bolt.Tx) error {
	policies := tx.Bucket(layout.Policies)
	changed := map[string][]byte{}
	err := policies.ForEach(func(k, v []byte) error {
		changed[string(k)] = bytes.Replace(v, []byte("denied_domains"), []byte("allowed_domains"), 1)
		return nil
	})
	for k, v := range changed {
		err = errors.Join(err, policies.Put([]byte(k), v))
	}
	return err
}

func meaningOf(t *testing.T, dir string) string {
	t.Helper()
	db, err := Open(Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	said, err := meaning(db)
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	return said
}

// TestAStoreOfSchema1IsProtectedOnce checks that the content is the same after the upgrade, and verified from then on.
func TestAStoreOfSchema1IsProtectedOnce(t *testing.T) {
	t.Parallel()
	dir := fullStore(t)
	want := meaningOf(t, dir)
	asSchema1(t, dir)
	old := copyState(t, dir)
	for range 2 {
		if got := meaningOf(t, dir); got != want {
			t.Errorf("after the upgrade the store says\n%s\nbefore\n%s", got, want)
		}
	}
	key, err := os.ReadFile(filepath.Join(dir, layout.FileSecret))
	if err != nil || !bytes.Contains(key, fmt.Appendf(nil, "# schema of the store: %d", layout.SchemaNow)) {
		t.Errorf("the key file does not say that the store is protected: %v", err)
	}

	// The old file with a changed policy is refused with the new key file.
	edit(t, old, allowIt)
	data, err := os.ReadFile(filepath.Join(old, layout.FileDB))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, layout.FileDB), data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	assertRefused(t, Options{Dir: dir}, "did not protect its documents", "backup")
}

// TestWhoeverHasTheFileAloneChangesNothing checks that every edit that keeps the file well-formed is refused.
func TestWhoeverHasTheFileAloneChangesNothing(t *testing.T) {
	t.Parallel()
	dir := fullStore(t)
	for name, change := range map[string]func(tx *bolt.Tx) error{
		"denied becomes allowed": allowIt,
		"the tags are taken off": func(tx *bolt.Tx) error { return errors.Join(stripped(tx), allowIt(tx)) },
		"the schema alone":       func(tx *bolt.Tx) error { return setSchema(tx, layout.SchemaPlain) },
		"another sealing": func(tx *bolt.Tx) error {
			return tx.Bucket(layout.Meta).Put(layout.Sealing, []byte(layout.SealedByPassphrase))
		},
		"no total":    func(tx *bolt.Tx) error { return tx.Bucket(layout.Meta).Delete(layout.Total) },
		"no data key": func(tx *bolt.Tx) error { return tx.Bucket(layout.Meta).Delete(layout.DataKey) },
		"no meta":     func(tx *bolt.Tx) error { return tx.DeleteBucket(layout.Meta) },
		"no policies": func(tx *bolt.Tx) error { return tx.DeleteBucket(layout.Policies) },
		"another box's policy": func(tx *bolt.Tx) error {
			p := tx.Bucket(layout.Policies)
			return p.Put([]byte("b2"), bytes.Clone(p.Get([]byte("b1"))))
		},
		"a staged policy committed": func(tx *bolt.Tx) error {
			return tx.Bucket(layout.Policies).Put([]byte("b1"), bytes.Clone(tx.Bucket(layout.Staged).Get([]byte("b1"))))
		},
		"an API key more": func(tx *bolt.Tx) error {
			return tx.Bucket(layout.APIKeys).Put(bytes.Repeat([]byte{1}, 32), []byte(`{"name":"x"}`))
		},
	} {
		other := snapshot(t, dir)
		edit(t, other, change)
		if db, err := Open(Options{Dir: other}); err == nil {
			said, err := meaning(db)
			t.Errorf("%s: the store opens and says\n%s%v", name, said, errors.Join(err, db.Close()))
		}
	}
	for _, bucket := range layout.Documents { // any one document is missing
		var keys [][]byte
		edit(t, snapshot(t, dir), func(tx *bolt.Tx) error {
			return tx.Bucket(bucket).ForEach(func(k, _ []byte) error { keys = append(keys, bytes.Clone(k)); return nil })
		})
		for _, key := range keys {
			other := snapshot(t, dir)
			edit(t, other, func(tx *bolt.Tx) error { return tx.Bucket(bucket).Delete(key) })
			assertRefused(t, Options{Dir: other}, "missing", "backup")
		}
	}
}

// TestAnOldDocumentDoesNotComeBack checks that a replaced policy is refused in place of its successor.
func TestAnOldDocumentDoesNotComeBack(t *testing.T) {
	t.Parallel()
	dir := fullStore(t)
	old := snapshot(t, dir)
	db := open(t, Options{Dir: dir})
	if err := errors.Join(db.Rules.CommitPolicy("b1"), db.Close()); err != nil {
		t.Fatal(err)
	}
	var before []byte
	edit(t, old, func(tx *bolt.Tx) error {
		before = bytes.Clone(tx.Bucket(layout.Policies).Get([]byte("b1")))
		return nil
	})
	edit(t, dir, func(tx *bolt.Tx) error { return tx.Bucket(layout.Policies).Put([]byte("b1"), before) })
	assertRefused(t, Options{Dir: dir}, "come back", "backup")
}

// TestDocumentsOfSchema1AreReadStrictly: before there were tags, damage showed only in the documents.
func TestDocumentsOfSchema1AreReadStrictly(t *testing.T) {
	t.Parallel()
	dir := fullStore(t)
	asSchema1(t, dir)
	replace := func(old, next string) func(tx *bolt.Tx) error {
		return func(tx *bolt.Tx) error {
			p := tx.Bucket(layout.Policies)
			return p.Put([]byte("b1"), []byte(strings.Replace(string(p.Get([]byte("b1"))), old, next, 1)))
		}
	}
	for name, change := range map[string]func(tx *bolt.Tx) error{
		"a bit of a member's name": replace("denied_domains", "dened_domains"),
		"a member twice":           replace(`"mode":"custom"`, `"mode":"custom","Mode":"allow-all"`),
		"another type":             replace(`["evil.example.com"]`, `"evil.example.com"`),
		"an unknown mode":          replace(`"mode":"custom"`, `"mode":"cuspom"`),
		"more than a document":     replace(`"version":1}`, `"version":1}{}`),
		"no policy":                func(tx *bolt.Tx) error { return tx.Bucket(layout.Policies).Delete([]byte("b1")) },
		"no name":                  func(tx *bolt.Tx) error { return tx.Bucket(layout.Names).Delete([]byte("name-b1")) },
	} {
		other := snapshot(t, dir)
		edit(t, other, change)
		if db, err := Open(Options{Dir: other}); err == nil {
			t.Errorf("%s: the store opens", name)
			_ = db.Close()
		}
	}
	meaningOf(t, dir)
}
