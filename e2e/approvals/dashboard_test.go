package approvals

import (
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/secrets"
)

// dashboard is a person who has signed in at the dashboard of a gateway, with a browser that has no JavaScript.
type dashboard struct {
	w       *harness.World
	client  *http.Client
	cookies map[string]string
}

// origin is the address of the dashboard in the namespace of the gateway.
const origin = "http://127.0.0.1:8600"

// signIn signs in with an API key.
func signIn(w *harness.World, key string) *dashboard {
	w.T.Helper()
	d := &dashboard{w: w, cookies: map[string]string{}, client: &http.Client{
		Transport:     &http.Transport{DialContext: w.Net.Gateway().DialContext, DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	if status, text := d.form("/ui/sign-in", "/ui/sign-in", url.Values{"key": {key}}); status != http.StatusSeeOther {
		w.T.Fatalf("signing in: %d %s", status, text)
	}
	return d
}

// send sends a request with the cookies of the browser, which it keeps although the connection has no TLS, as browsers do on loopback.
func (d *dashboard) send(method, path string, form url.Values) (status int, text string) {
	d.w.T.Helper()
	req, err := http.NewRequestWithContext(d.w.T.Context(), method, origin+path, strings.NewReader(form.Encode()))
	if err != nil {
		d.w.T.Fatal(err)
	}
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		req.Header.Set("Origin", origin)
		req.Header.Set("Sec-Fetch-Site", "same-origin")
	}
	for name, value := range d.cookies {
		req.AddCookie(&http.Cookie{Name: name, Value: value})
	}
	resp, err := d.client.Do(req)
	if err != nil {
		d.w.T.Fatal(err)
	}
	defer resp.Body.Close()
	for _, c := range resp.Cookies() {
		d.cookies[c.Name] = c.Value
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		d.w.T.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

var (
	tokenField     = regexp.MustCompile(`name="token" value="([^"]+)"`)
	candidateField = regexp.MustCompile(`name="candidate" value="([^"]+)"`)
	checkedField   = regexp.MustCompile(`name="checked" value="([^"]+)"`)
)

// form sends a form with the token of a page.
func (d *dashboard) form(page, action string, values url.Values) (status int, text string) {
	d.w.T.Helper()
	status, text = d.send(http.MethodGet, page, nil)
	token := tokenField.FindStringSubmatch(text)
	if token == nil {
		d.w.T.Fatalf("no form in %s: %d %s", page, status, text)
	}
	values.Set("token", token[1])
	return d.send(http.MethodPost, action, values)
}

// TestFourEyesInTheDashboard: a request is answered by another person than the one whose key made the box, with the effect that the page
// has shown, and without JavaScript.
func TestFourEyesInTheDashboard(t *testing.T) {
	t.Parallel()
	w := harness.SharedWith(t, func(c *config.Config) { asking(c); c.Approvals.FourEyes = true })
	keyOf := func(body map[string]any) string {
		var made struct{ Key string }
		if err := w.Client.Do(t.Context(), "POST", "/v2/api-keys", body, &made); err != nil {
			t.Fatal(err)
		}
		return made.Key
	}
	creator := keyOf(map[string]any{"name": "platform", "role": "box-creator"})
	var box struct{ ID string }
	if err := api.NewClient(w.Socket, creator).Do(t.Context(), "POST", "/v2/box", map[string]any{"name": "job", "network_policy": map[string]any{"mode": "deny-all"}}, &box); err != nil {
		t.Fatal(err)
	}
	asked, _ := ask(w, box.ID, `{"host":"www.example.com","reason":"<img src=x onerror=alert(1)> docs"}`)
	page := "/ui/requests/" + box.ID + "/" + asked["id"].(string)

	mine := signIn(w, creator)
	if _, text := mine.send(http.MethodGet, page, nil); !strings.Contains(text, "another API key") || strings.Contains(text, "Send the answer") || strings.Contains(text, "<img") {
		t.Errorf("the creator: %s", text)
	}
	other := signIn(w, keyOf(map[string]any{"name": "security", "role": "approver"}))
	_, text := other.send(http.MethodGet, page, nil)
	candidate := candidateField.FindStringSubmatch(text)
	if candidate == nil || !strings.Contains(text, "www.example.com") || !strings.Contains(text, "&lt;img") {
		t.Fatalf("the approver: %s", text)
	}
	yes := url.Values{"answer": {"once"}, "expires_in": {"900"}, "reason": {"docs are fine"}, "candidate": candidate[1:]}
	if status, text := mine.form(page, page, yes); status != http.StatusForbidden || !strings.Contains(text, "another API key") {
		t.Errorf("the creator answers: %d %s", status, text)
	}
	// The gateway adds a credential for the host: an approval would now give the box its use.
	if err := w.Client.Do(t.Context(), "PUT", api.BoxPath(box.ID, "config/attach-headers"), map[string]any{"attach_headers": map[string]any{"www.example.com": map[string]string{"X-Key": harness.Canary}}}, nil); err != nil {
		t.Fatal(err)
	}
	status, text := other.form(page, page, yes)
	if status != http.StatusConflict || !strings.Contains(text, "nothing was applied") || !strings.Contains(text, "adds credentials") || !strings.Contains(text, `value="docs are fine"`) {
		t.Fatalf("another effect than shown: %d %s", status, text)
	}
	yes["candidate"] = candidateField.FindStringSubmatch(text)[1:]
	if status, text := other.form(page, page, yes); status != http.StatusSeeOther {
		t.Fatalf("the approver answers: %d %s", status, text)
	}
	w.MustSh(box.ID, "curl -k -sS -m 60 -f https://www.example.com/")
	if _, text := other.send(http.MethodGet, "/ui/requests?state=answered", nil); !strings.Contains(text, "allowed for a time") || !strings.Contains(text, "security") {
		t.Errorf("the answers: %s", text)
	}
	for _, path := range []string{"/ui/policies", "/ui/keys", "/ui/trail", "/ui/secrets", "/ui/report", "/ui/urls", "/ui/rules", "/ui/gateway"} {
		if status, text := other.send(http.MethodGet, path, nil); status != http.StatusForbidden {
			t.Errorf("the approver at %s: %d %s", path, status, text)
		}
	}
	harness.Contains(t, w.Run(0, nil, "", "audit", "--json", "--key", "security"), `"answer":"once"`, "docs are fine")
	w.NoInternalErrors()
}

// TestOperatorInTheDashboard: the operator opens each page of a gateway, and the forms have the effect of the commands.
func TestOperatorInTheDashboard(t *testing.T) {
	t.Parallel()
	secret := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(secret, []byte(harness.Canary), 0o600); err != nil {
		t.Fatal(err)
	}
	w := harness.NewWorld(t, func(c *config.Config) {
		asking(c)
		c.Secrets.Sources = map[string]secrets.Source{"token": {File: secret}}
	})
	if err := w.Client.Do(t.Context(), "PUT", "/v2/box/settings/network-policies/web", harness.Custom("api.example.com"), nil); err != nil {
		t.Fatal(err)
	}
	box := w.Create(map[string]any{"name": "job", "network_policy": map[string]any{"named": "web"}})
	key, err := os.ReadFile(filepath.Join(w.Dir, "state", "api-key"))
	if err != nil {
		t.Fatal(err)
	}
	d := signIn(w, strings.TrimSpace(string(key)))
	pages := []string{
		"/ui/requests", "/ui/policies", "/ui/policies/web", "/ui/rules", "/ui/boxes/" + box + "/headers", "/ui/urls", "/ui/boxes/" + box + "/urls", "/ui/keys", "/ui/keys/operator",
		"/ui/trail?verify=1", "/ui/secrets", "/ui/secrets/token/uses", "/ui/report", "/ui/report/html", "/ui/report/csv", "/ui/report/json", "/ui/gateway",
	}
	for _, path := range pages {
		if status, text := d.send(http.MethodGet, path, nil); status != http.StatusOK || strings.Contains(text, harness.Canary) {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}
	status, text := d.form("/ui/keys", "/ui/keys", url.Values{"name": {"ci"}, "role": {"box-creator"}, "expires_in": {"30d"}})
	made := regexp.MustCompile(`<code class="secret">([^<]+)</code>`).FindStringSubmatch(text)
	if status != http.StatusCreated || made == nil {
		t.Fatalf("a new key: %d %s", status, text)
	}
	var boxes []struct{ ID string }
	if err := api.NewClient(w.Socket, made[1]).Get(t.Context(), "/v2/box", &boxes); err != nil || len(boxes) != 0 {
		t.Errorf("the new key: %v %v", boxes, err)
	}
	if status, text := d.form("/ui/boxes/"+box+"/urls", "/ui/boxes/"+box+"/urls", url.Values{"port": {"3000"}, "bearer_token": {"1"}, "protocol": {"auto"}, "expires_in": {"3600"}}); status != http.StatusCreated || !strings.Contains(text, "Bearer token") {
		t.Errorf("a new URL: %d %s", status, text)
	}
	harness.Contains(t, w.Run(0, nil, "", "url", "list", box), "3000")
	next := url.Values{"policy": {`{"mode":"custom","allowed_domains":["api.example.com","*.example.org"]}`}, "version": {"1"}, "do": {"check"}}
	status, text = d.form("/ui/policies/web", "/ui/policies/web", next)
	checked := checkedField.FindStringSubmatch(text)
	if status != http.StatusOK || checked == nil || !strings.Contains(text, "*.example.org") || !strings.Contains(text, "Type the name") {
		t.Fatalf("the effect of a policy: %d %s", status, text)
	}
	next["do"], next["checked"] = []string{"apply"}, checked[1:]
	if status, text := d.form("/ui/policies/web", "/ui/policies/web", next); status != http.StatusUnprocessableEntity {
		t.Errorf("applied without its name: %d %s", status, text)
	}
	next.Set("confirm", "web")
	if status, text := d.form("/ui/policies/web", "/ui/policies/web", next); status != http.StatusSeeOther {
		t.Errorf("applying it: %d %s", status, text)
	}
	harness.Contains(t, w.Run(0, nil, "", "policy", "get", box), "*.example.org")
	if status, text := d.send(http.MethodGet, "/ui/trail", nil); status != http.StatusOK || !strings.Contains(text, "PUT /v2/box/settings/network-policies/{name}") || !strings.Contains(text, "POST /v2/api-keys") {
		t.Errorf("the trail: %d %s", status, text)
	}
	w.NoInternalErrors()
}
