package store

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"

	"boxgate/policy"
)

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
