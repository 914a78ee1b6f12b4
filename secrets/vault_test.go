package secrets

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"boxgate/secrets/manager"
	"boxgate/secrets/remote/remotetest"
)

// vault is a Vault that keeps tokens until they are revoked.
type vault struct {
	mu      sync.Mutex
	logins  int
	tokens  []string
	revoked []string
}

func (v *vault) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	v.mu.Lock()
	defer v.mu.Unlock()
	token := r.Header.Get("X-Vault-Token")
	switch {
	case strings.HasSuffix(r.URL.Path, "/login"):
		v.logins++
		v.tokens = append(v.tokens, fmt.Sprintf("canary-token-%d", v.logins))
		remotetest.Reply(200, map[string]any{"auth": map[string]any{"client_token": v.tokens[len(v.tokens)-1], "lease_duration": 3600}})(w, r)
	case !slices.Contains(v.tokens, token):
		remotetest.Reply(403, map[string]any{"errors": []string{"permission denied for " + token}})(w, r)
	case r.URL.Path == "/v1/auth/token/revoke-self":
		v.revoked = append(v.revoked, token)
		v.forget(token)
		w.WriteHeader(http.StatusNoContent)
	default:
		remotetest.Reply(200, map[string]any{"data": map[string]any{"data": map[string]string{"key": fmt.Sprint("value-by-", strings.TrimPrefix(token, "canary-"))}}})(w, r)
	}
}

func (v *vault) forget(token string) {
	v.tokens = slices.DeleteFunc(v.tokens, func(t string) bool { return t == token })
}

// A login is reused until its lease ends, Vault refuses it, or it is dropped, in which case it is revoked.
func TestVaultLoginsDoNotPileUp(t *testing.T) {
	t.Parallel()
	v := &vault{}
	server := remotetest.NewServer(t, v.ServeHTTP)
	from := &manager.Vault{Address: server.URL, Path: "a", Field: "key", AppRole: &manager.VaultLogin{Role: "role", Secret: "id"}}
	s, logs := asking(t, server, "vault", from, map[string]Source{"id": {File: file(t, "canary-id")}}, nil)
	wants(t, s, "s", "value-by-token-1")
	h := &hands{at: s.now()}
	s.now = h.now
	refreshed := func(want string) {
		t.Helper()
		h.pass(6*time.Minute, 6*time.Minute) // longer than a value without expiry is used
		wants(t, s, "s", want)
	}
	refreshed("value-by-token-1")
	refreshed("value-by-token-1")
	v.mu.Lock()
	v.forget("canary-token-1")
	v.mu.Unlock()
	refreshed("value-by-token-2")
	for _, name := range []string{"s", "id"} {
		if err := s.Refresh(t.Context(), name); err != nil {
			t.Fatal(err)
		}
		wants(t, s, "s", map[string]string{"s": "value-by-token-3", "id": "value-by-token-4"}[name])
	}
	h.pass(time.Hour, time.Hour)
	wants(t, s, "s", "value-by-token-5")
	s.Close()
	v.mu.Lock()
	defer v.mu.Unlock()
	if got := strings.Join(v.revoked, " "); got != "canary-token-2 canary-token-3" || v.logins != 5 {
		t.Errorf("%d logins, revoked %q", v.logins, got)
	}
	quiet(t, logs)
}
