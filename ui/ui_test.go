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
	"boxgate/api/server"
	"boxgate/ui/session"
)

// rig is the dashboard over the real API, whose boxes are in h.
type rig struct {
	*httptest.Server
	host *apitest.Host
	ui   *UI
}

func serve(t testing.TB, edits ...func(*server.Config)) *rig {
	t.Helper()
	h := apitest.NewHost(t)
	cfg := server.Config{FindKey: h.FindKey, Services: server.Services{
		Boxes: h, Life: h, Lifecycle: h, Commands: h, Sessions: h, Files: h, Git: h, Rules: h, BoxRules: h, Explain: h, Settings: h, Decisions: h, Versions: h,
		URLs: h, Schedules: h, Webhooks: h, Snapshots: h, SelfTests: h, Samples: h, Doctor: h, Captures: h, Keys: h, KeySecrets: h, TrailReader: h, Health: h, Store: h, Secrets: h, Authorities: h, Approvals: h, Models: h,
	}}
	for _, edit := range edits {
		edit(&cfg)
	}
	a, err := server.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	g := &rig{host: h}
	sessions := session.New(session.Options{
		Find: h.FindKey, Still: h.FindHash, Hosts: access.NewHosts(nil),
		Render: func(w http.ResponseWriter, r *http.Request, status int, p session.Page) { g.ui.SignIn(w, r, status, p) },
	})
	g.ui = New(Options{API: a, Sessions: sessions, Fleet: cfg.Fleet != nil})
	g.Server = httptest.NewTLSServer(g.ui)
	t.Cleanup(g.Close)
	t.Cleanup(h.End)
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
