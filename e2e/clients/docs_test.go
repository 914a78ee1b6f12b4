package clients

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"boxgate/e2e/harness"
	"boxgate/internal/nightly"
	"boxgate/launcher"
)

// commandsOf returns the shell commands under a heading of docs/attach.md.
func commandsOf(t *testing.T, heading string) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/attach.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(text), "\n### "+heading+"\n")
	section, _, _ = strings.Cut(section, "\n#")
	_, commands, fenced := strings.Cut(section, "```sh\n")
	commands, _, closed := strings.Cut(commands, "\n```")
	if !found || !fenced || !closed {
		t.Fatalf("docs/attach.md has no commands under %q", heading)
	}
	return commands
}

// The commands in docs/attach.md make the programs of a box trust its CA that did not before.
func TestClientsDocumentedCommands(t *testing.T) {
	nightly.Only(t) // for every client; the gate covers them without the commands
	t.Parallel()
	w, _, box := newClients(t)
	furnishClients(w, box)
	root, user := setting{root: true, wrap: []string{"sh", "-e", "-c"}}, setting{wrap: []string{"sh", "-e", "-c"}}
	must := func(how setting, line string) string {
		t.Helper()
		out, code := as(w, t, box, how, line)
		if code != 0 {
			t.Fatalf("%s: exit %d: %s", line, code, out)
		}
		return out
	}
	// As in an image that the launcher has not prepared.
	must(root, "rm -f /usr/local/share/ca-certificates/boxgate.crt /etc/ssl/certs/boxgate-* /etc/ssl/certs/java/cacerts /etc/profile.d/boxgate.sh; update-ca-certificates --fresh >/dev/null 2>&1")
	for file, args := range map[string][]string{"boxgate-ca.pem": {"ca", "--box", box}, "boxgate-bundle.pem": {"ca", "--box", box, "--bundle"}} {
		out, code := w.GatewayCommand(args...)
		if code != 0 {
			t.Fatal(out)
		}
		if out, code := launch(w, t, box, launcher.ExecSpec{Args: []string{"sh", "-c", "cat >/tmp/" + file}, Stdin: bytes.NewReader([]byte(out))}); code != 0 {
			t.Fatal(out)
		}
	}
	var told struct {
		SHA256   string
		NotAfter time.Time `json:"not_after"`
	}
	if out, code := w.GatewayCommand("ca", "--box", box, "--json"); code != 0 || json.Unmarshal([]byte(out), &told) != nil || !told.NotAfter.After(time.Now()) {
		t.Fatalf("gateway ca --json: %d %s", code, out)
	}
	fingerprint := must(user, "openssl x509 -in /tmp/boxgate-ca.pem -noout -fingerprint -sha256")
	harness.Contains(t, strings.ToLower(strings.ReplaceAll(fingerprint, ":", "")), told.SHA256)
	const page = "https://" + shopHost + "/seen/docs"
	clients := map[string]string{
		"curl":     "env -i curl -sS " + page,
		"java":     java + "HttpClient " + page,
		"node":     `env -i bash -lc 'node --use-bundled-ca -e "fetch(\"` + page + `\").then(r => r.text()).then(console.log)"'`,
		"requests": `env -i bash -lc 'PYTHONPATH=` + pypi + ` python3 -c "from pip._vendor import requests; print(requests.get(\"` + page + `\").text)"'`,
	}
	trusting := func(when string, who ...string) {
		t.Helper()
		for name, line := range clients {
			out, _ := as(w, t, box, user, line)
			trusts, should := strings.Contains(out, "welcome"), strings.Contains(strings.Join(who, " "), name)
			if trusts != should {
				t.Errorf("%s: %s trusts the CA: %v, want %v: %s", when, name, trusts, should, harness.Tail(out, 500))
			}
		}
	}
	trusting("before")
	must(root, commandsOf(t, "Java"))
	trusting("after the commands for Java", "java")
	must(root, "keytool -delete -alias boxgate -cacerts -storepass changeit")
	must(root, commandsOf(t, "Debian and Ubuntu"))
	trusting("after those for Debian", "java", "curl")
	must(root, commandsOf(t, "Variables"))
	trusting("after the variables", "java", "curl", "node", "requests")
	must(user, commandsOf(t, "Browsers"))
	harness.Contains(t, must(user, `certutil -d "sql:$HOME/.pki/nssdb" -L`), "boxgate", "C,,")
}

// A box whose certificate stores are rebuilt keeps its CA, in Java's store too.
func TestClientsAfterStoresAreRebuilt(t *testing.T) {
	t.Parallel()
	w, _, box := newClients(t)
	furnishClients(w, box)
	if out, code := as(w, t, box, setting{root: true, wrap: []string{"sh", "-c"}}, "rm /etc/ssl/certs/java/cacerts; update-ca-certificates --fresh 2>&1"); code != 0 {
		t.Fatal(out)
	}
	for _, line := range []string{"env -i curl -sS https://" + shopHost + "/seen/rebuilt", java + "HttpClient https://" + shopHost + "/seen/rebuilt"} {
		if out, code := w.Sh(box, line); code != 0 || !strings.Contains(out, "welcome") {
			t.Errorf("%s: %d %s", line, code, out)
		}
	}
}
