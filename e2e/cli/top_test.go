package cli

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/e2e/harness"
)

// shown is a program on a pseudo-terminal, and its output.
type shown struct {
	w    *harness.World
	cmd  *exec.Cmd
	file *os.File
	done chan error

	mu  sync.Mutex
	out bytes.Buffer
	wid uint16
}

func show(w *harness.World, args ...string) *shown {
	w.T.Helper()
	master, slave := pty(w.T, 24, 120)
	s := &shown{w: w, cmd: w.Command(w.T.Context(), args...), file: master, done: make(chan error, 1)}
	s.cmd.Env = append(s.cmd.Environ(), "TERM=xterm-256color")
	s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = slave, slave, slave
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := s.cmd.Start(); err != nil {
		w.T.Fatal(err)
	}
	go func() { s.done <- s.cmd.Wait() }()
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := s.file.Read(buf)
			s.mu.Lock()
			s.out.Write(buf[:n])
			s.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return s
}

// sees waits until the screen shows a text. Changing its size makes it redraw.
func (s *shown) sees(text string, rows, cols uint16) {
	s.w.T.Helper()
	s.w.UntilEvery(200*time.Millisecond, text+" is shown", func() bool {
		s.mu.Lock()
		seen := strings.Contains(s.out.String(), text)
		s.out.Reset()
		s.mu.Unlock()
		s.wid++
		_ = unix.IoctlSetWinsize(int(s.file.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols + s.wid%2})
		return seen
	})
}

func (s *shown) types(keys string) {
	s.w.T.Helper()
	if _, err := s.file.WriteString(keys); err != nil {
		s.w.T.Fatal(err)
	}
}

// TestTop: a denial appears as it happens, and can be explained and temporarily allowed by keys. The screen may have
// any size, and text chosen by a box cannot control it. Without a terminal the command reports an error; scripts can
// use JSON.
func TestTop(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{"name": "demo", "network_policy": harness.Custom("api.example.com")})
	harness.Contains(t, w.Run(2, nil, "", "top"), "needs a terminal", "--once")
	harness.Contains(t, w.Run(2, nil, "", "top", "--json"), "--once")
	top := show(w, "top")
	top.sees("demo", 24, 120)
	w.Sh(box, "curl -k -sS -m 30 https://www.example.net/; printf 'GET / HTTP/1.1\\r\\nHost: \\033[2J\\033]0;x\\r\\n\\r\\n' | curl -s -m 5 telnet://198.51.100.10:80")
	top.sees("www.example.net:443", 24, 120)
	top.types("/www\r")
	top.sees(`with "www"`, 24, 120)
	top.types("\x1b")
	w.Sh(box, "curl -k -sS -m 30 https://evil.example.net/")
	top.sees("evil.example.net:443", 24, 120)
	top.types("e")
	top.sees("now deny (not_allowed)", 24, 120)
	top.sees("too small", 4, 15)
	top.sees("gateway top", 8, 30)
	top.types("p")
	top.sees("PAUSED", 24, 120)
	top.types("p")
	top.types("a")
	top.sees("evil.example.net:443 for: 1h", 24, 120)
	top.types("\r")
	top.sees("evil.example.net:443: allowed for 1h0m0s", 24, 120)
	if out, code := w.Sh(box, "curl -k -sS -m 30 -o /dev/null https://evil.example.net/"); code != 0 {
		t.Errorf("allowed, but: %d %s", code, out)
	}
	harness.Contains(t, w.Run(0, nil, "", "policy", "leases", "demo"), "evil.example.net:443")
	top.types("q")
	select {
	case err := <-top.done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(harness.Patience):
		t.Error("q does not quit")
	}
	top.mu.Lock()
	if out := top.out.String(); strings.Contains(out, "\x1b]0;x") || strings.Contains(out, "\x1b[2J\x1b]") {
		t.Errorf("a box wrote on the terminal: %q", out)
	}
	top.mu.Unlock()

	var once struct {
		Boxes   []struct{ ID, Name string }
		Denials []struct{ Name, Reason string }
	}
	if err := json.Unmarshal([]byte(w.Run(0, nil, "", "top", "--once", "--json")), &once); err != nil {
		t.Fatal(err)
	}
	if len(once.Boxes) != 1 || once.Boxes[0].Name != "demo" || once.Boxes[0].ID != box || len(once.Denials) == 0 {
		t.Errorf("%+v", once)
	}
	harness.Contains(t, w.Run(0, nil, "", "top", "--once"), "demo", "evil.example.net")
}
