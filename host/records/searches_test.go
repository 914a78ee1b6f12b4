package records

import (
	"context"
	"testing"

	"boxgate/audit"
	quotas "boxgate/quota"
)

// TestSearchesHaveTurns: while a key searches, another search of the same key and searches of other keys wait, but not
// the operator's. A client that reads its results slowly does not block other searches.
func TestSearchesHaveTurns(t *testing.T) {
	t.Parallel()
	s := newSearches()
	key := func(id string) quotas.Holder {
		return quotas.Holder{Type: quotas.APIKey, ID: id, Operator: id == "operator"}
	}
	waits := func(id string) bool {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		began := false
		go cancel() // a search that need not wait begins anyway, or is retried
		err := runSearch(ctx, s, key(id), nil, func(func(audit.Event) error) error { began = true; return nil })
		if began == (err != nil) {
			t.Errorf("%s: %v %v", id, began, err)
		}
		return !began
	}
	free := func(id string) bool { // with a canceled context, select may choose either case
		for range 100 {
			if !waits(id) {
				return true
			}
		}
		return false
	}
	err := runSearch(t.Context(), s, key("a"), func(audit.Event) error {
		if free("a") || !free("b") || !free("operator") {
			t.Error("while what was found is handed over: only the same key waits")
		}
		return nil
	}, func(found func(audit.Event) error) error {
		if free("a") || free("b") || !free("operator") {
			t.Error("during a search of a key: all keys wait but the operator's")
		}
		return found(audit.Event{})
	})
	if err != nil || !free("a") || len(s.keys) != 0 || len(s.turn) != 0 {
		t.Errorf("%v, %d keys", err, len(s.keys))
	}
}
