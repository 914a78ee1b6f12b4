package command

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"boxgate/config"
	"boxgate/internal/nightly"
	"boxgate/preflight"
)

func TestOneMistakeDoesNotHideTheNext(t *testing.T) {
	file := filepath.Join(t.TempDir(), "boxgate.yaml")
	if err := os.WriteFile(file, []byte(`
stat_dir: /x
admin: {socket: "", listen: ""}
network: {pool_v4: 0.0.0.0/0, pool_v6: "2000::/3"}
ingress: {domain: "a b"}
launcher: {run_dir: run, image_dir: images, idle_timeout: -5m}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := config.Load(file, []string{"BOXGATE_LOG_LEVEL=z", "BOXGATE_NONE=1"})
	if err == nil {
		t.Fatal("accepted")
	}
	all := preflight.Errors(err)
	for _, want := range []string{
		`unknown key "stat_dir"`, "BOXGATE_NONE", "log.level", "admin: neither", `network.pool_v4: "0.0.0.0/0" is too large`,
		`network.pool_v6: "2000::/3" is too large`, "ingress.domain", "launcher.run_dir", "launcher.image_dir",
		"launcher.idle_timeout",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%s is not said", want)
		}
	}
	if len(all) != 10 {
		t.Errorf("%d mistakes: %v", len(all), all)
	}
}

// Broken sources of secrets are found without starting their commands.
func TestCheckFindsBrokenSecrets(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	open := filepath.Join(dir, "open")
	if err := errors.Join(os.WriteFile(open, []byte("sk-canary"), 0o644), os.Chmod(open, 0o644)); err != nil {
		t.Fatal(err)
	}
	good := filepath.Join(dir, "good")
	if err := os.WriteFile(good, []byte("sk-canary\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	text := `
secrets:
  a: {file: /nonexistent/key}
  b: {file: ` + open + `}
  c: {env: SECRETS_TEST_NOT_SET_EITHER}
  d: {command: [/nonexistent/program]}
  e: {file: ` + good + `}
  f: {command: [cat, ` + good + `]}
  g: {value: sk-canary}
`
	path := filepath.Join(dir, "boxgate.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(cfg.Secrets.File, 0o644); err != nil {
		t.Fatal(err)
	}
	all := preflight.Errors(checkSecrets(t.Context(), cfg))
	want := []string{
		"secrets.a: file /nonexistent/key: no such file", "secrets.b: file " + open + ": it is readable or writable by everybody",
		"secrets.c: variable SECRETS_TEST_NOT_SET_EITHER: it is not set", "secrets.d: command /nonexistent/program: no such file",
		"secrets: " + cfg.Secrets.File + " is readable or writable by everybody",
	}
	if len(all) != len(want) {
		t.Fatalf("%d lacks: %v", len(all), all)
	}
	for i := range want {
		if got := all[i].Error(); !strings.HasPrefix(got, want[i]) || strings.Contains(got, "canary") {
			t.Errorf("%q, want %q", got, want[i])
		}
	}
}

// A kernel without nft_numgen works: the check warns.
func TestOneListOfConnectionsIsAWarning(t *testing.T) {
	nightly.Root(t)
	for _, has := range []bool{true, false} {
		err := checkLists(func() (bool, error) { return has, nil })
		if has != (err == nil) || !has && (!errors.As(err, new(preflight.Warning)) || !strings.Contains(err.Error(), "modprobe nft_numgen")) {
			t.Errorf("numgen %v: %v", has, err)
		}
	}
}
