package attack

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"boxgate/e2e/harness"
	"boxgate/internal/lab"
)

// hogScript allocates one kind of kernel resource: as many as possible, which it then holds, or one.
const hogScript = `
import ctypes, errno, os, platform, signal, sys
libc = ctypes.CDLL(None, use_errno=True)
io_setup, add_key = (206, 248) if platform.machine() == 'x86_64' else (0, 217)

def check(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result

def timer(n):
    check(libc.timer_create(1, None, ctypes.byref(ctypes.c_void_p())))

def queue(n):
    name = b'/hog%d-%d' % (os.getpid(), n)
    attributes = (ctypes.c_long * 8)(0, 10, 8192)
    check(libc.mq_open(name, os.O_CREAT | os.O_RDWR, 0o600, ctypes.byref(attributes)))
    check(libc.mq_unlink(name))

def aio(n):
    for events in (1 << 16, 1 << 10, 1) if everything else (1,):
        try:
            return check(libc.syscall(io_setup, events, ctypes.byref(ctypes.c_ulong())))
        except OSError as e:
            failed = e
    raise failed

def process(n):
    if os.fork() == 0:
        signal.pause()

take = {
    'inotify': lambda n: check(libc.inotify_init1(0)),
    'timers': timer,
    'queues': queue,
    'ptys': lambda n: os.open('/dev/ptmx', os.O_RDWR | os.O_NOCTTY),
    'aio': aio,
    'keys': lambda n: check(libc.syscall(add_key, b'user', b'hog%d' % n, b'x' * 64, 64, -2)),
    'pids': process,
}[sys.argv[2]]
everything = sys.argv[1] == 'all'
if everything and os.getuid() == 0 and sys.argv[2] not in ('pids', 'ptys'):  # root of a box has 65,536 users
    for uid in range(2000, 2020):
        done, report = os.pipe()
        if os.fork() == 0:
            os.setgid(uid)
            os.setuid(uid)
            break
        os.close(report)
        os.read(done, 1)
taken, why = 0, None
while taken < (200000 if everything else 1):
    try:
        take(taken)
    except OSError as e:
        why = errno.errorcode[e.errno]
        break
    taken += 1
if everything and os.getuid() >= 2000:
    os.close(report)
else:
    print('took', taken, why, flush=True)
if everything:
    signal.pause()
if why and why not in sys.argv[3:]:
    sys.exit(1)
`

// A hostile box cannot exhaust kernel resources that are counted per user for another box or the host's root: while it
// holds as much as it can get of everything, the others get their share.
func TestAttackKernelResourcesOfNeighbours(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	hog, neighbour := w.Create(map[string]any{}), w.Create(map[string]any{})
	for _, box := range []string{hog, neighbour} {
		w.MustSh(box, "cat > hog.py <<'EOF'\n"+hogScript+"\nEOF")
	}
	for _, kind := range []string{"inotify", "timers", "queues", "ptys", "aio", "keys", "pids"} { // pids is last because no process can be started afterwards
		var out lab.SyncBuffer
		w.Background(hog, "exec python3 hog.py all "+kind, &out)
		if err := out.Await(t.Context(), "\n"); err != nil {
			t.Fatalf("%s: %v %s", kind, err, out.String())
		}
		t.Logf("%s: the hostile box %s", kind, strings.TrimSpace(out.String()))
	}
	for kind, one := range hostsRoot {
		t.Run(kind, func(t *testing.T) {
			w := w.On(t)
			// A resource that no box gets cannot be exhausted.
			if out, code := w.Sh(neighbour, "python3 hog.py one "+kind+" "+withheld[kind]); code != 0 {
				t.Errorf("the other box %s", out)
			}
			if err := one(); err != nil {
				t.Errorf("the host's root: %v", err)
			}
		})
	}
}

// withheld are the errors for resources that boxes never get.
var withheld = map[string]string{"aio": "ENOSYS", "keys": "EPERM"}

// hostsRoot allocates one of each resource as the host's root.
var hostsRoot = map[string]func() error{
	"inotify": func() error {
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
		if err == nil {
			unix.Close(fd)
		}
		return err
	},
	"timers": func() error {
		var id int32
		if _, _, e := unix.Syscall(unix.SYS_TIMER_CREATE, unix.CLOCK_MONOTONIC, 0, uintptr(unsafe.Pointer(&id))); e != 0 {
			return e
		}
		unix.Syscall(unix.SYS_TIMER_DELETE, uintptr(id), 0, 0)
		return nil
	},
	"queues": func() error {
		name := fmt.Appendf(nil, "boxgate-test-%d\x00", os.Getpid())
		fd, _, e := unix.Syscall6(unix.SYS_MQ_OPEN, uintptr(unsafe.Pointer(&name[0])), unix.O_CREAT|unix.O_RDWR, 0o600, 0, 0, 0)
		if e != 0 {
			return e
		}
		unix.Syscall(unix.SYS_MQ_UNLINK, uintptr(unsafe.Pointer(&name[0])), 0, 0)
		return unix.Close(int(fd))
	},
	"ptys": func() error {
		fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
		if err == nil {
			unix.Close(fd)
		}
		return err
	},
	"aio": func() error {
		var context uintptr
		if _, _, e := unix.Syscall(unix.SYS_IO_SETUP, 1, uintptr(unsafe.Pointer(&context)), 0); e != 0 {
			return e
		}
		unix.Syscall(unix.SYS_IO_DESTROY, context, 0, 0)
		return nil
	},
	"keys": func() error {
		runtime.LockOSThread() // the keyring belongs to the thread
		defer runtime.UnlockOSThread()
		key, err := unix.AddKey("user", "boxgate-test", []byte("x"), unix.KEY_SPEC_THREAD_KEYRING)
		if err == nil {
			_, err = unix.KeyctlInt(unix.KEYCTL_UNLINK, key, unix.KEY_SPEC_THREAD_KEYRING, 0, 0)
		}
		return err
	},
	"pids": func() error {
		out, err := exec.Command("true").CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, bytes.TrimSpace(out))
		}
		return nil
	},
}
