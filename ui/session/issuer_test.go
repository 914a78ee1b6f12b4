package session

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/internal/openid"
	"boxgate/policy/name"
)

const redirect = "http://localhost:8600" + CallbackPath

// startProvider builds and starts a provider. Each user's password is the user's name. It returns the issuer.
func startProvider(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(dir, "provider"), ".")
	build.Dir, build.Env = "../../ingress/account/provider", append(os.Environ(), "GOFLAGS=", "GOWORK=off", "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	users := map[string]map[string]any{}
	for user, groups := range map[string][]string{"ann": {"staff", "watchers", "gate-admins"}, "bob": {"watchers", "gate-approvers"}, "eve": {"gate-admin", "", "Gate-Admins"}, "mallory": nil} {
		users[user] = map[string]any{"ID": user, "Username": user, "Password": user, "Email": user + "@example.org", "EmailVerified": user != "bob", "Groups": groups}
	}
	data, err := json.Marshal(users)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "users.json"), data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(dir, "provider"), filepath.Join(dir, "users.json"), "boxgate", "client-secret", redirect)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	issuer, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(issuer)
}

// withIssuer makes a fixture whose people can sign in at a provider. Its clock is the real one, by which the provider signs.
func withIssuer(t *testing.T, issuer string) *fixture {
	t.Helper()
	f := newFixture(t)
	f.now = time.Now()
	f.options.Issuer = &Issuer{URL: issuer, Claim: "groups", Roles: map[string]api.Role{
		"gate-admins": api.RoleAdmin, "gate-approvers": api.RoleApprover, "watchers": api.RoleReader, "": api.RoleAdmin,
	}, Provider: openid.New(openid.Config{
		Issuer: issuer, ClientID: "boxgate", Scopes: []string{"email"}, Groups: "groups", Redirect: redirect, NeedGroups: true,
		Secret: func(context.Context) (name.Secret, error) { return name.NewSecret("client-secret"), nil },
	})}
	mux := http.NewServeMux()
	mux.Handle("/", f.handler)
	mux.Handle(oidcPrefix, f.Protect(f.Handler()))
	f.handler = mux
	return f
}

// atIssuer takes a browser to the provider, signs in there as a user, and returns the address that it is sent back to.
func (b *browser) atIssuer(t *testing.T, next, user string) string {
	t.Helper()
	resp := b.send("GET", StartPath+"?next="+url.QueryEscape(next), nil)
	to := resp.Header.Get("Location")
	if to == "" {
		t.Fatalf("%s", text(resp))
	}
	if strings.Contains(to, "boxes") { // random texts in the address contain shorter ones
		t.Errorf("the provider learns the path: %s", to)
	}
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	back := ""
	person := &http.Client{Jar: jar, CheckRedirect: func(r *http.Request, _ []*http.Request) error {
		if strings.HasPrefix(r.URL.String(), redirect) {
			back = r.URL.RequestURI()
			return http.ErrUseLastResponse
		}
		return nil
	}}
	defer person.CloseIdleConnections()
	page := func(resp *http.Response, err error) string {
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		return string(body)
	}
	form := page(person.Get(to))
	id := regexp.MustCompile(`name="id" value="([^"]*)"`).FindStringSubmatch(form)
	if id == nil {
		t.Fatal(form)
	}
	at, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	page(person.PostForm(at.Scheme+"://"+at.Host+"/login/username", url.Values{"username": {user}, "password": {user}, "id": {id[1]}}))
	if back == "" {
		t.Fatal("the provider does not send the browser back")
	}
	return back
}

// crossSite is the return from the provider as browsers send it, without cookies of the same site only.
func crossSite(r *http.Request) {
	r.Header.Set("Sec-Fetch-Site", "cross-site")
	r.Header.Set("Sec-Fetch-Mode", "navigate")
	r.Header.Set("Sec-Fetch-Dest", "document")
}

// A person signs in at a real identity provider with the highest role of the person's groups, and is the caller of the audit trail.
// Without a group, the page names the claim.
func TestSignInAtAProvider(t *testing.T) {
	t.Parallel()
	f := withIssuer(t, startProvider(t))
	for user, want := range map[string]struct {
		role         api.Role
		name, refuse string
	}{
		"ann": {role: api.RoleAdmin, name: "ann@example.org"}, "bob": {role: api.RoleApprover, name: "sub:bob"},
		"eve":     {refuse: `None of the groups of eve@example.org in the claim &#34;groups&#34; has a role`},
		"mallory": {refuse: `the ID token has no claim &#34;groups&#34;`},
	} {
		b := f.browser()
		if page := text(b.send("GET", SignInPath+"?next=/ui/boxes/b1", nil)); !strings.Contains(page, `href="/ui/oidc/start?next=%2Fui%2Fboxes%2Fb1"`) {
			t.Fatal(page)
		}
		back := b.atIssuer(t, "/ui/boxes/b1?x=1", user)
		resp := b.send("GET", back, nil, crossSite)
		page := text(resp)
		if want.refuse != "" {
			if resp.StatusCode != http.StatusForbidden || !strings.Contains(page, want.refuse) || b.cookies[Cookie] != "" {
				t.Errorf("%s: %s", user, page)
			}
			continue
		}
		if resp.StatusCode != http.StatusOK || !strings.Contains(page, `content="0; url=/ui/boxes/b1?x=1"`) {
			t.Fatalf("%s: %s", user, page)
		}
		r, _ := http.NewRequest("GET", "http://localhost:8600/ui/", nil)
		r.AddCookie(&http.Cookie{Name: Cookie, Value: b.cookies[Cookie]})
		got, ok := f.Caller(r)
		if !ok || got.Caller.Role != want.role || got.Caller.Name != want.name || got.Person != want.name || !strings.HasPrefix(got.Caller.Key, "sso_") {
			t.Errorf("%s: %+v", user, got)
		}
		if until := got.Expires.Sub(f.now); until <= 0 || until > Lifetime {
			t.Errorf("%s: until %v", user, got.Expires)
		}
		if resp := b.send("GET", back, nil, crossSite); resp.StatusCode != http.StatusForbidden {
			t.Errorf("%s: the return works twice: %s", user, resp.Status)
		}
		f.change(func() { f.now = got.Expires })
		if _, ok := f.Caller(r); ok {
			t.Errorf("%s: the session outlives the ID token", user)
		}
		f.change(func() { f.now = time.Now() })
	}
	if got := strings.Join(f.made, "\n"); !strings.Contains(got, "ann@example.org GET /ui/oidc/callback 303") || !strings.Contains(got, "eve@example.org GET /ui/oidc/callback 403") {
		t.Errorf("recorded:\n%s", got)
	}
}

// A sign-in at the provider that was begun in one browser cannot be completed in another, nor changed, nor late.
func TestReturnFromAProviderIsBound(t *testing.T) {
	t.Parallel()
	f := withIssuer(t, startProvider(t))
	attacker, victim := f.browser(), f.browser()
	stolen := attacker.atIssuer(t, "/ui/", "ann")
	victim.send("GET", StartPath, nil)
	state := regexp.MustCompile(`state=([^&]*)`).FindStringSubmatch(stolen)[1]
	flow := attacker.cookies[flowCookie]
	secret, _, _ := strings.Cut(flow, ".")
	for what, c := range map[string]struct{ path, cookie string }{
		"in another browser":         {stolen, victim.cookies[flowCookie]},
		"without a cookie":           {stolen, ""},
		"with two cookies":           {stolen, flow + "; " + flowCookie + "=" + flow},
		"with a changed state":       {strings.Replace(stolen, state, "B"+state[1:], 1), flow},
		"without a state":            {strings.Replace(stolen, state, "", 1), flow},
		"with a later expiry":        {strings.Replace(stolen, state, f.stateOf(strings.Repeat("a", secretLength), 1<<40), 1), flow},
		"as the provider has denied": {CallbackPath + "?error=access_denied&state=" + state, flow},
		"with a code of their own":   {CallbackPath + "?code=guess&state=" + f.stateOf(secret, time.Now().Add(time.Minute).Unix()), flow},
	} {
		b := f.browser()
		if resp := b.send("GET", c.path, nil, crossSite, header("Cookie", flowCookie+"="+c.cookie)); resp.StatusCode != http.StatusForbidden || b.cookies[Cookie] != "" {
			t.Errorf("%s: %s", what, text(resp))
		}
	}
	f.change(func() { f.now = f.now.Add(flowTime) })
	if resp := attacker.send("GET", stolen, nil, crossSite); resp.StatusCode != http.StatusForbidden {
		t.Errorf("too late: %s", resp.Status)
	}
	f.change(func() { f.now = time.Now() })
	attacker.cookies[flowCookie] = secret + ".L3VpLy4uL3YyL2JveA" // "/ui/../v2/box"
	if resp := attacker.send("GET", stolen, nil, crossSite); resp.StatusCode != http.StatusOK || !strings.Contains(text(resp), `url=/ui/"`) {
		t.Errorf("a path elsewhere: %s", resp.Status)
	}
}

// Returns from the provider that are being completed are bounded, by address and in all.
func TestReturnsAreBounded(t *testing.T) {
	t.Parallel()
	var c returns
	for range mostOfAddress {
		if !c.begin([]string{"192.0.2.1"}) {
			t.Fatal("refused")
		}
	}
	if c.begin([]string{"192.0.2.1"}) || !c.begin([]string{"192.0.2.2"}) {
		t.Error("an address takes more than its own, or others are refused")
	}
	c.end([]string{"192.0.2.1"})
	if !c.begin([]string{"192.0.2.1"}) {
		t.Error("an address is refused although it has completed one")
	}
	for i := range 2 * mostReturns {
		c.begin([]string{string(rune('a' + i))})
	}
	if c.n != mostReturns || c.begin([]string{"192.0.2.3"}) {
		t.Errorf("%d at a time", c.n)
	}
}

// TestSignInAtAProviderKeepsTheSession: a link elsewhere does not make somebody another person, by a sign-in at the provider that needs
// no click.
func TestSignInAtAProviderKeepsTheSession(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.options.Issuer = &Issuer{Provider: openid.New(openid.Config{Issuer: "http://127.0.0.1:1"})}
	f.handler = f.Protect(f.Handler())
	b := f.browser()
	b.signIn("reader-key", "")
	without := f.browser() // as a browser sends it, without cookies of the same site only
	if page := text(without.send("GET", StartPath+"?next=/ui/boxes", nil, crossSite)); !strings.Contains(page, `content="0; url=/ui/oidc/start?next=%2Fui%2Fboxes"`) {
		t.Errorf("a link elsewhere: %s", page)
	}
	if resp := b.send("GET", StartPath+"?next=/ui/boxes", nil); resp.StatusCode != http.StatusSeeOther || resp.Header.Get("Location") != "/ui/boxes" || b.cookies[flowCookie] != "" {
		t.Errorf("with a session: %s %s", resp.Status, resp.Header.Get("Location"))
	}
}

// TestReturnsOfNetworks begins returns from many networks of one customer, who gets half of the places at most.
func TestReturnsOfNetworks(t *testing.T) {
	t.Parallel()
	for name, of := range map[string]func(i int) string{
		"192.0.2.1": func(int) string { return "192.0.2.1" }, "no address": func(int) string { return "unknown" },
		"/64": func(i int) string { return fmt.Sprintf("2001:db8::%x", i) }, "/56": func(i int) string { return fmt.Sprintf("2001:db8:0:%x::1", i) },
		"/48": func(i int) string { return fmt.Sprintf("2001:db8:0:%x00::1", i) },
	} {
		var c returns
		var begun [][]string
		for i := range mostReturns {
			if networks := networksOf(of(i)); c.begin(networks) {
				begun = append(begun, networks)
			}
		}
		want := map[string]int{"/56": 6, "/48": 8}[name]
		if len(begun) != cmp.Or(want, mostOfAddress) {
			t.Errorf("%s begins %d", name, len(begun))
		}
		if !c.begin(networksOf("198.51.100.1")) {
			t.Errorf("%s leaves no place", name)
		}
		for _, networks := range append(begun, networksOf("198.51.100.1")) {
			c.end(networks)
		}
		if c.n != 0 || len(c.from) != 0 {
			t.Errorf("%s: %d are left", name, c.n)
		}
	}
}

func TestPersonOf(t *testing.T) {
	t.Parallel()
	for want, id := range map[string]openid.Identity{
		"ann@example.org": {Subject: "1", Email: "ann@example.org", Verified: true},
		"sub:1":           {Subject: "1", Email: "ann@example.org"},
		"sub:2":           {Subject: "2", Email: "ann@example.org\x1b[2J", Verified: true},
		"sub:3":           {Subject: "3", Email: "operator", Verified: true},
		"sub:YSBi":        {Subject: "a b"},
		"sub:a":           {Subject: "a", Email: strings.Repeat("x", 200) + "@example.org", Verified: true},
	} {
		if got := personOf(id); got != want {
			t.Errorf("%+v: %s, want %s", id, got, want)
		}
	}
}

func FuzzState(f *testing.F) {
	s := New(Options{})
	flow, until := newSecret(), time.Now().Add(time.Hour).Unix()
	good := s.stateOf(flow, until)
	f.Add(good)
	f.Fuzz(func(t *testing.T, state string) {
		if s.expiryOf(state, flow) != 0 && state != good {
			t.Errorf("%q is a state", state)
		}
	})
}
