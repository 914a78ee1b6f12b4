package lifecycle

import (
	"io"
	"net"
	"strings"
	"testing"

	"boxgate/config"
	"boxgate/e2e/harness"
)

// TestReloadRemovesServices: after a reload without a service, no new connection reaches it, although the policy of the box still lists it,
// and one that the configuration has gained is open.
func TestReloadRemovesServices(t *testing.T) {
	t.Parallel()
	u := newUpgrading(t, func(c *config.Config) { c.Network.Services = config.Services{"old": {Host: "127.0.0.1:5432"}} })
	u.StartIfStopped()
	var ln net.Listener
	err := u.Net.Gateway().Do(func() (err error) { ln, err = net.Listen("tcp", "127.0.0.1:5432"); return err })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		for c, err := ln.Accept(); err == nil; c, err = ln.Accept() {
			go func() { _, _ = io.Copy(c, c) }()
		}
	}()
	box := u.Create(map[string]any{"network_policy": harness.Custom("service:old", "service:new")})
	echoes := func(of string) bool {
		out, _ := u.Sh(box, "python3 - <<'END'\nimport socket\ns = socket.create_connection(('"+of+".service.boxgate.internal', 5432), 30)\ns.settimeout(30)\ns.sendall(b'echo')\nprint('GOT', s.recv(9))\nEND")
		return strings.Contains(out, "GOT b'echo'")
	}
	if !echoes("old") || echoes("new") {
		t.Error("before: the service is closed, or another one is open")
	}
	u.reconfigure(func(c *config.Config) { c.Network.Services = config.Services{"new": {Host: "127.0.0.1:5432"}} })
	u.mustReplace("reload")
	if !echoes("new") || echoes("old") { // in this order: for seconds after the lookup of a closed service, bytes without a name may be for it
		t.Error("after: the removed service is open, or the new one is closed")
	}
}
