package fleet

import (
	"bufio"
	"context"
	"crypto/tls"
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

	"go.yaml.in/yaml/v3"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/secrets"
)

// reconfigure restarts the gateway of a host with another configuration.
func (h *host) reconfigure(edit func(*config.Config)) {
	h.T.Helper()
	if err := h.Stop(); err != nil {
		h.T.Fatal(err)
	}
	text, err := os.ReadFile(h.Config)
	if err != nil {
		h.T.Fatal(err)
	}
	c, err := config.Parse(h.Config, text, nil)
	if err != nil {
		h.T.Fatal(err)
	}
	edit(&c)
	if text, err = yaml.Marshal(c); err == nil {
		err = os.WriteFile(h.Config, text, 0o600)
	}
	if err != nil {
		h.T.Fatal(err)
	}
	h.start()
}

const returnAddress = "https://auth.preview.localhost/.boxgate/return"

// startProvider starts an identity provider in the namespace of a host, with the user ann, whose password is her name. It returns the issuer.
func (h *host) startProvider() string {
	h.T.Helper()
	program, file := filepath.Join(h.Dir, "provider"), filepath.Join(h.Dir, "users.json")
	build := exec.CommandContext(h.T.Context(), "go", "build", "-o", program, ".")
	build.Dir, build.Env = "../../ingress/account/provider", append(os.Environ(), "GOFLAGS=", "GOWORK=off", "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		h.T.Fatalf("%v\n%s", err, out)
	}
	users, err := json.Marshal(map[string]any{"ann": map[string]any{"ID": "ann", "Username": "ann", "Password": "ann", "Email": "ann@example.org", "EmailVerified": true}})
	if err == nil {
		err = os.WriteFile(file, users, 0o600)
	}
	if err != nil {
		h.T.Fatal(err)
	}
	cmd := exec.Command(program, file, "boxgate", "client-secret", returnAddress)
	in, err := cmd.StdinPipe()
	if err != nil {
		h.T.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		h.T.Fatal(err)
	}
	if err := h.Net.Gateway().Start(cmd); err != nil {
		h.T.Fatal(err)
	}
	h.T.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	issuer, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		h.T.Fatal(err)
	}
	return strings.TrimSpace(issuer)
}

// webClient is a visitor with cookies, who follows redirects.
type webClient struct {
	*http.Client
	t *testing.T
}

// browser returns one that reaches all public URLs at an address on the switch, and the identity provider beside the third host.
func (w *balanced) browser(at string) webClient {
	w.t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		w.t.Fatal(err)
	}
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: w.roots}, ForceAttemptHTTP2: true,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			if host, _, _ := net.SplitHostPort(address); strings.HasSuffix(host, ".preview.localhost") {
				return w.connect(ctx, at)
			}
			return w.c.Net.Gateway().DialContext(ctx, network, strings.Replace(address, "localhost", "127.0.0.1", 1))
		},
	}
	w.t.Cleanup(transport.CloseIdleConnections)
	return webClient{&http.Client{Jar: jar, Transport: transport, Timeout: harness.Patience}, w.t}
}

// open returns the answer to a request of the client: the status, the address after redirects, and the body.
func (b webClient) open(method, address string, form url.Values, edits ...func(*http.Request)) (status int, at *url.URL, page string) {
	b.t.Helper()
	var body io.Reader
	if form != nil {
		body = strings.NewReader(form.Encode())
	}
	r, err := http.NewRequestWithContext(b.t.Context(), method, address, body)
	if err != nil {
		b.t.Fatal(err)
	}
	r.Header.Set("Accept", "text/html")
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for _, edit := range edits {
		edit(r)
	}
	response, err := b.Do(r)
	if err != nil {
		b.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return response.StatusCode, response.Request.URL, string(text)
}

// signIn opens a public URL, and signs in at the provider.
func (b webClient) signIn(address string) (status int, at *url.URL, page string) {
	b.t.Helper()
	_, at, page = b.open("GET", address, nil)
	link := regexp.MustCompile(`href="(/\.boxgate/start[^"]*)"`).FindStringSubmatch(page)
	if link == nil {
		b.t.Fatalf("no link to sign in: %s", page)
	}
	status, login, page := b.open("GET", "https://"+at.Host+link[1], nil)
	id := regexp.MustCompile(`name="id" value="([^"]*)"`).FindStringSubmatch(page)
	if id == nil {
		b.t.Fatalf("no form at %s: %d %s", login, status, page)
	}
	return b.open("POST", login.Scheme+"://"+login.Host+"/login/username", url.Values{"username": {"ann"}, "password": {"ann"}, "id": {id[1]}})
}

// TestCredentialsOnAnotherHost: each credential of a public URL works on a host that does not have the box: with the TLS of visitors passed on,
// and behind HAProxy. A sign-in, whose steps go by a host name that all hosts share, ends at the host with the box.
func TestCredentialsOnAnotherHost(t *testing.T) {
	t.Parallel()
	w := behindHAProxy(t, nil)
	issuer := w.c.startProvider()
	for _, h := range []*host{w.a, w.b, w.c} {
		secret := filepath.Join(h.Dir, "client-secret")
		if err := os.WriteFile(secret, []byte("client-secret"), 0o600); err != nil {
			t.Fatal(err)
		}
		h.reconfigure(func(c *config.Config) {
			c.Secrets.Sources = map[string]secrets.Source{"oidc": {File: secret}}
			c.Ingress.OIDC.Issuer, c.Ingress.OIDC.ClientID, c.Ingress.OIDC.ClientSecret = issuer, "boxgate", "oidc"
		})
	}
	s := w.c.app("third", map[string]any{"bearer_token": true, "basic_auth": true, "oidc": map[string]any{"emails": []string{"ann@example.org"}}})
	for _, h := range []*host{w.a, w.c} { // which end TLS themselves
		var pem []byte
		if err := h.Client.Get(t.Context(), "/v2/ca", &pem); err != nil || !w.roots.AppendCertsFromPEM(pem) {
			t.Fatal("the CA of public URLs", err)
		}
	}
	var link, ports struct{ URL, Token string }
	if err := w.c.Client.Do(t.Context(), "POST", api.BoxPath(s.box, "preview/8000/sign"), map[string]any{"path_prefix": "/files"}, &link); err != nil {
		t.Fatal(err)
	}
	if err := w.c.Client.Do(t.Context(), "PUT", api.BoxPath(s.box, "config/ports"), map[string]any{}, &ports); err != nil {
		t.Fatal(err)
	}
	w.a.Until("the hosts know each other", func() bool {
		known := 0
		for range 4 { // HAProxy takes turns
			if strings.HasPrefix(get(w.visitor(), s.URL), "401 ") {
				known++
			}
		}
		return known == 4
	})
	other := strings.Replace(s.URL, s.box+"-8000", "8001-"+s.box, 1) // a port that is shared, without a program
	for what, at := range map[string]string{"TLS is passed on": address(0), "behind HAProxy": balancerAddress} {
		token := func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+s.Token) }
		shared := func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+ports.Token) }
		password := func(r *http.Request) { r.SetBasicAuth(s.Username, s.Password) }
		ann := w.browser(at)
		for _, try := range []struct {
			credential, address string
			edit                func(*http.Request)
			want                int
		}{
			{"none", s.URL, func(*http.Request) {}, http.StatusUnauthorized},
			{"a bearer token", s.URL, token, http.StatusOK},
			{"a token of another URL", s.URL, shared, http.StatusUnauthorized},
			{"a password", s.URL, password, http.StatusOK},
			{"a signed link", link.URL, func(*http.Request) {}, http.StatusOK},
			{"a signed link of another path", strings.Replace(link.URL, "/files", "/other", 1), func(*http.Request) {}, http.StatusUnauthorized},
			{"the token of all ports", other, shared, http.StatusBadGateway},
			{"a token of one port at another", other, token, http.StatusUnauthorized},
		} {
			if status, _, page := w.browser(at).open("GET", try.address, nil, try.edit); status != try.want {
				t.Errorf("%s, %s: %d %s", what, try.credential, status, page)
			}
		}
		if status, to, page := ann.open("GET", s.URL+"?boxgate_token="+s.Token, nil); status != http.StatusOK || to.RawQuery != "" {
			t.Errorf("%s, a token in the address: %d at %s %s", what, status, to, page)
		}
		if status, _, page := ann.open("GET", s.URL, nil); status != http.StatusOK {
			t.Errorf("%s, its session: %d %s", what, status, page)
		}
		ann = w.browser(at)
		if status, to, page := ann.signIn(s.URL + "/a?b=c"); status != http.StatusOK || !strings.HasSuffix(to.String(), s.name+"/a?b=c") || !strings.HasPrefix(page, "third "+visitorAddress+" ") {
			t.Errorf("%s, an account: %d at %s %s", what, status, to, page)
		}
		if status, _, page := ann.open("GET", s.URL, nil); status != http.StatusOK {
			t.Errorf("%s, the session of the account: %d %s", what, status, page)
		}
		if status, _, page := w.browser(at).open("GET", "https://auth.preview.localhost/.boxgate/start?ticket=ffffff.AAAA", nil); status != http.StatusForbidden {
			t.Errorf("%s, a ticket of an unknown host: %d %s", what, status, page)
		}
	}
	w.c.Event(s.box, func(e audit.Event) bool {
		return e.Credential == audit.CredentialAccount && e.Peer.String() == visitorAddress
	})
}
