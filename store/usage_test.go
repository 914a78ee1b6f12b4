package store

import (
	"errors"
	"testing"

	"boxgate/policy"
)

func TestUsages(t *testing.T) {
	t.Parallel()
	db := open(t, Options{Dir: newDir(t)})
	allocate(t, db, Box{ID: "b1"})
	allocate(t, db, Box{ID: "b2"})
	first := Usage{CPU: Count{Total: 7, Life: "1", Seen: 3}, PeakMemory: 9}
	if err := errors.Join(db.Usages.Save(map[policy.BoxID]Usage{"b1": {}, "b2": first, "gone": first}), db.Usages.Save(map[policy.BoxID]Usage{"b1": first})); err != nil {
		t.Fatal(err)
	}
	all, err := db.Usages.All()
	if err != nil || len(all) != 2 || all["b1"] != first || all["b2"] != first {
		t.Errorf("%+v, %v", all, err)
	}
	if err := db.Boxes.Delete("b1"); err != nil {
		t.Fatal(err)
	}
	if all, err := db.Usages.All(); err != nil || len(all) != 1 {
		t.Errorf("after a deletion: %+v, %v", all, err)
	}
}
