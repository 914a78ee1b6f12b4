package rules_test

import (
	"net/http"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/api/apitest"
	"boxgate/policy"
)

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

// TestReferencesStandAlone: what is no plain reference to a policy is refused, and so is what is no plain named policy.
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
