package fault

import (
	"testing"

	"filippo.io/age"

	"boxgate/e2e/harness"
	"boxgate/host/bucket/buckettest"
	"boxgate/internal/nightly"
)

// TestFaultsOfSharedSnapshots: the gateway fails at every step of sharing a snapshot with other hosts. Then the snapshot is ready on all of them
// and complete, or has failed. When all snapshots are deleted, no file of one remains.
func TestFaultsOfSharedSnapshots(t *testing.T) {
	nightly.Root(t)
	t.Parallel()
	s := buckettest.Start(t)
	key, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	w, other := harness.NewSharing(t, s, key.String()), harness.NewSharing(t, s, key.String())
	box := makeNarrow(w)
	w.MustSh(box, "echo whole >state")
	for _, step := range stepsOfSharing {
		for _, kind := range kindsOf(step) {
			what := kind + " at " + step
			_ = failing(w, kind, step, func() error { return takeSnapshot(w, box) })
			var all map[string]string
			w.Until("the snapshots have an outcome after "+what, func() bool {
				all = snapshots(w)
				for _, status := range all {
					if status == "creating" {
						return false
					}
				}
				return true
			})
			for id, status := range all {
				if status == "ready" {
					wholeBox(w, what, id)
					other.Until("the other host has the snapshot after "+what, func() bool { return snapshots(other)[id] == "ready" })
					wholeBox(other, what, id)
				}
			}
			w.MustSh(box, "echo awake")
			noSnapshots(w, what, box)
			other.Until("the other host has no snapshot after "+what, func() bool { return len(snapshots(other)) == 0 })
		}
	}
}
