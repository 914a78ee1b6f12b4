package upstream

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"boxgate/audit"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/internal/lab"
	"boxgate/internal/testnet"
	"boxgate/policy/name"
	"boxgate/secrets"
)

// newHostWorld returns a gateway whose configuration has an upstream proxy, with the password in a file.
func newHostWorld(t *testing.T, change func(*config.Config)) (*harness.World, string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte(password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w := harness.NewStopped(t, lab.Options{Net: testnet.Options{Capture: true}, Change: func(c *config.Config) {
		c.Secrets.Sources = map[string]secrets.Source{"corp-proxy": {File: file}}
		c.Proxy.Upstream = config.Upstream{URL: "http://10.0.0.9:8888", Username: user, Password: "corp-proxy"}
		c.Network.ProtectedExempt = testnet.Prefixes()
		change(c)
	}})
	prepare(t, w)
	return w, file
}

func start(t *testing.T, w *harness.World) {
	t.Helper()
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestUpstreamProxyOfTheHost: every box uses the operator's proxy, which may be in a private network that boxes cannot
// reach. A box's own proxy is reached through it. Exceptions of the operator go directly; exceptions claimed by a box
// do not.
func TestUpstreamProxyOfTheHost(t *testing.T) {
	t.Parallel()
	w, file := newHostWorld(t, func(c *config.Config) {
		c.Proxy.Upstream.Direct = []string{"git.example.com", "203.0.113.10/32"}
	})
	p := proxies{w}
	p.tinyproxy("inside.example.net", "10.0.0.9")
	p.microsocks("socks.example.net", "198.51.100.96")
	start(t, w)
	const url = "http://10.0.0.9:8888"
	box := w.Create(map[string]any{"network_policy": open(), "attach_headers": map[string]any{"api.example.com": map[string]string{"X-Key": harness.TestSecret}}})
	passes(t, w, box, url)
	refusesOthers(t, w, box)
	for _, r := range w.ShEach(box,
		"curl -sS -f -m 20 http://10.0.0.9:8888/", "curl -sS -f -m 20 http://inside.example.net:8888/", "curl -k -sS -f -m 20 https://10.0.0.5/",
		"curl -sS -f -m 20 -x http://10.0.0.9:8888 http://plain.example.com/", "curl -sS -f -m 20 -x http://10.200.0.1:3128 http://10.0.0.9:8888/",
	) {
		if r.Code == 0 {
			t.Errorf("%s: %s", r.Line, r.Out)
		}
	}
	if seen := direct(w, "api.example.com", "www.example.com", "plain.example.com", "raw.example.net"); len(seen) > 0 {
		t.Errorf("packets went past the proxy: %v", seen)
	}
	w.MustSh(box, "curl -k -sS -f -m 20 -o /dev/null https://git.example.com/")
	w.MustSh(box, "curl -sS -m 20 -o /dev/null http://203.0.113.10/")
	if seen := direct(w, "git.example.com", "203.0.113.10"); len(seen) != 2 {
		t.Errorf("what is excepted went by the proxy: %v", seen)
	}
	w.MustSh(box, "curl -k -sS -m 20 -o /dev/null --resolve git.example.com:443:198.51.100.11 https://git.example.com/; curl -sS -o /dev/null -m 20 -H 'Host: git.example.com' http://198.51.100.11/; true")
	if seen := direct(w, "www.example.com"); len(seen) > 0 {
		t.Errorf("the claim of a name led past the proxy: %v", seen)
	}
	chained := w.Create(map[string]any{
		"network_policy": by(open(), "socks5://socks.example.net:1080"),
		"attach_headers": attach("socks5://socks.example.net:1080", password, map[string]any{"api.example.com": map[string]string{"X-Key": harness.TestSecret}}),
	})
	passes(t, w, chained, "socks5://socks.example.net:1080")
	if seen := direct(w, "socks.example.net", "api.example.com", "www.example.com"); len(seen) > 0 {
		t.Errorf("packets went past the proxy of the host: %v", seen)
	}
	hidden(t, w, box)
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	tunnel := w.Intrude(box).DialHost("raw.example.net", 7000)
	if _, err := io.ReadFull(tunnel, make([]byte, 12)); err != nil {
		t.Fatal(err)
	}
	w.Run(1, nil, "", "secret", "refresh", "corp-proxy")
	if _, err := tunnel.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("a tunnel outlives the password that it was made with")
	}
	if out, code := w.Sh(box, "curl -k -sS -f -m 20 https://www.example.com/; curl -sS -f -m 20 http://plain.example.com/"); code == 0 {
		t.Errorf("without a password: %s", out)
	}
	w.Event(box, func(e audit.Event) bool { return e.Reason == name.ReasonSecretUnavailable })
	if seen := direct(w, "www.example.com", "plain.example.com"); len(seen) > 0 {
		t.Errorf("without a password, packets went directly: %v", seen)
	}
	w.NoInternalErrors()
}

// TestHostThatHasNothingButAProxy: without DNS on the host, boxes reach the names that the proxy resolves. The proxy
// gets no names except those left to it.
func TestHostThatHasNothingButAProxy(t *testing.T) {
	t.Parallel()
	w, _ := newHostWorld(t, func(c *config.Config) {
		c.DNS.Upstreams = []string{"198.51.100.250:5353"}
		c.Proxy.Upstream = config.Upstream{URL: "https://198.51.100.97:9443", Username: user, Password: "corp-proxy", ResolveThere: []string{"*.example.com", "private.example.net"}}
	})
	proxy := &connector{w: w, names: map[string]string{"www.example.com": "198.51.100.11", "api.example.com": "198.51.100.10", "plain.example.com": "198.51.100.12"}}
	if err := errors.Join(w.Net.AddHost("secure.example.net", "198.51.100.97"), w.Net.ServeConns("secure.example.net", 9443, proxy.serve, "http/1.1")); err != nil {
		t.Fatal(err)
	}
	start(t, w)
	box := w.Create(map[string]any{
		"network_policy": harness.Custom("*.example.com", "evil.example.net"), "attach_headers": map[string]any{"api.example.com": map[string]string{"X-Key": harness.TestSecret}},
	})
	for _, r := range w.ShEach(box,
		"curl -k -sS -f -m 30 -o /dev/null https://www.example.com/", "curl -sS -f -m 30 -o /dev/null http://plain.example.com/",
		"curl -sS -f -m 30 -o /dev/null https://api.example.com/key https://api.example.com/key", "curl -sS -f -m 30 -o /dev/null --http1.1 https://api.example.com/key",
		"curl -k -sS -f -m 30 -o /dev/null -x http://10.200.0.1:3128 https://www.example.com/",
	) {
		if r.Code != 0 {
			t.Errorf("%s: %d %s", r.Line, r.Code, r.Out)
		}
	}
	asked := strings.Join(proxy.takeRequests(), " ")
	harness.Contains(t, asked, "www.example.com:443", "plain.example.com:80", "api.example.com:443")
	for _, r := range w.ShEach(box,
		"curl -k -sS -f -m 30 https://evil.example.net/", "curl -k -sS -f -m 30 https://private.example.net/", "curl -k -sS -f -m 30 https://nowhere.example.com/",
		"curl -k -sS -f -m 30 -x http://10.200.0.1:3128 https://private.example.net/",
	) {
		if r.Code == 0 {
			t.Errorf("%s: %s", r.Line, r.Out)
		}
	}
	if got := proxy.takeRequests(); has(got, "example.net") {
		t.Errorf("the proxy was asked for %q", got)
	}
	if seen := direct(w, origins...); len(seen) > 0 {
		t.Errorf("packets went past the proxy: %v", seen)
	}
	w.NoInternalErrors()
}
