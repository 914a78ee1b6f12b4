package launcher

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/launcher/terminal"
	"boxgate/policy"
)

// enteringLauncher returns a launcher that starts no command with the runtime.
func enteringLauncher(t *testing.T) *Launcher {
	t.Helper()
	l := newLauncher(t)
	if l.entering == nil {
		t.Fatal("boxes cannot be entered on this host")
	}
	l.entersOnly = true
	return l
}

// ambush runs as the box's root. It stops each new process as soon as it exists, and tries to get into those that have not
// executed their command yet: their memory, descriptors, links and registers.
const ambush = `
import ctypes, os, signal, sys
libc = ctypes.CDLL(None, use_errno=True)
caught = 0
print('ready', flush=True)
def entering(pid):
    try:
        return open(f'/proc/{pid}/cmdline').read().startswith('boxgate-enter')
    except OSError:
        return False
def newest():
    return int(open('/proc/loadavg').read().split()[4])
last = newest()
while caught < 20:
    if not last <= newest() <= last + 8:  # many have started in the meantime
        last = newest()
    for pid in range(last + 1, last + 9):
        try:
            os.kill(pid, signal.SIGSTOP)
        except OSError:
            continue
        last = pid
        found = []
        if entering(pid):
            for name in ('mem', 'environ', 'maps', 'auxv', 'syscall', 'stack', 'io', 'personality'):
                for flags in (os.O_RDONLY, os.O_RDWR):
                    try:
                        if os.read(os.open(f'/proc/{pid}/{name}', flags), 1):
                            found += ['read', name, str(flags)]
                    except OSError:
                        pass
            for name in ('exe', 'cwd', 'root', 'fd/0', 'fd/3', 'fd/4', 'fd/5', 'map_files', 'ns/user', 'ns/net'):
                for call in (os.readlink, os.listdir, lambda p: os.open(p, os.O_RDONLY), lambda p: os.open(p, os.O_RDWR)):
                    try:
                        found += ['opened', name, str(call(f'/proc/{pid}/{name}'))]
                    except OSError:
                        pass
            for request in (16, 0x4206):  # PTRACE_ATTACH, PTRACE_SEIZE
                if libc.ptrace(request, pid, None, None) == 0:
                    found += ['traced']
                    os.waitpid(pid, 0x40000000)  # __WALL: until it is stopped, as PTRACE_DETACH requires
                    libc.ptrace(17, pid, None, None)  # PTRACE_DETACH: it may have executed its command, and must end
            handle = libc.syscall(434, pid, 0)
            for fd in range(8):
                if libc.syscall(438, handle, fd, 0) >= 0:  # pidfd_getfd
                    found += ['took', str(fd)]
            if handle >= 0:
                os.close(handle)
            if entering(pid):  # still: it was not stopped at the end of its execve, as a process of the box
                caught += 1
                print(*found, end='\n' if found else '', flush=True)
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:  # it ended before the signal reached it
            pass
print('caught', caught, flush=True)
`

// TestAttackOnEnteringProcesses: root of a box that stops a process between its entry and its command reaches nothing of it.
func TestAttackOnEnteringProcesses(t *testing.T) {
	t.Parallel()
	probeAttackOnEnteringProcesses(t, enteringLauncher(t))
}

func probeAttackOnEnteringProcesses(t *testing.T, l *Launcher) {
	t.Helper()
	id := newBox(t, l, nil)
	ready, out := make(chan struct{}), &lockedBuffer{}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var once sync.Once
	c, err := l.Start(ctx, id, ExecSpec{Args: []string{"python3", "-c", ambush}, User: "root", Stderr: out, Stdout: writerFunc(func(p []byte) (int, error) {
		once.Do(func() { close(ready) })
		return out.Write(p)
	})})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-ready:
	case <-time.After(time.Minute):
		t.Fatal("the ambush does not start:", out.String())
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if res, err := c.Wait(ctx); err != nil || res.Status != 0 {
			t.Errorf("%+v, %v", res, err)
		}
	}()
	for i := 0; ; i++ {
		select {
		case <-done:
			if got := out.String(); got != "ready\ncaught 20\n" {
				t.Errorf("after %d commands: %s", i, got)
			}
			return
		default:
		}
		if err := enterOnce(ctx, l, id, []string{"root", "boxuser"}[i%2]); err != nil || i > mostEntries {
			t.Errorf("after %d commands: %v: %s", i, err, out.String())
			cancel()
			<-done
			return
		}
	}
}

// mostEntries is the number of commands after which the ambush has failed. It needs 40 to 80.
const mostEntries = 3000

// enterOnce runs a command that only enters the box. Each has a minute, since how many the ambush needs depends on the machine's load.
func enterOnce(ctx context.Context, l *Launcher, id policy.BoxID, user string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	res, err := l.Exec(ctx, id, ExecSpec{Args: []string{"true"}, User: user})
	if err == nil && res.Status != 0 {
		err = fmt.Errorf("exit status %d", res.Status)
	}
	return err
}

// lockedBuffer is a buffer for several writers.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// TestAttackThroughPathsOfTheCommand: no working directory and no program that a box arranges, or that a caller names, leads to
// a file of the host or to descriptors that the entering process had.
func TestAttackThroughPathsOfTheCommand(t *testing.T) {
	t.Parallel()
	probeAttackThroughPathsOfTheCommand(t, enteringLauncher(t))
}

func probeAttackThroughPathsOfTheCommand(t *testing.T, l *Launcher) {
	t.Helper()
	id := newBox(t, l, nil)
	leaked, err := unix.Open("/", unix.O_RDONLY|unix.O_DIRECTORY, 0) // not close-on-exec, as one that the gateway was started with
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(leaked)
	high, err := unix.FcntlInt(uintptr(leaked), unix.F_DUPFD, 200)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(high)
	want(t, sh(t, l, id, "ls /proc/self/fd | sort -n | tr '\\n' ' '"), "0 1 2 3") // 3 is the directory that ls reads
	rootSh(t, l, id, "for n in 3 4 5 6 7 8 9; do ln -s /proc/self/fd/$n /tmp/cwd$n; done; ln -s /proc/self/exe /usr/local/bin/again; ln -s /proc/self/fd/4 /usr/local/bin/four")
	for _, n := range []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, leaked, high} {
		for _, cwd := range []string{fmt.Sprintf("/proc/self/fd/%d", n), fmt.Sprintf("/proc/self/fd/%d/../..", n), fmt.Sprintf("/tmp/cwd%d", n)} {
			for _, user := range []string{"root", "boxuser"} {
				res, err := l.Exec(t.Context(), id, ExecSpec{Args: []string{"ls"}, Cwd: cwd, User: user})
				if path.Clean(cwd) != "/proc/self" && err == nil { // the caller's path is cleaned first
					t.Errorf("a working directory %s as %s: %+v", cwd, user, res)
				}
			}
		}
	}
	for _, program := range []string{"/proc/self/exe", "again", "four", "/proc/self/fd/3", "/proc/self/fd/4", "/proc/self/fd/5", "/proc/self/fd/64", "/proc/thread-self/exe"} {
		res, err := l.Exec(t.Context(), id, ExecSpec{Args: []string{program}, User: "root"})
		if err == nil && res.Status == 0 {
			t.Errorf("program %s: %+v", program, res)
		}
	}
	want(t, rootSh(t, l, id, "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline; done | grep -c '[b]oxgate-enter'; true"), "0")
}

// TestAttackOnTheTerminal: a box that replaces /dev/ptmx or /dev/pts gets no command with a terminal, and no other file of the
// command.
func TestAttackOnTheTerminal(t *testing.T) {
	t.Parallel()
	probeAttackOnTheTerminal(t, enteringLauncher(t))
}

func probeAttackOnTheTerminal(t *testing.T, l *Launcher) {
	t.Helper()
	for _, script := range []string{
		"rm /dev/ptmx; touch /dev/ptmx", "rm /dev/ptmx; mkfifo /dev/ptmx", "rm /dev/ptmx; ln -s /proc/self/fd/4 /dev/ptmx", "rm /dev/ptmx; ln -s /dev/null /dev/ptmx",
		"rm /dev/ptmx; ln -s /dev/tty /dev/ptmx", "rm /dev/ptmx; mkdir /dev/ptmx", "rm /dev/ptmx; ln -s pts/0 /dev/ptmx", "rm /dev/ptmx", "chmod 0 /dev/pts/ptmx",
	} {
		id := newBox(t, l, nil)
		rootSh(t, l, id, script)
		res, err := l.Exec(t.Context(), id, ExecSpec{Args: []string{"true"}, Terminal: &terminal.Size{Rows: 24, Cols: 80}})
		if err == nil && !strings.HasPrefix(script, "chmod") { // root may still open it
			t.Errorf("%q: %+v", script, res)
		}
		want(t, sh(t, l, id, "echo goes on"), "goes on")
	}
}

// TestEndOfTheBoxWhileCommandsStart: commands that start while their box is deleted end with an error or are killed, and
// leave nothing.
func TestEndOfTheBoxWhileCommandsStart(t *testing.T) {
	t.Parallel()
	l := enteringLauncher(t)
	for range 5 {
		id := newBox(t, l, nil)
		var group sync.WaitGroup
		stop := make(chan struct{})
		for range 4 {
			group.Go(func() {
				for {
					res, err := l.Exec(t.Context(), id, ExecSpec{Args: []string{"true"}})
					if err == nil && res.Status != 0 && res.Status != 128+9 {
						t.Errorf("%+v", res)
					}
					select {
					case <-stop:
						return
					default:
					}
				}
			})
		}
		if err := l.Delete(t.Context(), id); err != nil {
			t.Error(err)
		}
		close(stop)
		group.Wait()
		if dirs, err := l.cgroup(id).Dirs(); err != nil || len(dirs) > 0 {
			t.Errorf("control groups are left: %v, %v", dirs, err)
		}
	}
}

// TestStoppedEntryEndsWithItsCaller: a command that the box stops before it begins is killed when its caller gives up.
func TestStoppedEntryEndsWithItsCaller(t *testing.T) {
	t.Parallel()
	probeStoppedEntryEndsWithItsCaller(t, enteringLauncher(t))
}

func probeStoppedEntryEndsWithItsCaller(t *testing.T, l *Launcher) {
	t.Helper()
	id := newBox(t, l, nil)
	ready := make(chan struct{})
	var once sync.Once
	c, err := l.Start(t.Context(), id, ExecSpec{Args: []string{"python3", "-c", strings.ReplaceAll(ambush, "os.kill(pid, signal.SIGCONT)", "break")}, User: "root",
		Stdout: writerFunc(func(p []byte) (int, error) { once.Do(func() { close(ready) }); return len(p), nil })})
	if err != nil {
		t.Fatal(err)
	}
	<-ready
	for i := range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		_, err := l.Exec(ctx, id, ExecSpec{Args: []string{"sleep", "9000"}})
		cancel()
		if err == nil {
			t.Errorf("command %d ended", i)
		}
	}
	c.Kill()
	_, _ = c.Wait(t.Context())
	want(t, sh(t, l, id, "until [ $(ls -d /proc/[0-9]* | wc -l) -le 5 ]; do sleep 0.01; done; echo gone"), "gone")
}

// TestEndOfTheFirstProcessWhileCommandsStart: when the box's first process is killed while commands are being entered, they
// end, and no process of the box is left.
func TestEndOfTheFirstProcessWhileCommandsStart(t *testing.T) {
	t.Parallel()
	l := enteringLauncher(t)
	for range 5 {
		id := newBox(t, l, nil)
		pid, err := readPid(filepath.Join(l.dirs.box(id), "pid"))
		if err != nil {
			t.Fatal(err)
		}
		var inside atomic.Int64 // commands that have started
		var group sync.WaitGroup
		for range 4 {
			group.Go(func() {
				for {
					c, err := l.Start(t.Context(), id, ExecSpec{Args: []string{"sleep", "9000"}})
					if err != nil {
						return // the box has ended
					}
					inside.Add(1)
					group.Go(func() {
						if res, err := c.Wait(t.Context()); err != nil || res.Status != 128+9 {
							t.Errorf("%+v, %v", res, err)
						}
					})
				}
			})
		}
		until(t, "commands have started", func() bool { return inside.Load() >= 4 })
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			t.Error(err)
		}
		group.Wait()
		dirs, err := l.cgroup(id).Dirs()
		if err != nil {
			t.Error(err)
		}
		until(t, "no process of the box is left", func() bool { return members(t, dirs) == 0 })
		if err := l.Delete(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
}

// until waits for a condition.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

// TestCommandsOfABoxAtItsLimitOfProcesses: a box that has all processes it may have gets no further command, and none runs
// outside its limit.
func TestCommandsOfABoxAtItsLimitOfProcesses(t *testing.T) {
	t.Parallel()
	l := enteringLauncher(t)
	id := newBox(t, l, nil)
	full := make(chan struct{})
	var once sync.Once
	c, err := l.Start(t.Context(), id, ExecSpec{
		Args: []string{"python3", "-c", `
import os, signal
n = 0
while True:
    try:
        if os.fork() == 0:
            signal.pause()
        n += 1
    except OSError:
        break
print(n, flush=True)
signal.pause()
`},
		Stdout: writerFunc(func(p []byte) (int, error) { once.Do(func() { close(full) }); return len(p), nil }),
	})
	if err != nil {
		t.Fatal(err)
	}
	<-full
	for _, user := range []string{"root", "boxuser"} {
		if res, err := l.Exec(t.Context(), id, ExecSpec{Args: []string{"true"}, User: user}); err == nil {
			t.Errorf("a command as %s: %+v", user, res)
		}
	}
	c.Kill()
	_, _ = c.Wait(t.Context())
	want(t, sh(t, l, id, "echo goes on"), "goes on")
}

// TestNoEntryIntoAPausedBox: a paused box gets no command, and none waits in it.
func TestNoEntryIntoAPausedBox(t *testing.T) {
	t.Parallel()
	l := enteringLauncher(t)
	id := newBox(t, l, nil)
	if err := l.Pause(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if res, err := l.Exec(t.Context(), id, ExecSpec{Args: []string{"touch", "/tmp/entered"}}); !errors.Is(err, ErrPaused) {
		t.Errorf("%+v, %v", res, err)
	}
	if err := l.Resume(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	want(t, sh(t, l, id, "ls /tmp"), "")
}
