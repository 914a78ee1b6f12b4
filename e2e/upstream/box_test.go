package upstream

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"boxgate/audit"
	"boxgate/e2e/harness"
	"boxgate/policy"
	"boxgate/policy/name"
)

// origins are servers that boxes reach through proxies.
var origins = []string{"api.example.com", "www.example.com", "ws.example.com", "plain.example.com", "git.example.com", "raw.example.net"}

// newWorld creates a gateway whose packets are counted, with a server of a custom protocol.
func newWorld(t *testing.T) *harness.World {
	t.Helper()
	w := harness.NewCaptured(t, nil)
	prepare(t, w)
	return w
}

func prepare(t *testing.T, w *harness.World) {
	t.Helper()
	if err := w.Net.AddHost("raw.example.net", "198.51.100.90"); err != nil {
		t.Fatal(err)
	}
	if err := w.Net.ServeConns("raw.example.net", 7000, greet); err != nil {
		t.Fatal(err)
	}
}

// greet speaks first, and then echoes.
func greet(c net.Conn) {
	defer c.Close()
	fmt.Fprint(c, "hello first\n")
	buf := make([]byte, 100)
	for {
		n, err := c.Read(buf)
		if err != nil {
			return
		}
		if _, err := c.Write(buf[:n]); err != nil {
			return
		}
	}
}

// speak makes a box exchange a line with the server of that protocol, by its name or address.
func speak(w *harness.World, box, host string) string {
	out, _ := w.Sh(box, `python3 -c '
import socket
s = socket.create_connection(("`+host+`", 7000), 20)
f = s.makefile("rw")
print(f.readline().strip())
f.write("pong\n"); f.flush()
print(f.readline().strip())' 2>&1`)
	return out
}

// TestUpstreamProxyOfABox: all allowed traffic of a box goes through its proxy, whose password is not in the box:
// spliced TLS, requests with header rules over both versions of HTTP, plain HTTP, other protocols, the explicit proxy.
// No traffic goes directly, including traffic that the kernel would forward.
func TestUpstreamProxyOfABox(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := proxies{w}
	p.tinyproxy("proxy.example.net", "198.51.100.95")
	p.microsocks("socks.example.net", "198.51.100.96")
	secure := &connector{w: w}
	if err := w.Net.AddHost("secure.example.net", "198.51.100.97"); err != nil {
		t.Fatal(err)
	}
	if err := w.Net.ServeConns("secure.example.net", 8443, secure.serve, "http/1.1"); err != nil {
		t.Fatal(err)
	}
	for _, url := range []string{"http://proxy.example.net:8888", "socks5://socks.example.net:1080", "https://secure.example.net:8443"} {
		scheme, _, _ := strings.Cut(url, "://")
		t.Run(scheme, func(t *testing.T) {
			w := w.On(t)
			box := w.Create(map[string]any{
				"network_policy": by(open(), url),
				"attach_headers": attach(url, password, map[string]any{"api.example.com": map[string]string{"X-Key": harness.TestSecret}}),
			})
			passes(t, w, box, url)
			refusesOthers(t, w, box)
			if seen := direct(w, origins...); len(seen) > 0 {
				t.Errorf("packets went past the proxy: %v", seen)
			}
			hidden(t, w, box)
		})
	}
	for _, r := range w.Net.Received("api.example.com") {
		if r.Target == "/key" && r.Header.Get("X-Key") != harness.TestSecret {
			t.Errorf("without its header: %+v", r)
		}
		if r.Header.Get("Proxy-Authorization") != "" {
			t.Errorf("the server received the proxy's credentials: %v", r.Header)
		}
	}
	w.NoInternalErrors()
}

// passes checks the traffic through the proxy.
func passes(t *testing.T, w *harness.World, box, url string) {
	t.Helper()
	for _, r := range w.ShEach(box,
		"curl -k -sS -f -m 30 -o /dev/null https://www.example.com/spliced",
		"curl -sS -f -m 30 -o /dev/null http://plain.example.com/plain",
		"curl -sS -f -m 30 -o /dev/null --http1.1 https://api.example.com/key https://api.example.com/key",
		"curl -sS -f -m 30 -o /dev/null --http2 https://api.example.com/key https://api.example.com/key",
		"curl -sS -f -m 30 -o /dev/null -k -x http://10.200.0.1:3128 https://www.example.com/explicit",
		"curl -sS -f -m 30 -o /dev/null -x http://10.200.0.1:3128 http://plain.example.com/explicit",
		"head -c 3000000 /dev/zero | curl -k -sS -f -m 60 --http1.1 -o /dev/null -T - https://www.example.com/upload",
	) {
		if r.Code != 0 {
			t.Errorf("%s: %d %s", r.Line, r.Code, r.Out)
		}
	}
	for _, host := range []string{"raw.example.net", "198.51.100.90"} {
		if got := speak(w, box, host); got != "hello first\npong\n" {
			t.Errorf("%s: %q", host, got)
		}
	}
	e := w.Event(box, func(e audit.Event) bool { return e.Name == "www.example.com" && e.Action == audit.ActionSplice })
	if e.Via != url {
		t.Errorf("the event says via %q", e.Via)
	}
	if e := w.Event(box, func(e audit.Event) bool { return e.Path == "/key" }); e.Via != url || e.Verdict != policy.Allow {
		t.Errorf("the event of a request: %+v", e)
	}
}

// refusesOthers checks that traffic which cannot use a proxy is refused.
func refusesOthers(t *testing.T, w *harness.World, box string) {
	t.Helper()
	for _, r := range w.ShEach(box,
		`python3 -c 'import socket; s=socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(5); s.connect(("198.51.100.11", 443)); s.send(b"x"); s.recv(9)'`,
		`python3 -c 'import socket; s=socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(5); s.connect(("198.51.100.11", 9999)); s.send(b"x"); s.recv(9)'`,
		"ping -c 1 -W 3 198.51.100.11",
	) {
		if r.Code == 0 {
			t.Errorf("%s: %s", r.Line, r.Out)
		}
	}
	w.Event(box, func(e audit.Event) bool {
		return e.Protocol == policy.UDP && e.Port == 9999 && e.Reason == name.ReasonProtocol && e.Verdict == policy.Deny
	})
}

// hidden checks that the password is neither in the box nor in the gateway's answers about it.
func hidden(t *testing.T, w *harness.World, box string) {
	t.Helper()
	out, _ := w.Sh(box, "env; cat /proc/*/environ /etc/* 2>/dev/null | tr '\\0' '\\n'")
	for _, what := range []string{"config/network-policy", "config/attach-headers", "egress", ""} {
		var got any
		text := ""
		if what == "egress" {
			text, _ = w.GatewayCommand("log", "--box", box, "--json")
		} else if err := w.Client.Do(t.Context(), "GET", strings.TrimSuffix("/v2/box/"+box+"/"+what, "/"), nil, &got); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		out += fmt.Sprint(got) + text
	}
	if strings.Contains(out+w.LogText(), password) {
		t.Error("the password of the proxy is shown")
	}
}
