package policy

import (
	"testing"

	"boxgate/policy/name"
)

// TestRepoServices: the service that git asks for decides, and no second one beside it.
func TestRepoServices(t *testing.T) {
	t.Parallel()
	spec := mustSpec(t, `{"mode": "allow-all", "repos": [{"name": "acme/web", "access": "read"}, {"name": "acme/tools", "access": "push"}]}`)
	c, err := Compile(spec, Options{Version: 1, Protected: name.NewProtected(nil, nil)})
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
