package ui

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/api/apitest"
	"boxgate/api/elsewhere"
	"boxgate/api/problem"
	"boxgate/api/server"
)

// inFleet is a dashboard of a gateway in a fleet, whose hosts have names that would harm a reader.
func inFleet(t testing.TB) (*rig, *apitest.Fleet) {
	t.Helper()
	f := apitest.NewFleet(injected)
	_, edit := withTrail(t)
	g := serve(t, edit, func(c *server.Config) { c.Fleet = f })
	g.host.Mu.Lock()
	g.host.Keys = map[string]api.Key{}
	for _, role := range api.Roles {
		g.host.Keys["sk-"+string(role)] = api.Key{Caller: api.Caller{Key: "key_" + string(role), Name: string(role), Role: role}}
	}
	g.host.Mu.Unlock()
	return g, f
}

// TestFleetPage: the page shows each host and this one, and a host is cordoned and uncordoned by its button. Text of other hosts is escaped.
func TestFleetPage(t *testing.T) {
	t.Parallel()
	g, f := inFleet(t)
	b := g.as(t, "sk-admin")
	_, page := b.get(t, "/ui/fleet")
	for _, want := range []string{
		`href="/ui/fleet" aria-current="page"`, injectedShown, "aaaaaa", "this host", "192.0.2.1:8700", "192.0.2.1:443", "bbbbbb", "running, does not answer", "cccccc", "away", "12 s of its lease are left", "12 of 12",
		`href="/ui/?q=bbbbbb"`, "5 boxes",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("no %q in %s", want, page)
		}
	}
	if strings.Contains(page, "<img") {
		t.Error("text of a host is not escaped")
	}
	token := url.Values{"token": {tokenOf(t, page)}}
	if resp, page := b.post(t, "/ui/fleet/bbbbbb/cordon", token); resp.StatusCode != http.StatusOK || !strings.Contains(page, `action="/ui/fleet/bbbbbb/uncordon"`) || !strings.Contains(page, "cordoned") {
		t.Errorf("cordon: %s %s", resp.Status, page)
	}
	if _, page := b.post(t, "/ui/fleet/bbbbbb/uncordon", token); strings.Contains(page, "uncordon\"") {
		t.Errorf("uncordon: %s", page)
	}
	if resp, page := b.post(t, "/ui/fleet/dddddd/cordon", token); resp.StatusCode != http.StatusNotFound || !strings.Contains(page, "the fleet has no host with the ID") {
		t.Errorf("a host that is no member: %s %s", resp.Status, page)
	}
	if _, page := b.get(t, "/ui/trail"); !strings.Contains(page, "/v2/fleet/hosts/{host}/cordon") || !strings.Contains(page, "host_cordoned") || !strings.Contains(page, "bbbbbb") {
		t.Errorf("the trail: %s", page)
	}
	f.Cut("no " + injected)
	_, page = b.get(t, "/ui/fleet")
	for _, want := range []string{"Etcd does not answer", "no " + injectedShown, "fenced", "unknown", "cccccc"} {
		if !strings.Contains(page, want) {
			t.Errorf("without etcd: no %q in %s", want, page)
		}
	}
	if resp, page := b.post(t, "/ui/fleet/bbbbbb/cordon", token); resp.StatusCode != http.StatusServiceUnavailable || !strings.Contains(page, "etcd does not answer") {
		t.Errorf("cordon without etcd: %s %s", resp.Status, page)
	}
}

// TestRolesOfTheFleetPage: admin and read-only keys see the page, only admin keys change a host, and without a fleet there is neither page
// nor entry of the navigation.
func TestRolesOfTheFleetPage(t *testing.T) {
	t.Parallel()
	g, f := inFleet(t)
	for _, role := range api.Roles {
		b := g.as(t, "sk-"+string(role))
		resp, page := b.get(t, "/ui/fleet")
		sees := role == api.RoleAdmin || role == api.RoleReader
		if sees != (resp.StatusCode == http.StatusOK) || sees != strings.Contains(page, `href="/ui/fleet"`) || strings.Contains(page, "/cordon\"") != (role == api.RoleAdmin) {
			t.Errorf("%s: %s %s", role, resp.Status, page)
		}
		b.post(t, "/ui/fleet/bbbbbb/cordon", url.Values{"token": {tokenOf(t, page)}})
		state, _ := f.Fleet(t.Context())
		if state.Hosts[1].Cordoned != (role == api.RoleAdmin) {
			t.Errorf("%s: cordoned %v", role, state.Hosts[1].Cordoned)
		}
		if err := f.Cordon(t.Context(), "bbbbbb", false); err != nil {
			t.Fatal(err)
		}
	}
	b := serve(t).as(t, apitest.Key)
	if resp, page := b.get(t, "/ui/fleet"); resp.StatusCode != http.StatusNotFound || strings.Contains(page, "Fleet") {
		t.Errorf("without a fleet: %s %s", resp.Status, page)
	}
}

// silent is a fleet with one other host, which does not answer.
type silent struct{}

func (silent) Owner(_ context.Context, id string) (string, error) {
	if strings.HasPrefix(id, "bbbbbb") {
		return "bbbbbb", nil
	}
	return "", nil
}

func (silent) Forward(_ http.ResponseWriter, _ *http.Request, host string, fail func(error)) {
	fail(problem.Unreachable(host, "does not answer"))
}

func (silent) Place(context.Context) ([]string, error) { return []string{""}, nil }

func (silent) Ask(context.Context, elsewhere.Call) []elsewhere.Answer {
	return []elsewhere.Answer{{Host: "bbbbbb", Err: problem.Unreachable("bbbbbb", "does not answer")}}
}

func (silent) Listed(context.Context, string) []api.Box {
	return []api.Box{{ID: "bbbbbb0000000001", Name: injected}}
}

// TestBoxesOfAFleet: with a key of the fleet the list has the boxes of all hosts, with their host, also of one that does not answer; other pages
// go on without it. With another key the list says that it has the boxes of this host.
func TestBoxesOfAFleet(t *testing.T) {
	t.Parallel()
	g := serve(t, func(c *server.Config) { c.Fleet, c.Elsewhere = apitest.NewFleet("x"), silent{} })
	g.host.Add(t, api.CreateRequest{Name: "near"})
	g.host.Mu.Lock()
	g.host.Keys = map[string]api.Key{
		"sk-fleet": {Caller: api.Caller{Key: "key_1", Name: "ops", Role: api.RoleAdmin, Fleet: true}}, "sk-local": {Caller: api.Caller{Key: "key_2", Name: "local", Role: api.RoleAdmin}},
	}
	g.host.Mu.Unlock()
	b, local := g.as(t, "sk-fleet"), g.as(t, "sk-local")
	_, page := b.get(t, "/ui/?sort=-host")
	for _, want := range []string{"near", injectedShown, ">unreachable<", ">bbbbbb<", `href="/ui/boxes/bbbbbb0000000001"`} {
		if !strings.Contains(page, want) {
			t.Errorf("no %q in %s", want, page)
		}
	}
	if strings.Contains(page, "These are the boxes of this host") {
		t.Error("a key of the fleet is one of this host")
	}
	if resp, page := b.get(t, "/ui/urls"); resp.StatusCode != http.StatusOK || !strings.Contains(page, "The URLs of 1 box are not shown") {
		t.Errorf("the URLs: %s %s", resp.Status, page)
	}
	if resp, page := b.get(t, "/ui/boxes/bbbbbb0000000001"); resp.StatusCode != http.StatusServiceUnavailable || !strings.Contains(page, "host bbbbbb of the fleet does not answer") {
		t.Errorf("the box: %s %s", resp.Status, page)
	}
	if _, page := local.get(t, "/ui/"); strings.Contains(page, "bbbbbb") || !strings.Contains(page, "These are the boxes of this host") {
		t.Errorf("with a key of this host: %s", page)
	}
	if resp, page := local.get(t, "/ui/boxes/bbbbbb0000000001"); resp.StatusCode != http.StatusForbidden || !strings.Contains(page, "the box is on host bbbbbb of the fleet") {
		t.Errorf("the box with a key of this host: %s %s", resp.Status, page)
	}
}
