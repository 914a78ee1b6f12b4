package ui

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/internal/lab"
)

// operator signs a page in with the operator's key.
func operator(t *testing.T, w *harness.World, b *browser, name string, with viewOptions) *page {
	t.Helper()
	p := b.open(t, name, with)
	p.signIn(strings.TrimSpace(w.KeyFile("api-key")))
	return p
}

// newKey makes an API key and returns its secret.
func newKey(w *harness.World, name string, role api.Role, box string) string {
	w.T.Helper()
	body := map[string]any{"name": name, "role": role}
	if box != "" {
		body["box"] = box
	}
	var made struct{ Key string }
	if err := w.Client.Do(w.T.Context(), "POST", "/v2/api-keys", body, &made); err != nil {
		w.T.Fatal(err)
	}
	w.T.Cleanup(func() { _ = w.Client.Do(w.T.Context(), "DELETE", "/v2/api-keys/"+name, nil, nil) })
	return made.Key
}

// An operator sees a denial arrive, reads why, previews an hour's access, and gives it: the box succeeds. When the access ends, its
// connection is cut.
func TestADenialBecomesALease(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{"name": "journey", "network_policy": harness.Custom("api.example.com")})
	p := operator(t, w, newBrowser(t, w.Net.Gateway()), "a", nil)
	p.do("click", "text=journey")
	p.do("wait", "#live.windowed")

	if _, code := w.Sh(box, "curl -sS --max-time 20 https://cdn.example.org/"); code == 0 {
		t.Fatal("the policy does not deny the host")
	}
	p.do("waitText", "#live tr", "cdn.example.org:443")
	p.do("click", "#live tr:has-text('cdn.example.org:443') a")
	p.do("waitURL", "/decisions/")
	if text := get[string](p, "text", "main"); !strings.Contains(text, "denied") || !strings.Contains(text, "cdn.example.org") {
		t.Errorf("the decision: %s", text)
	}
	p.do("click", "main a[href*='/allow?']")
	p.do("waitURL", "/allow")
	preview := get[string](p, "text", "main")
	harness.Contains(t, preview, "Preview of cdn.example.org:443", "connections to cdn.example.org, port 443")
	if got := get[string](p, "evaluate", "document.querySelector('#for').selectedOptions[0].textContent"); got != "1 hour" {
		t.Errorf("by default the entry lasts %s", got)
	}
	w.Until("the preview counts the denials", func() bool {
		p.do("evaluate", "location.reload()")
		p.do("wait", "form.decide")
		return strings.Contains(get[string](p, "text", "main"), "of the last")
	})
	p.do("click", "form.decide button")
	p.do("waitURL", "done=allowed")
	harness.Contains(t, get[string](p, "text", "main"), "The destination is allowed now", "cdn.example.org:443")
	w.MustSh(box, "curl -sS --max-time 60 https://cdn.example.org/")

	var out lab.SyncBuffer
	ended := w.Background(box, "curl -sSN https://cdn.example.org/sse", &out)
	if err := out.Await(t.Context(), "data: 1"); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	p.do("click", "button:has-text('End allow cdn.example.org:443')")
	p.do("waitURL", "done=ended")
	if code, err := ended(); err != nil || code == 0 {
		t.Errorf("after the end of the access its connection ended with %d, %v", code, err)
	}
	t.Logf("the connection was cut %v after the click", time.Since(began).Round(time.Millisecond))
	if _, code := w.Sh(box, "curl -sS --max-time 20 https://cdn.example.org/"); code == 0 {
		t.Error("the host is still reachable")
	}
	p.clean()
}

// Nothing wide is one click away: a wildcard, an address and a look-alike must be typed again, names that anybody can have cannot be
// allowed here, and a changed policy shows the preview again.
func TestAllowingIsNeverOneClickWide(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{"network_policy": harness.Custom("paypal.com:443")})
	p := operator(t, w, newBrowser(t, w.Net.Gateway()), "a", nil)
	at := "/ui/boxes/" + box + "/allow"
	for host, want := range map[string]string{
		"*.example.org": "every name below example.org", "198.51.100.20": "every port of the address", "paypa1.com": "looks like paypal.com",
		"xn--pypal-4ve.com": "pаypal.com",
	} {
		p.visit(at + "?host=" + host + "&port=443")
		if text := get[string](p, "text", "main .notice.bad"); !strings.Contains(text, want) {
			t.Errorf("%s: %q", host, text)
		}
		if n := get[int](p, "count", "form.decide input[name=confirm]"); n != 1 {
			t.Errorf("%s needs no confirmation", host)
		}
	}
	p.do("fill", "form.decide input[name=confirm]", "something else")
	p.do("click", "form.decide button")
	p.do("waitText", ".error", "exactly as it is shown")
	if n := get[int](p, "evaluate", "performance.getEntriesByType('navigation')[0].responseStatus"); n != 422 {
		t.Errorf("a wrong confirmation: status %d", n)
	}
	p.visit(at + "?host=*.com&port=443")
	if n := get[int](p, "count", "form.decide"); n != 0 {
		t.Error("*.com can be allowed")
	}
	p.visit(at + "?host=www.example.com&port=443")
	w.SetPolicy(box, harness.Custom("api.example.com"))
	p.do("click", "form.decide button")
	p.do("waitText", "[role=alert]", "has changed since the preview")
	p.do("click", "form.decide button")
	p.do("waitURL", "done=allowed")

	p.visit(at + "?host=*.example.org&port=443&for=good")
	p.do("fill", "form.decide input[name=confirm]", "*.example.org:443")
	p.do("click", "form.decide button")
	p.do("waitURL", "done=allowed")
	var now struct {
		Domains []string `json:"allowed_domains"`
		Leases  []struct{ Entry string }
	}
	if err := w.Client.Get(t.Context(), api.BoxPath(box, "config/network-policy"), &now); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(now.Domains) != "[api.example.com *.example.org:443]" || fmt.Sprint(now.Leases) != "[{www.example.com:443}]" {
		t.Errorf("the policy is %+v", now)
	}
	p.clean()
}

// The editor shows problems of a text at their place, the effect of another policy before it is applied, and asks again if the policy or
// the text has changed; the history shows what changed.
func TestThePolicyIsEdited(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{"name": "edited", "network_policy": harness.Custom("api.example.com")})
	p := operator(t, w, newBrowser(t, w.Net.Gateway()), "a", nil)
	at := "/ui/boxes/" + box + "/policy"
	p.visit(at)
	edit := func(text string) {
		p.do("fill", "textarea", text)
		p.do("click", "button[value=check]")
	}
	edit("{\n  \"mode\": \"custom\",\n  \"allowed_domains\": [\"a.example\",\n    \"b..example\"]\n}")
	p.do("waitText", "ol.source li[value='4'] p.error", "/allowed_domains/1")
	edit(`{"mode": "custom", "allowed_domains": ["api.example.com", "cdn.example.org:443"]}`)
	p.do("waitText", ".diff li.add", "connections to cdn.example.org, port 443")
	p.do("fill", "textarea", `{"mode": "custom", "allowed_domains": ["api.example.com", "www.example.com:443"]}`)
	p.do("click", "button[value=apply]") // of a text that was not checked
	p.do("waitText", "[role=alert]", "another one than you had checked")
	p.do("click", "button[value=apply]")
	p.do("waitURL", "done=applied")
	edit(`{"mode": "allow-all"}`)
	p.do("waitText", ".notice.bad", "allows everything")
	p.do("click", "button[value=apply]")
	p.do("waitText", ".error", "exactly as it is shown")
	p.do("fill", "input[name=confirm]", "edited")
	w.SetPolicy(box, harness.Custom("api.example.com", "ws.example.com"))
	p.do("click", "button[value=apply]")
	p.do("waitText", "[role=alert]", "came into force while you edited")
	p.do("fill", "input[name=confirm]", "edited")
	p.do("click", "button[value=apply]")
	p.do("waitURL", "done=applied")
	if got := get[string](p, "value", "textarea"); !strings.Contains(got, "allow-all") {
		t.Errorf("the policy is %s", got)
	}
	p.visit("/ui/boxes/" + box + "/history?a=1&b=2")
	p.do("waitText", ".diff li.add", "www.example.com:443")
	if n := get[int](p, "count", "tbody tr"); n != 4 {
		t.Errorf("%d versions", n)
	}
	p.clean()
}

// With four eyes, the page of a request tells the key that created the box why it may not answer; another key answers it once, and the box
// gets through.
func TestARequestIsAnsweredWithFourEyes(t *testing.T) {
	t.Parallel()
	w := harness.NewWorld(t, func(c *config.Config) {
		c.Approvals.Enabled, c.Approvals.EveryBox, c.Approvals.FourEyes = true, true, true
	})
	platform := newKey(w, "platform", api.RoleCreator, "")
	var made struct{ ID string }
	body := map[string]any{"name": "job", "network_policy": harness.Custom("api.example.com")}
	if err := api.NewClient(w.Socket, platform).Do(t.Context(), "POST", "/v2/box", body, &made); err != nil {
		t.Fatal(err)
	}
	w.MustSh(made.ID, `curl -sS --fail-with-body -H 'Content-Type: application/json' -d '{"host": "www.example.com", "reason": "the docs of the task"}' http://policy.boxgate.internal/v1/requests`)
	b := newBrowser(t, w.Net.Gateway())
	creator, other := b.open(t, "creator", nil), b.open(t, "approver", nil)
	creator.signIn(platform)
	other.signIn(newKey(w, "security", api.RoleApprover, ""))
	for _, p := range []*page{creator, other} {
		p.visit("/ui/requests")
		p.do("waitText", "tbody", "the docs of the task")
		p.do("click", "tbody a:has-text('www.example.com:443')")
		p.do("waitText", "main", "TCP connections to port 443 of www.example.com")
	}
	harness.Contains(t, get[string](creator, "text", "main"), "You may not answer this request")
	if n := get[int](creator, "count", "form.answer"); n != 0 {
		t.Error("the key that created the box has the form of an answer")
	}
	other.do("check", "input[value=once]")
	other.do("fill", "input[name=reason]", "docs are fine")
	other.do("click", "form.answer button[type=submit]")
	other.do("waitText", "main", "docs are fine")
	w.MustSh(made.ID, "curl -sS --max-time 60 -f https://www.example.com/")
	harness.Contains(t, w.Run(0, nil, "", "audit", "--json", "--key", "security"), `"answer":"once"`, "docs are fine")
	creator.clean()
	other.clean()
}
