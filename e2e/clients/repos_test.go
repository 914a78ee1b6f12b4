package clients

import (
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"boxgate/e2e/harness"
)

// gitHost is the host of the repositories of TestRepositories.
const gitHost = "repos.example.com"

// serveRepositories makes gitHost serve bare repositories. Anyone may push.
func serveRepositories(t *testing.T, w *harness.World, names ...string) {
	t.Helper()
	if err := w.Net.AddHost(gitHost, "198.51.100.121", "2001:db8:1::121"); err != nil {
		t.Fatal(err)
	}
	if err := w.Net.ServeHTTP(gitHost, bareRepositories(t, names...)); err != nil {
		t.Fatal(err)
	}
}

// bareRepositories serves bare repositories with one commit each. Anyone may push.
func bareRepositories(t *testing.T, names ...string) http.Handler {
	t.Helper()
	root := t.TempDir()
	work := filepath.Join(root, "work")
	git := func(args ...string) {
		if out, err := exec.CommandContext(t.Context(), "git", args...).CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v: %s", args, err, out)
		}
	}
	git("init", "-q", "-b", "main", work)
	git("-C", work, "-c", "user.name=A", "-c", "user.email=a@example.com", "commit", "-q", "--allow-empty", "-m", "welcome")
	for _, name := range names {
		repo := filepath.Join(root, name+".git")
		git("clone", "-q", "--bare", work, repo)
		git("-C", repo, "config", "http.receivepack", "true")
	}
	return harness.GitServer(t, root, "/")
}

// TestRepositories: git reads and pushes exactly the repositories of a host that the policy names.
func TestRepositories(t *testing.T) {
	t.Parallel()
	w := harness.NewWorld(t, withClients(t))
	serveRepositories(t, w, "acme/web", "acme/tools", "acme/secret")
	spec := harness.Custom(gitHost)
	spec["repos"] = []map[string]string{
		{"host": gitHost, "name": "acme/web", "access": "read"}, {"host": gitHost, "name": "acme/tools", "access": "push"},
	}
	box := w.Create(map[string]any{"runtime": "clients", "network_policy": spec})
	push := "cd $(mktemp -d) && git clone -q https://" + gitHost + "/acme/NAME.git . && git -c user.name=B -c user.email=b@example.com commit -q --allow-empty -m pushed && git push -q origin HEAD:main && echo done"
	for _, tt := range []struct {
		name, run string
		ok        bool
	}{
		{"read", "cd $(mktemp -d) && git clone -q https://" + gitHost + "/acme/web.git && git -C web log --format=%s | grep -q welcome && echo done", true},
		{"push", strings.ReplaceAll(push, "NAME", "tools"), true},
		{"push to one that is read", strings.ReplaceAll(push, "NAME", "web"), false},
		{"another", "cd $(mktemp -d) && git clone -q https://" + gitHost + "/acme/secret.git && echo done", false},
		{"another, by an odd path", "cd $(mktemp -d) && git clone -q https://" + gitHost + "/acme/web.git/../secret.git && echo done", false},
		{"another, by two slashes", "cd $(mktemp -d) && git clone -q https://" + gitHost + "//acme/secret.git && echo done", false},
		{"a second service", "curl -sS -f --path-as-is 'https://" + gitHost + "/acme/web.git/info/refs?service=git-upload-pack&service=git-receive-pack' && echo done", false},
	} {
		out, code := w.Sh(box, tt.run+" 2>&1")
		if done := code == 0 && strings.Contains(out, "done"); done != tt.ok {
			t.Errorf("%s: exit %d: %s", tt.name, code, out)
		}
	}
}
