package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"boxgate/api"
	"boxgate/api/access"
	"boxgate/api/apitest"
	"boxgate/api/approvals"
	"boxgate/api/boxes"
	"boxgate/api/doctor"
	"boxgate/api/egress"
	"boxgate/api/exec"
	"boxgate/api/files"
	"boxgate/api/gateway"
	"boxgate/api/git"
	"boxgate/api/har"
	"boxgate/api/harness"
	"boxgate/api/keys"
	"boxgate/api/keysecrets"
	"boxgate/api/lifecycle"
	"boxgate/api/openapi"
	"boxgate/api/rest"
	"boxgate/api/rules"
	"boxgate/api/schedules"
	"boxgate/api/session"
	"boxgate/api/settings"
	"boxgate/api/snapshots"
	trailapi "boxgate/api/trail"
	"boxgate/api/urls"
)

// fixture is a running API with a memory host.
type fixture struct {
	apitest.Caller
	api  *API
	host *apitest.Host
	log  *bytes.Buffer
}

// anything implements every service.
type anything interface {
	boxes.Table
	boxes.Host
	boxes.SelfTests
	boxes.Samples
	doctor.Host
	har.Host
	lifecycle.Host
	exec.Host
	session.Host
	files.Host
	git.Host
	keysecrets.Host
	rules.Host
	settings.Rules
	settings.Host
	egress.Rules
	egress.Host
	egress.Versions
	urls.Host
	schedules.Host
	harness.Webhooks
	snapshots.Host
	keys.Host
	trailapi.Host
	gateway.Health
	gateway.Store
	gateway.Secrets
	gateway.Authorities
	gateway.Models
	approvals.Host
}

func services(h anything) Services {
	return Services{
		Boxes: h, Life: h, Lifecycle: h, Commands: h, Sessions: h, Files: h, Git: h, Rules: h, BoxRules: h, Explain: h, Settings: h, Decisions: h, Versions: h,
		URLs: h, Schedules: h, Webhooks: h, Snapshots: h, SelfTests: h, Samples: h, Doctor: h, Captures: h, Keys: h, KeySecrets: h, TrailReader: h, Health: h, Store: h, Secrets: h, Authorities: h, Approvals: h, Models: h,
	}
}

// secondServer serves the same boxes on another listener.
func (f *fixture) secondServer(t testing.TB) *http.Server {
	t.Helper()
	a, err := New(f.api.Config)
	if err != nil {
		t.Fatal(err)
	}
	return a.Server()
}

func serve(t testing.TB, edits ...func(*Config)) *fixture {
	t.Helper()
	f := &fixture{host: apitest.NewHost(t), log: &bytes.Buffer{}}
	sink := zapcore.Lock(zapcore.AddSync(f.log))
	cfg := Config{
		Services: services(f.host),
		FindKey:  f.host.FindKey,
		Log:      zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), sink, zap.DebugLevel)),
		MaxBody:  1 << 20, MaxOutput: 1 << 16,
	}
	for _, edit := range edits {
		edit(&cfg)
	}
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	f.api = a
	f.Server = httptest.NewUnstartedServer(a)
	f.Config = a.Server()
	f.Start()
	t.Cleanup(f.Close)
	t.Cleanup(f.host.End) // runs first, because a handler may wait for its command
	return f
}

// create creates a box and returns its ID.
func (f *fixture) create(t testing.TB, body string) string {
	t.Helper()
	got := f.Call(t, "POST", "/v2/box", body)
	if got.StatusCode != 201 {
		t.Fatalf("%s: %s", got.Status, got.Text)
	}
	id, _ := got.JSON(t)["id"].(string)
	return id
}

func TestKey(t *testing.T) {
	t.Parallel()
	f := serve(t)
	tests := []struct {
		name   string
		header http.Header
		status int
	}{
		{"none", http.Header{}, 401},
		{"key", http.Header{"X-Box-Api-Key": {apitest.Key}}, 200},
		{"bearer", http.Header{"Authorization": {"Bearer " + apitest.Key}}, 200},
		{"bearer in lower case", http.Header{"Authorization": {"bearer " + apitest.Key}}, 200},
		{"both the same", http.Header{"X-Box-Api-Key": {apitest.Key}, "Authorization": {"Bearer " + apitest.Key}}, 200},
		{"wrong", http.Header{"X-Box-Api-Key": {apitest.Key + "x"}}, 401},
		{"empty", http.Header{"X-Box-Api-Key": {""}}, 401},
		{"right and wrong", http.Header{"X-Box-Api-Key": {apitest.Key, "other"}}, 401},
		{"wrong and right", http.Header{"X-Box-Api-Key": {"other"}, "Authorization": {"Bearer " + apitest.Key}}, 401},
		{"basic", http.Header{"Authorization": {"Basic " + apitest.Key}}, 401},
		{"bare", http.Header{"Authorization": {apitest.Key}}, 401},
	}
	for _, tt := range tests {
		got := f.Call(t, "GET", "/v2/box", "", func(r *http.Request) { r.Header = tt.header })
		if got.StatusCode != tt.status {
			t.Errorf("%s: %s", tt.name, got.Status)
		}
		if tt.status == 401 && (got.Header.Get("WWW-Authenticate") == "" || got.JSON(t)["error"] == "") {
			t.Errorf("%s: %v %s", tt.name, got.Header, got.Text)
		}
	}
	if got := f.Call(t, "GET", "/v2/box?api_key="+apitest.Key, "", func(r *http.Request) { r.Header = http.Header{} }); got.StatusCode != 401 {
		t.Errorf("a key in the query: %s", got.Status)
	}
}

// Every path and method needs a key, except for the two probes and the public keys.
func TestEveryRouteNeedsTheKey(t *testing.T) {
	t.Parallel()
	f := serve(t)
	paths := []string{"/", "/v2", "/v2/nothing", "/v2//box", "/v2/box/../box", "/metrics"}
	for _, rt := range f.api.routes {
		paths = append(paths, strings.NewReplacer("{id}", "box1", "{port}", "80", "{run}", "x").Replace(rt.Path))
	}
	for _, path := range paths {
		for _, method := range []string{"GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"} {
			got := f.Call(t, method, path, "", func(r *http.Request) { r.Header.Del("X-Box-Api-Key") })
			probe := (path == "/healthz" || path == "/readyz" || path == "/.well-known/jwks.json") && (method == "GET" || method == "HEAD")
			if probe != (got.StatusCode == 200) || !probe && got.StatusCode != 401 {
				t.Errorf("%s %s without a key: %s", method, path, got.Status)
			}
		}
	}
}

// A web page of another site that resolves its name to this address, or posts to it, is refused even with a valid key.
func TestBrowserOfAnotherSite(t *testing.T) {
	t.Parallel()
	f := serve(t)
	own := strings.TrimPrefix(f.URL, "http://")
	_, port, _ := strings.Cut(own, ":")
	tests := []struct {
		name   string
		edit   func(*http.Request)
		status int
	}{
		{"address", func(r *http.Request) {}, 200},
		{"localhost", func(r *http.Request) { r.Host = "LocalHost:" + port }, 200},
		{"IPv6 loopback", func(r *http.Request) { r.Host = "[::1]:" + port }, 200},
		{"rebound name", func(r *http.Request) { r.Host = "evil.example:" + port }, 421},
		{"name that begins like ours", func(r *http.Request) { r.Host = "localhost.evil.example" }, 421},
		{"another address", func(r *http.Request) { r.Host = "10.0.0.1" }, 421},
		{"same origin", func(r *http.Request) { r.Header.Set("Origin", "http://"+own) }, 200},
		{"other origin", func(r *http.Request) { r.Header.Set("Origin", "http://evil.example") }, 403},
		{"same host, other port", func(r *http.Request) { r.Header.Set("Origin", "http://127.0.0.1:1") }, 403},
		{"same host over https", func(r *http.Request) { r.Header.Set("Origin", "https://"+own) }, 403},
		{"null origin", func(r *http.Request) { r.Header.Set("Origin", "null") }, 403},
		{"two origins", func(r *http.Request) { r.Header["Origin"] = []string{"http://" + own, "http://evil.example"} }, 403},
		{"cross-site fetch", func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") }, 403},
		{"same-site fetch", func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "same-site") }, 403},
	}
	for _, tt := range tests {
		if got := f.Call(t, "GET", "/v2/box", "", tt.edit); got.StatusCode != tt.status {
			t.Errorf("%s: %s, want %d", tt.name, got.Status, tt.status)
		}
	}
	got := f.Call(t, "POST", "/v2/box", `{}`, func(r *http.Request) { r.Header.Set("Content-Type", "text/plain") })
	if got.StatusCode != 415 || len(f.host.Created) != 0 {
		t.Errorf("a form post: %s", got.Status)
	}
}

func TestConfiguredHost(t *testing.T) {
	t.Parallel()
	a, err := New(Config{Services: services(apitest.NewHost(t)), FindKey: func(string) (api.Caller, bool) { return api.Caller{Role: api.RoleAdmin}, true }, Hosts: []string{"Gate.example."}})
	if err != nil {
		t.Fatal(err)
	}
	for host, status := range map[string]int{"gate.example:8600": 200, "other.example": 421, "": 421} {
		r := httptest.NewRequest("GET", "/v2/box", nil)
		r.Host = host
		r.Header.Set("X-Box-Api-Key", "k")
		w := httptest.NewRecorder()
		a.ServeHTTP(w, r)
		if w.Code != status {
			t.Errorf("Host %q: %d, want %d", host, w.Code, status)
		}
	}
}

func TestUnknownPathsAndMethods(t *testing.T) {
	t.Parallel()
	f := serve(t)
	f.create(t, `{}`)
	tests := []struct {
		method, path string
		status       int
		allow        string
	}{
		{"GET", "/v2/nothing", 404, ""},
		{"GET", "/v2/box/", 404, ""},
		{"GET", "/v2//box", 404, ""},
		{"GET", "/v2/x/../box", 404, ""},
		{"PATCH", "/v2/box", 405, "GET, POST, DELETE"},
		{"PUT", "/v2/box/box1/exec", 405, "POST"},
		{"GET", "/v2/box/nobody", 404, ""},
		{"GET", "/v2/box/..%2f..%2fetc", 404, ""},
		{"DELETE", "/v2/box/box1/preview/http", 404, ""},
		{"DELETE", "/v2/box/box1/preview/70000", 404, ""},
		{"GET", "/v2/box?lable=x", 422, ""},
		{"GET", "/v2/box?label=x&label=y", 422, ""},
	}
	for _, tt := range tests {
		got := f.Call(t, tt.method, tt.path, "")
		if got.StatusCode != tt.status || got.Header.Get("Allow") != tt.allow {
			t.Errorf("%s %s: %s, Allow %q", tt.method, tt.path, got.Status, got.Header.Get("Allow"))
		}
		if text, _ := got.JSON(t)["error"].(string); text == "" {
			t.Errorf("%s %s: no error text: %s", tt.method, tt.path, got.Text)
		}
	}
}

// TestAgentsAreRefused: runs of agents are refused in a box without a custom harness.
func TestAgentsAreRefused(t *testing.T) {
	t.Parallel()
	f := serve(t)
	id := f.create(t, `{}`)
	for _, path := range []string{"/run", "/run/stream"} {
		if got := f.Call(t, "POST", "/v2/box/"+id+path, `{"prompt":"hi"}`); got.StatusCode != 501 || !strings.Contains(got.Text, "custom harness") {
			t.Errorf("%s: %s %s", path, got.Status, got.Text)
		}
	}
}

func TestHealth(t *testing.T) {
	t.Parallel()
	f := serve(t)
	f.host.NotReady = errors.New("table boxgate is missing")
	noKey := func(r *http.Request) { r.Header.Del("X-Box-Api-Key"); r.Host = "pod-7.cluster" }
	if got := f.Call(t, "GET", "/healthz", "", noKey); got.StatusCode != 200 {
		t.Error(got.Status)
	}
	got := f.Call(t, "GET", "/readyz", "", noKey)
	if got.StatusCode != 503 || strings.Contains(got.Text, "table") {
		t.Errorf("%s %s", got.Status, got.Text)
	}
	if !strings.Contains(f.log.String(), "table boxgate is missing") {
		t.Errorf("the log does not say what is missing: %s", f.log)
	}
}

// Internal failures stay internal: neither errors nor panics reveal anything to the caller, and panic values are not
// logged.
func TestFailuresSayNothing(t *testing.T) {
	t.Parallel()
	f := serve(t)
	f.host.Fail = errors.New("bolt: /var/lib/secret-path is locked")
	got := f.Call(t, "GET", "/v2/box/box1", "")
	if got.StatusCode != 500 || strings.Contains(got.Text, "bolt") {
		t.Errorf("%s %s", got.Status, got.Text)
	}
	f.host.Crash = true
	got = f.Call(t, "POST", "/v2/box", `{"env_vars":{"A":"sk-env"}}`)
	if got.StatusCode != 500 || strings.Contains(got.Text, "sk-") {
		t.Errorf("%s %s", got.Status, got.Text)
	}
	if log := f.log.String(); !strings.Contains(log, "panic") || strings.Contains(log, "sk-") {
		t.Errorf("log: %s", log)
	}
	f.host.Crash, f.host.Fail = false, nil
	if got := f.Call(t, "GET", "/v2/box", ""); got.StatusCode != 200 {
		t.Errorf("after a panic: %s", got.Status)
	}
}

// /openapi.json contains exactly the served routes.
func TestOpenAPI(t *testing.T) {
	t.Parallel()
	f := serve(t)
	f.create(t, `{}`)
	var doc struct {
		OpenAPI    string
		Paths      map[string]map[string]struct{ Summary string }
		Components struct{ Schemas map[string]any }
	}
	got := f.Call(t, "GET", "/openapi.json", "")
	if err := json.Unmarshal([]byte(got.Text), &doc); err != nil || doc.OpenAPI != "3.1.0" {
		t.Fatal(err, got.Text)
	}
	for _, rt := range f.api.routes {
		if doc.Paths[rt.Path][strings.ToLower(rt.Method)].Summary == "" {
			t.Errorf("%s %s is not described", rt.Method, rt.Path)
		}
	}
	for path, methods := range doc.Paths {
		for method := range methods {
			if !slices.ContainsFunc(f.api.routes, func(rt rest.Route) bool { return rt.Path == path && strings.EqualFold(rt.Method, method) }) {
				t.Errorf("%s %s is described but not there", method, path)
			}
			url := strings.NewReplacer("{id}", "box1", "{port}", "80", "{run}", "none", "{key}", "NAME", "{label}", "none", "{schedule}", "none", "{api_key}", "none").Replace(path)
			answered := f.Call(t, strings.ToUpper(method), url, "")
			if answered.StatusCode == 405 || strings.Contains(answered.Text, "no such path") {
				t.Errorf("%s %s is described but not served: %s", method, url, answered.Text)
			}
			if method == "delete" && path == "/v2/box/{id}" {
				f.create(t, `{}`)
			}
		}
	}
	for _, ref := range strings.Split(got.Text, `"#/components/schemas/`)[1:] {
		name, _, _ := strings.Cut(ref, `"`)
		if doc.Components.Schemas[name] == nil {
			t.Errorf("the schema %s is referred to but missing", name)
		}
	}
}

// TestHeaderRulesInTheDescription: the document contains both forms of an entry.
func TestHeaderRulesInTheDescription(t *testing.T) {
	t.Parallel()
	f := serve(t)
	got := f.Call(t, "GET", "/openapi.json", "")
	for _, want := range []string{`"headerEntryBody"`, `"headerValueBody"`, `"placeholders"`, `"anyOf"`, `"patch"`} {
		if !strings.Contains(got.Text, want) {
			t.Errorf("no %s", want)
		}
	}
}

// TestEveryRouteIsDescribed: each route has everything that its description requires.
func TestEveryRouteIsDescribed(t *testing.T) {
	t.Parallel()
	for _, lack := range openapi.Missing(serve(t).api.routes) {
		t.Error(lack)
	}
}

// TestPathsOfTheHostedProductAlone: paths that this gateway will never serve are answered with an alternative.
func TestPathsOfTheHostedProductAlone(t *testing.T) {
	t.Parallel()
	f := serve(t)
	id := f.create(t, `{}`)
	for _, path := range []string{"/browser", "/browser/tabs", "/steps", "/steps/abc1234/diff"} {
		if got := f.Call(t, "GET", "/v2/box/"+id+path, ""); got.StatusCode != 501 || !strings.Contains(got.Text, "this gateway") {
			t.Errorf("%s: %s %s", path, got.Status, got.Text)
		}
	}
	for _, at := range []string{
		"GET agent-credentials", "POST agent-credentials", "DELETE agent-credentials/anthropic",
		"GET github/status", "GET github/install-url", "GET github/repos/o/r/branches", "DELETE github/installation",
	} {
		method, path, _ := strings.Cut(at, " ")
		if got := f.Call(t, method, "/v2/box/"+path, ""); got.StatusCode != 501 || !strings.Contains(got.Text, "this gateway") {
			t.Errorf("%s: %s %s", at, got.Status, got.Text)
		}
	}
	for _, name := range []string{"agent-credentials", "github"} {
		if got := f.Call(t, "POST", "/v2/box", `{"name":"`+name+`"}`); got.StatusCode != 422 || !strings.Contains(got.Text, "reserved") {
			t.Errorf("a box named %s: %s %s", name, got.Status, got.Text)
		}
	}
	for _, path := range []string{"/v2/box/" + id + "/browse", "/v2/browser", "/browser"} {
		if got := f.Call(t, "GET", path, ""); got.StatusCode != 404 {
			t.Errorf("%s: %s %s", path, got.Status, got.Text)
		}
	}
}

// TestSessionsByPlainRequests: a request without a WebSocket handshake is refused with an error of this API.
func TestSessionsByPlainRequests(t *testing.T) {
	t.Parallel()
	f := serve(t)
	id := f.create(t, `{}`)
	got := f.Call(t, "GET", "/v2/box/"+id+"/exec-session", "")
	if got.StatusCode != 426 || got.Header.Get("Upgrade") != "websocket" || !strings.Contains(got.Text, `"error"`) {
		t.Errorf("%s %v %s", got.Status, got.Header, got.Text)
	}
}

// doors lists every endpoint that changes state, by the quota that bounds the objects it makes; "" if it needs no quota.
// TestCommandsOfAKeyAreBounded and the end-to-end test TestAKeyHasNoMoreObjectsThanItMay call those with a quota that
// non-admin keys may use.
var doors = map[string][]string{
	"boxes":     {"createBox", "createBoxFromSnapshot", "attachBox"},
	"snapshots": {"takeSnapshot"},            // also snapshot_bytes
	"urls":      {"createUrl", "sharePorts"}, // createUrl also domains
	"schedules": {"addSchedule"},
	"secrets":   {"createKeySecret"},
	"commands":  {"runCommand", "streamCommand", "startCommand", "runCode", "streamCode", "openSession", "startProcess", "runAgent", "streamAgent", "gitClone", "gitCommit", "gitPush", "gitCheckout", "gitExec", "gitCreatePullRequest"},
	"": { // makes no lasting objects, or only a bounded number per box
		"reattachBox", "detachBox", "createBoxToken", "deleteBoxToken", "deleteBoxes", "deleteBox", "testBox", "diagnoseHost", "captureRequests", "pauseBox", "resumeBox", "writeProcess", "signalProcess", "resizeProcess", "setStartup", "deleteStartup", "setInitCommand", "deleteInitCommand", "cancelRun",
		"writeFile", "makeDirectory", "removeFile", "renameFile", "unpackFiles", "uploadFiles", "setFileAttributes", "setGitIdentity", "setGitIdentityAsBefore",
		"setLifetime", "setEnd", "suspendBox", "setMetadata", "setPolicy", "addLeases", "endLeases", "setEnforcement", "setNetwork", "setHeaders", "changeHeaders", "setGlobalHeaders", "changeGlobalHeaders", "setNamedPolicy", "deleteNamedPolicy", "deleteUrl", "signUrl", "unsharePorts",
		"changeSchedule", "deleteSchedule", "pauseSchedule", "resumeSchedule", "deleteSnapshot", "deleteSnapshots", "setEnvironment", "setVariable", "deleteVariable", "addLabel", "removeLabel",
		"setSource", "changeLimits", "setModel", "setCustomRunner", "addSkill", "removeSkill", "removeRepository", "refreshSecret", "replaceKeySecret", "deleteKeySecret", "rotateStoreKey", "backupStore", "rotateApiKey",
		"createApiKey", "changeApiKey", "deleteApiKey", "replaceApiKey", "addSshKey", "deleteSshKey", "answerApproval", "setAsking",
		"cordonHost", "uncordonHost",
	},
}

// TestEveryDoorIsKnown requires an entry for each endpoint that changes state, so that a new one gets a quota.
func TestEveryDoorIsKnown(t *testing.T) {
	t.Parallel()
	known := map[string]bool{}
	for _, routes := range doors {
		for _, r := range routes {
			known[r] = true
		}
	}
	for _, r := range access.Routes() {
		if access.Changes(r) && !known[r] {
			t.Errorf("which quota bounds what %s makes?", r)
		}
		delete(known, r)
	}
	for r := range known {
		t.Errorf("there is no endpoint %s", r)
	}
}
