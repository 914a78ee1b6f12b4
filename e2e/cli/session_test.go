package cli

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/sys/unix"

	"boxgate/api"
	"boxgate/e2e/harness"
)

// TestBoxExecInput: only with -i a command reads standard input. Its streams, status and signals are passed through.
func TestBoxExecInput(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	w.Create(map[string]any{"name": "b"})
	if out := w.Run(0, nil, "hi\n", "box", "exec", "-i", "b", "--", "cat"); out != "hi\n" {
		t.Errorf("with -i: %q", out)
	}
	if out := w.Run(0, nil, "hi\n", "box", "exec", "b", "--", "cat"); out != "" {
		t.Errorf("without -i: %q", out)
	}
	w.Run(7, nil, "", "box", "exec", "-i", "b", "--", "sh", "-c", "exit 7")
	if out := w.Run(2, nil, "", "box", "exec", "-it", "b", "--", "true"); !strings.Contains(out, "terminal") {
		t.Errorf("-t without a terminal: %q", out)
	}

	sent := make([]byte, 1<<20)
	_, _ = rand.Read(sent)
	cat := w.Command(t.Context(), "box", "exec", "-i", "b", "--", "sh", "-c", "cat; echo e >&2")
	var stderr bytes.Buffer
	cat.Stdin, cat.Stderr = bytes.NewReader(sent), &stderr
	if out, err := cat.Output(); err != nil || !bytes.Equal(out, sent) || stderr.String() != "e\n" {
		t.Errorf("a mebibyte through cat: %v, %d bytes; %q", err, len(out), &stderr)
	}
}

// startReady starts a command, waits for its ready line, and returns its standard input.
func startReady(t *testing.T, cmd *exec.Cmd) io.WriteCloser {
	t.Helper()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err == nil {
		_, err = io.ReadFull(out, make([]byte, len("ready\n")))
	}
	if err != nil {
		t.Fatal(err)
	}
	return in
}

// TestBoxExecSignals: the first two signals reach the command; the third one kills it, also when its input is stuck.
func TestBoxExecSignals(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{"name": "b"})
	start := func(line string) (*exec.Cmd, io.Writer) {
		cmd := w.Command(t.Context(), "box", "exec", "-i", "b", "--", "sh", "-c", line)
		return cmd, startReady(t, cmd)
	}
	for signal, status := range map[syscall.Signal]int{syscall.SIGINT: 3, syscall.SIGTERM: 4} {
		cmd, _ := start("trap 'exit 3' INT; trap 'exit 4' TERM; echo ready; while :; do sleep 0.05; done")
		_ = cmd.Process.Signal(signal)
		if _ = cmd.Wait(); cmd.ProcessState.ExitCode() != status {
			t.Errorf("%v: %v", signal, cmd.ProcessState)
		}
	}

	cmd, in := start("trap '' INT TERM HUP; echo ready; exec sleep 54321")
	go func() { _, _ = in.Write(make([]byte, 16<<20)) }()
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		_ = cmd.Process.Signal(signal)
	}
	if _ = cmd.Wait(); cmd.ProcessState.ExitCode() <= 128 {
		t.Errorf("after the third signal: %v", cmd.ProcessState)
	}
	w.Until("the command is killed", func() bool {
		out, _ := w.Sh(box, "grep -l 5432[1] /proc/[0-9]*/cmdline 2>/dev/null")
		return out == ""
	})
}

// TestInterruptedExec: without -i, Ctrl-C ends the command line with 130, which says that the command in the box goes on. log -f
// ends with 130, too.
func TestInterruptedExec(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{"name": "interrupted"})
	for _, args := range [][]string{{"box", "exec", "interrupted", "--", "sh", "-c", "echo ready; exec sleep 54322"}, {"log", "-f", "--box", "interrupted"}} {
		cmd := w.Command(t.Context(), args...)
		var errs strings.Builder
		cmd.Stderr = &errs
		if args[0] == "log" {
			w.MustSh(box, "getent hosts www.example.com || true") // a line to wait for
			out, err := cmd.StdoutPipe()
			if err == nil {
				err = cmd.Start()
			}
			if err == nil {
				_, err = io.ReadFull(out, make([]byte, 1))
			}
			if err != nil {
				t.Fatal(err)
			}
		} else {
			startReady(t, cmd)
		}
		_ = cmd.Process.Signal(syscall.SIGINT)
		if _ = cmd.Wait(); cmd.ProcessState.ExitCode() != 130 || strings.Contains(errs.String(), "cancel") || (args[0] == "box") != strings.Contains(errs.String(), "continues in the box") {
			t.Errorf("%v: %v: %s", args, cmd.ProcessState, errs.String())
		}
	}
	if out, _ := w.Sh(box, "grep -l 5432[2] /proc/[0-9]*/cmdline 2>/dev/null"); out == "" {
		t.Error("the command in the box has ended")
	}
}

// pty opens a pseudo-terminal of a size.
func pty(t *testing.T, rows, cols uint16) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close() })
	fd := int(master.Fd())
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols})
	}
	if err == nil {
		slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { slave.Close() })
	return master, slave
}

// screen is the output shown on a terminal.
type screen struct {
	t      *testing.T
	master *os.File
	pieces chan []byte
	shown  string
}

func watch(t *testing.T, master *os.File) *screen {
	s := &screen{t: t, master: master, pieces: make(chan []byte)}
	go func() {
		for {
			buf := make([]byte, 4096)
			n, err := master.Read(buf)
			if err != nil {
				return
			}
			select {
			case s.pieces <- buf[:n]:
			case <-t.Context().Done():
				return
			}
		}
	}()
	return s
}

// waits waits until the terminal shows a text, and drops the output up to it.
func (s *screen) waits(text string) {
	s.t.Helper()
	patience := time.After(2 * time.Minute)
	for {
		if _, after, ok := strings.Cut(s.shown, text); ok {
			s.shown = after
			return
		}
		select {
		case p := <-s.pieces:
			s.shown += string(p)
		case <-patience:
			s.t.Fatalf("the terminal does not show %q, but %q", text, s.shown)
		}
	}
}

func (s *screen) types(keys string) {
	s.t.Helper()
	if _, err := io.WriteString(s.master, keys); err != nil {
		s.t.Fatal(err)
	}
}

func mode(t *testing.T, slave *os.File) unix.Termios {
	t.Helper()
	state, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return *state
}

// inTerminal starts a command of the gateway in the foreground of a new terminal.
func inTerminal(t *testing.T, w *harness.World, args ...string) (*exec.Cmd, *screen, *os.File) {
	t.Helper()
	master, slave := pty(t, 33, 77)
	cmd := w.Command(t.Context(), args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, watch(t, master), slave
}

// TestBoxShell: a shell gets a terminal of the local size, follows its changes, receives ^C as a key, and restores it
// at the end.
func TestBoxShell(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	w.Create(map[string]any{"name": "b"})
	if out := w.Run(2, nil, "", "box", "shell", "b"); !strings.Contains(out, "terminal") {
		t.Errorf("without a terminal: %q", out)
	}
	_, other := pty(t, 33, 77)
	before := mode(t, other)

	cmd, screen, slave := inTerminal(t, w, "box", "shell", "b")
	screen.types("echo a\"\"b $TERM-$0; tty; stty size\n")
	screen.waits("ab ")
	screen.waits("/dev/pts/")
	screen.waits("33 77")
	if mode(t, slave) == before {
		t.Error("the terminal is not in raw mode")
	}
	if err := unix.IoctlSetWinsize(int(screen.master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 44, Col: 88}); err != nil {
		t.Fatal(err)
	}
	screen.types("until [ \"$(stty size)\" = '44 88' ]; do sleep 0.1; done; echo re\"\"sized\n")
	screen.waits("resized")
	screen.types("sh -c 'trap \"echo cau\"\"ght; exit\" INT; echo wait\"\"ing; while :; do sleep 0.1; done'\n")
	screen.waits("waiting")
	screen.types("\x03")
	screen.waits("caught")
	screen.types("exit 9\n")
	if _ = cmd.Wait(); cmd.ProcessState.ExitCode() != 9 {
		t.Errorf("exit: %v", cmd.ProcessState)
	}
	if after := mode(t, slave); after != before {
		t.Errorf("the terminal was left as %+v, not %+v", after, before)
	}
}

// TestBoxTerminalRestored: the terminal is also restored when the command line is killed.
func TestBoxTerminalRestored(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	w.Create(map[string]any{"name": "b"})
	_, other := pty(t, 33, 77)
	before := mode(t, other)
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
		cmd, screen, slave := inTerminal(t, w, "box", "exec", "-it", "b", "--", "sh", "-c", "echo ready; exec sleep 1000")
		screen.waits("ready")
		_ = cmd.Process.Signal(signal)
		if _ = cmd.Wait(); cmd.ProcessState.ExitCode() != 128+int(signal) {
			t.Errorf("%v: %v", signal, cmd.ProcessState)
		}
		if after := mode(t, slave); after != before {
			t.Errorf("%v left the terminal as %+v, not %+v", signal, after, before)
		}
	}
}

// TestSessionsEndWithAKilledGateway: a killed gateway leaves the commands of its sessions running without a client. The
// next gateway ends them with all their children, and nothing else in the box: neither the children of another command
// nor those of a session that ended before.
func TestSessionsEndWithAKilledGateway(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{"name": "b"})
	w.MustSh(box, "sleep 9873 >/dev/null 2>&1 &")
	w.Run(0, nil, "", "box", "exec", "-i", "b", "--", "sh", "-c", "setsid sleep 9873 >/dev/null 2>&1 &")
	cmd := w.Command(t.Context(), "box", "exec", "-i", "b", "--", "sh", "-c", `trap '' HUP PIPE; (setsid sh -c 'setsid sleep 9871' &); echo ready; sleep 9872`)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err == nil {
		_, err = io.ReadFull(out, make([]byte, len("ready\n")))
	}
	if err != nil {
		t.Fatal(err)
	}
	w.Kill()
	_ = cmd.Wait()
	in.Close()
	w.StartIfStopped()
	w.Until("the command of the session has ended", func() bool {
		out, _ := w.Sh(box, "pgrep -f 'sleep 987[12]'")
		return out == ""
	})
	if out, code := w.Sh(box, "pgrep -fc 'sleep 987[3]'"); code != 0 || out != "2\n" {
		t.Errorf("what commands that had ended left running: %q", out)
	}
}

// TestSessionsEndWithTheGateway: a gateway that stops ends its sessions with all their children, including sessions
// whose clients could reconnect, and notifies the connected clients.
func TestSessionsEndWithTheGateway(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{"name": "b"})
	mark := "61" + strings.Trim(fmt.Sprint(time.Now().UnixNano()), "0") // marks the processes of this test
	said := new(bytes.Buffer)
	cmd := w.Command(t.Context(), "box", "exec", "-i", "b", "--", "sh", "-c", "setsid sleep "+mark+" & echo ready; sleep "+mark)
	cmd.Stderr = said
	defer startReady(t, cmd).Close()

	away, err := w.Client.WebSocket(t.Context(), api.BoxPath(box, "exec-session"))
	if err == nil {
		err = away.Write(t.Context(), websocket.MessageText, fmt.Appendf(nil, `{"type":"start","argv":["sleep",%q],"reattach":true}`, mark))
	}
	if err == nil {
		_, _, err = away.Read(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	_ = away.CloseNow()

	w.Until("all run", func() bool { return running(t, mark) == 3 })
	if err := w.Stop(); err != nil {
		t.Error(err)
	}
	if n := running(t, mark); n > 0 {
		t.Errorf("%d processes go on", n)
	}
	if _ = cmd.Wait(); cmd.ProcessState.ExitCode() == 0 || !strings.Contains(said.String(), "the gateway is stopping") {
		t.Errorf("%v: %q", cmd.ProcessState, said)
	}
}

// running counts the processes of this host that have an argument.
func running(t *testing.T, argument string) (n int) {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range lines {
		data, err := os.ReadFile(line)
		if args := strings.Split(string(data), "\x00"); err == nil && args[0] == "sleep" && slices.Contains(args, argument) {
			n++
		}
	}
	return n
}

func TestBoxPauseAndResume(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{"name": "sleeper"})
	if out, code := w.GatewayCommand("box", "pause", "sleeper"); code != 0 || strings.Join(strings.Fields(out), " ") != box+" paused" {
		t.Errorf("pause: %d %s", code, out)
	}
	if w.Metric(`boxgate_boxes{state="paused"}`) != 1 || w.Metric(`boxgate_boxes{state="idle"}`) != 0 {
		t.Error("the metrics do not show a paused box")
	}
	out, code := w.GatewayCommand("--json", "box", "resume", "sleeper")
	var view struct{ ID, Status string }
	if err := json.Unmarshal([]byte(out), &view); code != 0 || err != nil || view.ID != box || view.Status != "idle" {
		t.Errorf("resume: %d %s %v", code, out, err)
	}
	if out, code := w.GatewayCommand("box", "pause", "nobody"); code != 1 || !strings.Contains(out, "nobody") {
		t.Errorf("pause of no box: %d %s", code, out)
	}
}
