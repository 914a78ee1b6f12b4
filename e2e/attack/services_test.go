package attack

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"boxgate/audit"
	"boxgate/certs"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/policy"
	"boxgate/policy/name"
)

// A box reaches a service of the host and a port of another box by name if its policy lists them, and nothing else there. When the policy
// closes the service, its open connection is cut.
func TestAttackServices(t *testing.T) {
	t.Parallel()
	w := harness.NewCaptured(t, func(c *config.Config) {
		c.Network.Services = config.Services{
			"db": {Host: "127.0.0.1:5432"}, "web": {Box: "neighbour", Port: 8000},
		}
	})
	accepted := make(chan net.Conn, 10)
	for _, port := range []int{5432, 5433} {
		var ln net.Listener
		err := w.Net.Gateway().Do(func() (err error) {
			ln, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = ln.Close() })
		go func() {
			for c, err := ln.Accept(); err == nil; c, err = ln.Accept() {
				if port != 5432 {
					t.Errorf("port %d of the host was reached", port)
				}
				accepted <- c
				go func() { _, _ = io.Copy(c, c) }()
			}
		}()
	}
	neighbour := w.Create(map[string]any{"name": "neighbour"})
	w.Background(neighbour, "cd /tmp && echo neighbour > index.html && exec python3 -m http.server 8000", io.Discard)
	const ask = `import socket,sys
s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 30)
s.settimeout(30)
try:
    s.sendall(b"echo this\x00\xff")
    print("GOT", s.recv(100))
except OSError as e:
    print("ERR", type(e).__name__)
`
	asked := func(box, host string, port int) string {
		t.Helper()
		out, _ := w.Sh(box, fmt.Sprintf("python3 - %s %d <<'END'\n%sEND", host, port, ask))
		return out
	}
	const db = "db.service.boxgate.internal"
	box := w.Create(map[string]any{"network_policy": harness.Custom("service:db", "service:web")})
	if out := asked(box, db, 5432); !strings.Contains(out, "GOT b'echo this") {
		t.Errorf("the listed service: %s", out)
	}
	e := w.Event(box, func(e audit.Event) bool { return e.Stage == policy.StageConn && e.Name == db })
	if e.Verdict != policy.Allow || e.Rule != "service:db" || e.Port != 5432 {
		t.Errorf("decision: %s", audit.Line(e))
	}
	w.Until("the neighbour answers", func() bool {
		out, _ := w.Sh(box, "curl -sS -m 30 http://web.service.boxgate.internal:8000/")
		return strings.Contains(out, "neighbour")
	})
	for _, to := range []struct {
		host string
		port int
	}{{db, 5433}, {db, 8600}, {"web.service.boxgate.internal", 8001}, {"127.0.0.1.nip.example.com", 5432}, {"gone.service.boxgate.internal", 5432}} {
		if out := asked(box, to.host, to.port); strings.Contains(out, "GOT") {
			t.Errorf("%s:%d was reached: %s", to.host, to.port, out)
		}
	}
	for _, p := range []map[string]any{{"mode": "allow-all"}, harness.Custom("*", "*.boxgate.internal"), harness.Custom("service:web"), {"mode": "deny-all"}} {
		other := w.Create(map[string]any{"network_policy": p})
		if out := asked(other, db, 5432); strings.Contains(out, "GOT") {
			t.Errorf("%v opens the service: %s", p, out)
		}
	}
	for len(accepted) > 0 {
		_ = (<-accepted).Close()
	}
	held := w.Background(box, "python3 - <<'END'\nimport socket,time\nwhile True:\n    try:\n        s = socket.create_connection(('"+db+"', 5432), 30)\n        s.sendall(b'held')\n        s.recv(4)\n        break\n    except OSError:\n        time.sleep(1)\ns.settimeout(60)\ntry:\n    s.recv(1)\nexcept ConnectionResetError:\n    pass\nEND", io.Discard)
	open := <-accepted
	w.SetPolicy(box, harness.Custom("service:web"))
	if code, err := held(); code != 0 || err != nil {
		t.Errorf("the connection outlived its entry: %d %v", code, err)
	}
	_ = open.Close()
}

// A service at an address that the host gets later, and a listener of the gateway on all addresses with it, is closed from the next
// connection on.
func TestAttackServiceBecomesTheGateways(t *testing.T) {
	t.Parallel()
	const at = "192.0.2.77"
	w := harness.NewWorld(t, func(c *config.Config) {
		c.Network.Services = config.Services{"late": {Host: at + ":80"}}
		c.Ingress.HTTP = ":80"
	})
	box := w.Create(map[string]any{"network_policy": harness.Custom("service:late")})
	const get = "curl -sS --max-time 60 -o /dev/null -w '%{http_code}' http://late.service.boxgate.internal/echo"
	if out, code := w.Sh(box, get); code != 0 || out != "200" {
		t.Fatalf("the service: %d %s", code, out)
	}
	if out, err := w.Net.Gateway().Run(t.Context(), "ip", "address", "add", at+"/32", "dev", "lo"); err != nil {
		t.Fatal(err, out)
	}
	if out, err := w.Net.Gateway().Run(t.Context(), "curl", "-sS", "--max-time", "60", "-o", "/dev/null", "-w", "%{http_code}", "http://"+at+"/"); err != nil || out == "200" {
		t.Fatalf("the gateway does not listen there: %v %s", err, out)
	}
	if out, _ := w.Sh(box, get); out != "403" {
		t.Errorf("the gateway as a service: %s", out)
	}
	e := w.Event(box, func(e audit.Event) bool { return e.Verdict == policy.Deny && e.Name == "late.service.boxgate.internal" })
	if e.Reason != name.ReasonHostPort {
		t.Errorf("decision: %s", audit.Line(e))
	}
}

// ruledServices are two servers of the gateway's host, over HTTP and TLS, that record requests.
type ruledServices struct {
	mu   sync.Mutex
	seen []string // host, path and X-Key of each request
}

// received returns the requests since the last call.
func (s *ruledServices) received() (all []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all, s.seen = s.seen, nil
	return all
}

const (
	plainService  = "web.service.boxgate.internal"
	secretService = "tls.service.boxgate.internal"
)

// ruledWorld starts a gateway with the services web and tls, and serves them.
func ruledWorld(t *testing.T) (*harness.World, *ruledServices) {
	t.Helper()
	ca, err := certs.NewCA("services")
	if err != nil {
		t.Fatal(err)
	}
	issued, err := certs.NewIssued(ca, secretService)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, ca.CertificatePEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	w := harness.NewCaptured(t, func(c *config.Config) {
		c.Proxy.UpstreamCAFiles = append(c.Proxy.UpstreamCAFiles, file)
		c.Network.Services = config.Services{"web": {Host: "127.0.0.1:8080"}, "tls": {Host: "127.0.0.1:8443"}}
	})
	s := &ruledServices{}
	for at, secured := range map[string]bool{"127.0.0.1:8080": false, "127.0.0.1:8443": true} {
		var ln net.Listener
		if err := w.Net.Gateway().Do(func() (err error) { ln, err = net.Listen("tcp", at); return err }); err != nil {
			t.Fatal(err)
		}
		server := &http.Server{Handler: s, TLSConfig: &tls.Config{GetCertificate: issued.GetCertificate}}
		t.Cleanup(func() { _ = server.Close() })
		if secured {
			go func() { _ = server.ServeTLS(ln, "", "") }()
		} else {
			go func() { _ = server.Serve(ln) }()
		}
	}
	return w, s
}

// ServeHTTP records a request.
func (s *ruledServices) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = append(s.seen, r.Host+" "+r.URL.Path+" "+r.Header.Get("X-Key"))
	_, _ = io.WriteString(w, "served")
}

// Header rules apply to services over TLS, under every spelling of the name. Inside of a connection to a service no request
// leaves it, and none comes to it from a connection to another host. The explicit proxy opens no more.
func TestAttackServiceWithACredential(t *testing.T) {
	t.Parallel()
	w, s := ruledWorld(t)
	key := map[string]string{"X-Key": harness.Canary}
	box := w.Create(map[string]any{
		"network_policy": harness.Custom("service:web", "service:tls", "api.example.com"),
		"attach_headers": map[string]any{plainService + ":8080": key, secretService + ":8443": key, "api.example.com": map[string]string{"X-Other": "other"}},
	})
	in := w.Intrude(box)
	for network, sink := range map[string]string{"ip4": "10.200.0.2", "ip6": "fd42:b0c5::2"} {
		if got := in.Resolve("WEB.Service.boxgate.internal", network); got.String() != sink {
			t.Errorf("DNS answers %v, want the sink", got)
		}
	}
	const get = "curl -sS -m 60 --noproxy '*' -o /dev/null -w '%{http_code}' "
	const proxied = "curl -sS -m 60 -o /dev/null -w '%{http_code}' -x http://10.200.0.1:3128 "
	for _, url := range []string{
		get + "http://" + plainService + ":8080/1", get + "http://WEB.Service.BOXGATE.internal.:8080/1", proxied + "http://" + plainService + ":8080/1",
		get + "https://" + secretService + ":8443/1", get + "--http1.1 https://TLS.service.boxgate.internal:8443/1", proxied + "https://" + secretService + ":8443/1",
		proxied + "-p http://" + plainService + ":8080/1",
	} {
		out, _ := w.Sh(box, url)
		seen := s.received()
		want := " /1 "
		if strings.Contains(url, "https:") {
			want += harness.Canary
		}
		if out != "200" || len(seen) != 1 || !strings.HasSuffix(seen[0], want) {
			t.Errorf("%s: %s, the service saw %q", url, out, seen)
		}
	}
	for _, line := range []string{
		get + "-H 'Host: evil.example.net' http://" + plainService + ":8080/2",
		get + "-H 'Host: " + plainService + ":8080' http://api.example.com/2",
		get + "-H 'Host: " + plainService + "' http://" + plainService + ":8080/2",
		get + "-H 'Host: evil.example.net' https://" + secretService + ":8443/2",
		get + "--http1.1 -H 'Host: evil.example.net' https://" + secretService + ":8443/2",
		get + "-H 'Host: " + plainService + ":8080' https://" + secretService + ":8443/2",
		get + "-H 'Host: " + secretService + ":8443' https://api.example.com/2",
		get + "--http1.1 -H 'Host: " + secretService + "' https://api.example.com/2",
		get + "http://127.0.0.1:8080/2", proxied + "http://127.0.0.1:8080/2", proxied + "-p http://127.0.0.1:8080/2", proxied + "http://localhost:8080/2",
		proxied + "http://[::ffff:127.0.0.1]:8080/2", proxied + "http://0.0.0.0:8080/2", proxied + "-p http://" + plainService + ":8443/2",
		proxied + "https://" + secretService + ":8080/2", get + "http://a." + plainService + ":8080/2", get + "http://service.boxgate.internal:8080/2",
	} {
		out, _ := w.Sh(box, line)
		if seen := s.received(); strings.Contains(out, "200") && len(seen) == 0 || len(seen) > 0 {
			t.Errorf("%s: %s, the services saw %q", line, out, seen)
		}
	}
	w.NothingReached("evil.example.net")
}
