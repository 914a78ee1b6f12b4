package cli

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// openTerminal returns a pseudo-terminal.
func openTerminal(t *testing.T) *os.File {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close() })
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { slave.Close() })
	return slave
}

// TestColoursAreForTerminals: a terminal gets colours, unless NO_COLOR is set or it is dumb. A pipe, a file and a buffer get none.
func TestColoursAreForTerminals(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	tty := openTerminal(t)
	for _, c := range []struct {
		noColour, term string
		want           bool
	}{{"", "xterm", true}, {"1", "xterm", false}, {"", "dumb", false}} {
		t.Setenv("NO_COLOR", c.noColour)
		t.Setenv("TERM", c.term)
		if Coloured(tty) != c.want || Coloured(file) || Coloured(&bytes.Buffer{}) {
			t.Errorf("%+v: terminal %v, file %v", c, Coloured(tty), Coloured(file))
		}
	}
}

// TestPaintedTable: the first of the words is coloured in each line, as a word of its own, and columns stay aligned.
func TestPaintedTable(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	rows := [][]string{{"ok", "root", ""}, {"FAILED", "look", "a warning"}, {"warning", "x", "FAILED"}, {"lookup", "ok-ish", "z"}}
	if err := paintedTable(&out, []string{"ok", "warning", "FAILED"}, rows...); err != nil {
		t.Fatal(err)
	}
	const want = "\x1b[32mok\x1b[0m       root    \n\x1b[31mFAILED\x1b[0m   look    a warning\n\x1b[33mwarning\x1b[0m  x       FAILED\nlookup   ok-ish  z\n"
	if out.String() != want {
		t.Errorf("%q", out.String())
	}
}

// TestProse: text of a box keeps its letters and lines, and nothing that a terminal interprets.
func TestProse(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"plain\n\ttext": "plain\n\ttext", "Grüße, 世界 \uFFFD": "Grüße, 世界 \uFFFD", "\x1b[31m\r\a": `\x1b[31m\x0d\x07`, "\u009b2J": `\u{009b}2J`,
		"a\u202eb\u2066": `a\u{202e}b\u{2066}`, "\xff\xc3": `\xff\xc3`, "\x7f": `\x7f`, "": "",
	} {
		if got := Prose(text); got != want || Prose(got) != got {
			t.Errorf("%q: %q", text, got)
		}
	}
}
