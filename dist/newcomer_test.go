package dist

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestNewcomerTable: times are multiples of the time of compiling, and a failed, silent or missing step fails the whole.
func TestNewcomerTable(t *testing.T) {
	t.Parallel()
	read(t, "newcomer/table.sh")
	const good = "trixie\tdemo\t0\t180000\t9100\t4100\tunpacking\ntrixie\tcompile\t0\t90000\ntrixie\trun\t0\t900\t5000\t5000\n"
	for _, test := range []struct {
		table, steps, want string
		ok                 bool
	}{
		{good, "demo run", `trixie +demo +passed +180\.0 +2\.00 +9\.1 +4\.1 +after: unpacking\n`, true},
		{good, "demo run", `trixie +run +passed +0\.9 +0\.01 +5\.0 +5\.0\n`, true},
		{good, "demo run sdk", `trixie +sdk +MISSING\n`, false},
		{good + "trixie\tsdk\t1\t10\t5\t5\n", "demo", `trixie +sdk +FAILED`, false},
		{good + "trixie\tsdk\t0\t6000\t5001\t5001\n", "demo", `trixie +sdk +SILENT`, false},
		{good + "bookworm\tdemo\t0\t6000\t50\t50\n", "demo", `bookworm +demo +passed +6\.0 +- `, true},
		{"", "demo", `^system`, false},
		{good + "trixie\tsdk\t0\t6000\t0\n", "demo", `trixie +sdk +FAILED`, false},
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
