package fault

import (
	"context"
	"os"
	"testing"

	"boxgate/e2e/harness"
)

// The creation of a box hangs at each of its slow steps until the caller gives up. Then everything is rolled back.
// Until then the partial box reaches no destination.
func TestAttackWhileACreationHangs(t *testing.T) {
	t.Parallel()
	w, s := faultWorld(t)
	body := map[string]any{"network_policy": narrow, "name": "victim"}
	for _, step := range []string{"launch: directory made", "link: box's end up", "connect: policy in force", "launch: root built", "launch: first process started"} {
		w.Arm(harness.FaultHang, step)
		ctx, hangUp := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- w.Client.Do(ctx, "POST", "/v2/box", body, nil) }()
		w.Until(step, func() bool {
			_, err := os.Stat(w.FaultsPath())
			return os.IsNotExist(err)
		})
		before := s.sent.Load()
		w.Until("the siege goes on", func() bool { return step == "launch: directory made" || s.sent.Load() > before+100 })
		hangUp()
		if <-done == nil {
			t.Errorf("%s: the box was made", step)
		}
		w.Until(step+": the box is gone", func() bool {
			var boxes []any
			return w.Client.Get(t.Context(), "/v2/box", &boxes) == nil && len(boxes) == 0
		})
		nothingLeft(w, "hung at "+step)
	}
	w.MustDelete(makeNarrow(w))
	s.assertHolds()
}
