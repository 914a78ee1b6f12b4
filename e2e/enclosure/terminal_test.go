package enclosure

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// terminal is a pseudo-terminal with a session on it.
type terminal struct {
	*running
	keys *os.File
}

// openTerminal starts a command as the leader of a session on a new terminal.
func (w *world) openTerminal(cmd *exec.Cmd) *terminal {
	w.T.Helper()
	keys, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		w.T.Fatal(err)
	}
	w.T.Cleanup(func() { _ = keys.Close() })
	if err := unix.IoctlSetPointerInt(int(keys.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		w.T.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(keys.Fd()), unix.TIOCGPTN)
	if err != nil {
		w.T.Fatal(err)
	}
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		w.T.Fatal(err)
	}
	defer tty.Close()
	if err := unix.IoctlSetWinsize(int(keys.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 33, Col: 101}); err != nil {
		w.T.Fatal(err)
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := w.Net.Gateway().Start(cmd); err != nil {
		w.T.Fatal(err)
	}
	t := &terminal{&running{w: w, cmd: cmd}, keys}
	w.T.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if w.T.Failed() {
			w.T.Logf("the terminal showed:\n%s", t)
		}
	})
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := keys.Read(buf)
			_, _ = t.Write(buf[:n])
			if err != nil {
				return
			}
		}
	}()
	return t
}

func (t *terminal) press(keys string) {
	if _, err := t.keys.WriteString(keys); err != nil {
		t.w.T.Fatal(err)
	}
}

// step is input to type, and the output expected then.
type step struct {
	keys, shown string
	prompt      bool // wait for a shell prompt afterwards: earlier input may be lost
}

func (t *terminal) play(s step) {
	t.w.T.Helper()
	before := len(t.String())
	t.press(s.keys)
	t.w.Until("the terminal shows "+s.shown, func() bool {
		_, after, shown := strings.Cut(t.String()[before:], s.shown)
		return shown && (!s.prompt || strings.Contains(after, "shell> "))
	})
}

// stop presses Ctrl-Z until a shell reports that its job has stopped. A shell gives the terminal to a job before it
// continues it, which undoes a stop in between.
func (t *terminal) stop() {
	t.w.T.Helper()
	before := len(t.String())
	t.w.UntilEvery(200*time.Millisecond, "the job stops", func() bool {
		_, after, stopped := strings.Cut(t.String()[before:], "Stopped")
		if !stopped {
			t.press("\x1a")
		}
		return stopped && strings.Contains(after, "shell> ")
	})
}

// TestRunGivesTheCommandItsTerminal: size, input, Ctrl-C once and only for the command, size changes, job control of a
// shell inside, and no way to type into the outer shell.
func TestRunGivesTheCommandItsTerminal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	script := `n=0
trap 'n=$((n+1)); echo interrupts=$n.' INT
trap 'stty size' WINCH
stty size
echo "begin."
while read -r line; do
  case "$line" in
  end) exit 9 ;;
  push) /usr/bin/python3 -c 'import fcntl, termios; fcntl.ioctl(0, termios.TIOCSTI, b"x")' 2>/dev/null; echo "pushed=$?." ;;
  *) echo "line=$line." ;;
  esac
done`
	term := w.openTerminal(w.command("-q", "--", "bash", "-c", script))
	for _, step := range [][2]string{ // bash delays the trap of a signal that arrives just before it reads, until it has read a line
		{"", "33 101"}, {"", "begin."}, {"hello\r", "line=hello."}, {"\x03\r", "interrupts=1."}, {"\x03\r", "interrupts=2."}, {"push\r", "pushed=1."},
	} {
		term.press(step[0])
		term.until(step[1])
	}
	if err := unix.IoctlSetWinsize(int(term.keys.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 44, Col: 99}); err != nil {
		t.Fatal(err)
	}
	term.press("sized\r")
	term.until("44 99")
	term.press("end\r")
	if status := term.wait(); status != 9 {
		t.Errorf("exit %d\n%s", status, term)
	}
	inside := w.command("-q", "--", "bash", "--norc", "--noprofile", "-i")
	inside.Env = append(inside.Env, "PS1=shell> ")
	shell := w.openTerminal(inside)
	shell.until("shell> ")
	for _, step := range []step{
		{"sleep 1000 & echo o''ne\r", "one\r\n", true}, {"jobs\r", "Running", true}, {"fg\r", "sleep 1000\r\n", false},
	} {
		shell.play(step)
	}
	shell.stop()
	shell.play(step{"kill %1; fg; echo t''wo\r", "two\r\n", true})
	shell.press("exit 4\r")
	if status := shell.wait(); status != 4 {
		t.Errorf("the shell: exit %d\n%s", status, shell)
	}
}

// TestRunStopsWithItsCommand: Ctrl-Z returns the terminal to the outer shell, and fg to the command.
func TestRunStopsWithItsCommand(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	inner := w.command("-q", "--", "sh", "-c", "echo rea''dy; while read -r x; do echo got=$x.; done; exit 6")
	outer := exec.Command("bash", "--norc", "--noprofile", "-i")
	outer.Env, outer.Dir = append(inner.Env, "PS1=shell> "), inner.Dir
	term := w.openTerminal(outer)
	term.until("shell> ")
	var quoted []string
	for _, a := range inner.Args {
		quoted = append(quoted, "'"+strings.ReplaceAll(a, "'", `'\''`)+"'")
	}
	term.press(strings.Join(quoted, " ") + "\r")
	term.until("ready\r\n")
	for _, step := range []step{
		{"one\r", "got=one.", false}, {"\x1a", "Stopped", true}, {"echo at the sh''ell\r", "at the shell\r\n", true}, {"fg\r", "exit 6'\r\n", false},
		{"two\r", "got=two.", false}, {"\x04", "", true}, {"echo status=$?.\r", "status=6.", true},
	} {
		term.play(step)
	}
	term.press("exit\r")
	term.wait()
}
