package lifecycle

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"

	"filippo.io/age"

	"boxgate/api"
	"boxgate/e2e/harness"
	"boxgate/host/bucket/buckettest"
	"boxgate/internal/nightly"
)

// TestBoxFromSnapshotOfAnotherHost: a box is made on one gateway from a snapshot of another one, with its files, variables and policy, by the keys
// that see it; and a snapshot of that box goes back.
func TestBoxFromSnapshotOfAnotherHost(t *testing.T) {
	nightly.Root(t)
	t.Parallel()
	s := buckettest.Start(t)
	id, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	a, b := harness.NewSharing(t, s, id.String()), harness.NewSharing(t, s, id.String())
	source := a.Create(map[string]any{"name": "source", "network_policy": harness.Custom("api.example.com"), "env_vars": map[string]string{"KEPT": "old"}})
	a.MustSh(source, "echo before >state; ln state hard; ln -s /etc/passwd link; head -c 20000000 /dev/urandom >blob; sha256sum blob >sum")
	first := takeSnapshot(a, source, "first")
	a.MustDelete(source)

	made := fromSnapshot(b, first.ID, map[string]any{"name": "copy"})
	if got := b.MustSh(made, "sha256sum -c sum && cat state hard && echo $KEPT && readlink link && whoami"); !strings.Contains(got, "blob: OK\nbefore\nbefore\nold\n/etc/passwd\n") {
		t.Errorf("the box on the other host has %q", got)
	}
	if _, code := b.Sh(made, "curl -sS -m 20 -o /dev/null https://www.example.com/"); code == 0 {
		t.Error("a policy was loosened on the other host")
	}
	b.MustSh(made, "echo after >state")
	second := takeSnapshot(b, made, "second")
	back := fromSnapshot(a, second.ID, nil)
	if got := a.MustSh(back, "sha256sum -c sum && cat state"); !strings.Contains(got, "blob: OK\nafter\n") {
		t.Errorf("the box on the first host has %q", got)
	}
	var key struct{ Key string }
	if err := b.Client.Do(t.Context(), "POST", "/v2/api-keys", map[string]any{"name": "tenant", "role": "box-creator"}, &key); err != nil {
		t.Fatal(err)
	}
	tenant := api.NewClient(b.Socket, key.Key)
	var list struct{ Snapshots []snapshotView }
	if err := tenant.Get(t.Context(), "/v2/box/snapshots", &list); err != nil || len(list.Snapshots) != 0 {
		t.Errorf("another key sees %v: %v", list.Snapshots, err)
	}
	refused := (*api.ResponseError)(nil)
	if err := tenant.Do(t.Context(), "POST", "/v2/box/from-snapshot", map[string]any{"snapshot_id": first.ID}, nil); !errors.As(err, &refused) || refused.Status != http.StatusNotFound {
		t.Errorf("another key makes a box: %v", err)
	}
	if err := b.Client.Do(t.Context(), "DELETE", "/v2/box/snapshots", map[string]any{"ids": []string{first.ID}}, nil); err != nil {
		t.Error(err)
	}
	a.Until("the first host forgets the deleted snapshot", func() bool {
		var list struct{ Snapshots []snapshotView }
		err := a.Client.Get(t.Context(), "/v2/box/snapshots", &list)
		return err == nil && len(list.Snapshots) == 1 && list.Snapshots[0].ID == second.ID
	})
	s.Hang(t)
	a.Until("a list without an answer of the store says so", func() bool {
		resp, err := a.Client.Stream(t.Context(), "GET", "/v2/box/snapshots", "", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		err = json.NewDecoder(resp.Body).Decode(&list)
		return err == nil && len(list.Snapshots) == 1 && resp.Header.Get("Boxgate-Snapshot-Store") == "unreachable"
	})
}
