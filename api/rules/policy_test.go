package rules_test

import (
	"net/http"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/api/apitest"
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

// TestOtherPolicyDialect: a box that runs takes policies in the dialect of Vercel Sandbox, but no header rules by them.
func TestOtherPolicyDialect(t *testing.T) {
	t.Parallel()
	f := serve(t)
	path := "/v2/box/" + f.create(t, api.CreateRequest{}) + "/config/network-policy"
	for body, status := range map[string]int{
		`"allow-all"`: 200, `{"allow":["*.example.com"],"subnets":{"deny":["192.0.2.0/24"]}}`: 200,
		`"open"`: 422, `{}`: 422, `null`: 422, `[]`: 422, `{"mode":"deny-all","allow":["a.example"]}`: 422,
		`{"allow":{"api.example.com":[{"transform":[{"headers":{"authorization":"Bearer sk-v"}}]}]}}`: 422,
	} {
		if got := f.Call(t, "PUT", path, body); got.StatusCode != status || strings.Contains(got.Text, "sk-v") {
			t.Errorf("%s: %s %s", body, got.Status, got.Text)
		}
	}
}
