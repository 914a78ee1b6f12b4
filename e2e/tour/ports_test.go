package tour

import (
	"net/http"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/config"
	"boxgate/e2e/harness"
)

// TestSharedPorts: each port of a box is opened by one token, by programs that were started later and by loopback too, over each version
// of HTTP; a request with the token wakes the box, one without does not.
func TestSharedPorts(t *testing.T) {
	t.Parallel()
	w := harness.NewWorld(t, func(c *config.Config) { c.Ingress.HTTP = "127.0.0.1:80" })
	box := w.Create(map[string]any{"network_policy": map[string]any{"mode": "deny-all"}})
	var made struct{ URL, Token string }
	if err := w.Client.Do(t.Context(), "PUT", api.BoxPath(box, "config/ports"), map[string]any{"host": "localhost:${PORT}"}, &made); err != nil {
		t.Fatal(err)
	}
	serveInBox(w, box, "8000")
	w.MustSh(box, "setsid python3 -m http.server 9000 --bind 127.0.0.1 >/dev/null 2>&1 & until curl -s -o /dev/null http://127.0.0.1:9000/; do sleep 0.05; done")
	c := visitor(w)
	token := func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+made.Token) }
	at := func(port string) string { return strings.Replace(made.URL, "{port}", port, 1) }
	for _, h2 := range []bool{false, true} {
		c.Transport.(*http.Transport).ForceAttemptHTTP2 = h2
		if status, body := visit(t, c, at("8000"), token); status != 200 || !strings.Contains(body, "Host: localhost:8000") || strings.Contains(body, made.Token) {
			t.Errorf("%d %s", status, body)
		}
		c.CloseIdleConnections()
	}
	if status, body := visit(t, c, at("9000"), token); status != 200 {
		t.Errorf("on loopback: %d %s", status, body)
	}
	plain := strings.Replace(at("8000"), "https", "http", 1)
	if status, _ := visit(t, c, plain, token); status != 200 {
		t.Errorf("over plain HTTP on loopback: %d", status)
	}
	status := func() string {
		var view struct{ Status string }
		if err := w.Client.Get(t.Context(), api.BoxPath(box, "status"), &view); err != nil {
			t.Fatal(err)
		}
		return view.Status
	}
	if err := w.Client.Do(t.Context(), "POST", api.BoxPath(box, "pause"), nil, nil); err != nil {
		t.Fatal(err)
	}
	if got, _ := visit(t, c, at("8000"), nil); got != 401 || status() != "paused" {
		t.Errorf("without the token: %d, and the box is %s", got, status())
	}
	if got, body := visit(t, c, at("8000"), token); got != 200 || status() != "idle" {
		t.Errorf("with the token: %d %s, and the box is %s", got, body, status())
	}
	out, code := w.GatewayCommand("url", "ports", "get", box)
	if code != 0 || !strings.Contains(out, "localhost:${PORT}") || strings.Contains(out, made.Token) {
		t.Errorf("%d %s", code, out)
	}
	if out, code := w.GatewayCommand("url", "ports", "share", box, "--except", "22", "--https-port", "8443"); code != 0 || !strings.Contains(out, "token  ") {
		t.Errorf("%d %s", code, out)
	}
	if out, code := w.GatewayCommand("url", "ports", "rm", box); code != 0 {
		t.Errorf("%d %s", code, out)
	}
	if got, _ := visit(t, c, at("8000"), token); got != 404 {
		t.Errorf("after the end: %d", got)
	}
	if err := w.Client.Do(t.Context(), "DELETE", api.BoxPath(box, "config/ports"), nil, nil); err == nil {
		t.Error("a second end is accepted")
	}
}
