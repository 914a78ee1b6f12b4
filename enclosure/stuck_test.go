package enclosure

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/enclosure/inside"
)

// inConnect lets a script wait until a number of its threads are in connect(2).
const inConnect = `
def in_connect(n, of="self", number={"x86_64": "42", "aarch64": "203"}[os.uname().machine]):
    end = time.time() + 60
    while time.time() < end:
        count = 0
        for task in os.listdir("/proc/%s/task" % of):
            try: count += open("/proc/%s/task/%s/syscall" % (of, task)).read().split()[0] == number
            except OSError: pass
        if count >= n: return
        time.sleep(0.01)
    print("only", count, "of", n, "threads connect"); os._exit(1)
def bounded(f):
    result = []
    t = threading.Thread(target=lambda: result.append(f()), daemon=True); t.start(); t.join(60)
    return result[0] if result else "nothing in a minute"
threading.stack_size(1 << 16); import faulthandler; faulthandler.dump_traceback_later(150, exit=True, file=sys.stdout)
`

// TestAttackConnectsThatWaitHoldUpNoOthers: hundreds of connects to servers that never accept, and to ports that do not
// answer, do not delay other connects of the same command. They complete once the server accepts.
func TestAttackConnectsThatWaitHoldUpNoOthers(t *testing.T) {
	t.Parallel()
	out, _ := python(t, somebody, userDir(t), `
libc.unshare(0x10000000 | 0x40000000) # a network namespace whose loopback interface the command can bring up
import fcntl; fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sh14x", b"lo", 1))
`+inConnect+`
full, free = server("full", 0), server("free")
inet = socket.socket(); inet.bind(("127.0.0.1", 0)); inet.listen(0)
results = []
def wait(family, to):
    c = socket.socket(family)
    try: c.connect(to); results.append((c, 0))
    except OSError as e: results.append((c, e.errno))
def start(n, family, to):
    for _ in range(n): threading.Thread(target=wait, args=(family, to), daemon=True).start()
start(300, socket.AF_UNIX, "full"); start(20, socket.AF_INET, inet.getsockname())
in_connect(310)
def attempt(): c = socket.socket(socket.AF_UNIX); c.connect("free"); return "connected"
print(bounded(attempt), bounded(attempt))
c = socket.socket(socket.AF_UNIX); c.setblocking(False); print(c.connect_ex("full") == errno.EAGAIN)
c = socket.socket(socket.AF_UNIX); c.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 1000)); print(bounded(lambda: connect(c.fileno(), *address("full"))) == errno.EAGAIN)
if os.fork() == 0: print(bounded(attempt)); os._exit(0)
os.wait()
accepted = []
def accept(s):
    while True: accepted.append(s.accept()[0])
for s in full, inet: threading.Thread(target=accept, args=(s,), daemon=True).start()
end = time.time() + 60
while len(results) < 320 and time.time() < end: time.sleep(0.01)
print([sum(c.family == f for c, _ in results) for f in (socket.AF_UNIX, socket.AF_INET)], {e for _, e in results}, any(os.get_blocking(c.fileno()) != True for c, _ in results))
`)
	if want := "connected connected\nTrue\nTrue\nconnected\n[300, 20] {0} False\n"; out != want {
		t.Errorf("%s, not %s", out, want)
	}
}

// silent is a FUSE file system that reads requests and never answers. Its end releases all waiting processes.
type silent struct {
	at     string
	device int
	taken  atomic.Int64 // requests
}

func mountSilent(t *testing.T, at string) *silent {
	t.Helper()
	device, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err == nil {
		options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", device)
		err = errors.Join(os.Mkdir(at, 0o755), unix.Mount("silent", at, "fuse", 0, options))
	}
	if err != nil {
		t.Fatal(err)
	}
	s := &silent{at: at, device: device}
	t.Cleanup(func() { s.end(); _ = unix.Unmount(at, unix.MNT_DETACH) })
	go s.serve()
	return s
}

// end makes the kernel fail all requests, and the next read of one.
func (s *silent) end() { _ = unix.Unmount(s.at, unix.MNT_FORCE) }

// serve answers only the first request (FUSE_INIT).
func (s *silent) serve() {
	defer unix.Close(s.device)
	request := make([]byte, 1<<20)
	for {
		switch _, err := unix.Read(s.device, request); {
		case err == unix.ENODEV:
			return
		case err != nil: // such as the error of a withdrawn request
			continue
		}
		s.taken.Add(1)
		const initialize, answer = 26, 80
		if binary.NativeEndian.Uint32(request[4:]) != initialize {
			continue
		}
		reply := make([]byte, answer)
		binary.NativeEndian.PutUint32(reply, answer)
		copy(reply[8:16], request[8:16])
		binary.NativeEndian.PutUint32(reply[16:], 7)
		binary.NativeEndian.PutUint32(reply[20:], 31)
		binary.NativeEndian.PutUint32(reply[36:], 1<<16) // maximum size of a write
		_, _ = unix.Write(s.device, reply)
	}
}

// TestAttackFileSystemThatNeverAnswers: threads of a process that connect to paths there fail after a while, and do not
// delay other processes; and the processes of the command are killed with the gateway although the supervisor cannot end.
func TestAttackFileSystemThatNeverAnswers(t *testing.T) {
	t.Parallel()
	dir := userDir(t)
	fuse := mountSilent(t, filepath.Join(dir, "fuse"))
	mark := "never-answers-" + filepath.Base(dir)
	script := "import os, sys\nsys.stdout = sys.stderr = open('out', 'w', 1)\n" + common + inConnect + `
free = server("free")
def attempt(path): c = socket.socket(socket.AF_UNIX); return connect(c.fileno(), *address(path))
first = os.fork()
if first == 0:
    for _ in range(40): threading.Thread(target=attempt, args=("fuse/x",), daemon=True).start()
    time.sleep(1000)
in_connect(16, first)
print(bounded(lambda: attempt("free")))
many = [bounded(lambda: attempt("free")) for _ in range(20)]; print(set(many))
results = []
for _ in range(24): threading.Thread(target=lambda: results.append(attempt("fuse/x")), daemon=True).start()
end = time.time() + 60
while len(results) < 8 and time.time() < end: time.sleep(0.01)
print(results, errno.EAGAIN); print("ready")
time.sleep(1000)
`
	if err := os.WriteFile(filepath.Join(dir, mark), []byte(script), 0o644); err != nil {
		t.Fatal(err)
	}
	killed, waited := make(chan struct{}), make(chan error, 1)
	var first func() error
	started := make(chan error)
	go func() { // a separate goroutine, which is locked to its thread
		p, err := Start(nil)
		if err == nil {
			err = p.Run(inside.Spec{Args: []string{"/usr/bin/python3", filepath.Join(dir, mark)}, Dir: dir, UID: somebody, GID: somebody})
			first, p.closeTimeout = p.cmd.Process.Kill, time.Second
		}
		started <- err
		<-killed
		if p != nil {
			waited <- p.Close()
		}
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	out := eventually(t, "the command is ready", func() (string, bool) {
		data, _ := os.ReadFile(filepath.Join(dir, "out"))
		return string(data), bytes.Contains(data, []byte("ready"))
	})
	if want := "0\n{0}\n[11, 11, 11, 11, 11, 11, 11, 11] 11\nready\n"; out != want {
		t.Errorf("%s, not %s", out, want)
	}
	if len(processes(mark)) != 2 {
		t.Error("the processes of the command cannot be found")
	}
	if n := fuse.taken.Load(); n < 2 {
		t.Errorf("the file system has taken %d requests", n)
	}
	if err := first(); err != nil { // as the kernel does when the process outside ends
		t.Fatal(err)
	}
	eventually(t, "the processes of the command end", func() (string, bool) {
		left := processes(mark)
		return fmt.Sprint(left), len(left) == 0
	})
	close(killed)
	if err := <-waited; !errors.Is(err, ErrNotEnded) {
		t.Errorf("the error does not report the remaining processes: %v", err)
	}
	fuse.end()
}

// eventually waits until f returns true, and returns its text.
func eventually(t *testing.T, what string, f func() (string, bool)) string {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		text, ok := f()
		if ok {
			return text
		}
		if time.Now().After(end) {
			t.Fatalf("it does not happen that %s: %s", what, text)
		}
	}
}

// processes returns the processes of the host that have an argument with a text. Killed processes have no arguments.
func processes(text string) (out []int) {
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range all {
		data, err := os.ReadFile(path)
		if err == nil && strings.Contains(string(data), text) {
			pid, _ := strconv.Atoi(strings.Split(path, "/")[2])
			out = append(out, pid)
		}
	}
	return out
}

// TestSocketsOfNamespacesThatTheCommandHasMade: they can be reached from the command's other namespaces; a socket of the
// host cannot.
func TestSocketsOfNamespacesThatTheCommandHasMade(t *testing.T) {
	t.Parallel()
	dir := userDir(t)
	h := serve(t, filepath.Join(dir, "host"))
	h.reachable(t)
	out, refused := python(t, somebody, dir, `
def attempt(path): c = socket.socket(socket.AF_UNIX); return connect(c.fileno(), *address(path))
outside = server("outside"); r, w = os.pipe(); gone_r, gone_w = os.pipe()
child = os.fork()
if child == 0:
    if libc.unshare(0x10000000 | 0x40000000) != 0: os.write(w, b"no"); os._exit(1)
    s = server("inside"); os.write(w, b"ok"); print("inside:", attempt("inside"), attempt("outside"), attempt("host"))
    os.close(gone_w); os.read(gone_r, 1); os._exit(0)
print(os.read(r, 2).decode(), attempt("inside"), attempt("host"))
os.close(gone_w); os.wait(); print("gone:", attempt("inside") == errno.EACCES)
`)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	for _, want := range []string{"ok 0 13", "inside: 0 0 13", "gone: True"} {
		if !strings.Contains("\n"+out, "\n"+want+"\n") {
			t.Errorf("no line %q among %q", want, lines)
		}
	}
	if h.count.Load() != 0 || len(refused) == 0 || refused[0] != h.path {
		t.Errorf("the host's server was reached %d times; refused: %q", h.count.Load(), refused)
	}
}
