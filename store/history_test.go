package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/store/history"
	"boxgate/store/layout"
)

// policyLine is the line of the policies of a box.
func policyLine(id policy.BoxID) history.ID {
	return history.ID{Owner: string(id), Kind: history.Policy}
}

// setPolicy stages and commits a policy with one allowed domain.
func setPolicy(t *testing.T, db *DB, id policy.BoxID, version uint64, domain string) {
	t.Helper()
	by := history.Origin{Cause: history.Replaced, KeyID: "k1"}
	if err := errors.Join(db.Rules.StagePolicy(id, Policy{Spec: custom(domain), Version: version}, by), db.Rules.CommitPolicy(id)); err != nil {
		t.Fatal(err)
	}
}

// told lists the versions of a line as number, cause and result, the latest first.
func told(t *testing.T, db *DB, id history.ID) (list []string) {
	t.Helper()
	all, err := db.History.Versions(id, 0, 0)
	if err != nil && !errors.Is(err, ErrNotFound) {
		t.Fatal(err)
	}
	for _, v := range all.Versions {
		list = append(list, fmt.Sprintf("%d %s %s", v.Number, v.Cause, v.Result))
	}
	return list
}

func expectTold(t *testing.T, what string, db *DB, id history.ID, want ...string) {
	t.Helper()
	if got := told(t, db, id); !slices.Equal(got, want) {
		t.Errorf("%s: %q, want %q", what, got, want)
	}
}

// textOf returns the text of one version.
func textOf(t *testing.T, db *DB, id history.ID, number uint64) string {
	t.Helper()
	_, text, err := db.History.Version(id, number)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestHistoryOfAStoreThatHadNone: a store of the version before the history opens with one record for each policy and each set of
// header rules, and then continues. The program before refuses the store, and its own copy has not changed.
func TestHistoryOfAStoreThatHadNone(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	db, err := Open(Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	allocate(t, db, Box{ID: "b1"})
	allocate(t, db, Box{ID: "b2"})
	setPolicy(t, db, "b1", 4, "a.example")
	if err := db.Rules.SetHeaders("b1", rules(t, "a.example", "X-Key", "canary-value"), 3); err != nil {
		t.Fatal(err)
	}
	err = db.bolt.Update(func(tx *bolt.Tx) error { // as the version before had it
		for _, bucket := range [][]byte{layout.HistoryLines, layout.HistoryVersions, layout.HistoryTexts} {
			table, err := db.seal.Table(tx, bucket)
			if err != nil {
				return err
			}
			for _, key := range table.Keys(nil) {
				if err := table.Delete(key); err != nil {
					return err
				}
			}
			if err := tx.DeleteBucket(bucket); err != nil {
				return err
			}
		}
		return db.seal.ChangeMeta(tx, func() error { return setSchema(tx, 4) })
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		db = open(t, Options{Dir: copyState(t, dir)})
		expectTold(t, "after the upgrade", db, policyLine("b1"), "4 upgrade in_force")
		expectTold(t, "after the upgrade", db, history.ID{Owner: "b1", Kind: history.Headers}, "3 upgrade in_force")
		expectTold(t, "a box without a policy", db, policyLine("b2"))
		if text := textOf(t, db, history.ID{Owner: "b1", Kind: history.Headers}, 3); !strings.Contains(text, "X-Key") || strings.Contains(text, "canary") {
			t.Errorf("header rules: %s", text)
		}
		setPolicy(t, db, "b1", 5, "b.example")
		expectTold(t, "later", db, policyLine("b1"), "5 set in_force", "4 upgrade in_force")
		if r, err := db.Verify(); err != nil || len(r.Problems) > 0 {
			t.Errorf("%+v, %v", r, err)
		}
	}
	listed, _ := listedStore(t)
	db = open(t, Options{Dir: listed})
	if got := told(t, db, history.ID{Owner: "b1", Kind: history.Headers}); len(got) != 1 && len(told(t, db, policyLine("b1"))) != 0 {
		t.Errorf("a store of an older program: %q", got)
	}
}

// TestHistoryContinuesAfterARestore: the restored policy has a new number, and the versions since the backup keep their
// texts. If the replaced store cannot be read, numbers jump instead.
func TestHistoryContinuesAfterARestore(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	db := open(t, Options{Dir: dir})
	if _, err := db.Keys.Ensure(); err != nil {
		t.Fatal(err)
	}
	for _, id := range []policy.BoxID{"b1", "b2"} {
		allocate(t, db, Box{ID: id})
		setPolicy(t, db, id, 1, "a.example")
	}
	if err := db.Rules.SetHeaders("b1", nil, 2); err != nil {
		t.Fatal(err)
	}
	from := backup(t, db)
	setPolicy(t, db, "b1", 2, "b.example")
	allocate(t, db, Box{ID: "b3"})
	setPolicy(t, db, "b3", 1, "c.example")
	if err := errors.Join(db.Rules.SetHeaders("b1", rules(t, "a.example", "X-Key", "v"), 3), db.Boxes.Delete("b2"), db.bolt.Close()); err != nil {
		t.Fatal(err)
	}
	lost := copyState(t, dir)
	if r, err := Restore(RestoreOptions{Dir: dir, From: from, By: "uid 7"}); err != nil || r.HistoryLost || len(r.Problems) > 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	db = open(t, Options{Dir: dir})
	expectTold(t, "b1", db, policyLine("b1"), "3 restore in_force", "2 set in_force", "1 set in_force")
	expectTold(t, "b2, deleted since the backup", db, policyLine("b2"), "2 restore in_force", "1 set in_force")
	expectTold(t, "b3, made since the backup", db, policyLine("b3"), "1 set in_force")
	expectTold(t, "header rules", db, history.ID{Owner: "b1", Kind: history.Headers}, "4 restore in_force", "3  in_force", "2  in_force")
	for id, deleted := range map[policy.BoxID]bool{"b1": false, "b2": false, "b3": true} {
		if l, err := db.History.Versions(policyLine(id), 0, 1); err != nil || l.Deleted.IsZero() == deleted {
			t.Errorf("%s: deleted at %v, %v", id, l.Deleted, err)
		}
	}
	if textOf(t, db, policyLine("b1"), 3) != textOf(t, db, policyLine("b1"), 1) || !strings.Contains(textOf(t, db, policyLine("b1"), 2), "b.example") {
		t.Error("the versions have other texts")
	}
	p, err := db.Rules.Policy("b1")
	h, errHeaders := db.Rules.Headers("b1")
	if err := errors.Join(err, errHeaders); err != nil || p.Version != 3 || h.Version != 4 || len(h.Rules) != 0 {
		t.Errorf("%+v, %+v, %v", p, h, err)
	}
	setPolicy(t, db, "b1", 4, "d.example")
	if r, err := db.Verify(); err != nil || len(r.Problems) > 0 {
		t.Errorf("%+v, %v", r, err)
	}
	if err := os.WriteFile(filepath.Join(lost, layout.FileDB), []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	if r, err := Restore(RestoreOptions{Dir: lost, From: from}); err != nil || !r.HistoryLost {
		t.Fatalf("over a damaged store: %+v, %v", r, err)
	}
	if p, err := open(t, Options{Dir: lost}).Rules.Policy("b1"); err != nil || p.Version < 1_000_001 || p.Version > 1<<40 {
		t.Errorf("over a damaged store: %+v, %v", p, err)
	}
}

// TestHistoryOfADeletedBox: it can be read until it expires, and then nothing of it is left, nor of its texts.
func TestHistoryOfADeletedBox(t *testing.T) {
	t.Parallel()
	db := open(t, Options{Dir: newDir(t)})
	empty := contents(t, db)
	allocate(t, db, Box{ID: "b1"})
	setPolicy(t, db, "b1", 1, "a.example")
	setPolicy(t, db, "b1", 2, "b.example")
	if err := errors.Join(db.Rules.StagePolicy("b1", Policy{Spec: custom("c.example"), Version: 3}, history.Origin{}), db.Boxes.Delete("b1"), db.History.Expire(time.Now().Add(-time.Hour))); err != nil {
		t.Fatal(err)
	}
	expectTold(t, "deleted", db, policyLine("b1"), "3  rolled_back", "2 set in_force", "1 set in_force")
	if err := db.History.Expire(time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	expectTold(t, "expired", db, policyLine("b1"))
	if got := contents(t, db); len(got["history_lines"])+len(got["history_versions"])+len(got["history_texts"]) != 0 || len(got) < len(empty) {
		t.Errorf("left: %v", got)
	}
}

// TestHistoryOutlivesANewKey: with a new key of the store, each version still has its text.
func TestHistoryOutlivesANewKey(t *testing.T) {
	t.Parallel()
	db := open(t, Options{Dir: newDir(t)})
	allocate(t, db, Box{ID: "b1"})
	setPolicy(t, db, "b1", 1, "a.example")
	if err := db.RotateKey(name.Secret{}); err != nil {
		t.Fatal(err)
	}
	if text := textOf(t, db, policyLine("b1"), 1); !strings.Contains(text, "a.example") {
		t.Error(text)
	}
}

// inBook runs f with the history of a store, with given bounds.
func inBook(t *testing.T, db *DB, b history.Bounds, f func(history.Book) error) {
	t.Helper()
	err := db.update(func(tx *transaction) error {
		book, err := tx.book()
		if err != nil {
			return err
		}
		book.Bounds = b
		return f(book)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// numbers returns the numbers of the versions of a line, the oldest first.
func numbers(t *testing.T, db *DB, id history.ID) (list []uint64) {
	t.Helper()
	all, err := db.History.Versions(id, 0, 0)
	if err != nil && !errors.Is(err, ErrNotFound) {
		t.Fatal(err)
	}
	for _, v := range slices.Backward(all.Versions) {
		list = append(list, v.Number)
	}
	return list
}

// TestBoundsOfOneHistory: a line keeps its first version and the latest ones, and counts the others; failed changes count
// too. The version in force is never removed.
func TestBoundsOfOneHistory(t *testing.T) {
	t.Parallel()
	db := open(t, Options{Dir: newDir(t)})
	id, other := policyLine("b1"), policyLine("b2")
	text := func(n uint64) []byte { return []byte(strings.Repeat(fmt.Sprint(n%10), 1000)) }
	bounds := history.Bounds{Versions: 5, Bytes: 1 << 20, Total: 1 << 30, Deleted: 10}
	inBook(t, db, bounds, func(b history.Book) error {
		for n := uint64(1); n <= 20; n++ {
			if err := b.Add(id, "k1", history.Version{Number: n}, text(n)); err != nil {
				return err
			}
		}
		return nil
	})
	if got := numbers(t, db, id); !slices.Equal(got, []uint64{1, 17, 18, 19, 20}) {
		t.Errorf("%v", got)
	}
	if l, err := db.History.Versions(id, 0, 1); err != nil || l.Dropped != 15 || l.Count != 5 || !l.More {
		t.Errorf("%+v, %v", l.Line, err)
	}
	inBook(t, db, bounds, func(b history.Book) error {
		for n := uint64(21); n <= 40; n++ {
			if err := errors.Join(b.Stage(id, func() (string, error) { return "k1", nil }, history.Version{Number: n}, text(n)), b.Settle(id, n, history.RolledBack, time.Now())); err != nil {
				return err
			}
		}
		return nil
	})
	if got := numbers(t, db, id); !slices.Equal(got, []uint64{1, 20, 38, 39, 40}) {
		t.Errorf("after failed changes: %v", got)
	}
	bounds.Bytes = 3000 // less than three versions
	inBook(t, db, bounds, func(b history.Book) error { return b.Add(id, "k1", history.Version{Number: 41}, text(41)) })
	if got := numbers(t, db, id); !slices.Equal(got, []uint64{1, 20, 41}) { // 20 was in force when 41 was staged
		t.Errorf("after large ones: %v", got)
	}
	inBook(t, db, bounds, func(b history.Book) error {
		return errors.Join(b.Add(other, "k1", history.Version{Number: 1}, text(41)), b.Add(other, "k1", history.Version{Number: 2}, text(1)))
	})
	if got := contents(t, db)["history_texts"]; len(got) != 3 { // two texts, and the number of the versions that share one of them
		t.Errorf("equal policies of two boxes: %d documents", len(got))
	}
}

// TestBoundsOfAllHistories: an API key that fills the history, with one box or with boxes that it deletes, loses its own versions,
// and no other key loses one.
func TestBoundsOfAllHistories(t *testing.T) {
	t.Parallel()
	db := open(t, Options{Dir: newDir(t)})
	bounds := history.Bounds{Versions: 1000, Bytes: 1 << 20, Total: 200_000, Deleted: 20}
	text := func(box string, n int) []byte { return []byte(box + strings.Repeat(fmt.Sprintf("%04d", n), 250)) }
	add := func(holder, box string, n int) {
		t.Helper()
		inBook(t, db, bounds, func(b history.Book) error {
			return b.Add(policyLine(policy.BoxID(box)), holder, history.Version{Number: uint64(n)}, text(box, n))
		})
	}
	for n := 1; n <= 30; n++ {
		add("quiet", "quiet", n)
	}
	inBook(t, db, bounds, func(b history.Book) error {
		return errors.Join(b.Add(policyLine("gone"), "quiet", history.Version{Number: 1}, text("gone", 1)), b.Delete("gone", time.Unix(1, 0)))
	})
	for n := 1; n <= 400; n++ {
		add("loud", "loud", n)
	}
	for n := 1; n <= 100; n++ {
		box := fmt.Sprint("made", n)
		add("loud", box, 1)
		inBook(t, db, bounds, func(b history.Book) error { return b.Delete(box, time.Unix(int64(1+n), 0)) })
	}
	if got := numbers(t, db, policyLine("quiet")); len(got) != 30 {
		t.Errorf("another key has lost versions: %v", got)
	}
	if got := numbers(t, db, policyLine("gone")); len(got) != 1 {
		t.Errorf("another key has lost a deleted box: %v", got)
	}
	loud := numbers(t, db, policyLine("loud"))
	if len(loud) > 180 || loud[0] != 1 || loud[len(loud)-1] != 400 {
		t.Errorf("the loud key has %d versions: %v", len(loud), loud)
	}
	sum, deleted := 0, 0
	for box := range contentsOf(t, db, layout.HistoryLines) {
		if strings.HasPrefix(box, "made") {
			deleted++
		}
	}
	for _, bucket := range [][]byte{layout.HistoryVersions, layout.HistoryTexts} {
		for _, size := range contentsOf(t, db, bucket) {
			sum += size
		}
	}
	if sum > 300_000 || deleted > 20 {
		t.Errorf("%d bytes and %d deleted boxes are kept", sum, deleted)
	}
}

// TestFirstVersionsYieldToTheBound: if the versions that each box keeps exceed the bound, the first ones go, but not those of a key
// within its share. The versions in force and the last ones stay.
func TestFirstVersionsYieldToTheBound(t *testing.T) {
	t.Parallel()
	db := open(t, Options{Dir: newDir(t)})
	bounds := history.Bounds{Versions: 1000, Bytes: 1 << 20, Total: 300_000, Deleted: 20}
	text := func(box string, n int) []byte { return []byte(box + strings.Repeat(fmt.Sprintf("%04d", n), 500)) }
	const boxes = 100
	inBook(t, db, bounds, func(b history.Book) (err error) {
		add := func(holder, box string, n int, r history.Result) {
			id := policyLine(policy.BoxID(box))
			key := func() (string, error) { return holder, nil }
			err = errors.Join(err, b.Stage(id, key, history.Version{Number: uint64(n)}, text(box, n)), b.Settle(id, uint64(n), r, time.Now()))
		}
		for n := 1; n <= 3; n++ {
			add("quiet", "quiet", n, history.InForce)
		}
		for n := range boxes {
			box := fmt.Sprint("loud", n)
			add("loud", box, 1, history.InForce)
			add("loud", box, 2, history.InForce)
			add("loud", box, 3, history.RolledBack)
		}
		return err
	})
	if got := numbers(t, db, policyLine("quiet")); !slices.Equal(got, []uint64{1, 2, 3}) {
		t.Errorf("another key has %v", got)
	}
	firsts, sum := 0, 0
	for n := range boxes {
		got := numbers(t, db, policyLine(policy.BoxID(fmt.Sprint("loud", n))))
		if firsts += len(got) - 2; !slices.Contains(got, 2) || got[len(got)-1] != 3 {
			t.Errorf("box %d has %v", n, got)
		}
	}
	for _, bucket := range [][]byte{layout.HistoryVersions, layout.HistoryTexts} {
		for _, size := range contentsOf(t, db, bucket) {
			sum += size
		}
	}
	if most := boxes * 2 * 2500 * 11 / 10; firsts > boxes/5 || sum > most { // the rest was added since the last removal
		t.Errorf("%d first versions of %d and %d bytes are kept, want at most %d", firsts, boxes, sum, most)
	}
}

// TestAttackHistoryOfOthers: a key that fills the history takes nothing from another key, whose boxes share their texts, so that they
// would need more bytes if each were alone, and also not if its own versions cannot be removed.
func TestAttackHistoryOfOthers(t *testing.T) {
	t.Parallel()
	const total = 300_000
	bounds := history.Bounds{Versions: 1000, Bytes: 1 << 20, Total: total, Deleted: 20}
	text := func(of string, n int) []byte { return []byte(of + strings.Repeat(fmt.Sprintf("%04d", n), 500)) }
	for what, attack := range map[string]func(add func(box string, n int)){
		"many versions of one box": func(add func(string, int)) {
			for n := 1; n <= 300; n++ {
				add("loud", n)
			}
		},
		"many boxes with as many versions as are always kept": func(add func(string, int)) {
			for n := range 180 {
				add(fmt.Sprint("loud", n/3), n%3+1)
			}
		},
	} {
		db := open(t, Options{Dir: newDir(t)})
		inBook(t, db, bounds, func(b history.Book) (err error) {
			for n := range 200 {
				err = errors.Join(err, b.Add(policyLine(policy.BoxID(fmt.Sprint("quiet", n/10))), "quiet", history.Version{Number: uint64(n%10 + 1)}, text("named", n%10)))
			}
			return err
		})
		inBook(t, db, bounds, func(b history.Book) (err error) {
			attack(func(box string, n int) {
				err = errors.Join(err, b.Add(policyLine(policy.BoxID(box)), "loud", history.Version{Number: uint64(n)}, text(box, n)))
			})
			return err
		})
		for n := range 20 {
			if got := numbers(t, db, policyLine(policy.BoxID(fmt.Sprint("quiet", n)))); len(got) != 10 {
				t.Errorf("%s: box %d of another key has %d versions of 10", what, n, len(got))
				break
			}
		}
	}
}

// TestTextsOfRemovedLinesAreCharged: a key whose boxes took their texts from a box that no longer exists is charged for them, and loses
// its own versions instead of those of another key.
func TestTextsOfRemovedLinesAreCharged(t *testing.T) {
	t.Parallel()
	const total = 300_000
	db := open(t, Options{Dir: newDir(t)})
	bounds := history.Bounds{Versions: 1000, Bytes: 1 << 20, Total: total, Deleted: 20}
	text := func(of string, n int) []byte { return []byte(of + strings.Repeat(fmt.Sprintf("%04d", n), 500)) }
	inBook(t, db, bounds, func(b history.Book) (err error) {
		add := func(holder, box string, n int) {
			err = errors.Join(err, b.Add(policyLine(policy.BoxID(box)), holder, history.Version{Number: uint64(n)}, text(holder, n)))
		}
		for n := 1; n <= 65; n++ {
			add("quiet", "quiet", n)
		}
		for n := 1; n <= 55; n++ {
			add("loud", "first", n)
			add("loud", "second", n)
		}
		if err != nil {
			return err
		}
		if err = b.Delete("first", time.Now().Add(-time.Hour)); err == nil {
			_, err = b.Expire(time.Now(), 10)
		}
		for n := 56; n <= 150; n++ {
			add("loud", "second", n)
		}
		return err
	})
	if got := numbers(t, db, policyLine("quiet")); len(got) != 65 {
		t.Errorf("another key has %d versions of 65", len(got))
	}
	if got := numbers(t, db, policyLine("second")); len(got) > 75 || got[len(got)-1] != 150 {
		t.Errorf("the key that filled the history has %d versions", len(got))
	}
}

// contentsOf returns the size of each document of a bucket.
func contentsOf(t *testing.T, db *DB, bucket []byte) map[string]int {
	t.Helper()
	sizes := map[string]int{}
	err := db.bolt.View(func(tx *bolt.Tx) error {
		return tx.Bucket(bucket).ForEach(func(key, value []byte) error { sizes[string(key)] = len(value); return nil })
	})
	if err != nil {
		t.Fatal(err)
	}
	return sizes
}
