package lifecycle

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"boxgate/api"
	"boxgate/e2e/harness"
	"boxgate/internal/nightly"
	"boxgate/internal/testnet"
)

// snapshotView is the API's description of a snapshot.
type snapshotView struct {
	ID, Name, Status, Error string
	BoxID                   string `json:"box_id"`
	SizeBytes               int64  `json:"size_bytes"`
}

// takeSnapshot takes a snapshot of a box, which must be ready.
func takeSnapshot(w *harness.World, box, name string) snapshotView {
	w.T.Helper()
	var s snapshotView
	if err := w.Client.Do(w.T.Context(), "POST", api.BoxPath(box)+"/snapshots", map[string]any{"name": name}, &s); err != nil {
		w.T.Fatal(err)
	}
	for s.Status == "creating" {
		s = snapshotsOf(w, box)[s.ID]
	}
	if s.Status != "ready" || s.BoxID != box || s.Name != name {
		w.T.Fatalf("%+v", s)
	}
	return s
}

func snapshotsOf(w *harness.World, box string) map[string]snapshotView {
	w.T.Helper()
	var list struct{ Snapshots []snapshotView }
	if err := w.Client.Get(w.T.Context(), api.BoxPath(box)+"/snapshots", &list); err != nil {
		w.T.Fatal(err)
	}
	found := map[string]snapshotView{}
	for _, s := range list.Snapshots {
		found[s.ID] = s
	}
	return found
}

// fromSnapshot creates a box from a snapshot.
func fromSnapshot(w *harness.World, id string, body map[string]any) string {
	w.T.Helper()
	all := map[string]any{"snapshot_id": id}
	for k, v := range body {
		all[k] = v
	}
	var box struct{ ID string }
	if err := w.Client.Do(w.T.Context(), "POST", "/v2/box/from-snapshot", all, &box); err != nil {
		w.T.Fatal(err)
	}
	w.T.Cleanup(func() { _ = w.Client.Do(w.T.Context(), "DELETE", api.BoxPath(box.ID), nil, nil) })
	return box.ID
}

// layers lists the layers on disk.
func layers(w *harness.World) []string {
	w.T.Helper()
	found, err := filepath.Glob(filepath.Join(w.Dir, "state", "layers", "*"))
	if err != nil {
		w.T.Fatal(err)
	}
	return found
}

// TestBoxesFromSnapshots: files, variables and the policy are taken from the snapshot unless the request overrides
// them. Header rules, names and addresses are the new box's own. Layers are deleted with their last user.
func TestBoxesFromSnapshots(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	source := w.Create(map[string]any{
		"name": "source", "size": "medium", "network_policy": harness.Custom("api.example.com"), "env_vars": map[string]string{"KEPT": "old", "BOTH": "old"},
		"model": "a-model", "agent": "an-agent", "github_token": "gh-secret",
		"attach_headers": map[string]any{"api.example.com": map[string]string{"Authorization": "secret of the source"}},
	})
	w.MustSh(source, "echo before >state; mkdir -p data; head -c 3000000 /dev/urandom >data/blob")
	s := takeSnapshot(w, source, "first")
	if s.SizeBytes < 3_000_000 || s.SizeBytes > 20_000_000 {
		t.Errorf("%d bytes", s.SizeBytes)
	}
	w.MustSh(source, "echo after >state")
	w.MustDelete(source)

	same := fromSnapshot(w, s.ID, nil)
	other := fromSnapshot(w, s.ID, map[string]any{
		"name": "other", "size": "small", "network_policy": harness.Custom("api.example.com", "www.example.com"), "labels": []string{"fork"},
		"env_vars":       map[string]string{"BOTH": "new", "NEW": "new"},
		"attach_headers": map[string]any{"api.example.com": map[string]string{"Authorization": "secret of the other"}},
	})
	for box, want := range map[string]string{same: "before old old ", other: "before old new new"} {
		if got := w.MustSh(box, "echo $(cat state) $KEPT $BOTH $NEW"); strings.TrimSpace(got) != strings.TrimSpace(want) {
			t.Errorf("%q, not %q", got, want)
		}
	}
	var view struct {
		Size, Model, Agent, Name string
		NetworkPolicy            struct {
			AllowedDomains []string `json:"allowed_domains"`
		} `json:"network_policy"`
	}
	if err := w.Client.Get(t.Context(), api.BoxPath(same), &view); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(view) != "{medium a-model an-agent  {[api.example.com]}}" {
		t.Errorf("%+v", view)
	}
	if got := w.MustSh(other, "hostname"); strings.TrimSpace(got) != "other" {
		t.Errorf("it calls itself %q", got)
	}
	if _, code := w.Sh(same, "curl -sS -m 20 -o /dev/null https://www.example.com/"); code == 0 {
		t.Error("a policy was loosened by a snapshot")
	}
	// Header rules are not copied, and each box trusts its own CA where a rule applies.
	if got := sentKey(w, other); got != "secret of the other" {
		t.Errorf("it sends %q", got)
	}
	w.MustSh(same, "curl -k -sS -o /dev/null https://api.example.com/from-same")
	if seen := w.Net.Received("api.example.com", testnet.Path("/from-same")); len(seen) != 1 || seen[0].Header.Get("Authorization") != "" {
		t.Errorf("%d requests, %v", len(seen), seen)
	}
	again := takeSnapshot(w, other, "second")
	if again.SizeBytes < s.SizeBytes {
		t.Errorf("a snapshot over one of %d bytes has %d", s.SizeBytes, again.SizeBytes)
	}
	for _, id := range []string{s.ID, again.ID} {
		if err := w.Client.Do(t.Context(), "DELETE", "/v2/box/snapshots", map[string]any{"ids": []string{id}}, nil); err != nil {
			t.Error(err)
		}
	}
	w.MustSh(same, "cat data/blob >/dev/null")
	w.MustDelete(same)
	if len(layers(w)) != 1 {
		t.Errorf("%v", layers(w))
	}
	w.MustSh(other, "cat data/blob >/dev/null")
	w.MustDelete(other)
	if len(layers(w)) != 0 {
		t.Errorf("%v", layers(w))
	}
}

// TestManyBoxesOfOneSnapshot: boxes share the layer of their snapshot, and cannot see or change each other's files.
func TestManyBoxesOfOneSnapshot(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	source := w.Create(map[string]any{})
	w.MustSh(source, "echo 0 >number; mkdir shared; head -c 1000000 /dev/urandom >shared/blob; sha256sum shared/blob >sum")
	s := takeSnapshot(w, source, "fork")
	boxes := make([]string, nightly.Size(8, 20))
	var wg sync.WaitGroup
	slots := make(chan struct{}, 4)
	for i := range boxes {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			boxes[i] = fromSnapshot(w, s.ID, nil)
		})
	}
	wg.Wait()
	for i, box := range boxes {
		w.MustSh(box, fmt.Sprintf("sha256sum -c --quiet sum && test $(cat number) = 0 && echo %d >number && echo %d >>shared/blob", i+1, i))
	}
	for i, box := range boxes {
		if got := w.MustSh(box, "cat number"); strings.TrimSpace(got) != fmt.Sprint(i+1) {
			t.Errorf("box %d reads %q", i, got)
		}
	}
	if len(layers(w)) != 1 {
		t.Errorf("%v", layers(w))
	}
	w.MustSh(fromSnapshot(w, s.ID, nil), "sha256sum -c --quiet sum && test $(cat number) = 0")
}

// TestSnapshotsWhileBoxesComeAndGo: several concurrent snapshots of a box, of a paused one, of one that is being
// deleted, and a snapshot that is deleted while boxes are created from it. Failures give a reason and leave no traces.
func TestSnapshotsWhileBoxesComeAndGo(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{})
	w.MustSh(box, "for i in $(seq 700); do echo $i >f$i; done")
	if err := w.Client.Do(t.Context(), "POST", api.BoxPath(box)+"/pause", nil, nil); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 3 {
		wg.Go(func() { takeSnapshot(w, box, fmt.Sprint("paused", i)) })
	}
	wg.Wait()
	if status, _ := w.BoxStatus(box); status != "paused" {
		t.Errorf("the box is %s", status)
	}
	s := takeSnapshot(w, box, "last")
	for range 4 {
		wg.Go(func() {
			var made struct{ ID string }
			err := w.Client.Do(t.Context(), "POST", "/v2/box/from-snapshot", map[string]any{"snapshot_id": s.ID}, &made)
			if err == nil {
				w.MustSh(made.ID, "test $(cat f700) = 700")
				w.MustDelete(made.ID)
			} else if !strings.Contains(err.Error(), "there is no snapshot") {
				t.Error(err)
			}
		})
	}
	wg.Go(func() {
		if err := w.Client.Do(t.Context(), "DELETE", api.BoxPath(box)+"/snapshots/"+s.ID, nil, nil); err != nil {
			t.Error(err)
		}
	})
	wg.Wait()
	wg.Go(func() {
		var late snapshotView
		err := w.Client.Do(t.Context(), "POST", api.BoxPath(box)+"/snapshots", map[string]any{}, &late)
		if err == nil && late.Status == "error" && late.Error == "" {
			t.Errorf("%+v", late)
		}
	})
	wg.Go(func() { w.MustDelete(box) })
	wg.Wait()
	var gone struct{ Deleted int }
	if err := w.Client.Do(t.Context(), "DELETE", "/v2/box/snapshots", map[string]any{}, &gone); err != nil || gone.Deleted < 3 {
		t.Errorf("%d, %v", gone.Deleted, err)
	}
	if len(layers(w)) != 0 {
		t.Errorf("%v", layers(w))
	}
}

// TestSnapshotsSurviveARestart: snapshots survive a restart of the gateway, and unknown layers are removed.
func TestSnapshotsSurviveARestart(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{})
	w.MustSh(box, "echo kept >state")
	s := takeSnapshot(w, box, "kept")
	if err := os.Mkdir(filepath.Join(w.Dir, "state", "layers", "unknown.partial"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Stop(), w.Start(t.Context())); err != nil {
		t.Fatal(err)
	}
	if len(layers(w)) != 1 || snapshotsOf(w, box)[s.ID].Status != "ready" {
		t.Errorf("%v, %v", layers(w), snapshotsOf(w, box))
	}
	if got := w.MustSh(fromSnapshot(w, s.ID, nil), "cat state"); strings.TrimSpace(got) != "kept" {
		t.Errorf("%q", got)
	}
}
