package server

import (
	"net/http"
	"testing"

	"boxgate/api"
	"boxgate/policy"
)

// TestSnapshotsAreDeletedAsAsked: only a request without ids deletes all snapshots. An empty list, as from a program that
// found no snapshots, and a list with an unknown ID delete no snapshot.
func TestSnapshotsAreDeletedAsAsked(t *testing.T) {
	t.Parallel()
	f := serve(t)
	id := f.create(t, `{"name":"source"}`)
	for range 4 {
		if got := f.Call(t, "POST", "/v2/box/source/snapshots", `{"name":"after setup"}`); got.StatusCode != http.StatusCreated || got.JSON(t)["status"] != "ready" {
			t.Fatalf("%s: %s", got.Status, got.Text)
		}
	}
	for _, c := range []struct {
		path, body string
		status     int
		deleted    any
		left       int
	}{
		{"/v2/box/snapshots", `{"ids":[]}`, 422, nil, 4},
		{"/v2/box/snapshots", `{"ids":null}`, 422, nil, 4},
		{"/v2/box/snapshots", `{"id":"snap_0"}`, 422, nil, 4},
		{"/v2/box/snapshots", ``, 400, nil, 4},
		{"/v2/box/snapshots", `{"ids":["snap_0","snap_9"]}`, 404, nil, 4},
		{"/v2/box/source/snapshots/snap_9", ``, 404, nil, 4},
		{"/v2/box/nobody/snapshots/snap_0", ``, 404, nil, 4},
		{"/v2/box/snapshots", `{"ids":["snap_0","snap_0"]}`, 200, 1., 3},
		{"/v2/box/" + id + "/snapshots/snap_1", ``, 200, 1., 2},
		{"/v2/box/snapshots", `{}`, 200, 2., 0},
		{"/v2/box/snapshots", `{}`, 200, 0., 0},
	} {
		got := f.Call(t, "DELETE", c.path, c.body)
		if got.StatusCode != c.status || got.JSON(t)["deleted"] != c.deleted {
			t.Errorf("%s %s: %s: %s", c.path, c.body, got.Status, got.Text)
		}
		for _, list := range []string{"/v2/box/snapshots", "/v2/box/" + id + "/snapshots"} {
			if got := f.Call(t, "GET", list, ""); len(got.JSON(t)["snapshots"].([]any)) != c.left {
				t.Errorf("%s %s: %s: %s", c.path, c.body, list, got.Text)
			}
		}
	}
}

// TestSnapshotsOutliveTheirBoxInTheAPI: snapshots of a deleted box are found by the box's ID.
func TestSnapshotsOutliveTheirBoxInTheAPI(t *testing.T) {
	t.Parallel()
	f := serve(t)
	id := f.create(t, `{"name":"source"}`)
	for range 2 {
		f.Call(t, "POST", "/v2/box/"+id+"/snapshots", `{"name":"kept"}`)
	}
	f.Call(t, "DELETE", "/v2/box/"+id, "")
	if got := f.Call(t, "GET", "/v2/box/"+id+"/snapshots", ""); got.StatusCode != 200 || len(got.JSON(t)["snapshots"].([]any)) != 2 {
		t.Errorf("%s: %s", got.Status, got.Text)
	}
	if got := f.Call(t, "DELETE", "/v2/box/"+id+"/snapshots/snap_0", ""); got.StatusCode != 200 {
		t.Errorf("%s: %s", got.Status, got.Text)
	}
	if got := f.Call(t, "GET", "/v2/box/source/snapshots", ""); got.StatusCode != 404 {
		t.Errorf("%s: %s", got.Status, got.Text)
	}
}

// TestCreateFromSnapshotSaysWhatIsGiven: fields missing in the request are left to the snapshot.
func TestCreateFromSnapshotSaysWhatIsGiven(t *testing.T) {
	t.Parallel()
	f := serve(t)
	for body, status := range map[string]int{`{}`: 422, `{"snapshot_id":""}`: 422, `{"snapshot_id":"snap_0","size":"huge"}`: 422, `{"snapshot_id":"snap_0","agent_api_key":"sk-1"}`: 422} {
		if got := f.Call(t, "POST", "/v2/box/from-snapshot", body); got.StatusCode != status {
			t.Errorf("%s: %s: %s", body, got.Status, got.Text)
		}
	}
	f.Call(t, "POST", "/v2/box/from-snapshot", `{"snapshot_id":"snap_0"}`)
	f.Call(t, "POST", "/v2/box/from-snapshot", `{"snapshot_id":"snap_0","size":"small","network_policy":{"mode":"allow-all"},"ephemeral":true,"ttl":60}`)
	f.Call(t, "POST", "/v2/box", `{}`)
	f.Call(t, "POST", "/v2/box/from-snapshot", `{"snapshot_id":"snap_0","agent":"claude-code","agent_api_key":"sk-1"}`)
	if got := f.host.Created[3]; len(got.Headers) != 1 || got.Headers[0].Pattern.String() != "api.anthropic.com" || len(got.HostedSecrets) != 0 {
		t.Errorf("the key of an agent: %+v", got)
	}
	for i, want := range []api.CreateRequest{{Snapshot: "snap_0"}, {Snapshot: "snap_0", Size: "small", Ephemeral: true}, {Size: "small"}} {
		mode := policy.Mode("") // the host chooses between the snapshot's mode and the operator's default
		if i == 1 {
			mode = policy.ModeAllowAll
		}
		got := f.host.Created[i]
		if got.Snapshot != want.Snapshot || got.Size != want.Size || got.Ephemeral != want.Ephemeral || got.Policy.Mode != mode {
			t.Errorf("%d: %+v", i, got)
		}
	}
}
