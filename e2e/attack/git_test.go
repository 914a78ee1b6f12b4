package attack

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"boxgate/api"
	"boxgate/e2e/harness"
	"boxgate/internal/testnet"
)

// git calls git/WHAT.
func (b filesBox) git(what string, body map[string]any, out any) error {
	return b.Client.Do(b.T.Context(), "POST", api.BoxPath(b.id, "git", what), body, out)
}

// A repository, branch or folder that a caller passes on from elsewhere is never parsed by git as an option, nor as a
// program to run.
func TestAttackGitOptionsInNames(t *testing.T) {
	t.Parallel()
	b := newFilesBox(t)
	b.MustSh(b.id, "git init -q -b main app && cd app && echo x >x && git add x && git commit -qm x && git remote add origin 'ext::sh -c touch% /tmp/ran'")
	for _, c := range []struct {
		call string
		body map[string]any
	}{
		{"clone", map[string]any{"repo": "--upload-pack=touch /tmp/ran", "folder": "app"}},
		{"clone", map[string]any{"repo": "-u", "folder": "touch /tmp/ran"}},
		{"clone", map[string]any{"repo": "ext::sh -c touch% /tmp/ran"}},
		{"clone", map[string]any{"repo": "app", "branch": "--config=core.fsmonitor=touch /tmp/ran"}},
		{"clone", map[string]any{"repo": "app", "folder": "--template=/tmp"}},
		{"clone", map[string]any{"repo": "https://user:password@example.com/x"}},
		{"clone", map[string]any{"repo": "https://user:pass%zz@example.com/x"}}, // not a URL for net/url
		{"checkout", map[string]any{"branch": "--orphan=x", "folder": "app"}},
		{"checkout", map[string]any{"branch": "-f", "folder": "app"}},
		{"checkout", map[string]any{"branch": "x", "folder": "app"}}, // a file, not a branch
		{"push", map[string]any{"branch": "--exec=touch /tmp/ran", "folder": "app"}},
		{"push", map[string]any{"branch": "main", "folder": "app"}}, // runs the program in origin's URL
		{"commit", map[string]any{"message": "", "folder": "app"}},
		{"create-pr", map[string]any{"title": "x", "base": "--x", "folder": "app"}},
	} {
		if code := status(b.git(c.call, c.body, nil)); code != 422 {
			t.Errorf("%s %v: %d", c.call, c.body, code)
		}
	}
	if got := b.MustSh(b.id, "ls -A /tmp; ls -A"); got != "app\n" {
		t.Errorf("something ran or was made: %q", got)
	}
}

// githubToken is the token of [TestAttackGitHubTokenInTheBox].
const githubToken = "ghp_" + harness.Canary

// A token of GitHub used by git and curl in a box is not found in the box in any encoding, and goes to no other host.
func TestAttackGitHubTokenInTheBox(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	var mu sync.Mutex
	got := map[string][]string{} // host → values of Authorization
	basic := base64.StdEncoding.EncodeToString([]byte("x-access-token:" + githubToken))
	for host, addr := range map[string][]string{"github.com": {"198.51.100.80", "2001:db8:1::80"}, "api.github.com": {"198.51.100.81", "2001:db8:1::81"}} {
		if err := w.Net.AddHost(host, addr...); err != nil {
			t.Fatal(err)
		}
		err := w.Net.ServeHTTP(host, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			got[host] = append(got[host], r.Header.Get("Authorization"))
			http.Error(rw, `{"message":"no such thing"}`, http.StatusNotFound)
		}))
		if err != nil {
			t.Fatal(err)
		}
	}
	policy := harness.Custom("github.com", "api.github.com", "api.example.com")
	b := filesBox{w, w.Create(map[string]any{"network_policy": policy, "github_token": githubToken})}
	other := filesBox{w, w.Create(map[string]any{"network_policy": policy})}
	if err := other.git("clone", map[string]any{"repo": "acme/app", "github_token": githubToken}, nil); status(err) != 422 {
		t.Fatal(err)
	}
	for _, b := range []filesBox{b, other} {
		if err := b.git("clone", map[string]any{"repo": "acme/app"}, nil); status(err) != 422 || strings.Contains(err.Error(), harness.Canary) {
			t.Errorf("%v", err)
		}
		b.MustSh(b.id, "git init -q app && cd app && git remote add origin https://github.com/acme/app && git commit -q --allow-empty -m x")
		if err := b.git("create-pr", map[string]any{"title": "x", "folder": "app"}, nil); status(err) != 422 || !strings.Contains(err.Error(), "no such thing") {
			t.Errorf("%v", err)
		}
		b.MustSh(b.id, "curl -sS https://api.example.com/echo >/dev/null; cd app; GIT_TRACE_CURL=/tmp/trace GIT_TRACE_REDACT=0 git fetch origin; true")
		var shown any
		for _, path := range []string{"config/attach-headers", "", "logs", "runs"} {
			if err := w.Client.Get(t.Context(), strings.TrimSuffix(api.BoxPath(b.id, path), "/"), &shown); err != nil {
				t.Fatal(err)
			}
			if text := fmt.Sprint(shown); strings.Contains(text, harness.Canary) || strings.Contains(text, basic) {
				t.Errorf("%s shows it: %s", path, text)
			}
		}
		for _, form := range []string{githubToken, basic, base64.StdEncoding.EncodeToString([]byte(githubToken))} {
			pattern := "[" + form[:1] + "]" + form[1:] // does not match itself
			found, _ := b.Sh(b.id, fmt.Sprintf("grep -rls '%[1]s' /workspace /tmp /etc /home /root /var /dev/shm; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -a '%[1]s'", pattern))
			if found != "" {
				t.Errorf("the box has it: %s", found)
			}
		}
	}
	mu.Lock()
	defer mu.Unlock()
	for host, want := range map[string]string{"github.com": "Basic " + basic, "api.github.com": "Bearer " + githubToken} {
		if len(got[host]) < 2 || slices.ContainsFunc(got[host], func(value string) bool { return value != want }) {
			t.Errorf("%s got %q, want %q", host, got[host], want)
		}
	}
	for _, r := range w.Net.Received("api.example.com", testnet.Any) {
		if value := r.Header.Get("Authorization"); value != "" {
			t.Errorf("api.example.com got %q", value)
		}
	}
}

// Programs configured by a repository run in the box, as its user.
func TestAttackGitConfigurationOfTheRepository(t *testing.T) {
	t.Parallel()
	b := newFilesBox(t)
	dir, secret := bait(t)
	b.MustSh(b.id, `git init -q -b main app && cd app && echo x >x && git add x && git commit -qm x
		printf '#!/bin/sh\nid -un >>/tmp/ran; cat `+dir+`/file /proc/1/root`+dir+`/file >>/tmp/ran 2>&1\n' >/tmp/tool && chmod +x /tmp/tool
		git config core.fsmonitor /tmp/tool; git config diff.external /tmp/tool; git config core.pager /tmp/tool; cp /tmp/tool .git/hooks/pre-commit`)
	for _, what := range []string{"status", "diff"} {
		_ = b.Client.Get(t.Context(), api.BoxPath(b.id, "git", what)+"?folder=app", nil)
	}
	_ = b.git("commit", map[string]any{"message": "x", "folder": "app"}, nil)
	ran := b.MustSh(b.id, "cat /tmp/ran")
	if !strings.Contains(ran, "boxuser") || strings.Contains(ran, "root\n") || strings.Contains(ran, secret) {
		t.Errorf("it ran as %q", ran)
	}
	unharmed(t, dir, secret)
}
