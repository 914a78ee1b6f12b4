package github_test

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"boxgate/secrets/github"
	"boxgate/secrets/remote/remotetest"
)

func TestGitHubApp(t *testing.T) {
	t.Parallel()
	expires := time.Now().Add(time.Hour)
	server := remotetest.NewServer(t, func(w http.ResponseWriter, r *http.Request) {
		claims, _ := remotetest.Keys().Claims(t, strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "), jose.RS256)
		if claims["iss"] != "12345" {
			t.Errorf("the app is %v", claims)
		}
		switch r.Method + " " + r.URL.Path {
		case "GET /api/v3/repos/acme/web/installation":
			remotetest.Reply(200, map[string]any{"id": 678})(w, r)
		case "POST /api/v3/app/installations/678/access_tokens":
			body, _ := io.ReadAll(r.Body)
			if string(body) != `{"permissions":{"contents":"read"},"repositories":["web"]}` {
				t.Errorf("the scope is %s", body)
			}
			remotetest.Reply(201, map[string]any{"token": "ghs_canary", "expires_at": expires.UTC().Format(time.RFC3339)})(w, r)
		default:
			remotetest.Reply(404, map[string]string{"message": "Not Found"})(w, r)
		}
	})
	app := &github.App{
		AppID: "12345", Repository: "acme/web", PrivateKey: "key", API: server.URL + "/api/v3",
		Repositories: []string{"web"}, Permissions: map[string]string{"contents": "read"},
	}
	others := map[string]string{"key": remotetest.Keys().RSA}
	if left := remotetest.Wants(t, app, server.Env(others, nil), "ghs_canary"); left > time.Hour || left < 55*time.Minute {
		t.Errorf("the token is used for %v", left)
	}

	other := *app
	other.Repository = "acme/other"
	remotetest.Fails(t, &other, server.Env(others, nil), "status 404")
	remotetest.Fails(t, app, server.Env(nil, nil), `no secret "key"`)
	remotetest.Fails(t, app, server.Env(map[string]string{"key": "canary"}, nil), "not an unencrypted key in PEM")

	expires = time.Now().Add(-time.Hour)
	remotetest.Fails(t, app, server.Env(others, nil), "already expired")
}

// TestAnswersOfGitHub checks that a token without an expiry is not used, nor an installation without an ID.
func TestAnswersOfGitHub(t *testing.T) {
	t.Parallel()
	server := remotetest.NewServer(t, nil)
	env := server.Env(map[string]string{"key": remotetest.Keys().RSA}, nil)
	app := &github.App{AppID: "1", InstallationID: 2, PrivateKey: "key", API: server.URL + "/"}
	later := time.Now().Add(5 * time.Hour)
	for words, body := range map[string]any{
		"no token":      map[string]any{"expires_at": later},
		"no expires_at": map[string]any{"token": "canary"},
		"not the JSON":  map[string]any{"token": "canary", "expires_at": "soon"},
	} {
		server.Answers(remotetest.Reply(201, body))
		remotetest.Fails(t, app, env, words)
	}
	server.Answers(func(w http.ResponseWriter, r *http.Request) {
		if body, _ := io.ReadAll(r.Body); string(body) != "{}" || r.URL.Path != "/app/installations/2/access_tokens" {
			t.Errorf("%s %s", r.URL, body)
		}
		remotetest.Reply(201, map[string]any{"token": "ghs", "expires_at": later})(w, r)
	})
	if left := remotetest.Wants(t, app, env, "ghs"); left != time.Hour {
		t.Errorf("the token is used for %v", left)
	}
	server.Answers(remotetest.Reply(200, map[string]any{"id": -1}))
	remotetest.Fails(t, &github.App{AppID: "1", Repository: "a/b", PrivateKey: "key", API: server.URL}, env, "no id of the installation")
}

// TestValidation checks that each configuration mistake is reported at its key.
func TestValidation(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		app  github.App
		keys string
	}{
		{github.App{AppID: "1", InstallationID: 2, PrivateKey: "k"}, ""},
		{github.App{AppID: "Iv1.a", Repository: "acme/web", PrivateKey: "k", Repositories: []string{"web"}, Permissions: map[string]string{"contents": "read"}, API: "https://github.example.com/api/v3"}, ""},
		{github.App{AppID: "a b", InstallationID: -1, API: "http://x"}, "api app_id installation_id private_key"},
		{github.App{AppID: "1", InstallationID: 2, Repository: "a/b", PrivateKey: "k", Repositories: []string{".."}}, "installation_id repositories"},
		{github.App{AppID: "1", Repository: "a/..", PrivateKey: "k", Permissions: map[string]string{"contents": "all"}}, "permissions repository"},
		{github.App{AppID: "1", Repository: "a/b/c", PrivateKey: "k", Repositories: slices.Repeat([]string{"r"}, 501)}, "repositories repository"},
	} {
		var keys []string
		c.app.Validate(func(key, format string, args ...any) {
			if text := fmt.Sprintf(format, args...); text == "" || strings.Contains(text, "%!") {
				t.Errorf("%+v: %s: %q", c.app, key, text)
			}
			keys = append(keys, key)
		})
		slices.Sort(keys)
		if got := strings.Join(keys, " "); got != c.keys {
			t.Errorf("%+v: problems at %q, want %q", c.app, got, c.keys)
		}
	}
	app := github.App{AppID: "12", PrivateKey: "k"}
	if app.Place() != "app 12 at api.github.com" || !slices.Equal(app.Needs(), []string{"k"}) {
		t.Errorf("it is at %q and needs %q", app.Place(), app.Needs())
	}
}
