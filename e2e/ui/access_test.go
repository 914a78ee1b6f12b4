package ui

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/fleet/etcdtest"
	"boxgate/internal/lab"
	"boxgate/internal/nightly"
)

// pagesOf are the pages of the dashboard, for a box. Each is opened in tests of all pages.
func pagesOf(box string) []struct{ name, path string } {
	at := "/ui/boxes/" + box
	return []struct{ name, path string }{
		{"boxes", "/ui/"}, {"box", at}, {"policy", at + "/policy"}, {"history", at + "/history?a=1&b=2"}, {"allow", at + "/allow?host=cdn.example.org&port=443"},
		{"box-headers", at + "/headers"}, {"box-urls", at + "/urls"}, {"requests", "/ui/requests"}, {"policies", "/ui/policies"}, {"policy-named", "/ui/policies/web"}, {"rules", "/ui/rules"}, {"urls", "/ui/urls"},
		{"secrets", "/ui/secrets"}, {"keys", "/ui/keys"}, {"trail", "/ui/trail"}, {"trail-verified", "/ui/trail?verify=1"}, {"report", "/ui/report"}, {"gateway", "/ui/gateway"}, {"key", "/ui/keys/operator"}, {"policy-new", "/ui/policies/fresh?new=1"}, {"requests-answered", "/ui/requests?state=answered"},
	}
}

// furnish makes a box with a denial, a lease, a named policy, a header rule, a URL and a request, so that no page is empty. It returns
// the box.
func furnish(t *testing.T, w *harness.World) string {
	t.Helper()
	box := w.Create(map[string]any{
		"name": "agent-7", "labels": []string{"team-a"}, "network_policy": harness.Custom("api.example.com"),
		"attach_headers": map[string]any{"api.example.com": map[string]string{"Authorization": "Bearer secret"}},
	})
	w.SetPolicy(box, harness.Custom("api.example.com", "www.example.com:443"))
	ctx := t.Context()
	for _, call := range []struct {
		method, path string
		body         any
	}{
		{"PUT", "/v2/box/settings/network-policies/web", harness.Custom("api.example.com", "*.example.org")},
		{"POST", api.BoxPath(box, "config/network-policy/leases"), map[string]any{"action": "allow", "entries": []string{"ws.example.com:443"}, "expires_in": 3600}},
		{"POST", api.BoxPath(box, "preview"), map[string]any{"port": 3000, "bearer_token": true}},
		{"PUT", "/v2/box/settings/attach-headers", map[string]any{"attach_headers": map[string]any{"www.example.com": map[string]string{"X-Tenant": "acme"}}}},
	} {
		if err := w.Client.Do(ctx, call.method, call.path, call.body, nil); err != nil {
			t.Fatal(call.path, err)
		}
	}
	w.Sh(box, "curl -sS --max-time 20 https://cdn.example.org/v1/items; curl -sS --max-time 20 https://other.evil.net/; curl -sS https://api.example.com/echo")
	w.MustSh(box, `curl -sS --fail-with-body -H 'Content-Type: application/json' -d '{"host": "files.example.net", "reason": "fixtures of the tests"}' http://policy.boxgate.internal/v1/requests`)
	return box
}

// violation is a finding of axe-core.
type violation struct {
	ID, Impact, Help string
	Nodes            []string
}

// examine fails the test if axe-core finds something serious on a page.
func examine(t *testing.T, p *page, what string) {
	t.Helper()
	var found []violation
	if err := json.Unmarshal(p.do("axe"), &found); err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		if f.Impact == "serious" || f.Impact == "critical" {
			t.Errorf("%s: %s (%s): %s %q", what, f.ID, f.Impact, f.Help, f.Nodes)
		}
	}
}

// narrow fails the test if a page is wider than 320 pixels, which is 1280 at a zoom of 400 % (WCAG 2.1, 1.4.10).
func narrow(t *testing.T, p *page, what string) {
	t.Helper()
	p.do("size", 320, 640)
	if width := get[int](p, "evaluate", "document.documentElement.scrollWidth"); width > 320 {
		wide := get[string](p, "evaluate", `[...document.querySelectorAll("body *")].filter(e => e.getBoundingClientRect().right > 320 && !e.closest(".scroll, pre")).slice(0, 5).map(e => e.outerHTML.slice(0, 120)).join("\n")`)
		t.Errorf("%s is %d pixels wide at 320:\n%s", what, width, wide)
	}
	p.do("size", 1280, 800)
}

// axe-core finds nothing serious on any page, in the light and the dark theme, and no page is wider than a screen of 320 pixels. The gate
// examines the pages of a box, the whole is nightly.
func TestPagesAreAccessible(t *testing.T) {
	t.Parallel()
	w := harness.NewWorld(t, func(c *config.Config) { c.Approvals.Enabled, c.Approvals.EveryBox = true, true })
	box := furnish(t, w)
	b := newBrowser(t, w.Net.Gateway())
	p := b.open(t, "sign-in", nil)
	p.visit("/ui/")
	examine(t, p, "sign-in")
	narrow(t, p, "sign-in")
	p = operator(t, w, b, "a", nil)
	pages := pagesOf(box)
	if !nightly.Enabled() {
		pages = pages[:5]
	}
	for _, at := range pages {
		if status := get[int](p, "goto", origin+at.path); status != 200 {
			t.Errorf("%s: status %d", at.path, status)
			continue
		}
		for _, theme := range []string{"light", "dark"} {
			p.do("theme", theme)
			examine(t, p, at.name+" "+theme)
		}
		narrow(t, p, at.name)
		p.clean()
	}
}

// The page of the fleet is accessible, and its button cordons a host, whose state it shows.
func TestFleetPage(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	w := harness.NewStopped(t, lab.Options{Change: func(c *config.Config) {
		c.Fleet = config.Fleet{Name: "test", Endpoints: []string{etcd.Endpoint()}}
	}})
	if out, err := w.Command(t.Context(), "fleet", "init").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	p := operator(t, w, newBrowser(t, w.Net.Gateway()), "a", nil)
	p.visit("/ui/")
	p.do("click", "nav a:has-text('Fleet')")
	p.do("waitText", "main", "not fenced")
	p.do("waitText", "tbody td", "running")
	for _, theme := range []string{"light", "dark"} {
		p.do("theme", theme)
		examine(t, p, "fleet "+theme)
	}
	narrow(t, p, "fleet")
	p.do("click", "tbody button:has-text('Cordon')")
	p.do("wait", "tbody button:has-text('Uncordon')")
	w.Until("the host makes no boxes", func() bool {
		err := w.Client.Do(t.Context(), "POST", "/v2/box", map[string]any{}, nil)
		return err != nil && strings.Contains(err.Error(), "cordoned")
	})
	p.visit("/ui/fleet")
	p.do("click", "tbody button:has-text('Uncordon')")
	p.do("wait", "tbody button:has-text('Cordon')")
	p.clean()
}

// The keyboard alone signs in, opens a box, follows a denial and gives access; the focus is visible at every step.
func TestTheKeyboardSuffices(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{"name": "keys", "network_policy": harness.Custom("api.example.com")})
	p := newBrowser(t, w.Net.Gateway()).open(t, "a", nil)
	p.visit("/ui/")
	p.do("wait", "input:focus") // the field has the focus, from its first picture on
	p.do("type", strings.TrimSpace(w.KeyFile("api-key")))
	p.do("press", "Enter")
	p.do("waitURL", "/ui/$")
	tabTo(t, p, "keys")
	p.do("press", "Enter")
	p.do("waitURL", "/ui/boxes/"+box)
	p.visit("/ui/boxes/" + box + "/allow?host=www.example.com&port=443")
	tabTo(t, p, "Allow www.example.com:443 for 1 hour")
	p.do("press", "Enter")
	p.do("waitURL", "done=allowed")
	p.visit("/ui/")
	p.do("press", "Tab")
	if got := get[string](p, "evaluate", "document.activeElement.textContent"); got != "Skip to the content" {
		t.Errorf("the first stop is %q", got)
	}
	p.do("press", "Enter")
	if got := get[string](p, "evaluate", "document.activeElement.id"); got != "main" {
		t.Errorf("the link leads to %q", got)
	}
}

// tabTo moves the focus forward until it is on an element with a text, and fails the test if the focus is not visible on the way.
func tabTo(t *testing.T, p *page, text string) {
	t.Helper()
	for range 80 {
		p.do("press", "Tab")
		var at struct {
			Text    string
			Visible bool
		}
		value := get[string](p, "evaluate", `(() => { const e = document.activeElement, s = getComputedStyle(e);
			return JSON.stringify({ text: e.textContent.trim(), visible: e === document.body || (s.outlineStyle !== "none" && parseFloat(s.outlineWidth) >= 2) }); })()`)
		if err := json.Unmarshal([]byte(value), &at); err != nil {
			t.Fatal(err)
		}
		if !at.Visible {
			t.Errorf("the focus is not visible on %q", at.Text)
		}
		if at.Text == text {
			return
		}
	}
	t.Fatalf("the keyboard does not reach %q", text)
}

// Without JavaScript, signing in, filters, the preview, the editor and signing out work.
func TestFormsWorkWithoutJavaScript(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{"name": "plain", "network_policy": harness.Custom("api.example.com")})
	w.Sh(box, "curl -sS --max-time 20 https://cdn.example.org/")
	p := operator(t, w, newBrowser(t, w.Net.Gateway()), "a", viewOptions{"javaScriptEnabled": false})
	p.do("fill", "#q", "plai")
	p.do("press", "Enter")
	p.do("waitURL", "q=plai")
	p.do("click", "text=plain")
	p.do("waitText", "#live tr", "cdn.example.org")
	p.do("select", "#verdict", "allow")
	p.do("click", "#filter button[type=submit]")
	p.do("waitURL", "verdict=allow")
	p.visit("/ui/boxes/" + box + "/allow")
	p.do("fill", "#host", "cdn.example.org")
	p.do("select", "#for", "15m")
	p.do("click", "form.ask button")
	p.do("click", "form.decide button")
	p.do("waitURL", "done=allowed")
	p.do("fill", "textarea", `{"mode": "deny-all"}`)
	p.do("click", "button[value=check]")
	p.do("click", "button[value=apply]")
	p.do("waitURL", "done=applied")
	p.do("click", "text=Sign out")
	p.do("wait", "input[type=password]")
	if status := get[int](p, "goto", origin+"/ui/boxes/"+box); status != 200 || get[int](p, "count", "input[type=password]") != 1 {
		t.Errorf("after signing out: status %d", status)
	}
}

// Each role sees its own: a key of one box no other box, a key that reads no form that changes, and what a page hides the API refuses.
func TestEachRoleSeesItsOwn(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	mine, other := w.Create(map[string]any{"name": "mine", "network_policy": harness.Custom("api.example.com")}), w.Create(map[string]any{"name": "other"})
	b := newBrowser(t, w.Net.Gateway())
	p := b.open(t, "one-box", nil)
	p.signIn(newKey(w, "ui-one", api.RoleBox, mine))
	if rows := get[[]string](p, "texts", "tbody th"); len(rows) != 1 || rows[0] != "mine" {
		t.Errorf("a key of one box sees %q", rows)
	}
	for path, want := range map[string]int{"/ui/boxes/" + other: 404, "/ui/boxes/" + other + "/policy": 404, "/ui/boxes/" + mine + "/policy": 200, "/ui/keys": 403, "/ui/trail": 403} {
		if status := get[int](p, "goto", origin+path); status != want {
			t.Errorf("a key of one box at %s: %d, want %d", path, status, want)
		}
	}
	admin, reader := operator(t, w, b, "admin", nil), b.open(t, "reader", nil)
	reader.signIn(newKey(w, "ui-reader", api.RoleReader, ""))
	for _, who := range []*page{admin, reader} {
		who.visit("/ui/boxes/" + mine + "/policy")
		who.do("fill", "textarea", `{"mode": "deny-all"}`)
		who.do("click", "button[value=check]")
		who.do("wait", ".diff")
	}
	if n := get[int](reader, "count", "button[value=apply]"); n != 0 {
		t.Error("a key that reads has a button to apply a policy")
	}
	status := get[int](reader, "evaluate", fmt.Sprintf(`(async () => { const form = new URLSearchParams(new FormData(document.querySelector("main form[action$='/policy']")));
		form.set("do", "apply"); form.set("preview", %q);
		return (await fetch(%q, { method: "POST", body: form })).status; })()`, get[string](admin, "value", "input[name=preview]"), "/ui/boxes/"+mine+"/policy"))
	if status != 403 {
		t.Errorf("a key that reads applies a policy: %d", status)
	}
}
