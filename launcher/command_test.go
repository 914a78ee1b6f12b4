package launcher

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/launcher/terminal"
	"boxgate/policy"
)

// busy is a command line that uses some CPU time in a child process.
const busy = `sh -c 'i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done'`

// TestCPUTimeIsThatOfTheCommand: the CPU time includes descendants that the command waited for, also in other process
// groups and sessions, but not that of concurrent commands and of background processes of earlier ones.
func TestCPUTimeIsThatOfTheCommand(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	cpu := func(script string) time.Duration {
		res, err := l.Exec(t.Context(), id, ExecSpec{Args: []string{"sh", "-c", script}})
		if err != nil || res.Status != 0 {
			t.Fatalf("%q: %+v, %v", script, res, err)
		}
		return res.CPU
	}
	cpu("setsid sh -c 'while :; do :; done' & echo") // a busy neighbour
	once, own := cpu(busy), cpu("setsid --wait "+busy)
	if once <= 0 || own < once/4 {
		t.Errorf("%v for a child, %v for one in a session of its own", once, own)
	}
	if idle := cpu("sleep 1"); idle <= 0 || idle > 500*time.Millisecond {
		t.Errorf("%v for a second of sleep beside a busy process", idle)
	}
}

// TestKillLeavesNothing: killing a command kills all its descendants, also those in other process groups and sessions, and
// those that start others faster than one could list them.
func TestKillLeavesNothing(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	for name, script := range map[string]string{
		"a session of its own": `setsid sh -c 'trap "" HUP TERM INT; sleep 9001' & echo up; wait`,
		"two forks away":       `(setsid sh -c 'setsid sh -c "setsid sleep 9001" &' &) ; echo up; sleep 9001`,
		"always a new one":     `f() { setsid sh -c "$0" sh & }; export b='sleep 0.01; setsid sh -c "$b" & sleep 0.1'; setsid sh -c "$b" & setsid sh -c "$b" & echo up; sleep 9001`,
	} {
		ctx, cancel := context.WithCancel(t.Context())
		up := writerFunc(func(p []byte) (int, error) { cancel(); return len(p), nil })
		if _, err := l.Exec(ctx, id, ExecSpec{Args: []string{"sh", "-c", script}, Stdout: up}); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
		want(t, sh(t, l, id, `until [ "$(ps -e -o comm= | grep -c -e sleep -e setsid)" = 0 ]; do sleep 0.01; done; echo gone`), "gone")
	}
	want(t, sh(t, l, id, "echo the box goes on"), "the box goes on")
	if left := branchesOf(t, l, id); len(left) > 0 {
		t.Errorf("control groups are left: %v", left)
	}
}

// TestSignalReachesTheTree: a signal reaches all descendants of a command, and no other process in the box.
func TestSignalReachesTheTree(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	sh(t, l, id, "sleep 9002 >/dev/null 2>&1 &")
	in, out := io.Pipe()
	ups := 0
	both := make(chan struct{})
	c, err := l.Start(t.Context(), id, ExecSpec{
		Args: []string{"sh", "-c", `for i in 1 2; do setsid sh -c 'trap "echo got >&2; exit" USR1; echo up; while :; do sleep 0.01; done' & done; trap : USR1; read x; wait`}, Stdin: in,
		Stdout: writerFunc(func(p []byte) (int, error) {
			if ups += strings.Count(string(p), "up"); ups == 2 {
				close(both)
			}
			return len(p), nil
		}), Stderr: io.Discard,
	})
	if err != nil {
		t.Fatal(err)
	}
	<-both
	if c.Pid() <= 1 {
		t.Errorf("its ID in the box is %d", c.Pid())
	}
	c.Signal(unix.SIGUSR1)
	out.Close()
	if _, err := c.Wait(t.Context()); err != nil {
		t.Error(err)
	}
	want(t, sh(t, l, id, `until [ "$(pgrep -c -f 'trap .echo go[t]')" = 0 ]; do sleep 0.01; done; pgrep -c -f 'sleep 900[2]'`), "1")
}

// TestBackgroundKeepsItsGroup: background processes of a command stay within the limits of the box, and the command's
// control group is removed after they have ended.
func TestBackgroundKeepsItsGroup(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	sh(t, l, id, "(until [ -e go ]; do sleep 0.01; done; touch went) >/dev/null 2>&1 &")
	if left := branchesOf(t, l, id); len(left) == 0 {
		t.Fatal("the command has no control group of its own")
	}
	for _, line := range strings.Split(sh(t, l, id, "cat /proc/self/cgroup").out, "\n") {
		if strings.Contains(line, "..") { // seen from the root of the box's namespace, above it
			t.Errorf("a command runs outside of the box's group: %s", line)
		}
	}
	want(t, sh(t, l, id, "touch go; until [ -e went ]; do sleep 0.01; done; echo ok"), "ok")
	for end := time.Now().Add(time.Minute); ; {
		sh(t, l, id, "true")
		if len(branchesOf(t, l, id)) == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("control groups are left: %v", branchesOf(t, l, id))
		}
	}
	for _, script := range []string{ // no way out: control groups are read-only, and another mount of them is refused
		"for f in $(find /sys/fs/cgroup -name cgroup.procs); do echo $$ > $f && echo moved; done; true",
		"for d in $(find /sys/fs/cgroup -name cgroup.procs -printf '%h\n'); do mkdir $d/mine && echo made; done; true",
		"mkdir -p /tmp/c && mount -t cgroup2 none /tmp/c && echo mounted; unshare -C true && echo unshared; true",
	} {
		for _, user := range []string{"", "root"} {
			if r := run(t, l, id, ExecSpec{Args: []string{"sh", "-c", script}, User: user}); r.out != "" {
				t.Errorf("as %q: %q: %s", user, script, r.out)
			}
		}
	}
}

// branchesOf returns the control groups of commands below that of a box.
func branchesOf(t *testing.T, l *Launcher, id policy.BoxID) []string {
	t.Helper()
	dirs, err := l.cgroup(id).Dirs()
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, dir := range dirs {
		branches, err := filepath.Glob(filepath.Join(dir, "run-*"))
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, branches...)
	}
	return found
}

// TestTerminal: a command has a real terminal with the right size from its first instruction, with line editing and end of
// input; its output arrives complete.
func TestTerminal(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	in, typed := io.Pipe()
	var mu sync.Mutex
	var out strings.Builder
	printed := make(chan struct{}, 1)
	c, err := l.Start(t.Context(), id, ExecSpec{
		Args:  []string{"sh", "-c", `tty; stty size; echo $TERM; trap 'stty size; resized=1' WINCH; test -t 0 && test -t 1 && test -t 2 && echo all three; until [ "$resized" ]; do sleep 0.01; done; trap '' WINCH; echo ready; read x; echo got $x; cat; seq 20000; exit 9`},
		Stdin: in, Terminal: &terminal.Size{Rows: 24, Cols: 80},
		Stdout: writerFunc(func(p []byte) (int, error) {
			mu.Lock()
			defer mu.Unlock()
			out.Write(p)
			select {
			case printed <- struct{}{}:
			default:
			}
			return len(p), nil
		}),
	})
	if err != nil {
		t.Fatal(err)
	}
	until := func(text string) {
		for {
			mu.Lock()
			has := strings.Contains(out.String(), text)
			mu.Unlock()
			if has {
				return
			}
			select {
			case <-printed:
			case <-time.After(time.Minute):
				t.Fatalf("no %q in %q", text, out.String())
			}
		}
	}
	until("all three\r\n")
	if err := c.Resize(terminal.Size{Rows: 50, Cols: 132}); err != nil {
		t.Fatal(err)
	}
	until("50 132\r\nready\r\n")
	_, _ = typed.Write([]byte("wrogn\x7f\x7fng\n"))
	until("got wrong\r\n")
	typed.Close() // ends cat
	res, err := c.Wait(t.Context())
	if err != nil || res.Status != 9 {
		t.Errorf("%+v, %v", res, err)
	}
	for _, want := range []string{"/dev/pts/", "24 80\r\nxterm-256color", "\r\n19999\r\n20000\r\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in %q", want, out.String())
		}
	}
}

// TestTerminalOfAHostileBox: root in a box owns /dev there, and may replace the device that is opened for a terminal. The
// caller gets an error and no other file, and no process is left running.
func TestTerminalOfAHostileBox(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	for name, replace := range map[string]string{
		"a file": "rm -f /dev/ptmx; : >/dev/ptmx", "a pipe": "rm -f /dev/ptmx; mkfifo /dev/ptmx", "nothing": "rm -f /dev/ptmx",
		"a device": "rm -f /dev/ptmx; ln -s /dev/null /dev/ptmx", "a terminal of its own": "rm -f /dev/ptmx; ln -s /dev/pts/0 /dev/ptmx",
	} {
		if r := run(t, l, id, ExecSpec{Args: []string{"sh", "-c", replace}, User: "root"}); r.exit != 0 {
			t.Fatalf("%s: %+v", name, r)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		_, err := l.Exec(ctx, id, ExecSpec{Args: []string{"sleep", "9003"}, Terminal: &terminal.Size{Rows: 24, Cols: 80}, Stdout: io.Discard})
		var start *StartError
		if !errors.As(err, &start) {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
		want(t, sh(t, l, id, "pgrep -f 'sleep 900[3]' || echo none"), "none")
	}
}

func TestExecReportsHowACommandEnded(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	for script, exit := range map[string]int{
		"exit 0": 0, "exit 7": 7, "exit 255": 255, "kill -TERM $$": 143, "kill -KILL $$": 137, "kill -SEGV $$": 139,
	} {
		if r := sh(t, l, id, script); r.exit != exit {
			t.Errorf("%q: %d, want %d", script, r.exit, exit)
		}
	}
	for _, spec := range []ExecSpec{
		{Args: []string{"no-such-program"}},
		{Args: []string{"/etc/passwd"}},
		{Args: []string{"true"}, Cwd: "/no/such/directory"},
	} {
		var start *StartError
		exit, err := exitOf(t.Context(), l, id, spec)
		if exit != 127 || !errors.As(err, &start) {
			t.Errorf("%+v: %d, %v", spec, exit, err)
		}
	}
	for _, spec := range []ExecSpec{{}, {Args: []string{"a\x00b"}}, {Args: []string{"id"}, User: "mallory"},
		{Args: []string{"id"}, User: "70000"}, {Args: []string{"id"}, User: "-1"}, {Args: []string{"id"}, Env: map[string]string{"A=B": "c"}}} {
		if _, err := exitOf(t.Context(), l, id, spec); err == nil {
			t.Errorf("%+v was accepted", spec)
		}
	}
}

func TestExecStreams(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)

	want(t, run(t, l, id, ExecSpec{Args: []string{"tr", "a-z", "A-Z"}, Stdin: strings.NewReader("hello")}), "HELLO")
	want(t, run(t, l, id, ExecSpec{Args: []string{"cat"}}), "") // without input, stdin is empty
	r := sh(t, l, id, "echo out; echo err >&2; echo again > /dev/stdout; echo too > /dev/stderr")
	if r.out != "out\nagain\n" || r.err != "err\ntoo\n" {
		t.Errorf("%+v", r)
	}

	sum := sha256.New()
	input := bytes.Repeat([]byte("0123456789abcdef"), 1<<20)
	exit, err := exitOf(t.Context(), l, id, ExecSpec{Args: []string{"cat"}, Stdin: bytes.NewReader(input), Stdout: sum})
	if expect := sha256.Sum256(input); exit != 0 || err != nil || !bytes.Equal(sum.Sum(nil), expect[:]) {
		t.Errorf("16 MiB there and back: %d, %v, or the bytes differ", exit, err)
	}
	// A command that ends before its input does, and one whose input never ends.
	endless, w := io.Pipe()
	defer w.Close()
	want(t, run(t, l, id, ExecSpec{Args: []string{"echo", "done"}, Stdin: endless}), "done")
	// A caller that stops reading output does not stop the command.
	exit, err = exitOf(t.Context(), l, id, ExecSpec{Args: []string{"sh", "-c", "seq 1 200000; exit 3"}, Stdout: failingWriter{}})
	if exit != 3 || err != nil {
		t.Errorf("with a reader gone: %d, %v", exit, err)
	}
}

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, errors.New("gone") }

func TestExecDoesNotWaitForTheBackground(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	// The background process holds the output open, and must survive writing to it after Exec has returned.
	began := time.Now()
	want(t, sh(t, l, id, "(while [ ! -e go ]; do sleep 0.01; done; echo late; echo late; touch wrote) & echo now"), "now")
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("took %v", took)
	}
	want(t, sh(t, l, id, "touch go; until [ -e wrote ]; do sleep 0.01; done; echo ok"), "ok")
	// All output written before the end arrives, however slow the reader.
	var out slowBuffer
	exit, err := exitOf(t.Context(), l, id, ExecSpec{Args: []string{"sh", "-c", "sleep 1000 & head -c 60000 /dev/zero"}, Stdout: &out})
	if exit != 0 || err != nil || out.n != 60000 {
		t.Errorf("%d bytes, exit %d, %v", out.n, exit, err)
	}
}

// slowBuffer counts what is written, slowly.
type slowBuffer struct{ n int }

func (s *slowBuffer) Write(p []byte) (int, error) {
	time.Sleep(20 * time.Millisecond) // the slowness is the subject of the test
	s.n += len(p)
	return len(p), nil
}

func TestCancelKillsTheCommand(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("the caller left")
	started := writerFunc(func(p []byte) (int, error) {
		if st, err := l.State(t.Context(), id); err != nil || st.State != StateRunning {
			t.Errorf("while a command runs: %+v, %v", st, err)
		}
		cancel(gone)
		return len(p), nil
	})
	exit, err := exitOf(ctx, l, id, ExecSpec{Args: []string{"sh", "-c", "trap '' TERM INT HUP; sleep 4321 & echo started; wait"}, Stdout: started})
	if exit != 137 || !errors.Is(err, gone) {
		t.Errorf("exit %d, %v", exit, err)
	}
	want(t, sh(t, l, id, "until ! pgrep -f 'sleep 432[1]' >/dev/null; do sleep 0.01; done; echo gone"), "gone")
	if st, err := l.State(t.Context(), id); err != nil || st.State != StateIdle {
		t.Errorf("afterwards: %+v, %v", st, err)
	}
	if _, err := exitOf(ctx, l, id, ExecSpec{Args: []string{"true"}}); !errors.Is(err, gone) {
		t.Errorf("with a context that has ended: %v", err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestZombiesAreReaped(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	r := sh(t, l, id, `for i in $(seq 50); do sh -c 'sh -c "exit 0" & exec true' & done; wait
for try in $(seq 500); do
  z=$(ps -e -o stat= | grep -c ^Z)
  [ "$z" = 0 ] && break
  sleep 0.01
done
echo $z $(ps -e -o pid= | wc -l)`)
	if f := strings.Fields(r.out); len(f) != 2 || f[0] != "0" {
		t.Errorf("zombies and processes: %q", r.out)
	}
}

func TestManyCommandsAtOnce(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	errs := make(chan error, 12)
	for i := range cap(errs) {
		go func() {
			var out bytes.Buffer
			exit, err := exitOf(t.Context(), l, id, ExecSpec{Args: []string{"sh", "-c", fmt.Sprintf("echo %d; exit %d", i, i)}, Stdout: &out})
			if err == nil && (exit != i || out.String() != fmt.Sprintln(i)) {
				err = fmt.Errorf("command %d: exit %d, %q", i, exit, out.String())
			}
			errs <- err
		}()
	}
	for range cap(errs) {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

// A key that starts hundreds of commands, in however many boxes, gets only the existing slots, and another key does not
// wait for all of them.
func TestBoxesStartCommandsInTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStartSlots()
		s.free = 2
		got := make(chan string, 1000)
		want := func(id string) {
			done, err := s.acquire(t.Context(), starter{key: id})
			if err != nil {
				t.Error(err)
			}
			time.Sleep(10 * time.Millisecond)
			got <- id
			done()
		}
		for range 100 {
			go want("hostile")
		}
		synctest.Wait()
		if s.free != 0 || len(s.waiting[starter{key: "hostile"}]) != 98 {
			t.Errorf("%d turns are free, %d wait", s.free, len(s.waiting[starter{key: "hostile"}]))
		}
		began := time.Now()
		want("other")
		if waited := time.Since(began); waited > 30*time.Millisecond {
			t.Errorf("the other box waited for %v", waited)
		}
		time.Sleep(time.Second)
		if len(got) != 101 || s.free != 2 || len(s.waiting) != 0 || len(s.order) != 0 {
			t.Errorf("%d have had a turn, %d are free, %d wait", len(got), s.free, len(s.waiting))
		}
	})
}

// A stalled start releases its slot after a while, and a start that no longer waits gets none.
func TestATurnEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStartSlots()
		s.free = 1
		held, err := s.acquire(t.Context(), starter{box: "hostile"})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := s.acquire(ctx, starter{box: "impatient"}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("one that gave up: %v", err)
		}
		began := time.Now()
		done, err := s.acquire(t.Context(), starter{box: "other"})
		if waited := time.Since(began); err != nil || waited > time.Second {
			t.Fatalf("%v, after %v", err, waited)
		}
		held()
		if s.free != 0 {
			t.Error("a turn that was over has ended twice")
		}
		done()
		done()
		if s.free != 1 || len(s.waiting) != 0 || len(s.order) != 0 {
			t.Errorf("%d turns are free, %d wait", s.free, len(s.waiting))
		}
	})
}

// TestPathOfRoot: root looks for programs in no directory of an image where the box's user could put one, nor in one that depends on
// where it is.
func TestPathOfRoot(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	want(t, rootSh(t, l, id, `mkdir -p /opt/conda/bin /opt/tool/bin /opt/all /opt/group /home/node/bin && chown 1000 /opt/conda /home/node && chmod 1777 /opt/all && chgrp 1000 /opt/group && chmod 775 /opt/group
		ln -s /opt/conda/link /opt/by-user; ln -s ../usr/bin /opt/by-root`), "")
	want(t, sh(t, l, id, `mkdir -p ~/.local/bin /workspace/bin; ln -s /usr/bin /opt/conda/link; ln -s /usr/bin ~/bin`), "")
	r, err := l.loadRecord(id)
	if err != nil {
		t.Fatal(err)
	}
	for image, want := range map[string]string{
		"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin": defaultPath,
		"/usr/bin:/bin:/workspace/home/.local/bin":                     "/usr/bin:/bin",
		"/workspace/home:/bin:/workspace/home/":                        "/bin",
		"/workspace//home/./bin:/bin:/home/boxuser/.local/bin":         "/bin",
		".:/bin:bin::": "/bin",
		"/usr/../workspace/home/bin:/opt/tool/bin": "/opt/tool/bin",
		"/workspace/bin:/tmp:/dev/shm:/sbin":       "/sbin",
		"/opt/conda/bin:/opt/conda:/bin":           "/bin",
		"/opt/conda/link:/opt/by-user:/bin":        "/bin",
		"/opt/by-root:/opt/tool/../../usr/sbin":    "/opt/by-root:/opt/tool/../../usr/sbin",
		"/opt/all:/opt/group:/home/node/bin:/bin":  "/bin",
		"/proc/self/cwd:/missing:/etc/passwd:/bin": "/bin",
		"/workspace/home/.local/bin":               defaultPath,
		"":                                         defaultPath,
	} {
		r.Base = []string{"PATH=" + image}
		if got := l.pathOfRoot(r); got != want {
			t.Errorf("%q: %q, want %q", image, got, want)
		}
	}
	want(t, rootSh(t, l, id, `printf '#!/bin/sh\nid -u\n' | tee /opt/conda/bin/planted >/workspace/home/planted; chmod +x /opt/conda/bin/planted /workspace/home/planted`), "")
	for _, base := range []string{"/opt/conda/bin:/usr/bin:/bin", "/opt/conda/bin"} {
		r.Base = []string{"PATH=" + base}
		if err := l.saveRecord(r); err != nil {
			t.Fatal(err)
		}
		for _, user := range []string{"root", "0", "0:5"} {
			for _, args := range [][]string{{"planted"}, {"/bin/sh", "-c", "planted"}} {
				var out strings.Builder
				if res, err := l.Exec(t.Context(), id, ExecSpec{Args: args, User: user, Stdout: &out}); res.Status != 127 {
					t.Errorf("%s, %s, %q: %+v, %v, %q", base, user, args, res, err, out.String())
				}
			}
		}
	}
}
