package boxes

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"boxgate/cmd/gateway/command/cli"
)

// TestSecretsOfFiles: a secret is one line of a file or of standard input. No error repeats an argument that may be the secret itself.
func TestSecretsOfFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for name, want := range map[string]string{"": "", "-": "typed", write("key", "sk-1\r\n"): "sk-1"} {
		in := Input{Stdin: strings.NewReader("typed\n")}
		if got, err := in.Secret("--api-key-file", name); got != want || err != nil {
			t.Errorf("%q: %q %v", name, got, err)
		}
	}
	const word = "sk-in-the-argument"
	for name, want := range map[string]string{
		word: "cannot be read", strings.Repeat(word, 20): "cannot be read", strings.Repeat(word, 1000): "cannot be read", dir: "cannot be read",
		write("empty", "\n"): "it is empty", write("two", "a\nb\n"): "one line", write("long", strings.Repeat("x", maxSecret+9)): "one line",
	} {
		in := Input{Stdin: strings.NewReader("")}
		got, err := in.Secret("--api-key-file", name)
		if err == nil || got != "" || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), word) {
			t.Errorf("%.40q: %q %v", name, got, err)
		}
	}
	in := Input{Stdin: strings.NewReader("a\n")}
	if _, err := in.Secret("--one", "-"); err != nil {
		t.Error(err)
	}
	if _, err := in.Text("--two", "-"); err == nil || err.Error() != "--one and --two cannot both read standard input" {
		t.Errorf("read twice: %v", err)
	}
}

// TestRemovedAreFilesOrBoxes: the arguments of rm are boxes, or files of boxes. A path without its box is refused.
func TestRemovedAreFilesOrBoxes(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"": "boxes", "demo": "boxes", "demo other": "boxes", "demo:a": "files", "demo:a demo:/tmp/b": "files", "demo:": "files",
		"demo /tmp/x": "demo:/tmp/x", "a/b": "BOX:a/b", "/": "BOX:/", "demo demo:a": "not both", "demo:a demo": "not both", "demo:a x/y": "BOX:x/y",
	} {
		files, err := AreFiles(strings.Fields(line))
		switch want {
		case "boxes", "files":
			if err != nil || files != (want == "files") {
				t.Errorf("%q: %v %v", line, files, err)
			}
		default:
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%q: %v %v", line, files, err)
			}
		}
	}
}

// openTerminal returns both ends of a new terminal.
func openTerminal(t *testing.T) (master, tty *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close() })
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tty.Close() })
	return master, tty
}

// TestFilesOnATerminal: text of a box reaches a terminal without control characters, and a file or a pipe as it is.
func TestFilesOnATerminal(t *testing.T) {
	t.Parallel()
	const text = "a\x1b[2J\u202e"
	master, tty := openTerminal(t)
	if err := put(tty, text+"\n"); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(master).ReadString('\n')
	if want := `a\x1b[2J\u{202e}` + "\r\n"; line != want || err != nil {
		t.Errorf("the terminal gets %q, %v", line, err)
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := put(file, text); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(file.Name()); string(got) != text || err != nil {
		t.Errorf("the file gets %q, %v", got, err)
	}
}

// TestEventsOfAStream: comments and other fields are skipped, data of several lines is joined, and an event that is cut off is an error.
func TestEventsOfAStream(t *testing.T) {
	t.Parallel()
	read := func(text string) (got []string, err error) {
		err = readEvents(strings.NewReader(text), func(e event) error {
			got = append(got, e.Name+" "+string(e.Data))
			return nil
		})
		return got, err
	}
	got, err := read(": hello\n\nevent: text\r\ndata: {\"text\":\r\ndata: \"a\"}\r\n\r\nid: 3\nevent:done\ndata:{}\n\n:\n\nevent: empty\n\n")
	if err != nil || strings.Join(got, "|") != "text {\"text\":\n\"a\"}|done {}" {
		t.Errorf("%q %v", got, err)
	}
	if _, err := read("event: text\ndata: {}"); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("cut off: %v", err)
	}
	if _, err := read("event: text\ndata: {\n\n"); err == nil || !strings.Contains(err.Error(), "not JSON") {
		t.Errorf("no JSON: %v", err)
	}
	if _, err := read("data: " + strings.Repeat("x", maxEvent+1)); err == nil {
		t.Error("an endless line is read")
	}
	stop := errors.New("stop")
	if err := readEvents(strings.NewReader("event: a\ndata: 1\n\nevent: a\ndata: 2\n\n"), func(event) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("%v", err)
	}
}

// TestTranscriptOfAnyEvent: whatever the members of an event are, it is printed without control characters, or with --json as JSON.
func TestTranscriptOfAnyEvent(t *testing.T) {
	t.Parallel()
	var out, notes bytes.Buffer
	tr := transcript{out: &out, notes: &notes}
	for _, e := range []event{
		{"run_start", []byte(`{"run_id":"run_1"}`)}, {"text", []byte(`{"text":"é\u001b[2J\u202e\n"}`)}, {"text", []byte(`{"text":7}`)}, {"text", []byte(`[]`)},
		{"tool", []byte(`{"name":"a\nb"}`)}, {"tool_result", []byte(`{"output":{"x":"\u009b"}}`)}, {"notice", []byte(`{"text":"n"}`)}, {"tool_result", []byte(`{"output":"no","is_error":true}`)}, {"own", []byte(`"x"`)}, {"done", []byte(`{"output":{"a":1},"total_cost_usd":0.5}`)},
	} {
		if err := tr.print(e); err != nil {
			t.Error(err)
		}
	}
	if got := out.String(); got != "é\\x1b[2J\\u{202e}\n" {
		t.Errorf("%q", got)
	}
	if got := notes.String(); got != "tool: a\\x0ab \nresult: {\"x\":\"\\u009b\"}\nnotice: n\nfailed: no\nrun run_1: 0 tokens in, 0 out, 0.5000 USD\n" {
		t.Errorf("%q", got)
	}
	if !tr.answered || tr.failed != "" || tr.run != "run_1" {
		t.Errorf("%+v", tr)
	}
}

func FuzzEvents(f *testing.F) {
	f.Add("event: text\ndata: {\"text\":\"a\\u001b\"}\n\nevent: tool\ndata: {\"name\":\"x\",\"input\":[]}\n\nevent: done\ndata: {}\n\n")
	f.Add(": x\r\n\r\ndata: 1\ndata: 2\n\n")
	f.Fuzz(func(t *testing.T, text string) {
		var out bytes.Buffer
		tr := transcript{out: &out, notes: &out}
		err := readEvents(strings.NewReader(text), func(e event) error {
			if !json.Valid(e.Data) {
				t.Errorf("%q is not JSON", e.Data)
			}
			return tr.print(e)
		})
		if got := out.String(); got != cli.Prose(got) {
			t.Errorf("%q is printed as %q (%v)", text, got, err)
		}
	})
}

// TestUsersOfRuns: the lists of runs name the user of each command.
func TestUsersOfRuns(t *testing.T) {
	t.Parallel()
	var list struct{ Runs []runAnswer }
	if err := json.Unmarshal([]byte(`{"runs":[{"id":"run_a","type":"shell","status":"completed","user":"root","prompt":"apt install x"},{"id":"run_b","type":"shell","status":"completed","prompt":"ls"}]}`), &list); err != nil {
		t.Fatal(err)
	}
	var all, one strings.Builder
	if err := errors.Join(printRuns(&all, list), printRun(&one, list.Runs[0])); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(all.String(), "\n")
	if !slices.Contains(strings.Fields(lines[1]), "root") || !slices.Contains(strings.Fields(lines[2]), "boxuser") || !strings.Contains(one.String(), "root") {
		t.Errorf("%s\n%s", all.String(), one.String())
	}
}
