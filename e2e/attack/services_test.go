package attack

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"boxgate/audit"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/policy"
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
