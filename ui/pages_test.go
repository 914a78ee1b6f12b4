package ui

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/api/server"
	"boxgate/audit"
	"boxgate/audit/trail"
	"boxgate/policy"
	"boxgate/policy/authority"
	"boxgate/policy/name"
	"boxgate/ui/pages"
)

// injected is a text that a box or a visitor might choose to harm a reader.
const injected = "<img src=x onerror=alert(1)>\"'&\u202egpj\u200b"

// injectedShown is how a page shows it.
const injectedShown = "&lt;img src=x onerror=alert(1)&gt;&#34;&#39;&amp;\\u{202e}gpj\\u{200b}"

// kept is a trail in files of the test.
type kept struct {
	*trail.Trail
	dir string
}

func (k kept) ReadTrail(ctx context.Context, f trail.Filter, follow bool, do func([]byte) error) error {
	return k.Read(ctx, f, follow, do)
}

func (k kept) VerifyTrail(context.Context) (trail.Report, error) {
	return trail.Verify(k.dir, k.Head())
}

// withTrail makes the API keep an audit trail.
func withTrail(t testing.TB) (kept, func(*server.Config)) {
	t.Helper()
	k := kept{dir: t.TempDir()}
	var err error
	if k.Trail, err = trail.Open(k.dir, trail.Options{Size: 8 << 20}, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = k.Close() })
	return k, func(c *server.Config) { c.Trail, c.TrailReader = k, k }
}

// filled is a dashboard with something on each page. Each text that a box, a visitor or a caller can choose is injected.
func filled(t testing.TB) (*rig, kept) {
	t.Helper()
	k, edit := withTrail(t)
	g := serve(t, edit)
	g.host.Add(t, api.CreateRequest{Name: injected, CreatedBy: "key_" + string(api.RoleCreator)})
	g.host.AddApproval(api.Approval{ID: "open", Box: "box1", Host: injected, Entry: injected, Reason: "one\n" + injected, Human: injected, Lasts: 7 * time.Hour, CreatedAt: time.Now()})
	g.host.AddApproval(api.Approval{ID: "done", Box: "box1", Host: injected, Entry: injected, Reason: injected, CreatedAt: time.Now()})
	as := api.WithCaller(t.Context(), api.Caller{Name: injected, Role: api.RoleAdmin})
	if _, _, err := g.host.AnswerApproval(as, "box1", "done", api.ApprovalAnswer{Answer: "denied", Reason: injected}); err != nil {
		t.Fatal(err)
	}
	g.host.AddDecision(audit.Event{
		Time: time.Now().Add(-time.Minute), Box: "box1", BoxName: injected, Verdict: policy.Allow, Reason: name.ReasonAllowedDomain, Stage: policy.StageHTTP, Name: injected,
		Port: 443, Method: "GET", Path: injected, Secrets: []string{"openai"}, Headers: []string{"Authorization"},
	})
	g.host.Mu.Lock()
	g.host.Keys = map[string]api.Key{}
	for _, role := range api.Roles {
		g.host.Keys["sk-"+string(role)] = api.Key{Caller: api.Caller{Key: "key_" + string(role), Name: "name-" + string(role), Role: role, Box: boxOf(role)}, CreatedAt: time.Now()}
	}
	g.host.Named = map[string]api.NamedPolicy{"web": {Name: "web", Spec: policy.Spec{Mode: policy.ModeAllowAll}, Version: 1}}
	g.host.ByID["box1"].Policy.Named = "web"
	g.host.ByID["box1"].URLs[3000] = api.URL{URL: "https://box1-3000.preview.example", Port: 3000, Hostnames: []string{injected}, Bearer: true, CreatedAt: time.Now()}
	g.host.Mu.Unlock()
	if _, err := k.Append(trail.Entry{Kind: trail.Refused, Key: injected, Remote: injected, Note: injected, Route: "GET /v2/box", Status: 403}); err != nil {
		t.Fatal(err)
	}
	return g, k
}

func boxOf(role api.Role) policy.BoxID {
	if role == api.RoleBox {
		return "box1"
	}
	return ""
}

// pagesOf lists each page with the roles that see it, besides admin.
var pagesOf = map[string][]api.Role{
	"/ui/requests":               {api.RoleCreator, api.RoleReader, api.RoleBox, api.RoleApprover},
	"/ui/requests?state=denied":  {api.RoleCreator, api.RoleReader, api.RoleBox, api.RoleApprover},
	"/ui/requests?box=box1":      {api.RoleCreator, api.RoleReader, api.RoleBox, api.RoleApprover},
	"/ui/requests/box1/open":     {api.RoleCreator, api.RoleReader, api.RoleBox, api.RoleApprover},
	"/ui/requests/box1/done":     {api.RoleCreator, api.RoleReader, api.RoleBox, api.RoleApprover},
	"/ui/policies":               {api.RoleCreator, api.RoleReader},
	"/ui/policies/web":           {api.RoleCreator, api.RoleReader},
	"/ui/rules":                  {api.RoleReader},
	"/ui/boxes/box1/headers":     {api.RoleCreator, api.RoleReader, api.RoleBox},
	"/ui/urls":                   {api.RoleCreator, api.RoleReader, api.RoleBox},
	"/ui/boxes/box1/urls":        {api.RoleCreator, api.RoleReader, api.RoleBox},
	"/ui/keys":                   {},
	"/ui/keys/key_one-box":       {},
	"/ui/trail":                  {api.RoleAuditor},
	"/ui/trail?verify=1":         {api.RoleAuditor},
	"/ui/secrets":                {api.RoleReader, api.RoleAuditor},
	"/ui/secrets/openai/uses":    {api.RoleAuditor},
	"/ui/report":                 {api.RoleAuditor},
	"/ui/report/html?since=1h":   {api.RoleAuditor},
	"/ui/report/csv?since=1h":    {api.RoleAuditor},
	"/ui/report/json?since=1h":   {api.RoleAuditor},
	"/ui/gateway":                {api.RoleReader},
	"/ui/requests/box1/never":    nil,
	"/ui/policies/never?new=1":   {},
	"/ui/report/never":           nil,
	"/ui/keys/never":             nil,
	"/ui/secrets/never/uses":     nil,
	"/ui/boxes/never/urls":       nil,
	"/ui/requests/box1/%2e%2e":   nil,
	"/ui/policies/%2e%2e%2fmore": nil,
}

// TestRolesOfPages: each role sees the pages whose calls of the API it may make, and no page fails.
func TestRolesOfPages(t *testing.T) {
	t.Parallel()
	g, _ := filled(t)
	for _, role := range api.Roles {
		b := g.as(t, "sk-"+string(role))
		for path, roles := range pagesOf {
			resp, text := b.get(t, path)
			want := role == api.RoleAdmin && roles != nil
			for _, r := range roles {
				want = want || r == role
			}
			if got := resp.StatusCode == http.StatusOK; got != want || resp.StatusCode >= 500 {
				t.Errorf("%s: %s: %s %.600s", role, path, resp.Status, text)
			}
		}
	}
}

// TestHostileTextOnPages: a text of a box, a visitor or a caller is text on each page that shows it, and its invisible characters are
// escapes.
func TestHostileTextOnPages(t *testing.T) {
	t.Parallel()
	g, _ := filled(t)
	b := g.as(t, "sk-admin")
	without := map[string]bool{"/ui/policies": true, "/ui/policies/web": true}
	for path := range pagesOf {
		resp, text := b.get(t, path)
		if resp.StatusCode != http.StatusOK || strings.HasPrefix(path, "/ui/report/csv") || strings.HasPrefix(path, "/ui/report/json") {
			continue
		}
		if strings.Contains(text, "<img") || strings.ContainsAny(text, "\u202e\u200b") || strings.Contains(text, "onerror=alert(1)>") {
			t.Errorf("%s: %s", path, text)
		}
		shows := []string{"/ui/requests", "/ui/boxes", "/ui/urls", "/ui/trail", "/ui/secrets/openai/uses", "/ui/report/html"}
		for _, prefix := range shows {
			if strings.HasPrefix(path, prefix) && !strings.Contains(text, injectedShown) && !without[path] {
				t.Errorf("%s does not show it: %s", path, text)
			}
		}
	}
}

// form sends a form with the token of the page that has it.
func (b *browser) form(t testing.TB, page, action string, values url.Values) (*http.Response, string) {
	t.Helper()
	_, text := b.get(t, page)
	values.Set("token", tokenOf(t, text))
	return b.post(t, action, values)
}

// TestFormsByRole: a form of a role that may not make its call is refused by the API, and changes nothing.
func TestFormsByRole(t *testing.T) {
	t.Parallel()
	forms := []struct {
		action string
		values url.Values
		may    []api.Role
	}{
		{"/ui/requests/box1/open", url.Values{"answer": {"denied"}, "reason": {"no"}}, []api.Role{api.RoleAdmin, api.RoleCreator, api.RoleBox, api.RoleApprover}},
		{"/ui/policies/web", url.Values{"policy": {`{"mode":"deny-all"}`}, "version": {"1"}, "do": {"apply"}, "checked": {checkedText(`{"mode":"deny-all"}`, 1)}}, []api.Role{api.RoleAdmin}},
		{"/ui/policies/web/delete", url.Values{"delete": {"web"}}, []api.Role{api.RoleAdmin}},
		{"/ui/boxes/box1/urls", url.Values{"port": {"8080"}, "protocol": {"auto"}}, []api.Role{api.RoleAdmin, api.RoleCreator, api.RoleBox}},
		{"/ui/boxes/box1/urls/3000/delete", url.Values{}, []api.Role{api.RoleAdmin, api.RoleCreator, api.RoleBox}},
		{"/ui/keys", url.Values{"name": {"new"}, "role": {"read-only"}}, []api.Role{api.RoleAdmin}},
		{"/ui/keys/key_read-only/quotas", url.Values{"quota_commands": {"3"}}, []api.Role{api.RoleAdmin}},
		{"/ui/keys/key_read-only/replace", url.Values{"grace": {"1h"}}, []api.Role{api.RoleAdmin}},
		{"/ui/secrets/openai/refresh", url.Values{}, []api.Role{api.RoleAdmin}},
	}
	for _, f := range forms {
		for _, role := range api.Roles {
			g, _ := filled(t)
			g.host.Mu.Lock()
			g.host.ByID["box1"].Policy.Named = "" // so that the policy can be deleted
			g.host.Mu.Unlock()
			b := g.as(t, "sk-"+string(role))
			resp, text := b.form(t, "/ui/nowhere", f.action, f.values)
			may := false
			for _, r := range f.may {
				may = may || r == role
			}
			if got := resp.StatusCode < 300; got != may || resp.StatusCode >= 500 {
				t.Errorf("%s: %s: %s %.1500s", role, f.action, resp.Status, text)
			}
			if resp, _ := b.post(t, f.action, url.Values{"token": {"x"}}); resp.StatusCode != http.StatusForbidden {
				t.Errorf("%s without the token: %s", f.action, resp.Status)
			}
		}
	}
}

// TestAnswering: an answer applies the effect that the page has shown or none, problems stand at their fields, and who may not answer
// reads why.
func TestAnswering(t *testing.T) {
	t.Parallel()
	g, _ := filled(t)
	b := g.as(t, "sk-approver")
	const page = "/ui/requests/box1/open"
	_, text := b.get(t, page)
	for _, want := range []string{`name="candidate" value="digest"`, `<option value="3600" selected>1 hour</option>`, "7 hours (as the box asks)", "TCP connections to port 443"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q: %s", want, text)
		}
	}
	old := url.Values{"answer": {"once"}, "expires_in": {"3600"}, "reason": {"kept words"}, "candidate": {"earlier"}}
	if resp, text := b.form(t, page, page, old); resp.StatusCode != http.StatusConflict || !strings.Contains(text, "nothing was applied") || !strings.Contains(text, `value="kept words"`) ||
		!strings.Contains(text, `name="candidate" value="digest"`) {
		t.Errorf("another effect: %s %s", resp.Status, text)
	}
	wrong := url.Values{"answer": {"maybe"}, "reason": {"x"}, "candidate": {"digest"}}
	if resp, text := b.form(t, page, page, wrong); resp.StatusCode != http.StatusUnprocessableEntity || !strings.Contains(text, `class="error"`) {
		t.Errorf("no answer: %s %s", resp.Status, text)
	}
	good := url.Values{"answer": {"once"}, "expires_in": {"3600"}, "reason": {"fixtures"}, "candidate": {"digest"}}
	if resp, text := b.form(t, page, page, good); resp.StatusCode != http.StatusOK || !strings.Contains(text, "allowed for a time") || !strings.Contains(text, "name-approver") || strings.Contains(text, "Send the answer") {
		t.Errorf("approved: %s %s", resp.Status, text)
	}
	if resp, text := b.form(t, page, page, good); resp.StatusCode != http.StatusConflict {
		t.Errorf("twice: %s %s", resp.Status, text)
	}
	g.host.AddApproval(api.Approval{ID: "mine", Box: "box1", Host: "a.example", Entry: "a.example:443", Reason: "r", Barred: "another key has to answer"})
	if _, text := b.get(t, "/ui/requests/box1/mine"); !strings.Contains(text, "another key has to answer") || strings.Contains(text, "Send the answer") {
		t.Errorf("four eyes: %s", text)
	}
	reader := g.as(t, "sk-read-only")
	if _, text := reader.get(t, "/ui/requests/box1/mine"); strings.Contains(text, "Send the answer") {
		t.Errorf("a reader: %s", text)
	}
}

// webPolicy is the page of the named policy of [filled].
const webPolicy = "/ui/policies/web"

// editor is a browser at the page of a named policy.
type editor struct{ *browser }

func (e editor) send(t testing.TB, do, text, checked, version string) (*http.Response, string) {
	t.Helper()
	return e.form(t, webPolicy, webPolicy, url.Values{"policy": {text}, "version": {version}, "do": {do}, "checked": {checked}})
}

func (e editor) mode() policy.Mode {
	e.rig.host.Mu.Lock()
	defer e.rig.host.Mu.Unlock()
	return e.rig.host.Named["web"].Spec.Mode
}

// TestNamedPolicyForm: a policy is applied only as it was checked, for the version that was edited, and its problems have their pointers.
func TestNamedPolicyForm(t *testing.T) {
	t.Parallel()
	g, _ := filled(t)
	e := editor{g.as(t, "sk-admin")}
	next := `{"mode":"deny-all"}`
	resp, text := e.send(t, "check", next, "", "1")
	if resp.StatusCode != http.StatusOK || !strings.Contains(text, "Apply what was checked") || !strings.Contains(text, "Would be allowed: 3") || e.mode() != policy.ModeAllowAll {
		t.Errorf("check: %s %s", resp.Status, text)
	}
	if _, text = e.send(t, "apply", next, checkedText("another", 1), "1"); !strings.Contains(text, "Apply what was checked") || e.mode() != policy.ModeAllowAll {
		t.Errorf("a text that was edited after its check is not checked again: %s", text)
	}
	if resp, text = e.send(t, "apply", next, checkedText(next, 7), "7"); resp.StatusCode != http.StatusPreconditionFailed || !strings.Contains(text, "changed in the meantime") || e.mode() != policy.ModeAllowAll {
		t.Errorf("another version: %s %s", resp.Status, text)
	}
	if resp, text = e.send(t, "check", `{"mode":"custom","allowed_domains":["*foo.com"]}`, "", "1"); resp.StatusCode != http.StatusUnprocessableEntity || !strings.Contains(text, "/allowed_domains/0") || !strings.Contains(text, `<ol class="source">`) || !strings.Contains(text, "*foo.com") {
		t.Errorf("a problem: %s %s", resp.Status, text)
	}
	for _, bad := range []string{"", "nonsense", `"deny-all"`, "[]", "null"} {
		if resp, text = e.send(t, "check", bad, "", "1"); resp.StatusCode != http.StatusUnprocessableEntity || !strings.Contains(text, `id="policy-hint"`) {
			t.Errorf("%q: %s %s", bad, resp.Status, text)
		}
	}
	if resp, text = e.send(t, "apply", next, checkedText(next, 1), "1"); resp.StatusCode != http.StatusOK || e.mode() != policy.ModeDenyAll {
		t.Errorf("apply: %s %s", resp.Status, text)
	}
	if resp, text = e.form(t, webPolicy, webPolicy+"/delete", url.Values{"delete": {"other"}}); resp.StatusCode != http.StatusUnprocessableEntity || e.mode() != policy.ModeDenyAll {
		t.Errorf("deleting without its name: %s %s", resp.Status, text)
	}
	if resp, text = e.get(t, "/ui/policies?create=fresh"); resp.StatusCode != http.StatusOK || !strings.Contains(text, "no policy <strong>fresh") {
		t.Errorf("a new one: %s %s", resp.Status, text)
	}
	if resp, text = e.form(t, webPolicy, "/ui/policies/fresh?new=1", url.Values{"policy": {`{"mode":"none"}`}, "version": {"0"}, "do": {"check"}}); resp.StatusCode != http.StatusUnprocessableEntity || !strings.Contains(text, "/mode") {
		t.Errorf("a problem without followers: %s %s", resp.Status, text)
	}
	fresh := url.Values{"policy": {next}, "version": {"0"}, "do": {"apply"}, "checked": {checkedText(next, 0)}}
	if resp, text = e.form(t, webPolicy, "/ui/policies/fresh?new=1", fresh); resp.StatusCode != http.StatusOK || !strings.HasSuffix(resp.Request.URL.Path, "/fresh") || len(g.host.Named) != 2 {
		t.Errorf("making it: %s %s", resp.Status, text)
	}
}

// TestNamedPolicyOfTheFleet: pages show that a policy is the fleet's, and change and delete it as such.
func TestNamedPolicyOfTheFleet(t *testing.T) {
	t.Parallel()
	g, _ := filled(t)
	e := editor{g.as(t, "sk-admin")}
	g.host.Mu.Lock()
	web := g.host.Named["web"]
	web.Fleet = true
	g.host.Named["web"] = web
	g.host.Mu.Unlock()
	for path, want := range map[string]string{"/ui/policies": "of the fleet", webPolicy: "on all its hosts"} {
		if _, text := e.get(t, path); !strings.Contains(text, want) {
			t.Errorf("%s: %s", path, text)
		}
	}
	next := `{"mode":"deny-all"}`
	if resp, text := e.send(t, "apply", next, checkedText(next, 1), "1"); resp.StatusCode != http.StatusOK || e.mode() != policy.ModeDenyAll {
		t.Errorf("apply: %s %s", resp.Status, text)
	}
	g.host.Mu.Lock()
	for _, b := range g.host.ByID {
		b.Policy.Named = ""
	}
	g.host.Mu.Unlock()
	if resp, text := e.form(t, webPolicy, webPolicy+"/delete", url.Values{"delete": {"web"}}); resp.StatusCode != http.StatusOK || e.mode() != "" {
		t.Errorf("delete: %s %s", resp.Status, text)
	}
}

// TestWideNamedPolicies: a policy that opens more than exact names is applied only with its name typed.
func TestWideNamedPolicies(t *testing.T) {
	t.Parallel()
	g, _ := filled(t)
	e := editor{g.as(t, "sk-admin")}
	for _, wide := range []authority.Line{
		{Kind: authority.KindName, Name: "*.example.org", Ports: []uint16{443}}, {Kind: authority.KindName, Name: "a.example"}, {Kind: authority.KindAddress, Prefix: "192.0.2.0/24"},
		{Kind: authority.KindName, Name: "a.example", Ports: []uint16{443}, Headers: []string{"a.example"}}, {Kind: authority.KindQuery, Name: "*"},
	} {
		g.host.Mu.Lock()
		g.host.Gained = []authority.Line{wide}
		g.host.Mu.Unlock()
		if resp, text := e.send(t, "apply", `{"mode":"deny-all"}`, checkedText(`{"mode":"deny-all"}`, 1), "1"); resp.StatusCode != http.StatusUnprocessableEntity || !strings.Contains(text, "type the name") || len(wide.Headers) > 0 && !strings.Contains(text, "could use the credentials") || e.mode() != policy.ModeAllowAll {
			t.Errorf("%+v is applied without typing the name: %s %s", wide, resp.Status, text)
		}
	}
	g.host.Mu.Lock()
	g.host.Gained = []authority.Line{{Kind: authority.KindName, Name: "a.example", Ports: []uint16{443}}}
	g.host.Mu.Unlock()
	if resp, text := e.send(t, "check", `{"mode":"deny-all"}`, "", "1"); strings.Contains(text, "Type the name") || !strings.Contains(text, "connections to a.example, port 443") {
		t.Errorf("an exact name: %s %s", resp.Status, text)
	}
}

// checkedText is the field that the page of a policy returns for a checked text.
func checkedText(text string, version uint64) string { return pages.CheckOf(text, version) }

// TestOnceShown: the values of keys and the credentials of URLs are in the response that made them, and in no other.
func TestOnceShown(t *testing.T) {
	t.Parallel()
	g, _ := filled(t)
	b := g.as(t, "sk-admin")
	resp, text := b.form(t, "/ui/keys", "/ui/keys", url.Values{"name": {"ci"}, "role": {"read-only"}, "expires_in": {"90d"}})
	if resp.StatusCode != http.StatusCreated || !strings.Contains(text, "sk-made-") || resp.Header.Get("Cache-Control") != "no-store" {
		t.Errorf("a new key: %s %s", resp.Status, text)
	}
	if _, text = b.get(t, "/ui/keys"); strings.Contains(text, "sk-made-") || !strings.Contains(text, ">ci<") {
		t.Errorf("the keys: %s", text)
	}
	resp, text = b.form(t, "/ui/boxes/box1/urls", "/ui/boxes/box1/urls", url.Values{"port": {"8080"}, "bearer_token": {"1"}, "basic_auth": {"1"}, "protocol": {"auto"}, "expires_in": {"3600"}})
	g.host.Mu.Lock()
	made := g.host.ByID["box1"].URLs[8080]
	g.host.Mu.Unlock()
	if resp.StatusCode != http.StatusCreated || made.Token.Reveal() == "" || !strings.Contains(text, made.Token.Reveal()) || !strings.Contains(text, made.Password.Reveal()) {
		t.Errorf("a new URL: %s %s", resp.Status, text)
	}
	if _, text = b.get(t, "/ui/boxes/box1/urls"); strings.Contains(text, ">"+made.Token.Reveal()+"<") || !strings.Contains(text, "8080") {
		t.Errorf("the URLs: %s", text)
	}
	if resp, text = b.form(t, "/ui/keys/key_read-only", "/ui/keys/key_read-only/quotas", url.Values{"quota_commands": {"3"}, "quota_boxes": {"many"}}); resp.StatusCode != http.StatusUnprocessableEntity ||
		!strings.Contains(text, "is not a number") || !strings.Contains(text, `value="many"`) {
		t.Errorf("quotas: %s %s", resp.Status, text)
	}
	for _, wrong := range []url.Values{{"port": {"0"}}, {"port": {"x"}}, {"port": {"80"}, "protocol": {"ftp"}}, {"port": {"80"}, "protocol": {"tcp"}, "bearer_token": {"1"}}, {"port": {"80"}, "hostnames": {"_"}}} {
		if resp, text = b.form(t, "/ui/boxes/box1/urls", "/ui/boxes/box1/urls", wrong); resp.StatusCode != http.StatusUnprocessableEntity || !strings.Contains(text, `class="error"`) {
			t.Errorf("%v: %s %s", wrong, resp.Status, text)
		}
	}
}

// TestPages: lists show a part, and lead to the others; a page beyond the end is the last one.
func TestPages(t *testing.T) {
	t.Parallel()
	g, _ := filled(t)
	for i := range 120 {
		g.host.AddApproval(api.Approval{ID: fmt.Sprint("r", i), Box: "box1", Entry: fmt.Sprintf("host%d.example:443", i), Reason: "r"})
	}
	b := g.as(t, "sk-admin")
	for query, want := range map[string][]string{
		"":             {"1–50 of 121", `rel="next"`}, // the open one of filled, too
		"?page=2":      {"51–100 of 121", `rel="next"`, `rel="prev"`},
		"?page=3":      {"101–121 of 121", `rel="prev"`},
		"?page=4":      {"101–121 of 121"},
		"?page=999999": {"101–121 of 121"},
		"?page=-1":     {"1–50 of 121"},
		"?page=x":      {"1–50 of 121"},
	} {
		_, text := b.get(t, "/ui/requests"+query)
		for _, w := range want {
			if !strings.Contains(text, w) {
				t.Errorf("%s lacks %q: %s", query, w, text)
			}
		}
		if query == "?page=3" && strings.Contains(text, `rel="next"`) {
			t.Error("a page after the last one")
		}
	}
}

// TestPagesOfTrail: each call is on one page of the trail, with its answer.
func TestPagesOfTrail(t *testing.T) {
	t.Parallel()
	g, k := filled(t)
	b := g.as(t, "sk-admin")
	for i := range 130 {
		seq, err := k.Append(trail.Entry{Kind: trail.Call, Key: fmt.Sprint("person", i), Route: "PUT /v2/box"})
		if err == nil {
			_, err = k.Append(trail.Entry{Kind: trail.Answer, Call: seq, Key: fmt.Sprint("person", i), Route: "PUT /v2/box", Status: 200})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	met, path := map[string]int{}, "/ui/trail"
	for range 10 {
		_, text := b.get(t, path)
		for i := range 130 {
			met[fmt.Sprint("person", i)] += strings.Count(text, fmt.Sprintf(`data-label="By">person%d<`, i))
		}
		_, rest, more := strings.Cut(text, `<nav class="pager"`)
		next := between(rest, `<a href="`, `" rel="next"`)
		if !more || next == "" {
			break
		}
		path = strings.ReplaceAll(next[strings.LastIndex(next, `"`)+1:], "&amp;", "&")
	}
	for i := range 130 {
		if n := met[fmt.Sprint("person", i)]; n != 1 {
			t.Errorf("the answer to call %d is on the pages %d times", i, n)
		}
	}
	if _, text := b.get(t, "/ui/trail?before=1"); !strings.Contains(text, "no entries") && !strings.Contains(text, "No entry") {
		t.Errorf("beyond the end: %s", text)
	}
	if _, text := b.get(t, "/ui/trail?key=person7"); strings.Count(text, `data-label="By">person`) != 1 {
		t.Errorf("by person: %s", text)
	}
	if resp, text := b.get(t, "/ui/trail?until=never"); resp.StatusCode != http.StatusUnprocessableEntity || !strings.Contains(text, "until") {
		t.Errorf("a time that is none: %s %s", resp.Status, text)
	}
}

// TestLongEntriesOfTrail: a page of the trail has fewer entries if they are long, and the next one goes on. Changes are shown without
// effect on the direction of text.
func TestLongEntriesOfTrail(t *testing.T) {
	t.Parallel()
	g, k := filled(t)
	b := g.as(t, "sk-admin")
	const count, size = 10, 600 << 10
	for i := range count {
		change := trail.Change{RawMessage: []byte(`{"reason":"` + strings.Repeat("a", size) + "\u202e" + `"}`)}
		if _, err := k.Append(trail.Entry{Kind: trail.Answer, Key: fmt.Sprint("person", i), Route: "PUT /v2/box", Status: 200, Change: change}); err != nil {
			t.Fatal(err)
		}
	}
	_, first := b.get(t, "/ui/trail")
	if n := strings.Count(first, `data-label="By">person`); n == 0 || n*size > 4<<20 || strings.Contains(first, "\u202e") {
		t.Errorf("%d entries on %d bytes, with bidirectional characters: %v", n, len(first), strings.Contains(first, "\u202e"))
	}
	next := between(first[strings.Index(first, `<nav class="pager"`):], `<a href="`, `" rel="next"`)
	_, second := b.get(t, strings.ReplaceAll(next[strings.LastIndex(next, `"`)+1:], "&amp;", "&"))
	for i := range count {
		if n := strings.Count(first+second, fmt.Sprintf(`data-label="By">person%d<`, i)); n != 1 {
			t.Errorf("entry %d is on the pages %d times", i, n)
		}
	}
}

// between returns the text between two others, or "".
func between(s, from, to string) string {
	before, _, ok := strings.Cut(s, to)
	if !ok {
		return ""
	}
	if i := strings.LastIndex(before, from); i >= 0 {
		return before[i+len(from):]
	}
	return ""
}

// TestReportOfTheDashboard: the page of a report runs no script whatever it contains, and the other forms are files.
func TestReportOfTheDashboard(t *testing.T) {
	t.Parallel()
	g, _ := filled(t)
	b := g.as(t, "sk-auditor")
	resp, text := b.get(t, "/ui/report?since=1h&format=html")
	csp := resp.Header.Get("Content-Security-Policy")
	if resp.StatusCode != http.StatusOK || !strings.Contains(csp, "sandbox") || !strings.Contains(csp, "default-src 'none'") || strings.Contains(csp, "script-src") || !strings.Contains(text, "boxgate audit report") {
		t.Errorf("%s %s %s", resp.Status, csp, text)
	}
	for _, format := range []string{"csv", "json"} {
		if resp, _ := b.get(t, "/ui/report/"+format+"?since=1h"); !strings.HasPrefix(resp.Header.Get("Content-Disposition"), "attachment") {
			t.Errorf("%s: %v", format, resp.Header)
		}
	}
	if resp, text := b.get(t, "/ui/report/html?since=tomorrow"); resp.StatusCode != http.StatusUnprocessableEntity || !strings.Contains(text, `role="alert"`) || !strings.Contains(text, `value="tomorrow"`) {
		t.Errorf("a window that is none: %s %s", resp.Status, text)
	}
}

// TestHeaderRulesOfTheFleet: the pages of header rules have the fleet's on a member, and no word of them elsewhere.
func TestHeaderRulesOfTheFleet(t *testing.T) {
	t.Parallel()
	g, _ := filled(t)
	b := g.as(t, "sk-read-only")
	for _, member := range []bool{false, true} {
		if member {
			rules, err := policy.ParseHeaderRules([]byte(`{"fleet.example.com": {"X-Key": "sk-value"}}`), nil)
			if err != nil {
				t.Fatal(err)
			}
			g.host.FleetRules = api.HeaderState{Rules: rules, Version: 7, Fleet: true}
		}
		for _, path := range []string{"/ui/rules", "/ui/boxes/box1/headers"} {
			if _, text := b.get(t, path); strings.Contains(text, "of the fleet") != member || strings.Contains(text, "fleet.example.com") != member || strings.Contains(text, "sk-value") {
				t.Errorf("%s, member %v: %s", path, member, text)
			}
		}
	}
}

// TestHeaderRuleNames: header rules are shown with the names of headers and secrets, and without values.
func TestHeaderRuleNames(t *testing.T) {
	t.Parallel()
	g, _ := filled(t)
	rules, err := policy.ParseHeaderRules([]byte(`{
		"api.example.com": {"headers": {"Authorization": {"secret": "openai", "prefix": "Bearer "}, "X-Team": "sk-value"}, "scrub": true},
		"*.example.org": [{"match": {"methods": ["POST"]}, "deny": true}, {"headers": {"X-Other": "sk-value"}}]
	}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.host.SetGlobalHeaders(t.Context(), rules, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := g.host.SetHeaders(t.Context(), "box1", rules[:1], nil); err != nil {
		t.Fatal(err)
	}
	b := g.as(t, "sk-read-only")
	for _, path := range []string{"/ui/rules", "/ui/boxes/box1/headers"} {
		_, text := b.get(t, path)
		for _, want := range []string{"api.example.com", "Authorization", "openai", "X-Team", "*.example.org", "X-Other", "POST", "denied"} {
			if !strings.Contains(text, want) {
				t.Errorf("%s lacks %q: %s", path, want, text)
			}
		}
		if strings.Contains(text, "sk-value") || strings.Contains(text, "Bearer ") {
			t.Errorf("%s shows a value: %s", path, text)
		}
	}
	own := g.as(t, "sk-one-box")
	if resp, text := own.get(t, "/ui/boxes/box1/headers"); resp.StatusCode != http.StatusOK || strings.Contains(text, "Rules of all boxes") || !strings.Contains(text, "Rules of this box") {
		t.Errorf("a key of the box: %s %s", resp.Status, text)
	}
}
