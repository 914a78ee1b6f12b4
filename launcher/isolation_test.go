package launcher

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/internal/nightly"
	"boxgate/launcher/launchertest"
	"boxgate/launcher/namespace"
	"boxgate/launcher/oci"
	"boxgate/policy"
)

// statusField returns one field of /proc/self/status.
func statusField(t *testing.T, status, name string) string {
	t.Helper()
	for line := range strings.Lines(status) {
		if k, v, ok := strings.Cut(line, ":"); ok && k == name {
			return strings.TrimSpace(v)
		}
	}
	t.Fatalf("no %s in\n%s", name, status)
	return ""
}

func TestBoxCannotGainPrivileges(t *testing.T) {
	t.Parallel()
	probeBoxCannotGainPrivileges(t, newLauncher(t))
}

func probeBoxCannotGainPrivileges(t *testing.T, l *Launcher) {
	t.Helper()
	id := newBox(t, l, nil)

	user, root := sh(t, l, id, "cat /proc/self/status").out, rootSh(t, l, id, "cat /proc/self/status").out
	for _, status := range []string{user, root} {
		if statusField(t, status, "NoNewPrivs") != map[bool]string{false: "1", true: "0"}[l.cfg.Root] || statusField(t, status, "Seccomp") != "2" {
			t.Errorf("no_new_privs or seccomp is not as configured:\n%s", status)
		}
		for name, bit := range map[string]uint{"NET_ADMIN": 12, "NET_RAW": 13, "SYS_PTRACE": 19, "SYS_ADMIN": 21, "SYS_MODULE": 16, "BPF": 39} {
			bound, err := strconv.ParseUint(statusField(t, status, "CapBnd"), 16, 64)
			if err != nil || bound&(1<<bit) != 0 {
				t.Errorf("CAP_%s can be had (%x, %v)", name, bound, err)
			}
		}
	}
	if got := statusField(t, user, "CapEff"); strings.Trim(got, "0") != "" {
		t.Errorf("boxuser has capabilities %s", got)
	}
	for what, script := range map[string]string{
		"raw socket":        `python3 -c 'import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)'`,
		"packet socket":     `python3 -c 'import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)'`,
		"user namespace":    `unshare -Ur true`,
		"mount":             `mount -t tmpfs none /mnt`,
		"remount of /sys":   `mount -o remount,rw /sys`,
		"unmount of mask":   `umount /proc/kcore`,
		"own interface":     `ip link add dummy0 type veth`,
		"address":           `ip addr add 10.9.9.9/32 dev lo`,
		"device node":       `mknod /tmp/vda b 8 0 && head -c1 /tmp/vda`,
		"sysctl":            `echo 1 > /proc/sys/kernel/panic`,
		"sysrq":             `echo h > /proc/sysrq-trigger`,
		"kernel memory":     `test -s /proc/kcore`,
		"kernel keys":       `test -s /proc/keys`,
		"firmware":          `ls /sys/firmware/* 2>/dev/null | grep .`,
		"control group":     `echo 100000 > $(ls /sys/fs/cgroup/pids/pids.max /sys/fs/cgroup/pids.max 2>/dev/null)`,
		"hostname":          `hostname other`,
		"reboot":            `python3 -c 'import ctypes; l=ctypes.CDLL(None, use_errno=True); exit(0 if l.reboot(0x1234567)==0 else 1)'`,
		"kill of the init":  `kill -9 1 && sleep 0.05 && ! kill -0 1`,
		"gateway's sockets": `ls /run/boxgate*/* /var/lib/boxgate 2>/dev/null | grep .`,
	} {
		if r := rootSh(t, l, id, script); r.exit == 0 {
			t.Errorf("%s: root in the box can: %q", what, r.out)
		}
	}
}

func TestRootInTheBoxIsNobodyOutside(t *testing.T) {
	t.Parallel()
	probeRootInTheBoxIsNobodyOutside(t, newLauncher(t))
}

func probeRootInTheBoxIsNobodyOutside(t *testing.T, l *Launcher) {
	t.Helper()
	a, b := newBox(t, l, nil), newBox(t, l, nil)
	owners := map[string]bool{}
	for _, id := range []string{string(a), string(b)} {
		st, err := l.State(t.Context(), a)
		if id == string(b) {
			st, err = l.State(t.Context(), b)
		}
		if err != nil {
			t.Fatal(err)
		}
		fi, err := os.Stat(fmt.Sprintf("/proc/%d", st.Pid))
		if err != nil {
			t.Fatal(err)
		}
		uid := fi.Sys().(*syscall.Stat_t).Uid
		if int(uid) < namespace.IDsAt(0).Host(0) {
			t.Errorf("the first process of %s is user %d of the host", id, uid)
		}
		owners[strconv.Itoa(int(uid))] = true
	}
	if len(owners) != 2 {
		t.Errorf("two boxes share their user IDs: %v", owners)
	}
	want(t, rootSh(t, l, a, "touch /root/f && stat -c %u:%g /root/f /etc/passwd /usr/bin/env"), "0:0\n0:0\n0:0")
	r, err := l.loadRecord(a)
	if err != nil {
		t.Fatal(err)
	}
	fi, err := os.Stat(filepath.Join(l.dirs.upper(a), "root/f"))
	if err != nil {
		t.Fatal(err)
	}
	if uid := int(fi.Sys().(*syscall.Stat_t).Uid); uid != r.ids().Host(0) {
		t.Errorf("a file of the box's root belongs to user %d of the host", uid)
	}
}

func TestBoxesShareNothing(t *testing.T) {
	t.Parallel()
	probeBoxesShareNothing(t, newLauncher(t))
}

func probeBoxesShareNothing(t *testing.T, l *Launcher) {
	t.Helper()
	a, b := newBox(t, l, nil), newBox(t, l, nil)
	if r := rootSh(t, l, a, "echo secret > /etc/marker; echo x >> /etc/passwd; rm /usr/bin/git; echo t > /tmp/t; echo s > /dev/shm/s; echo h > h"); r.exit != 0 {
		t.Fatalf("%+v", r)
	}
	want(t, rootSh(t, l, b, "ls /etc/marker /tmp/t /dev/shm/s /workspace/home/h 2>/dev/null; grep -c ^x /etc/passwd; ls /usr/bin/git; ls /tmp /dev/shm | wc -l"),
		"0\n/usr/bin/git\n3") // the two names of directories and an empty line between them
	debian, err := l.images.Find("debian")
	if err != nil {
		t.Fatal(err)
	}
	image := debian.Rootfs
	if _, err := os.Stat(filepath.Join(image, "etc/marker")); err == nil {
		t.Error("a box wrote to the image")
	}
	if _, err := os.Stat(filepath.Join(image, "usr/bin/git")); err != nil {
		t.Errorf("a box removed a file of the image: %v", err)
	}
	want(t, sh(t, l, b, "ps -e -o comm= > seen; sort seen"), ".boxgate-init\nps\nsh")
}

func TestBoxSeesItsLimits(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, func(s *Spec) { s.Size = SizeMedium })
	want(t, sh(t, l, id, "cat /sys/fs/cgroup/pids/pids.max /sys/fs/cgroup/pids.max 2>/dev/null; true"), "4096")
	want(t, sh(t, l, id, "cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max 2>/dev/null; true"), "8589934592")
	quota := sh(t, l, id, "cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us /sys/fs/cgroup/cpu.max 2>/dev/null")
	if !strings.HasPrefix(quota.out, "400000") {
		t.Errorf("CPU quota %q", quota.out)
	}
	if r := sh(t, l, id, "cat /proc/self/cgroup"); strings.Contains(r.out, l.tag) {
		t.Errorf("the box sees the host's names of its control groups:\n%s", r.out)
	}
	dirs, err := l.cgroup(id).Dirs()
	if err != nil || len(dirs) == 0 {
		t.Errorf("no control group of its own: %v", err)
	}
}

func TestProcessLimitHolds(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	r := sh(t, l, id, `python3 -c '
import os, signal, time
children = []
try:
    while len(children) < 5000:
        pid = os.fork()
        if pid == 0:
            signal.pause()
        children.append(pid)
except OSError as e:
    print(e.errno)
for pid in children:
    os.kill(pid, signal.SIGKILL)
print(1900 < len(children) < 2048)'`)
	want(t, r, "11\nTrue")
}

func TestBoxSeesNoMountsOfTheHost(t *testing.T) {
	t.Parallel()
	probeBoxSeesNoMountsOfTheHost(t, newLauncher(t))
}

func probeBoxSeesNoMountsOfTheHost(t *testing.T, l *Launcher) {
	t.Helper()
	id := newBox(t, l, nil)
	info := sh(t, l, id, "cat /proc/self/mountinfo").out
	for _, text := range []string{l.dirs.state, l.dirs.run, imageDir(), string(id)} {
		if strings.Contains(info, text) {
			t.Errorf("the box can read the host's path %s:\n%s", text, info)
		}
	}
	for line := range strings.Lines(info) {
		at := strings.Fields(line)[4]
		known := at == "/"
		for _, p := range []string{"/proc", "/sys", "/dev", "/tmp"} {
			known = known || at == p || strings.HasPrefix(at, p+"/")
		}
		if !known {
			t.Errorf("unexpected mount at %s", at)
		}
	}
	if r := sh(t, l, id, "ls /sys/class/net"); strings.TrimSpace(r.out) != "lo" {
		t.Errorf("/sys shows interfaces that are not the box's: %q", r.out)
	}
}

func TestBoxIsInThePreparedNetwork(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	spec := Spec{ID: newID(), CA: launchertest.CA(t)}
	pin, err := l.Prepare(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	st, err := l.State(t.Context(), spec.ID)
	if err != nil || st.State != StateCreating || st.NetNS != pin || st.Pid != 0 {
		t.Errorf("prepared box: %+v, %v", st, err)
	}
	if _, err := exitOf(t.Context(), l, spec.ID, ExecSpec{Args: []string{"true"}}); err == nil {
		t.Error("a command ran in a box whose network was not closed")
	}
	var inside string
	if err := namespace.InNetNS(pin, func() error {
		inside, err = os.Readlink("/proc/thread-self/ns/net")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	home, err := os.Readlink("/proc/thread-self/ns/net") // the process's first thread may be in another namespace for a while
	if err != nil || inside == home {
		t.Fatalf("the prepared namespace is the caller's: %v", err)
	}
	if err := l.Create(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	want(t, sh(t, l, spec.ID, "readlink /proc/self/ns/net"), inside)
	if r := sh(t, l, spec.ID, "ip -o link"); strings.Count(r.out, "\n") != 1 || !strings.Contains(r.out, "lo:") || strings.Contains(r.out, ",UP") {
		t.Errorf("the network is not empty: %q", r.out)
	}
	if after, err := os.Readlink("/proc/thread-self/ns/net"); err != nil || after != home {
		t.Errorf("this thread is in %s, not %s (%v)", after, home, err)
	}
}

// The kernel resources of a command are limited, and root of the box cannot raise the limits.
func TestLimitsOfCommandsHold(t *testing.T) {
	t.Parallel()
	probeLimitsOfCommandsHold(t, newLauncher(t))
}

func probeLimitsOfCommandsHold(t *testing.T, l *Launcher) {
	t.Helper()
	id := newBox(t, l, nil)
	script := `python3 -c '
import resource
for name, most in (("NOFILE", 65536), ("NPROC", 2048), ("SIGPENDING", 16384), ("MSGQUEUE", 819200), ("MEMLOCK", 8 << 20), ("CORE", 0)):
    kind = getattr(resource, "RLIMIT_" + name)
    soft, hard = resource.getrlimit(kind)
    if not (0 <= soft <= hard <= most):
        print(name, soft, hard)
    try:
        resource.setrlimit(kind, (hard, hard + 1))
        print(name, "raised")
    except (ValueError, PermissionError):
        pass
'`
	want(t, sh(t, l, id, script), "")
	want(t, rootSh(t, l, id, script), "")
}

// A tree deeper than this process has descriptors must not keep a box from being removed.
func TestDeleteOfABoxWithADeepTree(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	want(t, run(t, l, id, ExecSpec{Args: []string{"python3", "-c", fmt.Sprintf(`import os
for i in range(%d):
    os.mkdir("d"); os.chdir("d")
print("deep")`, nightly.Size(3000, 21000))}}), "deep")
	if err := l.Delete(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, l, id)
}

func TestRecoverGoesOnPastABoxThatStays(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	stuck, half := Spec{ID: newID()}, Spec{ID: newID()}
	for _, s := range []Spec{stuck, half} {
		if _, err := l.Prepare(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	at := makeDir(t, filepath.Join(l.dirs.upper(stuck.ID), "mounted"))
	if err := unix.Mount("tmpfs", at, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	list, err := l.Recover(t.Context())
	if err != nil || len(list) != 1 || list[0].ID != id || list[0].State != StateIdle {
		t.Errorf("recovered %+v, %v", list, err)
	}
	nothingLeft(t, l, half.ID)
	nothingLeft(t, l, stuck.ID)
	want(t, sh(t, l, id, "echo unharmed"), "unharmed")
	if err := l.EmptyTrash(t.Context()); err == nil {
		t.Error("files were removed through a mount")
	}
	moved, err := filepath.Glob(filepath.Join(l.dirs.trash(), string(stuck.ID)+"-*", "upper", "mounted"))
	if err != nil || len(moved) != 1 {
		t.Fatalf("the mount is at %q, %v", moved, err)
	}
	if err := unix.Unmount(moved[0], unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	if err := l.EmptyTrash(t.Context()); err != nil {
		t.Error(err)
	}
}

// The environment of a command may contain a secret. When the runtime starts it, it passes through a private directory of the
// host that the next launcher empties.
func TestEnvironmentOfCommandsIsKeptClose(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	l.entering = nil
	id := newBox(t, l, nil)
	seen := filepath.Join(t.TempDir(), "seen")
	spy := filepath.Join(t.TempDir(), "runtime")
	script := `#!/bin/sh
prev=
for a in "$@"; do [ "$prev" = --process ] && { stat -c '%a %n' "$(dirname "$(dirname "$a")")" "$(dirname "$a")" "$a"; cat "$a"; } > ` + seen + `; prev=$a; done
exec runc "$@"
`
	if err := os.WriteFile(spy, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	l.runc.Command = spy
	want(t, run(t, l, id, ExecSpec{Args: []string{"sh", "-c", "echo $TOKEN"}, Env: map[string]string{"TOKEN": "s3cr3t"}}), "s3cr3t")
	data, err := os.ReadFile(seen)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitN(string(data), "\n", 4)
	if len(lines) != 4 || lines[0] != "700 "+l.dirs.execFiles() || !strings.HasPrefix(lines[1], "700 "+l.dirs.execFiles()+"/") ||
		!strings.HasPrefix(lines[2], "600 "+l.dirs.execFiles()+"/") || !strings.Contains(lines[3], "s3cr3t") {
		t.Errorf("the runtime was given\n%s", data)
	}
	empty := func() bool {
		entries, err := os.ReadDir(l.dirs.execFiles())
		return err == nil && len(entries) == 0
	}
	if !empty() {
		t.Error("something stays after the command")
	}
	killed := makeDir(t, filepath.Join(l.dirs.execFiles(), string(id)+"-1"))
	if err := os.WriteFile(filepath.Join(killed, "process.json"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !empty() {
		t.Error("something stays after a launcher that was killed")
	}
}

// makeDir makes a directory and returns it.
func makeDir(t *testing.T, dir string) string {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// The first process of a box is killed while commands are being started in it. Whatever the runtime leaves of them, the box
// is seen to have ended: no zombie keeps its PID namespace.
func TestHalfStartedCommandsAreReaped(t *testing.T) {
	t.Parallel()
	for _, runtime := range []string{oci.Default, withoutUnified(t)} {
		if runtime == "" {
			t.Log("NOT RUN under crun, which this host does not have")
			continue
		}
		t.Run(filepath.Base(runtime), func(t *testing.T) {
			t.Parallel()
			l := newLauncher(t)
			l.useRuntime(runtime)
			for range 8 {
				killedAmongStarts(t, l, newBox(t, l, nil))
			}
		})
	}
}

// killedAmongStarts kills the first process of a box while commands are started, and waits until the box has ended.
func killedAmongStarts(t *testing.T, l *Launcher, id policy.BoxID) {
	t.Helper()
	pid, err := readPid(filepath.Join(l.dirs.box(id), "pid"))
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for i := range 6 {
		all.Go(func() {
			for n := 0; ; n++ {
				if i == 0 && n == 2 {
					_ = unix.Kill(pid, unix.SIGKILL)
				}
				if _, err := exitOf(t.Context(), l, id, ExecSpec{Args: []string{"true"}}); err != nil {
					return
				}
			}
		})
	}
	all.Wait()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		st, err := l.State(t.Context(), id)
		if err == nil && (st.State == StateStopped || st.State == StateError) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("a box whose first process was killed is %v, %v", st.State, err)
		}
	}
}

// withoutUnified returns a crun that only sees version 1 control groups, since crun refuses a host that has controllers in
// both versions.
func withoutUnified(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("crun")
	unified := "/sys/fs/cgroup/unified"
	if controllers, cerr := os.ReadFile(unified + "/cgroup.controllers"); err != nil || cerr != nil || len(controllers) == 0 {
		return path
	}
	wrapper := filepath.Join(t.TempDir(), "crun")
	script := "#!/bin/sh\nexec unshare --mount --propagation unchanged sh -c 'mount --make-rprivate /sys/fs/cgroup && umount " + unified +
		" && exec " + path + " \"$@\"' crun \"$@\"\n"
	if err := os.WriteFile(wrapper, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return wrapper
}

// keysOf returns how many keys the kernel counts for a box's users.
func keysOf(t *testing.T, l *Launcher, id policy.BoxID) int {
	t.Helper()
	r, err := l.loadRecord(id)
	if err != nil {
		t.Fatal(err)
	}
	users, err := os.ReadFile("/proc/key-users")
	if err != nil {
		t.Fatal(err)
	}
	total := 0
	for line := range strings.Lines(string(users)) {
		var uid, usage, keys, instantiated int
		if _, err := fmt.Sscanf(line, "%d: %d %d/%d", &uid, &usage, &keys, &instantiated); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if first := r.ids().Host(0); uid >= first && uid < first+1<<16 {
			total += keys
		}
	}
	return total
}

// The kernel gives a user 200 keys. A command uses none of them: neither while it runs, nor afterwards.
func TestCommandsTakeNoKeyrings(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	before := keysOf(t, l, id)
	for range nightly.Size(12, 150) {
		want(t, sh(t, l, id, "sleep 1000 >/dev/null 2>&1 & echo started"), "started")
		want(t, rootSh(t, l, id, "sleep 1000 >/dev/null 2>&1 & echo started"), "started")
	}
	if after := keysOf(t, l, id); before > 0 || after > before {
		t.Errorf("%d keys at first, %d with commands", before, after)
	}
}
