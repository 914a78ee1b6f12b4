package fault

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/e2e/harness"
)

// The gateway fails at every step of taking and deleting snapshots. Then each snapshot is ready and complete, or
// reports its failure. The box continues under its policy. When all snapshots are deleted, no file of one remains.
func TestAttackDuringFaultsOfSnapshots(t *testing.T) {
	t.Parallel()
	w, s := faultWorld(t)
	r := w.Raid(makeNarrow(w))
	w.MustSh(r.Box, "echo whole >state")
	for _, step := range stepsOfSnapshot {
		for _, kind := range kindsOf(step) {
			what := kind + " at " + step
			operation := func() error { return takeSnapshot(w, r.Box) }
			if strings.HasPrefix(step, "delete") {
				if err := operation(); err != nil {
					t.Fatal(err)
				}
				operation = func() error { return w.Client.Do(t.Context(), "DELETE", "/v2/box/snapshots", map[string]any{}, nil) }
			}
			if err := failing(w, kind, step, operation); err == nil {
				t.Errorf("%s: the answer was a success", what)
			}
			for id, status := range snapshots(w) {
				switch status {
				case "ready":
					wholeBox(w, what, id)
				case "error":
				default:
					t.Errorf("%s: snapshot %s is %s", what, id, status)
				}
			}
			harness.Contains(t, w.MustSh(r.Box, "echo awake"), "awake")
			agrees(r, what)
			noSnapshots(w, what, r.Box)
		}
	}
	s.assertHolds()
}

// takeSnapshot takes a snapshot. It returns an error if the snapshot failed.
func takeSnapshot(w *harness.World, box string) error {
	var s struct{ Status, Error string }
	err := w.Client.Do(w.T.Context(), "POST", api.BoxPath(box, "snapshots"), map[string]any{"name": "of a fault"}, &s)
	if err == nil && s.Status != "ready" {
		err = errors.New(s.Error)
	}
	return err
}

func snapshots(w *harness.World) map[string]string {
	w.T.Helper()
	var list struct{ Snapshots []struct{ ID, Status string } }
	if err := w.Client.Get(w.T.Context(), "/v2/box/snapshots", &list); err != nil {
		w.T.Fatal(err)
	}
	found := map[string]string{}
	for _, s := range list.Snapshots {
		found[s.ID] = s.Status
	}
	return found
}

// wholeBox creates a box from a snapshot, and deletes it.
func wholeBox(w *harness.World, what, id string) {
	w.T.Helper()
	var box struct{ ID string }
	if err := w.Client.Do(w.T.Context(), "POST", "/v2/box/from-snapshot", map[string]any{"snapshot_id": id}, &box); err != nil {
		w.T.Fatalf("%s: %v", what, err)
	}
	harness.Contains(w.T, w.MustSh(box.ID, "cat state"), "whole")
	w.MustDelete(box.ID)
}

// noSnapshots deletes all snapshots and checks that no file of one is left.
func noSnapshots(w *harness.World, what, box string) {
	w.T.Helper()
	if err := takeSnapshot(w, box); err != nil {
		w.T.Errorf("%s: another snapshot: %v", what, err)
	}
	if err := w.Client.Do(w.T.Context(), "DELETE", "/v2/box/snapshots", map[string]any{}, nil); err != nil {
		w.T.Errorf("%s: %v", what, err)
	}
	if left, err := os.ReadDir(filepath.Join(w.Dir, "state", "layers")); err != nil || len(left) > 0 {
		w.T.Errorf("%s: layers are left: %v %v", what, left, err)
	}
}
