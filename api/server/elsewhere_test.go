package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/api/access"
	"boxgate/api/apitest"
	"boxgate/api/elsewhere"
	"boxgate/api/problem"
	"boxgate/api/snapshots"
	"boxgate/policy"
)

// fleetOf are the other hosts of a fleet: APIs in this process. The host of the test has the ID aaaaaa.
type fleetOf struct {
	hosts  map[string]*fixture
	place  []string
	silent map[string]bool   // hosts that do not answer calls to several hosts
	cut    map[string]bool   // hosts that cannot be dialled
	lost   map[string]bool   // hosts whose answers are lost
	full   map[string]int    // status of hosts that take no box
	fails  map[string]bool   // hosts that fail to delete
	lies   map[string]string // answers of hosts that delete nothing
}

// Owner implements [elsewhere.Hosts].
func (f *fleetOf) Owner(_ context.Context, idOrName string) (string, error) {
	if access.LooksLikeID(idOrName) {
		switch host := idOrName[:6]; {
		case host == "aaaaaa":
			return "", nil
		case f.hosts[host] == nil:
			return "", problem.Unreachable(host, "is not known")
		default:
			return host, nil
		}
	}
	for id, h := range f.hosts {
		for _, b := range h.host.ByID {
			if b.Name == idOrName {
				return id, nil
			}
		}
	}
	return "", nil
}

// Forward implements [Elsewhere].
func (f *fleetOf) Forward(w http.ResponseWriter, r *http.Request, host string, fail func(error)) {
	switch {
	case f.cut[host]:
		fail(problem.Unreachable(host, "does not answer"))
		return
	case f.lost[host]:
		_, _ = io.Copy(io.Discard, r.Body)
		fail(problem.Unreachable(host, "does not answer"))
		return
	case f.full[host] != 0:
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Of-The-Refusal", "yes")
		w.WriteHeader(f.full[host])
		fmt.Fprint(w, `{"error":"takes no box"}`)
		_ = http.NewResponseController(w).Flush() // as a proxy does
		return
	}
	there := r.Clone(r.Context())
	there.Header.Set(access.PeerHeader, "aaaaaa")
	f.hosts[host].api.ServeHTTP(w, there)
}

// Place implements [Elsewhere].
func (f *fleetOf) Place(context.Context) ([]string, error) {
	if len(f.place) == 0 {
		return nil, api.Errorf(api.ErrUnavailable, "no host takes new boxes")
	}
	return slices.Clone(f.place), nil
}

// Ask implements [elsewhere.Hosts].
func (f *fleetOf) Ask(ctx context.Context, c elsewhere.Call) (answers []elsewhere.Answer) {
	key, ok := access.ShownKey(ctx)
	if !ok {
		return nil
	}
	ids := slices.Sorted(maps.Keys(f.hosts))
	if c.Bodies != nil {
		ids = slices.Sorted(maps.Keys(c.Bodies))
	}
	for _, id := range ids {
		if f.silent[id] || f.fails[id] && c.Method == http.MethodDelete {
			answers = append(answers, elsewhere.Answer{Host: id, Err: errors.New("no answer")})
			continue
		}
		if text := f.lies[id]; text != "" && c.Method == http.MethodDelete {
			answers = append(answers, elsewhere.Answer{Host: id, Status: http.StatusOK, Body: []byte(text)})
			continue
		}
		r := httptest.NewRequestWithContext(ctx, c.Method, c.Path+"?"+c.Query, bytes.NewReader(c.Bodies[id]))
		r.Host, r.Header = "localhost", key.Clone()
		r.Header.Set(access.PeerHeader, "aaaaaa")
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		f.hosts[id].api.ServeHTTP(w, r)
		answers = append(answers, elsewhere.Answer{Host: id, Status: w.Code, Body: w.Body.Bytes()})
	}
	return answers
}

// Listed implements [elsewhere.Hosts].
func (f *fleetOf) Listed(_ context.Context, host string) (list []api.Box) {
	for id, b := range f.hosts[host].host.ByID {
		list = append(list, api.Box{ID: id, Name: b.Name})
	}
	return list
}

// ofFleet is the API of host aaaaaa with the hosts bbbbbb and cccccc. Its key is one of the fleet.
func ofFleet(t *testing.T, edits ...func(*Config)) (*fixture, *fleetOf) {
	t.Helper()
	f := &fleetOf{hosts: map[string]*fixture{"bbbbbb": serve(t), "cccccc": serve(t)}, silent: map[string]bool{}, cut: map[string]bool{}, lost: map[string]bool{}, full: map[string]int{}, fails: map[string]bool{}}
	return serve(t, append([]func(*Config){func(c *Config) {
		c.Elsewhere = f
		find := c.FindKey
		c.FindKey = func(key string) (api.Caller, bool) {
			caller, ok := find(key)
			caller.Fleet = true
			return caller, ok
		}
	}}, edits...)...), f
}

// with adds a box to a host.
func (f *fixture) with(id, boxName string) string {
	f.host.ByID[policy.BoxID(id)] = &apitest.Box{Box: api.Box{ID: policy.BoxID(id), Name: boxName, Status: api.StatusIdle}}
	return id
}

// TestDeletionOfBoxesOfSeveralHosts: each host deletes its own. With an unknown box, or a host that does not answer, none is deleted; if a host
// fails later, the answer names its boxes.
func TestDeletionOfBoxesOfSeveralHosts(t *testing.T) {
	t.Parallel()
	a, f := ofFleet(t)
	b, c := f.hosts["bbbbbb"], f.hosts["cccccc"]
	own, near, far := a.with("aaaaaa0000000001", ""), b.with("bbbbbb0000000001", "web"), c.with("cccccc0000000001", "")
	left := func() int { return len(a.host.ByID) + len(b.host.ByID) + len(c.host.ByID) }
	try := func(want, boxes int, sentence string, ids ...string) {
		t.Helper()
		got := a.Call(t, "DELETE", "/v2/box", `{"ids":["`+strings.Join(ids, `","`)+`"]}`)
		if got.StatusCode != want || !strings.Contains(got.Text, sentence) || left() != boxes {
			t.Errorf("%v: %s %s, %d boxes are left", ids, got.Status, got.Text, left())
		}
	}
	try(404, 3, `no box has the ID or name \"none\", \"bbbbbb9999999999\"`, own, "web", "none", "bbbbbb9999999999")
	f.silent["cccccc"] = true
	try(503, 3, problem.HostUnreachable, own, near, far)
	f.silent["cccccc"] = false
	f.fails["cccccc"] = true
	try(503, 2, "Deleted: 1 boxes of other hosts. Not deleted: boxes of the host that was asked. Perhaps not deleted: "+far, own, near, far)
	f.fails["cccccc"] = false
	b.with(near, "web")
	for _, ids := range []string{`"` + own + `"`, `"` + far + `","` + far + `"`, `"` + strings.Repeat("c", 1<<10) + `"`, `"cccccc\n000000001"`} { // not its own, or more than it was asked for
		f.lies = map[string]string{"cccccc": `{"deleted":[` + ids + `]}`}
		try(503, 3, "as this version expects", own, far)
	}
	f.lies = nil
	try(200, 0, `"deleted":["`+own+`","`+near+`","`+far+`"]`, own, "web", far)
	a.with(own, "")
	got := a.Call(t, "DELETE", "/v2/box", `{"ids":["`+own+`","`+b.with(near, "")+`"]}`, func(r *http.Request) { r.Header.Set(access.PeerHeader, "dddddd") })
	if got.StatusCode != 404 || left() != 2 {
		t.Errorf("a call that came from another host: %s %s", got.Status, got.Text)
	}
}

// TestSnapshotsOfSeveralHosts: they are listed, deleted, and used for new boxes, wherever they are. Shared ones, which each host has, are
// listed once.
func TestSnapshotsOfSeveralHosts(t *testing.T) {
	t.Parallel()
	a, f := ofFleet(t)
	b, c := f.hosts["bbbbbb"], f.hosts["cccccc"]
	const ofA, ofB, shared = "snap_aaaaaa0000000000000001", "snap_bbbbbb0000000000000001", "snap_cccccc0000000000000001"
	for host, ids := range map[*fixture][]string{a: {ofA, shared}, b: {ofB}, c: {shared}} {
		for _, id := range ids {
			host.host.Taken = append(host.host.Taken, api.Snapshot{ID: id, Status: "ready"})
		}
	}
	if text := a.Call(t, "GET", "/v2/box/snapshots", "").Text; strings.Count(text, `"id":`) != 3 {
		t.Errorf("%s", text)
	}
	made := func(id string, on *fixture) {
		t.Helper()
		before := len(on.host.Created)
		if got := a.Call(t, "POST", "/v2/box/from-snapshot", `{"snapshot_id":"`+id+`"}`); got.StatusCode != 201 || len(on.host.Created) != before+1 {
			t.Errorf("%s: %s %s", id, got.Status, got.Text)
		}
	}
	made(ofA, a)
	made(ofB, b)
	made(shared, a)
	for body, want := range map[string]int{`{"ids":["` + ofB + `","snap_none"]}`: 404, `{"ids":[]}`: 422} {
		if got := a.Call(t, "DELETE", "/v2/box/snapshots", body); got.StatusCode != want || len(b.host.Taken) != 1 {
			t.Errorf("%s: %s %s", body, got.Status, got.Text)
		}
	}
	f.silent["bbbbbb"] = true
	if got := a.Call(t, "GET", "/v2/box/snapshots", ""); got.Header.Get(elsewhere.SilentHeader) != "bbbbbb" || strings.Count(got.Text, `"id":`) != 2 {
		t.Errorf("a host is silent: %v %s", got.Header, got.Text)
	}
	for _, body := range []string{"{}", `{"ids":["` + ofB + `"]}`} {
		if got := a.Call(t, "DELETE", "/v2/box/snapshots", body); got.StatusCode != 503 || len(a.host.Taken) != 2 {
			t.Errorf("%s, and a host is silent: %s %s", body, got.Status, got.Text)
		}
	}
	f.silent["bbbbbb"] = false
	if got := a.Call(t, "DELETE", "/v2/box/snapshots", "{}"); got.Text != `{"deleted":3}`+"\n" && got.Text != `{"deleted":3}` || len(a.host.Taken)+len(b.host.Taken) != 0 {
		t.Errorf("%s %s", got.Status, got.Text)
	}
}

// awayAtLast are snapshots that cannot be deleted.
type awayAtLast struct{ snapshots.Host }

func (awayAtLast) DeleteSnapshots(context.Context, []string) error {
	return api.Errorf(api.ErrUnavailable, "the store is away")
}

// TestDeletionOfSnapshotsThatFailsAtLast: if this host fails when the others have deleted their snapshots, the answer tells how many are gone.
func TestDeletionOfSnapshotsThatFailsAtLast(t *testing.T) {
	t.Parallel()
	a, f := ofFleet(t, func(c *Config) { c.Snapshots = awayAtLast{c.Snapshots} })
	b := f.hosts["bbbbbb"]
	const ofA, ofB = "snap_aaaaaa0000000000000001", "snap_bbbbbb0000000000000001"
	a.host.Taken, b.host.Taken = []api.Snapshot{{ID: ofA, Status: "ready"}}, []api.Snapshot{{ID: ofB, Status: "ready"}}
	got := a.Call(t, "DELETE", "/v2/box/snapshots", `{"ids":["`+ofA+`","`+ofB+`"]}`)
	if got.StatusCode != 503 || !strings.Contains(got.Text, "Deleted: 1 snapshots of other hosts") || !strings.Contains(got.Text, "the store is away") || len(b.host.Taken) != 0 {
		t.Errorf("%s %s", got.Status, got.Text)
	}
}

// TestPlacementOfBoxes: a box is made on the first host that takes it, if the client or the configuration asks for that. It is never made
// twice: a host whose answer is lost may have made it.
func TestPlacementOfBoxes(t *testing.T) {
	t.Parallel()
	a, f := ofFleet(t, func(c *Config) { c.Spread = true })
	on := func(want *fixture, status int, path string, edit ...func(*http.Request)) {
		t.Helper()
		var before, after []int
		all := []*fixture{a, f.hosts["bbbbbb"], f.hosts["cccccc"]}
		for _, h := range all {
			before = append(before, len(h.host.Created))
		}
		got := a.Call(t, "POST", path, `{"name":""}`, edit...)
		for i, h := range all {
			made := len(h.host.Created) - before[i]
			after = append(after, made)
			if made != 0 && h != want || made != 1 && h == want {
				t.Errorf("%s: %d boxes on host %d", path, made, i)
			}
		}
		if got.StatusCode != status || status == 201 && (got.Header.Get("Of-The-Refusal") != "" || strings.Contains(got.Text, "takes no box")) {
			t.Errorf("%s: %s %s %v", path, got.Status, got.Text, after)
		}
	}
	const plain, here, spread = "/v2/box", "/v2/box?placement=here", "/v2/box?placement=spread"
	b, c := f.hosts["bbbbbb"], f.hosts["cccccc"]
	f.place = []string{"bbbbbb", "cccccc"}
	on(b, 201, plain)
	on(b, 201, spread)
	on(a, 201, here)
	on(nil, 422, "/v2/box?placement=x")
	on(a, 201, plain, func(r *http.Request) { r.Header.Set(access.PeerHeader, "dddddd") })
	for _, status := range []int{503, 507} {
		f.full["bbbbbb"] = status
		on(c, 201, plain)
	}
	f.full["bbbbbb"] = 409 // a name is taken
	on(nil, 409, plain)
	f.full["bbbbbb"], f.cut["bbbbbb"] = 0, true
	on(c, 201, spread)
	f.full["cccccc"] = 507
	on(nil, 507, spread) // the last one's refusal
	f.cut["bbbbbb"], f.lost["bbbbbb"], f.full["cccccc"] = false, true, 0
	on(nil, 503, spread)
	f.lost["bbbbbb"], f.full["bbbbbb"] = false, 503
	f.place = []string{"bbbbbb", ""}
	on(a, 201, plain)
	f.place = nil
	on(a, 201, plain)
	on(nil, 503, spread)
}

// TestBoxIsMadeOnceWithoutTheTrail: a host that has made the box, and cannot record that, answers 503. No other host makes another one.
func TestBoxIsMadeOnceWithoutTheTrail(t *testing.T) {
	t.Parallel()
	a, f := ofFleet(t, func(c *Config) { c.Spread = true })
	b := serve(t, func(c *Config) { c.Trail = &noTrail{left: 1} }) // the call but not its outcome
	f.hosts["bbbbbb"], f.place = b, []string{"bbbbbb", "cccccc", ""}
	got := a.Call(t, "POST", "/v2/box", `{}`)
	if made := len(b.host.Created) + len(f.hosts["cccccc"].host.Created) + len(a.host.Created); made != 1 || got.StatusCode != 503 || !strings.Contains(got.Text, "was carried out") {
		t.Errorf("%d boxes were made: %s %s", made, got.Status, got.Text)
	}
	// The next call is refused before anything is made.
	if got := a.Call(t, "POST", "/v2/box", `{}`); got.StatusCode != 201 || len(f.hosts["cccccc"].host.Created) != 1 {
		t.Errorf("%s %s", got.Status, got.Text)
	}
}

// TestPlacementByTheConfiguration: keys of one host, which the others do not know, make boxes there.
func TestPlacementByTheConfiguration(t *testing.T) {
	t.Parallel()
	a, f := ofFleet(t, func(c *Config) {
		c.Spread, c.FindKey = true, apitest.NewHost(t).FindKey
	})
	f.place = []string{"bbbbbb"}
	a.create(t, `{}`)
	if len(a.host.Created) != 1 {
		t.Error("the box was made elsewhere")
	}
}
