package launcher

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"boxgate/launcher/boxfs"
	"boxgate/launcher/boxfs/worker"
	"boxgate/launcher/rootfs"
	"boxgate/policy"
)

// openFiles starts a session of the box's user that ends with the test.
func openFiles(t *testing.T, l *Launcher, id policy.BoxID) *boxfs.Session {
	t.Helper()
	return openFilesAs(t, l, id, "")
}

// openFilesAs starts a session of a user that ends with the test.
func openFilesAs(t *testing.T, l *Launcher, id policy.BoxID, user string) *boxfs.Session {
	t.Helper()
	entersAs(t, user)
	s, done, err := l.OpenFiles(t.Context(), id, user)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(done)
	return s
}

func write(s *boxfs.Session, path, content string) error {
	return s.Send(worker.Request{Op: worker.OpWrite, Path: []byte(path)}, strings.NewReader(content))
}

func read(s *boxfs.Session, path string) (string, error) {
	_, r, err := s.Read(path, 0, 1<<20)
	if err != nil {
		return "", err
	}
	data, err := io.ReadAll(r)
	return string(data), err
}

// TestFilesAreReachedAsTheUserOfTheBox: a session has exactly boxuser's permissions; boxuser owns the files that it
// creates.
func TestFilesAreReachedAsTheUserOfTheBox(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	run(t, l, id, ExecSpec{User: "root", Args: []string{"sh", "-c", `
		echo of-root > /root-only; chmod 600 /root-only
		echo writable > /etc/shared; chmod 666 /etc/shared
		mkdir /kept; echo x > /kept/x`}})
	s := openFiles(t, l, id)
	for _, path := range []string{"/workspace/home/a", "/tmp/a", "/dev/shm/a", "/workspace/home/deep/er/a"} {
		if err := write(s, path, "content"); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		if got := sh(t, l, id, "stat -c '%U %G %a %s' "+path); got.out != "boxuser boxuser 644 7\n" {
			t.Errorf("%s: %+v", path, got)
		}
		if got, err := read(s, path); got != "content" || err != nil {
			t.Errorf("%s: %q, %v", path, got, err)
		}
	}
	if _, err := read(s, "/root-only"); !errors.Is(err, unix.EACCES) {
		t.Errorf("reading a file of root's: %v", err)
	}
	if _, err := s.Do(worker.Request{Op: worker.OpRemove, Path: []byte("/kept"), Recursive: true}); !errors.Is(err, unix.EACCES) {
		t.Errorf("removing a directory of root's: %v", err)
	}
	if err := write(s, "/etc/shared", "changed"); err != nil {
		t.Error(err)
	}
	if got := sh(t, l, id, "cat /etc/shared /kept/x; stat -c '%U %a' /etc/shared; ls -A /workspace/home"); got.out != "changedx\nroot 666\na\ndeep\n" {
		t.Errorf("%+v", got)
	}
	if err := write(s, "/etc/new", "x"); !errors.Is(err, unix.EACCES) {
		t.Errorf("a new file in a directory of root's: %v", err)
	}
	l.mustNotSeeWorkers(t, id)
}

// mustNotSeeWorkers fails if a process of the box sees a worker process.
func (l *Launcher) mustNotSeeWorkers(t *testing.T, id policy.BoxID) {
	t.Helper()
	got := sh(t, l, id, `grep -al 'boxgate-file[s]' /proc/[0-9]*/cmdline; true`)
	if got.out != "" {
		t.Errorf("the box sees the worker: %+v", got)
	}
}

// TestWorkersShowNothingOfTheHostsNamespaces: procfs and sysfs show a process its own namespaces, whoever mounted them.
func TestWorkersShowNothingOfTheHostsNamespaces(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	sh(t, l, id, "mkdir links; ln -s /proc/sys/kernel/hostname links/name; ln -s /proc/sys/net/ipv4/conf links/conf; ln -s /sys/class/net links/net")
	s := openFiles(t, l, id)
	for _, path := range []string{"/proc/sys/kernel/hostname", "links/name", "/proc/sys/net/ipv4/conf/lo/forwarding", "links/conf/lo/forwarding", "/proc/mounts", "/sys/class/net/lo/mtu"} {
		path = under(path)
		if got, err := read(s, path); err == nil {
			t.Errorf("%s: %q was read", path, got)
		}
	}
	for path, want := range map[string]error{
		"/dev/zero": unix.EINVAL, "/dev/tty": unix.EINVAL, "/proc/1/fd/0": unix.EACCES, "/proc/1/comm": unix.EACCES, "/proc/self/status": unix.ENOENT, "/proc/self/root/etc/passwd": unix.ENOENT,
	} {
		if got, err := read(s, path); !errors.Is(err, want) {
			t.Errorf("reading %s: %.40q, %v, want %v", path, got, err, want)
		}
	}
	for _, path := range []string{"/proc", "/proc/sys/net/ipv4/conf", "links/conf", "/sys/class/net", "links/net", "/dev/pts"} {
		at := []byte(under(path))
		for _, req := range []worker.Request{{Op: worker.OpList, Path: at, Most: 10}, {Op: worker.OpStat, Path: at, Follow: true}, {Op: worker.OpPack, Path: at}} {
			if a, err := s.Do(req); !errors.Is(err, unix.EACCES) {
				t.Errorf("%s of %s: %+v, %v", req.Op, at, a, err)
			}
		}
	}
	a, err := s.Do(worker.Request{Op: worker.OpList, Path: []byte(under("links")), Most: 10})
	if err != nil || len(a.Entries) != 3 || a.Entries[0].IsDir {
		t.Errorf("links into the kernel's file systems are listed as %+v, %v", a.Entries, err)
	}
	for _, path := range []string{"/", "/dev/shm", "/etc/hostname"} {
		if _, err := s.Do(worker.Request{Op: worker.OpStat, Path: []byte(path)}); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// under makes a path absolute, relative to the home directory.
func under(path string) string {
	if strings.HasPrefix(path, "/") {
		return path
	}
	return rootfs.Home + "/" + path
}

// TestWorkersCountAsTheBox: workers are in the box's control group in every hierarchy.
func TestWorkersCountAsTheBox(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	openFiles(t, l, id)
	dirs, err := l.cgroup(id).Dirs()
	if err != nil || len(dirs) == 0 {
		t.Fatal(dirs, err)
	}
	for _, dir := range dirs {
		data, err := os.ReadFile(dir + "/cgroup.procs")
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(strings.Fields(string(data)), func(pid string) bool {
			name, _ := os.ReadFile("/proc/" + pid + "/cmdline")
			return strings.HasPrefix(string(name), worker.Name)
		}) {
			t.Errorf("%s has no worker: %s", dir, data)
		}
	}
}

// TestWorkersHaveNoPower: a worker is not root, has no capability, only the descriptors of its streams, and the box's root.
func TestWorkersHaveNoPower(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	s := openFiles(t, l, id)
	if _, err := s.Do(worker.Request{Op: worker.OpStat, Path: []byte("/")}); err != nil { // it has entered the box after this
		t.Fatal(err)
	}
	r, err := l.loadRecord(id)
	if err != nil {
		t.Fatal(err)
	}
	user := r.ids().Host(rootfs.UID)
	pid := s.Pid()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		fmt.Sprintf("Uid:\t%d\t%d\t%d\t%d\n", user, user, user, user), fmt.Sprintf("Gid:\t%d\t%d\t%d\t%d\n", user, user, user, user),
		"Groups:\t \n", "CapPrm:\t0000000000000000\n", "CapEff:\t0000000000000000\n", "CapAmb:\t0000000000000000\n",
	} {
		if !strings.Contains(string(status), want) {
			t.Errorf("not %q in %s", want, status)
		}
	}
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range open {
		to, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, fd.Name()))
		if fd.Name() > "2" && !strings.HasPrefix(to, "anon_inode:") || fd.Name() <= "2" && !strings.HasPrefix(to, "pipe:") {
			t.Errorf("descriptor %s is %s", fd.Name(), to)
		}
	}
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil || len(environ) > 100 {
		t.Errorf("environment %q, %v", environ, err)
	}
}
