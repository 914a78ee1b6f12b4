package server

import (
	"bufio"
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/api/access"
	"boxgate/api/rest"
	"boxgate/api/stream"
	"boxgate/policy"
)

// with makes a request come with another key.
func with(key string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set("X-Box-Api-Key", key) }
}

// key makes an API key through the API and returns it.
func (f *fixture) key(t testing.TB, body string) string {
	t.Helper()
	got := f.call(t, "POST", "/v2/api-keys", body)
	key, _ := got.json(t)["key"].(string)
	if got.StatusCode != 201 || key == "" {
		t.Fatalf("%s %s", got.Status, got.text)
	}
	return key
}

// The table of who may call what has every endpoint, and no other: a new endpoint without an entry is refused to all.
func TestEveryRouteHasItsRoles(t *testing.T) {
	t.Parallel()
	var ids []string
	for _, rt := range serve(t).api.routes {
		if !rt.Public {
			ids = append(ids, rt.ID)
		}
		if mutates := rt.Method != "GET" && rt.ID != "explainDecision" || rt.ID == "openSession" || rt.ID == "backupStore"; !rt.Public && mutates != access.Changes(rt.ID) {
			t.Errorf("%s %s: the audit trail has it: %v", rt.Method, rt.Path, access.Changes(rt.ID))
		}
	}
	slices.Sort(ids)
	if table := access.Routes(); !slices.Equal(ids, table) {
		t.Errorf("endpoints %v\nin the table %v", ids, table)
	}
	r, err := http.NewRequest("GET", "/", nil)
	if err != nil {
		t.Fatal(err)
	}
	r = r.WithContext(api.WithCaller(r.Context(), api.Caller{Role: api.RoleAdmin}))
	if access.Permit(r, "newEndpoint", nil) == nil {
		t.Error("an endpoint that is not in the table is permitted")
	}
}

// mayCall says by itself, and not by the table, what roles may call. What is not here needs an admin key.
var mayCall = map[api.Role]func(rt rest.Route) bool{
	api.RoleAdmin: func(rest.Route) bool { return true },
	api.RoleReader: func(rt rest.Route) bool {
		return slices.Contains(strings.Fields(`getDescription listBoxes getBox getBoxStatus getPolicy getLeases getHeaders getGlobalHeaders listBoxDecisions
			listDecisions searchBoxDecisions searchDecisions explainDecision listUrls listBoxSnapshots listSnapshots getEnvironment getStatus getBoxCa getCa listSecrets listNamedPolicies getNamedPolicy`), rt.ID)
	},
	api.RoleBox: func(rt rest.Route) bool {
		if slices.Contains([]string{"getDescription", "listBoxes", "deleteBoxes", "getCa"}, rt.ID) {
			return true
		}
		return strings.HasPrefix(rt.Path, "/v2/box/{id}") && rt.ID != "reattachBox" && rt.ID != "detachBox" && rt.ID != "setSource"
	},
	api.RoleCreator: func(rt rest.Route) bool {
		return slices.Contains([]string{"createBox", "createBoxFromSnapshot", "listNamedPolicies", "getNamedPolicy"}, rt.ID)
	},
	"":      func(rest.Route) bool { return false },
	"owner": func(rest.Route) bool { return false },
}

// TestRolesByEveryRoute calls every endpoint with a key of every role, and of roles that there are not.
func TestRolesByEveryRoute(t *testing.T) {
	t.Parallel()
	own := mayCall[api.RoleBox]
	for role, may := range mayCall {
		if role == api.RoleCreator {
			creates := may
			may = func(rt rest.Route) bool { return own(rt) || creates(rt) }
		}
		f := serve(t)
		f.create(t, `{}`)
		f.host.mu.Lock()
		f.host.boxes["box1"].CreatedBy = "key_x"
		f.host.keys = map[string]api.Key{"k": {Caller: api.Caller{Key: "key_x", Name: "x", Role: role, Box: "box1"}}}
		f.host.mu.Unlock()
		for _, rt := range f.api.routes {
			if rt.Public || rt.ID == "openSession" && may(rt) || strings.HasPrefix(rt.ID, "stream") && may(rt) {
				continue
			}
			path := pathTo(rt, "box1")
			got := f.call(t, rt.Method, path, "", with("k"))
			refused := got.StatusCode == http.StatusForbidden && strings.Contains(got.text, "role")
			if refused == may(rt) {
				t.Errorf("role %q: %s %s: %s %s", role, rt.Method, rt.Path, got.Status, got.text)
			}
			f.host.mu.Lock()
			if f.host.boxes["box1"] == nil {
				f.host.boxes["box1"] = &memoryBox{Box: api.Box{ID: "box1", CreatedBy: "key_x"}, urls: map[uint16]api.URL{}}
			}
			f.host.mu.Unlock()
		}
	}
}

func pathTo(rt rest.Route, box string) string {
	return strings.NewReplacer("{id}", box, "{port}", "80", "{run}", "none", "{key}", "NAME", "{label}", "none", "{schedule}", "none", "{api_key}", "none",
		"{owner}", "o", "{repository}", "r", "{skill}", "s", "{snapshot}", "none", "{name}", "none").Replace(rt.Path)
}

// TestBoxesOfOthersAreNotThere: keys of one box, and keys that create boxes, do not see others by any endpoint, neither by ID
// nor by name nor by a path that is written in another way.
func TestBoxesOfOthersAreNotThere(t *testing.T) {
	t.Parallel()
	f := serve(t)
	f.create(t, `{"name":"mine"}`)           // box1
	other := f.create(t, `{"name":"other"}`) // box2
	keys := []string{f.key(t, `{"name":"one","role":"one-box","box":"mine"}`), f.key(t, `{"name":"ci","role":"box-creator"}`)}
	spelled := []string{other, "other", "..%2f" + other, "box1%2f..%2f" + other, "box1/../" + other, ".%2e/box/" + other, "%6fther", other + "%00", "box1%00" + other}
	for _, key := range keys {
		for _, rt := range f.api.routes {
			if !strings.Contains(rt.Path, "{id}") || rt.ID == "reattachBox" || rt.ID == "detachBox" || rt.ID == "setSource" {
				continue
			}
			for _, box := range spelled {
				for _, query := range []string{"", "?id=" + other, "?id=box1"} {
					got := f.call(t, rt.Method, pathTo(rt, box)+query, "", with(key))
					if got.StatusCode != http.StatusNotFound && got.StatusCode != http.StatusMethodNotAllowed {
						t.Errorf("%s %s%s: %s %s", rt.Method, pathTo(rt, box), query, got.Status, got.text)
					}
				}
			}
		}
		for _, body := range []string{`{"ids":["other"]}`, `{"ids":["mine","box2"]}`} {
			if got := f.call(t, "DELETE", "/v2/box", body, with(key)); got.StatusCode != http.StatusNotFound {
				t.Errorf("%s: %s %s", body, got.Status, got.text)
			}
		}
		if got := f.call(t, "GET", "/v2/box", "", with(key)); strings.Contains(got.text, "other") || strings.Contains(got.text, other) {
			t.Error("the other box is listed", got.text)
		}
		same, none := f.call(t, "GET", "/v2/box/other", "", with(key)), f.call(t, "GET", "/v2/box/never", "", with(key))
		if strings.ReplaceAll(same.text, "other", "never") != none.text {
			t.Errorf("a box of others is told from none: %s %s", same.text, none.text)
		}
	}
	if n := len(f.host.execs); n != 0 || f.host.boxes["box2"] == nil || f.host.boxes["box1"] == nil {
		t.Error("something was done with a box of others:", n)
	}
	if got := f.call(t, "GET", "/v2/box/mine", "", with(keys[0])); got.StatusCode != 200 {
		t.Error("its own box:", got.Status, got.text)
	}
}

// TestAKeyDoesNotPassToTheNextBoxOfAName: a box that takes the name of a deleted one is another box.
func TestAKeyDoesNotPassToTheNextBoxOfAName(t *testing.T) {
	t.Parallel()
	f := serve(t)
	f.create(t, `{"name":"web"}`)
	one := f.key(t, `{"name":"one","role":"one-box","box":"web"}`)
	ci := f.key(t, `{"name":"ci","role":"box-creator"}`)
	if got := f.call(t, "POST", "/v2/box", `{"name":"job"}`, with(ci)); got.StatusCode != 201 || got.json(t)["created_by"] == "" {
		t.Fatal(got.Status, got.text)
	}
	for _, name := range []string{"web", "job"} {
		f.call(t, "DELETE", "/v2/box/"+name, "")
		f.create(t, `{"name":"`+name+`"}`)
		for _, key := range []string{one, ci} {
			if got := f.call(t, "POST", "/v2/box/"+name+"/exec", `{"command":["true"]}`, with(key)); got.StatusCode != http.StatusNotFound {
				t.Errorf("%s: %s %s", name, got.Status, got.text)
			}
		}
	}
	// Nor does a key pass to the next key of its name.
	f.call(t, "POST", "/v2/box", `{"name":"old"}`, with(ci))
	f.call(t, "DELETE", "/v2/api-keys/ci", "")
	if got := f.call(t, "GET", "/v2/box/old", "", with(ci)); got.StatusCode != http.StatusUnauthorized {
		t.Error("revoked:", got.Status)
	}
	f.host.mu.Lock()
	f.host.keys["unused"] = api.Key{} // so that IDs are not repeated, which those of the store never are
	f.host.mu.Unlock()
	if got := f.call(t, "GET", "/v2/box/old", "", with(f.key(t, `{"name":"ci","role":"box-creator"}`))); got.StatusCode != http.StatusNotFound {
		t.Error("a key of the same name:", got.Status)
	}
}

// swapping gives the name of a box to another one as soon as it was looked up.
type swapping struct{ *memoryHost }

func (h swapping) Box(ctx context.Context, idOrName string) (api.Box, error) {
	found, err := h.memoryHost.Box(ctx, idOrName)
	h.mu.Lock()
	defer h.mu.Unlock()
	if idOrName == "web" {
		h.boxes["box1"].Name, h.boxes["box2"].Name = "", "web"
	}
	return found, err
}

// TestANameThatMovesAfterItWasJudged: what was judged is what is used.
func TestANameThatMovesAfterItWasJudged(t *testing.T) {
	t.Parallel()
	f := serve(t, func(cfg *Config) { cfg.Host = swapping{cfg.Host.(*memoryHost)} })
	f.create(t, `{"name":"web"}`)
	f.create(t, `{"name":"next"}`)
	f.host.mu.Lock()
	f.host.keys = map[string]api.Key{"k": {Caller: api.Caller{Key: "key_1", Role: api.RoleBox, Box: "box1"}}}
	f.host.mu.Unlock()
	if got := f.call(t, "DELETE", "/v2/box/web", "", with("k")); got.StatusCode != 200 {
		t.Fatal(got.Status, got.text)
	}
	f.host.mu.Lock()
	defer f.host.mu.Unlock()
	if f.host.boxes["box2"] == nil || f.host.boxes["box1"] != nil {
		t.Error("the box that took the name was deleted in its place")
	}
}

// TestLimitedKeysReadNoSecrets: rules of theirs cannot name the operator's secrets nor send requests elsewhere, and read-only
// keys see no commands.
func TestLimitedKeysReadNoSecrets(t *testing.T) {
	t.Parallel()
	f := serve(t, func(cfg *Config) { cfg.HasSecret = func(name string) bool { return name == "openai" } })
	ci := f.key(t, `{"name":"ci","role":"box-creator"}`)
	named := `{"api.example.com":{"headers":{"Authorization":{"secret":"openai","prefix":"Bearer "}}}}`
	forward := `{"api.example.com":[{"match":{"methods":["POST"]},"forward_url":"https://proxy.example.net/x"}]}`
	if got := f.call(t, "POST", "/v2/box", `{"name":"theirs","custom_runner":{"command":"run","args":["--token=sk-arg"],"protocol":"box-sse-v1"},"agent":"custom"}`, with(ci)); got.StatusCode != 201 {
		t.Fatal(got.Status, got.text)
	}
	for _, rules := range []string{named, forward} {
		for _, c := range []struct{ method, path, body string }{
			{"POST", "/v2/box", `{"attach_headers":` + rules + `}`},
			{"PUT", "/v2/box/theirs/config/attach-headers", rules},
			{"PATCH", "/v2/box/theirs/config/attach-headers", rules},
		} {
			if got := f.call(t, c.method, c.path, c.body, with(ci)); got.StatusCode != 422 && got.StatusCode != 403 {
				t.Errorf("%s %s %s: %s %s", c.method, c.path, rules, got.Status, got.text)
			}
			if got := f.call(t, c.method, c.path, c.body); got.StatusCode >= 300 {
				t.Errorf("as admin: %s %s %s: %s %s", c.method, c.path, rules, got.Status, got.text)
			}
		}
	}
	for dialect, policy := range map[string]string{ // which know no secrets of the gateway: not for admins either
		"Vercel": `{"allow":{"attacker.example":[{"transform":[{"headers":{"X-Leak":{"secret":"openai"}}}]}]}}`,
		"E2B":    `{"denyOut":["0.0.0.0/0"],"allowOut":["attacker.example"],"rules":{"attacker.example":[{"transform":{"headers":{"X-Leak":{"secret":"openai"}}}}]}}`,
	} {
		for _, key := range []func(*http.Request){with(ci), nil} {
			var as []func(*http.Request)
			if key != nil {
				as = append(as, key)
			}
			if got := f.call(t, "POST", "/v2/box", `{"network_policy":`+policy+`}`, as...); got.StatusCode != 422 || !strings.Contains(got.text, "X-Leak") {
				t.Errorf("%s: %s %s", dialect, got.Status, got.text)
			}
		}
	}
	ro := f.key(t, `{"name":"ro","role":"read-only"}`)
	for _, path := range []string{"/v2/box/theirs", "/v2/box"} {
		if got := f.call(t, "GET", path, "", with(ro)); got.StatusCode != 200 || strings.Contains(got.text, "sk-arg") {
			t.Errorf("%s: %s %s", path, got.Status, got.text)
		}
	}
}

// TestSnapshotsOfOthersMakeNoBox: a key that creates boxes makes them from snapshots of its own boxes only.
func TestSnapshotsOfOthersMakeNoBox(t *testing.T) {
	t.Parallel()
	f := serve(t)
	ci := f.key(t, `{"name":"ci","role":"box-creator"}`)
	f.create(t, `{"name":"other"}`)
	f.call(t, "POST", "/v2/box", `{"name":"own"}`, with(ci))
	from := func(box string) answer {
		made := f.call(t, "POST", "/v2/box/"+box+"/snapshots", `{"name":"s"}`)
		id, _ := made.json(t)["id"].(string)
		return f.call(t, "POST", "/v2/box/from-snapshot", `{"snapshot_id":"`+id+`"}`, with(ci))
	}
	if got := from("other"); got.StatusCode != http.StatusNotFound {
		t.Error(got.Status, got.text)
	}
	if got := from("own"); got.StatusCode != http.StatusCreated {
		t.Error(got.Status, got.text)
	}
}

// TestAnExpiredKeyOnAnOpenStream: a stream ends when its key expires or is revoked, and the key opens no other.
func TestAnExpiredKeyOnAnOpenStream(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*fixture){
		"expires": func(f *fixture) {
			f.host.mu.Lock()
			defer f.host.mu.Unlock()
			for key, k := range f.host.keys {
				k.ExpiresAt = time.Now()
				f.host.keys[key] = k
			}
		},
		"is revoked": func(f *fixture) { f.call(t, "DELETE", "/v2/api-keys/one", "") },
		"gets another role": func(f *fixture) {
			f.host.mu.Lock()
			defer f.host.mu.Unlock()
			for key, k := range f.host.keys {
				k.Box = policy.BoxID("box9")
				f.host.keys[key] = k
			}
		},
	} {
		f := serve(t)
		f.create(t, `{}`)
		key := f.key(t, `{"name":"one","role":"one-box","box":"box1","expires_in":"1h"}`)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		for _, path := range []string{"/v2/box/box1/egress?follow=true"} {
			req, err := http.NewRequestWithContext(ctx, "GET", f.URL+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("X-Box-Api-Key", key)
			req.Header.Set("Accept", stream.NDJSON)
			res, err := f.Client().Do(req)
			if err != nil || res.StatusCode != 200 {
				t.Fatal(err, res)
			}
			end(f)
			for lines := bufio.NewScanner(res.Body); lines.Scan(); { // until it ends
			}
			res.Body.Close()
			if ctx.Err() != nil {
				t.Errorf("a stream goes on after its key %s", name)
			}
		}
		if got := f.call(t, "GET", "/v2/box/box1", "", with(key)); got.StatusCode == 200 {
			t.Errorf("a key that %s: %s", name, got.Status)
		}
	}
}

// TestKeysAreShownOnce: the key itself is in the answer to its making alone.
func TestKeysAreShownOnce(t *testing.T) {
	t.Parallel()
	f := serve(t)
	f.create(t, `{}`)
	key := f.key(t, `{"name":"one","role":"one-box","box":"box1"}`)
	if got := f.call(t, "GET", "/v2/api-keys", ""); strings.Contains(got.text, key) || !strings.Contains(got.text, `"box_id":"box1"`) {
		t.Error(got.text)
	}
	next := f.call(t, "POST", "/v2/api-keys/one/rotate", `{}`).json(t)["key"]
	if next == key || f.call(t, "GET", "/v2/box/box1", "", with(key)).StatusCode != 401 {
		t.Error("the replaced key works")
	}
	for _, bad := range []string{
		`{"name":"x"}`, `{"name":"x","role":"root"}`, `{"name":"","role":"admin"}`, `{"name":"x","role":"one-box"}`, `{"name":"x","role":"admin","box":"box1"}`,
		`{"name":"x","role":"admin","expires_in":"-1h"}`, `{"name":"x","role":"admin","expires_in":"0s"}`, `{"name":"x","role":"admin","expires_in":"90 days"}`,
	} {
		if got := f.call(t, "POST", "/v2/api-keys", bad); got.StatusCode != 422 {
			t.Errorf("%s: %s %s", bad, got.Status, got.text)
		}
	}
	if got := f.call(t, "POST", "/v2/api-keys", `{"name":"x","role":"one-box","box":"never"}`); got.StatusCode != 404 {
		t.Error(got.Status, got.text)
	}
}
