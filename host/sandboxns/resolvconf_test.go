package sandboxns

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"boxgate/internal/nightly"
)

// TestSandboxProcess is the process started by TestResolvConfOfASandbox.
func TestSandboxProcess(t *testing.T) {
	root := os.Getenv("SANDBOX_ROOT")
	if root == "" {
		return
	}
	if err := unix.Mount("proc", filepath.Join(root, "proc"), "proc", 0, ""); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("sys", filepath.Join(root, "sys"), "sysfs", unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	if err := unix.Chroot(root); err != nil {
		t.Fatal(err)
	}
	_, _ = os.Stdout.WriteString("ready\n")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// TestResolvConfOfASandbox reads the file as seen by a process with another root directory, with various file types in
// its place.
func TestResolvConfOfASandbox(t *testing.T) {
	nightly.Root(t)
	t.Parallel()
	root := t.TempDir()
	file := filepath.Join(root, "etc/resolv.conf")
	for _, dir := range []string{"etc", "proc", "sys"} {
		if err := os.Mkdir(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestSandboxProcess$")
	cmd.Env = append(os.Environ(), "SANDBOX_ROOT="+root)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS} // makes its mounts private
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "ready\n" {
		t.Fatalf("the sandbox did not start: %q %v", line, err)
	}
	ns, err := os.Open("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	outside := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(outside, []byte("search secret.of.the.host\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	text := []byte("search cluster.local\n")
	for what, test := range map[string]struct {
		put  func() error
		want []byte
	}{
		"a file":                {func() error { return os.WriteFile(file, text, 0o644) }, text},
		"a long file":           {func() error { return os.WriteFile(file, bytes.Repeat(text, 10_000), 0o644) }, bytes.Repeat(text, 10_000)[:maxResolvConf]},
		"nothing":               {func() error { return nil }, nil},
		"a link out of it":      {func() error { return os.Symlink(outside, file) }, nil},
		"a link upwards":        {func() error { return os.Symlink("../../../../../../.."+outside, file) }, nil},
		"a directory":           {func() error { return os.Mkdir(file, 0o755) }, nil},
		"a pipe without an end": {func() error { return unix.Mkfifo(file, 0o644) }, nil},
		// Reading may have side effects, or disclose information to the sandbox.
		"a file of the kernel's": {func() error { return os.Symlink("/proc/version", file) }, nil},
		"one with a length":      {func() error { return os.Symlink("/sys/kernel/uevent_seqnum", file) }, nil},
		"a device":               {func() error { return unix.Mknod(file, unix.S_IFCHR|0o644, int(unix.Mkdev(1, 5))) }, nil},
	} {
		if err := os.RemoveAll(file); err != nil {
			t.Fatal(err)
		}
		if err := test.put(); err != nil {
			t.Fatal(err)
		}
		if got := ResolvConf(t.Context(), ns, cmd.Process.Pid); !bytes.Equal(got, test.want) {
			t.Errorf("%s: %q", what, got)
		}
	}
}
