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
