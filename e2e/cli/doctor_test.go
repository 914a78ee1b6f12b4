package cli

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"boxgate/cmd/gateway/command/cli"
	"boxgate/e2e/harness"
	"boxgate/internal/testnet"
)

// TestDoctorExample: the example of docs/doctor.md is the output for such a server.
func TestDoctorExample(t *testing.T) {
	t.Parallel()
	w := harness.NewWorld(t, nil)
	if err := w.Net.AddHost("erp.example.com", "198.51.100.70"); err != nil {
		t.Fatal(err)
	}
	err := w.Net.ServeConns("erp.example.com", 443, func(c net.Conn) {
		defer c.Close()
		in := bufio.NewReader(c)
		for {
			r, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, r.Body)
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nX-Powered-By: ERP\r\n 7.1\r\nContent-Length: 2\r\n\r\nok")
		}
	}, "http/1.1")
	if err != nil {
		t.Fatal(err)
	}
	w.Create(map[string]any{"name": "demo", "network_policy": harness.Custom("erp.example.com"), "attach_headers": map[string]any{"erp.example.com": map[string]string{"X-Key": harness.Canary}}})
	out, code := w.GatewayCommand("doctor", "demo", "erp.example.com", "--idle", "1s")
	if code != cli.ExitFailed {
		t.Errorf("exit status %d", code)
	}
	page, err := os.ReadFile("../../docs/doctor.md")
	if err != nil {
		t.Fatal(err)
	}
	_, example, _ := strings.Cut(string(page), "$ sudo gateway doctor demo erp.example.com --idle 1s\n")
	example, _, _ = strings.Cut(example, "```")
	if got := exampleOf(out); got != example {
		t.Errorf("docs/doctor.md has\n%s\nthe command prints\n%s", example, got)
	}
	if strings.Contains(out, harness.Canary) {
		t.Error("the value of the rule is printed")
	}
}

// TestDoctorSendsThePathAsItIs: no client expands or normalizes the path. The exit status is that of the verdict, with --json as well.
func TestDoctorSendsThePathAsItIs(t *testing.T) {
	t.Parallel()
	w := harness.NewWorld(t, nil)
	w.Create(map[string]any{"name": "demo", "network_policy": harness.Custom("api.example.com")})
	const path = "/a[1-3]{b,c}/../d?e={f,g}"
	out, code := w.GatewayCommand("doctor", "demo", "api.example.com", "--idle", "0s", "--path", path)
	if code != cli.ExitOK || !strings.Contains(out, "curl in it: HTTP/2 200") {
		t.Errorf("exit status %d: %s", code, out)
	}
	seen := w.Net.Received("api.example.com", testnet.Of(testnet.Request))
	for _, r := range seen {
		if r.Target != path {
			t.Errorf("the path was sent as %s", r.Target)
		}
	}
	if len(seen) < 7 { // three ways, each with two clients, and the box's own
		t.Errorf("%d requests arrived", len(seen))
	}
	for _, args := range [][]string{{}, {"--json"}} {
		if out, code := w.GatewayCommand(append([]string{"doctor", "demo", "none.example.com", "--idle", "0s"}, args...)...); code != cli.ExitFailed {
			t.Errorf("%v: exit status %d: %s", args, code, out)
		}
	}
}

// exampleOf returns an output with the IDs of boxes replaced, and without the lines that show progress.
func exampleOf(out string) string {
	out = regexp.MustCompile(`(?m)^waiting for the gateway, .*\n`).ReplaceAllString(out, "")
	out = regexp.MustCompile(`[0-9a-f]{16}`).ReplaceAllString(out, "0123456789abcdef")
	lines := strings.Split(out, "\n")
	for i, line := range lines {
		lines[i] = strings.TrimRight(line, " ")
	}
	return strings.Join(lines, "\n")
}
