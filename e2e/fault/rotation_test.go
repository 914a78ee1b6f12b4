package fault

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"boxgate/e2e/harness"
	"boxgate/internal/lab"
)

// tokenServer replaces each refresh token presented to it. It accepts the previous one until the new one is presented:
// a client that lost an answer has only the previous one.
type tokenServer struct {
	mu       sync.Mutex
	accepted []string
	minted   int
	refused  int
}

func (s *tokenServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.URL.Path != "/token" {
		if r.Header.Get("Authorization") != fmt.Sprintf("Bearer access-%d", s.minted) {
			w.WriteHeader(http.StatusUnauthorized)
		}
		return
	}
	presented := r.FormValue("refresh_token")
	if !slices.Contains(s.accepted, presented) {
		s.refused++
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, `{"error": "invalid_grant"}`)
		return
	}
	s.minted++
	next := fmt.Sprintf("canary-refresh-%d", s.minted)
	s.accepted = []string{next, presented}
	fmt.Fprintf(w, `{"access_token": "access-%d", "token_type": "bearer", "expires_in": 3600, "refresh_token": %q}`, s.minted, next)
}

// TestRefreshTokensSurviveFaults: the gateway dies, fails or panics while one refresh token replaces another. The grant
// is not lost, and no request is sent without a token.
func TestRefreshTokensSurviveFaults(t *testing.T) {
	t.Parallel()
	w := harness.NewStopped(t, lab.Options{})
	w.Env = append(w.Env, harness.FaultsFile+"="+w.FaultsPath())
	data, err := os.ReadFile(w.Config)
	if err != nil {
		t.Fatal(err)
	}
	data = append(data, `secrets:
  first: {value: canary-first}
  api: {oauth2: {token_url: "https://198.51.100.84/token", grant: refresh_token, client_id: me, refresh_token: first}}
`...)
	if err := os.WriteFile(w.Config, data, 0o600); err != nil {
		t.Fatal(err)
	}
	s := &tokenServer{accepted: []string{"canary-first"}}
	if err := w.Net.AddHost("tokens.example.com", "198.51.100.84"); err != nil {
		t.Fatal(err)
	}
	if err := w.Net.ServeHTTP("tokens.example.com", s); err != nil {
		t.Fatal(err)
	}
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	box := w.Create(map[string]any{
		"network_policy": harness.Custom("tokens.example.com"),
		"attach_headers": map[string]any{"tokens.example.com": map[string]any{"headers": map[string]any{
			"Authorization": map[string]string{"secret": "api", "prefix": "Bearer "},
		}}},
	})
	status := func() string {
		out, _ := w.Sh(box, "curl -sS -o /dev/null -w '%{http_code}' https://tokens.example.com/")
		return strings.TrimSpace(out)
	}
	works := func(what string) {
		w.Until("the token is used after "+what, func() bool { return status() == "200" })
	}
	works("the start")
	for _, step := range stepsOfRotation {
		for _, kind := range []string{harness.FaultDie, harness.FaultError, harness.FaultPanic} {
			what := kind + " at " + step
			w.Arm(kind, step)
			w.GatewayCommand("secret", "refresh", "api")
			if kind == harness.FaultDie {
				w.AwaitExit(what)
				w.StartIfStopped()
			}
			w.MustReachStep(what)
			works(what)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refused > 0 {
		t.Errorf("%d refresh tokens were refused", s.refused)
	}
	if strings.Contains(w.LogText(), "canary-") {
		t.Error("the log shows a refresh token")
	}
}
