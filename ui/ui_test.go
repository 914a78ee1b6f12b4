package ui

import (
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/api/access"
	"boxgate/api/apitest"
	"boxgate/api/approvals"
	"boxgate/api/boxes"
	"boxgate/api/doctor"
	"boxgate/api/egress"
	"boxgate/api/exec"
	"boxgate/api/files"
	"boxgate/api/gateway"
	"boxgate/api/git"
	"boxgate/api/harness"
	"boxgate/api/keys"
	"boxgate/api/lifecycle"
	"boxgate/api/rules"
	"boxgate/api/schedules"
	"boxgate/api/server"
	apisession "boxgate/api/session"
	"boxgate/api/settings"
	"boxgate/api/snapshots"
	"boxgate/api/trail"
	"boxgate/api/urls"
	"boxgate/ui/session"
)

// rig is the dashboard over the real API, whose boxes are in memory.
type rig struct {
	*httptest.Server
	host *apitest.Host
	ui   *UI
}

// anything implements every service of the API.
type anything interface {
	boxes.Table
	boxes.Host
	boxes.SelfTests
	doctor.Host
	lifecycle.Host
	exec.Host
	apisession.Host
	files.Host
	git.Host
	rules.Host
	settings.Rules
	settings.Host
	egress.Rules
	egress.Host
	egress.Versions
	urls.Host
	schedules.Host
	harness.Webhooks
	snapshots.Host
	keys.Host
	trail.Host
	gateway.Health
	gateway.Store
	gateway.Secrets
	gateway.Authorities
	approvals.Host
}

func serve(t testing.TB) *rig {
	return serveWith(t, func(h *apitest.Host) anything { return h })
}

// serveWith is serve with services that replace some of the host.
func serveWith(t testing.TB, with func(*apitest.Host) anything) *rig {
	t.Helper()
	memory := apitest.NewHost(t)
	h := with(memory)
	a, err := server.New(server.Config{FindKey: memory.FindKey, Services: server.Services{
		Boxes: h, Life: h, Lifecycle: h, Commands: h, Sessions: h, Files: h, Git: h, Rules: h, BoxRules: h, Explain: h, Settings: h, Decisions: h, Versions: h,
		URLs: h, Schedules: h, Webhooks: h, Snapshots: h, SelfTests: h, Doctor: h, Keys: h, TrailReader: h, Health: h, Store: h, Secrets: h, Authorities: h, Approvals: h,
	}})
	if err != nil {
		t.Fatal(err)
	}
	g := &rig{host: memory}
	sessions := session.New(session.Options{
		Find: memory.FindKey, Still: memory.FindHash, Hosts: access.NewHosts(nil),
		Render: func(w http.ResponseWriter, r *http.Request, status int, p session.Page) { g.ui.SignIn(w, r, status, p) },
	})
	g.ui = New(Options{API: a, Sessions: sessions})
	g.Server = httptest.NewTLSServer(g.ui)
	t.Cleanup(g.Close)
	t.Cleanup(memory.End)
	return g
}

// browser is a client that keeps cookies and follows redirects, and has signed in.
type browser struct {
	*http.Client
	rig *rig
}

// as returns a browser that has signed in with a key.
func (g *rig) as(t testing.TB, key string) *browser {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	b := &browser{&http.Client{Transport: g.Client().Transport, Jar: jar}, g}
	_, form := b.get(t, "/ui/sign-in")
	resp, text := b.post(t, "/ui/sign-in", url.Values{"key": {key}, "token": {tokenOf(t, form)}})
	if !strings.Contains(text, "Sign out") {
		t.Fatalf("signing in: %s %s", resp.Status, text)
	}
	return b
}

var tokenInput = regexp.MustCompile(`name="token" value="([^"]+)"`)

func tokenOf(t testing.TB, page string) string {
	t.Helper()
	m := tokenInput.FindStringSubmatch(page)
	if m == nil {
		t.Fatalf("no token in %s", page)
	}
	return m[1]
}

func (b *browser) do(t testing.TB, req *http.Request) (*http.Response, string) {
	t.Helper()
	resp, err := b.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(text)
}

func (b *browser) get(t testing.TB, path string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, b.rig.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	return b.do(t, req)
}

func (b *browser) post(t testing.TB, path string, form url.Values) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, b.rig.URL+path, strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Origin", b.rig.URL)
	return b.do(t, req)
}

// TestBoxes: who has signed in sees the boxes, can filter and sort them, and opens one.
func TestBoxes(t *testing.T) {
	t.Parallel()
	g := serve(t)
	g.host.Add(t, api.CreateRequest{Name: "alpha", Labels: []string{"team-a"}})
	id := g.host.Add(t, api.CreateRequest{Name: "beta"})
	b := g.as(t, apitest.Key)
	for path, want := range map[string][2]string{
		"/ui/":                            {"alpha", "nothing-else"},
		"/ui/?q=bet":                      {"beta", ">alpha<"},
		"/ui/?label=team-a":               {"alpha", ">beta<"},
		"/ui/?sort=-name":                 {"descending", "nothing-else"},
		"/ui/boxes/" + url.PathEscape(id): {"Latest decisions", "nothing-else"},
	} {
		resp, text := b.get(t, path)
		if resp.StatusCode != http.StatusOK || !strings.Contains(text, want[0]) || strings.Contains(text, want[1]) {
			t.Errorf("%s: %s %s", path, resp.Status, text)
		}
	}
}
