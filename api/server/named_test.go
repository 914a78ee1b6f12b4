package server

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/policy"
)

func noNamed(name, pointer string) error {
	return &policy.InvalidError{Problems: []policy.Problem{{Pointer: pointer, Message: "there is no named policy " + name}}}
}

func (h *memoryHost) NamedPolicies(context.Context) ([]api.NamedPolicy, error) {
	leave, err := h.enter()
	defer leave()
	var list []api.NamedPolicy
	for _, name := range slices.Sorted(maps.Keys(h.named)) {
		list = append(list, h.withFollowers(h.named[name]))
	}
	return list, err
}

func (h *memoryHost) withFollowers(n api.NamedPolicy) api.NamedPolicy {
	for _, id := range slices.Sorted(maps.Keys(h.boxes)) {
		if b := h.boxes[id]; b.Policy.Named == n.Name {
			n.Boxes = append(n.Boxes, b.Box)
		}
	}
	return n
}

func (h *memoryHost) SetNamedPolicy(_ context.Context, name string, spec policy.Spec, ifMatch *uint64) (api.NamedPolicy, error) {
	leave, err := h.enter()
	defer leave()
	old := h.named[name]
	if err == nil && ifMatch != nil && *ifMatch != old.Version {
		err = api.ErrPrecondition
	}
	if err != nil {
		return api.NamedPolicy{}, err
	}
	if h.named == nil {
		h.named = map[string]api.NamedPolicy{}
	}
	h.named[name] = api.NamedPolicy{Name: name, Spec: spec, Version: old.Version + 1}
	for _, b := range h.boxes {
		if b.Policy.Named == name {
			b.Policy.Spec, b.Policy.Version = spec, b.Policy.Version+1
		}
	}
	return h.withFollowers(h.named[name]), nil
}

func (h *memoryHost) DeleteNamedPolicy(_ context.Context, name string, ifMatch *uint64) error {
	leave, err := h.enter()
	defer leave()
	n, known := h.named[name]
	switch {
	case err != nil:
		return err
	case !known:
		return api.ErrNotFound
	case ifMatch != nil && *ifMatch != n.Version:
		return api.ErrPrecondition
	case len(h.withFollowers(n).Boxes) > 0:
		return api.Errorf(api.ErrConflict, "boxes follow it")
	}
	delete(h.named, name)
	return nil
}

const namedWeb = "/v2/box/settings/network-policies/web"

// TestNamedPolicies: they are made, referred to, read with the boxes that follow them, changed under a precondition and deleted.
func TestNamedPolicies(t *testing.T) {
	t.Parallel()
	f := serve(t)
	made := f.call(t, "PUT", namedWeb, `{"mode":"custom","allowed_domains":["a.example"]}`)
	if made.StatusCode != 200 || made.Header.Get("ETag") != `"1"` || !strings.Contains(made.text, `"boxes":[]`) {
		t.Fatal(made.Status, made.Header, made.text)
	}
	id := f.create(t, `{"name":"first"}`)
	set := f.call(t, "PUT", "/v2/box/"+id+"/config/network-policy", `{"named":"web"}`)
	if set.StatusCode != 200 || set.json(t)["named"] != "web" || !strings.Contains(set.text, `"allowed_domains":["a.example"]`) {
		t.Error(set.Status, set.text)
	}
	if got := f.call(t, "GET", "/v2/box/"+id, ""); got.json(t)["named_policy"] != "web" || !strings.Contains(got.text, `"network_policy":{"mode":"custom","allowed_domains":["a.example"]}`) {
		t.Error(got.text)
	}
	if got := f.call(t, "POST", "/v2/box/"+id+"/egress/explain", `{"host":"a.example"}`); got.json(t)["named"] != "web" {
		t.Error(got.text)
	}
	f.create(t, `{"name":"second","network_policy":{"named":"web"}}`)
	if req := f.host.created[len(f.host.created)-1]; req.Named != "web" || req.Policy.Mode != "" {
		t.Errorf("%+v", req)
	}
	for _, path := range []string{namedWeb, "/v2/box/settings/network-policies"} {
		got := f.call(t, "GET", path, "")
		if got.StatusCode != 200 || !strings.Contains(got.text, `"name":"first"`) || !strings.Contains(got.text, `"name":"second"`) {
			t.Errorf("%s: %s %s", path, got.Status, got.text)
		}
	}
	match := func(etag string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set("If-Match", etag) }
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
			edits = append(edits, match(c.etag))
		}
		if got := f.call(t, c.method, namedWeb, c.body, edits...); got.StatusCode != c.want {
			t.Errorf("%+v: %s %s", c, got.Status, got.text)
		}
	}
	if got := f.call(t, "GET", "/v2/box/"+id+"/config/network-policy", ""); got.json(t)["mode"] != "deny-all" || got.json(t)["version"] != 3.0 {
		t.Error(got.text)
	}
	f.call(t, "DELETE", "/v2/box", `{"ids":["first","second"]}`)
	if got := f.call(t, "DELETE", namedWeb, ""); got.StatusCode != 200 {
		t.Error(got.Status, got.text)
	}
	if got := f.call(t, "GET", namedWeb, ""); got.StatusCode != 404 {
		t.Error(got.Status, got.text)
	}
}

// TestReferencesStandAlone: what is no plain reference to a policy is refused, and so is what is no plain named policy.
func TestReferencesStandAlone(t *testing.T) {
	t.Parallel()
	f := serve(t)
	id := f.create(t, `{}`)
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
		got := f.call(t, "PUT", "/v2/box/"+id+"/config/network-policy", c.body)
		if got.StatusCode != 422 || got.json(t)["pointer"] != c.pointer {
			t.Errorf("%s: %s %s", c.body, got.Status, got.text)
		}
		if strings.Contains(c.body, "missing") {
			continue // the Host of this test makes any box
		}
		if got := f.call(t, "POST", "/v2/box", `{"network_policy":`+c.body+`}`); got.StatusCode != 422 || !strings.HasPrefix(got.text, `{"error"`) || !strings.Contains(got.text, "/network_policy") {
			t.Errorf("create, %s: %s %s", c.body, got.Status, got.text)
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
		if got := f.call(t, "PUT", "/v2/box/settings/network-policies/"+c.name, c.body); got.StatusCode != 422 {
			t.Errorf("%s %s: %s %s", c.name, c.body, got.Status, got.text)
		}
	}
	if len(f.host.named) > 0 {
		t.Errorf("%v were made", f.host.named)
	}
}

// TestNamedPoliciesOfLimitedKeys: keys that create boxes may refer to named policies and read them, but change none, and do not
// learn of boxes of others. Keys of one box may refer to them.
func TestNamedPoliciesOfLimitedKeys(t *testing.T) {
	t.Parallel()
	f := serve(t)
	f.call(t, "PUT", namedWeb, `{"mode":"deny-all"}`)
	f.create(t, `{"name":"secret-box","network_policy":{"named":"web"}}`)
	ci, one := f.key(t, `{"name":"ci","role":"box-creator"}`), f.key(t, `{"name":"one","role":"one-box","box":"secret-box"}`)
	if got := f.call(t, "POST", "/v2/box", `{"name":"theirs","network_policy":{"named":"web"}}`, with(ci)); got.StatusCode != 201 || got.json(t)["named_policy"] != "web" {
		t.Error(got.Status, got.text)
	}
	if got := f.call(t, "GET", namedWeb, "", with(ci)); got.StatusCode != 200 || strings.Contains(got.text, "secret-box") || !strings.Contains(got.text, "theirs") {
		t.Error(got.Status, got.text)
	}
	if got := f.call(t, "PUT", "/v2/box/secret-box/config/network-policy", `{"named":"web"}`, with(one)); got.StatusCode != 200 {
		t.Error(got.Status, got.text)
	}
	for _, key := range []string{ci, one, f.key(t, `{"name":"ro","role":"read-only"}`)} {
		for method, body := range map[string]string{"PUT": `{"mode":"allow-all"}`, "DELETE": ""} {
			if got := f.call(t, method, namedWeb, body, with(key)); got.StatusCode != http.StatusForbidden {
				t.Errorf("%s: %s %s", method, got.Status, got.text)
			}
		}
	}
	if n := f.host.named["web"]; n.Version != 1 || n.Spec.Mode != policy.ModeDenyAll {
		t.Errorf("%+v", n)
	}
}

// TestNamedPolicyInTheTrail: the audit trail has what changed of a named policy, and for how many boxes.
func TestNamedPolicyInTheTrail(t *testing.T) {
	t.Parallel()
	f, dir := withTrail(t)
	f.call(t, "PUT", namedWeb, `{"mode":"deny-all"}`)
	id := f.create(t, `{"network_policy":{"named":"web"}}`)
	f.call(t, "PUT", namedWeb, `{"mode":"custom","allowed_domains":["a.example"]}`)
	f.call(t, "PUT", "/v2/box/"+id+"/config/network-policy", `{"mode":"deny-all"}`)
	f.call(t, "DELETE", namedWeb, "")
	_, text := entries(t, dir)
	for _, part := range []string{`"named_policy":"web"`, `"boxes":1,"name":"web","policy":{"version":2,"mode":["deny-all","custom"],"allowed_domains":{"added":["a.example"]}`, `"named":["web",""]`, `"deleted":true,"name":"web"`} {
		if !strings.Contains(text, part) {
			t.Errorf("%s is not in\n%s", part, text)
		}
	}
}
