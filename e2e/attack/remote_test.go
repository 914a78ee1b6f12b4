package attack

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/proxy"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/internal/testnet"
	"boxgate/policy"
)

const (
	remoteAt   = harness.RemoteAt
	remoteName = harness.RemoteName
)

// remoteWorld is a gateway with a listener for remote boxes.
type remoteWorld struct {
	*harness.World
	roots *x509.CertPool
	ca    string // file of the CA of the listener's certificate
}

// remoteBox is a box elsewhere.
type remoteBox struct{ id, token string }

func newRemoteWorld(t *testing.T, change func(*config.Config)) *remoteWorld {
	t.Helper()
	listener, ca := harness.Remote(t)
	own, err := os.ReadFile(ca)
	if err != nil {
		t.Fatal(err)
	}
	w := &remoteWorld{roots: x509.NewCertPool(), ca: ca}
	w.roots.AppendCertsFromPEM(own)
	w.World = harness.NewCaptured(t, func(c *config.Config) {
		c.Remote = listener
		if change != nil {
			change(c)
		}
	})
	return w
}

// attach makes a remote box with a token.
func (w *remoteWorld) attach(body map[string]any) remoteBox {
	w.T.Helper()
	body["remote"] = true
	var made struct{ ID string }
	if err := w.Client.Do(w.T.Context(), "POST", "/v2/box/attach", body, &made); err != nil {
		w.T.Fatalf("attaching a remote box: %v", err)
	}
	return remoteBox{made.ID, w.rotate(made.ID, time.Hour)}
}

// rotate gives a box a new token.
func (w *remoteWorld) rotate(box string, lifetime time.Duration) string {
	w.T.Helper()
	var made struct{ Username, Password string }
	if err := w.Client.Do(w.T.Context(), "POST", api.BoxPath(box, "token"), map[string]any{"expires_in": int64(lifetime / time.Second)}, &made); err != nil {
		w.T.Fatalf("a token: %v", err)
	}
	if made.Username != box || made.Password == "" {
		w.T.Fatalf("token %+v", made)
	}
	return made.Password
}

// dial connects to the listener with TLS.
func (w *remoteWorld) dial() *tls.Conn {
	w.T.Helper()
	c := w.connect(remoteAt)
	_ = c.SetDeadline(time.Now().Add(harness.Patience))
	secured := tls.Client(c, &tls.Config{ServerName: remoteName, RootCAs: w.roots})
	if err := secured.Handshake(); err != nil {
		w.T.Fatal(err)
	}
	return secured
}

// connect opens a TCP connection from the gateway's network namespace.
func (w *remoteWorld) connect(to string) (c net.Conn) {
	w.T.Helper()
	err := w.Net.Gateway().Do(func() (err error) {
		c, err = net.Dial("tcp", to)
		return err
	})
	if err != nil {
		w.T.Fatal(err)
	}
	w.T.Cleanup(func() { _ = c.Close() })
	return c
}

// DialContext implements the dialer of SOCKS clients.
func (w *remoteWorld) DialContext(context.Context, string, string) (net.Conn, error) {
	return w.dial(), nil
}

// Dial implements the dialer of SOCKS clients.
func (w *remoteWorld) Dial(string, string) (net.Conn, error) { return w.dial(), nil }

// socks connects to a destination by SOCKS5.
func (w *remoteWorld) socks(b remoteBox, to string) (net.Conn, error) {
	w.T.Helper()
	d, err := proxy.SOCKS5("tcp", remoteAt, &proxy.Auth{User: b.id, Password: b.token}, w)
	if err != nil {
		w.T.Fatal(err)
	}
	return d.Dial("tcp", to)
}

// ask sends a request to the HTTP proxy, and returns the status of its answer, 0 if there is none.
func (w *remoteWorld) ask(head string) (status int, body string) {
	w.T.Helper()
	c := w.dial()
	defer c.Close()
	if _, err := io.WriteString(c, head); err != nil {
		return 0, ""
	}
	method, _, _ := strings.Cut(head, " ")
	answer, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: method})
	if err != nil {
		return 0, ""
	}
	if method == http.MethodConnect && answer.StatusCode == http.StatusOK { // a tunnel, which would stay open for limits.peek_timeout
		return answer.StatusCode, ""
	}
	text, _ := io.ReadAll(io.LimitReader(answer.Body, 1<<16))
	return answer.StatusCode, string(text)
}

// client returns an HTTP client whose requests pass the listener as an HTTP proxy.
func (w *remoteWorld) client(b remoteBox) *http.Client {
	text, code := w.GatewayCommand("ca", "--box", b.id, "--bundle")
	roots := x509.NewCertPool()
	if code != 0 || !roots.AppendCertsFromPEM([]byte(text)) {
		w.T.Fatalf("gateway ca: %d", code)
	}
	at := &url.URL{Scheme: "http", Host: remoteAt, User: url.UserPassword(b.id, b.token)} // DialContext speaks TLS
	transport := &http.Transport{Proxy: http.ProxyURL(at), DialContext: w.DialContext, TLSClientConfig: &tls.Config{RootCAs: roots}}
	w.T.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: harness.Patience}
}

// A remote box gets its header rules, names and policy as any other box, by CONNECT, in absolute form and by SOCKS5.
func TestRemoteBox(t *testing.T) {
	t.Parallel()
	w := newRemoteWorld(t, nil)
	b := w.attach(map[string]any{
		"network_policy": harness.Custom("api.example.com"),
		"attach_headers": map[string]any{"api.example.com": map[string]string{"Authorization": "Bearer " + harness.TestSecret}},
	})
	c := w.client(b)
	for _, target := range []string{"https://api.example.com/1", "http://api.example.com/1"} {
		got, err := c.Get(target)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, got.Body)
		_ = got.Body.Close()
		if got.StatusCode != 200 {
			t.Errorf("%s: %s", target, got.Status)
		}
	}
	if _, err := c.Get("https://evil.example.net/"); err == nil || !strings.Contains(err.Error(), "Forbidden") {
		t.Errorf("a denied host: %v", err)
	}
	w.DenialOf(b.id, policy.StageConn, "evil.example.net", "not_allowed")
	plain, err := w.socks(b, "api.example.com:443")
	if err != nil {
		t.Fatal(err)
	}
	secured := tls.Client(plain, &tls.Config{ServerName: "api.example.com", RootCAs: c.Transport.(*http.Transport).TLSClientConfig.RootCAs})
	got, text := harness.Exchange(t, secured, bufio.NewReader(secured), "GET /2 HTTP/1.1\r\nHost: api.example.com\r\n\r\n")
	if got.StatusCode != 200 {
		t.Errorf("by SOCKS5: %s %s", got.Status, text)
	}
	if _, err := w.socks(b, "evil.example.net:443"); err == nil || !strings.Contains(err.Error(), "not allowed") {
		t.Errorf("a denied host by SOCKS5: %v", err)
	}
	e := w.Event(b.id, func(e audit.Event) bool { return e.Path == "/2" })
	if e.Verdict != policy.Allow || len(e.Headers) != 1 {
		t.Errorf("decision: %s", audit.Line(e))
	}
	w.NothingReached("evil.example.net")
}

// The clients that docs/attach/elsewhere.md names reach a host with a header rule, as the page sets them up.
func TestRemoteClients(t *testing.T) {
	t.Parallel()
	w := newRemoteWorld(t, nil)
	b := w.attach(map[string]any{
		"network_policy": harness.Custom("api.example.com"),
		"attach_headers": map[string]any{"api.example.com": map[string]string{"Authorization": "Bearer " + harness.TestSecret}},
	})
	own, err := os.ReadFile(w.ca)
	if err != nil {
		t.Fatal(err)
	}
	bundle, code := w.GatewayCommand("ca", "--box", b.id, "--bundle")
	file := filepath.Join(t.TempDir(), "bundle.pem")
	if err := os.WriteFile(file, append([]byte(bundle), own...), 0o600); err != nil || code != 0 {
		t.Fatalf("gateway ca: %d %v", code, err)
	}
	at := "https://" + b.id + ":" + b.token + "@" + remoteName + ":8443"
	hosts := filepath.Join(t.TempDir(), "hosts") // of the client's mount namespace
	if err := os.WriteFile(hosts, []byte("127.0.0.1 localhost "+remoteName+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(filepath.Dir(hosts), ".curlrc"), []byte("proxy-cacert = "+file+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	clients := map[string]string{
		"curl":         "curl -sS -f -m 60 https://api.example.com/curl",
		"curl -x":      "env -u HTTPS_PROXY curl -sS -f -m 60 -x $HTTPS_PROXY https://api.example.com/curl-x",
		"curl, plain":  "curl -sS -f -m 60 --proxy $HTTP_PROXY http://api.example.com/curl-plain",
		"curl, HTTP/2": "curl -sS -f -m 60 --http2 https://api.example.com/curl-2",
		"git":          "git -c http.followRedirects=false ls-remote https://api.example.com/git 2>&1 | grep -q 'not valid\\|not found\\|info/refs'",
		"python requests": "python3 -c 'import sys\ntry:\n    import requests\nexcept ImportError:\n    from pip._vendor import requests\n" +
			"sys.exit(requests.get(\"https://api.example.com/requests\", timeout=60).status_code != 200)'",
	}
	for name, line := range clients {
		script := "mount --bind " + hosts + " /etc/hosts && export HTTPS_PROXY=" + at + " HTTP_PROXY=" + at + " https_proxy=" + at +
			" SSL_CERT_FILE=" + file + " CURL_CA_BUNDLE=" + file + " REQUESTS_CA_BUNDLE=" + file + " GIT_SSL_CAINFO=" + file + " GIT_PROXY_SSL_CAINFO=" + file + " HOME=" + filepath.Dir(hosts) + "\n" + line
		var out strings.Builder
		cmd := exec.CommandContext(t.Context(), "unshare", "--mount", "sh", "-c", script)
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := w.Net.Gateway().Start(cmd); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: %v %s", name, err, harness.Tail(out.String(), 500))
		}
	}
	for _, path := range []string{"/curl", "/curl-x", "/curl-2", "/git/info/refs", "/requests"} {
		got := w.Net.Received("api.example.com", testnet.Path(path))
		if len(got) == 0 || got[0].Header.Get("Authorization") != "Bearer "+harness.TestSecret {
			t.Errorf("%s: %d requests", path, len(got))
		}
	}
}
