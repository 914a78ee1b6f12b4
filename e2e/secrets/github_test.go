package secrets

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"boxgate/audit"
	"boxgate/e2e/harness"
	"boxgate/internal/lab"
	"boxgate/policy"
	"boxgate/policy/name"
)

// gitHub is a GitHub of the test internet, with one app and its latest installation token.
type gitHub struct {
	mu     sync.Mutex
	minted int
	broken bool
	seen   []string // credentials not set by the gateway
}

func (g *gitHub) token() string {
	return fmt.Sprintf("ghs_canary-%d-%s", g.minted, strings.Repeat("Qz7", 5))
}

// issueToken answers the app's request for a token.
func (g *gitHub) issueToken(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.broken || !strings.HasPrefix(r.Header.Get("Authorization"), "Bearer eyJ") {
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprintf(w, `{"message": "no installation for %s"}`, r.Header.Get("Authorization"))
		return
	}
	g.minted++
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, `{"token": %q, "expires_at": %q}`, g.token(), time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
}

// allows reports whether a request has the latest token.
func (g *gitHub) allows(w http.ResponseWriter, r *http.Request) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if got := r.Header.Get("Authorization"); got != "Bearer "+g.token() {
		g.seen = append(g.seen, got)
		w.WriteHeader(http.StatusUnauthorized)
		return false
	}
	return true
}

func (g *gitHub) setBroken(broken bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.broken = broken
}

// handler serves the app's API, an API of repositories, a stream, and the refs of a repository to git.
func (g *gitHub) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /app/installations/678/access_tokens", g.issueToken)
	mux.HandleFunc("GET /repos/acme/web", func(w http.ResponseWriter, r *http.Request) {
		if g.allows(w, r) {
			fmt.Fprint(w, `{"full_name": "acme/web"}`)
		}
	})
	mux.HandleFunc("GET /stream", func(w http.ResponseWriter, r *http.Request) {
		if !g.allows(w, r) {
			return
		}
		fmt.Fprint(w, "data: open\n\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	mux.HandleFunc("GET /acme/web.git/info/refs", func(w http.ResponseWriter, r *http.Request) {
		if !g.allows(w, r) {
			return
		}
		w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
		line := strings.Repeat("5", 40) + " refs/heads/main\x00agent=test\n"
		fmt.Fprintf(w, "001e# service=git-upload-pack\n0000%04x%s0000", len(line)+4, line)
	})
	return mux
}

const gitHubAddr = "198.51.100.83"

// TestGitHubAppFromABox: curl and git in a box reach the resources of an app's installation token, which is never in
// the box. Refreshing the token manually ends the stream opened with the old one. When the source reports that the
// installation is gone, all requests are refused.
func TestGitHubAppFromABox(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	if err := os.WriteFile(filepath.Join(dir, "app.pem"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	w := harness.NewStopped(t, lab.Options{})
	addConfig(w, `secrets:
  app-key: {file: `+dir+`/app.pem}
  gh: {github_app: {app_id: "12345", installation_id: 678, private_key: app-key, api: "https://`+gitHubAddr+`", permissions: {contents: read}}}
`)
	g := &gitHub{}
	if err := w.Net.AddHost("github.example.com", gitHubAddr); err != nil {
		t.Fatal(err)
	}
	if err := w.Net.ServeHTTP("github.example.com", g.handler()); err != nil {
		t.Fatal(err)
	}
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	box := w.Create(map[string]any{
		"network_policy": harness.Custom("github.example.com", "www.example.com"),
		"attach_headers": map[string]any{"github.example.com": map[string]any{"headers": map[string]any{
			"Authorization": map[string]string{"secret": "gh", "prefix": "Bearer "},
		}}},
	})
	harness.Contains(t, w.MustSh(box, "curl -sS -f https://github.example.com/repos/acme/web"), "acme/web")
	harness.Contains(t, w.MustSh(box, "git ls-remote https://github.example.com/acme/web.git"), "refs/heads/main")
	w.MustSh(box, "curl -k -sS -f -o /dev/null -H 'Authorization: Bearer mine' https://www.example.com/other")
	for _, r := range w.Net.Received("www.example.com") {
		if strings.Contains(fmt.Sprint(r), "ghs_") {
			t.Errorf("another host received %+v", r)
		}
	}
	out, _ := w.GatewayCommand("secret", "list")
	harness.Contains(t, out, "gh", "github_app app 12345 at "+gitHubAddr, "valid")

	streamEnds(t, w, box, g)

	g.setBroken(true)
	out, exit := w.GatewayCommand("secret", "refresh", "gh")
	if exit == 0 {
		t.Errorf("the refresh succeeded: %s", out)
	}
	harness.Contains(t, out, "status 404")
	harness.Contains(t, w.MustSh(box, "curl -sS https://github.example.com/repos/acme/web"), "secret_unavailable")
	w.Event(box, func(e audit.Event) bool {
		return e.Reason == name.ReasonSecretUnavailable && e.Status == http.StatusBadGateway && strings.Contains(e.Error, "github_app app 12345")
	})
	if _, exit := w.GatewayCommand("secret", "refresh", "nothing"); exit == 0 {
		t.Error("an unknown secret was refreshed")
	}
	if len(g.seen) > 0 {
		t.Errorf("requests came with %q", g.seen)
	}
	for where, text := range map[string]string{"log": w.LogText(), "metrics": string(w.Metrics()), "decisions": fmt.Sprintf("%+v", w.Events(box)), "command": out} {
		if i := strings.Index(text, "ghs_"); i >= 0 || strings.Contains(text, "eyJ") {
			t.Errorf("%s shows a token: %.200s", where, text[max(0, i-100):])
		}
	}
	if found := strings.Fields(harness.Output(w.Sh(box, lab.SearchLine("ghs_canary")))); strings.Join(found, " ") != "0 0 0" {
		t.Errorf("matches in the box: %v", found)
	}
}

// streamEnds opens a stream over each version of HTTP, and makes the gateway refresh the token.
func streamEnds(t *testing.T, w *harness.World, box string, g *gitHub) {
	t.Helper()
	in := w.Intrude(box)
	h1 := in.TLS(in.DialHost("github.example.com", 443), "github.example.com")
	if _, err := io.WriteString(h1, "GET /stream HTTP/1.1\r\nHost: github.example.com\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 0, 4096)
	for !strings.Contains(string(got), "data: open") {
		n, err := h1.Read(got[len(got):cap(got)])
		if got = got[:len(got)+n]; err != nil {
			t.Fatalf("%q, %v", got, err)
		}
	}
	w.MustSh(box, "(curl -sS -N --http2 https://github.example.com/stream > /tmp/stream 2>&1; echo ended >> /tmp/stream) & "+
		"until grep -q 'data: open' /tmp/stream; do sleep 0.1; done")
	if out, exit := w.GatewayCommand("secret", "refresh", "gh"); exit != 0 {
		t.Fatalf("the refresh failed: %s", out)
	}
	_ = h1.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := h1.Read(make([]byte, 100)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the stream goes on with the old token: %v", err)
	}
	w.MustSh(box, "timeout 60 sh -c 'until grep -q ended /tmp/stream; do sleep 0.1; done'")
	w.Event(box, func(e audit.Event) bool {
		return e.Reason == name.ReasonSecretUnavailable && e.Verdict == policy.Deny && strings.HasPrefix(e.Path, "/stream")
	})
	harness.Contains(t, w.MustSh(box, "curl -sS -f https://github.example.com/repos/acme/web"), "acme/web")
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.minted != 2 {
		t.Errorf("%d tokens were minted", g.minted)
	}
}
