package store

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"testing"
)

// TestAccountsOfModels stores accounts, and drops that of a deleted box while its API key keeps its own.
func TestAccountsOfModels(t *testing.T) {
	t.Parallel()
	db := open(t, Options{Dir: newDir(t)})
	box := allocate(t, db, Box{ID: "b1"})
	want := map[string]ModelAccount{
		ModelAccountOfBox(box.ID): {Total: ModelAmount{Tokens: 7, USD: 9}, Ahead: ModelAmount{Tokens: 1}, Day: ModelWindow{Number: 3, Used: ModelAmount{Tokens: 5}}, Models: map[string]ModelSum{"m": {Input: 7, USD: 9}}},
		ModelAccountOfKey("k"):    {Total: ModelAmount{Tokens: 7}},
		ModelAccountOfAll:         {Total: ModelAmount{Tokens: 7}},
	}
	saved := maps.Clone(want)
	saved[ModelAccountOfBox("box-none")] = ModelAccount{} // skipped
	if err := db.Models.Save(saved); err != nil {
		t.Fatal(err)
	}
	got, err := db.Models.All()
	if err != nil || len(got) != 3 || got[ModelAccountOfBox(box.ID)].Models["m"].Input != 7 || got[ModelAccountOfBox(box.ID)].Day.Used.Tokens != 5 {
		t.Errorf("stored %+v, %v", got, err)
	}
	requireVerified(t, db)
	if err := db.Boxes.Delete(box.ID); err != nil {
		t.Fatal(err)
	}
	got, err = db.Models.All()
	if err != nil || !slices.Equal(slices.Sorted(maps.Keys(got)), []string{"@", "key k"}) {
		t.Errorf("after the deletion of the box: %v, %v", got, err)
	}
	requireVerified(t, db)
	if err := db.Models.Delete("key k"); err != nil {
		t.Fatal(err)
	}
	if err := db.Models.Save(map[string]ModelAccount{"odd": {}, "key x": {Hour: ModelWindow{Used: ModelAmount{Tokens: 1}}}}); err != nil {
		t.Fatal(err)
	}
	r, err := db.Verify()
	if err != nil || len(r.Problems) != 2 || !strings.Contains(r.Problems[0], "more than the total") || !strings.Contains(r.Problems[1], "no account") {
		t.Errorf("verified: %+v, %v", r, err)
	}
	var backup bytes.Buffer
	if _, err := db.Backup(&backup); err != nil {
		t.Error(err)
	}
}

// requireVerified requires that the store has no problems.
func requireVerified(t *testing.T, db *DB) {
	t.Helper()
	if r, err := db.Verify(); err != nil || len(r.Problems) > 0 {
		t.Errorf("verified: %+v, %v", r, err)
	}
}
