package quota

import (
	"context"
	"errors"
	"testing"
)

// TestTurnsOfHolders: a holder waits for its own turn, others do not, and nothing is kept of holders without a turn.
func TestTurnsOfHolders(t *testing.T) {
	t.Parallel()
	var turns Turns
	leave, err := turns.Enter(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := turns.Enter(ended, "a"); !errors.Is(err, context.Canceled) {
		t.Errorf("a second time: %v", err)
	}
	other, err := turns.Enter(t.Context(), "b")
	if err != nil {
		t.Fatal(err)
	}
	other()
	leave()
	if leave, err = turns.Enter(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	leave()
	if len(turns.holders) != 0 {
		t.Errorf("%d holders are kept", len(turns.holders))
	}
}
