package enclosure

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"boxgate/e2e/harness"
	"boxgate/internal/testnet"
)

func TestMain(m *testing.M) { harness.Main(m) }

// world is a host with an internet, without a gateway.
type world struct{ *harness.World }

func newWorld(t *testing.T) *world {
	t.Helper()
	return &world{harness.SharedStopped(t, testnet.Options{})}
}

// user is the user who calls sudo. It is in no database.
const user = "47110"

// command prepares `gateway run args...` on the host of the world, called by the user.
func (w *world) command(args ...string) *exec.Cmd {
	cmd := w.Command(w.T.Context(), append([]string{"run"}, args...)...)
	cmd.Env = append(cmd.Env, "SUDO_UID="+user, "SUDO_GID="+user, "PATH=/usr/sbin:/usr/bin:/sbin:/bin")
	cmd.Dir = w.home()
	return cmd
}

// home returns a directory of the user.
func (w *world) home() string {
	dir := filepath.Join(os.TempDir(), "boxgate-run-"+filepath.Base(w.Dir))
	if err := os.Mkdir(dir, 0o755); err == nil {
		w.T.Cleanup(func() { _ = os.RemoveAll(dir) })
		if err := os.Chown(dir, 47110, 47110); err != nil {
			w.T.Fatal(err)
		}
	} else if !errors.Is(err, os.ErrExist) {
		w.T.Fatal(err)
	}
	return dir
}

// result is the result of a command.
type result struct {
	out, errout string
	status      int
}

// run runs `gateway run args...`.
func (w *world) run(args ...string) result {
	w.T.Helper()
	return w.finish(w.command(args...))
}

func (w *world) finish(cmd *exec.Cmd) result {
	w.T.Helper()
	var out, errout bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errout
	if err := w.Net.Gateway().Start(cmd); err != nil {
		w.T.Fatal(err)
	}
	_ = cmd.Wait()
	status := cmd.ProcessState.ExitCode()
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		status = -int(ws.Signal())
	}
	return result{out.String(), errout.String(), status}
}

// must runs a shell line with flags. It must succeed.
func (w *world) must(flags []string, line string) result {
	w.T.Helper()
	r := w.run(append(flags, "--", "sh", "-c", line)...)
	if r.status != 0 {
		w.T.Fatalf("%s: exit %d\n%s%s", line, r.status, r.out, r.errout)
	}
	return r
}

func contains(t *testing.T, what, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("%s has no %q:\n%s", what, p, text)
		}
	}
}
