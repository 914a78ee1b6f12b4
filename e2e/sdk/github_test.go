package sdk

import (
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"boxgate/e2e/harness"
)

// serveGitHub adds a GitHub to the internet of the test: one repository, https://github.com/acme/app, and the API for
// opening pull requests. Both require the token of the subject git.
func serveGitHub(t *testing.T, w *harness.World) {
	t.Helper()
	root := t.TempDir()
	git := func(args ...string) {
		t.Helper()
		cmd := exec.Command("git", args...)
		cmd.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "HOME="+root, "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com",
			"GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v %s", args, err, out)
		}
	}
	bare, work := filepath.Join(root, "acme", "app"), filepath.Join(root, "work")
	git("init", "-q", "--bare", "-b", "main", bare)
	git("-C", bare, "config", "http.receivepack", "true")
	git("clone", "-q", bare, work)
	if err := os.WriteFile(filepath.Join(work, "README.md"), []byte("An application.\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	git("-C", work, "add", ".")
	git("-C", work, "commit", "-qm", "Initial commit")
	git("-C", work, "commit", "-qm", "Another commit", "--allow-empty")
	git("-C", work, "push", "-q", "origin", "HEAD:main", "HEAD~1:refs/heads/older")
	smart := harness.GitServer(t, root, "/")
	for host, on := range map[string]struct {
		addrs   []string
		handler http.HandlerFunc
	}{
		"github.com":     {[]string{"198.51.100.80", "2001:db8:1::80"}, serveGit(smart)},
		"api.github.com": {[]string{"198.51.100.81", "2001:db8:1::81"}, servePulls},
	} {
		if err := w.Net.AddHost(host, on.addrs...); err != nil {
			t.Fatal(err)
		}
		if err := w.Net.ServeHTTP(host, on.handler); err != nil {
			t.Fatal(err)
		}
	}
}

func serveGit(smart http.Handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if _, password, ok := r.BasicAuth(); !ok || password != "ghp_the_token_of_the_test" {
			w.Header().Set("WWW-Authenticate", `Basic realm="GitHub"`)
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		smart.ServeHTTP(w, r)
	}
}

// servePulls opens pull request 7.
func servePulls(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	answer := func(status int, v any) {
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(v) // the client notices missing data
	}
	var asked struct{ Title, Body, Head, Base string }
	switch authorization := r.Header.Get("Authorization"); {
	case authorization != "Bearer ghp_the_token_of_the_test" && authorization != "token ghp_the_token_of_the_test":
		answer(http.StatusUnauthorized, map[string]any{"message": "Bad credentials"})
	case r.Method == http.MethodGet && r.URL.Path == "/repos/acme/app":
		answer(http.StatusOK, map[string]any{"default_branch": "main"})
	case r.Method != http.MethodPost || r.URL.Path != "/repos/acme/app/pulls":
		answer(http.StatusNotFound, map[string]any{"message": "Not Found"})
	case json.NewDecoder(r.Body).Decode(&asked) != nil || asked.Head != "topic" || asked.Base != "main" || asked.Title == "":
		answer(http.StatusUnprocessableEntity, map[string]any{"message": "Validation Failed"})
	default:
		answer(http.StatusCreated, map[string]any{
			"number": 7, "html_url": "https://github.com/acme/app/pull/7", "title": asked.Title, "state": "open",
			"head": map[string]any{"ref": asked.Head}, "base": map[string]any{"ref": asked.Base},
		})
	}
}
