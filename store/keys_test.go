package store

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"boxgate/policy"
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

// keyIn returns the API key in the file of a state directory.
func keyIn(t *testing.T, dir string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, layout.FileAPIKey))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(data))
}

func withKey(t *testing.T) (dir string, db *DB, key string) {
	t.Helper()
	dir = newDir(t)
	db = open(t, Options{Dir: dir})
	if made, err := db.Keys.Ensure(); err != nil || !made {
		t.Fatal(made, err)
	}
	return dir, db, keyIn(t, dir)
}

func TestAPIKeyRotation(t *testing.T) {
	t.Parallel()
	dir, db, old := withKey(t)
	if err := db.Keys.Rotate(0); err != nil {
		t.Fatal(err)
	}
	fresh := keyIn(t, dir)
	if fresh == old || !db.Keys.Check(fresh) || db.Keys.Check(old) {
		t.Error("the new key is not the only one that opens")
	}
	if info, err := os.Stat(filepath.Join(dir, layout.FileAPIKey)); err != nil || info.Mode().Perm() != 0o600 {
		t.Error(info, err)
	}
	if _, err := os.Stat(filepath.Join(dir, layout.FileNextKey)); err == nil {
		t.Error("the file beside stays")
	}
	if keys, err := db.Keys.All(); err != nil || len(keys) != 1 {
		t.Error(keys, err)
	}
	if made, err := db.Keys.Ensure(); err != nil || made || keyIn(t, dir) != fresh {
		t.Error(made, err)
	}
}

func TestAPIKeyRotationWithGrace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir, db, old := withKey(t)
		if err := db.Keys.Rotate(time.Hour); err != nil {
			t.Fatal(err)
		}
		second := keyIn(t, dir)
		time.Sleep(59 * time.Minute)
		if !db.Keys.Check(old) || !db.Keys.Check(second) {
			t.Error("within the grace a key does not open")
		}
		if err := db.Keys.Rotate(time.Hour); err != nil { // must not prolong the first
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if db.Keys.Check(old) || !db.Keys.Check(second) || !db.Keys.Check(keyIn(t, dir)) {
			t.Error("after its grace the first key opens, or another does not")
		}
		if err := db.Keys.Rotate(0); err != nil {
			t.Fatal(err)
		}
		if keys, err := db.Keys.All(); err != nil || len(keys) != 1 || db.Keys.Check(second) {
			t.Error("a rotation without grace leaves other keys", keys, err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// Wherever a rotation is cut short, after the next start exactly one key works, and it is in its file.
func TestAPIKeyRotationMayStopAnywhere(t *testing.T) {
	t.Parallel()
	dir, db, old := withKey(t)
	left := map[string]string{}
	var reached []string
	db.onStep = func(step string) error {
		reached = append(reached, step)
		left[step] = snapshot(t, dir)
		return nil
	}
	if err := db.Keys.Rotate(0); err != nil {
		t.Fatal(err)
	}
	if want := []string{"new API key in a file beside", "new API key in force", "new API key in its file"}; !slices.Equal(reached, want) {
		t.Errorf("the steps were %q", reached)
	}
	for step, dir := range left {
		db := open(t, Options{Dir: dir})
		if made, err := db.Keys.Ensure(); err != nil || made {
			t.Errorf("%s: %v %v", step, made, err)
		}
		key := keyIn(t, dir)
		if !db.Keys.Check(key) || (key == old) != (step == "new API key in a file beside") || key != old && db.Keys.Check(old) {
			t.Errorf("%s: the key in the file opens: %v; it is the old one: %v", step, db.Keys.Check(key), key == old)
		}
		if _, err := os.Stat(filepath.Join(dir, layout.FileNextKey)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: the file beside stays (%v)", step, err)
		}
	}
}

// recount counts the holdings of each key in the stored records.
func recount(t *testing.T, db *DB) (all map[string]Holdings) {
	t.Helper()
	err := db.view(func(tx *transaction) (err error) {
		all, err = countHoldings(tx)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestHoldingsAreWhatIsStored creates, replaces and deletes objects of several keys concurrently, and compares the
// maintained counts with the stored objects.
func TestHoldingsAreWhatIsStored(t *testing.T) {
	t.Parallel()
	db := open(t, Options{Dir: filepath.Join(t.TempDir(), "state")})
	keys := []string{"", "alice", "bob", "carol"} // "" and the operator's are the same
	boxes := []policy.BoxID{"b1", "b2", "b3"}
	same := func(when string) {
		t.Helper()
		want := recount(t, db)
		for _, key := range []string{OperatorKey, "alice", "bob", "carol", "nobody"} {
			if got, err := db.Keys.Holdings(key); err != nil || got != want[key] {
				t.Errorf("%s: %s has %+v, %v; stored are %+v", when, key, got, err, want[key])
			}
		}
	}
	var working sync.WaitGroup
	for worker := range 4 {
		working.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(worker)))
			for i := range 60 {
				box, n, key := boxes[r.IntN(len(boxes))], uint16(r.IntN(5)), keys[r.IntN(len(keys))]
				id := fmt.Sprint(box, "-", n)
				switch r.IntN(9) { // some objects do not exist, so that some operations have no effect
				case 0, 1:
					_ = db.URLs.Set(URL{Box: box, Port: n, Owner: key, Pending: []string{fmt.Sprintf("%d-%d.example.com", worker, i)}}, Claim{Key: key})
				case 2:
					_ = db.URLs.Delete(box, n)
				case 3:
					_ = db.Snapshots.Add(Snapshot{ID: id, Box: box, TakenBy: key})
				case 4:
					_ = db.Snapshots.Delete([]string{id})
				case 5:
					_ = db.Schedules.Add(Schedule{ID: id, Box: box, CreatedBy: key}, 4)
				case 6:
					_ = db.Schedules.Delete(box, id)
				case 7:
					_, _ = db.Schedules.Change(box, id, func(s *Schedule) error { s.Runs++; return nil })
				case 8:
					if i%20 == 0 {
						_ = db.Boxes.Delete(box)
					}
					_, _ = db.Boxes.Allocate(Box{ID: box}, pools)
				}
				_, _ = db.Keys.Holdings(key) // the first count is made during concurrent writes
			}
		})
	}
	working.Wait()
	if all := recount(t, db); len(all) < 3 {
		t.Errorf("too little is stored: %+v", all)
	}
	same("at the end")
	for _, box := range boxes {
		if err := db.Boxes.Delete(box); err != nil {
			t.Error(err)
		}
	}
	same("without boxes")
}

// TestHoldingsAreNotCountedEachTime checks that the cost of a call does not depend on the number of objects.
func TestHoldingsAreNotCountedEachTime(t *testing.T) {
	t.Parallel()
	db := open(t, Options{Dir: filepath.Join(t.TempDir(), "state")})
	allocate(t, db, Box{ID: "b1"})
	for port := range uint16(100) {
		if err := db.URLs.Set(URL{Box: "b1", Port: port, Owner: "alice"}, Claim{Key: "alice"}); err != nil {
			t.Fatal(err)
		}
	}
	reads := func() int64 {
		all := db.bolt.Stats()
		return all.TxStats.GetCursorCount()
	}
	if has, err := db.Keys.Holdings("alice"); err != nil || has != (Holdings{URLs: 100}) {
		t.Fatalf("%+v, %v", has, err)
	}
	before := reads()
	if err := db.URLs.Set(URL{Box: "b1", Port: 100, Owner: "alice"}, Claim{Key: "alice"}); err != nil {
		t.Fatal(err)
	}
	written := reads()
	if has, err := db.Keys.Holdings("alice"); err != nil || has != (Holdings{URLs: 101}) || written == before || reads() != written {
		t.Errorf("%+v, %v, with %d reads", has, err, reads()-written)
	}
}
