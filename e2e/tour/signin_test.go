package tour

import (
	"encoding/json"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/config"
	"boxgate/e2e/harness"
)

// browser is curl with a cookie jar, in the gateway's network namespace.
type browser struct {
	w   *harness.World
	dir string
}

func newBrowser(w *harness.World) *browser {
	w.T.Helper()
	b := &browser{w, w.T.TempDir()}
	var pem []byte
	if err := w.Client.Get(w.T.Context(), "/v2/ca", &pem); err != nil {
		w.T.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(b.dir, "ca.pem"), pem, 0o600); err != nil {
		w.T.Fatal(err)
	}
	return b
}

// open opens an address like a navigating browser, and returns the last status, the final address, and the page.
func (b *browser) open(address string, more ...string) (status, at, page string) {
	b.w.T.Helper()
	u, err := url.Parse(address)
	if err != nil {
		b.w.T.Fatal(err)
	}
	jar := filepath.Join(b.dir, "jar")
	args := []string{
		"-sS", "--max-time", "60", "--cacert", filepath.Join(b.dir, "ca.pem"), "--resolve", u.Hostname() + ":443:127.0.0.1", "-b", jar, "-c", jar,
		"-H", "Accept: text/html,*/*;q=0.8", "-L", "-w", "\n%{http_code} %{url_effective}",
	}
	out, err := b.w.Net.Gateway().Run(b.w.T.Context(), "curl", append(append(args, more...), address)...)
	if err != nil {
		b.w.T.Fatalf("%v: %s", err, out)
	}
	out = strings.TrimSpace(out)
	last := strings.LastIndexByte(out, '\n') + 1
	status, at, _ = strings.Cut(out[last:], " ")
	return status, at, out[:last]
}

func (b *browser) want(what, address, status string, more ...string) (page string) {
	b.w.T.Helper()
	got, at, page := b.open(address, more...)
	if got != status {
		b.w.T.Errorf("%s: %s at %s, want %s\n%s", what, got, at, status, page)
	}
	return page
}

// TestSignInWithABrowser signs in by the page and by the address, stays signed in across a restart, and signs out
// permanently.
func TestSignInWithABrowser(t *testing.T) {
	t.Parallel()
	w := harness.NewWorld(t, nil)
	box := w.Create(map[string]any{"network_policy": map[string]any{"mode": "deny-all"}})
	serveInBox(w, box, "8000")
	serveInBox(w, box, "8001")
	var one, other harness.PublicURL
	for port, made := range map[int]*harness.PublicURL{8000: &one, 8001: &other} {
		if err := w.Client.Do(t.Context(), "POST", api.BoxPath(box, "preview"), map[string]any{"port": port, "bearer_token": true, "basic_auth": true}, made); err != nil {
			t.Fatal(err)
		}
	}
	b := newBrowser(w)
	if page := b.want("at first", one.URL+"/x?y=z", "401"); !strings.Contains(page, "<form") || !strings.Contains(page, `value="/x?y=z"`) {
		t.Errorf("no form to sign in:\n%s", page)
	}
	page := b.want("with the token", one.URL+"/.boxgate/sign-in", "200", "--data-urlencode", "token="+one.Token, "--data-urlencode", "next=/x?y=z", "--post302")
	for _, secret := range []string{one.Token, "__Host-boxgate", "boxgate_token"} {
		if !strings.Contains(page, "hello from the box") || strings.Contains(page, secret) {
			t.Errorf("signed in, the box saw:\n%s", page)
		}
	}
	b.want("signed in", one.URL, "200")
	b.want("another URL of the box", other.URL, "401")
	if err := w.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.want("after a restart", one.URL, "200")
	copied := newBrowser(w)
	jar, err := os.ReadFile(filepath.Join(b.dir, "jar"))
	if err == nil {
		err = os.WriteFile(filepath.Join(copied.dir, "jar"), jar, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	copied.want("a copy of the cookie", one.URL, "200")
	b.want("signing out", one.URL+"/.boxgate/sign-out", "200", "-d", "")
	b.want("signed out", one.URL, "401")
	if err := w.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	copied.want("the copy, signed out before a restart", one.URL, "401")

	if status, at, page := b.open(one.URL + "/x?a=1&boxgate_token=" + one.Token); status != "200" || !strings.HasSuffix(at, "/x?a=1") || strings.Contains(page, one.Token) {
		t.Errorf("by the address: %s at %s\n%s", status, at, page)
	}
	b.want("with the password", other.URL+"/.boxgate/sign-in", "200", "-d", "username="+other.Username, "--data-urlencode", "password="+other.Password)
	if err := w.Client.Do(t.Context(), "POST", api.BoxPath(box, "preview"), map[string]any{"port": 8000, "bearer_token": true}, nil); err != nil {
		t.Fatal(err)
	}
	b.want("after the URL was created anew", one.URL, "401")
	if e := w.Event(box, func(e audit.Event) bool { return e.Credential == audit.CredentialSession }); e.Status != 200 || !e.Peer.IsValid() {
		t.Errorf("event %+v", e)
	}
	var log struct{ Logs []struct{ Message string } }
	if err := w.Client.Get(t.Context(), api.BoxPath(box, "logs"), &log); err != nil {
		t.Fatal(err)
	}
	lines := ""
	for _, l := range log.Logs {
		lines += l.Message + "\n"
	}
	for _, want := range []string{"127.0.0.1 GET port 8000 /x: 200, ", ", session\n", ", refused, url_auth"} {
		if !strings.Contains(lines, want) {
			t.Errorf("the box's log lacks %q:\n%s", want, lines)
		}
	}
	if strings.Contains(lines, one.Token) {
		t.Errorf("the box's log has the token:\n%s", lines)
	}
}

// TestURLExpires: the gateway shows the expiry time of a URL, and lets no visitor in after it.
func TestURLExpires(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{"network_policy": map[string]any{"mode": "deny-all"}})
	serveInBox(w, box, "8000")
	var made harness.PublicURL
	out, code := w.GatewayCommand("url", "create", box, "8000", "--bearer", "--expires-in", "2s", "--origin", "https://app.example.org", "--json")
	if code != 0 || !strings.Contains(out, `"expires_at"`) || !strings.Contains(out, "https://app.example.org") {
		t.Fatal(out)
	}
	until := time.Now().Add(2 * time.Second)
	if err := w.Client.Do(t.Context(), "POST", api.BoxPath(box, "preview"), map[string]any{"port": 8000, "bearer_token": true, "expires_in": 2}, &made); err != nil {
		t.Fatal(err)
	}
	b := newBrowser(w)
	for status := ""; status != "401"; { // a request running at the expiry is cut, and repeated
		status, _, _ = b.open(made.URL, "-H", "Authorization: Bearer "+made.Token, "--retry", "3", "--retry-all-errors")
		if status != "200" && time.Now().Before(until) || time.Now().After(until.Add(time.Minute)) {
			t.Fatalf("%s, %v after its end", status, time.Since(until))
		}
	}
	if err := w.Client.Do(t.Context(), "POST", api.BoxPath(box, "preview/8000/sign"), map[string]any{}, nil); err == nil || !strings.Contains(err.Error(), "has expired") {
		t.Errorf("a link to it: %v", err)
	}
}

// TestAccountsOpenAURL: a URL opened by accounts redirects a browser to the host known to the provider. While the
// provider does not answer, no visitor is let in, and the page shows the reason.
func TestAccountsOpenAURL(t *testing.T) {
	t.Parallel()
	w := harness.NewWorld(t, func(c *config.Config) {
		c.Ingress.RequireAuth = true
		c.Ingress.OIDC.Issuer, c.Ingress.OIDC.ClientID = "http://127.0.0.1:1", "boxgate"
	})
	box := w.Create(map[string]any{"network_policy": map[string]any{"mode": "deny-all"}})
	serveInBox(w, box, "8000")
	out, code := w.GatewayCommand("url", "create", box, "8000", "--oidc-domain", "Friends.example", "--oidc-group", "staff", "--json")
	var made struct{ URL string }
	if err := json.Unmarshal([]byte(out), &made); code != 0 || err != nil || !strings.Contains(out, `"friends.example"`) {
		t.Fatal(code, out)
	}
	b := newBrowser(w)
	if page := b.want("at first", made.URL+"/x", "401"); !strings.Contains(page, `href="/.boxgate/start?next=%2Fx"`) || strings.Contains(page, "hello from the box") {
		t.Errorf("no link to sign in:\n%s", page)
	}
	status, at, page := b.open(made.URL+"/.boxgate/start?next=/x", "--resolve", "auth.preview.localhost:443:127.0.0.1")
	if status != "503" || !strings.HasPrefix(at, "https://auth.preview.localhost/.boxgate/start?ticket=") || !strings.Contains(page, "identity provider does not answer") {
		t.Errorf("the provider is down: %s at %s\n%s", status, at, page)
	}
	b.want("with a code of one's own", made.URL+"/.boxgate/return?code=eyJ1Ijoib25lIn0", "403")
}
