package policy

import (
	"errors"
	"testing"

	"boxgate/policy/document"
	"boxgate/policy/name"
)

// TestRepoServices: the service that git asks for decides, and no second one beside it.
func TestRepoServices(t *testing.T) {
	t.Parallel()
	spec := mustSpec(t, `{"mode": "allow-all", "repos": [{"name": "acme/web", "access": "read"}, {"name": "acme/tools", "access": "push"}]}`)
	c, err := Compile(spec, nil, name.NewProtected(nil, nil), 1)
	if err != nil {
		t.Fatal(err)
	}
	host, _ := name.Parse("github.com")
	for target, want := range map[[2]string]Verdict{
		{"/acme/web/info/refs", "service=git-upload-pack"}:                                    Allow,
		{"/acme/web.git/info/refs", "service=git-upload-pack"}:                                Allow,
		{"/acme/web.git/info/refs", "service=git-receive-pack"}:                               Deny,
		{"/acme/web.git/info/refs", "service=git-upload-pack&service=git-receive-pack"}:       Deny,
		{"/acme/web.git/info/refs", "service=git-upload-pack;service=git-receive-pack"}:       Deny,
		{"/acme/web.git/info/refs", "service=git-upload-pack&Service=git-receive-pack"}:       Deny,
		{"/acme/web.git/info/refs", "service=git-upload-pack&service%5B%5D=git-receive-pack"}: Deny,
		{"/acme/web.git/info/refs", ""}:                                                       Deny,
		{"/acme/tools.git/info/refs", "service=git-receive-pack"}:                             Allow,
		{"/acme/tools%2Egit/info/refs", "service=git-receive-pack"}:                           Deny,
		{"/acme/tools.git/info/refs/", "service=git-receive-pack"}:                            Deny,
	} {
		r := Request{Stage: StageHTTP, Name: host, Port: 443, Protocol: TCP, Method: "GET", Path: target[0], Query: target[1]}
		if d := c.Decide(r); d.Verdict != want {
			t.Errorf("%v: %+v, want %s", target, d, want)
		}
	}
}

// TestRepoProblems: each mistake has its pointer.
func TestRepoProblems(t *testing.T) {
	t.Parallel()
	for doc, at := range map[string]string{
		`{"name": "acme", "access": "read"}`:                                   "/repos/0/name",
		`{"name": "acme/web.git", "access": "read"}`:                           "/repos/0/name",
		`{"name": "acme/../web", "access": "read"}`:                            "/repos/0/name",
		`{"name": "acme/web/", "access": "read"}`:                              "/repos/0/name",
		`{"name": "acme/.*", "access": "read"}`:                                "/repos/0/name",
		`{"name": "acme/web"}`:                                                 "/repos/0/access",
		`{"name": "acme/web", "access": "write"}`:                              "/repos/0/access",
		`{"name": "acme/web", "access": "read", "host": "*.example.com"}`:      "/repos/0/host",
		`{"name": "acme/web", "access": "read", "host": "https://github.com"}`: "/repos/0/host",
		`{"name": "acme/web", "access": "read", "host": "github.com:8443"}`:    "/repos/0/host",
		`{"name": "acme/web", "access": "read", "host": "www.github.com."}`:    "/repos/0/host",
		`{"name": "acme/web/x", "access": "read", "host": "GitHub.com.:443"}`:  "/repos/0/name",
		`{"name": "acme/web", "access": "read", "branch": "x"}`:                "/repos/0/branch",
	} {
		_, err := ParseSpec([]byte(`{"mode": "allow-all", "repos": [` + doc + `]}`))
		invalid, ok := errors.AsType[*document.InvalidError](err)
		if !ok || invalid.Problems[0].Pointer != at {
			t.Errorf("%s: %v, want a problem at %q", doc, err, at)
		}
	}
	if _, err := ParseSpec([]byte(`{"mode": "deny-all", "repos": [{"name": "a/b", "access": "read"}]}`)); err == nil {
		t.Error("repositories in deny-all")
	}
}
