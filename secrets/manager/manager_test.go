package manager_test

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"boxgate/secrets/manager"
	"boxgate/secrets/remote"
	"boxgate/secrets/remote/remotetest"
)

func TestVault(t *testing.T) {
	t.Parallel()
	data := map[string]any{"data": map[string]any{"data": map[string]string{"key": "from-v2"}, "metadata": map[string]any{"deletion_time": ""}}}
	server := remotetest.NewServer(t, func(w http.ResponseWriter, r *http.Request) {
		var body map[string]string
		_ = json.NewDecoder(r.Body).Decode(&body)
		switch at := r.Method + " " + r.URL.RequestURI(); {
		case r.Header.Get("X-Vault-Namespace") != "team":
			remotetest.Reply(400, map[string]any{"errors": []string{"no namespace"}})(w, r)
		case at == "POST /v1/auth/approle/login" && body["role_id"] == "role" && body["secret_id"] == "canary-id",
			at == "POST /v1/auth/k8s/login" && body["role"] == "role" && body["jwt"] == "canary-id":
			remotetest.Reply(200, map[string]any{"auth": map[string]any{"client_token": "canary-token", "lease_duration": 60}})(w, r)
		case r.Header.Get("X-Vault-Token") != "canary-token":
			remotetest.Reply(403, map[string]any{"errors": []string{"permission denied for " + r.Header.Get("X-Vault-Token") + body["secret_id"]}})(w, r)
		case at == "GET /v1/secret/data/a/b":
			remotetest.Reply(200, data)(w, r)
		case at == "GET /v1/secret/data/a/b?version=2":
			remotetest.Reply(200, map[string]any{"data": map[string]any{"data": nil, "metadata": map[string]any{"destroyed": true}}})(w, r)
		case at == "GET /v1/kv/a%20b":
			remotetest.Reply(200, map[string]any{"data": map[string]string{"key": "from-v1"}})(w, r)
		default:
			remotetest.Reply(404, map[string]any{"errors": []string{}})(w, r)
		}
	})
	others := map[string]string{"t": "canary-token", "id": "canary-id", "bad": "canary-bad"}
	for name, c := range map[string]struct {
		change func(*manager.Vault)
		want   string
		words  []string
	}{
		"token":        {func(v *manager.Vault) { v.Token = "t" }, "from-v2", nil},
		"AppRole":      {func(v *manager.Vault) { v.AppRole = &manager.VaultLogin{Role: "role", Secret: "id"} }, "from-v2", nil},
		"JWT":          {func(v *manager.Vault) { v.JWT = &manager.VaultLogin{Mount: "k8s", Role: "role", Secret: "id"} }, "from-v2", nil},
		"version 1":    {func(v *manager.Vault) { v.Token, v.KV, v.Mount, v.Path = "t", 1, "kv", "a b" }, "from-v1", nil},
		"destroyed":    {func(v *manager.Vault) { v.Token, v.Version = "t", 2 }, "", []string{"deleted"}},
		"absent":       {func(v *manager.Vault) { v.Token, v.Path = "t", "c" }, "", []string{"status 404"}},
		"no field":     {func(v *manager.Vault) { v.Token, v.Field = "t", "other" }, "", []string{"configured field"}},
		"wrong token":  {func(v *manager.Vault) { v.Token = "bad" }, "", []string{"status 403"}},
		"wrong secret": {func(v *manager.Vault) { v.AppRole = &manager.VaultLogin{Role: "role", Secret: "bad"} }, "", []string{"status 403"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := &manager.Vault{Address: server.URL, Path: "a/b", Field: "key", Namespace: "team"}
			c.change(v)
			if c.want != "" {
				remotetest.Wants(t, v, server.Env(others, nil), c.want)
			} else {
				remotetest.Fails(t, v, server.Env(others, nil), c.words...)
			}
		})
	}
}

func TestOnePassword(t *testing.T) {
	t.Parallel()
	item := map[string]any{"fields": []map[string]string{{"id": "username", "value": "u"}, {"id": "x1", "label": "api key", "value": "from-1p"}}}
	server := remotetest.NewServer(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/vaults/v1/items/i1" || r.Header.Get("Authorization") != "Bearer canary-connect" {
			remotetest.Reply(401, map[string]any{"status": 401, "message": "Invalid bearer token " + r.Header.Get("Authorization")})(w, r)
			return
		}
		remotetest.Reply(200, item)(w, r)
	})
	at := &manager.OnePassword{Address: server.URL, Token: "t", Vault: "v1", Item: "i1", Field: "api key"}
	remotetest.Wants(t, at, server.Env(map[string]string{"t": "canary-connect"}, nil), "from-1p")
	remotetest.Fails(t, at, server.Env(map[string]string{"t": "canary-other"}, nil), "status 401")
	server.Answers(remotetest.Reply(200, map[string]any{"state": "ARCHIVED", "fields": item["fields"]}))
	if err := remotetest.Fails(t, at, server.Env(map[string]string{"t": "canary-connect"}, nil)); !remote.IsGone(err) {
		t.Errorf("an archived item is not gone: %v", err)
	}
	server.Answers(remotetest.Reply(200, item))
	other := *at
	other.Field = "" // the password
	remotetest.Fails(t, &other, server.Env(map[string]string{"t": "canary-connect"}, nil), "no value in the configured field")
	remotetest.Fails(t, at, server.Env(nil, nil), `no secret "t"`)
}

func TestGoogleSecretManager(t *testing.T) {
	t.Parallel()
	server := remotetest.NewServer(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/projects/p/secrets/n/versions/latest:access" || r.Header.Get("Authorization") != "Bearer canary-ya29" {
			remotetest.Reply(403, map[string]any{"error": map[string]any{"code": 403, "status": "PERMISSION_DENIED", "message": r.Header.Get("Authorization")}})(w, r)
			return
		}
		remotetest.Reply(200, map[string]any{"payload": map[string]any{"data": []byte("from-google"), "dataCrc32c": "1687060186"}})(w, r)
	})
	at := &manager.GCP{Secret: "projects/p/secrets/n", Token: "t", Endpoint: server.URL}
	remotetest.Fails(t, at, server.Env(map[string]string{"t": "canary-ya29"}, nil), "checksum")
	server.Answers(remotetest.Reply(200, map[string]any{"payload": map[string]any{"data": []byte("from-google")}}))
	remotetest.Wants(t, at, server.Env(map[string]string{"t": "canary-ya29"}, nil), "from-google")
	server.Answers(func(w http.ResponseWriter, r *http.Request) {
		remotetest.Reply(403, map[string]any{"error": map[string]any{"status": "PERMISSION_DENIED", "message": r.Header.Get("Authorization")}})(w, r)
	})
	remotetest.Fails(t, at, server.Env(map[string]string{"t": "canary-other"}, nil), "PERMISSION_DENIED")
}

// TestVaultVersions checks that a version is gone from its deletion time on.
func TestVaultVersions(t *testing.T) {
	t.Parallel()
	server := remotetest.NewServer(t, nil)
	from := &manager.Vault{Address: server.URL, Path: "a", Field: "key", Token: "t"}
	env := server.Env(map[string]string{"t": "canary-token"}, nil)
	for deleted, gone := range map[string]bool{
		"": false, time.Now().Add(time.Hour).Format(time.RFC3339Nano): false, time.Now().Add(-time.Hour).Format(time.RFC3339Nano): true, "odd": true,
	} {
		server.Answers(remotetest.Reply(200, map[string]any{"data": map[string]any{"data": map[string]string{"key": "value"}, "metadata": map[string]any{"deletion_time": deleted}}}))
		value, err := from.Fetch(t.Context(), env)
		if remote.IsGone(err) != gone || !gone && value.Secret.Reveal() != "value" {
			t.Errorf("deleted at %q: %v", deleted, err)
		}
	}
	for _, body := range []any{map[string]any{}, map[string]any{"data": map[string]any{"data": "canary"}}, []string{"canary"}} {
		server.Answers(remotetest.Reply(200, body))
		remotetest.Fails(t, from, env)
	}
}

// logins is a Vault that keeps tokens until they are revoked.
type logins struct {
	mu      sync.Mutex
	n       int
	lease   int64
	tokens  []string
	revoked []string
}

func (v *logins) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	v.mu.Lock()
	defer v.mu.Unlock()
	token := r.Header.Get("X-Vault-Token")
	switch {
	case strings.HasSuffix(r.URL.Path, "/login"):
		v.n++
		v.tokens = append(v.tokens, fmt.Sprintf("canary-token-%d", v.n))
		remotetest.Reply(200, map[string]any{"auth": map[string]any{"client_token": v.tokens[len(v.tokens)-1], "lease_duration": v.lease}})(w, r)
	case !slices.Contains(v.tokens, token):
		remotetest.Reply(403, map[string]any{"errors": []string{"permission denied for " + token}})(w, r)
	case r.URL.Path == "/v1/auth/token/revoke-self":
		v.revoked = append(v.revoked, token)
		v.tokens = slices.DeleteFunc(v.tokens, func(t string) bool { return t == token })
		w.WriteHeader(http.StatusNoContent)
	default:
		remotetest.Reply(200, map[string]any{"data": map[string]any{"data": map[string]string{"key": "by-" + strings.TrimPrefix(token, "canary-")}}})(w, r)
	}
}

// TestVaultSessions checks that a login is used until nine tenths of its lease are over, Vault refuses it, its secret
// changes or it is dropped, and that a token whose lease continues is revoked.
func TestVaultSessions(t *testing.T) {
	t.Parallel()
	v := &logins{lease: 3600}
	server := remotetest.NewServer(t, v.ServeHTTP)
	from := &manager.Vault{Address: server.URL, Path: "a", Field: "key", AppRole: &manager.VaultLogin{Role: "role", Secret: "id"}}
	now := time.Now()
	fetch := func(id, want string) {
		t.Helper()
		env := server.Env(map[string]string{"id": id}, nil)
		env.Now = func() time.Time { return now }
		remotetest.Wants(t, from, env, want)
	}
	fetch("canary-a", "by-token-1")
	now = now.Add(53 * time.Minute)
	fetch("canary-a", "by-token-1")
	now = now.Add(2 * time.Minute)
	fetch("canary-a", "by-token-2")
	v.tokens = nil
	fetch("canary-a", "by-token-3")
	fetch("canary-b", "by-token-4")
	from.Forget()
	fetch("canary-b", "by-token-5")
	if want := []string{"canary-token-3", "canary-token-4"}; !slices.Equal(v.revoked, want) {
		t.Errorf("%q were revoked, want %q", v.revoked, want)
	}
	v.lease = 0 // unlimited, and used for at most twelve hours
	from.Forget()
	fetch("canary-b", "by-token-6")
	now = now.Add(10 * time.Hour)
	fetch("canary-b", "by-token-6")
	now = now.Add(time.Hour)
	fetch("canary-b", "by-token-7")
	from.Forget()
	server.Answers(remotetest.Reply(200, map[string]any{"auth": map[string]any{}}))
	remotetest.Fails(t, from, server.Env(map[string]string{"id": "canary-b"}, nil), "no client_token")
}

// TestFieldsOfGoogleSecrets reads a field of a JSON value, of a given version.
func TestFieldsOfGoogleSecrets(t *testing.T) {
	t.Parallel()
	server := remotetest.NewServer(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/projects/p/secrets/n/versions/3:access" {
			t.Error(r.URL)
		}
		remotetest.Reply(200, map[string]any{"payload": map[string]any{"data": []byte(`{"a":"x","b":1}`)}})(w, r)
	})
	env := server.Env(map[string]string{"t": "canary"}, nil)
	at := manager.GCP{Secret: "projects/p/secrets/n/versions/3", Token: "t", Field: "a", Endpoint: server.URL + "/"}
	remotetest.Wants(t, &at, env, "x")
	number, missing := at, at
	number.Field, missing.Token = "b", "other"
	remotetest.Fails(t, &number, env, "no text in the configured field")
	remotetest.Fails(t, &missing, env, `no secret "other"`)
}

// TestCertificatesOfManagers checks that a manager is trusted only by the certificates in its file.
func TestCertificatesOfManagers(t *testing.T) {
	t.Parallel()
	server := remotetest.NewServer(t, remotetest.Reply(200, map[string]any{"data": map[string]string{"key": "value"}}))
	env := server.Env(map[string]string{"t": "canary"}, nil)
	env.Client = remote.NewClient(nil) // which trusts the system's roots
	dir := t.TempDir()
	write := func(name string, data []byte) string {
		if err := os.WriteFile(dir+"/"+name, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return dir + "/" + name
	}
	for file, words := range map[string]string{
		"": "certificate is not valid", dir + "/missing": "ca_file cannot be read", write("odd", []byte("canary")): "ca_file has no certificate",
	} {
		remotetest.Fails(t, &manager.Vault{Address: server.URL, KV: 1, Path: "a", Field: "key", Token: "t", CAFile: file}, env, words)
		remotetest.Fails(t, &manager.OnePassword{Address: server.URL, Token: "t", Vault: "v", Item: "i", CAFile: file}, env, words)
	}
	if n := server.Calls.Load(); n != 0 {
		t.Errorf("a server that is not trusted was asked %d times", n)
	}
	own := write("own", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	remotetest.Wants(t, &manager.Vault{Address: server.URL, KV: 1, Path: "a", Field: "key", Token: "t", CAFile: own}, env, "value")
}

// TestValidation: each mistake of a configuration is reported at its key.
func TestValidation(t *testing.T) {
	t.Parallel()
	const at = "https://vault.example.com:8200"
	login := &manager.VaultLogin{Role: "r", Secret: "s"}
	for _, c := range []struct {
		from        remote.Source
		keys, place string
		needs       string
	}{
		{&manager.Vault{Address: at, Path: "a/b", Field: "f", Token: "t"}, "", "secret/a/b at vault.example.com:8200", "t"},
		{&manager.Vault{Address: at, Mount: "kv", Path: "a", Field: "f", AppRole: login}, "", "kv/a at vault.example.com:8200", "s"},
		{&manager.Vault{Address: at, Path: "a", Field: "f", JWT: login}, "", "secret/a at vault.example.com:8200", "s"},
		{&manager.Vault{Address: "http://vault.example.com", Path: "a/../b", Token: "t"}, "address field path", "secret/a/../b at vault.example.com", "t"},
		{&manager.Vault{Address: at, Path: "a", Mount: "a//b", Field: "f", KV: 3, Token: "t", JWT: login}, "kv path token", "a//b/a at vault.example.com:8200", "s"},
		{&manager.Vault{Address: at, Path: "a?b", Field: "f", KV: 1, Version: 2, AppRole: &manager.VaultLogin{Role: "r"}}, "app_role kv path", "secret/a?b at vault.example.com:8200", ""},
		{&manager.OnePassword{Address: at, Token: "t", Vault: "v", Item: "i"}, "", "item i at vault.example.com:8200", "t"},
		{&manager.OnePassword{Address: "x y", Vault: "v/w", Item: ".."}, "address item token vault", "item .. at ", ""},
		{&manager.GCP{Secret: "projects/p/locations/eu/secrets/n", Token: "t"}, "", "projects/p/locations/eu/secrets/n", "t"},
		{&manager.GCP{Secret: "projects/p/secrets/../n", Endpoint: "http://x"}, "endpoint secret token", "projects/p/secrets/../n", ""},
	} {
		var keys []string
		c.from.Validate(func(key, format string, args ...any) {
			if text := fmt.Sprintf(format, args...); text == "" || strings.Contains(text, "%!") {
				t.Errorf("%+v: %s: %q", c.from, key, text)
			}
			keys = append(keys, key)
		})
		slices.Sort(keys)
		if got := strings.Join(keys, " "); got != c.keys {
			t.Errorf("%+v: problems at %q, want %q", c.from, got, c.keys)
		}
		if c.from.Place() != c.place || c.from.Needs()[0] != c.needs {
			t.Errorf("%+v: it is at %q, and needs %q", c.from, c.from.Place(), c.from.Needs())
		}
	}
}
