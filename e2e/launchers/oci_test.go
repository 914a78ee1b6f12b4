package launchers

import (
	"os"
	"strings"
	"testing"

	"boxgate/e2e/harness"
)

// asks is a shell line that asks for an allowed host with an injected header, and for a denied one, and writes the answers.
const asks = `{ curl -sS --max-time 60 https://api.example.com/echo; echo; curl -sS --max-time 60 https://evil.example.net/; echo "status $?"; cat /etc/resolv.conf; echo "variable $CURL_CA_BUNDLE"; } >/out.new 2>&1; mv /out.new /out; exec sleep 1000`

// guarded returns the flags of `gateway oci` that allow example.com alone, with a secret.
func guarded(t *testing.T) []string {
	t.Helper()
	file := t.TempDir() + "/headers.json"
	if err := os.WriteFile(file, []byte(`{"api.example.com":{"X-Key":"`+harness.Canary+`"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{"--policy", `{"mode":"custom","allowed_domains":["*.example.com"]}`, "--headers", "@" + file}
}

// isGuarded checks what a container of [guarded] has written.
func isGuarded(t *testing.T, out string) {
	t.Helper()
	for _, want := range []string{harness.Canary, "status 35", "nameserver ", "variable /etc/ssl/certs/ca-certificates.crt"} {
		if !strings.Contains(out, want) {
			t.Errorf("a container has no %q: %s", want, harness.Tail(out, 2000))
		}
	}
}

// A container is behind the gateway before its first instruction, with the CA in its store, until it is deleted.
func TestContainerOfARuntimeIsBehindTheGateway(t *testing.T) {
	t.Parallel()
	eachRuntime(t, func(t *testing.T, runtime string) {
		w := harness.Shared(t)
		e := newEngine(w, runtime, guarded(t)...)
		c := e.newContainer("guest-"+runtime, asks, nil)
		box := c.create()
		if c.ran("out") {
			t.Error("the container ran before it was started")
		}
		if out, code := c.call("state", c.id); code != 0 || !strings.Contains(out, `"created"`) {
			t.Errorf("state: %d %s", code, out)
		}
		c.start()
		isGuarded(t, c.read("out"))
		if out, code := w.GatewayCommand("box", "list"); code != 0 || !strings.Contains(out, "oci "+runtime+" "+c.id) {
			t.Errorf("box list: %s", out)
		}
		if out, code := c.call("create", "--bundle", c.bundle, c.id); code == 0 || !strings.Contains(out, "exists already") {
			t.Errorf("a second one of the same ID: %d %s", code, out)
		}
		if got := boxesOf(w, c.id); len(got) != 1 || got[0] != box {
			t.Errorf("boxes after that: %v", got)
		}
		if out, code := c.call("exec", c.id, "true"); code != 0 {
			t.Errorf("exec: %d %s", code, out)
		}
		for range 2 { // the second one for a container that does not exist
			if out, code := c.call("delete", "--force", c.id); code != 0 {
				t.Errorf("delete: %d %s", code, out)
			}
		}
		if got := boxesOf(w, c.id); len(got) != 0 {
			t.Errorf("boxes after its deletion: %v", got)
		}
	})
}
