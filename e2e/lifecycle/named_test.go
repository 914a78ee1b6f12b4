package lifecycle

import (
	"errors"
	"net/http"
	"sync"
	"testing"

	"boxgate/api"
	"boxgate/e2e/harness"
)

const namedWeb = "/v2/box/settings/network-policies/web"

// web selects the named policy of these tests.
var web = map[string]any{"named": "web"}

// A change of a named policy also reaches boxes that are being created.
func TestNamedPolicyReachesBoxesBeingCreated(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	hosts := []string{"api.example.com", "www.example.com"}
	putConfig(w, namedWeb, harness.Custom(hosts[0]))
	for round := range 4 {
		var wg sync.WaitGroup
		ids := make([]string, 3)
		for i := range ids {
			wg.Go(func() { ids[i] = w.Create(map[string]any{"network_policy": web}) })
		}
		open, closed := hosts[(round+1)%2], hosts[round%2]
		putConfig(w, namedWeb, harness.Custom(open))
		wg.Wait()
		for _, id := range ids {
			w.MustSh(id, "curl -k -sS -m 60 -o /dev/null https://"+open+"/")
			if out, code := w.Sh(id, "curl -k -sS -m 60 -o /dev/null https://"+closed+"/"); code != 35 {
				t.Errorf("the change had been answered, and of box %s %s is closed: %d %s", id, closed, code, out)
			}
			w.MustDelete(id)
		}
	}
}

// When a change of a named policy denies a destination, connections to it are cut in every box that follows the policy,
// also in a replaced process that drains them. Allowed connections continue.
func TestNamedPolicyCutsWhereItDrains(t *testing.T) {
	t.Parallel()
	u := newUpgrading(t, nil)
	u.StartIfStopped()
	putConfig(u.World, namedWeb, harness.Custom("api.example.com", "www.example.com"))
	var cut []chan int
	var kept []func() int64
	for _, g := range attachGuests(t, u.World, 2) {
		putConfig(u.World, api.BoxPath(g.id, "config/network-policy"), web)
		_, ended := u.stream(g, "https://www.example.com/sse")
		size, _ := u.stream(g, "https://api.example.com/sse")
		cut, kept = append(cut, ended), append(kept, size)
	}
	u.mustReplace("upgrade")
	for _, size := range kept {
		u.goesOn("a stream", size)
	}
	putConfig(u.World, namedWeb, harness.Custom("api.example.com"))
	for i := range cut {
		u.Until("the stream that is denied now is cut", func() bool { return len(cut[i]) == 1 })
		u.goesOn("the stream that is allowed", kept[i])
	}
}

// A box from a snapshot of a box that followed a named policy follows the current version of it. If the policy is gone,
// the request must contain a policy.
func TestBoxesFromSnapshotsFollowNamedPolicies(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	putConfig(w, namedWeb, harness.Custom("api.example.com", "www.example.com"))
	source := w.Create(map[string]any{"network_policy": web})
	snapshot := takeSnapshot(w, source, "follows").ID
	w.MustDelete(source)
	putConfig(w, namedWeb, harness.Custom("api.example.com"))
	box := fromSnapshot(w, snapshot, nil)
	w.MustSh(box, "curl -k -sS -m 60 -o /dev/null https://api.example.com/")
	if out, code := w.Sh(box, "curl -k -sS -m 60 -o /dev/null https://www.example.com/"); code != 35 {
		t.Errorf("what was closed since the snapshot was taken: %d %s", code, out)
	}
	putConfig(w, namedWeb, map[string]any{"mode": "deny-all"})
	if out, code := w.Sh(box, "curl -k -sS -m 60 -o /dev/null https://api.example.com/"); code != 35 {
		t.Errorf("the box does not follow: %d %s", code, out)
	}
	w.MustDelete(box)
	if err := w.Client.Do(t.Context(), http.MethodDelete, namedWeb, nil, nil); err != nil {
		t.Fatal(err)
	}
	err := w.Client.Do(t.Context(), http.MethodPost, "/v2/box/from-snapshot", map[string]any{"snapshot_id": snapshot}, nil)
	if r, ok := errors.AsType[*api.ResponseError](err); !ok || r.Status != http.StatusUnprocessableEntity || r.Pointer != "/network_policy/named" {
		t.Errorf("its policy is gone: %v", err)
	}
	own := fromSnapshot(w, snapshot, map[string]any{"network_policy": harness.Custom("api.example.com")})
	w.MustSh(own, "curl -k -sS -m 60 -o /dev/null https://api.example.com/")
}
