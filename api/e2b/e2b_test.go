package e2b

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/api/e2b/token"
	"boxgate/api/strict"
)

// own answers calls of boxgate's API with fixed responses, by method and path, and records the calls.
type own struct {
	answers map[string]string // the body, or a status and the text of an error
	calls   []string          // method, path and body
	ports   []string          // likewise, of calls about ports
}

func (o *own) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	if made := strings.TrimSpace(r.Method + " " + r.URL.Path + " " + string(body)); strings.HasSuffix(r.URL.Path, "/config/ports") {
		o.ports = append(o.ports, made)
	} else {
		o.calls = append(o.calls, made)
	}
	text, ok := o.answers[r.Method+" "+r.URL.Path]
	var status int
	var why string
	if n, _ := fmt.Sscanf(text, "%d %q", &status, &why); n == 2 {
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(map[string]string{"error": why})
		return
	}
	if !ok {
		w.WriteHeader(http.StatusNotFound)
		text = `{"error":"no box"}`
	}
	_, _ = io.WriteString(w, text)
}

const oneBox = `{"id":"box1","size":"small","runtime":"","status":"idle","created_at":1000,"expires_at":4000000000,"network_policy":{"mode":"allow-all"}}`

// portsOff is the call that shares the ports of a new box, which most tests refuse.
const portsOff = "PUT /v2/box/box1/config/ports"

func endpoints(t testing.TB, answers map[string]string) (*Endpoints, *own) {
	t.Helper()
	maker, err := token.NewMaker(bytes.Repeat([]byte{1}, token.SecretSize))
	if err != nil {
		t.Fatal(err)
	}
	o := &own{answers: answers}
	if o.answers == nil {
		o.answers = map[string]string{}
	}
	if _, ok := o.answers[portsOff]; !ok {
		o.answers[portsOff] = `403 "public URLs are turned off"`
	}
	return New(Config{Own: o, Maker: maker, Domain: "boxes.example", Images: []string{"default", "node"}, Bodies: strict.Bodies{Most: 1 << 20}}), o
}

// call makes a call of E2B's API with the key key_a.
func call(e *Endpoints, method, path, body string) (int, string, http.Header) {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set(api.KeyHeader, "secret-a")
	r = r.WithContext(api.WithCaller(r.Context(), api.Caller{Key: "key_a", Role: api.RoleCreator}))
	w := httptest.NewRecorder()
	e.ServeHTTP(w, r)
	return w.Code, w.Body.String(), w.Header()
}

// sameJSON compares JSON.
func sameJSON(t *testing.T, got, want string) {
	t.Helper()
	var a, b any
	if json.Unmarshal([]byte(got), &a) != nil || json.Unmarshal([]byte(want), &b) != nil || !reflect.DeepEqual(a, b) {
		t.Errorf("%s\nwant %s", got, want)
	}
}

// A sandbox is one call of boxgate's API, with its network, and the response has the token of the caller's key.
func TestCreate(t *testing.T) {
	t.Parallel()
	const base = `"ephemeral":true,"user":"user","home":"/home/user"`
	for body, want := range map[string]string{
		`{"templateID":"base"}`: `{"ttl":300,` + base + `}`,
		`{"templateID":"node","timeout":60,"secure":false,"envVars":{"A":"b"}}`:                       `{"ttl":60,"runtime":"node","env_vars":{"A":"b"},` + base + `}`,
		`{"templateID":"base","timeout":0,"metadata":{"k":"v"}}`:                                      `{"ttl":1,"metadata":{"k":"v"},` + base + `}`,
		`{"templateID":"base","autoPause":true,"autoPauseMemory":true,"autoResume":{"enabled":true}}`: `{"ttl":300,"on_end":"pause","auto_resume":true,` + base + `}`,
		`{"templateID":"base","autoPause":false,"autoResume":{"enabled":false},"iam":{}}`:             `{"ttl":300,` + base + `}`,
		`{"templateID":"base","allow_internet_access":false}`:                                         `{"ttl":300,"network_policy":{"allow_internet_access":false},` + base + `}`,
		`{"templateID":"base","network":{"allowOut":["a.example"],"denyOut":["0.0.0.0/0"],"egressProxy":{"address":"p.example:1080"},"rules":{
			"a.example":[{"transform":{"headers":{"X-A":"1","authorization":"old"}}},{},{"transform":{"headers":{"Authorization":"Bearer ${e2b.secrets.openai}!"}}}],"b.example":[{}]}}}`: `{"ttl":300,
			"network_policy":{"allowOut":["a.example"],"denyOut":["0.0.0.0/0"],"egressProxy":{"address":"p.example:1080"}},
			"attach_headers":{"a.example":{"headers":{"X-A":"1","Authorization":{"secret":"openai","prefix":"Bearer ","suffix":"!"}}}},` + base + `}`,
	} {
		e, o := endpoints(t, map[string]string{"POST /v2/box": oneBox})
		status, text, _ := call(e, "POST", "/v2/sandboxes", body)
		if status != 201 || len(o.calls) != 1 {
			t.Errorf("%s: %d %s %q", body, status, text, o.calls)
			continue
		}
		sameJSON(t, strings.TrimPrefix(o.calls[0], "POST /v2/box "), want)
		sameJSON(t, text, `{"sandboxID":"box1","templateID":"base","clientID":"boxgate","envdVersion":"`+Version+`","domain":"boxes.example","envdAccessToken":"`+
			e.Maker.Token("box1", token.OwnerOf(api.Caller{Key: "key_a"}, "secret-a")).Reveal()+`"}`)
	}
}

// A field that cannot be honoured is refused before any call of boxgate's API, and so is one that is unknown: it could restrict something.
func TestCreateRefuses(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		`{"templateID":"base","mcp":{"exa":{"apiKey":"x"}}}`:                                                                           "/mcp",
		`{"templateID":"base","volumeMounts":[{"name":"v","path":"/v"}]}`:                                                              "/volumeMounts",
		`{"templateID":"base","iam":{"tokens":{"aws":{"audience":"a","tokenType":"JWT-SVID"}}}}`:                                       "/iam",
		`{"templateID":"base","autoPause":true,"autoPauseMemory":false}`:                                                               "/autoPauseMemory",
		`{"templateID":"base","autoResume":{"enabled":true}}`:                                                                          "/autoResume",
		`{"templateID":"base","network":{"denyIn":["0.0.0.0/0"]}}`:                                                                     "/network/denyIn",
		`{"templateID":"base","onlyFrom":["x"]}`:                                                                                       "/onlyFrom",
		`{"templateID":"base","network":{"rules":{"a.example":[{"transform":{"headers":{"A":"${e2b.identity.tokens.aws}"}}}]}}}`:       "/network/rules/a.example/0/transform/headers/A",
		`{"templateID":"base","network":{"rules":{"a.example":[{"transform":{"headers":{"A":"${e2b.secrets.a}${e2b.secrets.b}"}}}]}}}`: "/network/rules/a.example/0/transform/headers/A",
		`{"templateID":"base","network":{"rules":{"a.example":[{"transform":{"headers":{"A":"${e2b.secrets.a"}}}]}}}`:                  "/network/rules/a.example/0/transform/headers/A",
		`{`: "",
	} {
		e, o := endpoints(t, map[string]string{"POST /v2/box": oneBox})
		status, text, _ := call(e, "POST", "/sandboxes", body)
		if status != 400 || !strings.Contains(text, want) || !strings.HasPrefix(text, `{"code":400,"message":`) || len(o.calls) > 0 {
			t.Errorf("%s: %d %s %q, want %s", body, status, text, o.calls, want)
		}
	}
}

// Errors of boxgate's API have E2B's form, status and names of fields.
func TestErrors(t *testing.T) {
	t.Parallel()
	for answer, want := range map[string]string{
		`422 "/network_policy/allowOut/0: is wrong"`: `{"code":400,"message":"/network/allowOut/0: is wrong"}`,
		`403 "no"`:             `{"code":403,"message":"no"}`,
		`429 "slow"`:           `{"code":429,"message":"slow"}`,
		`503 "later"`:          `{"code":503,"message":"later"}`,
		`500 "internal error"`: `{"code":500,"message":"internal error"}`,
	} {
		e, _ := endpoints(t, map[string]string{"POST /v2/box": answer})
		_, text, _ := call(e, "POST", "/sandboxes", `{"templateID":"base"}`)
		sameJSON(t, text, want)
	}
	e, o := endpoints(t, nil)
	for _, path := range []string{"GET /sandboxes/x", "DELETE /sandboxes/x", "POST /sandboxes/x/pause", "POST /v2/sandboxes/x/connect", "GET /sandboxes/x/metrics", "GET /sandboxes/x/logs", "POST /sandboxes/x/snapshots",
		"GET /sandboxes/..%2f..%2fapi-keys", "GET /sandboxes/x%2fy", "GET /sandboxes/" + strings.Repeat("x", 80), "GET /nodes", "GET /v2/sandboxes/x/other"} {
		method, path, _ := strings.Cut(path, " ")
		if status, text, _ := call(e, method, path, ""); status != 404 || !strings.Contains(text, `"code":404`) {
			t.Errorf("%s %s: %d %s", method, path, status, text)
		}
	}
	for _, c := range o.calls {
		if !strings.Contains(c, "/v2/box/x") {
			t.Errorf("the call %q", c)
		}
	}
	for pattern := range refusals {
		method, path, ok := strings.Cut(pattern, " ")
		if !ok {
			method, path = "GET", pattern
		}
		if status, text, _ := call(e, method, strings.NewReplacer("{rest...}", "a/b", "{", "", "}", "").Replace(path), ""); status != 501 || !strings.Contains(text, `"code":501`) {
			t.Errorf("%s: %d %s", pattern, status, text)
		}
	}
}

// Pausing stops the clock of a sandbox; opening a paused one starts it again, and one that runs keeps the later end.
func TestLifecycle(t *testing.T) {
	t.Parallel()
	paused := strings.Replace(oneBox, "idle", "paused", 1)
	failed := strings.Replace(oneBox, "idle", "error", 1)
	const get, ttl = "GET /v2/box/box1", "PUT /v2/box/box1/config/ttl"
	atEnd := strings.Replace(paused, `"size"`, `"paused_at_end":true,"size"`, 1)
	done := map[string]string{ttl: `{}`, "POST /v2/box/box1/pause": `{}`, "POST /v2/box/box1/suspend": `{}`, "POST /v2/box/box1/resume": `{}`}
	for _, tt := range []struct {
		box, path, body string
		status          int
		calls           []string
	}{
		{oneBox, "/sandboxes/box1/pause", ``, 204, []string{get, "POST /v2/box/box1/suspend"}},
		{oneBox, "/sandboxes/box1/pause", `{"memory":true}`, 204, []string{get, "POST /v2/box/box1/suspend"}},
		{strings.Replace(oneBox, "4000000000", "0", 1), "/sandboxes/box1/pause", ``, 204, []string{get, "POST /v2/box/box1/pause"}},
		{atEnd, "/v2/sandboxes/box1/connect", `{"timeout":60}`, 201, []string{get, "POST /v2/box/box1/resume", ttl + ` {"ttl":60}`}},
		{oneBox, "/sandboxes/box1/pause", `{"memory":false}`, 400, nil},
		{paused, "/sandboxes/box1/pause", ``, 409, []string{get}},
		{paused, "/v2/sandboxes/box1/connect", `{"timeout":60}`, 201, []string{get, ttl + ` {"ttl":60}`, "POST /v2/box/box1/resume"}},
		{paused, "/sandboxes/box1/resume", ``, 201, []string{get, ttl + ` {"ttl":300}`, "POST /v2/box/box1/resume"}},
		{oneBox, "/sandboxes/box1/resume", ``, 409, []string{get}},
		{oneBox, "/v2/sandboxes/box1/connect", ``, 200, []string{get}},
		{oneBox, "/v2/sandboxes/box1/connect", `{"timeout":60}`, 200, []string{get}},
		{strings.Replace(oneBox, "4000000000", "1001", 1), "/v2/sandboxes/box1/connect", `{"timeout":60}`, 200, []string{get, ttl + ` {"ttl":60}`}},
		{strings.Replace(oneBox, "4000000000", "0", 1), "/v2/sandboxes/box1/connect", `{"timeout":60}`, 200, []string{get}},
		{oneBox, "/v2/sandboxes/box1/connect", `{"memory":false}`, 400, nil},
		{failed, "/v2/sandboxes/box1/connect", ``, 404, []string{get}},
		{oneBox, "/sandboxes/box1/timeout", `{"timeout":90}`, 204, []string{get, ttl + ` {"ttl":90}`}},
		{oneBox, "/sandboxes/box1/timeout", `{}`, 400, nil},
		{paused, "/sandboxes/box1/timeout", `{"timeout":90}`, 409, []string{get}},
		{oneBox, "/sandboxes/box1/refreshes", ``, 204, []string{get}},
	} {
		e, o := endpoints(t, done)
		o.answers = map[string]string{get: tt.box}
		for k, v := range done {
			o.answers[k] = v
		}
		if status, text, _ := call(e, "POST", tt.path, tt.body); status != tt.status || !slices.Equal(o.calls, tt.calls) {
			t.Errorf("%s %s: %d %s %q", tt.path, tt.body, status, text, o.calls)
		}
	}
	e, o := endpoints(t, map[string]string{get: oneBox, "POST /v2/box/box1/pause": `{}`, "POST /v2/box/box1/suspend": `403 "a key for one box"`})
	if status, text, _ := call(e, "POST", "/sandboxes/box1/pause", ""); status != 204 || len(o.calls) != 3 {
		t.Errorf("a pause with a key for one box: %d %s %q", status, text, o.calls)
	}
}

// An update of the network replaces the policy and the header rules in one call; absent fields are cleared.
func TestNetwork(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		`{}`:                              `{"network_policy":{"allow_internet_access":true},"attach_headers":{}}`,
		`{"allow_internet_access":false}`: `{"network_policy":{"allow_internet_access":false},"attach_headers":{}}`,
		`{"denyOut":["10.0.0.0/8"],"rules":{"a.example":[{"transform":{"headers":{"A":"b"}}}]}}`: `{"network_policy":{"allow_internet_access":true,"denyOut":["10.0.0.0/8"]},"attach_headers":{"a.example":{"headers":{"A":"b"}}}}`,
	} {
		e, o := endpoints(t, map[string]string{"PUT /v2/box/box1/config/network": `{}`})
		if status, text, _ := call(e, "PUT", "/sandboxes/box1/network", body); status != 204 || len(o.calls) != 1 {
			t.Errorf("%s: %d %s %q", body, status, text, o.calls)
			continue
		}
		sameJSON(t, strings.TrimPrefix(o.calls[0], "PUT /v2/box/box1/config/network "), want)
	}
	e, o := endpoints(t, nil)
	if status, _, _ := call(e, "PUT", "/sandboxes/box1/network", `{"allowPublicTraffic":false}`); status != 400 || len(o.calls) > 0 {
		t.Errorf("a field of a create request: %d %q", status, o.calls)
	}
	e, _ = endpoints(t, map[string]string{
		"GET /v2/box/box1":                `{"id":"box1","size":"small","status":"running","network_policy":{"mode":"custom","allowed_domains":["a.example"]}}`,
		"GET /v2/box/box1/config/network": `{"attach_headers":{"a.example":["Authorization"]}}`,
	})
	_, text, _ := call(e, "GET", "/sandboxes/box1", "")
	var got struct{ Network json.RawMessage }
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	sameJSON(t, string(got.Network), `{"allowPublicTraffic":false,"allowOut":["a.example"],"denyOut":["0.0.0.0/0","::/0"],"rules":{"a.example":[{"transform":{"headers":{"Authorization":"[redacted]"}}}]}}`)
}

// The ports of a sandbox need the traffic token unless its creator opens them. A sharing that was chosen and fails leaves no box, and a
// token is shown for as long as the ports have it.
func TestPorts(t *testing.T) {
	t.Parallel()
	const get, share, drop = "GET /v2/box/box1/config/ports", portsOff, "DELETE /v2/box/box1"
	e, _ := endpoints(t, nil)
	token := e.Maker.PortToken("box1").Reveal()
	if other := e.Maker.PortToken("box2").Reveal(); other == token || len(token) < 43 {
		t.Errorf("tokens %s and %s", token, other)
	}
	withToken := `{"access":"token","token":"` + token + `"}`
	for _, tt := range []struct {
		network, answer, sent, traffic string
		public                         bool
		status                         int
		left                           bool
	}{
		{``, `{}`, withToken, token, false, 201, true},
		{``, `{}`, `{"access":"public"}`, "", true, 201, true},
		{`{"allowPublicTraffic":true}`, `{}`, `{"access":"public"}`, "", false, 201, true},
		{`{"allowPublicTraffic":false,"maskRequestHost":"localhost:${PORT}","httpsPorts":[8443]}`, `{}`, `{"access":"token","token":"` + token + `","host":"localhost:${PORT}","https_ports":[8443]}`, token, true, 201, true},
		{``, `403 "off"`, withToken, "", false, 201, true},
		{`{"allowPublicTraffic":true}`, `403 "off"`, `{"access":"public"}`, "", false, 403, false},
		{``, `429 "too many"`, withToken, "", false, 429, false},
		{``, `503 "later"`, withToken, "", false, 503, false},
	} {
		e, o := endpoints(t, map[string]string{"POST /v2/box": oneBox, share: tt.answer, drop: `{}`})
		e.PublicTraffic = tt.public
		body := `{"templateID":"base"}`
		if tt.network != "" {
			body = `{"templateID":"base","network":` + tt.network + `}`
		}
		status, text, _ := call(e, "POST", "/v2/sandboxes", body)
		var got struct{ TrafficAccessToken string }
		_ = json.Unmarshal([]byte(text), &got)
		if status != tt.status || got.TrafficAccessToken != tt.traffic || len(o.ports) != 1 || slices.Contains(o.calls, drop) == tt.left {
			t.Errorf("%s, %s: %d %s %q %q", tt.network, tt.answer, status, text, o.calls, o.ports)
			continue
		}
		sameJSON(t, strings.TrimPrefix(o.ports[0], share+" "), tt.sent)
	}
	for answer, want := range map[string]string{
		`{"access":"token","token_fingerprint":"` + api.TokenFingerprint(token) + `"}`: token, `{"access":"token","token_fingerprint":"00000000"}`: "", `{"access":"token"}`: "", `{"access":"public"}`: "", `404 "no"`: "",
	} {
		e, _ := endpoints(t, map[string]string{"GET /v2/box/box1": oneBox, get: answer})
		_, text, _ := call(e, "POST", "/v2/sandboxes/box1/connect", "")
		var got struct{ TrafficAccessToken string }
		if err := json.Unmarshal([]byte(text), &got); err != nil || got.TrafficAccessToken != want {
			t.Errorf("%s: %s", answer, text)
		}
	}
}

// A list has filters and pages.
func TestList(t *testing.T) {
	t.Parallel()
	const all = `[{"id":"a","status":"idle","created_at":100,"metadata":{"u":"x y&z"}},{"id":"b","status":"paused","created_at":200},{"id":"c","status":"error","created_at":300},
		{"id":"d","status":"running","created_at":200,"runtime":"node","metadata":{"u":"1","v":"2"}}]`
	for query, want := range map[string]string{
		"": "d b a", "?order=asc": "a b d", "?state=running": "d a", "?state=paused": "b", "?state=running,paused": "d b a", "?template=node": "d", "?template=base": "b a",
		"?metadata=u%3Dx%252520y%252526z": "a", "?metadata=u%3D1%26v%3D2": "d", "?metadata=u%3D1%26v%3D3": "", "?startedAfter=1970-01-01T00:03:20.000Z": "d b", "?startedAfter=1970-01-01T00:03:21Z": "",
	} {
		e, _ := endpoints(t, map[string]string{"GET /v2/box": all})
		status, text, header := call(e, "GET", "/v2/sandboxes"+query, "")
		if got := idsOf(t, text); status != 200 || got != want || header.Get(nextHeader) != "" || header.Get("X-Total-Running") != "2" {
			t.Errorf("%s: %d %q %s", query, status, got, text)
		}
	}
	e, _ := endpoints(t, map[string]string{"GET /v2/box": all})
	if _, text, _ := call(e, "GET", "/sandboxes", ""); idsOf(t, text) != "d a" {
		t.Errorf("the first version lists %s", text)
	}
	var seen []string
	for next := ""; ; {
		_, text, header := call(e, "GET", "/v2/sandboxes?limit=2&nextToken="+next, "")
		seen = append(seen, idsOf(t, text))
		if next = header.Get(nextHeader); next == "" {
			break
		}
	}
	if !slices.Equal(seen, []string{"d b", "a"}) {
		t.Errorf("pages %q", seen)
	}
	_, _, header := call(e, "GET", "/v2/sandboxes?limit=1", "") // ends at d
	for order, want := range map[string]string{"": "b a", "&order=asc": ""} {
		fewer, _ := endpoints(t, map[string]string{"GET /v2/box": `[{"id":"a","status":"idle","created_at":100},{"id":"b","status":"paused","created_at":200}]`})
		if _, text, _ := call(fewer, "GET", "/v2/sandboxes?nextToken="+header.Get(nextHeader)+order, ""); idsOf(t, text) != want {
			t.Errorf("after an item that is gone%s: %s", order, text)
		}
	}
	for _, query := range []string{"?state=dead", "?limit=0", "?limit=1001", "?nextToken=%25", "?order=up", "?startedAfter=now", "?owner=me", "?limit=1&limit=2", "?metadata=%3B"} {
		if status, text, _ := call(e, "GET", "/v2/sandboxes"+query, ""); status != 400 {
			t.Errorf("%s: %d %s", query, status, text)
		}
	}
}

func idsOf(t *testing.T, text string) string {
	t.Helper()
	var list []struct{ SandboxID string }
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		t.Errorf("%s: %v", text, err)
	}
	var ids []string
	for _, s := range list {
		ids = append(ids, s.SandboxID)
	}
	return strings.Join(ids, " ")
}

// The name of an image comes before that of a snapshot, and the name that another key gave its snapshot finds none.
func TestTemplates(t *testing.T) {
	t.Parallel()
	const list = `{"snapshots":[{"id":"snap_1","name":"mine","box_id":"b","created_by":"key_a","status":"ready","created_at":1},{"id":"snap_2","name":"mine","box_id":"b","created_by":"key_a","status":"ready","created_at":2},
		{"id":"snap_3","name":"mine","box_id":"c","created_by":"key_b","status":"ready","created_at":3},{"id":"snap_4","name":"theirs","box_id":"c","status":"ready"},{"id":"snap_5","name":"node","box_id":"b","created_by":"key_a","status":"ready"},
		{"id":"snap_6","name":"base","box_id":"b","created_by":"key_a","status":"ready"},{"id":"snap_7","name":"mine","box_id":"b","created_by":"key_a","status":"error"}]}`
	for id, want := range map[string]string{
		"base": "", "": "", "node": `"runtime":"node"`, "mine": `"snapshot_id":"snap_2"`, "snap_1": `"snapshot_id":"snap_1"`, "snap_3": `"snapshot_id":"snap_3"`, "theirs": "404", "debian": "404", "snap_9": "404",
	} {
		e, o := endpoints(t, map[string]string{"GET /v2/box/snapshots": list, "POST /v2/box": oneBox, "POST /v2/box/from-snapshot": oneBox})
		status, text, _ := call(e, "POST", "/v2/sandboxes", `{"templateID":"`+id+`"}`)
		if want == "404" {
			if status != 404 {
				t.Errorf("%s: %d %s", id, status, text)
			}
			continue
		}
		last := o.calls[len(o.calls)-1]
		if status != 201 || !strings.Contains(last, want) || strings.Contains(want, "snapshot") != strings.HasPrefix(last, "POST /v2/box/from-snapshot") {
			t.Errorf("%s: %d %s %q", id, status, text, last)
		}
	}
	e, o := endpoints(t, map[string]string{"GET /v2/box/snapshots": list, "DELETE /v2/box/snapshots": `{}`})
	for path, want := range map[string]int{"DELETE /templates/snap_1": 204, "DELETE /templates/node": 403, "DELETE /templates/theirs": 404, "GET /templates/aliases/mine": 200, "GET /templates/aliases/nope": 404,
		"GET /templates/mine/tags": 200, "GET /templates/mine/other": 404, "GET /templates/mine": 200, "GET /v2/templates": 200} {
		method, path, _ := strings.Cut(path, " ")
		if status, text, _ := call(e, method, path, ""); status != want {
			t.Errorf("%s %s: %d %s", method, path, status, text)
		}
	}
	if i := slices.IndexFunc(o.calls, func(c string) bool { return strings.HasPrefix(c, "DELETE") }); i < 0 || strings.Count(strings.Join(o.calls, "\n"), "DELETE") != 1 {
		t.Errorf("%q", o.calls)
	}
	if status, text, _ := call(e, "POST", "/sandboxes/box1/snapshots", `{"name":"node"}`); status != 400 {
		t.Errorf("a snapshot with the name of an image: %d %s", status, text)
	}
}

// Metrics are the samples of a box within the asked time.
func TestMetrics(t *testing.T) {
	t.Parallel()
	const samples = `{"interval_seconds":5,"cpus":2,"memory_total_bytes":4096,"disk_total_bytes":9000,"samples":[
		{"at":100.5,"cpu_percent":1.5,"memory_bytes":100,"memory_cache_bytes":40,"disk_bytes":7},{"at":105,"cpu_percent":2,"memory_bytes":200,"memory_cache_bytes":0,"disk_bytes":8}]}`
	e, o := endpoints(t, map[string]string{"GET /v2/box/box1": oneBox, "GET /v2/box/box1/usage/samples": samples, "GET /v2/box": "[" + oneBox + "]"})
	const first = `{"timestamp":"1970-01-01T00:01:40.5Z","timestampUnix":100,"cpuCount":2,"cpuUsedPct":1.5,"memUsed":60,"memTotal":4096,"memCache":40,"diskUsed":7,"diskTotal":9000}`
	const second = `{"timestamp":"1970-01-01T00:01:45Z","timestampUnix":105,"cpuCount":2,"cpuUsedPct":2,"memUsed":200,"memTotal":4096,"memCache":0,"diskUsed":8,"diskTotal":9000}`
	for query, want := range map[string]string{"": "[" + first + "," + second + "]", "?start=101": "[" + second + "]", "?end=104": "[" + first + "]", "?start=106&end=200": "[]"} {
		_, text, _ := call(e, "GET", "/sandboxes/box1/metrics"+query, "")
		sameJSON(t, text, want)
	}
	_, text, _ := call(e, "GET", "/sandboxes/metrics?sandbox_ids=box1,box2", "")
	sameJSON(t, text, `{"sandboxes":{"box1":`+second+`}}`)
	for _, query := range []string{"/box1/metrics?start=x", "/box1/metrics?start=2&end=1", "/metrics?ids=box1", "/metrics?sandbox_ids=" + strings.Repeat("x", 101)} {
		if status, text, _ := call(e, "GET", "/sandboxes"+strings.Replace(query, strings.Repeat("x", 101), commas(101), 1), ""); status != 400 {
			t.Errorf("%s: %d %s", query, status, text)
		}
	}
	if len(o.calls) == 0 {
		t.Error("there was no call")
	}
}

// commas returns n IDs.
func commas(n int) string {
	var ids []string
	for i := range n {
		ids = append(ids, fmt.Sprint("box", i))
	}
	return strings.Join(ids, ",")
}

// A fork is a snapshot, boxes from it, and the end of the snapshot.
func TestFork(t *testing.T) {
	t.Parallel()
	snapshot := `{"id":"snap_1","box_id":"box1","status":"ready"}`
	e, o := endpoints(t, map[string]string{"GET /v2/box/box1": oneBox, "POST /v2/box/box1/snapshots": snapshot, "POST /v2/box/from-snapshot": oneBox, "DELETE /v2/box/box1/snapshots/snap_1": `{}`})
	status, text, _ := call(e, "POST", "/sandboxes/box1/fork", `{"count":2,"timeout":60}`)
	const copied = `POST /v2/box/from-snapshot {"snapshot_id":"snap_1","ephemeral":true,"ttl":60}`
	want := []string{"GET /v2/box/box1", `POST /v2/box/box1/snapshots {"name":""}`, copied, copied, "DELETE /v2/box/box1/snapshots/snap_1"}
	if status != 201 || strings.Count(text, `"sandbox":{`) != 2 || !slices.Equal(o.calls, want) {
		t.Errorf("%d %s %q", status, text, o.calls)
	}
	o.answers["POST /v2/box/from-snapshot"] = `429 "too many"`
	if status, text, _ = call(e, "POST", "/sandboxes/box1/fork", ``); status != 201 || text != `[{"error":{"code":429,"message":"too many"}}]` {
		t.Errorf("%d %s", status, text)
	}
	if status, _, _ = call(e, "POST", "/sandboxes/box1/fork", `{"count":1000}`); status != 400 {
		t.Errorf("many forks: %d", status)
	}
}

func TestPaths(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]bool{
		"/sandboxes": true, "/sandboxes/x/pause": true, "/v2/sandboxes": true, "/v2/templates/x": true, "/v3/templates": true, "/snapshots": true, "/health": true,
		"/": false, "": false, "/healthz": false, "/health/x": false, "/v2/box": false, "/v2/box/sandboxes": false, "/v2/snapshots": false, "/v2/secrets": false, "/ui/": false, "/files": false, "/v2/": false,
	} {
		if IsControl(path) != want {
			t.Errorf("%q belongs to the control API: %v", path, !want)
		}
	}
	for path, want := range map[string]bool{"/health": true, "/files": true, "/process.Process/Start": true, "/filesystem.Filesystem/Stat": true, "/v2/box": false, "/filesx": false, "/process.Process": false, "/sandboxes": false} {
		if IsSandbox(path) != want {
			t.Errorf("%q belongs to the API of a sandbox: %v", path, !want)
		}
	}
}

// FuzzCreate checks that no accepted request loses a restriction, and that no placeholder reaches a server as text.
func FuzzCreate(f *testing.F) {
	for _, body := range []string{`{"templateID":"base","network":{"denyOut":["0.0.0.0/0"]}}`, `{"templateID":"base","allow_internet_access":false}`, `{"templateID":"x","network":{"rules":{"a.example":[{"transform":{"headers":{"A":"x${e2b.secrets.b}"}}}]}}}`,
		`{"templateID":"base","network":{"rules":{"a.example":[{"transform":{"headers":{"A":"${e2b.iam"}}}]}},"timeout":-1}`} {
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body string) {
		var s newSandbox
		if strict.Unmarshal([]byte(body), &s) != nil {
			return
		}
		b, err := s.box()
		if err != nil {
			return
		}
		data, err := json.Marshal(b)
		if err != nil {
			t.Fatal(err)
		}
		if n := s.Network; n != nil && n.DenyOut != nil && b.NetworkPolicy["denyOut"] == nil || s.AllowInternet != nil && b.NetworkPolicy["allow_internet_access"] != *s.AllowInternet {
			t.Errorf("%s became %s", body, data)
		}
		for _, rules := range b.AttachHeaders {
			set, _ := json.Marshal(rules)
			if strings.Contains(string(set), `${e2b.`) {
				t.Errorf("%s keeps a placeholder: %s", body, data)
			}
		}
	})
}
