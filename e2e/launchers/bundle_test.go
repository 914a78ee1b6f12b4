package launchers

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"boxgate/e2e/harness"
	"boxgate/launcher/oci"
)

// engine starts containers of bundles by `gateway oci`, as an engine would.
type engine struct {
	w       *harness.World
	runtime string // program that runs the containers
	program string // script that is `gateway oci RUNTIME` for the gateway of the world
	dir     string
}

// newEngine returns an engine with a runtime of this machine. flags are the gateway's.
func newEngine(w *harness.World, runtime string, flags ...string) *engine {
	w.T.Helper()
	path, err := exec.LookPath(runtime)
	if err != nil {
		w.T.Skipf("there is no %s on this machine", runtime)
	}
	if oci.ByName(path).RefusesHybrid {
		path = harness.WithoutUnified(w.T, path)
	}
	e := &engine{w: w, runtime: path, dir: w.T.TempDir()}
	e.program = script(w, e.dir, append(append([]string{"oci"}, flags...), path)...)
	return e
}

// script writes a program that calls the gateway of the world with arguments before its own.
func script(w *harness.World, dir string, args ...string) string {
	w.T.Helper()
	cmd := w.Command(w.T.Context(), args...)
	text := "#!/bin/sh\n"
	for _, e := range cmd.Env {
		text += "export '" + strings.ReplaceAll(e, "'", `'\''`) + "'\n"
	}
	text += "exec"
	for _, a := range cmd.Args {
		text += " '" + strings.ReplaceAll(a, "'", `'\''`) + "'"
	}
	path := filepath.Join(dir, "gateway-oci")
	if err := os.WriteFile(path, []byte(text+" \"$@\"\n"), 0o755); err != nil {
		w.T.Fatal(err)
	}
	return path
}

// call runs a command of the runtime by the gateway.
func (e *engine) call(args ...string) (string, int) {
	e.w.T.Helper()
	out := new(bytes.Buffer)
	code := e.callTo(out, args...)
	return out.String(), code
}

// callTo is call with an output, which a container's process keeps.
func (e *engine) callTo(out *bytes.Buffer, args ...string) int {
	e.w.T.Helper()
	file, err := os.CreateTemp(e.dir, "out-") // not a pipe: the container's processes hold it open
	if err != nil {
		e.w.T.Fatal(err)
	}
	defer os.Remove(file.Name())
	defer file.Close()
	cmd := exec.Command(e.program, append([]string{"--root", filepath.Join(e.dir, "root"), "--log", filepath.Join(e.dir, "log"), "--log-format", "json"}, args...)...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")} // BOXGATE_ variables of the tests are none of the gateway's
	cmd.Stdout, cmd.Stderr = file, file
	_ = cmd.Run()
	text, err := os.ReadFile(file.Name())
	if err != nil {
		e.w.T.Fatal(err)
	}
	out.Write(text)
	return cmd.ProcessState.ExitCode()
}

// container is a bundle, whose root is the debian image below a layer of its own.
type container struct {
	*engine
	id, bundle string
	spec       specs.Spec
}

// newContainer makes a bundle that runs a shell line, which writes to /out in its root.
func (e *engine) newContainer(id, line string, annotations map[string]string) *container {
	e.w.T.Helper()
	c := &container{engine: e, id: id, bundle: filepath.Join(e.dir, id)}
	for _, dir := range []string{"upper", "work", "rootfs"} {
		if err := os.MkdirAll(filepath.Join(c.bundle, dir), 0o755); err != nil {
			e.w.T.Fatal(err)
		}
	}
	images, err := filepath.Glob(filepath.Join(harness.ImageDir(), "debian-[0-9]*", "rootfs"))
	if err != nil || len(images) == 0 {
		e.w.T.Fatal("there is no debian image: sudo make image", err)
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s/upper,workdir=%s/work", images[len(images)-1], c.bundle, c.bundle)
	if err := unix.Mount("overlay", filepath.Join(c.bundle, "rootfs"), "overlay", 0, options); err != nil {
		e.w.T.Fatal(err)
	}
	e.w.T.Cleanup(func() {
		_, _ = c.call("delete", "--force", id)
		_ = unix.Unmount(filepath.Join(c.bundle, "rootfs"), unix.MNT_DETACH)
	})
	cmd := exec.Command("runc", "spec")
	cmd.Dir = c.bundle
	if out, err := cmd.CombinedOutput(); err != nil {
		e.w.T.Fatalf("runc spec: %v %s", err, out)
	}
	text, err := os.ReadFile(filepath.Join(c.bundle, "config.json"))
	if err == nil {
		err = json.Unmarshal(text, &c.spec)
	}
	if err != nil {
		e.w.T.Fatal(err)
	}
	c.spec.Process.Terminal, c.spec.Process.Args = false, []string{"sh", "-c", line}
	c.spec.Root.Readonly, c.spec.Annotations = false, annotations
	c.spec.Linux.CgroupsPath = cgroupOf(e.dir, id)
	c.write()
	return c
}

// cgroupOf returns the path of the control group of a container, which no other test has: runtimes end all processes of a group.
func cgroupOf(dir, id string) string {
	return "/" + filepath.Base(filepath.Dir(dir)) + "-" + filepath.Base(dir) + "-" + id
}

// write writes the configuration.
func (c *container) write() {
	c.w.T.Helper()
	text, err := json.Marshal(c.spec)
	if err == nil {
		err = os.WriteFile(filepath.Join(c.bundle, "config.json"), text, 0o644)
	}
	if err != nil {
		c.w.T.Fatal(err)
	}
}

// create creates the container and returns its box.
func (c *container) create() string {
	c.w.T.Helper()
	if out, code := c.call("create", "--bundle", c.bundle, c.id); code != 0 {
		c.w.T.Fatalf("create: %d %s", code, out)
	}
	boxes := boxesOf(c.w, c.id)
	if len(boxes) != 1 {
		c.w.T.Fatalf("boxes of the container %s: %v", c.id, boxes)
	}
	return boxes[0]
}

// start starts the container.
func (c *container) start() {
	c.w.T.Helper()
	if out, code := c.call("start", c.id); code != 0 {
		c.w.T.Fatalf("start: %d %s", code, out)
	}
}

// read waits for a file that the container writes as a whole, and returns it.
func (c *container) read(name string) string {
	c.w.T.Helper()
	var text []byte
	c.w.Until(c.id+" has written "+name, func() (ok bool) {
		var err error
		text, err = os.ReadFile(filepath.Join(c.bundle, "upper", name))
		return err == nil
	})
	return string(text)
}

// ran reports whether the container has written a file.
func (c *container) ran(name string) bool {
	_, err := os.Stat(filepath.Join(c.bundle, "upper", name))
	return err == nil
}

// boxesOf returns the boxes attached to a container, by its ID.
func boxesOf(w *harness.World, id string) (found []string) {
	w.T.Helper()
	var boxes []struct {
		ID       string
		Attached struct{ Kind, Ref string }
	}
	if err := w.Client.Get(w.T.Context(), "/v2/box", &boxes); err != nil {
		w.T.Fatal(err)
	}
	for _, b := range boxes {
		if b.Attached.Kind == "oci" && b.Attached.Ref == id {
			found = append(found, b.ID)
		}
	}
	return found
}

// untilNoBox waits until a container has no box.
func untilNoBox(w *harness.World, id string) {
	w.T.Helper()
	w.Until("the container "+id+" has no box", func() bool { return len(boxesOf(w, id)) == 0 })
}

// eachRuntime runs a test with each runtime that uses the host's network stack.
func eachRuntime(t *testing.T, test func(t *testing.T, runtime string)) {
	for _, name := range oci.HostNetworked() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, name)
		})
	}
}
