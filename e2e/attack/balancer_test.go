package attack

import (
	"bufio"
	"crypto/tls"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"boxgate/config"
	"boxgate/e2e/harness"
)

// TestAttackForgedProxyHeader: the operator lists one load balancer, at 127.0.0.1. Only its PROXY header for a
// visitor's address is accepted. Headers from other addresses are refused, and so is a connection of the balancer
// without one.
func TestAttackForgedProxyHeader(t *testing.T) {
	t.Parallel()
	w := harness.NewWorld(t, func(c *config.Config) { c.Ingress.ProxyProtocol = []string{"127.0.0.1/32"} })
	box := w.Create(map[string]any{"network_policy": map[string]any{"mode": "deny-all"}})
	w.MustSh(box, `cat > server.py <<'EOF'
import http.server
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = ("from " + self.headers.get("X-Forwarded-For", "")).encode()
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers(); self.wfile.write(body)
http.server.ThreadingHTTPServer(("127.0.0.1", 8000), H).serve_forever()
`+"EOF"+`
setsid python3 server.py >/dev/null 2>&1 & until curl -s -o /dev/null http://127.0.0.1:8000/; do sleep 0.05; done`)
	v := visitURL(w, box, map[string]any{"port": 8000})
	// 192.0.2.7:4711 to 198.51.100.1:443
	const header = "\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c\xc0\x00\x02\x07\xc6\x33\x64\x01\x12\x67\x01\xbb"
	ask := func(at, first string) string {
		tcp, err := w.Net.Gateway().DialContext(t.Context(), "tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		defer tcp.Close()
		_ = tcp.SetDeadline(time.Now().Add(harness.Patience))
		_, _ = io.WriteString(tcp, first)
		c := tls.Client(tcp, &tls.Config{ServerName: v.host, RootCAs: v.roots})
		_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: "+v.host+"\r\nX-Forwarded-For: 6.6.6.6\r\n\r\n")
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			return "refused"
		}
		defer res.Body.Close()
		said, _ := io.ReadAll(res.Body)
		return string(said)
	}
	for name, c := range map[string]struct{ at, first, want string }{
		"the balancer":                  {"127.0.0.1:443", header, "from 192.0.2.7"},
		"a visitor":                     {"[::1]:443", "", "from ::1"},
		"a visitor who claims one":      {"[::1]:443", header, "refused"},
		"the balancer says nothing":     {"127.0.0.1:443", "", "refused"},
		"the balancer claims by text":   {"127.0.0.1:443", "PROXY TCP4 192.0.2.7 198.51.100.1 4711 443\r\n", "refused"},
		"the balancer's header is torn": {"127.0.0.1:443", strings.Replace(header, "\x0c", "\x04", 1), "refused"},
	} {
		if got := ask(c.at, c.first); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
