package enclosure

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"boxgate/enclosure/inside"
	"boxgate/internal/nightly"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == inside.Command { // as the gateway does
		os.Exit(inside.Main())
	}
	os.Exit(m.Run())
}

// somebody is the user that commands run as. No user database lists it.
const somebody = 47110

// python runs a script as a command of a user, in a directory owned by the user, and returns its output and the sockets
// that it was refused.
func python(t *testing.T, uid int, dir, script string) (out string, refused []string) {
	t.Helper()
	path, result := filepath.Join(dir, "script.py"), filepath.Join(dir, "out")
	err := errors.Join(
		os.WriteFile(path, []byte("import os, sys\nsys.stdout = sys.stderr = open('"+result+"', 'w', 1)\n"+common+script), 0o644),
		os.WriteFile(result, nil, 0o666), os.Chmod(result, 0o666))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { // a separate goroutine, which is locked to its thread
		defer close(done)
		var p *Process
		if p, err = Start(nil); err != nil {
			return
		}
		p.OnRefused = func(path string) { refused = append(refused, path) }
		err = p.Run(inside.Spec{Args: []string{"/usr/bin/python3", path}, Env: []string{"PATH=/usr/bin:/bin"}, Dir: dir, UID: uid, GID: uid, Groups: []int{uid}})
		var status int
		if err == nil {
			status, err = p.Wait()
		}
		if err == nil && status != 0 {
			err = fmt.Errorf("exit status %d", status)
		}
		err = errors.Join(err, p.Close())
	}()
	<-done
	data, failed := os.ReadFile(result)
	if err := errors.Join(err, failed); err != nil {
		t.Fatalf("%v\n%s", err, data)
	}
	return string(data), refused
}

// common is the beginning of every script. connect returns the error number, 0 on success.
const common = `
import ctypes, errno, signal, socket, struct, threading, time
libc = ctypes.CDLL(None, use_errno=True)
def server(path, backlog=4096):
    s = socket.socket(socket.AF_UNIX); s.bind(path); s.listen(backlog); return s
def address(path):
    a = struct.pack("H", socket.AF_UNIX) + path.encode() + b"\0"; return a, len(a)
def connect(fd, buffer, length):
    return 0 if libc.connect(fd, buffer, length) == 0 else ctypes.get_errno()
`

// host is a server of the host at a Unix socket. It counts its connections.
type host struct {
	path  string
	count atomic.Int64
}

func serve(t *testing.T, path string) *host {
	t.Helper()
	h := &host{path: path}
	ln, err := net.Listen("unix", path)
	if err == nil {
		err = os.Chmod(path, 0o777)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			h.count.Add(1)
			_ = c.Close()
		}
	}()
	return h
}

// reachable checks that the server can be reached without a gateway, so that a refusal proves something.
func (h *host) reachable(t *testing.T) {
	t.Helper()
	c, err := net.Dial("unix", h.path)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = c.Read(make([]byte, 1)) // until it is counted
	_ = c.Close()
	if h.count.Swap(0) != 1 {
		t.Fatal("the server does not count")
	}
}

func userDir(t *testing.T) string {
	t.Helper()
	nightly.Root(t)
	dir, err := os.MkdirTemp("", "boxgate-connect-")
	if err == nil {
		err = errors.Join(os.Chown(dir, somebody, somebody), os.Chmod(dir, 0o755))
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// TestAttackWhatIsConnectedIsExchanged: while a command connects, one of its threads or processes exchanges the file at the
// path, the path in memory, or the descriptor.
func TestAttackWhatIsConnectedIsExchanged(t *testing.T) {
	t.Parallel()
	for name, attack := range map[string]string{
		"the file": `
os.symlink("own", "path"); os.symlink("host", "other")
def exchange():
    while time.time() < end: libc.renameat2(-100, b"path", -100, b"other", 2)
if os.fork() == 0: exchange(); os._exit(0)
def attempt():
    c = socket.socket(socket.AF_UNIX); a, n = address(os.getcwd() + "/path"); return connect(c.fileno(), a, n)
`,
		"the path in memory": `
a, n = address("own\0"); buffer = ctypes.create_string_buffer(a); names = [b"own\0", b"host"]
def exchange():
    while time.time() < end:
        for name in names: ctypes.memmove(ctypes.addressof(buffer) + 2, name, 4)
threading.Thread(target=exchange, daemon=True).start()
def attempt():
    c = socket.socket(socket.AF_UNIX); return connect(c.fileno(), buffer, 7)
`,
		"the descriptor": `
a, n = address("host"); sockets = [socket.socket(socket.AF_UNIX), socket.socket(socket.AF_INET)]; fd = os.dup(sockets[0].fileno())
def exchange():
    while time.time() < end:
        for s in sockets: os.dup2(s.fileno(), fd)
threading.Thread(target=exchange, daemon=True).start()
def attempt(): return connect(fd, a, n)
`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := userDir(t)
			h := serve(t, filepath.Join(dir, "host"))
			h.reachable(t)
			out, _ := python(t, somebody, dir, "s = server('own')\nend = time.time() + 1\n"+attack+`
found = {}
while time.time() < end:
    e = attempt(); found[e] = found.get(e, 0) + 1
    try: s.setblocking(False); s.accept()[0].close()
    except OSError: pass
print(sum(found.values()) > 50, found)
`)
			if n := h.count.Load(); n != 0 {
				t.Errorf("the host's server was reached %d times\n%s", n, out)
			}
			if !strings.HasPrefix(out, "True") || !strings.Contains(out, fmt.Sprintf("%d:", int(unix.EACCES))) {
				t.Errorf("too few attempts, or none at the host's socket: %s", out)
			}
		})
	}
}

// TestAttackFileOfTheSameNumber: the kernel lists sockets with the lower 32 bits of the inode number of their file, and
// with another device number than stat(2). A command binds a socket to a file with the same inode number as the host's, in
// another file system.
func TestAttackFileOfTheSameNumber(t *testing.T) {
	t.Parallel()
	dir := userDir(t)
	own, shared := filepath.Join(dir, "own"), filepath.Join(dir, "shared")
	for _, at := range []string{own, shared} {
		if err := errors.Join(os.Mkdir(at, 0o755), unix.Mount("tmpfs", at, "tmpfs", 0, "mode=0777")); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
	}
	h := serve(t, filepath.Join(shared, "host"))
	h.reachable(t)
	out, refused := python(t, somebody, dir, `
want, kept = os.stat("shared/host").st_ino, []
for i in range(1000):
    kept.append(server("own/%d" % i))
    if os.stat("own/%d" % i).st_ino == want: break
c = socket.socket(socket.AF_UNIX); a, n = address("own/%d" % i); print("own", connect(c.fileno(), a, n))
c = socket.socket(socket.AF_UNIX); a, n = address("shared/host"); print("host", connect(c.fileno(), a, n), os.stat("own/%d" % i).st_ino == want)
`)
	if want := fmt.Sprintf("own 0\nhost %d True\n", int(unix.EACCES)); out != want || h.count.Load() != 0 {
		t.Errorf("%q, not %q; the host's server was reached %d times", out, want, h.count.Load())
	}
	if len(refused) != 1 || refused[0] != h.path {
		t.Errorf("refused: %q", refused)
	}
}

// TestConnectsWithTheRightsOfTheCaller: the caller cannot connect to a socket that its permissions forbid, or below such a
// directory, and the server sees the caller's user.
func TestConnectsWithTheRightsOfTheCaller(t *testing.T) {
	t.Parallel()
	out, _ := python(t, 0, userDir(t), `
def as_user(uid, gid, groups, path):
    s.setblocking(False)
    r, w = os.pipe()
    if os.fork() == 0:
        os.setgroups(groups); os.setgid(gid); os.setuid(uid)
        c = socket.socket(socket.AF_UNIX); a, n = address(path); e = connect(c.fileno(), a, n)
        os.write(w, str(e).encode()); time.sleep(0.01); os._exit(0)
    e = int(os.read(r, 9)); os.wait()
    try: return e, struct.unpack("3i", s.accept()[0].getsockopt(1, 17, 12))[1:]
    except BlockingIOError: return e, None
s = server("socket"); os.mkdir("closed", 0o750); os.chown("closed", 0, 5); os.link("socket", "closed/socket")
os.chmod("socket", 0o700); print(as_user(47110, 47110, [], "socket"), as_user(0, 0, [], "socket"))
os.chmod("socket", 0o777); print(as_user(47110, 47111, [], "socket"), as_user(47111, 47110, [5], "closed/socket"), as_user(47111, 47110, [6], "closed/socket"))
`)
	if want := "(13, None) (0, (0, 0))\n(0, (47110, 47111)) (0, (47111, 47110)) (13, None)\n"; out != want {
		t.Errorf("%s, not %s", out, want)
	}
}

// TestConnectAndSignals: a signal interrupts a waiting connect, and no other connect fails because of one.
func TestConnectAndSignals(t *testing.T) {
	t.Parallel()
	out, _ := python(t, somebody, userDir(t), `
class Interrupted(Exception): pass
def interrupt(*_): raise Interrupted
s = server("full", 0); waiting = [socket.socket(socket.AF_UNIX) for _ in range(3)]
signal.signal(signal.SIGALRM, interrupt); signal.setitimer(signal.ITIMER_REAL, 0.2)
try:
    for c in waiting: c.connect("full")
except Interrupted: print("interrupted")
signal.signal(signal.SIGALRM, lambda *_: None); signal.siginterrupt(signal.SIGALRM, False); signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
s, failed, end = server("free"), set(), time.time() + 0.5
while time.time() < end:
    c = socket.socket(socket.AF_UNIX)
    try: c.connect("free"); s.accept()[0].close()
    except OSError as e: failed.add(str(e))
signal.setitimer(signal.ITIMER_REAL, 0); print(failed)
`)
	if out != "interrupted\nset()\n" {
		t.Error(out)
	}
}

// TestConnectIsRepeated: a second connect of a connected socket fails with EISCONN. Only the first repetition may be taken
// for a call that the kernel restarts.
func TestConnectIsRepeated(t *testing.T) {
	t.Parallel()
	out, _ := python(t, somebody, userDir(t), `
libc.unshare(0x10000000 | 0x40000000) # a network namespace whose loopback interface the command can bring up
import fcntl; fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sh14x", b"lo", 1))
s = server("s"); inet = socket.socket(); inet.bind(("127.0.0.1", 0)); inet.listen()
internet = struct.pack("=H", socket.AF_INET) + struct.pack("!H4s8x", inet.getsockname()[1], b"\x7f\0\0\1")
for family, (a, n) in (socket.AF_UNIX, address("s")), (socket.AF_INET, (internet, len(internet))):
    c = socket.socket(family); first, _, *more = [connect(c.fileno(), a, n) for _ in range(5)]; print(first, more)
`)
	if want := strings.Repeat(fmt.Sprintf("0 [%d, %[1]d, %[1]d]\n", int(unix.EISCONN)), 2); out != want {
		t.Errorf("%q, not %q", out, want)
	}
}

// TestAttack32BitCalls: calls of the 32-bit interface are judged like others.
func TestAttack32BitCalls(t *testing.T) {
	t.Parallel()
	if runtime.GOARCH != "amd64" {
		t.Skip("the test has its instructions for amd64 alone; TestFilterOfCalls judges the calls of each machine")
	}
	dir := userDir(t)
	h := serve(t, filepath.Join(dir, "host"))
	h.reachable(t)
	out, _ := python(t, somebody, dir, `
import mmap
code = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40, mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC) # MAP_32BIT
code.write(bytes.fromhex("5389f889f387cacd805bc3")) # int 0x80 with the arguments
at = ctypes.addressof(ctypes.c_char.from_buffer(code)); call = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_uint] * 4)(at)
s = server("own")
for path in ("own", "host"):
    a, n = address(path); code[1024:1024 + n] = a
    fd = call(359, socket.AF_UNIX, socket.SOCK_STREAM, 0); print(path, fd >= 0, call(362, fd, at + 1024, n))
print(call(359, socket.AF_UNIX, socket.SOCK_DGRAM, 0), call(102, 1, at, 0))
`)
	want := fmt.Sprintf("own True 0\nhost True %d\n%d %d\n", -int(unix.EACCES), -int(unix.ESOCKTNOSUPPORT), -int(unix.ENOSYS))
	if out != want || h.count.Load() != 0 {
		t.Errorf("%q, not %q; the host's server was reached %d times", out, want, h.count.Load())
	}
}

// TestCloseIsTheLast: when a program knows that it is connected, its own close ends the connection, because no other
// process has the socket.
func TestCloseIsTheLast(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	out, _ := python(t, somebody, userDir(t), `
s = server("s")
late = 0
for i in range(1000):
    c = socket.socket(socket.AF_UNIX)
    c.connect("s")
    c.close()
    accepted = s.accept()[0]
    try:
        accepted.recv(1, socket.MSG_DONTWAIT)
    except BlockingIOError:
        late += 1
    accepted.close()
print("late", late)
`)
	if out != "late 0\n" {
		t.Error(out)
	}
}

// TestAttackDescriptorsOfTheSupervisor: for the supervisor, links to descriptors in /proc are its own. A process of the
// command uses them to get past a directory that it may not enter, by a link, a path and its working directory.
func TestAttackDescriptorsOfTheSupervisor(t *testing.T) {
	t.Parallel()
	out, _ := python(t, 0, userDir(t), inConnect+`
os.mkdir("closed"); s = server("closed/socket", 0); os.chmod("closed/socket", 0o777); os.chmod("closed", 0o700); os.chmod(".", 0o777)
def attempt(path): c = socket.socket(socket.AF_UNIX); c.setblocking(False); return c.connect_ex(path)
attempt("closed/socket")
def wait(): c = socket.socket(socket.AF_UNIX); c.connect("closed/socket")
for _ in range(3): threading.Thread(target=wait, daemon=True).start()
in_connect(3)
supervisor = next(p for p in os.listdir("/proc") if p.isdigit() and p != "1" and open("/proc/%s/cmdline" % p).read().startswith("gateway"))
if os.fork() == 0:
    os.setgroups([]); os.setgid(47110); os.setuid(47110); print(attempt("closed/socket") == errno.EACCES)
    found = set(); os.symlink("/proc/self", "self"); os.symlink("/proc/thread-self/../..", "process"); os.symlink("/proc/net/..", "net")
    here = os.getcwd(); task = os.listdir("/proc/%s/task" % supervisor)[-1]
    for directory in ("self", "process", "net", "/proc/" + supervisor, "/proc/" + task, "/proc/%s/task/%s" % (supervisor, task)) * 5: # the waiting calls open it soon
        found |= {attempt("%s/fd/%d" % (directory, n)) for n in range(40)}
    os.chdir("/proc/" + supervisor); found |= {attempt("fd/%d" % n) for n in range(40)}
    print(found & {0, errno.EAGAIN}, errno.EACCES in found); os._exit(0)
os.wait(); os.chdir(os.path.dirname(sys.argv[0])); own = server("own"); at = os.open(".", os.O_PATH); os.symlink("/proc/self/fd/%d" % at, "here"); os.symlink("/proc/thread-self/cwd", "thread"); os.symlink("here/own", "far")
os.symlink("circle", "circle"); os.symlink("/proc/self/cwd/endless", "endless")
print([attempt(p) for p in ("here/own", "thread/./own", "far", "/proc/self/fd/%d/own" % at, "/proc/%d/cwd/own" % os.getpid(), "here/../%s/own" % os.path.basename(os.getcwd()))])
print([errno.errorcode[attempt(p)] for p in ("here/own/", "here/none", "circle", "endless", "here/own/..")]); os._exit(0)
`)
	if want := "True\nset() True\n[0, 0, 0, 0, 0, 0]\n['ENOTDIR', 'ENOENT', 'ELOOP', 'ELOOP', 'ENOTDIR']\n"; out != want {
		t.Errorf("%s, not %s", out, want)
	}
}
