package rules_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/api/apitest"
	"boxgate/api/rest"
	"boxgate/api/rules"
	"boxgate/policy"
	"boxgate/rule/header"
	"boxgate/rule/kinds"
)

const fullRules = `{"api.example.com": {
	"headers": {"authorization": {"secret": "known", "prefix": "sk-prefix "}, "X-Plain": "sk-plain", "x-value": {"value": "sk-value"}},
	"placeholders": {"API_KEY": {"secret": "known"}, "OTHER": "sk-other"}, "scrub": true}, "*.example.org": {"X-Key": "sk-compact"}}`

// TestFullHeaderRules: every call that shows rules shows all that may be shown of them, and never a value.
func TestFullHeaderRules(t *testing.T) {
	t.Parallel()
	f := serve(t)
	id := f.create(t, api.CreateRequest{})
	f.Call(t, "PUT", "/v2/box/"+id+"/config/attach-headers", fullRules)
	if rule := f.host.ByID["box1"].Rules.Rules[1]; header.Of(rule.Effects)[0].Source != "known" || header.Of(rule.Effects)[0].Prefix != "sk-prefix " || rule.Placeholders()[1].Literal.Reveal() != "sk-other" || !rule.Scrub {
		t.Errorf("the host was given %+v", rule)
	}
	view := `"rules":{"*.example.org":{"headers":[{"name":"X-Key"}]},"api.example.com":{"headers":[{"name":"Authorization","secret":"known"},{"name":"X-Plain"},{"name":"X-Value"}],` +
		`"placeholders":[{"variable":"API_KEY","secret":"known"},{"variable":"OTHER"}],"scrub":true}}`
	names := `"attach_headers":{"*.example.org":["X-Key"],"api.example.com":["Authorization","X-Plain","X-Value"]}`
	for _, path := range []string{"/v2/box/" + id + "/config/attach-headers", "/v2/box/settings/attach-headers"} {
		for _, body := range []string{`{"attach_headers":` + fullRules + `}`, fullRules} {
			put, get := f.Call(t, "PUT", path, body), f.Call(t, "GET", path, "")
			for _, got := range []apitest.Answer{put, get} {
				if got.StatusCode != 200 || !strings.Contains(got.Text, view) || !strings.Contains(got.Text, names) || strings.Contains(got.Text, "sk-") {
					t.Errorf("%s: %s %s", path, got.Status, got.Text)
				}
			}
		}
	}
}

// TestKindsAreShown: what each kind shows of a rule stands beside its other members, alone and among alternatives, and no value.
func TestKindsAreShown(t *testing.T) {
	t.Parallel()
	f := serve(t)
	path := "/v2/box/" + f.create(t, api.CreateRequest{}) + "/config/attach-headers"
	for _, kind := range kinds.All {
		member := `"` + kind.Key() + `": ` + kind.Example()
		put := f.Call(t, "PUT", path, `{"a.test": {`+member+`}, "b.test": [{"match": {"methods": ["GET"]}, `+member+`}, {"headers": {"X": "sk-x"}}]}`)
		got := f.Call(t, "GET", path, "")
		var view struct {
			Rules map[string]struct {
				Alternatives []map[string]json.RawMessage
			}
		}
		var alone struct {
			Rules map[string]map[string]json.RawMessage
		}
		if err := errors.Join(json.Unmarshal([]byte(got.Text), &view), json.Unmarshal([]byte(got.Text), &alone)); err != nil || got.StatusCode != 200 {
			t.Fatal(put.Text, got.Text, err)
		}
		for _, shown := range []json.RawMessage{alone.Rules["a.test"][kind.Key()], view.Rules["b.test"].Alternatives[0][kind.Key()]} {
			if kind.Line(shown) == "" {
				t.Errorf("%s is shown as %q", kind.Key(), shown)
			}
		}
		if rest := view.Rules["b.test"].Alternatives[1]; len(rest) != 1 || string(rest["headers"]) != `[{"name":"X"}]` || strings.Contains(got.Text, "sk-") {
			t.Errorf("the other alternative is shown as %s", got.Text)
		}
	}
}

// TestHeaderRuleProblems: each has its pointer relative to the body, whatever the form of the rules.
func TestHeaderRuleProblems(t *testing.T) {
	t.Parallel()
	f := serve(t)
	id := f.create(t, api.CreateRequest{})
	box, global := "/v2/box/"+id+"/config/attach-headers", "/v2/box/settings/attach-headers"
	for _, tt := range []struct{ method, path, body, pointer string }{
		{"PUT", box, `{"attach_headers":{"a.test":{"headers":{"X":{"secret":"unknown"}}}}}`, "/attach_headers/a.test/headers/X/secret"},
		{"PUT", box, `{"a.test":{"headers":{"X":{"secret":"unknown"}}}}`, "/a.test/headers/X/secret"},
		{"PUT", global, `{"a.test":{"placeholders":{"K":{"secret":"unknown"}}}}`, "/a.test/placeholders/K/secret"},
		{"PUT", global, `{"a.test":{"placeholders":{"K":{"secret":"known","prefix":"sk-"}}}}`, "/a.test/placeholders/K/prefix"},
		{"PUT", box, `{"a.test":{"Authorization":{"secret":"known"}}}`, "/a.test/Authorization"},
		{"PUT", box, `{"a.test":{"headers":{},"scrub":true}}`, "/a.test/scrub"},
		{"PUT", box, `{"a.test":{"headers":{},"scrub":1}}`, "/a.test/scrub"},
		{"PUT", box, `{"a.test":{"headers":{"X":{"value":"a","value":"b"}}}}`, "/a.test/headers/X/value"},
		{"PUT", box, `{"a.test":null}`, "/a.test"},
		{"PATCH", box, `{"a.test/x":null}`, "/a.test~1x"},
		{"PATCH", box, `{"attach_headers":{"a.test/x":null}}`, "/attach_headers/a.test~1x"},
		{"PATCH", global, `{"a.test":{"headers":{"X":{"secret":"unknown"}}}}`, "/a.test/headers/X/secret"},
		{"PATCH", global, `[]`, ""},
	} {
		got := f.Call(t, tt.method, tt.path, tt.body)
		if pointer, _ := got.JSON(t)["pointer"].(string); got.StatusCode != 422 || pointer != tt.pointer || strings.Contains(got.Text, "sk-") {
			t.Errorf("%s %s: %d %s, want 422 at %q", tt.method, tt.body, got.StatusCode, got.Text, tt.pointer)
		}
	}
}

// TestHeadersOfTheFleet: with fleet=true the calls are about the rules of the fleet; without one they are not found. The rules of the host stay.
func TestHeadersOfTheFleet(t *testing.T) {
	t.Parallel()
	f := serve(t)
	const path = "/v2/box/settings/attach-headers"
	for _, method := range []string{"GET", "PUT", "PATCH"} {
		body := map[bool]string{true: "", false: `{"a.test":{"X":"sk-a"}}`}[method == "GET"]
		if got := f.Call(t, method, path+"?fleet=true", body); got.StatusCode != 404 || !strings.Contains(got.Text, "not a member of a fleet") {
			t.Errorf("%s without a fleet: %s %s", method, got.Status, got.Text)
		}
	}
	f.host.FleetRules.Fleet = true
	f.Call(t, "PUT", path, `{"own.test":{"X":"sk-own"}}`)
	if got := f.Call(t, "PUT", path+"?fleet=true", `{"a.test":{"X":"sk-a"}}`); got.StatusCode != 200 || got.JSON(t)["fleet"] != true || strings.Contains(got.Text, "sk-") {
		t.Errorf("%s %s", got.Status, got.Text)
	}
	if got := f.Call(t, "PATCH", path+"?fleet=true", `{"b.test":{"X":"sk-b"}}`); got.StatusCode != 200 || got.Header.Get("ETag") != `"2"` {
		t.Errorf("%s %s", got.Status, got.Text)
	}
	if got := f.Call(t, "GET", path+"?fleet=true", ""); !strings.Contains(got.Text, "a.test") || !strings.Contains(got.Text, "b.test") || strings.Contains(got.Text, "own.test") || strings.Contains(got.Text, "sk-") {
		t.Errorf("%s %s", got.Status, got.Text)
	}
	if got := f.Call(t, "GET", path, ""); !strings.Contains(got.Text, "own.test") || strings.Contains(got.Text, "a.test") || strings.Contains(got.Text, `"fleet"`) {
		t.Errorf("%s %s", got.Status, got.Text)
	}
	if got := f.Call(t, "GET", path+"?fleet=maybe", ""); got.StatusCode != 422 && got.StatusCode != 400 {
		t.Errorf("%s %s", got.Status, got.Text)
	}
}

// TestPatchHeaders: the given hosts change, the others keep values that the caller never saw.
func TestPatchHeaders(t *testing.T) {
	t.Parallel()
	f := serve(t)
	id := f.create(t, api.CreateRequest{})
	for _, path := range []string{"/v2/box/" + id + "/config/attach-headers", "/v2/box/settings/attach-headers"} {
		rules := func() map[string]string {
			t.Helper()
			state, err := f.host.GlobalHeaders(t.Context())
			if strings.Contains(path, id) {
				state, err = f.host.Headers(t.Context(), policy.BoxID(id))
			}
			if err != nil {
				t.Fatal(err)
			}
			out := map[string]string{}
			for _, r := range state.Rules {
				out[r.Pattern.String()] = header.Of(r.Effects)[0].Literal.Reveal()
			}
			return out
		}
		f.Call(t, "PUT", path, `{"a.test":{"X":"sk-a"},"b.test":{"X":"sk-b"},"*.c.test:8443":{"X":"sk-c"}}`)
		got := f.Call(t, "PATCH", path, `{"attach_headers":{"a.test:443":{"X":"sk-new"},"b.test":null,"d.test":{"headers":{"X":"sk-d"}}}}`)
		if got.StatusCode != 200 || strings.Contains(got.Text, "sk-") {
			t.Fatalf("%s %s", got.Status, got.Text)
		}
		want := map[string]string{"a.test:443": "sk-new", "*.c.test:8443": "sk-c", "d.test": "sk-d"}
		if now := rules(); len(now) != 3 || now["a.test:443"] != want["a.test:443"] || now["*.c.test:8443"] != "sk-c" || now["d.test"] != "sk-d" {
			t.Errorf("%s: %v, want %v", path, now, want)
		}
		if got := f.Call(t, "PATCH", path, `{"gone.test":null}`); got.StatusCode != 404 {
			t.Errorf("a host without a rule: %s %s", got.Status, got.Text)
		}
		if got := f.Call(t, "PATCH", path, `{"a.test":null}`, apitest.IfMatch(`"77"`)); got.StatusCode != 412 {
			t.Errorf("another version: %s", got.Status)
		}
		if len(rules()) != 3 {
			t.Error("a refused change had an effect")
		}
	}
}

func TestHeaders(t *testing.T) {
	t.Parallel()
	f := serve(t)
	id := f.create(t, api.CreateRequest{})
	for _, path := range []string{"/v2/box/" + id + "/config/attach-headers", "/v2/box/settings/attach-headers"} {
		got := f.Call(t, "PUT", path, `{"attach_headers":{"*.example.org":{"x-key":"v","authorization":"w"}}}`, apitest.IfMatch(`"1"`))
		if got.StatusCode != 200 || got.Header.Get("ETag") != `"2"` {
			t.Fatalf("%s %s", got.Status, got.Text)
		}
		if got := f.Call(t, "GET", path, ""); !strings.Contains(got.Text, `{"*.example.org":["Authorization","X-Key"]}`) {
			t.Error(got.Text)
		}
		if got := f.Call(t, "PUT", path, `{}`, apitest.IfMatch(`"1"`)); got.StatusCode != 412 {
			t.Error(got.Status)
		}
		if got := f.Call(t, "PUT", path, `{"api.example.com":{"A":"v"}}`); got.StatusCode != 200 || !strings.Contains(got.Text, `"api.example.com":["A"]`) {
			t.Errorf("the inner object alone: %s %s", got.Status, got.Text)
		}
		if got := f.Call(t, "PUT", path, `{}`); got.StatusCode != 200 || !strings.Contains(got.Text, `"attach_headers":{}`) {
			t.Errorf("%s %s", got.Status, got.Text)
		}
	}
}

// TestEveryKindOfRuleIsShown: of each kind of rule what identifies it is shown, with the names of secrets, and never a value.
func TestEveryKindOfRuleIsShown(t *testing.T) {
	t.Parallel()
	f := serve(t)
	id := f.create(t, api.CreateRequest{})
	const hostKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f"
	for rule, view := range map[string]string{
		`{"remove":["X-C"],"headers":{"X-A":"sk-a"}}`:                                           `"headers":[{"name":"X-A"}],"remove":["X-C"]`,
		`{"query":{"key":{"secret":"known"},"other":"sk-a"}}`:                                   `"query":[{"name":"key","secret":"known"},{"name":"other"}]`,
		`{"placeholders":{"KEY":"sk-a"},"places":["header","query"]}`:                           `"placeholders":[{"variable":"KEY"}],"places":["header","query"]`,
		`{"client_certificate":{"secret":"known"}}`:                                             `"client_certificate":{"certificate":"known","key":"known"}`,
		`{"forward_url":"https://proxy.test:8443/in"}`:                                          `"forward_url":"https://proxy.test:8443/in"`,
		`{"upstream_tls":"legacy","client_tls":"legacy","lenient":true}`:                        `"client_tls":"legacy","lenient":true,"upstream_tls":"legacy"`,
		`{"postgres":{"user":"u","database":"d","password":"sk-a"}}`:                            `"postgres":{"user":"u","database":"d","auth":"scram-sha-256"}`,
		`{"proxy":{"username":"u","password":"sk-a"}}`:                                          `"proxy":{"scheme":"https","username":"u"}`,
		`{"proxy":{"scheme":"socks5","username":"u","password":"sk-a"}}`:                        `"proxy":{"scheme":"socks5","username":"u"}`,
		`{"sign":{"hmac":{"key":"sk-a","header":"x-sig","template":"{body}"}}}`:                 `"sign":{"kind":"hmac","header":"X-Sig"}`,
		`{"sign":{"aws":{"credentials":{"secret":"known"},"region":["a","b"],"service":"s3"}}}`: `"sign":{"kind":"aws","secret":"known","regions":["a","b"],"services":["s3"]}`,
		`{"ssh":{"user":"git","key":{"secret":"known"},"host_keys":["` + hostKey + `"],"repos":[{"name":"o/r","access":"push"}],"commands":["uptime"]}}`: `"ssh":{"user":"git","secret":"known","host_keys":["` + hostKey + `"],"repos":[{"name":"o/r","access":"push"}],"commands":["uptime"]}`,
		`[{"match":{"path":{"prefix":"/a"}},"deny":true},{"headers":{"X-A":"sk-a"}},{"match":{"methods":["GET"]},"headers":{"X-B":"sk-b"}}]`:             `"rules":{"a.test:22":{"headers":[],"alternatives":[{"match":{"path":{"prefix":"/a"}},"headers":[],"deny":true},{"headers":[{"name":"X-A"}]},{"match":{"methods":["GET"]},"headers":[{"name":"X-B"}]}]}}`,
	} {
		got := f.Expect(t, 200, "PUT", "/v2/box/"+id+"/config/attach-headers", `{"a.test:22":`+rule+`}`, view)
		if strings.Contains(got.Text, "sk-") {
			t.Errorf("%s: %s shows a value", rule, got.Text)
		}
	}
}

// TestHeaderRulesOfLimitedKeys: a key without the admin role sets no rule that reads a secret of the operator or sends requests
// elsewhere, and neither reads nor changes the rules of every box.
func TestHeaderRulesOfLimitedKeys(t *testing.T) {
	t.Parallel()
	f := serve(t)
	id := f.create(t, api.CreateRequest{CreatedBy: "key_1"})
	ci := apitest.With(f.key(t, api.KeyRequest{Name: "ci", Role: api.RoleCreator}))
	box, global := "/v2/box/"+id+"/config/attach-headers", "/v2/box/settings/attach-headers"
	for _, c := range []struct {
		method, path, body string
		status             int
	}{
		{"PUT", box, `{"a.test":{"X":"own"}}`, 200},
		{"PATCH", box, `{"b.test":{"X":"own"}}`, 200},
		{"PUT", box, `{"a.test":{"headers":{"X":{"secret":"known"}}}}`, 422},
		{"PATCH", box, `{"a.test":{"headers":{"X":{"secret":"known"}}}}`, 422},
		{"PUT", box, `{"a.test":{"forward_url":"https://proxy.test"}}`, 403},
		{"GET", global, "", 403}, {"PUT", global, `{}`, 403}, {"PATCH", global, `{"a.test":{"X":"own"}}`, 403},
	} {
		if got := f.Call(t, c.method, c.path, c.body, ci); got.StatusCode != c.status {
			t.Errorf("%s %s %s: %s %s, want %d", c.method, c.path, c.body, got.Status, got.Text, c.status)
		}
	}
	if rules := f.host.ByID[policy.BoxID(id)].Rules.Rules; len(rules) != 2 || len(f.host.Global.Rules) != 0 {
		t.Errorf("the box has %+v", rules)
	}
}

// TestTheTrailHasEveryChangeOfHeaders: however the rules of a box or of all boxes are changed, the trail says for which hosts there are
// rules now, which were added, changed and removed, and no value.
func TestTheTrailHasEveryChangeOfHeaders(t *testing.T) {
	t.Parallel()
	f := serve(t)
	id := f.create(t, api.CreateRequest{})
	for of, path := range map[string]string{id: "/v2/box/" + id + "/config/attach-headers", "": "/v2/box/settings/attach-headers"} {
		for _, c := range []struct{ method, body, hosts string }{
			{"PUT", `{"attach_headers":{"a.test":{"X":"sk-canary"}}}`, `["a.test"],"count":1,"changes":{"added":["a.test"]}`},
			{"PATCH", `{"attach_headers":{"b.test":{"X":"sk-canary"}}}`, `["a.test","b.test"],"count":2,"changes":{"added":["b.test"]}`},
			{"PATCH", `{"attach_headers":{"a.test":{"X":"sk-canary-2"}}}`, `["a.test","b.test"],"count":2,"changes":{"changed":["a.test"]}`},
			{"PATCH", `{"attach_headers":{"a.test":null}}`, `["b.test"],"count":1,"changes":{"removed":["a.test"]}`},
		} {
			f.Expect(t, 200, c.method, path, c.body)
			all := f.Changes()
			if len(all) == 0 {
				t.Fatalf("%s %s: no change is recorded", c.method, path)
			}
			last := all[len(all)-1]
			if !strings.HasPrefix(last, of+" {") || !strings.Contains(last, `"hosts":`+c.hosts) || strings.Contains(last, "canary") {
				t.Errorf("%s %s %s: the change is %s", c.method, path, c.body, last)
			}
		}
	}
}

// busyHost is a Host whose header rules another client changes each time they are read.
type busyHost struct {
	*apitest.Host
	others int
}

func (h *busyHost) Headers(ctx context.Context, id policy.BoxID) (api.HeaderState, error) {
	state, err := h.Host.Headers(ctx, id)
	if h.others > 0 {
		h.others--
		if _, err := h.SetHeaders(ctx, id, state.Rules, nil); err != nil {
			return state, err
		}
	}
	return state, err
}

// TestPatchGoesThroughUnderContention: 412 is only for clients that sent If-Match.
func TestPatchGoesThroughUnderContention(t *testing.T) {
	t.Parallel()
	f := serve(t)
	id := f.create(t, api.CreateRequest{})
	path := "/v2/box/" + id + "/config/attach-headers"
	f.Expect(t, 200, "PUT", path, `{"a.test":{"X":"a"}}`)
	busy := &busyHost{Host: f.host, others: 50}
	s := apitest.Serve(t, f.host, (&rules.Endpoints{Boxes: busy, Host: busy, History: f.history, Bodies: apitest.Bodies}).Routes())
	patch := func(edit ...func(*http.Request)) int {
		return s.Call(t, "PATCH", path, `{"b.test":{"X":"b"}}`, edit...).StatusCode
	}
	if got := patch(); got != 200 || busy.others > 0 {
		t.Errorf("without If-Match: %d, and %d changes were left", got, busy.others)
	}
	busy.others = 1
	if got := patch(apitest.IfMatch(`"1"`)); got != 412 {
		t.Errorf("with If-Match: %d", got)
	}
	state, err := f.host.Headers(t.Context(), policy.BoxID(id))
	if err != nil || len(state.Rules) != 2 {
		t.Errorf("%+v %v", state, err)
	}
}

// TestPatchesAddUp: many small changes have no more hosts and placeholders than one large one.
func TestPatchesAddUp(t *testing.T) {
	t.Parallel()
	f := serve(t)
	for _, path := range []string{"/v2/box/" + f.create(t, api.CreateRequest{}) + "/config/attach-headers", "/v2/box/settings/attach-headers"} {
		hosts := func(from, to int, rule func(i int) any) string {
			entries := map[string]any{}
			for i := from; i < to; i++ {
				entries[fmt.Sprintf("h%d.test", i)] = rule(i)
			}
			data, err := json.Marshal(entries)
			if err != nil {
				t.Fatal(err)
			}
			return string(data)
		}
		const each = 64
		placeholders := func(i int) any {
			vars := map[string]string{}
			for j := range each {
				vars[fmt.Sprintf("V%d_%d", i, j)] = "v"
			}
			return map[string]any{"placeholders": vars}
		}
		f.Expect(t, 200, "PATCH", path, hosts(0, policy.MaxPlaceholders/each, placeholders))
		f.Expect(t, 422, "PATCH", path, `{"more.test":{"placeholders":{"MORE":"v"}}}`, "placeholders; the limit is")
		f.Expect(t, 200, "PATCH", path, hosts(policy.MaxPlaceholders/each, policy.MaxHeaderHosts, func(int) any { return map[string]string{"X": "v"} }))
		f.Expect(t, 422, "PATCH", path, `{"more.test":{"X":"v"}}`, "hosts; the limit is")
		f.Expect(t, 200, "PATCH", path, `{"h0.test":null,"more.test":{"X":"v"}}`)
	}
}

// FuzzRules sends random bodies to the endpoints that take one: each is answered in JSON, without a failure of the gateway, and a
// policy or rules that were refused are not in force.
func FuzzRules(f *testing.F) {
	for i, body := range []string{
		`{"mode":"custom","allowed_domains":["*.example.com"],"version":1}`, `{"mode":"deny-all","leases":[{"action":"allow","entry":"a.example"}]}`,
		`{"named":"web"}`, `{"allow":{"a.example":[{"transform":[{"headers":{"A":"b"}}]}]}}`, `"allow-all"`,
		`{"action":"allow","entries":["a.example:443"],"expires_in":3600}`, `{"attach_headers":{"a.example":{"A":"b"}}}`, `{"a.example":null}`,
		`{"a.example":{"headers":{"A":{"secret":"known","prefix":"x "}},"placeholders":{"K":"v"},"scrub":true}}`, `{"attach_headers":1}`,
		`null`, `[[[`, `{"a":{"a":1,"a":2}}`, "{\"\\ud800\":1}", `1e999`,
	} {
		f.Add(uint8(i), []byte(body))
	}
	s := serve(f)
	id := s.create(f, api.CreateRequest{})
	var calls []rest.Route
	for _, rt := range (&rules.Endpoints{}).Routes() {
		if rt.Request != nil {
			calls = append(calls, rt)
		}
	}
	f.Fuzz(func(t *testing.T, which uint8, body []byte) {
		rt := calls[int(which)%len(calls)]
		before := len(s.Changes())
		policyBefore, rulesBefore := s.state(t, id).Version, s.host.ByID[policy.BoxID(id)].Rules.Version
		got := s.Call(t, rt.Method, strings.NewReplacer("{id}", id, "{name}", "web").Replace(rt.Path), string(body))
		if got.StatusCode >= 500 || !json.Valid([]byte(got.Text)) {
			t.Errorf("%s %s with %q: %s %s", rt.Method, rt.Path, body, got.Status, got.Text)
		}
		changed := s.state(t, id).Version != policyBefore || s.host.ByID[policy.BoxID(id)].Rules.Version != rulesBefore
		if got.StatusCode >= 400 && (changed || len(s.Changes()) != before) {
			t.Errorf("%s %s with %q: %s, and it had an effect", rt.Method, rt.Path, body, got.Status)
		}
	})
}
