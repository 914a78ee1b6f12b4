package session

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
)

func header(name string, values ...string) func(*http.Request) {
	return func(r *http.Request) {
		r.Header.Del(name)
		for _, v := range values {
			r.Header.Add(name, v)
		}
	}
}

// together applies edits one after the other.
func together(edits ...func(*http.Request)) func(*http.Request) {
	return func(r *http.Request) {
		for _, edit := range edits {
			edit(r)
		}
	}
}

// TestForeignRequests: another site, another name of this host, a frame, and a form without the token of the session neither change
// nor read a page.
func TestForeignRequests(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b, other := f.browser(), f.browser()
	b.signIn("reader-key", "")
	other.signIn("operator-key", "")
	token, otherToken := strings.Fields(b.greeting())[2], strings.Fields(other.greeting())[2]
	if token == otherToken {
		t.Fatal("two sessions have the same token")
	}
	old := header("Sec-Fetch-Site") // a browser that does not send it
	navigate := together(header("Sec-Fetch-Mode", "navigate"), header("Sec-Fetch-Dest", "document"))
	host := func(h string) func(*http.Request) { return func(r *http.Request) { r.Host = h } }
	form := func(values ...string) url.Values { return url.Values{TokenField: values} }
	for name, c := range map[string]struct {
		method string
		form   url.Values
		edit   func(*http.Request)
		want   int
	}{
		"its own form":              {"POST", form(token), old, 200},
		"its own script":            {"POST", nil, together(header("Content-Type", "application/x-www-form-urlencoded"), header(TokenHeader, token)), 200},
		"its own origin":            {"POST", form(token), together(old, header("Origin", "http://localhost:8600")), 200},
		"a link elsewhere":          {"GET", nil, together(header("Sec-Fetch-Site", "cross-site"), navigate), 200},
		"a known name":              {"GET", nil, host("Gate.Example.org.:8600"), 200},
		"no token":                  {"POST", url.Values{}, old, 403},
		"an empty token":            {"POST", form(""), old, 403},
		"two tokens":                {"POST", form(token, token), old, 403},
		"the token of another":      {"POST", form(otherToken), old, 403},
		"no browser's method":       {"PUT", form(token), old, 403},
		"another site":              {"POST", form(token), header("Sec-Fetch-Site", "cross-site"), 403},
		"another port":              {"POST", form(token), together(header("Sec-Fetch-Site", "same-site"), navigate), 403},
		"two sites":                 {"POST", form(token), header("Sec-Fetch-Site", "same-origin", "cross-site"), 403},
		"another origin":            {"POST", form(token), together(old, header("Origin", "http://localhost:3000")), 403},
		"TLS of another":            {"POST", form(token), together(old, header("Origin", "https://localhost:8600")), 403},
		"an opaque origin":          {"POST", form(token), together(old, header("Origin", "null")), 403},
		"two origins":               {"POST", form(token), together(old, header("Origin", "http://localhost:8600", "http://localhost:8600")), 403},
		"a script elsewhere reads":  {"GET", nil, together(header("Sec-Fetch-Site", "cross-site"), header("Sec-Fetch-Mode", "no-cors")), 403},
		"another site frames it":    {"GET", nil, together(header("Sec-Fetch-Site", "cross-site"), navigate, header("Sec-Fetch-Dest", "iframe")), 403},
		"it is framed by itself":    {"GET", nil, together(navigate, header("Sec-Fetch-Dest", "iframe")), 403},
		"an old browser elsewhere":  {"GET", nil, together(old, header("Origin", "http://evil.example")), 403},
		"a name pointed here":       {"GET", nil, host("evil.example:8600"), 421},
		"a name pointed here posts": {"POST", form(token), host("evil.example:8600"), 421},
		"an absolute target":        {"GET", nil, func(r *http.Request) { r.URL.Scheme, r.URL.Host = "http", "localhost:8600" }, 421},
	} {
		if resp := b.send(c.method, "/ui/boxes", c.form, c.edit); resp.StatusCode != c.want {
			t.Errorf("%s: %s", name, resp.Status)
		}
	}
}

// TestSignInOfAnotherSite: another site cannot sign a person in as somebody else, nor can a session be planted.
func TestSignInOfAnotherSite(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	attacker, victim := f.browser(), f.browser()
	page := text(attacker.send("GET", SignInPath, nil))
	form := url.Values{"key": {"reader-key"}, TokenField: {tokenField.FindStringSubmatch(page)[1]}}
	for name, edits := range map[string][]func(*http.Request){
		"another site":              {header("Sec-Fetch-Site", "cross-site")},
		"neither site nor origin":   {header("Sec-Fetch-Site")},
		"with a form of its own":    {},
		"with a cookie of its own":  {header("Sec-Fetch-Site"), header("Cookie", formCookie+"=short")},
		"with two cookies":          {header("Sec-Fetch-Site"), header("Cookie", formCookie+"="+attacker.cookies[formCookie]+"; "+formCookie+"="+strings.Repeat("a", secretLength))},
		"with a token of its own":   {func(r *http.Request) { r.Header.Set("Cookie", formCookie+"="+strings.Repeat("a", secretLength)) }},
		"from a name pointed there": {func(r *http.Request) { r.Host = "evil.example" }},
	} {
		if resp := victim.send("POST", SignInPath, form, edits...); resp.StatusCode != http.StatusForbidden && resp.StatusCode != http.StatusMisdirectedRequest || victim.cookies[Cookie] != "" {
			t.Errorf("%s: %s, %v", name, resp.Status, victim.cookies)
		}
	}
	planted := strings.Repeat("a", secretLength)
	victim.cookies = map[string]string{Cookie: planted}
	if got := victim.greeting(); !strings.HasPrefix(got, SignInPath) {
		t.Errorf("a planted cookie is a session: %s", got)
	}
	victim.signIn("reader-key", "")
	if victim.cookies[Cookie] == planted {
		t.Error("the planted cookie became the session")
	}
	first := victim.cookies[Cookie]
	form = url.Values{"key": {"operator-key"}}
	page = text(attacker.send("GET", SignInPath, nil))
	form.Set(TokenField, tokenField.FindStringSubmatch(page)[1])
	victim.cookies[formCookie] = attacker.cookies[formCookie]
	if resp := victim.send("POST", SignInPath, form); resp.StatusCode != http.StatusSeeOther || victim.cookies[Cookie] == first {
		t.Errorf("another sign-in of the browser: %s", resp.Status)
	}
	victim.cookies[Cookie] = first
	if got := victim.greeting(); !strings.HasPrefix(got, SignInPath) {
		t.Errorf("the session before goes on: %s", got)
	}
}

// TestForgedCookies: only the whole cookie of one session is one.
func TestForgedCookies(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.browser()
	b.signIn("reader-key", "")
	good := b.cookies[Cookie]
	forged := []string{
		"", good[1:], good + "a", "A" + good[1:], strings.ToLower(good), good + "; " + Cookie + "=" + good, Cookie + "=" + good,
		strings.Repeat("a", secretLength), strings.Repeat("a", 1<<16), good[:len(good)-1] + "\x00",
	}
	for _, value := range forged {
		if value == good {
			continue
		}
		if got := b.greeting(header("Cookie", Cookie+"="+value)); !strings.HasPrefix(got, SignInPath) {
			t.Errorf("%.60q: %s", value, got)
		}
	}
	if got := b.greeting(header("Cookie", "boxgate="+good)); !strings.HasPrefix(got, SignInPath) {
		t.Errorf("by another name, which other hosts could set: %s", got)
	}
}

// hostile are paths that must not be where a sign-in leads.
var hostile = []string{
	"//evil.example", "/\\evil.example", "https://evil.example", "javascript:alert(1)", "/ui", "ui/", "/v2/box", "/ui/../v2/box", "/ui/..%2fv2", "/ui/%2e%2e/v2",
	"/ui//evil.example\r\nSet-Cookie: a=b", "/ui/\r\nX: y", "/ui/\tx", "/ui/x y", "/ui/\u00e9", "/ui/\\..\\x", "/ui/sign-in", "/ui/sign-in/", "/ui/sign-in?next=/ui/sign-in", "/ui/sign-out",
	"/ui/oidc/callback?code=x", "/ui/./sign-out", "/ui/%zz", "/ui/x#y", "http:/ui/", "/ui/" + strings.Repeat("a", maxNext),
}

// TestSignInLeadsNowhereElse: after a sign-in the browser goes on at a page of the dashboard.
func TestSignInLeadsNowhereElse(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, next := range hostile {
		if resp := f.browser().signIn("reader-key", next); resp.Header.Get("Location") != home || len(resp.Header.Values("Set-Cookie")) != 2 {
			t.Errorf("%.60q: %q", next, resp.Header)
		}
		b := f.browser()
		b.signIn("reader-key", "")
		if resp := b.send("GET", SignInPath+"?next="+url.QueryEscape(next), nil); resp.Header.Get("Location") != home {
			t.Errorf("%.60q: signed in already: %q", next, resp.Header)
		}
	}
	for _, next := range []string{"/ui/", "/ui/boxes/b1?host=a%2Fb&x=//y", "/ui/boxes/..b"} {
		if got := Local(next); got != next {
			t.Errorf("%s: %s", next, got)
		}
	}
}

func FuzzLocal(f *testing.F) {
	for _, next := range hostile {
		f.Add(next)
	}
	base, err := url.Parse("https://gate.example:8600/ui/sign-in")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, next string) {
		to, err := base.Parse(Local(next))
		if err != nil || to.Host != base.Host || to.Scheme != base.Scheme || !strings.HasPrefix(to.Path, home) || strings.ContainsAny(Local(next), "\r\n\\") {
			t.Errorf("%q leads to %v, %v", next, to, err)
		}
	})
}
