package ingress

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"boxgate/audit"
	"boxgate/ingress/access"
	"boxgate/ingress/account"
	"boxgate/ingress/pages"
	"boxgate/internal/openid"
	"boxgate/policy"
	"boxgate/policy/name"
)

// startProvider builds and starts a provider. Each user's password is the user's name. It returns the issuer and a function
// that stops the provider.
func startProvider(t *testing.T) (issuer string, stop func()) {
	t.Helper()
	dir := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(dir, "provider"), ".")
	build.Dir, build.Env = "account/provider", append(os.Environ(), "GOFLAGS=", "GOWORK=off", "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	users := map[string]map[string]any{}
	for _, name := range []string{"friend", "stranger", "unverified"} {
		users[name] = map[string]any{"ID": name, "Username": name, "Password": name, "Email": name + "@Friends.example", "EmailVerified": name != "unverified"}
	}
	users["stranger"]["Email"] = "stranger@example.org"
	data, err := json.Marshal(users)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "users.json"), data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(dir, "provider"), filepath.Join(dir, "users.json"), "boxgate", "client-secret", accountOrigin+pages.ReturnPath)
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
	stop = func() {
		_ = in.Close()
		_ = cmd.Wait()
	}
	t.Cleanup(stop)
	issuer, err = bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(issuer), stop
}

const accountOrigin = "https://auth" + domain

// withAccounts makes an ingress with a provider, and two URLs that admit accounts of friends.example.
func withAccounts(t *testing.T, issuer string, box *recorder) *fixture {
	t.Helper()
	f := start(t, func(c *Config) {
		c.Accounts = &Accounts{Origin: accountOrigin, Desk: account.NewDesk(openid.Config{
			Issuer: issuer, ClientID: "boxgate", Scopes: []string{"email"}, Groups: "groups", Redirect: accountOrigin + pages.ReturnPath,
			Secret: func(context.Context) (name.Secret, error) { return name.NewSecret("client-secret"), nil },
		}, 0, "")}
	})
	for _, host := range []string{"one", "two"} {
		target := f.expose(host, box.Server, Auth{})
		target.Access = &Access{Sessions: access.NewKey(), Ended: &access.Ended{}, Accounts: &account.Rules{Domains: []string{"friends.example"}}}
		f.set(host+domain, target)
	}
	return f
}

// person returns a browser with cookies. It follows redirects, except to addresses that begin with hold.
func (f *fixture) person(t *testing.T) *person {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	p := &person{t: t, f: f, Client: &http.Client{Jar: jar, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: f.roots}, ForceAttemptHTTP2: true,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			if host, _, _ := net.SplitHostPort(address); strings.HasSuffix(host, domain) {
				address = f.https
			}
			return new(net.Dialer).DialContext(ctx, network, address)
		},
	}}}
	p.CheckRedirect = func(r *http.Request, _ []*http.Request) error {
		if p.hold != "" && strings.HasPrefix(r.URL.String(), p.hold) {
			return http.ErrUseLastResponse
		}
		return nil
	}
	t.Cleanup(p.CloseIdleConnections)
	return p
}

type person struct {
	*http.Client
	t    *testing.T
	f    *fixture
	hold string
}

func (p *person) open(address string) (*http.Response, string) {
	p.t.Helper()
	return get(p.t, p.Client, address, browser)
}

// logIn opens a URL, and signs in at the provider as a user. It returns the last response.
func (p *person) logIn(address, user string) (*http.Response, string) {
	p.t.Helper()
	_, page := p.open(address)
	link := regexp.MustCompile(`href="(/\.boxgate/start[^"]*)"`).FindStringSubmatch(page)
	if link == nil {
		p.t.Fatalf("no link to sign in:\n%s", page)
	}
	at, err := url.Parse(address)
	if err != nil {
		p.t.Fatal(err)
	}
	resp, page := p.open(at.Scheme + "://" + at.Host + link[1])
	id := regexp.MustCompile(`name="id" value="([^"]*)"`).FindStringSubmatch(page)
	if id == nil {
		return resp, page
	}
	form := url.Values{"username": {user}, "password": {user}, "id": {id[1]}}
	resp, err = p.PostForm(resp.Request.URL.Scheme+"://"+resp.Request.URL.Host+"/login/username", form)
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return resp, string(body)
}

// A visitor with an admitted account is signed in after the provider's page, at that URL only; other accounts are refused.
func TestAccounts(t *testing.T) {
	t.Parallel()
	issuer, stop := startProvider(t)
	box := record(t)
	f := withAccounts(t, issuer, box)
	friend := f.person(t)
	resp, page := friend.logIn("https://one"+domain+"/a?b=c", "friend")
	if resp.StatusCode != 200 || resp.Request.URL.String() != "https://one"+domain+"/a?b=c" || page != "hello " {
		t.Fatalf("%s at %s\n%s", resp.Status, resp.Request.URL, page)
	}
	if got := dump(box.last(t)); strings.Contains(got, "boxgate") {
		t.Errorf("the box got\n%s", got)
	}
	f.event(t, func(e audit.Event) bool { return e.Credential == audit.CredentialAccount && e.Status == 200 })
	if resp, _ := friend.open("https://two" + domain + "/"); resp.StatusCode != 401 {
		t.Errorf("another URL: %s", resp.Status)
	}
	for _, address := range []string{"https://one" + domain + pages.StartPath, "https://one" + domain + pages.ReturnPath, accountOrigin + pages.StartPath, accountOrigin + pages.ReturnPath} {
		for what, fields := range map[string][2]string{"a script": {"no-cors", "script"}, "a fetch": {"cors", "empty"}, "a frame": {"navigate", "iframe"}} {
			background := func(r *http.Request) {
				browser(r)
				r.Header.Set("Sec-Fetch-Mode", fields[0])
				r.Header.Set("Sec-Fetch-Dest", fields[1])
			}
			if resp, _ := get(t, friend.Client, address, background); resp.StatusCode != 403 || resp.Header["Set-Cookie"] != nil || resp.Request.URL.String() != address {
				t.Errorf("%s opens %s: %s %v", what, address, resp.Status, resp.Header)
			}
		}
	}
	f.event(t, reason(name.ReasonURLOrigin))
	before := box.count()
	for _, user := range []string{"stranger", "unverified"} {
		if resp, page := f.person(t).logIn("https://one"+domain+"/", user); resp.StatusCode != 403 || !strings.Contains(page, "Your account") || box.count() != before {
			t.Errorf("%s: %s\n%s", user, resp.Status, page)
		}
	}
	stop()
	down := withAccounts(t, issuer, box)
	if resp, page := down.person(t).open("https://one" + domain + pages.StartPath); resp.StatusCode != 503 || resp.Header.Get("Retry-After") == "" || !strings.Contains(page, "identity provider") {
		t.Errorf("the provider is down: %s\n%s", resp.Status, page)
	}
	if resp, _ := friend.open("https://one" + domain + "/"); resp.StatusCode != 200 {
		t.Errorf("who is signed in stays so: %s", resp.Status)
	}
}

// An attacker who begins a sign-in and makes a victim's browser finish it, or who uses the victim's addresses, gets no
// session.
func TestSignInsOfAnotherBrowser(t *testing.T) {
	t.Parallel()
	issuer, _ := startProvider(t)
	box := record(t)
	f := withAccounts(t, issuer, box)
	location := func(p *person, hold string) string {
		p.hold = hold
		resp, page := p.logIn("https://one"+domain+"/x", "friend")
		if to := resp.Header.Get("Location"); strings.HasPrefix(to, hold) {
			return to
		}
		t.Fatalf("%s at %s\n%s", resp.Status, resp.Request.URL, page)
		return ""
	}
	refused := func(what string, p *person, address string) {
		t.Helper()
		p.hold = ""
		resp, _ := p.open(address)
		if again, _ := p.open("https://one" + domain + "/"); resp.StatusCode != 403 || again.StatusCode != 401 || box.count() > 0 {
			t.Errorf("%s: %s, then %s", what, resp.Status, again.Status)
		}
	}
	fromProvider, atURL := accountOrigin+pages.ReturnPath, "https://one"+domain+pages.ReturnPath
	mine := f.person(t)
	back := location(mine, fromProvider)
	refused("the provider's answer in another browser", f.person(t), back)
	u, err := url.Parse(back)
	if err != nil {
		t.Fatal(err)
	}
	other := f.person(t)
	theirs, err := url.Parse(location(other, fromProvider))
	if err != nil {
		t.Fatal(err)
	}
	mixed := theirs.Query()
	mixed.Set("code", u.Query().Get("code"))
	refused("another one's code in one's own sign-in", other, fromProvider+"?"+mixed.Encode())
	forged := u.Query()
	forged.Set("state", forged.Get("state")[:20]+"AAAA"+forged.Get("state")[24:])
	refused("a forged state", mine, fromProvider+"?"+forged.Encode())

	victim := f.person(t)
	code := location(victim, atURL)
	refused("the code in another browser", f.person(t), code)
	refused("the code at another URL", f.person(t), strings.Replace(code, "one", "two", 1))
	victim.hold = ""
	if resp, _ := victim.open(code); resp.StatusCode != 200 || resp.Request.URL.Path != "/x" {
		t.Fatalf("the code in its own browser: %s", resp.Status)
	}
	if resp, _ := victim.open(code); resp.StatusCode != 403 {
		t.Errorf("the code again: %s", resp.Status)
	}
	f.event(t, func(e audit.Event) bool { return e.Error == account.ErrTicket.Error() && e.Verdict == policy.Deny })
}

// poorProvider is an identity provider that refuses every code.
type poorProvider struct {
	*httptest.Server
	discoveries, codes atomic.Int64
	hold               chan struct{} // each answer receives a value from it; nil: answers are immediate
}

func newPoorProvider(t *testing.T, hold chan struct{}) *poorProvider {
	t.Helper()
	p := &poorProvider{hold: hold}
	answer := func(w http.ResponseWriter, r *http.Request, asked *atomic.Int64, status int, body any) {
		asked.Add(1)
		if p.hold != nil {
			select {
			case <-p.hold:
			case <-r.Context().Done():
			}
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(body)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, r *http.Request) {
		answer(w, r, &p.discoveries, 200, map[string]any{
			"issuer": p.URL, "authorization_endpoint": p.URL + "/auth", "token_endpoint": p.URL + "/token", "jwks_uri": p.URL + "/keys",
		})
	})
	mux.HandleFunc("/token", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)       // without this the server does not notice that the gateway has closed the connection
		if r.Header.Get("Authorization") == "" { // the library repeats the code with the client's secret in the form
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		answer(w, r, &p.codes, 400, map[string]any{"error": "invalid_grant"})
	})
	p.Server = httptest.NewServer(mux)
	t.Cleanup(p.Close)
	return p
}

// stepwise is a visitor with its own address, who follows no redirects.
func (f *fixture) stepwise(t *testing.T, address string) *http.Client {
	t.Helper()
	c := f.from(t, address)
	c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return c
}

// begun is a sign-in that has reached the provider.
type begun struct{ state, cookie string }

// begin takes a browser to the provider.
func (f *fixture) begin(t *testing.T, c *http.Client) begun {
	t.Helper()
	first, _ := get(t, c, "https://one"+domain+pages.StartPath, browser)
	second, page := get(t, c, first.Header.Get("Location"), browser)
	at, err := url.Parse(second.Header.Get("Location"))
	if err != nil || at.Query().Get("state") == "" {
		t.Fatalf("%s to %q\n%s", second.Status, second.Header.Get("Location"), page)
	}
	cookie, _, _ := strings.Cut(second.Header.Get("Set-Cookie"), ";")
	return begun{at.Query().Get("state"), cookie}
}

// back returns from the provider with a code.
func (b begun) back(t *testing.T, c *http.Client, code string) *http.Response {
	t.Helper()
	resp, _ := get(t, c, accountOrigin+pages.ReturnPath+"?state="+b.state+"&code="+code, func(r *http.Request) {
		browser(r)
		r.Header.Set("Cookie", b.cookie)
	})
	return resp
}

// A sign-in sends the provider one code, and an address as many as it may guess credentials.
func TestAttackCodesForTheProvider(t *testing.T) {
	t.Parallel()
	p := newPoorProvider(t, nil)
	f := withAccounts(t, p.URL, record(t))
	f.tallies.mu.Lock()
	f.tallies.failures = 3
	f.tallies.mu.Unlock()
	c := f.client(t, true)
	once := f.begin(t, c)
	for i := range 5 {
		if resp := once.back(t, c, fmt.Sprint(i)); resp.StatusCode != 403 {
			t.Errorf("code %d: %s", i, resp.Status)
		}
	}
	if n := p.codes.Load(); n != 1 {
		t.Errorf("the provider was asked about %d codes of one sign-in", n)
	}
	var more []begun
	for range 5 {
		more = append(more, f.begin(t, c))
	}
	for i, b := range more {
		want := 403
		if i >= 2 {
			want = 429
		}
		if resp := b.back(t, c, "x"); resp.StatusCode != want || want == 429 && resp.Header.Get("Retry-After") == "" {
			t.Errorf("sign-in %d: %s", i, resp.Status)
		}
	}
	if n := p.codes.Load(); n != 3 {
		t.Errorf("the provider was asked about %d codes", n)
	}
	other := f.stepwise(t, "127.0.0.2")
	if resp := f.begin(t, other).back(t, other, "x"); resp.StatusCode != 403 {
		t.Errorf("another visitor: %s", resp.Status)
	}
}

// If many visitors return from a slow provider, it is sent 16 codes at a time. An address gets 4 of them, and the last quarter
// is for addresses without any. The others are asked to come again, and then succeed.
func TestAttackManyComeBackFromASlowProvider(t *testing.T) {
	t.Parallel()
	hold := make(chan struct{}, 1000)
	p := newPoorProvider(t, hold)
	f := withAccounts(t, p.URL, record(t))
	hold <- struct{}{} // for the discovery
	var all []begun
	var clients []*http.Client
	for i := range 5 {
		c := f.stepwise(t, fmt.Sprintf("127.0.0.%d", i+1))
		for range 6 {
			all, clients = append(all, f.begin(t, c)), append(clients, c)
		}
	}
	var later sync.Map
	var done sync.WaitGroup
	for i, b := range all {
		done.Go(func() {
			switch resp := b.back(t, clients[i], "x"); {
			case resp.StatusCode == 503 && resp.Header.Get("Retry-After") != "":
				later.Store(i, true)
			case resp.StatusCode != 403:
				t.Errorf("sign-in %d: %s", i, resp.Status)
			}
		})
	}
	told := func() (list []int) {
		later.Range(func(i, _ any) bool { list = append(list, i.(int)); return true })
		return list
	}
	f.await(t, "the rest", func() bool { return len(told())+int(p.codes.Load()) == len(all) })
	if n := f.held(); n > exchangesMost || n < exchangesMost*3/4 {
		t.Errorf("%d hold a place", n)
	}
	for range len(all) {
		hold <- struct{}{}
	}
	done.Wait()
	asked := p.codes.Load()
	again := told()[0]
	if resp := all[again].back(t, clients[again], "x"); resp.StatusCode != 403 || p.codes.Load() != asked+1 {
		t.Errorf("one that came again: %s", resp.Status)
	}
}

// If many sign-ins begin while the provider is slow, its configuration is requested once. Each sign-in that waits for it holds
// a place.
func TestManyBeginWithASlowProvider(t *testing.T) {
	t.Parallel()
	hold := make(chan struct{})
	p := newPoorProvider(t, hold)
	f := withAccounts(t, p.URL, record(t))
	c := f.client(t, true)
	const many = 20
	var done sync.WaitGroup
	for range many {
		done.Go(func() { f.begin(t, c) })
	}
	f.await(t, "those who begin", func() bool { return f.held() == many })
	hold <- struct{}{}
	done.Wait()
	if n := p.discoveries.Load(); n != 1 {
		t.Errorf("it was asked %d times", n)
	}
}

// forgedIdentity is a visitor's forged identity, which must not reach the box.
const forgedIdentity = "198.51.100.66"

// documentedFields returns the prefixes and names that docs/urls.md promises to remove.
func documentedFields(t *testing.T) (beginnings, names []string) {
	t.Helper()
	doc, err := os.ReadFile("../docs/urls.md")
	if err != nil {
		t.Fatal(err)
	}
	quoted := regexp.MustCompile("`([a-z0-9-]+)(\\*?)`")
	for line := range strings.Lines(string(doc)) {
		if !strings.HasPrefix(line, "- families: ") && !strings.HasPrefix(line, "- single fields: ") {
			continue
		}
		for _, m := range quoted.FindAllStringSubmatch(line, -1) {
			if m[2] == "*" {
				beginnings = append(beginnings, m[1])
			} else {
				names = append(names, m[1])
			}
		}
	}
	return beginnings, names
}

// someFields is below the number of fields that one request may have.
const someFields = 60

// identityFields are the fields of the list of applications and proxies, and one field of each family in docs/urls.md.
func identityFields(t *testing.T) []string {
	t.Helper()
	beginnings, all := documentedFields(t)
	for _, b := range beginnings {
		all = append(all, b, strings.TrimSuffix(b, "-")+"-user", b+"z")
	}
	for _, names := range trustedFields {
		all = append(all, names...)
	}
	for i, name := range all {
		all[i] = strings.ReplaceAll(strings.ToLower(name), "_", "-")
	}
	slices.Sort(all)
	all = slices.Compact(all)
	if len(all) < 134 {
		t.Fatalf("only %d fields", len(all))
	}
	return all
}

// spellings are names that servers consider the same.
var spellings = map[string]func(string) string{
	"lower case":  strings.ToLower,
	"upper case":  strings.ToUpper,
	"underscores": func(s string) string { return strings.ReplaceAll(s, "-", "_") },
	"dots":        func(s string) string { return strings.ReplaceAll(s, "-", ".") },
	"mixed": func(s string) string {
		return strings.Replace(strings.ToUpper(strings.Replace(s, "-", "_", 1)), "-", ".", 1)
	},
	"other marks": func(s string) string { return strings.ReplaceAll(s, "-", "~") },
}

// No field in which proxies identify a visitor to servers reaches the box from a visitor: for no application, in no spelling
// that servers consider the same, over either version of HTTP, in heads and trailers.
func TestIdentityFieldsOfOtherProxiesAreRemoved(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	box := record(t)
	f.expose("one", box.Server, Auth{Open: true})
	all := identityFields(t)
	for spelling, spell := range spellings {
		for names := range slices.Chunk(all, someFields) {
			spelled := make([]string, 0, len(names))
			for _, name := range names {
				spelled = append(spelled, spell(name))
			}
			f.forge(t, box, spelling, spelled)
		}
	}
}

// forge sends fields with a forged identity in a head and in a trailer, over both versions of HTTP.
func (f *fixture) forge(t *testing.T, box *recorder, spelling string, names []string) {
	t.Helper()
	var lines strings.Builder
	var fields []string
	for _, name := range names {
		lines.WriteString(name + ": " + forgedIdentity + "\r\n")
		fields = append(fields, strings.ToLower(name), forgedIdentity)
	}
	c := f.connectTo(t, "one"+domain)
	_, _ = io.WriteString(c, "POST / HTTP/1.1\r\nHost: one"+domain+"\r\nX-Kept: "+spelling+"\r\nTransfer-Encoding: chunked\r\n"+lines.String()+
		"\r\n1\r\nx\r\n0\r\n"+lines.String()+"\r\n")
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	box.sawNoIdentity(t, "HTTP/1.1, "+spelling, resp.StatusCode == http.StatusOK)
	v := f.frames(t, "one")
	id := v.ask(false, append(to("POST", "one", "/", "x-kept", spelling), fields...)...)
	_ = v.WriteData(id, false, []byte("x"))
	v.next = id
	v.ask(true, fields...) // trailers
	r := v.answer(id)
	box.sawNoIdentity(t, "HTTP/2, "+spelling, r.status() == "200")
}

// This also holds for applications that speak HTTP/2 and for visitors in boxes.
func TestIdentityFieldsFromBoxesAndOverHTTP2(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	box := record(t)
	f.expose("one", box.Server, Auth{Open: true})
	f.exposeAt("two", h2App(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Proto+" "+dump(r)) }), Auth{Open: true}, H2C)
	get(t, f.client(t, false), "https://one"+domain+"/", nil) // after this, the listener is ready for boxes
	c, err := f.visitFrom(t, "10.200.0.7:40000", f.url("one"), f.url("one"))
	if err != nil {
		t.Fatal(err)
	}
	client := http.Client{Transport: &http.Transport{DialTLSContext: func(context.Context, string, string) (net.Conn, error) { return c, nil }}}
	defer client.CloseIdleConnections()
	for names := range slices.Chunk(identityFields(t), someFields) {
		forge := func(r *http.Request) {
			for _, name := range names {
				r.Header[name] = []string{forgedIdentity}
			}
			r.Header.Set("X-Kept", "1")
		}
		for _, h2 := range []bool{false, true} {
			if _, seen := get(t, f.client(t, h2), "https://two"+domain+"/", forge); strings.Contains(seen, forgedIdentity) ||
				!strings.HasPrefix(seen, "HTTP/2.0 ") || !strings.Contains(seen, "X-Forwarded-For: 127.0.0.1\r\n") || !strings.Contains(seen, "X-Kept: 1\r\n") {
				t.Errorf("h2 %v: the application got\n%s", h2, seen)
			}
		}
		get(t, &client, "https://"+f.url("one")+"/", forge)
		if got := box.last(t); strings.Contains(dump(got), forgedIdentity) || got.Header.Get("X-Forwarded-For") != "10.200.0.7" || got.Header.Get("X-Kept") != "1" {
			t.Errorf("from a box the application got\n%s", dump(got))
		}
	}
}

// Fields of clients for their own use pass unchanged, over both versions of HTTP.
func TestOrdinaryFieldsPass(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	box := record(t)
	f.expose("one", box.Server, Auth{Open: true})
	for _, h2 := range []bool{false, true} {
		get(t, f.client(t, h2), "https://one"+domain+"/", func(r *http.Request) {
			for _, name := range ordinaryFields {
				r.Header.Set(name, "kept "+name)
			}
			r.Header.Set("User-Agent", "kept User-Agent")
		})
		for _, name := range append(ordinaryFields, "User-Agent") {
			if got := box.last(t).Header.Get(name); got != "kept "+name {
				t.Errorf("h2 %v: %s is %q", h2, name, got)
			}
		}
	}
}

// The operator lets a field pass by its exact name. Other spellings are removed, as are the fields that the gateway sets.
func TestFieldsThatTheOperatorLetsPass(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *Config) {
		c.ForwardFields = []string{"X-Auth-Token", "x-user-agent", "X-Forwarded-For", "x_real_ip"}
	})
	box := record(t)
	f.expose("one", box.Server, Auth{Open: true})
	for _, h2 := range []bool{false, true} {
		get(t, f.client(t, h2), "https://one"+domain+"/", func(r *http.Request) {
			for _, name := range []string{"X_Auth_Token", "x-auth.token", "X-Auth-Tokens", "X-User", "X-Forwarded-For", "X_Real_Ip", "X-Real-Ip"} {
				r.Header[name] = []string{forgedIdentity}
			}
			r.Header.Set("X-Auth-Token", "token")
			r.Header.Set("X-User-Agent", "grpc-web")
		})
		got := box.last(t)
		if strings.Contains(dump(got), forgedIdentity) || got.Header.Get("X-Auth-Token") != "token" || got.Header.Get("X-User-Agent") != "grpc-web" ||
			!slices.Equal(got.Header["X-Forwarded-For"], []string{"127.0.0.1"}) {
			t.Errorf("h2 %v: the box got\n%s", h2, dump(got))
		}
	}
}

// sawNoIdentity checks the latest request.
func (r *recorder) sawNoIdentity(t *testing.T, what string, served bool) {
	t.Helper()
	if !served {
		t.Fatalf("%s: not served", what)
	}
	got := r.last(t)
	if got.Header.Get("X-Kept") == "" || got.Header.Get("X-Forwarded-For") != "127.0.0.1" || strings.Contains(dump(got), forgedIdentity) || len(got.Trailer) != 0 {
		t.Errorf("%s: the box got\n%s%v", what, dump(got), got.Trailer)
	}
}

// The removed fields are the same as those listed in docs/urls.md.
func TestIdentityFieldsAreDocumented(t *testing.T) {
	t.Parallel()
	beginnings, names := documentedFields(t)
	for _, list := range []struct{ removed, documented []string }{{claimedBeginnings, beginnings}, {claimedNames, names}} {
		for _, name := range list.removed {
			if !slices.Contains(list.documented, name) {
				t.Errorf("%s is removed and not in docs/urls.md", name)
			}
		}
		for _, name := range list.documented {
			if !slices.Contains(list.removed, name) {
				t.Errorf("%s is in docs/urls.md and not removed", name)
			}
		}
	}
}
