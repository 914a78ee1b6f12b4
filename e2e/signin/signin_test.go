package signin

import (
	"bufio"
	"context"
	"crypto/tls"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/secrets"
)

// TestSignInWithAKey: a person signs in over TLS with a key and follows a box. When the key is deleted, the stream ends within
// seconds and the session with it. The trail names the key.
func TestSignInWithAKey(t *testing.T) {
	t.Parallel()
	g := newGate(t, nil)
	box := g.Create(map[string]any{"name": "web", "network_policy": harness.Custom("api.example.com")})
	v := g.visitor(t)
	if resp, page := v.signIn("not-a-key"); resp.StatusCode != http.StatusUnauthorized || v.isIn() {
		t.Fatalf("%s %s", resp.Status, page)
	}
	key := g.newKey(t, "watcher", api.RoleReader)
	if resp, page := v.signIn(key); resp.StatusCode != http.StatusOK || !strings.Contains(page, "web") || resp.ProtoMajor != 2 {
		t.Fatalf("%s %s %s", resp.Proto, resp.Status, page)
	}
	r, err := http.NewRequestWithContext(t.Context(), "GET", origin+"/ui/boxes/"+box+"/live", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept", "text/event-stream")
	stream := *v.Client
	stream.Timeout = 0
	resp, err := stream.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatal(resp.Status)
	}
	ended := make(chan time.Time, 1)
	go func() {
		for lines := bufio.NewScanner(resp.Body); lines.Scan(); { // until its end
		}
		ended <- time.Now()
	}()
	deleted := time.Now()
	if err := g.Client.Do(t.Context(), "DELETE", "/v2/api-keys/watcher", nil, nil); err != nil {
		t.Fatal(err)
	}
	select {
	case at := <-ended:
		t.Logf("the stream has ended after %v", at.Sub(deleted))
	case <-time.After(time.Minute):
		t.Error("the stream outlives its key")
	}
	if v.isIn() {
		t.Error("the session outlives its key")
	}
	trail := g.trail(t)
	harness.Contains(t, trail, "refused||||dashboard, 127.0.0.1|POST /ui/sign-in|Unauthorized", "call|key|watcher|read-only|dashboard, 127.0.0.1|POST /ui/sign-in|", "answer|key|watcher|read-only|dashboard, 127.0.0.1|POST /ui/sign-in|See Other")
	for _, path := range []string{"state/api-key", "gateway.log"} {
		if text, err := os.ReadFile(filepath.Join(g.Dir, path)); err != nil || strings.Contains(string(text), key) {
			t.Errorf("%s: %v, or it has the key", path, err)
		}
	}
}

// TestSignInAtAProvider: a person signs in with an account of a real identity provider, and has the role of the group in the
// dashboard and in the trail. A person without a group is told the claim.
func TestSignInAtAProvider(t *testing.T) {
	t.Parallel()
	g := newGate(t, func(g *gate, c *config.Config) {
		secret := filepath.Join(g.Dir, "client-secret")
		if err := os.WriteFile(secret, []byte("client-secret"), 0o600); err != nil {
			t.Fatal(err)
		}
		c.Secrets.Sources = map[string]secrets.Source{"oidc": {File: secret}}
		c.Admin.OIDC = config.AdminOIDC{
			Issuer: g.startProvider(t, map[string][]string{"ann": {"staff", "gate-admins"}, "eve": {"strangers"}}), ClientID: "boxgate", ClientSecret: "oidc", Scopes: []string{"email"},
			GroupsClaim: "groups", RedirectURL: origin + config.AdminReturnPath, Groups: map[string]string{"gate-admins": "admin", "watchers": "read-only"},
		}
	})
	g.Create(map[string]any{"name": "web", "network_policy": harness.Custom("api.example.com")})
	ann, eve := g.visitor(t), g.visitor(t)
	if resp, page := eve.atProvider("eve"); resp.StatusCode != http.StatusForbidden || !strings.Contains(page, "None of the groups of eve@example.org") || eve.isIn() {
		t.Errorf("%s %s", resp.Status, page)
	}
	if resp, page := ann.atProvider("ann"); resp.StatusCode != http.StatusOK || !strings.Contains(page, `content="0; url=/ui/"`) || !ann.isIn() {
		t.Errorf("%s %s", resp.Status, page)
	}
	if _, page := ann.send("GET", origin+"/ui/", nil); !strings.Contains(page, "ann@example.org") || !strings.Contains(page, "web") {
		t.Errorf("%s", page)
	}
	harness.Contains(t, g.trail(t), "refused||eve@example.org||dashboard, 127.0.0.1|GET /ui/oidc/callback|Forbidden", "answer|sso|ann@example.org|admin|dashboard, 127.0.0.1|GET /ui/oidc/callback|See Other")
}

// atProvider signs in at the provider as a user, and returns the answer of the dashboard.
func (v *visitor) atProvider(user string) (*http.Response, string) {
	v.t.Helper()
	_, page := v.send("GET", origin+"/ui/sign-in", nil)
	link := regexp.MustCompile(`href="(/ui/oidc/start[^"]*)"`).FindStringSubmatch(page)
	if link == nil {
		v.t.Fatalf("no link to sign in: %s", page)
	}
	resp, page := v.send("GET", origin+link[1], nil)
	id := regexp.MustCompile(`name="id" value="([^"]*)"`).FindStringSubmatch(page)
	if id == nil {
		v.t.Fatalf("%s %s", resp.Status, page)
	}
	at := resp.Request.URL
	return v.send("POST", at.Scheme+"://"+at.Host+"/login/username", url.Values{"username": {user}, "password": {user}, "id": {id[1]}})
}

// TestAdminOverTLS: the API and the command line work over admin.tls as well, with TLS 1.2 and newer only, and the certificate
// follows its files. The Unix socket has no TLS.
func TestAdminOverTLS(t *testing.T) {
	t.Parallel()
	g := newGate(t, nil)
	v := g.visitor(t)
	withKey := func(r *http.Request) { r.Header.Set(api.KeyHeader, g.operatorKey(t)) }
	if resp, page := v.send("GET", origin+"/v2/box", nil, withKey); resp.StatusCode != http.StatusOK {
		t.Errorf("%s %s", resp.Status, page)
	}
	if resp, _ := v.send("GET", "http://"+host+":8600/v2/box", nil, withKey); resp.StatusCode != http.StatusBadRequest {
		t.Errorf("plain HTTP: %s", resp.Status)
	}
	c, err := g.Net.Gateway().DialContext(t.Context(), "tcp", "127.0.0.1:8600")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	old := tls.Client(c, &tls.Config{RootCAs: g.roots, ServerName: host, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11})
	if err := old.HandshakeContext(t.Context()); err == nil {
		t.Error("TLS 1.1 is accepted")
	}
	// The command line trusts the configured certificate at the configured address, and the system's roots elsewhere.
	text, err := os.ReadFile(g.Config)
	if err != nil {
		t.Fatal(err)
	}
	without := filepath.Join(g.Dir, "without-socket.yaml")
	if err := os.WriteFile(without, []byte(regexp.MustCompile(`(?m)^    socket: .*$`).ReplaceAllString(string(text), `    socket: ""`)), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(env []string, args ...string) string {
		cmd := g.Command(t.Context(), args...)
		cmd.Env = append(cmd.Env, env...)
		out, err := os.CreateTemp(g.Dir, "out")
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		cmd.Stdout, cmd.Stderr = out, out
		if err := g.Net.Gateway().Start(cmd); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		said, err := os.ReadFile(out.Name())
		if err != nil {
			t.Fatal(err)
		}
		return cmd.ProcessState.String() + "\n" + string(said)
	}
	harness.Contains(t, run(nil, "--config", without, "box", "list"), "exit status 0")
	harness.Contains(t, run(nil, "--admin", "https://localhost:8600", "box", "list"), "certificate")
	before := g.served(t)
	fresh := g.certify(t)
	g.Until("the new certificate is served", func() bool { return g.served(t) == fresh.SerialNumber.String() })
	if before == fresh.SerialNumber.String() {
		t.Error("the certificate has not changed")
	}
	if resp, page := g.visitor(t).send("GET", origin+"/ui/sign-in", nil); resp.StatusCode != http.StatusOK {
		t.Errorf("%s %s", resp.Status, page)
	}
}

// served returns the serial number of the certificate of the dashboard.
func (g *gate) served(t *testing.T) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := g.Net.Gateway().DialContext(ctx, "tcp", "127.0.0.1:8600")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	secured := tls.Client(c, &tls.Config{RootCAs: g.roots, ServerName: host})
	if err := secured.HandshakeContext(ctx); err != nil {
		t.Fatal(err)
	}
	return secured.ConnectionState().PeerCertificates[0].SerialNumber.String()
}
