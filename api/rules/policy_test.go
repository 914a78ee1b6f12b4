package rules_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/api/access"
	"boxgate/api/apitest"
	"boxgate/api/history"
	"boxgate/api/rules"
	"boxgate/policy"
)

// Of two writers, the one that read an older version is refused, in whichever way it gives that version.
func TestPolicyVersions(t *testing.T) {
	t.Parallel()
	f := serve(t)
	id := f.create(t, api.CreateRequest{Policy: policy.Spec{Mode: policy.ModeAllowAll}})
	path := "/v2/box/" + id + "/config/network-policy"
	read := f.Call(t, "GET", path, "")
	if read.Header.Get("ETag") != `"1"` || read.JSON(t)["version"] != 1.0 || read.JSON(t)["mode"] != "allow-all" {
		t.Fatalf("%v %s", read.Header, read.Text)
	}
	steps := []struct {
		body, match string
		status      int
		etag        string
	}{
		{`{"mode":"deny-all"}`, `"1"`, 200, `"2"`},
		{`{"mode":"allow-all"}`, `"1"`, 412, ""},
		{`{"mode":"allow-all"}`, `W/"2"`, 412, ""},
		{`{"mode":"allow-all"}`, `2`, 412, ""},
		{`{"mode":"allow-all"}`, `"1", "2"`, 412, ""},
		{`{"mode":"allow-all","version":1}`, ``, 412, ""},
		{`{"mode":"allow-all","version":2}`, `"1"`, 412, ""},
		{`{"mode":"allow-all","version":2}`, ``, 200, `"3"`},
		{`{"mode":"custom","allowed_domains":["b.example"]}`, `*`, 200, `"4"`},
		{`{"mode":"custom","allowed_domains":["c.example"]}`, ``, 200, `"5"`},
	}
	for _, s := range steps {
		edit := func(*http.Request) {}
		if s.match != "" {
			edit = apitest.IfMatch(s.match)
		}
		got := f.Call(t, "PUT", path, s.body, edit)
		if got.StatusCode != s.status || got.Header.Get("ETag") != s.etag {
			t.Errorf("%s with %s: %s %s", s.body, s.match, got.Status, got.Text)
		}
	}
	// What was read can be sent back unchanged.
	if got := f.Call(t, "PUT", path, f.Call(t, "GET", path, "").Text); got.StatusCode != 200 || got.JSON(t)["version"] != 6.0 {
		t.Errorf("%s %s", got.Status, got.Text)
	}
	if spec := f.host.ByID[policy.BoxID(id)].Policy.Spec; spec.AllowedDomains[0] != "c.example" {
		t.Errorf("%+v", spec)
	}
}

// TestTheTrailSaysByWhichProxyAndForHowLong: the changes of a policy say by which upstream proxy the box goes, with the names
// that are left to it, and which temporary entries began and ended.
func TestTheTrailSaysByWhichProxyAndForHowLong(t *testing.T) {
	t.Parallel()
	f := serve(t)
	f.create(t, api.CreateRequest{Name: "web", Policy: policy.Spec{Mode: policy.ModeAllowAll, UpstreamProxy: &policy.UpstreamSpec{URL: "https://one.example:3128"}}})
	const at = "/v2/box/web/config/network-policy"
	for _, c := range []struct {
		method, path, body string
		says               []string
	}{
		{"PUT", at, `{"mode":"allow-all","upstream_proxy":{"url":"socks5://two.example:1080","resolve_there":["*.corp.example"]}}`,
			[]string{`"upstream_proxy":["https://one.example:3128","socks5://two.example:1080"]`, `"resolve_there":{"added":["*.corp.example"]}`}},
		{"PUT", at, `{"mode":"allow-all"}`, []string{`"upstream_proxy":["socks5://two.example:1080",""]`, `"resolve_there":{"removed":["*.corp.example"]}`}},
		{"POST", at + "/leases", `{"action":"allow","entries":["files.example"],"expires_in":60}`, []string{`"leases":{"added":["allow files.example until 20`}},
		{"POST", at + "/leases", `{"action":"deny","entries":["192.0.2.0/24"],"expires_in":60}`, []string{`"leases":{"added":["deny 192.0.2.0/24 until 20`}},
		{"DELETE", at + "/leases?entry=files.example", "", []string{`"leases":{"removed":["allow files.example until 20`}},
		{"PUT", at, `{"mode":"allow-all","leases":[]}`, []string{`"leases":{"removed":["deny 192.0.2.0/24 until 20`}},
	} {
		if got := f.Call(t, c.method, c.path, c.body); got.StatusCode >= 300 {
			t.Fatal(got.Status, got.Text)
		}
		all := f.Changes()
		last := all[len(all)-1]
		for _, want := range c.says {
			if !strings.HasPrefix(last, "box1 ") || !strings.Contains(last, want) {
				t.Errorf("%s %s: the change is %s, not %s", c.method, c.body, last, want)
			}
		}
	}
}

// TestVersionsInBodies: the version in a body is a precondition, and must be one that could have been read.
func TestVersionsInBodies(t *testing.T) {
	t.Parallel()
	f := serve(t)
	id := f.create(t, api.CreateRequest{})
	for _, path := range []string{"/v2/box/" + id + "/config/network-policy", namedWeb} {
		f.Expect(t, 200, "PUT", path, `{"mode":"deny-all"}`)
		for _, version := range []string{`null`, `"2"`, `-1`, `1.5`, `[]`, `18446744073709551616`} {
			got := f.Expect(t, 422, "PUT", path, `{"mode":"allow-all","version":`+version+`}`)
			if got.JSON(t)["pointer"] != "/version" {
				t.Errorf("%s: %s", version, got.Text)
			}
		}
		f.Expect(t, 400, "PUT", path, `{"mode":"deny-all"`)
		f.Expect(t, 422, "PUT", path, `{"mode":"deny-all","mode":"allow-all"}`)
		f.Expect(t, 200, "PUT", path, `{"mode":"deny-all","warnings":[{"message":"as it was read"}]}`)
	}
	if f.state(t, id).Spec.Mode != policy.ModeDenyAll {
		t.Error("a refused policy is in force")
	}
}

// TestOtherPolicyDialect: a box that runs takes policies in the dialect of Vercel Sandbox, and header rules by the form that has a
// place for them, also none. Without that place, the header rules stay.
func TestOtherPolicyDialect(t *testing.T) {
	t.Parallel()
	f := serve(t)
	path := "/v2/box/" + f.create(t, api.CreateRequest{}) + "/config/network-policy"
	for body, status := range map[string]int{
		`"allow-all"`: 200, `{"allow":["*.example.com"],"subnets":{"deny":["192.0.2.0/24"]}}`: 200,
		`"open"`: 422, `{}`: 422, `null`: 422, `[]`: 422, `{"mode":"deny-all","allow":["a.example"]}`: 422,
		`{"allow":{"api.example.com":[{"transform":[{"headers":{"a":"sk-v","a":"b"}}]}]}}`: 422,
	} {
		if got := f.Call(t, "PUT", path, body); got.StatusCode != status || strings.Contains(got.Text, "sk-v") {
			t.Errorf("%s: %s %s", body, got.Status, got.Text)
		}
	}
	for _, step := range []struct {
		body  string
		hosts int // that have header rules afterwards
	}{
		{`{"allow":{"api.example.com":[{"transform":[{"headers":{"authorization":"Bearer sk-v"}}]}],"b.example":[]}}`, 1},
		{`{"allow":["api.example.com"]}`, 1}, {`"deny-all"`, 1}, {`{"mode":"allow-all"}`, 1},
		{`{"allow":{"api.example.com":[]}}`, 0},
		{`{"allowOut":["a.example"],"denyOut":["0.0.0.0/0"],"rules":{"a.example":[{"transform":{"headers":{"x":"sk-v"}}}]}}`, 1},
		{`{"allowOut":["a.example"],"denyOut":["0.0.0.0/0"]}`, 1}, {`{"denyOut":["0.0.0.0/0"],"rules":{}}`, 0},
	} {
		got := f.Expect(t, 200, "PUT", path, step.body)
		if n := len(f.host.ByID["box1"].Rules.Rules); n != step.hosts || strings.Contains(got.Text, "sk-v") {
			t.Errorf("%s: %d rules, %s", step.body, n, got.Text)
		}
	}
}

const namedWeb = "/v2/box/settings/network-policies/web"

// TestNamedPolicies: they are made, referred to, read with the boxes that follow them, changed under a precondition and deleted.
func TestNamedPolicies(t *testing.T) {
	t.Parallel()
	f := serve(t)
	made := f.Call(t, "PUT", namedWeb, `{"mode":"custom","allowed_domains":["a.example"]}`)
	if made.StatusCode != 200 || made.Header.Get("ETag") != `"1"` || !strings.Contains(made.Text, `"boxes":[]`) {
		t.Fatal(made.Status, made.Header, made.Text)
	}
	id := f.create(t, api.CreateRequest{Name: "first"})
	set := f.Call(t, "PUT", "/v2/box/"+id+"/config/network-policy", `{"named":"web"}`)
	if set.StatusCode != 200 || set.JSON(t)["named"] != "web" || !strings.Contains(set.Text, `"allowed_domains":["a.example"]`) {
		t.Error(set.Status, set.Text)
	}
	second := f.create(t, api.CreateRequest{Name: "second", Named: "web"})
	for _, path := range []string{namedWeb, "/v2/box/settings/network-policies"} {
		got := f.Call(t, "GET", path, "")
		if got.StatusCode != 200 || !strings.Contains(got.Text, `"name":"first"`) || !strings.Contains(got.Text, `"name":"second"`) {
			t.Errorf("%s: %s %s", path, got.Status, got.Text)
		}
	}
	for _, c := range []struct {
		method, body, etag string
		want               int
	}{
		{"PUT", `{"mode":"deny-all"}`, `"7"`, 412},
		{"PUT", `{"mode":"deny-all","version":7}`, "", 412},
		{"DELETE", "", `"7"`, 412},
		{"PUT", `{"mode":"deny-all","version":1}`, "", 200},
		{"DELETE", "", "", 409},
	} {
		var edits []func(*http.Request)
		if c.etag != "" {
			edits = append(edits, apitest.IfMatch(c.etag))
		}
		if got := f.Call(t, c.method, namedWeb, c.body, edits...); got.StatusCode != c.want {
			t.Errorf("%+v: %s %s", c, got.Status, got.Text)
		}
	}
	if got := f.Call(t, "GET", "/v2/box/"+id+"/config/network-policy", ""); got.JSON(t)["mode"] != "deny-all" || got.JSON(t)["version"] != 3.0 {
		t.Error(got.Text)
	}
	for _, box := range []string{id, second} {
		if err := f.host.DeleteBox(t.Context(), policy.BoxID(box)); err != nil {
			t.Fatal(err)
		}
	}
	if got := f.Call(t, "DELETE", namedWeb, ""); got.StatusCode != 200 {
		t.Error(got.Status, got.Text)
	}
	if got := f.Call(t, "GET", namedWeb, ""); got.StatusCode != 404 {
		t.Error(got.Status, got.Text)
	}
}

// TestNamedPoliciesOfTheFleet: a change of a policy of the fleet asks for it, one of the host does not; limited keys make neither.
func TestNamedPoliciesOfTheFleet(t *testing.T) {
	t.Parallel()
	f := serve(t)
	ci := f.key(t, api.KeyRequest{Name: "ci", Role: api.RoleCreator})
	for _, c := range []struct {
		method, query, body string
		want                int
		says                string
		edits               []func(*http.Request)
	}{
		{"PUT", "?fleet=true", `{"mode":"deny-all"}`, 403, "", []func(*http.Request){apitest.With(ci)}},
		{"PUT", "?fleet=perhaps", `{"mode":"deny-all"}`, 422, "true or false", nil},
		{"PUT", "?fleet=true", `{"named":"other"}`, 422, "", nil},
		{"PUT", "?fleet=true", `{"mode":"deny-all"}`, 200, `"fleet":true`, nil},
		{"GET", "", "", 200, `"fleet":true`, nil},
		{"PUT", "", `{"mode":"deny-all"}`, 409, "", nil},
		{"PUT", "?fleet=true", `{"mode":"allow-all"}`, 412, "", []func(*http.Request){apitest.IfMatch(`"7"`)}},
		{"PUT", "?fleet=true", `{"mode":"allow-all","version":1}`, 200, `"version":2`, nil},
		{"DELETE", "", "", 409, "", nil},
		{"DELETE", "?fleet=true", "", 403, "", []func(*http.Request){apitest.With(ci)}},
		{"DELETE", "?fleet=true", "", 200, "", nil},
		{"PUT", "?fleet=false", `{"mode":"deny-all"}`, 200, `"name":"web"`, nil},
		{"DELETE", "?fleet=true", "", 409, "", nil},
	} {
		if got := f.Call(t, c.method, namedWeb+c.query, c.body, c.edits...); got.StatusCode != c.want || !strings.Contains(got.Text, c.says) {
			t.Errorf("%s %s: %s %s", c.method, c.query, got.Status, got.Text)
		}
	}
}

// TestReferencesStandAlone: a reference to a policy with other members is refused, and so is a named policy with a reference.
func TestReferencesStandAlone(t *testing.T) {
	t.Parallel()
	f := serve(t)
	id := f.create(t, api.CreateRequest{})
	for _, c := range []struct{ body, pointer string }{
		{`{"named":"web","mode":"allow-all"}`, "/named"},
		{`{"named":"web","denied_domains":["a.example"]}`, "/named"},
		{`{"named":"web","allow":["a.example"]}`, "/named"},
		{`{"named":""}`, "/named"},
		{`{"named":null}`, "/named"},
		{`{"named":["web"]}`, "/named"},
		{`{"Named":"web"}`, "/Named"},
		{`{"named":"web","named":"deb"}`, "/named"},
		{`{"named":"missing"}`, "/named"},
	} {
		got := f.Call(t, "PUT", "/v2/box/"+id+"/config/network-policy", c.body)
		if got.StatusCode != 422 || got.JSON(t)["pointer"] != c.pointer {
			t.Errorf("%s: %s %s", c.body, got.Status, got.Text)
		}
	}
	for _, c := range []struct{ name, body string }{
		{"web", `{"named":"other"}`},
		{"web", `{"mode":"custom"}`},
		{"web", `{"mode":"deny-all","leases":[]}`},
		{"web", `{"allow":{"a.example":[{"transform":[{"headers":{"X":"y"}}]}]}}`},
		{"Web", `{"mode":"deny-all"}`}, {"-web", `{"mode":"deny-all"}`}, {"@web", `{"mode":"deny-all"}`}, {"web%2Fa", `{"mode":"deny-all"}`},
		{strings.Repeat("a", 64), `{"mode":"deny-all"}`},
	} {
		if got := f.Call(t, "PUT", "/v2/box/settings/network-policies/"+c.name, c.body); got.StatusCode != 422 {
			t.Errorf("%s %s: %s %s", c.name, c.body, got.Status, got.Text)
		}
	}
	if len(f.host.Named) > 0 {
		t.Errorf("%v were made", f.host.Named)
	}
}

// TestNamedPoliciesOfLimitedKeys: keys that create boxes may refer to named policies and read them, but change none, and do not
// learn of boxes of others. Keys of one box may refer to them.
func TestNamedPoliciesOfLimitedKeys(t *testing.T) {
	t.Parallel()
	f := serve(t)
	f.Call(t, "PUT", namedWeb, `{"mode":"deny-all"}`)
	secret := f.create(t, api.CreateRequest{Name: "secret-box", Named: "web"})
	ci, one := f.key(t, api.KeyRequest{Name: "ci", Role: api.RoleCreator}), f.key(t, api.KeyRequest{Name: "one", Role: api.RoleBox, Box: policy.BoxID(secret)})
	f.create(t, api.CreateRequest{Name: "theirs", Named: "web", CreatedBy: "key_1"})
	if got := f.Call(t, "GET", namedWeb, "", apitest.With(ci)); got.StatusCode != 200 || strings.Contains(got.Text, "secret-box") || !strings.Contains(got.Text, "theirs") {
		t.Error(got.Status, got.Text)
	}
	if got := f.Call(t, "PUT", "/v2/box/secret-box/config/network-policy", `{"named":"web"}`, apitest.With(one)); got.StatusCode != 200 {
		t.Error(got.Status, got.Text)
	}
	for _, key := range []string{ci, one, f.key(t, api.KeyRequest{Name: "ro", Role: api.RoleReader})} {
		for method, body := range map[string]string{"PUT": `{"mode":"allow-all"}`, "DELETE": ""} {
			if got := f.Call(t, method, namedWeb, body, apitest.With(key)); got.StatusCode != http.StatusForbidden {
				t.Errorf("%s: %s %s", method, got.Status, got.Text)
			}
		}
	}
	if n := f.host.Named["web"]; n.Version != 1 || n.Spec.Mode != policy.ModeDenyAll {
		t.Errorf("%+v", n)
	}
}

// fixture serves the endpoints of this package.
type fixture struct {
	*apitest.Served
	host    *apitest.Host
	history *history.History
}

// serve serves the endpoints until the test ends. Rules may name the secret "known".
func serve(t testing.TB) *fixture {
	t.Helper()
	f := &fixture{host: apitest.NewHost(t), history: history.New(nil)}
	known := func(name string) bool { return name != "unknown" }
	f.Served = apitest.Serve(t, f.host, (&rules.Endpoints{Boxes: f.host, Host: f.host, History: f.history, Bodies: apitest.Bodies, Secrets: access.Secrets{Has: known}}).Routes())
	return f
}

// create makes a box and returns its ID.
func (f *fixture) create(t testing.TB, req api.CreateRequest) string { return f.host.Add(t, req) }

// key makes an API key and returns it.
func (f *fixture) key(t testing.TB, req api.KeyRequest) string {
	t.Helper()
	key, _, err := f.host.CreateAPIKey(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return key.Reveal()
}

// state returns the policy of a box that is in force.
func (f *fixture) state(t testing.TB, id string) api.PolicyState {
	t.Helper()
	state, err := f.host.Policy(t.Context(), policy.BoxID(id))
	if err != nil {
		t.Fatal(err)
	}
	return state
}

func TestReplay(t *testing.T) {
	t.Parallel()
	f := serve(t)
	id := f.create(t, api.CreateRequest{Policy: policy.Spec{Mode: policy.ModeAllowAll}})
	path := "/v2/box/" + id + "/egress/replay"
	got := f.Call(t, "POST", path+"?since=100", `{"mode":"deny-all"}`)
	var view struct {
		Version, Overflow, Lost uint64
		Traffic                 struct {
			Opens struct {
				Count uint64
				Lines []struct {
					Name string
					Last string `json:"last_seen"`
				}
			}
		}
	}
	if err := json.Unmarshal([]byte(got.Text), &view); err != nil || got.StatusCode != 200 {
		t.Fatal(got.Status, got.Text, err)
	}
	if l := view.Traffic.Opens.Lines; len(l) != 1 || l[0].Name != "deny-all" || !strings.HasPrefix(l[0].Last, "1970-01-01T") || view.Version != 1 || view.Overflow != 2 || view.Lost != 1 {
		t.Errorf("%s", got.Text)
	}
	for body, status := range map[string]int{
		`{"mode":"custom"}`: 422, `{}`: 422, `{"named":"nope"}`: 422, `{"mode":"deny-all","version":1,"leases":[]}`: 200, `{"mode":"deny-all","version":2}`: 412,
		`{"allow":{"a.example":[{"transform":[{"headers":{"x":"y"}}]}]}}`: 200,
	} {
		if got := f.Call(t, "POST", path, body); got.StatusCode != status {
			t.Errorf("%s: %s %s", body, got.Status, got.Text)
		}
	}
	for _, bad := range []string{"since=yesterday", "dry_run=1"} {
		if got := f.Call(t, "POST", path+"?"+bad, `{"mode":"deny-all"}`); got.StatusCode != 422 {
			t.Errorf("%s: %s", bad, got.Status)
		}
	}
	if got := f.Call(t, "POST", "/v2/box/nope/egress/replay", `{"mode":"deny-all"}`); got.StatusCode != 404 {
		t.Error(got.Status)
	}
}

// TestDryRun: a dry run checks all that a change checks and changes nothing.
func TestDryRun(t *testing.T) {
	t.Parallel()
	f := serve(t)
	id := f.create(t, api.CreateRequest{Policy: policy.Spec{Mode: policy.ModeAllowAll}})
	path := "/v2/box/" + id + "/config/network-policy"
	for _, s := range []struct {
		query, body string
		status      int
	}{
		{"?dry_run=1", `{"mode":"deny-all"}`, 200},
		{"?dry_run=true&since=24h", `{"mode":"deny-all","version":1}`, 200},
		{"?dry_run=true", `{"mode":"deny-all","version":2}`, 412},
		{"?dry_run=true", `{"mode":"custom"}`, 422},
		{"?dry_run=true", `{"named":"nope"}`, 422},
		{"?dry_run=true&since=yesterday", `{"mode":"deny-all"}`, 422},
		{"?dry_run=maybe", `{"mode":"deny-all"}`, 422},
		{"?since=24h", `{"mode":"deny-all"}`, 422},
	} {
		got := f.Call(t, "PUT", path+s.query, s.body)
		if got.StatusCode != s.status || s.status == 200 && got.JSON(t)["traffic"] == nil {
			t.Errorf("%s %s: %s %s", s.query, s.body, got.Status, got.Text)
		}
	}
	if now := f.host.ByID[policy.BoxID(id)].Policy; now.Version != 1 || now.Spec.Mode != policy.ModeAllowAll {
		t.Errorf("changed to %+v", now)
	}
	if got := f.Call(t, "PUT", path+"?dry_run=0", `{"mode":"deny-all"}`); got.StatusCode != 200 || got.JSON(t)["version"] != 2.0 {
		t.Error(got.Status, got.Text)
	}
}
