package store

import (
	"errors"
	"slices"
	"testing"

	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/rule/header"
	"boxgate/store/layout"
)

// valueOf returns the value of the only header.
func valueOf(t *testing.T, h Headers, err error) string {
	t.Helper()
	if err != nil || len(h.Rules) != 1 {
		t.Errorf("%+v %v", h, err)
		return ""
	}
	return header.Of(h.Rules[0].Effects)[0].Literal.Reveal()
}

// stagedStore has a box with committed and staged rules, and committed and staged rules for all boxes.
func stagedStore(t *testing.T) (dir string, db *DB) {
	t.Helper()
	dir = newDir(t)
	db = open(t, Options{Dir: dir})
	allocate(t, db, Box{ID: "b1"})
	if err := errors.Join(
		db.Rules.SetHeaders("b1", rules(t, "api.example.com", "X-Key", "old"), 1), db.Rules.StageHeaders("b1", rules(t, "api.example.com", "X-Key", "new"), 2),
		db.Rules.SetGlobalHeaders(rules(t, "api.example.com", "X-Key", "old global"), 1), db.Rules.StageGlobalHeaders(rules(t, "api.example.com", "X-Key", "new global"), 2),
	); err != nil {
		t.Fatal(err)
	}
	return dir, db
}

// After a crash between the two steps of a change of header rules, the committed ones are valid and the staged ones are
// dropped.
func TestStagedHeadersAreDroppedAfterACrash(t *testing.T) {
	t.Parallel()
	dir, _ := stagedStore(t)
	db := open(t, Options{Dir: copyState(t, dir)})
	staged, err := db.Rules.StagedHeaders()
	if err != nil || valueOf(t, staged["b1"], nil) != "new" || valueOf(t, staged[""], nil) != "new global" {
		t.Errorf("staged: %+v %v", staged, err)
	}
	if policies, err := db.Rules.Staged(); err != nil || len(policies) != 0 {
		t.Errorf("staged policies: %+v %v", policies, err)
	}
	dropped, err := db.Rules.DropStaged()
	if want := []StagedChange{{Headers: true}, {Box: "b1", Headers: true}}; err != nil || !slices.Equal(dropped, want) {
		t.Errorf("dropped %+v %v", dropped, err)
	}
	if err := errors.Join(db.Rules.CommitHeaders("b1"), db.Rules.CommitGlobalHeaders()); !errors.Is(err, ErrNotFound) {
		t.Errorf("committing what was dropped: %v", err)
	}
	if own, err := db.Rules.Headers("b1"); valueOf(t, own, err) != "old" || own.Version != 1 {
		t.Errorf("the box has version %d", own.Version)
	}
	if all, err := db.Rules.GlobalHeaders(); valueOf(t, all, err) != "old global" || all.Version != 1 {
		t.Errorf("all boxes have version %d", all.Version)
	}
}

// A policy and header rules of one box are staged independently: committing or aborting one does not affect the other.
func TestPolicyAndHeadersAreStagedApart(t *testing.T) {
	t.Parallel()
	_, db := stagedStore(t)
	if err := errors.Join(db.Rules.StagePolicy("b1", Policy{Spec: policy.Spec{Mode: policy.ModeDenyAll}, Version: 1}), db.Rules.CommitPolicy("b1"), db.Rules.AbortPolicy("b1")); err != nil {
		t.Fatal(err)
	}
	if own, err := db.Rules.Headers("b1"); valueOf(t, own, err) != "old" {
		t.Error("the header rules went with the policy")
	}
	if err := errors.Join(db.Rules.AbortGlobalHeaders(), db.Rules.CommitHeaders("b1")); err != nil {
		t.Fatal(err)
	}
	if own, err := db.Rules.Headers("b1"); valueOf(t, own, err) != "new" || own.Version != 2 {
		t.Errorf("version %d", own.Version)
	}
	if all, err := db.Rules.GlobalHeaders(); valueOf(t, all, err) != "old global" {
		t.Errorf("version %d", all.Version)
	}
}

// Rules staged under one key of the store can be committed under another.
func TestStagedHeadersOutliveAChangeOfTheKey(t *testing.T) {
	t.Parallel()
	_, db := stagedStore(t)
	if err := errors.Join(db.RotateKey(name.Secret{}), db.Rules.CommitHeaders("b1"), db.Rules.CommitGlobalHeaders()); err != nil {
		t.Fatal(err)
	}
	if own, err := db.Rules.Headers("b1"); valueOf(t, own, err) != "new" {
		t.Errorf("version %d", own.Version)
	}
	if all, err := db.Rules.GlobalHeaders(); valueOf(t, all, err) != "new global" {
		t.Errorf("version %d", all.Version)
	}
}

// A deleted box leaves no staged documents, and a document for a missing box cannot be staged.
func TestDeletedBoxLeavesNothingStaged(t *testing.T) {
	t.Parallel()
	_, db := stagedStore(t)
	if err := errors.Join(db.Rules.StagePolicy("b1", Policy{Spec: policy.Spec{}, Version: 1}), db.Boxes.Delete("b1"), db.Rules.AbortGlobalHeaders()); err != nil {
		t.Fatal(err)
	}
	if left := contents(t, db)["staged"]; len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	if err := db.Rules.StageHeaders("b1", nil, 3); !errors.Is(err, ErrNotFound) {
		t.Errorf("staged for a box that is gone: %v", err)
	}
}

// Staged header rules are sealed for their place: they cannot be read as committed ones.
func TestStagedHeadersAreSealedInTheirPlace(t *testing.T) {
	t.Parallel()
	_, db := stagedStore(t)
	err := db.update(func(tx *transaction) error {
		document, err := tx.get(layout.Staged, []byte(stagedHeaders+"b1"))
		if err != nil {
			return err
		}
		return tx.put(layout.Headers, []byte("b1"), document)
	})
	if err != nil {
		t.Fatal(err)
	}
	if h, err := db.Rules.Headers("b1"); err == nil {
		t.Errorf("read: %+v", h)
	}
}
