package clients

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"net/http/httputil"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"boxgate/audit"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/internal/lab"
	"boxgate/internal/nightly"
	"boxgate/launcher"
	"boxgate/policy"
	"boxgate/policy/name"
)

// TestMCPSDK has the official TypeScript SDK as client in a box and as server: over streamable HTTP, with a session, an event stream, a
// request of the server and a response of the client. Two of three tools are allowed.
func TestMCPSDK(t *testing.T) {
	nightly.Only(t)
	t.Parallel()
	const host = "mcp.example.com"
	w, _, _ := newClients(t)
	dir := t.TempDir()
	for _, args := range [][]string{
		{"cp", "testdata/mcp/server.mjs", "testdata/mcp/client.mjs", dir},
		{"npm", "install", "--prefix", dir, "--no-audit", "--no-fund", "--silent", "@modelcontextprotocol/sdk@1"},
	} {
		if out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v: %s", args, err, out)
		}
	}
	server := serveMCP(t, w, dir, host)
	box := w.Create(map[string]any{"runtime": "clients", "network_policy": map[string]any{
		"mode": "custom", "allowed_domains": []string{host}, "rules": []any{
			map[string]any{"hosts": []string{host}, "paths": []string{"/mcp"}, "action": "allow", "match": map[string]any{"mcp": map[string]any{
				"session": true, "methods": []string{"tools/list"}, "tools": []string{"search", "read_file"},
			}}},
			map[string]any{"hosts": []string{host}, "action": "deny"},
		},
	}})
	files, err := exec.CommandContext(t.Context(), "tar", "-C", dir, "-c", "client.mjs", "node_modules", "package.json").Output()
	if err != nil {
		t.Fatal(err)
	}
	if out, code := launch(w, t, box, launcher.ExecSpec{Args: []string{"sh", "-c", "mkdir /tmp/mcp && tar -C /tmp/mcp -x"}, Stdin: bytes.NewReader(files)}); code != 0 {
		t.Fatal(out)
	}
	out, code := w.Sh(box, "cd /tmp/mcp && node client.mjs https://"+host+"/mcp")
	if code != 0 {
		t.Errorf("exit %d", code)
	}
	harness.Contains(t, out, "tools=search,read_file,delete_file\n", "search=search \n", "read_file=read_file file:///work\n",
		"delete_file=refused request_rule\n", "resources=refused request_rule\n", "ping={}\n", "end=undefined\n")
	harness.Contains(t, server.String(), "called search", "called read_file", "received GET", "received DELETE")
	if strings.Contains(server.String(), "called delete_file") {
		t.Error("the server received the denied call")
	}
	w.Event(box, func(e audit.Event) bool {
		return e.Verdict == policy.Deny && e.Reason == name.ReasonRequestRule && e.Path == "/mcp"
	})
}

// TestAgentByMCPSDK has the official TypeScript SDK as the client of `gateway mcp` in a box: the handshake, the tools, errors of the protocol
// and of tools, a call that is cancelled, and one that reports progress until someone answers from outside.
func TestAgentByMCPSDK(t *testing.T) {
	nightly.Only(t)
	t.Parallel()
	w := harness.NewWorld(t, func(c *config.Config) {
		withClients(t)(c)
		c.Approvals.Enabled, c.Approvals.EveryBox = true, true
	})
	dir := t.TempDir()
	for _, args := range [][]string{
		{"cp", "testdata/mcp/agent.mjs", dir},
		{"npm", "install", "--prefix", dir, "--no-audit", "--no-fund", "--silent", "@modelcontextprotocol/sdk@1"},
	} {
		if out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v: %s", args, err, out)
		}
	}
	box := w.Create(map[string]any{"runtime": "clients", "network_policy": harness.Custom("api.example.com")})
	files, err := exec.CommandContext(t.Context(), "tar", "-C", dir, "-c", "agent.mjs", "node_modules", "package.json").Output()
	if err != nil {
		t.Fatal(err)
	}
	if out, code := launch(w, t, box, launcher.ExecSpec{Args: []string{"sh", "-c", "mkdir /tmp/mcp && tar -C /tmp/mcp -x"}, Stdin: bytes.NewReader(files)}); code != 0 {
		t.Fatal(out)
	}
	w.Run(0, nil, "", "box", "cp", harness.Gateway(), box+":/tmp/mcp/gateway")
	w.MustSh(box, "chmod 755 /tmp/mcp/gateway; curl -sS -m 60 -o /dev/null http://www.example.com/")
	out := &lab.SyncBuffer{}
	wait := w.Background(box, "cd /tmp/mcp && node agent.mjs /tmp/mcp/gateway 2>&1", out)
	var open []struct{ ID, Host string }
	w.Until("the agent asks", func() bool {
		err := w.Client.Get(t.Context(), "/v2/approvals?state=open", &open)
		open = slices.DeleteFunc(open, func(a struct{ ID, Host string }) bool { return a.Host != "www.example.com" })
		return err == nil && len(open) == 1 && strings.Contains(out.String(), "waiting")
	})
	w.Run(0, nil, "", "approvals", "approve", open[0].ID, "--reason", "docs are fine", "--yes")
	if code, err := wait(); code != 0 || err != nil {
		t.Errorf("exit %d: %v", code, err)
	}
	harness.Contains(t, out.String(), "server=boxgate\n", "instructions=true\n", "tools=network_policy:object,network_denials:object,request_access:object\n", "ping={}\n",
		"resources=error -32601\n", "policy=custom\n", "denials=true\n", "unknown=error -32602\n", "protected=true\n", "cancelled=error ", "waiting\n", "meanwhile={}\n", "answer=once\n", "end\n")
	w.NoInternalErrors()
}

// serveMCP runs the SDK's server as a host of the test internet, and returns its output.
func serveMCP(t *testing.T, w *harness.World, dir, host string) *lab.SyncBuffer {
	t.Helper()
	socket, out := filepath.Join(dir, "socket"), &lab.SyncBuffer{}
	node := exec.Command("node", filepath.Join(dir, "server.mjs"), socket)
	node.Dir, node.Stdout, node.Stderr = dir, out, out
	if err := node.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = node.Process.Kill()
		_ = node.Wait()
	})
	w.Until("the server of the SDK listens", func() bool { return strings.Contains(out.String(), "listening") })
	forward := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.Out.URL.Scheme, r.Out.URL.Host = "http", host },
		FlushInterval: -1,
		Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		}},
	}
	if err := w.Net.AddHost(host, "198.51.100.122", "2001:db8:1::122"); err != nil {
		t.Fatal(err)
	}
	if err := w.Net.ServeHTTP(host, forward); err != nil {
		t.Fatal(err)
	}
	return out
}
