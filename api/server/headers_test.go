package server

import (
	"boxgate/api/apitest"
	"net/http"
	"strings"
	"testing"

	"boxgate/policy"
)

const fullRules = `{"api.example.com": {
	"headers": {"authorization": {"secret": "known", "prefix": "sk-prefix "}, "X-Plain": "sk-plain", "x-value": {"value": "sk-value"}},
	"placeholders": {"API_KEY": {"secret": "known"}, "OTHER": "sk-other"}, "scrub": true}, "*.example.org": {"X-Key": "sk-compact"}}`

func serveWithSecrets(t testing.TB) *fixture {
	t.Helper()
	return serve(t, func(cfg *Config) { cfg.HasSecret = func(name string) bool { return name == "known" } })
}

// TestFullHeaderRules: every call that shows rules shows all that may be shown of them, and never a value.
func TestFullHeaderRules(t *testing.T) {
	t.Parallel()
	f := serveWithSecrets(t)
	id := f.create(t, `{"attach_headers":`+fullRules+`}`)
	if rule := f.host.Created[0].Headers[1]; rule.Headers[0].Source != "known" || rule.Headers[0].Prefix != "sk-prefix " || rule.Placeholders[1].Value.Reveal() != "sk-other" || !rule.Scrub {
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
	if strings.Contains(f.log.String(), "sk-") {
		t.Error("the log has a value")
	}
}

// TestHeaderRuleProblems: each has its pointer relative to the body, whatever the form of the rules.
func TestHeaderRuleProblems(t *testing.T) {
	t.Parallel()
	f := serveWithSecrets(t)
	id := f.create(t, `{}`)
	box, global := "/v2/box/"+id+"/config/attach-headers", "/v2/box/settings/attach-headers"
	for _, tt := range []struct{ method, path, body, pointer string }{
		{"POST", "/v2/box", `{"attach_headers":{"a.test":{"headers":{"X":{"secret":"unknown"}}}}}`, "/attach_headers/a.test/headers/X/secret"},
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
		{"POST", "/v2/box", `{"env_vars":{"K":"v"},"attach_headers":{"a.test":{"placeholders":{"K":{"secret":"known"}}}}}`, "/env_vars/K"},
	} {
		got := f.Call(t, tt.method, tt.path, tt.body)
		if pointer, _ := got.JSON(t)["pointer"].(string); got.StatusCode != 422 || pointer != tt.pointer || strings.Contains(got.Text, "sk-") {
			t.Errorf("%s %s: %d %s, want 422 at %q", tt.method, tt.body, got.StatusCode, got.Text, tt.pointer)
		}
	}
}

// TestPatchHeaders: the given hosts change, the others keep values that the caller never saw.
func TestPatchHeaders(t *testing.T) {
	t.Parallel()
	f := serveWithSecrets(t)
	id := f.create(t, `{"attach_headers":{"a.test":{"X":"sk-a"},"b.test":{"X":"sk-b"},"*.c.test:8443":{"X":"sk-c"}}}`)
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
				out[r.Pattern.String()] = r.Headers[0].Value.Reveal()
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
		if got := f.Call(t, "PATCH", path, `{"a.test":null}`, func(r *http.Request) { r.Header.Set("If-Match", `"77"`) }); got.StatusCode != 412 {
			t.Errorf("another version: %s", got.Status)
		}
		if len(rules()) != 3 {
			t.Error("a refused change had an effect")
		}
	}
}

// TestHeaderRulesInTheDescription: both forms of an entry are in it.
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
