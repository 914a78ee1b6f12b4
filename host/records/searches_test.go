package records

import (
	"context"
	"testing"

	"boxgate/audit"
	quotas "boxgate/quota"
)

// TestSearchesHaveTurns: while a key searches, another search of the key and one of another key wait, and the operator's does not. A client
// that does not take what was found keeps nobody else waiting.
func TestSearchesHaveTurns(t *testing.T) {
	t.Parallel()
	s := newSearches()
	key := func(id string) quotas.Holder {
		return quotas.Holder{What: quotas.APIKey, ID: id, Operator: id == "operator"}
	}
	waits := func(id string) bool {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		began := false
		go cancel() // whoever need not wait begins all the same, or is tried again
		err := s.do(ctx, key(id), nil, func(func(audit.Event) error) error { began = true; return nil })
		if began == (err != nil) {
			t.Errorf("%s: %v %v", id, began, err)
		}
		return !began
	}
	free := func(id string) bool { // with a context that is done, either may be chosen
		for range 100 {
			if !waits(id) {
				return true
			}
		}
		return false
	}
	err := s.do(t.Context(), key("a"), func(audit.Event) error {
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
