package store

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"boxgate/policy"
	"boxgate/policy/name"
)

func layersOf(t *testing.T, db *DB) []string {
	t.Helper()
	var needed []string
	for _, layer := range []string{"base", "gone", "own", "own0", "own1"} {
		if yes, err := db.Snapshots.NeedsLayer(layer); err != nil {
			t.Fatal(err)
		} else if yes {
			needed = append(needed, layer)
		}
	}
	return needed
}

// TestLayersLiveAsLongAsTheirOwners checks that, with boxes and snapshots created and deleted in any order, a layer is
// removed with its last owner.
func TestLayersLiveAsLongAsTheirOwners(t *testing.T) {
	t.Parallel()
	db := open(t, Options{Dir: newDir(t)})
	source := allocate(t, db, Box{ID: "source"})
	for i := range 2 {
		s := Snapshot{ID: fmt.Sprint("s", i), Box: source.ID, State: "creating", Layers: []string{"base", fmt.Sprint("own", i)}}
		if err := db.Snapshots.Add(s); err != nil {
			t.Fatal(err)
		}
	}
	fork := allocate(t, db, Box{ID: "fork", Layers: []string{"base", "own0"}})
	if err := errors.Join(db.Boxes.Delete(source.ID), db.Snapshots.Delete([]string{"s0"})); err != nil {
		t.Fatal(err)
	}
	if got := layersOf(t, db); !slices.Equal(got, []string{"base", "own0", "own1"}) {
		t.Errorf("%v", got)
	}
	fork.Layers = nil // other changes of a box do not affect its layers
	if err := db.Boxes.Update(fork); err != nil {
		t.Fatal(err)
	}
	if err := db.Snapshots.Delete([]string{"s1", "unknown"}); !errors.Is(err, ErrNotFound) {
		t.Errorf("%v", err)
	}
	if s, err := db.Snapshots.Get("s1"); err != nil || s.Box != "source" {
		t.Errorf("%+v, %v: an unknown snapshot did not keep the other", s, err)
	}
	if err := db.Snapshots.Delete([]string{"s1"}); err != nil {
		t.Fatal(err)
	}
	if got := layersOf(t, db); !slices.Equal(got, []string{"base", "own0"}) {
		t.Errorf("%v", got)
	}
	if err := db.Boxes.Delete("fork"); err != nil {
		t.Fatal(err)
	}
	if got := layersOf(t, db); len(got) > 0 {
		t.Errorf("%v", got)
	}
}

// TestNoBoxOfADeletedSnapshot checks that layers without an owner are refused, because their files are about to be
// removed.
func TestNoBoxOfADeletedSnapshot(t *testing.T) {
	t.Parallel()
	db := open(t, Options{Dir: newDir(t)})
	source := allocate(t, db, Box{ID: "source"})
	err := db.Snapshots.Add(Snapshot{ID: "s", Box: source.ID, Layers: []string{"gone"}})
	if err = errors.Join(err, db.Snapshots.Delete([]string{"s"})); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Boxes.Allocate(Box{ID: "late", Layers: []string{"gone"}}, Pools{}); !errors.Is(err, ErrNotFound) {
		t.Errorf("%v", err)
	}
	if err := db.Snapshots.Add(Snapshot{ID: "s", Box: "nobody"}); !errors.Is(err, ErrNotFound) {
		t.Errorf("a snapshot of a box that does not exist: %v", err)
	}
}

func TestSnapshotsKeepWhatTheBoxWas(t *testing.T) {
	t.Parallel()
	db := open(t, Options{Dir: newDir(t)})
	b := allocate(t, db, Box{ID: "source", Env: map[string]name.Secret{"TOKEN": name.NewSecret("in the environment")}, Runtime: "node"})
	if err := db.Snapshots.Add(Snapshot{ID: "s", Name: "first"}.Of(b, Policy{Spec: policy.Spec{Mode: policy.ModeDenyAll}, Named: "web"})); err != nil {
		t.Fatal(err)
	}
	s, err := db.Snapshots.Change("s", func(s *Snapshot) { s.State, s.Size = "ready", 7 })
	if err != nil {
		t.Fatal(err)
	}
	env, _ := s.Kept()
	if env["TOKEN"].Reveal() != "in the environment" || s.Runtime != "node" || s.Policy.Mode != policy.ModeDenyAll || s.Named != "web" || s.Name != "first" {
		t.Errorf("%+v", s)
	}
	list, err := db.Snapshots.All()
	if err != nil || len(list) != 1 || list[0].Size != 7 {
		t.Errorf("%+v, %v", list, err)
	}
}

// TestSnapshotsOfOlderVersionsGetAnOwner checks that they get the owner of their box, if that exists.
func TestSnapshotsOfOlderVersionsGetAnOwner(t *testing.T) {
	t.Parallel()
	db := open(t, Options{Dir: newDir(t)})
	for _, id := range []policy.BoxID{"stays", "gone"} {
		allocate(t, db, Box{ID: id, CreatedBy: "key_1"})
		if err := db.Snapshots.Add(Snapshot{ID: "of " + string(id), Box: id}); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(db.Boxes.Delete("gone"), db.Snapshots.SetOwners(), db.Snapshots.SetOwners()); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]string{"of stays": "key_1", "of gone": ""} {
		if s, err := db.Snapshots.Get(id); err != nil || s.CreatedBy != want {
			t.Errorf("%s: %+v %v", id, s, err)
		}
	}
	b, err := db.Boxes.Get("stays")
	if s := (Snapshot{}).Of(b, Policy{}); err != nil || s.CreatedBy != "key_1" {
		t.Errorf("a new one: %+v %v", s, err)
	}
}
