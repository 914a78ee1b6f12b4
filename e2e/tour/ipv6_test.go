package tour

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/internal/lab"
)

// A host without an IPv4 address or route to the internet: the check passes, DNS queries go to a server with an IPv6
// address, boxes reach servers by name and by address, and visitors reach public URLs.
func TestHostWithIPv6Alone(t *testing.T) {
	t.Parallel()
	w := harness.NewStopped(t, lab.Options{Change: func(c *config.Config) {
		c.DNS.Upstreams = []string{"2001:db8:53::53"}
		c.Ingress.HTTPS = "[::]:443"
	}})
	if out, err := w.Net.Gateway().Run(t.Context(), "sh", "-c", "ip -4 addr flush dev up0 && ip -4 route flush table main; ip -4 route"); err != nil || strings.Contains(out, "up0") {
		t.Fatalf("%v: IPv4 is left:\n%s", err, out)
	}
	if out, err := w.Net.Gateway().Run(t.Context(), w.Self, "check", "--config", w.Config); err != nil {
		t.Errorf("the check fails: %v\n%s", err, out)
	}
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	server := harness.AttackerAt(77)[1]
	box := w.Create(map[string]any{"network_policy": map[string]any{"mode": "custom", "allowed_domains": []string{"api.example.com", "plain.example.com"},
		"allowed_cidrs": []string{server.String() + "/128"}}})
	for _, r := range w.ShEach(box, "curl -sSf -o /dev/null https://api.example.com/", "curl -6 -sSf -o /dev/null https://api.example.com/",
		"curl -4 -sSf -o /dev/null https://api.example.com/", "curl -sSf -o /dev/null http://plain.example.com/") {
		if r.Code != 0 {
			t.Errorf("%s: exit %d %s", r.Line, r.Code, r.Out)
		}
	}
	w.Until("the kernel forwards", func() bool { return w.Raid(box).Try("udp", netip.AddrPortFrom(server, 4444)) == harness.Saw(nil) })
	if out, code := w.Sh(box, "curl -sS --max-time 20 https://evil.example.net/"); code == 0 {
		t.Errorf("a denied name is reached: %s", out)
	}

	serveInBox(w, box, "8000")
	c := visitor(w)
	c.Transport.(*http.Transport).DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		_, v6 := w.Net.GatewayAddrs()
		return w.Net.Internet().DialContext(ctx, "tcp6", netip.AddrPortFrom(v6, 443).String())
	}
	var url harness.PublicURL
	if err := w.Client.Do(t.Context(), "POST", api.BoxPath(box, "preview"), map[string]any{"port": 8000}, &url); err != nil {
		t.Fatal(err)
	}
	if status, body := visit(t, c, url.URL, nil); status != 200 || !strings.Contains(body, "hello from the box") {
		t.Errorf("a visitor gets %d %s", status, body)
	}
}
