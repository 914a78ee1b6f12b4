package launcher

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"
)

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
