package clients

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"boxgate/audit"
	"boxgate/e2e/harness"
	"boxgate/internal/lab"
	"boxgate/internal/testnet/sshd"
	"boxgate/policy/name"
)

var exampleHostKey = regexp.MustCompile(`ssh-ed25519 [^"]*`)

// TestSSH runs the section of docs/credentials.md in a box with the default image, without a key.
func TestSSH(t *testing.T) {
	t.Parallel()
	const host, addr = "git.example.com", "198.51.100.152"
	w := harness.NewStopped(t, lab.Options{})
	e := sectionOf(t, "SSH")
	server := sshd.New(t)
	server.Repo("acme/web.git")
	server.Repo("acme/other.git")
	files := t.TempDir()
	key := filepath.Join(files, "deploy-key")
	configuration, err := os.ReadFile(w.Config)
	if err == nil {
		err = os.WriteFile(w.Config, append(configuration, strings.ReplaceAll(e.config, "/etc/boxgate", files)...), 0o600)
	}
	if err == nil {
		err = os.WriteFile(key, []byte(server.Key), 0o600)
	}
	if err == nil {
		err = w.Net.AddHost(host, addr)
	}
	if err != nil {
		t.Fatal(err)
	}
	go server.Serve(w.ListenBeside(addr + ":22"))
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	rules := map[string]json.RawMessage{}
	for at, text := range e.rules {
		rules[at] = exampleHostKey.ReplaceAll(text, []byte(server.HostKey))
	}
	box := w.Create(map[string]any{"attach_headers": rules, "network_policy": harness.Custom(host+":22", "www.example.com:22")})
	w.MustSh(box, "cd $(mktemp -d) && git init -q -b main && git -c user.name=A -c user.email=a@example.com commit -q --allow-empty -m welcome && git push -q git@"+host+":acme/web.git main")
	w.MustSh(box, "set -e\n"+e.commands)
	harness.Contains(t, w.MustSh(box, "git -C web log --format=%s origin/try"), "welcome")
	for _, other := range []string{"git@" + host + ":acme/other.git", "git@www.example.com:acme/web.git"} {
		if out, code := w.Sh(box, "timeout 60 git ls-remote "+other+" 2>&1"); code == 0 {
			t.Errorf("%s: %s", other, out)
		}
	}
	if err := os.Remove(key); err != nil {
		t.Fatal(err)
	}
	w.GatewayCommand("secret", "refresh", "deploy-key")
	if out, code := w.Sh(box, "git -C web fetch 2>&1"); code == 0 || !strings.Contains(out, "the key for "+host+" is not available") {
		t.Errorf("exit %d: %s", code, out)
	}
	w.Event(box, func(d audit.Event) bool {
		return d.Reason == name.ReasonSecretUnavailable && d.Rule == host+":22" && strings.Contains(d.Error, `secret "deploy-key"`)
	})
}
