package secrets

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"boxgate/secrets/manager"
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
	others := map[string]Source{"t": literal("canary-token"), "id": {File: file(t, "canary-id\n")}, "bad": literal("canary-bad")}
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
		"absent":       {func(v *manager.Vault) { v.Token, v.Path = "t", "c" }, "", []string{"vault secret/c at ", "status 404"}},
		"no field":     {func(v *manager.Vault) { v.Token, v.Field = "t", "other" }, "", []string{"configured field"}},
		"wrong token":  {func(v *manager.Vault) { v.Token = "bad" }, "", []string{"status 403"}},
		"wrong secret": {func(v *manager.Vault) { v.AppRole = &manager.VaultLogin{Role: "role", Secret: "bad"} }, "", []string{"status 403"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := &manager.Vault{Address: server.URL, Path: "a/b", Field: "key", Namespace: "team"}
			c.change(v)
			s, logs := asking(t, server, "vault", v, others, nil)
			if c.want != "" {
				wants(t, s, "s", c.want)
			} else {
				fails(t, s, "s", c.words...)
			}
			s.Close()
			quiet(t, logs)
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
	s, logs := asking(t, server, "onepassword", at, map[string]Source{"t": literal("canary-connect")}, nil)
	wants(t, s, "s", "from-1p")
	wrong, more := asking(t, server, "onepassword", at, map[string]Source{"t": literal("canary-other")}, nil)
	fails(t, wrong, "s", "onepassword item i1 at ", "status 401")

	h := &hands{at: s.now()}
	s.now = h.now
	server.Answers(remotetest.Reply(200, map[string]any{"state": "ARCHIVED", "fields": item["fields"]}))
	h.pass(4*time.Minute, 4*time.Minute) // it would be used for a minute more
	wants(t, s, "s", "from-1p")
	eventually(t, "the archived item is not used", func() bool { _, err := s.Secret(t.Context(), "s"); return err != nil })
	quiet(t, logs)
	quiet(t, more)
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
	sum, logs := asking(t, server, "gcp_secret", at, map[string]Source{"t": literal("canary-ya29")}, nil)
	fails(t, sum, "s", "checksum")
	server.Answers(remotetest.Reply(200, map[string]any{"payload": map[string]any{"data": []byte("from-google")}}))
	s, _ := asking(t, server, "gcp_secret", at, map[string]Source{"t": literal("canary-ya29")}, nil)
	wants(t, s, "s", "from-google")
	server.Answers(func(w http.ResponseWriter, r *http.Request) {
		remotetest.Reply(403, map[string]any{"error": map[string]any{"status": "PERMISSION_DENIED", "message": r.Header.Get("Authorization")}})(w, r)
	})
	denied, more := asking(t, server, "gcp_secret", at, map[string]Source{"t": literal("canary-other")}, nil)
	fails(t, denied, "s", "PERMISSION_DENIED")
	quiet(t, logs)
	quiet(t, more)
}
