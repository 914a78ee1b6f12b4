package launcher

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"boxgate/launcher/launchertest"
	"boxgate/launcher/namespace"
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
	l := newLauncher(t)
	id := newBox(t, l, nil)

	user, root := sh(t, l, id, "cat /proc/self/status").out, rootSh(t, l, id, "cat /proc/self/status").out
	for _, status := range []string{user, root} {
		if statusField(t, status, "NoNewPrivs") != "1" || statusField(t, status, "Seccomp") != "2" {
			t.Errorf("no_new_privs or seccomp is off:\n%s", status)
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
	l := newLauncher(t)
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
	l := newLauncher(t)
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
	l := newLauncher(t)
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
	l := newLauncher(t)
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
