package store

import (
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"boxgate/policy"
	"boxgate/store/document"
)

// TestAttackOlderProgramIgnoresPrecedence: a program that does not know the precedence of a stored policy does not read the policy. One
// without it is stored as before.
func TestAttackOlderProgramIgnoresPrecedence(t *testing.T) {
	t.Parallel()
	type older struct { // the fields of a spec before precedence
		Mode           string   `json:"mode"`
		AllowedDomains []string `json:"allowed_domains"`
		DeniedDomains  []string `json:"denied_domains"`
	}
	for precedence, readable := range map[policy.Precedence]bool{"": true, policy.PrecedenceSpecific: false} {
		dir := newDir(t)
		db := open(t, Options{Dir: dir})
		allocate(t, db, Box{ID: "b1"})
		spec := custom("*", "ok.evil.test")
		spec.DeniedDomains, spec.Precedence = []string{"*.evil.test"}, precedence
		if err := errors.Join(db.Rules.StagePolicy("b1", Policy{Spec: spec, Version: 1}), db.Rules.CommitPolicy("b1"), db.Close()); err != nil {
			t.Fatal(err)
		}
		db = open(t, Options{Dir: dir})
		stored, err := db.Rules.Policy("b1")
		if err != nil || !reflect.DeepEqual(stored.Spec, spec) {
			t.Errorf("%+v came back as %+v, %v", spec, stored.Spec, err)
		}
		data, err := json.Marshal(stored.Spec)
		if err != nil {
			t.Fatal(err)
		}
		if err := document.Decode(data, &older{}); (err == nil) != readable {
			t.Errorf("%s is read with %v", data, err)
		}
	}
}

func custom(domains ...string) policy.Spec {
	return policy.Spec{Mode: policy.ModeCustom, AllowedDomains: domains}
}

// following returns a store with the named policy "web" that b1 and b2 follow, and b3, which does not.
func following(t *testing.T) (dir string, db *DB) {
	t.Helper()
	dir = newDir(t)
	db = open(t, Options{Dir: dir})
	if err := errors.Join(db.Rules.StageNamed("web", Policy{Spec: custom("old.example"), Version: 1}, nil), db.Rules.CommitNamed("web", nil)); err != nil {
		t.Fatal(err)
	}
	for id, p := range map[policy.BoxID]Policy{
		"b1": {Spec: custom("old.example"), Version: 7, Named: "web"}, "b2": {Spec: custom("old.example"), Version: 1, Named: "web"}, "b3": {Spec: custom("own.example"), Version: 1},
	} {
		allocate(t, db, Box{ID: id, State: "idle"})
		if err := errors.Join(db.Rules.StagePolicy(id, p), db.Rules.CommitPolicy(id)); err != nil {
			t.Fatal(err)
		}
	}
	return dir, db
}

// saying returns the first allowed domain of a named policy and of the boxes b1 and b2.
func saying(t *testing.T, db *DB) (out []string) {
	t.Helper()
	named, err := db.Rules.NamedPolicies()
	b1, err1 := db.Rules.Policy("b1")
	b2, err2 := db.Rules.Policy("b2")
	if err := errors.Join(err, err1, err2); err != nil {
		t.Fatal(err)
	}
	for _, p := range []Policy{named["web"], b1, b2} {
		out = append(out, p.Spec.AllowedDomains[0])
	}
	return out
}

// next returns the policies of the boxes after a change of the named one.
func next(domain string, v1, v2 uint64) map[policy.BoxID]Policy {
	return map[policy.BoxID]Policy{"b1": {Spec: custom(domain), Version: v1, Named: "web"}, "b2": {Spec: custom(domain), Version: v2, Named: "web"}}
}

// A named policy and the policies of its boxes are committed together or not at all, and staged ones are dropped.
func TestNamedPolicyChangesWithItsBoxes(t *testing.T) {
	t.Parallel()
	dir, db := following(t)
	boxes := []policy.BoxID{"b1", "b2"}
	before, after := []string{"old.example", "old.example", "old.example"}, []string{"new.example", "new.example", "new.example"}
	for name, err := range map[string]error{
		"one box has that version already": db.Rules.StageNamed("web", Policy{Spec: custom("new.example"), Version: 2}, next("new.example", 8, 1)),
		"it has that version already":      db.Rules.StageNamed("web", Policy{Spec: custom("new.example"), Version: 1}, next("new.example", 8, 2)),
	} {
		if staged, _ := db.Rules.Staged(); !errors.Is(err, ErrConflict) || len(staged) > 0 {
			t.Errorf("%s: %v, staged %v", name, err, staged)
		}
	}
	stage := func() {
		t.Helper()
		if err := db.Rules.StageNamed("web", Policy{Spec: custom("new.example"), Version: 2}, next("new.example", 8, 2)); err != nil || !slices.Equal(saying(t, db), before) {
			t.Fatalf("%v, %q", err, saying(t, db))
		}
	}
	stage()
	if err := errors.Join(db.Rules.AbortPolicy("b2")); err != nil {
		t.Fatal(err)
	}
	if err := db.Rules.CommitNamed("web", boxes); !errors.Is(err, ErrNotFound) || !slices.Equal(saying(t, db), before) {
		t.Errorf("half of it was staged: %v, %q", err, saying(t, db))
	}
	if err := db.Rules.AbortNamed("web", boxes); err != nil {
		t.Fatal(err)
	}
	if left := contents(t, db)["staged"]; len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	stage()
	crashed := open(t, Options{Dir: copyState(t, dir)})
	dropped, err := crashed.Rules.DropStaged()
	if err != nil || len(dropped) != 3 || !slices.Contains(dropped, StagedChange{Named: "web"}) || !slices.Contains(dropped, StagedChange{Box: "b2"}) || !slices.Equal(saying(t, crashed), before) {
		t.Errorf("after a crash: %+v %v, %q", dropped, err, saying(t, crashed))
	}
	if err := db.Rules.CommitNamed("web", boxes); err != nil || !slices.Equal(saying(t, db), after) {
		t.Errorf("%v, %q", err, saying(t, db))
	}
	if r, err := db.Verify(); err != nil || len(r.Problems) > 0 {
		t.Errorf("%+v %v", r, err)
	}
}

// A backup contains named policies, and which boxes follow them.
func TestNamedPoliciesAreInBackups(t *testing.T) {
	t.Parallel()
	dir, db := following(t)
	if _, err := db.Keys.Ensure(); err != nil {
		t.Fatal(err)
	}
	from := backup(t, db)
	if err := errors.Join(db.Rules.StageNamed("web", Policy{Spec: custom("new.example"), Version: 2}, next("new.example", 8, 2)), db.Rules.CommitNamed("web", []policy.BoxID{"b1", "b2"}), db.bolt.Close()); err != nil {
		t.Fatal(err)
	}
	if r, err := Restore(RestoreOptions{Dir: dir, From: from}); err != nil || len(r.Problems) > 0 {
		t.Fatalf("%+v %v", r, err)
	}
	db = open(t, Options{Dir: dir})
	if got := saying(t, db); !slices.Equal(got, []string{"old.example", "old.example", "old.example"}) {
		t.Errorf("%q", got)
	}
	if p, err := db.Rules.Policy("b2"); err != nil || p.Named != "web" {
		t.Errorf("%+v %v", p, err)
	}
}

// A named policy in use cannot be deleted, and a box whose policy differs from the one it follows is reported.
func TestNamedPolicyInUse(t *testing.T) {
	t.Parallel()
	_, db := following(t)
	if err := db.Rules.DeleteNamed("web"); !errors.Is(err, ErrConflict) {
		t.Errorf("two boxes follow it: %v", err)
	}
	if err := errors.Join(db.Rules.StagePolicy("b1", Policy{Spec: custom("other.example"), Version: 8, Named: "web"}), db.Rules.CommitPolicy("b1"),
		db.Rules.StagePolicy("b2", Policy{Spec: custom("old.example"), Version: 2, Named: "gone"}), db.Rules.CommitPolicy("b2")); err != nil {
		t.Fatal(err)
	}
	r, err := db.Verify()
	if err != nil || len(r.Problems) != 2 || !strings.Contains(r.Problems[0], `differs from the named policy "web"`) || !strings.Contains(r.Problems[1], `"gone", which does not exist`) {
		t.Errorf("%+v %v", r, err)
	}
	if err := errors.Join(db.Boxes.Delete("b1"), db.Rules.DeleteNamed("web")); err != nil {
		t.Error(err)
	}
	if named, err := db.Rules.NamedPolicies(); err != nil || len(named) != 0 {
		t.Errorf("%v %v", named, err)
	}
	if err := db.Rules.DeleteNamed("web"); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
}
