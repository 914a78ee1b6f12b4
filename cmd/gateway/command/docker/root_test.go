package docker

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/host/sandboxns"
	"boxgate/internal/nightly"
)

// start starts a shell script as the first process of a container. The script prints a line once it is ready, then waits.
func start(t *testing.T, name string, args ...string) container {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(line, err)
	}
	c := container{ID: "guest"}
	c.State.Pid, c.State.StartedAt = cmd.Process.Pid, time.Now().Format(time.RFC3339Nano)
	return c
}

// rooted starts a process with its own root file system, which contains a device.
func rooted(t *testing.T) container {
	t.Helper()
	nightly.Root(t)
	script := `mount -t tmpfs none "$1" && mkdir "$1/old" && mknod "$1/device" c 1 3 && cd "$1" && pivot_root . old && echo ready && read x`
	return start(t, "unshare", "--mount", "sh", "-c", script, "sh", t.TempDir())
}

// same returns an inspection by Docker in which the container is unchanged.
func same(c container) func() (container, error) { return func() (container, error) { return c, nil } }

// A device node in a container refers to the host's device. It is never opened, even if an earlier check found a file
// there.
func TestAttackDeviceInAContainer(t *testing.T) {
	t.Parallel()
	c := rooted(t)
	root, _, err := openRoot(c, same(c))
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if fd, err := unix.Openat(int(root.Fd()), "device", unix.O_RDWR, 0); !errors.Is(err, unix.EACCES) {
		t.Errorf("a device of the host: %d %v", fd, err)
		unix.Close(fd)
	}
	fd, err := unix.Openat(int(root.Fd()), "file", unix.O_RDWR|unix.O_CREAT, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(fd)
}

// Docker reports a process that uses the host's files: in the host's mount namespace, or in another one with the same
// files.
func TestAttackContainerWithTheFilesOfTheHost(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	for _, args := range [][]string{{"sh", "-c", "echo ready && read x"}, {"unshare", "--mount", "sh", "-c", "echo ready && read x"}} {
		c := start(t, args[0], args[1:]...)
		if root, _, err := openRoot(c, same(c)); !errors.Is(err, errHost) {
			t.Errorf("%v: %v", args, err)
			if root != nil {
				root.Close()
			}
		}
	}
}

// A container ends or is restarted while its files are opened.
func TestContainerThatIsNotTheSame(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	c := rooted(t)
	other, moved, ended := c, c, c
	other.ID, moved.State.Pid, ended.State.Pid = "other", c.State.Pid+1, 0
	for _, now := range []container{other, moved, ended} {
		if root, _, err := openRoot(c, same(now)); !errors.Is(err, errRestarted) {
			root.Close()
			t.Errorf("then it was %+v: %v", now, err)
		}
	}
	late := c // Docker has not noticed that the process ended and its PID was reused
	late.State.StartedAt = time.Now().Add(-time.Hour).Format(time.RFC3339Nano)
	if root, _, err := openRoot(late, same(late)); !errors.Is(err, sandboxns.ErrNotFirst) {
		root.Close()
		t.Errorf("a process that is younger than the container: %v", err)
	}
	if root, _, err := openRoot(c, func() (container, error) {
		err := unix.Kill(c.State.Pid, unix.SIGKILL)
		for err == nil { // until its namespaces are gone
			_, err = os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", c.State.Pid))
		}
		return c, nil
	}); !errors.Is(err, errRestarted) {
		root.Close()
		t.Errorf("it has ended: %v", err)
	}
}
