package upstream

import (
	"bufio"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"boxgate/e2e/harness"
)

// programs is where `make proxies` unpacks tinyproxy and microsocks.
const programs = "/var/lib/boxgate/proxies/usr/bin/"

// The credentials required by the proxies.
const (
	user     = "boxgate-user"
	password = "canary-proxy-password-5d1f"
)

// proxies are the proxies of one test's internet.
type proxies struct {
	w *harness.World
}

// program starts one of the proxies on a new address, and returns when it listens.
func (p proxies) program(name, host, addr string, port int, command func() []string) {
	t := p.w.T
	t.Helper()
	if err := p.w.Net.AddHost(host, addr); err != nil {
		t.Fatal(err)
	}
	line := command()
	if _, err := os.Stat(line[0]); err != nil {
		t.Fatalf("needs %s: sudo make proxies", name)
	}
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Stdout, cmd.Stderr = io.Discard, io.Discard
	if err := p.w.Net.Internet().Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	p.w.Until(name+" listens", func() bool {
		c, err := p.w.Net.Internet().DialContext(t.Context(), "tcp", fmt.Sprintf("%s:%d", addr, port))
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
}

// tinyproxy starts tinyproxy, which supports CONNECT.
func (p proxies) tinyproxy(host, addr string) {
	p.program("tinyproxy", host, addr, 8888, func() []string {
		dir := p.w.T.TempDir()
		conf := filepath.Join(dir, "tinyproxy.conf")
		text := fmt.Sprintf("Port 8888\nListen %s\nTimeout 600\nMaxClients 200\nBasicAuth %s %s\nLogLevel Critical\n", addr, user, password)
		if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
			p.w.T.Fatal(err)
		}
		return []string{programs + "tinyproxy", "-d", "-c", conf}
	})
}

// microsocks starts microsocks, which supports SOCKS5.
func (p proxies) microsocks(host, addr string) {
	p.program("microsocks", host, addr, 1080, func() []string {
		return []string{programs + "microsocks", "-i", addr, "-p", "1080", "-u", user, "-P", password}
	})
}

// connector is a proxy that supports CONNECT, over TLS if it is served so, resolves names with the test's table, and
// records its requests.
type connector struct {
	w *harness.World

	mu    sync.Mutex
	names map[string]string
	asked []string
	given []string // credentials
	open  []net.Conn
}

// serve answers one client.
func (p *connector) serve(c net.Conn) {
	defer c.Close()
	in := bufio.NewReader(c)
	r, err := http.ReadRequest(in)
	if err != nil {
		return
	}
	p.mu.Lock()
	p.asked = append(p.asked, r.Host)
	if text := r.Header.Get("Proxy-Authorization"); text != "" {
		p.given = append(p.given, text)
	}
	host, port, _ := net.SplitHostPort(r.Host)
	if a, known := p.names[host]; known {
		host = a
	}
	p.open = append(p.open, c)
	p.mu.Unlock()
	want := "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
	if r.Method != http.MethodConnect || r.Header.Get("Proxy-Authorization") != want {
		_, _ = io.WriteString(c, "HTTP/1.1 407 Authenticate\r\nProxy-Authenticate: Basic realm=\"x\"\r\nContent-Length: 0\r\n\r\n")
		return
	}
	if _, err := netip.ParseAddr(host); err != nil {
		_, _ = io.WriteString(c, "HTTP/1.1 502 No such name\r\nContent-Length: 0\r\n\r\n")
		return
	}
	up, err := p.w.Net.Internet().DialContext(p.w.T.Context(), "tcp", net.JoinHostPort(host, port))
	if err != nil {
		_, _ = io.WriteString(c, "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
		return
	}
	defer up.Close()
	_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
	go func() {
		_, _ = io.Copy(up, in)
		if tcp, ok := up.(*net.TCPConn); ok {
			_ = tcp.CloseWrite()
		}
	}()
	_, _ = io.Copy(c, up)
}

// takeRequests returns the requests since the last call.
func (p *connector) takeRequests() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	asked := slices.Clone(p.asked)
	p.asked = nil
	return asked
}

// direct returns the named servers that received packets from the gateway's host.
func direct(w *harness.World, hosts ...string) (out []string) {
	w.T.Helper()
	w.AwaitCounted()
	for _, h := range hosts {
		if n := len(w.Net.Packets(h)); n > 0 {
			out = append(out, fmt.Sprintf("%s: %d", h, n))
		}
	}
	return out
}

// login returns the login for a proxy of a scheme.
func login(scheme, password string) map[string]any {
	return map[string]any{"proxy": map[string]string{"scheme": scheme, "username": user, "password": password}}
}

// attach returns header rules with the login for the proxy of a URL, and others.
func attach(url, password string, more map[string]any) map[string]any {
	scheme, host, _ := strings.Cut(url, "://")
	out := map[string]any{host: login(scheme, password)}
	for host, entry := range more {
		out[host] = entry
	}
	return out
}

// by returns a policy with a proxy.
func by(policy map[string]any, url string, there ...string) map[string]any {
	proxy := map[string]any{"url": url}
	if len(there) > 0 {
		proxy["resolve_there"] = there
	}
	policy["upstream_proxy"] = proxy
	return policy
}

func open() map[string]any { return map[string]any{"mode": "allow-all"} }

// has reports whether one of several texts contains a part.
func has(texts []string, part string) bool {
	return slices.ContainsFunc(texts, func(s string) bool { return strings.Contains(s, part) })
}
