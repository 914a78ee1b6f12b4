package signin

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptrace"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"boxgate/api"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/internal/lab"
)

func TestMain(m *testing.M) { harness.Main(m) }

// host is the name of the dashboard, at any address of the gateway's namespace.
const host = "gate.example.org"

const origin = "https://" + host + ":8600"

// gate is a gateway with a dashboard over TLS.
type gate struct {
	*harness.World
	cert, key string // files
	roots     *x509.CertPool
}

// newGate starts one. edit changes its configuration when the namespaces exist.
func newGate(t *testing.T, edit func(*gate, *config.Config)) *gate {
	t.Helper()
	g := &gate{World: harness.NewStopped(t, lab.Options{}), roots: x509.NewCertPool()}
	g.cert, g.key = filepath.Join(g.Dir, "admin.crt"), filepath.Join(g.Dir, "admin.key")
	g.certify(t)
	text, err := os.ReadFile(g.Config)
	if err != nil {
		t.Fatal(err)
	}
	c, err := config.Parse(g.Config, text, nil)
	if err != nil {
		t.Fatal(err)
	}
	c.Admin.Listen, c.Admin.UI, c.Admin.Hosts = "[::]:8600", true, []string{host}
	c.Admin.TLS = config.AdminTLS{Cert: g.cert, Key: g.key}
	if edit != nil {
		edit(g, &c)
	}
	if text, err = yaml.Marshal(c); err == nil {
		err = os.WriteFile(g.Config, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return g
}

// certify writes a new certificate of its own for the dashboard, and returns it.
func (g *gate) certify(t *testing.T) *x509.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	like := &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: host}, DNSNames: []string{host}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, like, like, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for path, block := range map[string]*pem.Block{g.key: {Type: "PRIVATE KEY", Bytes: private}, g.cert: {Type: "CERTIFICATE", Bytes: der}} {
		if err := os.WriteFile(path+".new", pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{g.key, g.cert} {
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	made, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	g.roots.AddCert(made)
	return made
}

// operatorKey returns the key of the gateway's first start.
func (g *gate) operatorKey(t *testing.T) string {
	t.Helper()
	key, err := os.ReadFile(filepath.Join(g.Dir, "state", "api-key"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(key))
}

// newKey makes an API key.
func (g *gate) newKey(t *testing.T, name string, role api.Role) string {
	t.Helper()
	var made struct{ Key string }
	if err := g.Client.Do(t.Context(), "POST", "/v2/api-keys", map[string]any{"name": name, "role": role}, &made); err != nil {
		t.Fatal(err)
	}
	return made.Key
}

// visitor is a client that keeps cookies and follows redirects within the gateway's namespace.
type visitor struct {
	*http.Client
	t *testing.T
}

func (g *gate) visitor(t *testing.T) *visitor {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: g.roots}, ForceAttemptHTTP2: true,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			_, port, err := net.SplitHostPort(address)
			if err != nil {
				return nil, err
			}
			return g.Net.Gateway().DialContext(ctx, network, net.JoinHostPort("127.0.0.1", port))
		},
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &visitor{&http.Client{Jar: jar, Transport: transport, Timeout: time.Minute}, t}
}

// send sends a request; edits change it. It returns the last answer and its body.
func (v *visitor) send(method, address string, form url.Values, edits ...func(*http.Request)) (*http.Response, string) {
	v.t.Helper()
	var body io.Reader
	if form != nil {
		body = strings.NewReader(form.Encode())
	}
	r, err := http.NewRequestWithContext(v.t.Context(), method, address, body)
	if err != nil {
		v.t.Fatal(err)
	}
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for _, edit := range edits {
		edit(r)
	}
	resp, err := v.doAgain(r)
	if err != nil {
		v.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		v.t.Fatal(err)
	}
	return resp, string(text)
}

// doAgain is Do, and does as browsers do if the first request on a connection gets no answer because the server has closed that: it sends
// it once more. net/http closes an HTTP/2 connection if it has not read the client's settings after two seconds. On a busy machine they
// may pass although the settings are there.
func (v *visitor) doAgain(r *http.Request) (*http.Response, error) {
	var reused bool
	trace := &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) { reused = c.Reused }}
	again := r.Clone(httptrace.WithClientTrace(r.Context(), trace))
	resp, err := v.Do(again)
	closed := errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
	if !closed || reused {
		return resp, err
	}
	v.t.Logf("%s %s: %v; sent again", r.Method, r.URL, err)
	if r.GetBody != nil {
		if r.Body, err = r.GetBody(); err != nil {
			return nil, err
		}
	}
	return v.Do(r)
}

var tokenField = regexp.MustCompile(`name="token" value="([^"]+)"`)

// signIn signs in with a key, and returns the answer after redirects.
func (v *visitor) signIn(key string) (*http.Response, string) {
	v.t.Helper()
	_, page := v.send("GET", origin+"/ui/sign-in", nil)
	token := tokenField.FindStringSubmatch(page)
	if token == nil {
		v.t.Fatalf("no form: %s", page)
	}
	return v.send("POST", origin+"/ui/sign-in", url.Values{"key": {key}, "token": {token[1]}}, from(origin))
}

// isIn reports whether the visitor sees a page instead of the sign-in.
func (v *visitor) isIn() bool {
	v.t.Helper()
	resp, page := v.send("GET", origin+"/ui/", nil)
	return resp.StatusCode == http.StatusOK && resp.Request.URL.Path == "/ui/" && strings.Contains(page, "Sign out")
}

// from sets the origin of a request.
func from(origin string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set("Origin", origin) }
}

// trail returns the lines of the audit trail about the dashboard's sign-ins: kind, key, role, source, route and status.
func (g *gate) trail(t *testing.T) string {
	t.Helper()
	out, code := g.GatewayCommand("audit", "--json")
	if code != 0 {
		t.Fatal(out)
	}
	var lines []string
	for line := range strings.Lines(out) {
		var e struct {
			Kind, Key, Role, Remote, Route string
			KeyID                          string `json:"key_id"`
			Status                         int
		}
		if json.Unmarshal([]byte(line), &e) == nil && strings.HasPrefix(e.Remote, "dashboard") {
			kind, _, _ := strings.Cut(e.KeyID, "_")
			lines = append(lines, strings.Join([]string{e.Kind, kind, e.Key, e.Role, e.Remote, e.Route, http.StatusText(e.Status)}, "|"))
		}
	}
	return strings.Join(lines, "\n")
}

// startProvider starts an identity provider in the gateway's namespace. Each user's password is the user's name. It returns the issuer.
func (g *gate) startProvider(t *testing.T, groups map[string][]string) string {
	t.Helper()
	program := filepath.Join(g.Dir, "provider")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".")
	build.Dir, build.Env = "../../ingress/account/provider", append(os.Environ(), "GOFLAGS=", "GOWORK=off", "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	users := map[string]map[string]any{}
	for user, list := range groups {
		users[user] = map[string]any{"ID": user, "Username": user, "Password": user, "Email": user + "@example.org", "EmailVerified": true, "Groups": list}
	}
	file := filepath.Join(g.Dir, "users.json")
	data, err := json.Marshal(users)
	if err == nil {
		err = os.WriteFile(file, data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, file, "boxgate", "client-secret", origin+config.AdminReturnPath)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Net.Gateway().Start(cmd); err != nil {
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
