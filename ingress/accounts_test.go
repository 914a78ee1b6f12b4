package ingress

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"crypto/tls"

	"boxgate/audit"
	"boxgate/ingress/access"
	"boxgate/ingress/account"
	"boxgate/ingress/pages"
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
		c.Accounts = &Accounts{Origin: accountOrigin, Desk: account.NewDesk(account.Config{
			Issuer: issuer, ClientID: "boxgate", Scopes: []string{"email"}, Groups: "groups", Redirect: accountOrigin + pages.ReturnPath,
			Secret: func(context.Context) (name.Secret, error) { return name.NewSecret("client-secret"), nil },
		}, 0)}
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
