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
	"boxgate/api/apitest"
	"boxgate/api/rest"
	"boxgate/api/stream"
	"boxgate/policy"
	"boxgate/policy/name"
)

// key creates an API key through the API and returns it.
func (f *fixture) key(t testing.TB, body string) string {
	t.Helper()
	got := f.Call(t, "POST", "/v2/api-keys", body)
	key, _ := got.JSON(t)["key"].(string)
	if got.StatusCode != 201 || key == "" {
		t.Fatalf("%s %s", got.Status, got.Text)
	}
	return key
}

// The table of roles contains exactly the existing endpoints. An endpoint without an entry is refused for every key.
func TestEveryRouteHasItsRoles(t *testing.T) {
	t.Parallel()
	var ids []string
	for _, rt := range serve(t).api.routes {
		if !rt.Public {
			ids = append(ids, rt.ID)
		}
		if mutates := rt.Method != "GET" && rt.ID != "explainDecision" && rt.ID != "replayPolicy" || rt.ID == "openSession" || rt.ID == "backupStore"; !rt.Public && mutates != access.Changes(rt.ID) {
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
	if access.Permit(r, "newEndpoint", nil, nil) == nil {
		t.Error("an endpoint that is not in the table is permitted")
	}
}

// TestFilesNeedThePermissionOfCommands: whoever may use a route for files, which may name root as its user, may run commands as root too.
func TestFilesNeedThePermissionOfCommands(t *testing.T) {
	t.Parallel()
	may := func(role api.Role, route string) bool {
		r := (&http.Request{}).WithContext(api.WithCaller(t.Context(), api.Caller{Role: role}))
		return access.Permit(r, route, nil, nil) == nil
	}
	found := 0
	for _, rt := range serve(t).api.routes {
		if !strings.HasPrefix(rt.Path, "/v2/box/{id}/files/") {
			continue
		}
		found++
		for role := range mayCall {
			if may(role, rt.ID) && !may(role, "runCommand") {
				t.Errorf("%s may call %s, but run no command", role, rt.ID)
			}
		}
		if may(api.RoleReader, rt.ID) || !may(api.RoleAdmin, rt.ID) {
			t.Errorf("%s is permitted to the wrong roles", rt.ID)
		}
	}
	if found < 12 {
		t.Errorf("%d routes for files", found)
	}
}

// mayCall defines the permissions of roles independently of the table. Endpoints missing here need an admin key.
var mayCall = map[api.Role]func(rt rest.Route) bool{
	api.RoleAdmin: func(rest.Route) bool { return true },
	api.RoleReader: func(rt rest.Route) bool {
		return slices.Contains(strings.Fields(`getDescription listBoxes getBox getBoxStatus listUsageSamples getLimits getPolicy getNetwork getLeases getEnforcement getHeaders getGlobalHeaders listBoxDecisions
			listObservations listPastObservations listDecisions listActivity searchBoxDecisions searchDecisions explainDecision replayPolicy learnPolicy listPolicyVersions getPolicyVersion listUrls getPorts listBoxSnapshots listSnapshots getEnvironment getStatus getFleet getBoxCa getCa listSecrets listKeySecrets getKeySecret getModelUsage listNamedPolicies getNamedPolicy
			listApprovals listBoxApprovals getApproval getAsking`), rt.ID)
	},
	api.RoleAuditor: func(rt rest.Route) bool {
		return slices.Contains(strings.Fields(`getDescription listBoxDecisions listObservations listPastObservations listDecisions listActivity searchBoxDecisions searchDecisions listTrail verifyTrail
			getReport listSecretUses listPolicyVersions getPolicyVersion`), rt.ID)
	},
	api.RoleBox: func(rt rest.Route) bool {
		if slices.Contains([]string{"getDescription", "listBoxes", "deleteBoxes", "getCa", "listApprovals", "listActivity"}, rt.ID) {
			return true
		}
		return strings.HasPrefix(rt.Path, "/v2/box/{id}") && rt.ID != "reattachBox" && rt.ID != "detachBox" && rt.ID != "diagnoseHost" && rt.ID != "setSource"
	},
	api.RoleCreator: func(rt rest.Route) bool {
		return slices.Contains([]string{"createBox", "createBoxFromSnapshot", "listSnapshots", "deleteSnapshots", "listNamedPolicies", "getNamedPolicy", "createKeySecret", "listKeySecrets", "getKeySecret", "replaceKeySecret", "deleteKeySecret"}, rt.ID)
	},
	api.RoleApprover: func(rt rest.Route) bool {
		return slices.Contains([]string{"listApprovals", "listBoxApprovals", "getApproval", "answerApproval"}, rt.ID)
	},
	"":      func(rest.Route) bool { return false },
	"owner": func(rest.Route) bool { return false },
}

// TestRolesByEveryRoute calls every endpoint with a key of every role, and with keys of roles that do not exist.
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
		f.host.Mu.Lock()
		f.host.ByID["box1"].CreatedBy = "key_x"
		f.host.Keys = map[string]api.Key{"k": {Caller: api.Caller{Key: "key_x", Name: "x", Role: role, Box: "box1"}}}
		f.host.Mu.Unlock()
		for _, rt := range f.api.routes {
			if rt.Public || rt.ID == "openSession" && may(rt) || strings.HasPrefix(rt.ID, "stream") && may(rt) {
				continue
			}
			path := pathTo(rt, "box1")
			got := f.Call(t, rt.Method, path, "", apitest.With("k"))
			refused := got.StatusCode == http.StatusForbidden && strings.Contains(got.Text, "role")
			if refused == may(rt) {
				t.Errorf("role %q: %s %s: %s %s", role, rt.Method, rt.Path, got.Status, got.Text)
			}
			f.host.Mu.Lock()
			if f.host.ByID["box1"] == nil {
				f.host.ByID["box1"] = &apitest.Box{Box: api.Box{ID: "box1", CreatedBy: "key_x"}, URLs: map[uint16]api.URL{}}
			}
			f.host.Mu.Unlock()
		}
	}
}

func pathTo(rt rest.Route, box string) string {
	return strings.NewReplacer("{id}", box, "{port}", "80", "{run}", "none", "{key}", "NAME", "{label}", "none", "{schedule}", "none", "{api_key}", "none",
		"{owner}", "o", "{repository}", "r", "{skill}", "s", "{snapshot}", "none", "{name}", "none", "{approval}", "none", "{host}", "aaaaaa").Replace(rt.Path)
}

// TestBoxesOfOthersAreNotThere: one-box and box-creator keys see no other boxes through any endpoint, neither by ID nor
// by name nor by an unusual spelling of the path.
func TestBoxesOfOthersAreNotThere(t *testing.T) {
	t.Parallel()
	f := serve(t)
	f.create(t, `{"name":"mine"}`)           // box1
	other := f.create(t, `{"name":"other"}`) // box2
	keys := []string{f.key(t, `{"name":"one","role":"one-box","box":"mine"}`), f.key(t, `{"name":"ci","role":"box-creator"}`)}
	spelled := []string{other, "other", "..%2f" + other, "box1%2f..%2f" + other, "box1/../" + other, ".%2e/box/" + other, "%6fther", other + "%00", "box1%00" + other}
	for _, key := range keys {
		for _, rt := range f.api.routes {
			if !strings.Contains(rt.Path, "{id}") || rt.ID == "reattachBox" || rt.ID == "detachBox" || rt.ID == "diagnoseHost" || rt.ID == "setSource" {
				continue
			}
			for _, box := range spelled {
				for _, query := range []string{"", "?id=" + other, "?id=box1"} {
					got := f.Call(t, rt.Method, pathTo(rt, box)+query, "", apitest.With(key))
					if got.StatusCode != http.StatusNotFound && got.StatusCode != http.StatusMethodNotAllowed {
						t.Errorf("%s %s%s: %s %s", rt.Method, pathTo(rt, box), query, got.Status, got.Text)
					}
				}
			}
		}
		for _, body := range []string{`{"ids":["other"]}`, `{"ids":["mine","box2"]}`} {
			if got := f.Call(t, "DELETE", "/v2/box", body, apitest.With(key)); got.StatusCode != http.StatusNotFound {
				t.Errorf("%s: %s %s", body, got.Status, got.Text)
			}
		}
		if got := f.Call(t, "GET", "/v2/box", "", apitest.With(key)); strings.Contains(got.Text, "other") || strings.Contains(got.Text, other) {
			t.Error("the other box is listed", got.Text)
		}
		same, none := f.Call(t, "GET", "/v2/box/other", "", apitest.With(key)), f.Call(t, "GET", "/v2/box/never", "", apitest.With(key))
		if strings.ReplaceAll(same.Text, "other", "never") != none.Text {
			t.Errorf("a box of others is told from none: %s %s", same.Text, none.Text)
		}
	}
	if n := len(f.host.Execs); n != 0 || f.host.ByID["box2"] == nil || f.host.ByID["box1"] == nil {
		t.Error("something was done with a box of others:", n)
	}
	if got := f.Call(t, "GET", "/v2/box/mine", "", apitest.With(keys[0])); got.StatusCode != 200 {
		t.Error("its own box:", got.Status, got.Text)
	}
}

// TestAKeyDoesNotPassToTheNextBoxOfAName: a key for a deleted box does not work for a new box with the same name.
func TestAKeyDoesNotPassToTheNextBoxOfAName(t *testing.T) {
	t.Parallel()
	f := serve(t)
	f.create(t, `{"name":"web"}`)
	one := f.key(t, `{"name":"one","role":"one-box","box":"web"}`)
	ci := f.key(t, `{"name":"ci","role":"box-creator"}`)
	if got := f.Call(t, "POST", "/v2/box", `{"name":"job"}`, apitest.With(ci)); got.StatusCode != 201 || got.JSON(t)["created_by"] == "" {
		t.Fatal(got.Status, got.Text)
	}
	for _, name := range []string{"web", "job"} {
		f.Call(t, "DELETE", "/v2/box/"+name, "")
		f.create(t, `{"name":"`+name+`"}`)
		for _, key := range []string{one, ci} {
			if got := f.Call(t, "POST", "/v2/box/"+name+"/exec", `{"command":["true"]}`, apitest.With(key)); got.StatusCode != http.StatusNotFound {
				t.Errorf("%s: %s %s", name, got.Status, got.Text)
			}
		}
	}
	// Access does not pass to a new key with the name of a revoked one, either.
	f.Call(t, "POST", "/v2/box", `{"name":"old"}`, apitest.With(ci))
	f.Call(t, "DELETE", "/v2/api-keys/ci", "")
	if got := f.Call(t, "GET", "/v2/box/old", "", apitest.With(ci)); got.StatusCode != http.StatusUnauthorized {
		t.Error("revoked:", got.Status)
	}
	f.host.Mu.Lock()
	f.host.Keys["unused"] = api.Key{} // so that IDs are not reused; the real store never reuses them
	f.host.Mu.Unlock()
	if got := f.Call(t, "GET", "/v2/box/old", "", apitest.With(f.key(t, `{"name":"ci","role":"box-creator"}`))); got.StatusCode != http.StatusNotFound {
		t.Error("a key of the same name:", got.Status)
	}
}

// swapping moves the name of a box to another box right after it was looked up.
type swapping struct{ *apitest.Host }

func (h swapping) Box(ctx context.Context, idOrName string) (api.Box, error) {
	found, err := h.Host.Box(ctx, idOrName)
	h.Mu.Lock()
	defer h.Mu.Unlock()
	if idOrName == "web" {
		h.ByID["box1"].Name, h.ByID["box2"].Name = "", "web"
	}
	return found, err
}

// TestANameThatMovesAfterItWasJudged: the endpoint uses the box that was checked.
func TestANameThatMovesAfterItWasJudged(t *testing.T) {
	t.Parallel()
	f := serve(t, func(cfg *Config) { cfg.Services = services(swapping{cfg.Boxes.(*apitest.Host)}) })
	f.create(t, `{"name":"web"}`)
	f.create(t, `{"name":"next"}`)
	f.host.Mu.Lock()
	f.host.Keys = map[string]api.Key{"k": {Caller: api.Caller{Key: "key_1", Role: api.RoleBox, Box: "box1"}}}
	f.host.Mu.Unlock()
	if got := f.Call(t, "DELETE", "/v2/box/web", "", apitest.With("k")); got.StatusCode != 200 {
		t.Fatal(got.Status, got.Text)
	}
	f.host.Mu.Lock()
	defer f.host.Mu.Unlock()
	if f.host.ByID["box2"] == nil || f.host.ByID["box1"] != nil {
		t.Error("the box that took the name was deleted in its place")
	}
}

// TestLimitedKeysReadNoSecrets: rules of non-admin keys can neither refer to the operator's secrets nor redirect
// requests, and read-only keys see no commands.
func TestLimitedKeysReadNoSecrets(t *testing.T) {
	t.Parallel()
	f := serve(t, func(cfg *Config) { cfg.HasSecret = func(name string) bool { return name == "openai" } })
	ci := f.key(t, `{"name":"ci","role":"box-creator"}`)
	named := `{"api.example.com":{"headers":{"Authorization":{"secret":"openai","prefix":"Bearer "}}}}`
	forward := `{"api.example.com":[{"match":{"methods":["POST"]},"forward_url":"https://proxy.example.net/x"}]}`
	if got := f.Call(t, "POST", "/v2/box", `{"name":"theirs","custom_runner":{"command":"run","args":["--token=sk-arg"],"protocol":"box-sse-v1"},"agent":"custom"}`, apitest.With(ci)); got.StatusCode != 201 {
		t.Fatal(got.Status, got.Text)
	}
	for _, rules := range []string{named, forward} {
		for _, c := range []struct{ method, path, body string }{
			{"POST", "/v2/box", `{"attach_headers":` + rules + `}`},
			{"PUT", "/v2/box/theirs/config/attach-headers", rules},
			{"PATCH", "/v2/box/theirs/config/attach-headers", rules},
			{"PUT", "/v2/box/theirs/config/network", `{"network_policy":{"mode":"deny-all"},"attach_headers":` + rules + `}`},
		} {
			if got := f.Call(t, c.method, c.path, c.body, apitest.With(ci)); got.StatusCode != 422 && got.StatusCode != 403 {
				t.Errorf("%s %s %s: %s %s", c.method, c.path, rules, got.Status, got.Text)
			}
			if got := f.Call(t, c.method, c.path, c.body); got.StatusCode >= 300 {
				t.Errorf("as admin: %s %s %s: %s %s", c.method, c.path, rules, got.Status, got.Text)
			}
		}
	}
	for dialect, policy := range map[string]string{ // these dialects have no gateway secrets, even for admins
		"Vercel": `{"allow":{"attacker.example":[{"transform":[{"headers":{"X-Leak":{"secret":"openai"}}}]}]}}`,
		"E2B":    `{"denyOut":["0.0.0.0/0"],"allowOut":["attacker.example"],"rules":{"attacker.example":[{"transform":{"headers":{"X-Leak":{"secret":"openai"}}}}]}}`,
	} {
		for _, key := range []func(*http.Request){apitest.With(ci), nil} {
			var as []func(*http.Request)
			if key != nil {
				as = append(as, key)
			}
			if got := f.Call(t, "POST", "/v2/box", `{"network_policy":`+policy+`}`, as...); got.StatusCode != 422 || !strings.Contains(got.Text, "X-Leak") {
				t.Errorf("%s: %s %s", dialect, got.Status, got.Text)
			}
		}
	}
	forwards := `{"allow":{"attacker.example":[{"forwardURL":"https://attacker.example/in"}]}}` // with a token that names the box
	for _, c := range []struct{ path, body string }{{"config/network-policy", forwards}, {"config/network-policy?dry_run=true", forwards}, {"config/network", `{"network_policy":` + forwards + `}`}} {
		f.Expect(t, 200, "PUT", "/v2/box/theirs/"+c.path, c.body)
		if got := f.Call(t, "PUT", "/v2/box/theirs/"+c.path, c.body, apitest.With(ci)); got.StatusCode != 403 || !strings.Contains(got.Text, "forward_url") {
			t.Errorf("%s: %s %s", c.path, got.Status, got.Text)
		}
	}
	ro := f.key(t, `{"name":"ro","role":"read-only"}`)
	for _, path := range []string{"/v2/box/theirs", "/v2/box"} {
		if got := f.Call(t, "GET", path, "", apitest.With(ro)); got.StatusCode != 200 || strings.Contains(got.Text, "sk-arg") {
			t.Errorf("%s: %s %s", path, got.Status, got.Text)
		}
	}
}

// TestKeySecretsOfOtherKeys: a key names, sees, replaces and deletes only its own secrets; admin keys see and delete all, but neither use nor
// replace them. No response and no line of the log has a value.
func TestKeySecretsOfOtherKeys(t *testing.T) {
	t.Parallel()
	var f *fixture
	f = serve(t, func(cfg *Config) {
		cfg.KeySecret = func(key, n string, host name.Pattern) (string, string, bool) {
			return f.host.FindKeySecret(key, n, host)
		}
	})
	own, other := apitest.With(f.key(t, `{"name":"own","role":"box-creator"}`)), apitest.With(f.key(t, `{"name":"other","role":"box-creator"}`))
	texts := []string{}
	call := func(want int, method, path, body string, as ...func(*http.Request)) apitest.Answer {
		t.Helper()
		got := f.Call(t, method, path, body, as...)
		if got.StatusCode != want {
			t.Errorf("%s %s %s: %s %s", method, path, body, got.Status, got.Text)
		}
		texts = append(texts, got.Text)
		return got
	}
	id, _ := call(201, "POST", "/v2/key-secrets", `{"name":"s","value":"sk-canary"}`, own).JSON(t)["id"].(string)
	for _, body := range []string{`{"name":"s"}`, `{"name":"a b","value":"sk-canary"}`, `{"name":"x","value":"sk-canary\n"}`, `{"name":"x","value":"sk-canary","hosts":["*"]}`, `{"name":"x","value":"sk-canary","other":1}`} {
		call(422, "POST", "/v2/key-secrets", body, own)
	}
	rule := func(n string) string {
		return `{"attach_headers":{"a.example":{"headers":{"A":{"secret":"` + n + `"}}}}}`
	}
	for _, n := range []string{"s", id} {
		call(201, "POST", "/v2/box", rule(n), own)
		call(422, "POST", "/v2/box", rule(n), other)
		call(422, "POST", "/v2/box", rule(n))
		path := "/v2/key-secrets/" + n
		call(200, "GET", path, "", own)
		call(200, "PUT", path, `{"value":"sk-canary-2"}`, own)
		call(404, "GET", path, "", other)
		call(404, "PUT", path, `{"value":"sk-canary-3"}`, other)
		call(404, "DELETE", path, "", other)
	}
	if got := call(200, "GET", "/v2/key-secrets", "", other); strings.Contains(got.Text, id) {
		t.Error(got.Text)
	}
	if got := call(200, "GET", "/v2/key-secrets", ""); !strings.Contains(got.Text, id) {
		t.Error(got.Text)
	}
	call(200, "GET", "/v2/key-secrets/"+id, "")
	call(403, "PUT", "/v2/key-secrets/"+id, `{"value":"sk-canary-4"}`)
	call(200, "DELETE", "/v2/key-secrets/"+id, "")
	call(422, "POST", "/v2/box", rule("s"), own)
	if all := strings.Join(texts, "\n"); strings.Contains(all, "canary") {
		t.Error("a response has a value: ", all)
	}
}

// TestSnapshotsOfOthersMakeNoBox: a box-creator key can only use snapshots of its own boxes.
func TestSnapshotsOfOthersMakeNoBox(t *testing.T) {
	t.Parallel()
	f := serve(t)
	ci := f.key(t, `{"name":"ci","role":"box-creator"}`)
	f.create(t, `{"name":"other"}`)
	f.Call(t, "POST", "/v2/box", `{"name":"own"}`, apitest.With(ci))
	from := func(box string) apitest.Answer {
		made := f.Call(t, "POST", "/v2/box/"+box+"/snapshots", `{"name":"s"}`)
		id, _ := made.JSON(t)["id"].(string)
		return f.Call(t, "POST", "/v2/box/from-snapshot", `{"snapshot_id":"`+id+`"}`, apitest.With(ci))
	}
	if got := from("other"); got.StatusCode != http.StatusNotFound {
		t.Error(got.Status, got.Text)
	}
	if got := from("own"); got.StatusCode != http.StatusCreated {
		t.Error(got.Status, got.Text)
	}
}

// TestSnapshotsOutliveTheirBox: the box-creator key of a deleted box can still list, use and delete its snapshots, even
// if another box's name is its ID. Other box-creator keys cannot.
func TestSnapshotsOutliveTheirBox(t *testing.T) {
	t.Parallel()
	f := serve(t)
	ci, other := apitest.With(f.key(t, `{"name":"ci","role":"box-creator"}`)), apitest.With(f.key(t, `{"name":"other","role":"box-creator"}`))
	box, _ := f.Call(t, "POST", "/v2/box", `{"name":"own"}`, ci).JSON(t)["id"].(string)
	var ids []string
	for range 3 {
		id, _ := f.Call(t, "POST", "/v2/box/"+box+"/snapshots", `{}`, ci).JSON(t)["id"].(string)
		ids = append(ids, id)
	}
	f.Call(t, "DELETE", "/v2/box/"+box, "", ci)
	f.Call(t, "POST", "/v2/box", `{"name":"`+box+`"}`, other)
	one, all := "/v2/box/"+box+"/snapshots", "/v2/box/snapshots"
	for _, c := range []struct {
		key                func(*http.Request)
		method, path, body string
		status             int
		has                string
	}{
		{other, "GET", one, "", 200, `"snapshots":[]`}, // of its own box, which has that name
		{other, "GET", all, "", 200, `"snapshots":[]`},
		{other, "DELETE", one + "/" + ids[0], "", 404, ""},
		{other, "DELETE", all, `{"ids":["` + ids[0] + `"]}`, 404, ""},
		{other, "DELETE", all, `{}`, 200, `"deleted":0`},
		{other, "POST", "/v2/box/from-snapshot", `{"snapshot_id":"` + ids[0] + `"}`, 404, ""},
		{ci, "GET", one, "", 200, ids[2]},
		{ci, "GET", all, "", 200, ids[2]},
		{ci, "POST", "/v2/box/from-snapshot", `{"snapshot_id":"` + ids[0] + `"}`, 201, ""},
		{ci, "DELETE", one + "/" + ids[0], "", 200, `"deleted":1`},
		{ci, "DELETE", one + "/" + ids[0], "", 404, ""},
		{ci, "DELETE", all, `{"ids":["` + ids[1] + `"]}`, 200, `"deleted":1`},
		{ci, "DELETE", all, `{}`, 200, `"deleted":1`},
		{ci, "GET", one, "", 404, ""},
	} {
		if got := f.Call(t, c.method, c.path, c.body, c.key); got.StatusCode != c.status || !strings.Contains(got.Text, c.has) {
			t.Errorf("%s %s %s: %s %s, want %d and %s", c.method, c.path, c.body, got.Status, got.Text, c.status, c.has)
		}
	}
}

// TestAnExpiredKeyOnAnOpenStream: a stream ends when its key expires or is revoked, and the key cannot open another one.
func TestAnExpiredKeyOnAnOpenStream(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*fixture){
		"expires": func(f *fixture) {
			f.host.Mu.Lock()
			defer f.host.Mu.Unlock()
			for key, k := range f.host.Keys {
				k.ExpiresAt = time.Now()
				f.host.Keys[key] = k
			}
		},
		"is revoked": func(f *fixture) { f.Call(t, "DELETE", "/v2/api-keys/one", "") },
		"gets another role": func(f *fixture) {
			f.host.Mu.Lock()
			defer f.host.Mu.Unlock()
			for key, k := range f.host.Keys {
				k.Box = policy.BoxID("box9")
				f.host.Keys[key] = k
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
		if got := f.Call(t, "GET", "/v2/box/box1", "", apitest.With(key)); got.StatusCode == 200 {
			t.Errorf("a key that %s: %s", name, got.Status)
		}
	}
}

// TestKeysAreShownOnce: only the response that creates a key contains it.
func TestKeysAreShownOnce(t *testing.T) {
	t.Parallel()
	f := serve(t)
	f.create(t, `{}`)
	key := f.key(t, `{"name":"one","role":"one-box","box":"box1"}`)
	if got := f.Call(t, "GET", "/v2/api-keys", ""); strings.Contains(got.Text, key) || !strings.Contains(got.Text, `"box_id":"box1"`) {
		t.Error(got.Text)
	}
	next := f.Call(t, "POST", "/v2/api-keys/one/rotate", `{}`).JSON(t)["key"]
	if next == key || f.Call(t, "GET", "/v2/box/box1", "", apitest.With(key)).StatusCode != 401 {
		t.Error("the replaced key works")
	}
	for _, bad := range []string{
		`{"name":"x"}`, `{"name":"x","role":"root"}`, `{"name":"","role":"admin"}`, `{"name":"x","role":"one-box"}`, `{"name":"x","role":"admin","box":"box1"}`,
		`{"name":"x","role":"admin","expires_in":"-1h"}`, `{"name":"x","role":"admin","expires_in":"0s"}`, `{"name":"x","role":"admin","expires_in":"90 days"}`,
	} {
		if got := f.Call(t, "POST", "/v2/api-keys", bad); got.StatusCode != 422 {
			t.Errorf("%s: %s %s", bad, got.Status, got.Text)
		}
	}
	if got := f.Call(t, "POST", "/v2/api-keys", `{"name":"x","role":"one-box","box":"never"}`); got.StatusCode != 404 {
		t.Error(got.Status, got.Text)
	}
}
