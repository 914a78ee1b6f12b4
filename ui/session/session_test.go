package session

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/api/access"
)

// fixture is a store behind its own protection, with a page that greets the session.
type fixture struct {
	*Store
	handler http.Handler

	mu   sync.Mutex
	keys map[string]api.Caller
	now  time.Time
	peer string
	made []string // lines of the audit trail
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{now: time.Unix(1_800_000_000, 0), keys: map[string]api.Caller{
		"operator-key": {Key: api.OperatorKey, Name: api.OperatorKey, Role: api.RoleAdmin}, "reader-key": {Key: "key_1", Name: "reader", Role: api.RoleReader},
	}}
	f.Store = New(Options{
		Find: func(key string) (api.Caller, bool) {
			f.mu.Lock()
			defer f.mu.Unlock()
			c, ok := f.keys[key]
			return c, ok
		},
		Still: func(digest [sha256.Size]byte) (api.Caller, bool) {
			f.mu.Lock()
			defer f.mu.Unlock()
			for key, c := range f.keys {
				if sha256.Sum256([]byte(key)) == digest {
					return c, true
				}
			}
			return api.Caller{}, false
		},
		Hosts: access.NewHosts([]string{"gate.example.org"}),
		Peer: func(*http.Request) string {
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.peer
		},
		Now: func() time.Time {
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.now
		},
		Record: func(_ *http.Request, route string, c api.Caller, status int) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.made = append(f.made, fmt.Sprintf("%s %s %d", c.Name, route, status))
			return nil
		},
	})
	mux := http.NewServeMux()
	mux.HandleFunc("/ui/", func(w http.ResponseWriter, r *http.Request) {
		who, ok := f.Caller(r)
		if !ok {
			f.ToSignIn(w, r)
			return
		}
		fmt.Fprintf(w, "%s %s %s", r.Method, who.Person, who.Token)
	})
	for _, p := range []string{SignInPath, SignOutPath} {
		mux.Handle(p, f.Handler())
	}
	f.handler = f.Protect(mux)
	return f
}

// change changes what the functions of the store see.
func (f *fixture) change(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
}

// browser keeps cookies by their name, as a browser at one host.
type browser struct {
	f       *fixture
	cookies map[string]string
}

func (f *fixture) browser() *browser { return &browser{f, map[string]string{}} }

// send sends a request; edits change it, as by an attacker.
func (b *browser) send(method, target string, form url.Values, edits ...func(*http.Request)) *http.Response {
	r := httptest.NewRequest(method, "http://localhost:8600/", strings.NewReader(form.Encode()))
	at, err := url.Parse(target)
	if err != nil {
		panic(err)
	}
	r.URL, r.RequestURI = at, target
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for name, value := range b.cookies {
		r.AddCookie(&http.Cookie{Name: name, Value: value})
	}
	for _, edit := range edits {
		edit(r)
	}
	w := httptest.NewRecorder()
	b.f.handler.ServeHTTP(w, r)
	resp := w.Result()
	for _, c := range resp.Cookies() {
		if c.MaxAge < 0 {
			delete(b.cookies, c.Name)
		} else {
			b.cookies[c.Name] = c.Value
		}
	}
	return resp
}

var tokenField = regexp.MustCompile(`name="token" value="([^"]*)"`)

func text(resp *http.Response) string {
	var b strings.Builder
	_ = resp.Write(&b)
	return b.String()
}

// signIn signs in with a key and returns the answer.
func (b *browser) signIn(key, next string) *http.Response {
	page := text(b.send("GET", SignInPath+"?next="+url.QueryEscape(next), nil))
	token := tokenField.FindStringSubmatch(page)
	if token == nil {
		return b.send("GET", SignInPath, nil)
	}
	return b.send("POST", SignInPath, url.Values{"key": {key}, "next": {next}, "token": {token[1]}})
}

// greeting is the page of a session, or where its browser is sent.
func (b *browser) greeting(edits ...func(*http.Request)) string {
	resp := b.send("GET", "/ui/boxes?x=1", nil, edits...)
	if to := resp.Header.Get("Location"); to != "" {
		return to
	}
	body := text(resp)
	return body[strings.LastIndex(body, "\r\n")+2:]
}

// TestKeyOfAFleet: a session that began with a key of the fleet has that key for calls to other hosts, from a cookie that is good for this
// session only. The gateway does not keep it, and sessions of other keys have none.
func TestKeyOfAFleet(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.keys["key-of-the-fleet"] = api.Caller{Key: "key_2", Name: "ops", Role: api.RoleAdmin, Fleet: true}
	shown := func(b *browser) string {
		r := httptest.NewRequest("GET", "http://localhost:8600/ui/", nil)
		for name, value := range b.cookies {
			r.AddCookie(&http.Cookie{Name: name, Value: value})
		}
		in, ok := f.With(r)
		if !ok {
			return "no session"
		}
		in.Header.Set(api.KeyHeader, "of-the-request")
		key, _ := access.ShownKey(access.WithShownKey(in).Context())
		return key.Get(api.KeyHeader)
	}
	local := f.browser()
	local.signIn("operator-key", "")
	if got := shown(local); got != "" || local.cookies[KeyCookie] != "" {
		t.Errorf("a key of the host alone: %q", got)
	}
	b, other := f.browser(), f.browser()
	resp := b.signIn("key-of-the-fleet", "")
	other.signIn("key-of-the-fleet", "")
	if got := shown(b); got != "key-of-the-fleet" {
		t.Fatalf("%q", got)
	}
	for _, set := range resp.Header.Values("Set-Cookie") {
		if strings.HasPrefix(set, KeyCookie+"=") && !strings.HasSuffix(set, "; Path=/; Max-Age=43200; HttpOnly; Secure; SameSite=Strict") {
			t.Errorf("%s", set)
		}
	}
	if sealed, err := base64.RawURLEncoding.DecodeString(b.cookies[KeyCookie]); err != nil || strings.Contains(string(sealed), "key-of") || strings.Contains(fmt.Sprintf("%+v", f.Store), "key-of-the-fleet") {
		t.Errorf("the key is in the clear: %v", err)
	}
	b.cookies[KeyCookie], other.cookies[KeyCookie] = other.cookies[KeyCookie], b.cookies[KeyCookie]
	if got := shown(b); got != "" {
		t.Errorf("the cookie of another session: %q", got)
	}
	for _, forged := range []string{"", "AAAA", strings.Repeat("A", 60), strings.Repeat("A", 4<<10)} {
		if b.cookies[KeyCookie] = forged; shown(b) != "" {
			t.Errorf("%q is a key", forged)
		}
	}
	again := f.browser()
	again.cookies[KeyCookie] = "earlier"
	again.signIn("operator-key", "")
	if again.cookies[KeyCookie] != "" {
		t.Error("a sign-in with another key left the cookie")
	}
	other.send("POST", SignOutPath, url.Values{TokenField: {f.token(other.cookies[Cookie])}})
	if other.cookies[KeyCookie] != "" || shown(other) != "no session" {
		t.Error("the cookie is left after signing out")
	}
	f.change(func() {
		f.keys["key-of-the-fleet"] = api.Caller{Key: "key_2", Name: "ops", Role: api.RoleReader, Fleet: true}
	})
	if got := shown(b); got != "no session" {
		t.Errorf("after the key changed: %q", got)
	}
}

// A person signs in with a key, sees pages as its caller, and signs out. The cookie is that host's alone, and only its hash is kept.
func TestSignIn(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.browser()
	if got := b.greeting(); got != SignInPath+"?next=%2Fui%2Fboxes%3Fx%3D1" {
		t.Errorf("without a session: %s", got)
	}
	if resp := b.signIn("wrong", ""); resp.StatusCode != http.StatusUnauthorized || !strings.Contains(text(resp), "not a valid API key") || b.cookies[Cookie] != "" {
		t.Errorf("a wrong key: %s", resp.Status)
	}
	resp := b.signIn(" reader-key\n", "/ui/boxes?x=1")
	if resp.StatusCode != http.StatusSeeOther || resp.Header.Get("Location") != "/ui/boxes?x=1" {
		t.Fatalf("%s", text(resp))
	}
	if set := resp.Header.Get("Set-Cookie"); !strings.HasPrefix(set, "__Host-boxgate=") || !strings.HasSuffix(set, "; Path=/; Max-Age=43200; HttpOnly; Secure; SameSite=Strict") {
		t.Errorf("%s", set)
	}
	greeting := b.greeting()
	if !strings.HasPrefix(greeting, "GET reader ") {
		t.Errorf("%s", greeting)
	}
	for hash := range f.sessions {
		if hash != sha256.Sum256([]byte(b.cookies[Cookie])) || strings.Contains(fmt.Sprintf("%+v", f.sessions[hash]), "reader-key") {
			t.Error("the cookie or the key is kept")
		}
	}
	token := url.Values{TokenField: {strings.Fields(greeting)[2]}}
	cookie := b.cookies[Cookie]
	if resp := b.send("POST", SignOutPath, token); resp.StatusCode != http.StatusSeeOther || b.cookies[Cookie] != "" {
		t.Errorf("signing out: %s", text(resp))
	}
	b.cookies[Cookie] = cookie
	if got := b.greeting(); !strings.HasPrefix(got, SignInPath) {
		t.Errorf("the cookie works after signing out: %s", got)
	}
	want := []string{" POST /ui/sign-in 401", "reader POST /ui/sign-in 303", "reader POST /ui/sign-out 303"}
	if fmt.Sprint(f.made) != fmt.Sprint(want) {
		t.Errorf("recorded: %q", f.made)
	}
}

// A session ends with its key, when the key is another's, in twelve hours, and does not work for another user of this host.
func TestSessionEnds(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*fixture){
		"its key is deleted":     func(f *fixture) { delete(f.keys, "reader-key") },
		"its key has a new role": func(f *fixture) { f.keys["reader-key"] = api.Caller{Key: "key_1", Name: "reader", Role: api.RoleAdmin} },
		"its time is over":       func(f *fixture) { f.now = f.now.Add(Lifetime) },
	} {
		f := newFixture(t)
		b := f.browser()
		b.signIn("reader-key", "")
		if got := b.greeting(); !strings.HasPrefix(got, "GET reader") {
			t.Fatal(got)
		}
		r := httptest.NewRequest("GET", "/ui/", nil)
		r.AddCookie(&http.Cookie{Name: Cookie, Value: b.cookies[Cookie]})
		done := f.Done(r)
		inside, ok := f.With(r)
		guard := access.New(f.options.Find, nil, nil)
		if caller, err := guard.Admit(httptest.NewRecorder(), inside); !ok || err != nil || caller.Name != "reader" {
			t.Errorf("%s: before: %v, %v", name, caller, err)
		}
		f.change(func() { end(f) })
		select {
		case <-done:
		case <-time.After(time.Minute):
			t.Errorf("%s: the stream goes on", name)
		}
		if _, err := guard.Admit(httptest.NewRecorder(), inside); err == nil {
			t.Errorf("%s: the API admits its requests", name)
		}
		if got := b.greeting(); !strings.HasPrefix(got, SignInPath) {
			t.Errorf("%s: %s", name, got)
		}
		if len(f.sessions) != 0 {
			t.Errorf("%s: it is kept", name)
		}
	}
	f := newFixture(t)
	f.peer = "user 1000"
	b := f.browser()
	b.signIn("reader-key", "")
	f.change(func() { f.peer = "user 1001" })
	if got := b.greeting(); !strings.HasPrefix(got, SignInPath) {
		t.Errorf("another user of the host has the cookie: %s", got)
	}
	f.change(func() { f.peer = "user 1000" })
	if got := b.greeting(); !strings.HasPrefix(got, "GET reader") {
		t.Errorf("the user after another has tried: %s", got)
	}
}

// Sessions are bounded, by caller and in all. One caller with many loses its own, and the operator's share stays.
func TestSessionsAreBounded(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	caller := func(n int, role api.Role) api.Caller { return api.Caller{Key: fmt.Sprint("key_", n), Role: role} }
	begin := func(c api.Caller) bool {
		_, ok := f.begin(&entry{caller: c, expires: f.now.Add(Lifetime)})
		return ok
	}
	quiet := caller(0, api.RoleReader)
	begin(quiet)
	for n := range 4 * most {
		if !begin(caller(1+n%200, api.RoleReader)) {
			t.Fatalf("%d is refused", n)
		}
	}
	count := func(key string) (n int) {
		for _, e := range f.sessions {
			if e.caller.Key == key {
				n++
			}
		}
		return n
	}
	if len(f.sessions) != most-operators || count("key_0") != 1 {
		t.Errorf("%d sessions, %d of a quiet caller", len(f.sessions), count("key_0"))
	}
	for n := range 2 * most {
		begin(caller(1000+n, api.RoleReader)) // one each
	}
	if begin(caller(9999, api.RoleReader)) || len(f.sessions) != most-operators || count("key_0") != 1 {
		t.Errorf("%d sessions, %d of a quiet caller", len(f.sessions), count("key_0"))
	}
	for range 2 * operators {
		if !begin(caller(1, api.RoleAdmin)) {
			t.Fatal("the operator is refused")
		}
	}
	if got := count("key_1"); got < mostOfCaller || got > mostOfCaller+1 {
		t.Errorf("the operator has %d sessions", got)
	}
	for n := range operators {
		if !begin(caller(5000+n/8, api.RoleAdmin)) {
			t.Fatal("an operator is refused")
		}
	}
	if len(f.sessions) > most {
		t.Errorf("%d sessions", len(f.sessions))
	}
	f.change(func() { f.now = f.now.Add(Lifetime) })
	if begin(quiet); len(f.sessions) != 1 {
		t.Errorf("%d sessions after all have expired", len(f.sessions))
	}
}
