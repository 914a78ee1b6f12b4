package launcher

import (
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"boxgate/internal/nightly"
)

// calls are system calls through which boxes of misconfigured runtimes have escaped, or which often had kernel
// vulnerabilities. Their arguments are such that they would succeed, or fail for another reason, if they were allowed.
const calls = `
import ctypes, errno, os, platform, sys
libc = ctypes.CDLL(None, use_errno=True)
at = 0 if platform.machine() == 'x86_64' else 1
p, null = ctypes.create_string_buffer(4096), None
CALLS = {
    'unshare of a user namespace': ((272, 97), (0x10000000,)), 'unshare of mounts': ((272, 97), (0x20000,)),
    'unshare of control groups': ((272, 97), (0x2000000,)), 'unshare of time': ((272, 97), (0x80,)),
    'unshare of the network': ((272, 97), (0x40000000,)), 'clone3': ((435, 435), (p, 88)),
    'setns': ((308, 268), (os.open('/proc/self/ns/mnt', os.O_RDONLY), 0)),
    'mount': ((165, 40), (b'none', b'/mnt', b'tmpfs', 0, null)), 'mount of proc': ((165, 40), (b'proc', b'/mnt', b'proc', 0, null)),
    'mount of sysfs': ((165, 40), (b'sysfs', b'/mnt', b'sysfs', 0, null)), 'mount of cgroup': ((165, 40), (b'c', b'/mnt', b'cgroup', 0, b'rdma')),
    'bind mount over a mask': ((165, 40), (b'/proc', b'/mnt', null, 4096 | 16384, null)),
    'umount2': ((166, 39), (b'/proc/kcore', 2)), 'pivot_root': ((155, 41), (b'/', b'/mnt')), 'fsopen': ((430, 430), (b'tmpfs', 0)),
    'open_tree': ((428, 428), (-100, b'/', 1)), 'move_mount': ((429, 429), (-100, b'/tmp', -100, b'/mnt', 0)),
    'mount_setattr': ((442, 442), (-100, b'/', 0, p, 32)), 'add_key': ((248, 217), (b'user', b'x', b'y', 1, -3)),
    'request_key': ((249, 218), (b'user', b'x', null, -3)), 'keyctl': ((250, 219), (0, -3, 1)),
    'io_uring_setup': ((425, 425), (8, p)), 'bpf': ((321, 280), (0, p, 128)), 'userfaultfd': ((323, 282), (0,)),
    'userfaultfd of user faults': ((323, 282), (1,)), 'perf_event_open': ((298, 241), (p, 0, -1, -1, 0)),
    'open_by_handle_at': ((304, 265), (os.open('/', os.O_RDONLY), p, 0)), 'kexec_load': ((246, 104), (0, 0, null, 0)),
    'init_module': ((175, 105), (p, 16, b'')), 'finit_module': ((313, 273), (0, b'', 0)), 'delete_module': ((176, 106), (b'x', 0)),
    'swapon': ((167, 224), (b'/tmp/x', 0)), 'acct': ((163, 89), (b'/tmp/x',)), 'quotactl': ((179, 60), (0x800002, b'/dev/vda', 0, p)),
    'settimeofday': ((164, 170), (p, null)), 'clock_settime': ((227, 112), (0, p)), 'reboot': ((169, 142), (0xfee1dead, 672274793, 0, null)),
    'syslog': ((103, 116), (3, p, 4096)), 'sethostname': ((170, 161), (b'x', 1)), 'nfsservctl': ((180, 42), (0, null, null)),
    'fanotify_init': ((300, 262), (4, 0)), 'iopl': ((172, -1), (3,)), 'ioperm': ((173, -1), (0x70, 2, 1)),
    'mknod of a disk': ((259, 33), (-100, b'/tmp/disk', 0o60600, 0x800)), 'mknod of memory': ((259, 33), (-100, b'/tmp/mem', 0o20600, 0x101)),
    'chroot out of a descriptor': ((161, 51), (b'/proc/1/root/../..',)) if os.getuid() else ((172, -1), (3,)),
}
for name, (numbers, args) in CALLS.items():
    if numbers[at] < 0:
        continue
    ctypes.set_errno(0)
    got = libc.syscall(numbers[at], *args)
    why = errno.errorcode.get(ctypes.get_errno(), '')
    if got >= 0 or why not in ('EPERM', 'ENOSYS', 'EACCES', 'EROFS'):
        print(name, got, why)
for kind in (31, 32, 33, 38, 40):  # AF_BLUETOOTH, AF_IUCV, AF_RXRPC, AF_ALG, AF_VSOCK
    try:
        import socket
        socket.socket(kind, socket.SOCK_STREAM if kind == 40 else socket.SOCK_SEQPACKET, 0).close()
        print('a socket of family', kind)
    except OSError:
        pass
`

// System calls that let boxes of other gateways escape are refused to every user in a box, root included.
func TestAttackSystemCalls(t *testing.T) {
	t.Parallel()
	probeAttackSystemCalls(t, newLauncher(t))
}

func probeAttackSystemCalls(t *testing.T, l *Launcher) {
	t.Helper()
	id := newBox(t, l, nil)
	for _, user := range []string{"boxuser", "root"} {
		r := run(t, l, id, ExecSpec{Args: []string{"python3", "-c", calls}, User: user})
		if r.exit != 0 || r.out != "" || r.err != "" {
			t.Errorf("%s: exit status %d\n%s%s", user, r.exit, r.out, r.err)
		}
		// The same calls through x32, which kernels may have been built without.
		r = run(t, l, id, ExecSpec{Args: []string{"python3", "-c", "import ctypes; ctypes.CDLL(None).syscall(0x40000000 | 39)"}, User: user})
		if runtime.GOARCH == "amd64" && r.exit != 128+int(unix.SIGSYS) {
			t.Errorf("%s made a call of x32: exit status %d\n%s%s", user, r.exit, r.out, r.err)
		}
	}
}

// Files of the host that could lead out of the box cannot be read or written: sysctls, triggers and handlers of the kernel,
// agents of control groups, devices, sockets, descriptors of the runtime.
func TestAttackFilesThatLeadOut(t *testing.T) {
	t.Parallel()
	probeAttackFilesThatLeadOut(t, newLauncher(t))
}

func probeAttackFilesThatLeadOut(t *testing.T, l *Launcher) {
	t.Helper()
	id := newBox(t, l, nil)
	for what, script := range map[string]string{
		"writable files of the kernel":     `find /proc/sys /proc/irq /proc/bus /proc/fs /proc/sysrq-trigger /sys -writable ! -type l 2>/dev/null | grep .`,
		"core_pattern":                     `echo '|/bin/sh' > /proc/sys/kernel/core_pattern`,
		"modprobe":                         `echo /bin/sh > /proc/sys/kernel/modprobe`,
		"uevent_helper":                    `echo /bin/sh > /sys/kernel/uevent_helper`,
		"binfmt_misc":                      `echo ':x:M::x::/bin/sh:' > /proc/sys/fs/binfmt_misc/register`,
		"agents of control groups":         `find / -xdev \( -name release_agent -o -name notify_on_release \) -writable 2>/dev/null | grep .; find /sys/fs/cgroup -writable ! -type l 2>/dev/null | grep .`,
		"devices":                          `find /dev -type b | grep . || find /dev -type c ! -name null ! -name zero ! -name full ! -name random ! -name urandom ! -name tty ! -name console ! -path '/dev/pts/*' ! -name ptmx | grep .`,
		"memory":                           `head -c1 /dev/mem || head -c1 /dev/kmem || head -c1 /dev/port || head -c64 /proc/kcore | grep -q .`,
		"masked files":                     `cat /proc/keys /proc/timer_list /proc/sched_debug /proc/latency_stats 2>/dev/null | grep .`,
		"sockets":                          `find / -xdev -type s 2>/dev/null | grep .`,
		"writable files of other users":    `find / -xdev -path /proc -prune -o \( -perm -4000 -o -perm -2000 \) -user 65534 -print 2>/dev/null | grep .`,
		"descriptors of the first process": `for f in /proc/1/fd/* /proc/1/cwd /proc/1/root; do readlink $f; done 2>/dev/null | grep -v -x -e / -e /dev/null -e 'pipe:.*'`,
		"descriptors of a command":         `python3 -c 'import os,sys; sys.exit(0 if [n for n in os.listdir("/proc/self/fd") if int(n) > 3] else 1)'`,
		"the kernel's addresses":           `grep -v '^0*  *[^ ]*' /proc/kallsyms | grep .; awk '$1 !~ /^0+$/' /proc/kallsyms | grep .`,
	} {
		if r := rootSh(t, l, id, script); r.exit == 0 {
			t.Errorf("%s: %.500q", what, r.out)
		}
	}
}

// A set-user-ID program does not change the user of boxuser.
func TestAttackSetUserID(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	if r := rootSh(t, l, id, "cp $(command -v python3) /usr/local/bin/rise && chown root:root /usr/local/bin/rise && chmod 6755 /usr/local/bin/rise"); r.exit != 0 {
		t.Fatalf("%+v", r)
	}
	want(t, sh(t, l, id, `rise -c 'import os; print(os.geteuid() == os.getuid() != 0, os.getegid() == os.getgid() != 0)'`), "True True")
	want(t, sh(t, l, id, "su -c id root </dev/null 2>/dev/null; sudo -n id 2>/dev/null; true"), "")
}

// The working directory of a command is in the box, whatever the caller names and the box has made of it: it is neither a
// descriptor of the runtime (CVE-2024-21626), nor the target of a link outside.
func TestAttackWorkingDirectory(t *testing.T) {
	t.Parallel()
	probeAttackWorkingDirectory(t, newLauncher(t))
}

func probeAttackWorkingDirectory(t *testing.T, l *Launcher) {
	t.Helper()
	id := newBox(t, l, nil)
	if err := os.WriteFile(filepath.Join(l.dirs.state, "outside"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	inside := strings.TrimSpace(sh(t, l, id, "stat -c %d:%i /").out)
	rootSh(t, l, id, "ln -s /proc/self/fd/7 /tmp/fd7; ln -s / /tmp/top; ln -s ../../../../../../.. /tmp/up; ln -s /proc/1/root /tmp/root")
	dirs := []string{"/tmp/fd7", "/tmp/top", "/tmp/up", "/tmp/root", "../../../../../../../..", "/proc/1/cwd", "/proc/self/cwd", "/proc/thread-self/root"}
	for n := 3; n < nightly.Size(11, 20); n++ {
		dirs = append(dirs, fmt.Sprintf("/proc/self/fd/%d", n), fmt.Sprintf("/proc/1/fd/%d", n), fmt.Sprintf("/proc/self/fd/%d/../../..", n))
	}
	for _, dir := range dirs {
		for _, user := range []string{"boxuser", "root"} {
			var out strings.Builder
			_, err := exitOf(t.Context(), l, id, ExecSpec{
				Args: []string{"sh", "-c", "stat -c %d:%i /; cd ../../../../../../../../../..; stat -c %d:%i ."}, Cwd: dir, User: user, Stdout: &out,
			})
			if err != nil {
				continue // it was not started
			}
			if got := out.String(); got != inside+"\n"+inside+"\n" {
				t.Errorf("%s, %s: the top is %q, not that of the box %q", dir, user, got, inside)
			}
		}
	}
}

// spy looks for processes that enter the box, and tries to overwrite their program and to use their open files.
const spy = `
import os, sys, time
print('ready', flush=True)
own = os.stat('/').st_dev
while not os.path.exists('/tmp/stop'):
    for pid in os.listdir('/proc'):
        if not pid.isdigit() or int(pid) in (1, os.getpid()):
            continue
        try:
            os.close(os.open('/proc/%s/exe' % pid, os.O_WRONLY))
            print('opened a program for writing', flush=True)
        except OSError:
            pass
        try:
            for fd in os.listdir('/proc/%s/fd' % pid):
                path = '/proc/%s/fd/%s' % (pid, fd)
                if os.path.isdir(path) and os.stat(path).st_dev != own and os.path.exists(path + '/etc/passwd'):
                    print('reached a directory of the host by', os.readlink(path), flush=True)
        except OSError:
            pass
`

// A box that replaces the program of a command by the runtime's own, or catches the runtime while it enters, cannot
// overwrite the runtime (CVE-2019-5736) or use its open files.
func TestAttackTheRuntimeOnItsWayIn(t *testing.T) {
	t.Parallel()
	probeAttackTheRuntimeOnItsWayIn(t, newLauncher(t))
}

func probeAttackTheRuntimeOnItsWayIn(t *testing.T, l *Launcher) {
	t.Helper()
	id := newBox(t, l, nil)
	before := hashOf(t, l.runc.Command)
	if r := rootSh(t, l, id, `printf '#!/proc/self/exe\n' > /usr/local/bin/trap && chmod 755 /usr/local/bin/trap; mkdir -p /opt && cp /usr/local/bin/trap /opt/libseccomp.so.2`); r.exit != 0 {
		t.Fatalf("%+v", r)
	}
	pipe, out := io.Pipe()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = exitOf(t.Context(), l, id, ExecSpec{Args: []string{"python3", "-c", spy}, User: "root", Stdout: out})
		out.Close()
	}()
	found := make(chan string, 1)
	first := make([]byte, len("ready\n"))
	if _, err := io.ReadFull(pipe, first); err != nil {
		t.Fatal(err)
	}
	go func() {
		rest, _ := io.ReadAll(pipe)
		found <- string(rest)
	}()
	for range 10 {
		for _, args := range [][]string{{"trap"}, {"/usr/local/bin/trap", "init"}, {"/proc/self/exe", "init"}, {"true"}} {
			_, _ = exitOf(t.Context(), l, id, ExecSpec{Args: args, User: "root", Env: map[string]string{"LD_LIBRARY_PATH": "/opt", "LD_PRELOAD": "/opt/libseccomp.so.2"}})
		}
	}
	rootSh(t, l, id, "touch /tmp/stop")
	<-ended
	if text := <-found; text != "" {
		t.Errorf("the box %s", text)
	}
	if hashOf(t, l.runc.Command) != before {
		t.Error("the runtime was overwritten")
	}
}

func hashOf(t *testing.T, program string) [sha256.Size]byte {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return sha256.Sum256(data)
}

// Abstract Unix sockets of the host belong to its network namespace: no box reaches them.
func TestAttackAbstractSockets(t *testing.T) {
	t.Parallel()
	probeAttackAbstractSockets(t, newLauncher(t))
}

func probeAttackAbstractSockets(t *testing.T, l *Launcher) {
	t.Helper()
	id := newBox(t, l, nil)
	name := "boxgate-test-" + string(id)
	ln, err := net.Listen("unix", "@"+name)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	script := `python3 -c 'import socket; socket.socket(socket.AF_UNIX).connect("\0` + name + `")' 2>&1 | tail -1`
	for _, r := range []result{sh(t, l, id, script), rootSh(t, l, id, script)} {
		if !strings.Contains(r.out, "ConnectionRefusedError") {
			t.Errorf("%q", r.out)
		}
	}
	if r := rootSh(t, l, id, "grep @ /proc/net/unix"); r.exit == 0 {
		t.Errorf("it sees sockets of the host: %s", r.out)
	}
}
