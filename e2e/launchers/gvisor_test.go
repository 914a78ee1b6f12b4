package launchers

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"boxgate/e2e/harness"
	"boxgate/internal/nightly"
	"boxgate/launcher/oci"
)

// gvisorPath is the directory where `make runsc` installs gVisor.
const gvisorPath = "/var/lib/boxgate/gvisor"

// gVisor's network stack is the container's own: `gateway oci` attaches it with "stack": "guest" without being asked. Its requests have the
// header of a rule, another name is denied, and only its next start adds roots.
func TestContainerOfGVisorIsBehindTheGateway(t *testing.T) {
	nightly.Only(t)
	t.Parallel()
	at := slices.IndexFunc(oci.Names(), func(name string) bool { return oci.ByName(name).OwnNetwork })
	if at < 0 {
		t.Fatal("there is no runtime with a network stack of its own")
	}
	runtime := oci.ByName(oci.Names()[at])
	path, err := exec.LookPath(runtime.Name)
	if err != nil {
		path, err = exec.LookPath(filepath.Join(gvisorPath, runtime.Name))
	}
	if err != nil {
		t.Skipf("there is no %s: %s", runtime.Name, runtime.Install)
	}
	w := harness.Shared(t)
	e := newEngine(w, "runc", guarded(t)...)
	e.program = script(w, e.dir, slices.Concat([]string{"oci"}, guarded(t), []string{path, "--ignore-cgroups"}, runtime.Args)...)
	t.Cleanup(func() { _ = unix.Unmount(filepath.Join(e.dir, "root", "null-netns"), unix.MNT_DETACH) }) // runsc leaves it
	c := e.newContainer("guest-gvisor", asks, nil)
	box := c.create()
	c.start()
	isGuarded(t, c.read("out"))
	var view struct {
		Attached struct{ Kind, Ref, Stack, Runtime, Note string }
	}
	if err := w.Client.Get(t.Context(), "/v2/box/"+box, &view); err != nil || view.Attached.Stack != "guest" || view.Attached.Runtime != runtime.Name || view.Attached.Note != runtime.AttachedNote() {
		t.Errorf("%+v %v", view, err)
	}
	if out, code := w.GatewayCommand("box", "install-ca", box); code == 0 || !strings.Contains(out, "only its next start") {
		t.Errorf("install-ca: %d %s", code, out)
	}
	w.Kill()
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	again := func() (string, int) {
		return c.call("exec", c.id, "sh", "-c", "rm -f /out; curl -sS --max-time 60 https://api.example.com/echo; curl -sS --max-time 60 https://evil.example.net/; echo status $?")
	}
	if out, code := again(); code != 0 || !strings.Contains(out, harness.Canary) || !strings.Contains(out, "status 35") {
		t.Errorf("after a restart of the gateway: %d %s", code, out)
	}
	if out, code := c.call("delete", "--force", c.id); code != 0 {
		t.Errorf("delete: %d %s", code, out)
	}
	if got := boxesOf(w, c.id); len(got) != 0 {
		t.Errorf("boxes after its deletion: %v", got)
	}
	if text, err := os.ReadFile(filepath.Join(e.dir, "log")); err == nil && strings.Contains(string(text), harness.Canary) {
		t.Error("the log of the runtime has the secret")
	}
}
