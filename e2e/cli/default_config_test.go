package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"boxgate/config"
	"boxgate/e2e/harness"
)

// installed runs a command of the gateway with the given text as the configuration file of a packaged install, and
// without a variable that names another. It runs in a new network namespace, so that a command that is not refused
// changes nothing here.
func installed(t *testing.T, text string, args ...string) (string, error) {
	t.Helper()
	etc := t.TempDir()
	file := filepath.Join(etc, strings.TrimPrefix(config.DefaultFile, "/etc/"))
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	const inside = `mount -t overlay overlay -o lowerdir="$0":/etc /etc && exec "$@"`
	cmd := exec.CommandContext(t.Context(), "unshare", append([]string{"--mount", "--net", "sh", "-c", inside, etc, harness.Gateway()}, args...)...)
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, config.EnvironmentPrefix) {
			cmd.Env = append(cmd.Env, v)
		}
	}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// Every command uses the file of a packaged install, and reports a mistake in it.
func TestInstalledConfigurationIsRead(t *testing.T) {
	t.Parallel()
	const mistakes = "stat_dir: /x\nlog: {level: z}\n"
	for name, args := range map[string][]string{
		"check": {"check"}, "run": {"run", "--", "false"}, "box list": {"box", "list"}, "status": {"status"},
		"store": {"store", "verify"}, "uninstall": {"uninstall", "--dry-run"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, err := installed(t, mistakes, args...)
			if err == nil {
				t.Errorf("accepted: %s", out)
			}
			harness.Contains(t, out, config.DefaultFile, `unknown key "stat_dir"`, "log.level")
		})
	}
	out, _ := installed(t, mistakes, "check", "--config", "/dev/null")
	if strings.Contains(out, config.DefaultFile) || strings.Contains(out, "stat_dir") {
		t.Errorf("another file was named: %s", out)
	}
	// The command tries a socket that does not exist: it uses the file.
	out, _ = installed(t, "admin: {socket: /nonexistent/of-the-file.sock}\nstate_dir: /nonexistent/state\n", "box", "list")
	harness.Contains(t, out, "/nonexistent/")
}
