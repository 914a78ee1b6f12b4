package enclosure

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"boxgate/internal/testnet"
)

// TestRunSetsHeadersThatTheCommandDoesNotSee: values come from a file and a variable, reach the server, and are neither in the
// files nor in the environment of the command.
func TestRunSetsHeadersThatTheCommandDoesNotSee(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const fileSecret, envSecret = "sk-from-a-file", "sk-from-a-variable"
	key := filepath.Join(w.home(), "key")
	rules := filepath.Join(w.home(), "rules.json")
	for path, content := range map[string]string{
		key:   "Bearer " + fileSecret + "\n",
		rules: `{"api.example.com": {"Authorization": "@` + key + `", "X-Literal": "sk-in-the-rules"}, "www.example.com": {"headers": {"X-Key": "env:THE_KEY"}}}`,
	} {
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cmd := w.command("--policy", `{"mode":"custom","allowed_domains":["*.example.com"]}`, "--headers", "@"+rules, "--", "sh", "-c",
		"curl -sS https://api.example.com/ https://www.example.com/ >/dev/null; env; cat key rules.json; cat /proc/*/environ; ls -lR /run; cat /proc/1/cmdline")
	cmd.Env = append(cmd.Env, "THE_KEY="+envSecret)
	r := w.finish(cmd)
	for _, secret := range []string{fileSecret, envSecret, "sk-in-the-rules"} {
		if strings.Contains(r.out+r.errout, secret) {
			t.Errorf("the command has %s:\n%s%s", secret, r.out, r.errout)
		}
	}
	for host, header := range map[string][2]string{
		"api.example.com": {"Authorization", "Bearer " + fileSecret}, "www.example.com": {"X-Key", envSecret},
	} {
		got, err := w.Net.Await(t.Context(), host, 1, testnet.Of(testnet.Request))
		if err != nil {
			t.Fatalf("%s got no request: %v\n%s%s", host, err, r.out, r.errout)
		}
		if value := got[0].Header.Get(header[0]); value != header[1] {
			t.Errorf("%s got %s: %q", host, header[0], value)
		}
	}
}

// TestRunGivesPlaceholders: the command has a token in its variable, and the server gets the value.
func TestRunGivesPlaceholders(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cmd := w.command("--policy", `{"mode":"custom","allowed_domains":["api.example.com"]}`,
		"--headers", `{"api.example.com": {"placeholders": {"API_TOKEN": "env:API_TOKEN"}}}`,
		"--", "sh", "-c", `echo "token=$API_TOKEN"; curl -sS -H "Authorization: Bearer $API_TOKEN" https://api.example.com/ >/dev/null`)
	cmd.Env = append(cmd.Env, "API_TOKEN=the-real-token-of-the-caller")
	r := w.finish(cmd)
	if strings.Contains(r.out, "the-real-token") || strings.Contains(r.out, "token=\n") {
		t.Errorf("the command's variable: %s", r.out)
	}
	got, err := w.Net.Await(t.Context(), "api.example.com", 1, testnet.Of(testnet.Request))
	if err != nil {
		t.Fatalf("%v\n%s%s", err, r.out, r.errout)
	}
	if value := got[0].Header.Get("Authorization"); value != "Bearer the-real-token-of-the-caller" {
		t.Errorf("the server got %q\n%s", value, r.errout)
	}
}
