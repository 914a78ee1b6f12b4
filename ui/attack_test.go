package ui

import (
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/api/apitest"
	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
)

// hostileText is text that a box could send as a name, a path or anything else.
const hostileText = `<img src=x onerror=alert(1)>"'><script>alert(2)</script>` + "\u202egpj\u200b\x1b[2J`{{.}}</td>javascript:alert(3)"

// hostileDecision returns a decision with hostile text in each field that a box can influence.
func hostileDecision(box policy.BoxID) audit.Event {
	return audit.Event{
		Seq: 7, Time: time.Now(), Box: box, Stage: policy.StageHTTP, Protocol: policy.TCP, Name: hostileText, Port: 443, Method: hostileText, Path: "/" + hostileText,
		Addr: netip.MustParseAddr("203.0.113.7"), Messages: hostileText, Verdict: policy.Deny, Action: audit.Action(hostileText), Reason: name.Reason(hostileText), Rule: hostileText, Login: hostileText,
		Via: hostileText, Headers: []string{hostileText}, Secrets: []string{hostileText}, Error: hostileText, Phase: audit.Phase(hostileText), Credential: audit.Credential(hostileText),
	}
}

// wantHarmless fails the test if a page has markup or invisible characters of the hostile text.
func wantHarmless(t *testing.T, what, page string) {
	t.Helper()
	for _, bad := range []string{"<img", "<script>alert", "\u202e", "\u200b", "\x1b", `href="javascript`} {
		if i := strings.Index(page, bad); i >= 0 {
			t.Errorf("%s contains %q: %s", what, bad, page[max(i-200, 0):min(i+200, len(page))])
		}
	}
	for _, tag := range regexp.MustCompile(`<[a-z][^>]*>`).FindAllString(page, -1) {
		if regexp.MustCompile(`\s(on[a-z]+|style|srcdoc|formaction)\s*=`).MatchString(regexp.MustCompile(`"[^"]*"`).ReplaceAllString(tag, `""`)) {
			t.Errorf("%s has the tag %s", what, tag)
		}
	}
	if !strings.Contains(page, `\u{202e}`) {
		t.Errorf("%s does not show the bidirectional control as an escape", what)
	}
}

// TestAttackTextOfBoxesInPages: markup, controls and invisible characters in every text of a box are shown, and have no effect.
func TestAttackTextOfBoxesInPages(t *testing.T) {
	t.Parallel()
	g := serve(t)
	id := policy.BoxID(g.host.Add(t, api.CreateRequest{Name: "first"}))
	g.host.Mu.Lock()
	g.host.ByID[id].Name, g.host.ByID[id].Labels, g.host.ByID[id].Error = hostileText, []string{hostileText}, hostileText
	g.host.ByID[id].Policy.Named = hostileText
	g.host.Mu.Unlock()
	e := hostileDecision(id)
	g.host.AddDecision(e)
	b := g.as(t, apitest.Key)
	for _, path := range []string{"/ui/", boxPath(id), boxPath(id) + "?" + url.Values{"host": {hostileText[:5]}}.Encode(), boxPath(id, "decisions") + "/" + rowOf(e).Link(), "/ui/?q=gpj"} {
		resp, page := b.get(t, path)
		if resp.StatusCode != http.StatusOK {
			t.Errorf("%s: %s", path, resp.Status)
		}
		wantHarmless(t, path, page)
	}
	line, _ := g.stream(t, b, boxPath(id, "live"), 1)
	wantHarmless(t, "the stream", line[0])
	if _, page := b.get(t, "/ui/?"+url.Values{"q": {hostileText}, "sort": {hostileText}, "state": {hostileText}, "page": {hostileText}}.Encode()); strings.Contains(page, "<img") {
		t.Errorf("the query is in the page: %s", page)
	}
	if _, page := b.get(t, "/ui/boxes/"+url.PathEscape(hostileText)); strings.Contains(page, "<img") {
		t.Errorf("the path is in the page: %s", page)
	}
}

// TestEveryResponseHasItsPolicy: pages, assets, streams, redirects and refusals forbid foreign scripts, frames and caches.
func TestEveryResponseHasItsPolicy(t *testing.T) {
	t.Parallel()
	g := serve(t)
	id := g.host.Add(t, api.CreateRequest{Name: "first"})
	in, out := g.as(t, apitest.Key), &browser{&http.Client{Transport: g.Client().Transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}, g}
	style := assetPath("style.css")
	for _, c := range []struct {
		by     *browser
		method string
		path   string
		host   string
		status int
	}{
		{in, "GET", "/ui/", "", 200}, {in, "GET", boxPath(id), "", 200}, {in, "GET", "/ui/nothing", "", 404}, {in, "GET", "/ui/boxes/nothing", "", 404},
		{in, "GET", boxPath(id, "decisions", "1"), "", 404}, {in, "GET", style, "", 200}, {in, "GET", style + "x", "", 404}, {in, "HEAD", boxPath(id, "live"), "", 200},
		{in, "GET", "/ui/boxes/nothing/live", "", 404}, {in, "POST", "/ui/", "", 403}, {in, "DELETE", "/ui/", "", 403}, {in, "GET", "/ui/", "evil.example", 421},
		{out, "GET", "/ui/", "", 303}, {out, "GET", "/ui/sign-in", "", 200}, {out, "GET", boxPath(id, "live"), "", 303}, {out, "GET", style, "", 200}, {out, "POST", "/ui/sign-in", "", 0},
	} {
		req, err := http.NewRequestWithContext(t.Context(), c.method, g.URL+c.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = c.host
		resp, _ := c.by.do(t, req)
		if c.status != 0 && resp.StatusCode != c.status {
			t.Errorf("%s %s: %s; want %d", c.method, c.path, resp.Status, c.status)
		}
		cache := "no-store"
		if c.path == style && resp.StatusCode == 200 {
			cache = "public, max-age=31536000, immutable"
		}
		for field, want := range map[string]string{
			"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; " +
				"frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
			"X-Content-Type-Options": "nosniff", "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin", "Cache-Control": cache,
			"Referrer-Policy": "same-origin", "X-Frame-Options": "DENY",
		} {
			if got := resp.Header.Values(field); !slices.Equal(got, []string{want}) {
				t.Errorf("%s %s: %s is %q; want %q", c.method, c.path, field, got, want)
			}
		}
	}
}

// TestPagesOfRoles: each role sees the pages that its calls of the API permit, and no others.
func TestPagesOfRoles(t *testing.T) {
	t.Parallel()
	g := serve(t)
	id := g.host.Add(t, api.CreateRequest{Name: "mine", CreatedBy: "key_creator"})
	other := g.host.Add(t, api.CreateRequest{Name: "other"})
	g.host.Mu.Lock()
	g.host.Keys = map[string]api.Key{}
	for _, role := range api.Roles {
		key := "key_" + map[api.Role]string{api.RoleCreator: "creator"}[role]
		if key == "key_" {
			key += string(role)
		}
		g.host.Keys["secret-of-"+string(role)] = api.Key{Caller: api.Caller{Key: key, Name: string(role), Role: role, Box: policy.BoxID(id)}}
	}
	g.host.Mu.Unlock()
	events := map[string]audit.Event{}
	for i, box := range []string{id, other} {
		e := apitest.Decision(policy.BoxID(box), 1_700_000_000, "evil.example", policy.Deny)
		e.Seq, e.Port = uint64(i+1), 443
		g.host.AddDecision(e)
		events[box] = e
	}
	decision := func(box string) string { return boxPath(box, "decisions") + "/" + rowOf(events[box]).Link() }
	for role, want := range map[api.Role][4]int{ // the list, the own box, another box, its decision
		api.RoleAdmin: {200, 200, 200, 200}, api.RoleReader: {200, 200, 200, 200}, api.RoleCreator: {200, 200, 404, 404}, api.RoleBox: {200, 200, 404, 404},
		api.RoleAuditor: {303, 200, 200, 200}, api.RoleApprover: {303, 403, 403, 403},
	} {
		b := g.as(t, "secret-of-"+string(role))
		b.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		for i, path := range []string{"/ui/", boxPath(id), boxPath(other), decision(other)} {
			resp, page := b.get(t, path)
			if resp.StatusCode != want[i] {
				t.Errorf("%s, %s: %s; want %d", role, path, resp.Status, want[i])
			}
			if i == 0 && resp.StatusCode == 200 && strings.Contains(page, ">other<") != (want[2] == 200) {
				t.Errorf("%s: the list has another's box: %s", role, page)
			}
			if want[2] == 404 && strings.Contains(page, other) && i == 0 {
				t.Errorf("%s: the page has the ID of another's box", role)
			}
			if may := strings.Contains(page, "Allow…"); may != (resp.StatusCode == 200 && i > 0 && mayChange(role)) {
				t.Errorf("%s, %s: offers to allow: %v", role, path, may)
			}
		}
	}
}
