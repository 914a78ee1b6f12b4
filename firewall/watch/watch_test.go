package watch

import (
	"context"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"boxgate/policy"
)

// roster restores its boxes.
type roster struct {
	Owner
	has []policy.BoxID
}

func (r roster) RestoreBoxes(_ context.Context, boxes map[policy.BoxID]bool) (restored []policy.BoxID, _ map[policy.BoxID]error) {
	for _, id := range r.has {
		if boxes[id] {
			restored = append(restored, id)
		}
	}
	return restored, nil
}

// A box that is removed, as when creating it fails, takes its link with it. That is not logged as a change by another
// program.
func TestARemovedBoxIsNotTampering(t *testing.T) {
	t.Parallel()
	core, logs := observer.New(zap.DebugLevel)
	w := &Watcher{owner: roster{has: []policy.BoxID{"stays"}}, log: zap.New(core)}
	d := newDamage()
	d.add(false, "goes")
	if whole, again := w.repair(t.Context(), d); whole || len(again) > 0 || logs.Len() > 0 {
		t.Errorf("%v, %v, %v", whole, again, logs.All())
	}
	d.add(false, "goes", "stays")
	if whole, again := w.repair(t.Context(), d); whole || len(again) > 0 || logs.FilterMessageSnippet("by another program").Len() != 1 {
		t.Errorf("%v, %v, %v", whole, again, logs.All())
	}
}
