package cli

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"boxgate/e2e/harness"
)

// TestGitByCommand: each command of `gateway box git`, on a repository in the box, and a pull request at GitHub's API.
func TestGitByCommand(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	pulls := make(chan map[string]string, 1)
	if err := w.Net.AddHost("api.github.com", "198.51.100.81", "2001:db8:1::81"); err != nil {
		t.Fatal(err)
	}
	err := w.Net.ServeHTTP("api.github.com", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var asked map[string]string
		_ = json.NewDecoder(r.Body).Decode(&asked) // a missing member fails the comparison below
		asked["authorization"] = r.Header.Get("Authorization")
		pulls <- asked
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte(`{"html_url":"https://github.com/acme/app/pull/7","number":7,"title":"T","base":{"ref":"main"}}`))
	}))
	if err != nil {
		t.Fatal(err)
	}
	box := w.Create(map[string]any{"name": "git"})
	w.MustSh(box, "git init -q --bare -b main origin.git && git clone -q origin.git seed 2>/dev/null && cd seed && git checkout -qb main && echo one >a && git add a && git commit -qm first && git push -q origin main")
	git := func(args ...string) string {
		t.Helper()
		return w.Run(0, nil, "", append([]string{"box", "git"}, args...)...)
	}
	token := harness.TestSecret
	w.Run(0, nil, token+"\n", "box", "git", "clone", "git", "/workspace/home/origin.git", "--folder", "app", "--branch", "main", "--github-token-file", "-")
	if got := w.MustSh(box, "cat app/.git/config; env"); strings.Contains(got, token) {
		t.Errorf("the box has the token: %s", got)
	}
	w.MustSh(box, "echo two >>app/a; echo new >app/b")
	if out := git("status", "git", "--folder", "app"); out != " M a\n?? b\n" {
		t.Errorf("status: %q", out)
	}
	harness.Contains(t, git("diff", "git", "--folder", "app"), "\n+two\n")
	harness.Contains(t, git("config", "git", "--name", "Ann", "--email", "ann@example.com"), "ann@example.com")
	made := decoded[struct{ SHA, Message string }](w, "box", "git", "commit", "git", "-m", "second", "--folder", "app")
	if len(made.SHA) != 40 || made.Message != "second" {
		t.Errorf("%+v", made)
	}
	w.MustSh(box, "echo three >>app/a")
	harness.Contains(t, git("commit", "git", "-m", "third", "--author-name", "Bob", "--author-email", "bob@example.com", "--folder", "app"), "third")
	if out := git("exec", "git", "--folder", "app", "--", "log", "-2", "--format=%an %ae %s"); out != "Bob bob@example.com third\nAnn ann@example.com second\n" {
		t.Errorf("log: %q", out)
	}
	git("exec", "git", "--folder", "app", "--", "branch", "topic")
	git("checkout", "git", "topic", "--folder", "app")
	git("push", "git", "--folder", "app")
	git("push", "git", "other", "--folder", "app")
	if out := w.MustSh(box, "git -C origin.git branch --format '%(refname:short)'"); out != "main\nother\ntopic\n" {
		t.Errorf("branches: %q", out)
	}
	w.MustSh(box, "git -C app remote set-url origin https://github.com/acme/app")
	if out := git("pr", "git", "--folder", "app", "--title", "T", "--body", "@"+file(t, "body.md", "Why.\n"), "--base", "main"); out != "https://github.com/acme/app/pull/7\n" {
		t.Errorf("pr: %q", out)
	}
	if got := <-pulls; got["title"] != "T" || got["body"] != "Why.\n" || got["head"] != "topic" || got["base"] != "main" || !strings.HasSuffix(got["authorization"], token) {
		t.Errorf("GitHub was asked %v", got)
	}

	w.MustSh(box, `printf '#!/bin/sh\nprintf "no \033[31m\\n" >&2; exit 1\n' >app/.git/hooks/pre-commit; chmod +x app/.git/hooks/pre-commit; echo four >>app/a`)
	if out := w.Run(1, nil, "", "box", "git", "commit", "git", "-m", "x", "--folder", "app"); !strings.Contains(out, `no \x1b[31m`) || strings.Contains(out, "\033") {
		t.Errorf("a hook that fails: %q", out)
	}
	if out := w.Run(128, nil, "", "box", "git", "exec", "git", "--", "-C", "nowhere", "status"); strings.Count(out, "nowhere") != 1 {
		t.Errorf("git fails: %q", out)
	}
	refused(w, map[string]string{
		"1 box git clone git nowhere/at/all":          "git clone failed",
		"1 box git clone git ext::sh":                 "REPO: names a program",
		"1 box git clone git acme/app --depth 0":      "--depth: must be between 1 and",
		"2 box git clone git acme/app --github-token": "",
		"2 box git clone git":                         "1 argument given",
		"1 box git clone nobody acme/app":             "see `gateway box list`",
		"1 box git status git --folder none":          "none",
		"1 box git commit git --folder app":           "--message: is missing",
		"1 box git checkout git nope --folder app":    "git checkout failed",
		"2 box git push git --exec --folder app":      "unknown flag --exec",
		"1 box git pr git --folder app":               "--title: is missing",
		"2 box git config git":                        "give --name, --email, or both",
		"2 box git merge git":                         "its commands are",
	})
}
