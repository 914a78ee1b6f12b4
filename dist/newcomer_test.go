package dist

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestNewcomerMeasuresSilence: watch.sh passes output and status on, and records the longest silence, also before the
// first and after the last line.
func TestNewcomerMeasuresSilence(t *testing.T) {
	t.Parallel()
	read(t, "newcomer/watch.sh") // so that a changed script invalidates the cached result
	const pause = 300 * time.Millisecond
	for _, script := range []string{"sleep 0.3; echo one; echo two >&2; exit 3", "echo one; read x <go; echo two; exit 3", "echo one; printf two; read x <go; exit 3"} {
		dir := t.TempDir()
		if err := unix.Mkfifo(filepath.Join(dir, "go"), 0o600); err != nil {
			t.Fatal(err)
		}
		table := filepath.Join(dir, "table.tsv")
		cmd := exec.CommandContext(t.Context(), "newcomer/watch.sh", table, "system", "step", "sh", "-c", "cd "+dir+"; "+script)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		lines.Scan() // the time of the line has been taken before it is printed
		first := lines.Text()
		if strings.Contains(script, "read") {
			time.Sleep(pause) // the silence
			if err := os.WriteFile(filepath.Join(dir, "go"), []byte("\n"), 0); err != nil {
				t.Fatal(err)
			}
		}
		lines.Scan()
		second, more := lines.Text(), lines.Scan()
		_ = cmd.Wait() // the status is checked
		if first != "one" || second != "two" || more || cmd.ProcessState.ExitCode() != 3 {
			t.Errorf("%s: it printed %q, %q, and exited with %d", script, first, second, cmd.ProcessState.ExitCode())
		}
		fields := strings.Split(strings.TrimSpace(read(t, table)), "\t")
		if len(fields) != 5 || strings.Join(fields[:3], " ") != "system step 3" {
			t.Fatalf("%s: the table has %q", script, fields)
		}
		total, errTotal := strconv.Atoi(fields[3])
		silence, errSilence := strconv.Atoi(fields[4])
		if errTotal != nil || errSilence != nil || silence < int(pause.Milliseconds())-1 || total < silence {
			t.Errorf("%s: %s ms, silent for %s ms", script, fields[3], fields[4])
		}
	}
}

// TestNewcomerTable: times are multiples of the time of compiling, and a failed, silent or missing step fails the whole.
func TestNewcomerTable(t *testing.T) {
	t.Parallel()
	read(t, "newcomer/table.sh")
	const good = "trixie\tdemo\t0\t180000\t4100\ntrixie\tcompile\t0\t90000\t0\ntrixie\trun\t0\t900\t5000\n"
	for _, test := range []struct {
		table, steps, want string
		ok                 bool
	}{
		{good, "demo run", `trixie +demo +passed +180\.0 +2\.00 +4\.1\n`, true},
		{good, "demo run", `trixie +run +passed +0\.9 +0\.01 +5\.0\n`, true},
		{good, "demo run sdk", `trixie +sdk +MISSING\n`, false},
		{good + "trixie\tsdk\t1\t10\t5\n", "demo", `trixie +sdk +FAILED`, false},
		{good + "trixie\tsdk\t0\t6000\t5001\n", "demo", `trixie +sdk +SILENT`, false},
		{good + "bookworm\tdemo\t0\t6000\t50\n", "demo", `bookworm +demo +passed +6\.0 +- `, true},
		{"", "demo", `^system`, false},
	} {
		path := filepath.Join(t.TempDir(), "table.tsv")
		put(t, path, test.table)
		out, err := exec.CommandContext(t.Context(), "newcomer/table.sh", append([]string{path}, strings.Fields(test.steps)...)...).CombinedOutput()
		if (err == nil) != test.ok || !regexp.MustCompile(test.want).Match(out) {
			t.Errorf("%q, %s: %v, want %q in\n%s", test.table, test.steps, err, test.want, out)
		}
	}
}

// TestNewcomerExample: the step sdk runs the first example of README.md, with a host that is reachable.
func TestNewcomerExample(t *testing.T) {
	t.Parallel()
	script := read(t, "newcomer/steps.sh")
	example := regexp.MustCompile(`(?s)\nexample\(\) \{\n.*?\n\}\n`).FindString(script)
	source, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	readme := read(t, "../README.md")
	cmd := exec.CommandContext(t.Context(), "bash", "-c", strings.ReplaceAll(example, "/srv/source", source)+"host=host.example; example")
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(readme, "await Box.create({") {
		t.Fatalf("%v: %s", err, out)
	}
	for _, want := range []string{`import { Box } from "@upstash/box"`, `allowedDomains: ["host.example"]`, `curl -sS https://host.example/"`, "box.delete()"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("it lacks %s:\n%s", want, out)
		}
	}
	if strings.Contains(string(out), "github.com") {
		t.Errorf("it asks GitHub:\n%s", out)
	}
}
