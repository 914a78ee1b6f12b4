package ingress

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"boxgate/audit"
	"boxgate/ingress/access"
	"boxgate/ingress/link"
	"boxgate/ingress/pages"
	"boxgate/policy"
	"boxgate/policy/name"
)

// guarded makes a public URL with a credential, where browsers can sign in.
func (f *fixture) guarded(host string, box *recorder) Target {
	t := f.expose(host, box.Server, Auth{Bearer: digest(BearerDigest("tok")), Basic: digest(BasicDigest("box", "pass"))})
	t.Access = &Access{Sessions: access.NewKey(), Ended: &access.Ended{}}
	f.set(host+domain, t)
	return t
}

func browser(r *http.Request) {
	r.Header.Set("Accept", "text/html,*/*;q=0.8")
	r.Header.Set("Sec-Fetch-Mode", "navigate")
	r.Header.Set("Sec-Fetch-Dest", "document")
	r.Header.Set("Sec-Fetch-Site", "none")
}

// submit sends a form like a page of the URL.
func submit(t *testing.T, c *http.Client, to string, form url.Values, edit func(*http.Request)) (*http.Response, string) {
	t.Helper()
	return get(t, c, to, func(r *http.Request) {
		browser(r)
		r.Method, r.Body, r.ContentLength = http.MethodPost, io.NopCloser(strings.NewReader(form.Encode())), int64(len(form.Encode()))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Origin", "https://"+r.URL.Host)
		r.Header.Set("Sec-Fetch-Site", "same-origin")
		if edit != nil {
			edit(r)
		}
	})
}

// sessionOf returns the cookie of a response, as a browser sends it back.
func sessionOf(resp *http.Response) string {
	for _, c := range resp.Cookies() {
		if c.Name == access.Cookie && c.MaxAge > 0 {
			return c.Name + "=" + c.Value
		}
	}
	return ""
}

func with(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(name, value) }
}

// signIn returns the cookie of a browser that has signed in.
func signIn(t *testing.T, c *http.Client, host string) string {
	t.Helper()
	resp, body := submit(t, c, "https://"+host+domain+pages.SignInPath, url.Values{"token": {"tok"}}, nil)
	cookie := sessionOf(resp)
	if resp.StatusCode != http.StatusSeeOther || cookie == "" {
		t.Fatalf("%s %v\n%s", resp.Status, resp.Header, body)
	}
	return cookie
}

// A person opens the address, gets the page, enters the token or the password, and returns to the requested path.
func TestSignIn(t *testing.T) {
	t.Parallel()
	for _, h2 := range []bool{false, true} {
		f := start(t, nil)
		box := record(t)
		f.guarded("one", box)
		c := f.client(t, h2)
		page, text := get(t, c, "https://one"+domain+"/a?b=%22c", browser)
		if page.StatusCode != 401 || !strings.Contains(text, `name="token"`) || !strings.Contains(text, `name="password"`) ||
			!strings.Contains(text, `value="/a?b=%22c"`) || page.Header.Get("Www-Authenticate") != `Bearer realm="boxgate"` {
			t.Fatalf("h2 %v: %s %v\n%s", h2, page.Status, page.Header, text)
		}
		for _, form := range []url.Values{
			{"token": {"tok"}, "next": {"/a?b=%22c"}}, {"token": {" tok\n"}, "next": {"/a?b=%22c"}}, {"username": {"box"}, "password": {"pass"}, "next": {"/a?b=%22c"}},
		} {
			resp, _ := submit(t, c, "https://one"+domain+pages.SignInPath, form, nil)
			cookie := sessionOf(resp)
			if resp.StatusCode != 303 || resp.Header.Get("Location") != "/a?b=%22c" || cookie == "" || resp.Header.Get("Cache-Control") != "no-store" {
				t.Fatalf("h2 %v, %v: %s %v", h2, form, resp.Status, resp.Header)
			}
			resp, _ = get(t, c, "https://one"+domain+"/a", func(r *http.Request) {
				r.Header.Set("Cookie", "x=y; "+cookie)
				r.Header.Set("Authorization", "Bearer of-the-app")
				r.Header.Set("Referer", "https://one"+domain+"/a?boxgate_token=tok&b")
			})
			got := box.last(t).Header
			if resp.StatusCode != 200 || got.Get("Cookie") != "x=y" || got.Get("Authorization") != "Bearer of-the-app" || got.Get("Referer") != "https://one"+domain+"/a?b" {
				t.Errorf("h2 %v: %s; the box got %v", h2, resp.Status, got)
			}
			f.event(t, func(e audit.Event) bool { return e.Credential == audit.CredentialSession && e.Status == 200 })
		}
		for _, form := range []url.Values{{"x": {""}}, {"token": {"wrong"}}, {"token": {""}}, {"username": {"box"}, "password": {"tok"}}, {"password": {"pass"}}, {"username": {"bo"}, "password": {"x:pass"}}} {
			resp, text := submit(t, c, "https://one"+domain+pages.SignInPath, form, nil)
			if resp.StatusCode != 401 || sessionOf(resp) != "" || !strings.Contains(text, "wrong") {
				t.Errorf("h2 %v, %v: %s", h2, form, resp.Status)
			}
		}
	}
}

// A token in the address is exchanged for a session when a browser navigates there, and removed from the address. It has no
// effect on other requests.
func TestTokenInTheAddress(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	box := record(t)
	f.guarded("one", box)
	f.expose("open", box.Server, Auth{Open: true})
	for _, h2 := range []bool{false, true} {
		c := f.client(t, h2)
		for target, want := range map[string]string{
			"/a?boxgate_token=tok": "/a", "/a?x=1&boxgate_token=tok&y=%2F": "/a?x=1&y=%2F", "/?boxgate_token=tok": "/",
			"//evil.example/?boxgate_token=tok": "/.//evil.example/", `/%5cevil.example?boxgate_token=tok`: "/%5cevil.example",
		} {
			resp, _ := get(t, c, "https://one"+domain+target, browser)
			if resp.StatusCode != 303 || resp.Header.Get("Location") != want || resp.Header.Get("Referrer-Policy") != "no-referrer" || sessionOf(resp) == "" {
				t.Errorf("h2 %v, %s: %s %v", h2, target, resp.Status, resp.Header)
			}
		}
		for name, edit := range map[string]func(*http.Request){
			"a program":      func(r *http.Request) {},
			"a script":       func(r *http.Request) { browser(r); r.Header.Set("Sec-Fetch-Mode", "cors") },
			"a POST":         func(r *http.Request) { browser(r); r.Method = http.MethodPost },
			"a wrong token":  func(r *http.Request) { browser(r); r.URL.RawQuery = "boxgate_token=wrong" },
			"two tokens":     func(r *http.Request) { browser(r); r.URL.RawQuery = "boxgate_token=wrong&boxgate_token=tok" },
			"in other words": func(r *http.Request) { browser(r); r.URL.RawQuery = "token=tok&access_token=tok" },
		} {
			resp, _ := get(t, c, "https://one"+domain+"/?boxgate_token=tok", edit)
			if resp.StatusCode != 401 || sessionOf(resp) != "" {
				t.Errorf("h2 %v, %s: %s", h2, name, resp.Status)
			}
		}
		// A token in the query is not passed on, if the request has a valid credential or the URL needs none.
		for _, host := range []string{"one", "open"} {
			get(t, c, "https://"+host+domain+"/p?a&boxgate_token=tok", with("Authorization", "Bearer tok"))
			if got := box.last(t).RequestURI; got != "/p?a" {
				t.Errorf("the box got %s", got)
			}
		}
	}
	for _, e := range f.recorded() {
		if strings.Contains(e.Path+e.Error+e.Name, "tok") {
			t.Errorf("the token is in the log: %+v", e)
		}
	}
}

func (f *fixture) recorded() []audit.Event {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]audit.Event(nil), f.events...)
}

// A session is valid only for the URL where it began, not after the URL was recreated, and not after its expiry.
func TestSessionOfAnotherURL(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	box := record(t)
	one := f.guarded("one", box)
	two := f.guarded("two", box)
	two.Access = one.Access // even one with the same key
	f.set("two"+domain, two)
	c := f.client(t, true)
	cookie := signIn(t, c, "one")
	reached := box.count()
	refused := func(what, host, cookie string) {
		t.Helper()
		if resp, _ := get(t, c, "https://"+host+domain+"/", with("Cookie", cookie)); resp.StatusCode != 401 || box.count() != reached {
			t.Errorf("%s: %s", what, resp.Status)
		}
	}
	refused("another URL", "two", cookie)
	late := access.New(false, time.Now(), time.Now().Add(-time.Second))
	refused("an old session", "one", access.Cookie+"="+one.Access.Sessions.Value(one.ID, late))
	replaced := one
	replaced.ID, replaced.Access = "one again", &Access{Sessions: access.NewKey(), Ended: &access.Ended{}}
	f.set("one"+domain, replaced)
	refused("the URL created anew", "one", cookie)
}

// Another site cannot make a browser sign in or out, nor use its session to open a WebSocket, to change something, or to load
// a response that it could read, unless the URL lists the site.
func TestAnotherSiteUsesTheSession(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	box := record(t)
	one := f.guarded("one", box)
	listed := *one.Access
	listed.Origins = []string{"https://friend.example"}
	one.Access = &listed
	f.set("one"+domain, one)
	c := f.client(t, false)
	cookie := signIn(t, c, "one")
	for _, path := range []string{pages.SignInPath, pages.SignOutPath} {
		for name, edit := range map[string]func(*http.Request){
			"another site":     with("Sec-Fetch-Site", "cross-site"),
			"a sibling":        with("Sec-Fetch-Site", "same-site"),
			"an older browser": func(r *http.Request) { r.Header.Del("Sec-Fetch-Site"); r.Header.Set("Origin", "https://two"+domain) },
			"a sandboxed page": func(r *http.Request) { r.Header.Del("Sec-Fetch-Site"); r.Header.Set("Origin", "null") },
			"a listed origin": func(r *http.Request) {
				r.Header.Set("Sec-Fetch-Site", "cross-site")
				r.Header.Set("Origin", "https://friend.example")
			},
		} {
			resp, _ := submit(t, c, "https://one"+domain+path, url.Values{"token": {"tok"}}, func(r *http.Request) {
				r.Header.Set("Cookie", cookie)
				edit(r)
			})
			if resp.StatusCode != 403 || len(resp.Cookies()) != 0 {
				t.Errorf("%s of %s: %s %v", path, name, resp.Status, resp.Header)
			}
		}
	}
	for name, r := range map[string]struct {
		method string
		fields []string
		want   int
	}{
		"a form":                     {"POST", []string{"Sec-Fetch-Site", "same-site"}, 403},
		"a form, older browser":      {"POST", []string{"Origin", "https://two" + domain}, 403},
		"a script of a sibling":      {"GET", []string{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "no-cors", "Sec-Fetch-Dest", "script"}, 403},
		"a frame of a sibling":       {"GET", []string{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe"}, 403},
		"a link on another site":     {"GET", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}, 200},
		"a fetch of a listed origin": {"GET", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "cors", "Origin", "https://friend.example"}, 200},
		"a POST of a listed origin":  {"POST", []string{"Sec-Fetch-Site", "cross-site", "Origin", "https://friend.example"}, 200},
		"of one listed alike":        {"POST", []string{"Sec-Fetch-Site", "cross-site", "Origin", "https://friend.example.net"}, 403},
		"of two origins":             {"POST", []string{"Sec-Fetch-Site", "cross-site", "Origin", "https://friend.example", "Origin", "https://evil.example"}, 403},
		"its own page":               {"POST", []string{"Sec-Fetch-Site", "same-origin", "Origin", "https://one" + domain}, 200},
		"its own script":             {"GET", []string{"Sec-Fetch-Site", "same-origin", "Sec-Fetch-Mode", "no-cors", "Sec-Fetch-Dest", "script"}, 200},
	} {
		resp, _ := get(t, c, "https://one"+domain+"/", func(req *http.Request) {
			req.Method = r.method
			req.Header.Set("Cookie", cookie)
			for i := 0; i < len(r.fields); i += 2 {
				req.Header.Add(r.fields[i], r.fields[i+1])
			}
		})
		if resp.StatusCode != r.want {
			t.Errorf("%s: %s, want %d", name, resp.Status, r.want)
		}
	}
	f.event(t, func(e audit.Event) bool {
		return e.Reason == name.ReasonURLOrigin && e.Credential == audit.CredentialSession
	})
}

// A WebSocket of a session ends when the session is ended, the URL expires, or the URL goes. Others stay open.
func TestSignOutCutsWhatIsOpen(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	target := f.expose("one", echoServer(t), Auth{Bearer: digest(BearerDigest("tok"))})
	target.Access = &Access{Sessions: access.NewKey(), Ended: &access.Ended{}}
	f.set("one"+domain, target)
	c := f.client(t, true)
	mine, theirs := signIn(t, c, "one"), signIn(t, c, "one")
	cut, _, err := dialWith(t, f, "one", http.Header{"Cookie": {mine}, "Origin": {"https://one" + domain}})
	if err != nil {
		t.Fatal(err)
	}
	stays, _, err := dialWith(t, f, "one", http.Header{"Cookie": {theirs}, "Origin": {"https://one" + domain}})
	if err != nil {
		t.Fatal(err)
	}
	if _, resp, err := dialWith(t, f, "one", http.Header{"Cookie": {mine}, "Origin": {"https://two" + domain}}); err == nil || resp.StatusCode != 403 {
		t.Error("a page of another URL opens a WebSocket with the session")
	}
	resp, text := submit(t, c, "https://one"+domain+pages.SignOutPath, nil, with("Cookie", mine))
	if resp.StatusCode != 200 || !strings.Contains(text, "signed out") || !strings.Contains(resp.Header.Get("Set-Cookie"), "Max-Age=0") {
		t.Fatalf("%s %v\n%s", resp.Status, resp.Header, text)
	}
	if !ends(t, cut) {
		t.Error("the socket outlived its session")
	}
	if err := echo(t.Context(), stays, "still here"); err != nil {
		t.Errorf("another session was disturbed: %v", err)
	}
	if resp, _ := get(t, c, "https://one"+domain+"/", with("Cookie", mine)); resp.StatusCode != 401 {
		t.Errorf("the cookie still opens the URL: %s", resp.Status)
	}
}

// ends reports whether the gateway cuts an idle socket.
func ends(t *testing.T, c *websocket.Conn) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, _, err := c.Read(ctx)
	return err != nil && ctx.Err() == nil
}

// A URL lets no visitor in after it has expired, and its open requests end then.
func TestExpiry(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	server := echoServer(t)
	var socket *websocket.Conn
	var soon time.Time
	for wait := time.Second; socket == nil; wait *= 2 { // until the URL lasts long enough to open it
		soon = time.Now().Add(wait)
		for host, auth := range map[string]Auth{"bearer": {Bearer: digest(BearerDigest("tok"))}, "open": {Open: true}} {
			target := f.expose(host, server, auth)
			target.Access = &Access{Sessions: access.NewKey(), Ended: &access.Ended{}, Expires: soon}
			f.set(host+domain, target)
		}
		socket, _, _ = dialWebSocket(t, f, "bearer", "tok")
	}
	if !ends(t, socket) || time.Now().Before(soon) {
		t.Errorf("the socket does not end when its time does: %v before", time.Until(soon))
	}
	c := f.client(t, false)
	for host, want := range map[string]int{"bearer": 401, "open": 404} {
		if resp, _ := get(t, c, "https://"+host+domain+"/", with("Authorization", "Bearer tok")); resp.StatusCode != want {
			t.Errorf("%s: %s, want %d", host, resp.Status, want)
		}
	}
	if resp, _ := submit(t, c, "https://bearer"+domain+pages.SignInPath, url.Values{"token": {"tok"}}, nil); resp.StatusCode != 401 || sessionOf(resp) != "" {
		t.Errorf("signing in after the time is over: %s", resp.Status)
	}
}

// Guesses in the form and in the address count like guesses in Authorization.
func TestGuessesAtTheForm(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *Config) {
		c.FailedCredentials = 3
	})
	box := record(t)
	f.guarded("one", box)
	c := f.client(t, true)
	form := func() int {
		resp, _ := submit(t, c, "https://one"+domain+pages.SignInPath, url.Values{"token": {"wrong"}}, nil)
		return resp.StatusCode
	}
	address := func() int {
		resp, _ := get(t, c, "https://one"+domain+"/?boxgate_token=wrong", browser)
		return resp.StatusCode
	}
	if got := []int{form(), address(), form()}; got[0] != 401 || got[1] != 401 || got[2] != 401 {
		t.Errorf("%v", got)
	}
	resp, text := submit(t, c, "https://one"+domain+pages.SignInPath, url.Values{"token": {"tok"}}, nil)
	if resp.StatusCode != 429 || resp.Header.Get("Retry-After") == "" || !strings.Contains(text, "<h1>") {
		t.Errorf("after three guesses: %s\n%s", resp.Status, text)
	}
}

// The application does not get the gateway's own paths, and they have no effect without a sign-in.
func TestReservedPaths(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	box := record(t)
	f.guarded("one", box)
	f.expose("open", box.Server, Auth{Open: true})
	c := f.client(t, false)
	for path, want := range map[string]int{
		pages.SignInPath + "?next=/x": 401, pages.SignOutPath: 200, pages.Reserved: 404, pages.Reserved + "other": 404,
	} {
		for host, want := range map[string]int{"one": want, "open": 404} {
			resp, _ := get(t, c, "https://"+host+domain+path, func(r *http.Request) {
				browser(r)
				r.Header.Set("Authorization", "Bearer tok")
			})
			if resp.StatusCode != want || box.count() > 0 {
				t.Errorf("%s at %s: %s", path, host, resp.Status)
			}
		}
	}
	big, _ := submit(t, c, "https://one"+domain+pages.SignInPath, url.Values{"token": {strings.Repeat("a", 1<<20)}}, nil)
	if big.StatusCode != 400 {
		t.Errorf("a form of a mebibyte: %s", big.Status)
	}
}

// A signed URL permits its methods at its paths until its expiry, at the URL for which it was signed. The application does not
// see the signature.
func TestSignedURLs(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *Config) { c.FailedCredentials = 3 })
	box := record(t)
	one, two := f.guarded("one", box), f.guarded("two", box)
	links := func(target Target, host string) access.Key {
		changed := *target.Access
		changed.Links = access.Key{1}
		target.Access = &changed
		f.set(host+domain, target)
		return changed.Links
	}
	key := links(one, "one")
	links(two, "two")
	sign := func(id string, lasts time.Duration) string {
		return "boxgate_link=" + link.Sign(key, id, link.Link{Expires: time.Now().Add(lasts), Prefix: "/files", Methods: []string{"GET"}})
	}
	good := sign(one.ID, time.Hour)
	c := f.client(t, true)
	for _, r := range []struct {
		name, method, target string
		want                 int
	}{
		{"its path", "GET", "/files/a?x=y&" + good, 200},
		{"another method", "POST", "/files/a?" + good, 401},
		{"another path", "GET", "/file?" + good, 401},
		{"a path that may be another", "GET", "/files/%2e%2e/x?" + good, 401},
		{"after its time", "GET", "/files?" + sign(one.ID, -time.Second), 401},
		{"twice", "GET", "/files?" + good + "&" + good, 401},
	} {
		before := box.count()
		resp, _ := get(t, c, "https://one"+domain+r.target, func(req *http.Request) {
			req.Method = r.method
			req.Header.Set("Authorization", "Bearer of-the-app")
			req.Header.Set("Referer", "https://one"+domain+r.target)
			if r.want != 200 {
				req.Header.Del("Authorization") // it would count as a guess
			}
		})
		if resp.StatusCode != r.want || (box.count() > before) != (r.want == 200) {
			t.Errorf("%s: %s", r.name, resp.Status)
		}
		if got := box.last(t); got.RequestURI != "/files/a?x=y" || strings.Contains(dump(got), "boxgate_link") || got.Header.Get("Authorization") != "Bearer of-the-app" {
			t.Errorf("the box got %s\n%s", got.RequestURI, dump(got))
		}
	}
	if resp, _ := get(t, c, "https://two"+domain+"/files?"+good, nil); resp.StatusCode != 401 {
		t.Errorf("at another URL: %s", resp.Status)
	}
	f.event(t, func(e audit.Event) bool { return e.Credential == audit.CredentialLink && e.Path == "/files/a" })
	for range 5 { // does not count as a guess, and bars no visitor
		if resp, _ := get(t, c, "https://one"+domain+"/files?boxgate_link=forged", nil); resp.StatusCode != 401 {
			t.Errorf("a forged signature: %s", resp.Status)
		}
	}
	for what, want := range map[string]string{
		"a forged signature": "the signature of its link is wrong, or of an earlier creation of the URL",
		"an expired link":    "its signed link has expired",
		"another method":     "its signed link does not permit this request",
	} {
		e := f.event(t, func(e audit.Event) bool { return e.Error == want })
		if e.Verdict != policy.Deny || e.Reason != name.ReasonURLAuth || !e.Peer.IsValid() {
			t.Errorf("%s in the log: %+v", what, e)
		}
	}
	if resp, _ := get(t, c, "https://one"+domain+"/plain", nil); resp.StatusCode != 401 || f.event(t, func(e audit.Event) bool { return e.Path == "/plain" }).Error != "" {
		t.Errorf("without a link: %s", resp.Status)
	}
}

func TestCredentials(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	box := record(t)
	bearer, basic := digest(BearerDigest("tok-1")), digest(BasicDigest("user", "p:w"))
	f.expose("none", box.Server, Auth{Open: true})
	f.expose("bearer", box.Server, Auth{Bearer: bearer})
	f.expose("basic", box.Server, Auth{Basic: basic})
	f.expose("both", box.Server, Auth{Bearer: bearer, Basic: basic})
	f.expose("openish", box.Server, Auth{Open: true, Bearer: bearer}) // with a credential, Open has no effect
	f.expose("zero", box.Server, Auth{})
	withBasic := func(user, password string) func(*http.Request) {
		return func(r *http.Request) { r.SetBasicAuth(user, password) }
	}
	with := func(values ...string) func(*http.Request) {
		return func(r *http.Request) { r.Header["Authorization"] = values }
	}
	tests := []struct {
		name, host, query string
		edit              func(*http.Request)
		status            int
	}{
		{"open", "none", "", nil, 200},
		{"right bearer", "bearer", "", with("Bearer tok-1"), 200},
		{"scheme in lower case", "bearer", "", with("bearer tok-1"), 200},
		{"no bearer", "bearer", "", nil, 401},
		{"empty bearer", "bearer", "", with("Bearer "), 401},
		{"wrong bearer", "bearer", "", with("Bearer tok-2"), 401},
		{"longer bearer", "bearer", "", with("Bearer tok-11"), 401},
		{"token without scheme", "bearer", "", with("tok-1"), 401},
		{"right and wrong", "bearer", "", with("Bearer tok-2", "Bearer tok-1"), 401},
		{"token in the query", "bearer", "?access_token=tok-1&token=tok-1", nil, 401},
		{"basic where bearer is asked", "bearer", "", withBasic("user", "p:w"), 401},
		{"the token as password", "bearer", "", withBasic("", "tok-1"), 401},
		{"right basic", "basic", "", withBasic("user", "p:w"), 200},
		{"wrong password", "basic", "", withBasic("user", "p"), 401},
		{"wrong user", "basic", "", withBasic("usr", "p:w"), 401},
		{"broken basic", "basic", "", with("Basic !!!"), 401},
		{"bearer where basic is asked", "basic", "", with("Bearer tok-1"), 401},
		{"both, by bearer", "both", "", with("Bearer tok-1"), 200},
		{"both, by basic", "both", "", withBasic("user", "p:w"), 200},
		{"both, neither", "both", "", nil, 401},
		{"open with a bearer", "openish", "", nil, 401},
		{"zero value", "zero", "", nil, 401},
		{"zero value with something", "zero", "", with("Bearer "), 401},
	}
	client := f.client(t, false)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before, woken := box.count(), f.woken.Load()
			resp, body := get(t, client, "https://"+tt.host+domain+"/"+tt.query, tt.edit)
			if resp.StatusCode != tt.status {
				t.Fatalf("status %d, want %d: %s", resp.StatusCode, tt.status, body)
			}
			if tt.status == 200 {
				return
			}
			if box.count() != before || f.woken.Load() != woken {
				t.Error("an unauthenticated request reached or woke the box")
			}
			if resp.Header.Get("Www-Authenticate") == "" || resp.Header.Get("Content-Type") != "application/problem+json" {
				t.Errorf("headers of the refusal: %v", resp.Header)
			}
		})
	}
	e := f.event(t, reason(name.ReasonURLAuth))
	if e.Verdict != policy.Deny || e.Status != 401 || e.Action != audit.ActionRefuse || e.Stage != policy.StageURL || e.Box != "box1" {
		t.Errorf("event of a refusal: %+v", e)
	}
}

// A credential is valid for its own URL only, not for another port of the box or another box.
func TestCredentialOfAnotherURL(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	box := record(t)
	for _, name := range []string{"one-80", "one-81", "two-80"} {
		f.expose(name, box.Server, Auth{Bearer: digest(BearerDigest("token of " + name)), Basic: digest(BasicDigest("box", name))})
	}
	client := f.client(t, false)
	for _, other := range []string{"one-81", "two-80"} {
		for _, edit := range []func(*http.Request){
			func(r *http.Request) { r.Header.Set("Authorization", "Bearer token of "+other) },
			func(r *http.Request) { r.SetBasicAuth("box", other) },
		} {
			if resp, _ := get(t, client, "https://one-80"+domain+"/", edit); resp.StatusCode != 401 || box.count() != 0 {
				t.Errorf("the credential of %s opens one-80: %s", other, resp.Status)
			}
		}
	}
}

func TestCredentialsNeverReachTheBox(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	box := record(t)
	f.expose("bearer", box.Server, Auth{Bearer: digest(BearerDigest("tok-1"))})
	f.expose("none", box.Server, Auth{Open: true})
	edit := func(r *http.Request) {
		r.Header.Set("Authorization", "Bearer tok-1")
		r.Header.Set("X-Box-Api-Key", "admin-key")
		r.Header["X_Box_Api_Key"] = []string{"admin-key"}
		r.Header.Set("Proxy-Authorization", "Basic proxy-key")
		r.Header.Add("Cookie", "a=1; __Host-boxgate-session=cookie-key; b=2")
	}
	for _, h2 := range []bool{false, true} {
		client := f.client(t, h2)
		if resp, _ := get(t, client, "https://bearer"+domain+"/", edit); resp.StatusCode != 200 {
			t.Fatal(resp.Status)
		}
		got := box.last(t)
		for _, secret := range []string{"tok-1", "admin-key", "proxy-key", "cookie-key", "Authorization"} {
			if strings.Contains(dump(got), secret) {
				t.Errorf("%q reached the box:\n%s", secret, dump(got))
			}
		}
		if c := got.Header.Get("Cookie"); c != "a=1; b=2" {
			t.Errorf("the box's own cookies arrive as %q", c)
		}
		// If the gateway needs no credential, Authorization passes to the application.
		if resp, _ := get(t, client, "https://none"+domain+"/", edit); resp.StatusCode != 200 {
			t.Fatal(resp.Status)
		}
		if a := box.last(t).Header.Get("Authorization"); a != "Bearer tok-1" {
			t.Errorf("the application's Authorization arrives as %q", a)
		}
	}
}

func TestOddHosts(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	box := record(t)
	f.expose("one", box.Server, Auth{Open: true})
	tests := []struct {
		name, request string
		status        int
	}{
		{"known", "GET / HTTP/1.1\r\nHost: one.preview.test\r\n\r\n", 200},
		{"upper case, port and dot", "GET / HTTP/1.1\r\nHost: ONE.Preview.Test.:8443\r\n\r\n", 200},
		{"unknown", "GET / HTTP/1.1\r\nHost: two.preview.test\r\n\r\n", 404},
		{"the bare domain", "GET / HTTP/1.1\r\nHost: preview.test\r\n\r\n", 404},
		{"longer", "GET / HTTP/1.1\r\nHost: one.preview.test.example.com\r\n\r\n", 404},
		{"IPv4", "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 421},
		{"IPv4 and port", "GET / HTTP/1.1\r\nHost: 127.0.0.1:80\r\n\r\n", 421},
		{"IPv6", "GET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", 421},
		{"empty", "GET / HTTP/1.1\r\nHost:\r\n\r\n", 400},
		{"absolute form, other authority", "GET http://one.preview.test/ HTTP/1.1\r\nHost: two.preview.test\r\n\r\n", 421},
		{"absolute form", "GET http://one.preview.test/ HTTP/1.1\r\nHost: one.preview.test\r\n\r\n", 421},
		{"CONNECT", "CONNECT one.preview.test:80 HTTP/1.1\r\nHost: one.preview.test:80\r\n\r\n", 421},
		{"asterisk for an unknown URL", "OPTIONS * HTTP/1.1\r\nHost: two.preview.test\r\n\r\n", 404},
		{"asterisk for an address", "OPTIONS * HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 421},
		{"two hosts", "GET / HTTP/1.1\r\nHost: one.preview.test\r\nHost: two.preview.test\r\n\r\n", 400},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := box.count()
			resp := f.raw(t, tt.request)
			if resp.StatusCode != tt.status {
				t.Fatalf("status %d, want %d", resp.StatusCode, tt.status)
			}
			if tt.status != 200 && box.count() != before {
				t.Error("the request reached a box")
			}
		})
	}
	if e := f.event(t, reason(name.ReasonURLUnknown)); e.Verdict != policy.Deny || e.Name == "" {
		t.Errorf("event of an unknown URL: %+v", e)
	}
}

// TestOptionsOfAServer: OPTIONS * (RFC 9110, 9.3.7) passes to the application, over either protocol, with the credential of the URL.
// Plain HTTP does not redirect it, as it has no URL.
func TestOptionsOfAServer(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	lines := make(chan string, 10)
	f.script(t, "one", func(c net.Conn, in *bufio.Reader) {
		for {
			r, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			lines <- r.Method + " " + r.RequestURI
			_, _ = io.WriteString(c, "HTTP/1.1 204 No Content\r\nAllow: GET\r\n\r\n")
		}
	})
	f.mu.Lock()
	closed := f.urls["one"+domain]
	f.mu.Unlock()
	closed.Auth = Auth{Bearer: digest(BearerDigest("tok"))}
	f.set("closed"+domain, closed)
	const request = "OPTIONS * HTTP/1.1\r\nHost: %s.preview.test\r\n%s\r\n"
	if resp := f.raw(t, fmt.Sprintf(request, "one", "")); resp.StatusCode != 204 || resp.Header.Get("Allow") != "GET" || <-lines != "OPTIONS *" {
		t.Errorf("HTTP/1.1: %v", resp)
	}
	if resp := f.raw(t, fmt.Sprintf(request, "closed", "Authorization: Bearer tok\r\n")); resp.StatusCode != 204 || <-lines != "OPTIONS *" {
		t.Errorf("with a credential: %v", resp)
	}
	if resp := f.raw(t, fmt.Sprintf(request, "closed", "")); resp.StatusCode != 401 {
		t.Errorf("without a credential: %v", resp)
	}
	v := f.frames(t, "one")
	answer := v.answer(v.ask(true, to("OPTIONS", "one", "*")...))
	if got := answer.status(); got != "204" || <-lines != "OPTIONS *" {
		t.Errorf("HTTP/2: %s", got)
	}
	f.plain = f.listen(t, func(ln net.Listener) error { return f.ServeRedirect(ln, 443, nil) })
	if resp := f.raw(t, fmt.Sprintf(request, "one", "")); resp.StatusCode != 421 || len(lines) != 0 {
		t.Errorf("redirected: %v", resp)
	}
}

// A connection made for one URL is not used for another, over either protocol.
func TestHostIsNotTheServerName(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	box := record(t)
	f.expose("one", box.Server, Auth{Open: true})
	f.expose("two", box.Server, Auth{Open: true})
	for _, h2 := range []bool{false, true} {
		resp, _ := get(t, f.client(t, h2), "https://one"+domain+"/", func(r *http.Request) { r.Host = "two" + domain })
		if resp.StatusCode != http.StatusMisdirectedRequest || box.count() != 0 {
			t.Errorf("h2 %v: status %d, %d requests in the box", h2, resp.StatusCode, box.count())
		}
	}
}

func TestBoxDoesNotAnswer(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	box := record(t)
	f.expose("down", box.Server, Auth{Open: true})
	box.Close()
	resp, body := get(t, f.client(t, false), "https://down"+domain+"/", nil)
	if resp.StatusCode != 502 || resp.Header.Get("Content-Type") != "application/problem+json" {
		t.Fatalf("%s %v", resp.Status, resp.Header)
	}
	if addr := box.Listener.Addr().String(); strings.Contains(body, addr) || strings.Contains(body, "refused") {
		t.Errorf("the answer tells about the inside: %s", body)
	}
	e := f.event(t, reason(name.ReasonURLUnavailable))
	if e.Verdict != policy.Deny || e.Status != 502 || e.Error == "" || e.Addr != netip.MustParseAddr("127.0.0.1") {
		t.Errorf("event: %+v", e)
	}
}
