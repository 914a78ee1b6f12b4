package tour

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/policy"
	"boxgate/policy/name"
)

// visitor returns an HTTP client that opens public URLs from the gateway's network namespace, regardless of DNS.
func visitor(w *harness.World) *http.Client {
	w.T.Helper()
	var pem []byte
	if err := w.Client.Get(w.T.Context(), "/v2/ca", &pem); err != nil {
		w.T.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots},
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			_, port, err := net.SplitHostPort(address)
			if err != nil {
				return nil, err
			}
			return w.Net.Gateway().DialContext(ctx, network, net.JoinHostPort("127.0.0.1", port))
		},
	}
	w.T.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: harness.Patience}
}

// visit fetches a URL and returns the status and body.
func visit(t *testing.T, c *http.Client, url string, prepare func(*http.Request)) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if prepare != nil {
		prepare(req)
	}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// serveInBox starts a web server in a box that answers with the request.
func serveInBox(w *harness.World, box, port string) {
	w.T.Helper()
	w.MustSh(box, `cat > server.py <<'EOF'
import http.server
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = ("hello from the box\n" + str(self.headers)).encode()
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers(); self.wfile.write(body)
http.server.ThreadingHTTPServer(("", `+port+`), H).serve_forever()
EOF
setsid python3 server.py >/dev/null 2>&1 & echo $! > server.pid
until curl -s -o /dev/null http://127.0.0.1:`+port+`/; do sleep 0.05; done`)
}

func TestPublicURLAuthentication(t *testing.T) {
	t.Parallel()
	w := harness.NewWorld(t, func(c *config.Config) { c.Ingress.HTTP = "127.0.0.1:80" })
	box := w.Create(map[string]any{"network_policy": map[string]any{"mode": "deny-all"}})
	serveInBox(w, box, "8000")
	c := visitor(w)

	var open, both harness.PublicURL
	if err := w.Client.Do(t.Context(), "POST", api.BoxPath(box, "preview"), map[string]any{"port": 8000}, &open); err != nil {
		t.Fatal(err)
	}
	if status, body := visit(t, c, open.URL+"/x", nil); status != 200 || !bytes.Contains([]byte(body), []byte("hello from the box")) {
		t.Errorf("no authentication: %d %s", status, body)
	}
	if err := w.Client.Do(t.Context(), "POST", api.BoxPath(box, "preview"),
		map[string]any{"port": 8000, "bearer_token": true, "basic_auth": true}, &both); err != nil {
		t.Fatal(err)
	}
	for name, v := range map[string]struct {
		prepare func(*http.Request)
		want    int
	}{
		"none":        {nil, 401},
		"wrong token": {func(r *http.Request) { r.Header.Set("Authorization", "Bearer wrong") }, 401},
		"token":       {func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+both.Token) }, 200},
		"basic":       {func(r *http.Request) { r.SetBasicAuth(both.Username, both.Password) }, 200},
		"wrong basic": {func(r *http.Request) { r.SetBasicAuth(both.Username, both.Token) }, 401},
	} {
		status, body := visit(t, c, both.URL, v.prepare)
		if status != v.want {
			t.Errorf("%s: %d, want %d", name, status, v.want)
		}
		if bytes.Contains([]byte(body), []byte("Authorization")) || bytes.Contains([]byte(body), []byte(both.Token)) {
			t.Errorf("%s: the credential reached the box: %s", name, body)
		}
	}
	if status, _ := visit(t, c, replaceHost(both.URL, box+"-8001"), nil); status != 404 {
		t.Errorf("a port without a URL: %d", status)
	}
	// Plain HTTP on loopback serves the same URL.
	plain := "http://" + box + "-8000.preview.localhost/"
	if status, _ := visit(t, c, plain, func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+both.Token) }); status != 200 {
		t.Errorf("over plain HTTP on loopback: %d", status)
	}
	w.MustSh(box, "kill $(cat server.pid)")
	if status, _ := visit(t, c, both.URL, func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+both.Token) }); status != 502 {
		t.Errorf("a port nobody listens on: %d", status)
	}
	for _, reason := range []name.Reason{name.ReasonURL, name.ReasonURLAuth, name.ReasonURLUnavailable} {
		w.Event(box, func(e audit.Event) bool { return e.Stage == policy.StageURL && e.Reason == reason })
	}
	if err := w.Client.Do(t.Context(), "DELETE", api.BoxPath(box, "preview/8000"), nil, nil); err != nil {
		t.Fatal(err)
	}
	if status, _ := visit(t, c, both.URL, nil); status != 404 {
		t.Errorf("a deleted URL: %d", status)
	}
}

// A box with nested URLs has one domain for them, with a certificate for each.
func TestNestedURLs(t *testing.T) {
	t.Parallel()
	w := harness.NewWorld(t, func(c *config.Config) { c.Ingress.Names = "nested" })
	box := w.Create(map[string]any{"network_policy": map[string]any{"mode": "deny-all"}})
	serveInBox(w, box, "8000")
	var made harness.PublicURL
	if err := w.Client.Do(t.Context(), "POST", api.BoxPath(box, "preview"), map[string]any{"port": 8000}, &made); err != nil {
		t.Fatal(err)
	}
	if want := "https://8000." + box + ".preview.localhost"; made.URL != want {
		t.Errorf("%s, want %s", made.URL, want)
	}
	c := visitor(w)
	if status, body := visit(t, c, made.URL, nil); status != 200 || !bytes.Contains([]byte(body), []byte("hello from the box")) {
		t.Errorf("%d %s", status, body)
	}
	if _, err := c.Get("https://8001." + box + ".preview.localhost"); err == nil {
		t.Error("there is a certificate for a port without a URL")
	}
}

// replaceHost replaces the first label in a URL.
func replaceHost(url, label string) string {
	_, rest, _ := bytes.Cut([]byte(url), []byte("."))
	return "https://" + label + "." + string(rest)
}

func TestURLWithoutAuthenticationIsRefusedWhereRequired(t *testing.T) {
	t.Parallel()
	w := harness.NewWorld(t, func(c *config.Config) { c.Ingress.RequireAuth = true })
	box := w.Create(map[string]any{})
	if err := w.Client.Do(t.Context(), "POST", api.BoxPath(box, "preview"), map[string]any{"port": 8000}, nil); err == nil {
		t.Error("an open URL was made")
	}
	if err := w.Client.Do(t.Context(), "POST", api.BoxPath(box, "preview"), map[string]any{"port": 8000, "bearer_token": true}, nil); err != nil {
		t.Error(err)
	}
}

// The operator's limits and its Strict-Transport-Security apply to public URLs.
func TestURLsFollowTheConfiguration(t *testing.T) {
	t.Parallel()
	w := harness.NewWorld(t, func(c *config.Config) {
		c.Ingress.HSTS = config.HSTS{MaxAge: time.Minute}
		c.Ingress.Limits.FailedCredentials = 1
	})
	box := w.Create(map[string]any{})
	var opened harness.PublicURL
	if err := w.Client.Do(t.Context(), "POST", api.BoxPath(box, "preview"), map[string]any{"port": 8000, "bearer_token": true}, &opened); err != nil {
		t.Fatal(err)
	}
	c := visitor(w)
	for _, want := range []int{http.StatusUnauthorized, http.StatusTooManyRequests} {
		req, err := http.NewRequestWithContext(t.Context(), "GET", opened.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer wrong")
		resp, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if hsts := resp.Header.Get("Strict-Transport-Security"); resp.StatusCode != want || hsts != "max-age=60" {
			t.Errorf("%s, %q; want %d", resp.Status, hsts, want)
		}
	}
}
