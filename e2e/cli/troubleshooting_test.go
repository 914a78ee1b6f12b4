package cli

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"boxgate/e2e/harness"
)

var (
	console = regexp.MustCompile("(?ms)^```console\n(.*?)^```$")

	// varying matches the parts of an output that differ each time.
	varying = regexp.MustCompile(`^[0-9:.]{12} |\btook=\S+|OpenSSL/\S+`)
	blanks  = regexp.MustCompile(` +`)
)

// TestTroubleshootingPage runs the commands of docs/troubleshooting.md, each section with its own box. Every line that the page shows
// must be printed; the page may leave lines out.
func TestTroubleshootingPage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	w := harness.Shared(t)
	sections := strings.Split(string(page), "\n## ")
	create := console.FindStringSubmatch(sections[0])
	if create == nil || len(sections) < 9 {
		t.Fatalf("%d sections, and the command that creates the box: %q", len(sections)-1, create)
	}
	for i, section := range sections[1:] {
		blocks := console.FindAllStringSubmatch(section, -1)
		if blocks == nil {
			continue
		}
		title, _, _ := strings.Cut(section, "\n")
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			w, box := w.On(t), fmt.Sprintf("demo%d", i)
			for _, block := range append([][]string{create}, blocks...) {
				runConsole(w, strings.ReplaceAll(block[1], "demo", box))
			}
			w.Run(0, nil, "", "box", "rm", box)
		})
	}
}

// runConsole runs each command of a block until it has printed the lines that follow it in the block.
func runConsole(w *harness.World, block string) {
	w.T.Helper()
	for _, step := range strings.Split("\n"+block, "\n$ sudo ")[1:] {
		command, lines, _ := strings.Cut(step, "\n")
		want := strings.FieldsFunc(lines, func(r rune) bool { return r == '\n' })
		var printed, missing string
		prints := func() bool {
			printed = runLine(w, command)
			missing = firstMissing(printed, want)
			return missing == ""
		}
		if strings.HasPrefix(command, "gateway log ") { // decisions are logged a moment after the command in the box has ended
			w.Until(command+" prints the lines of the page", prints)
		} else if !prints() {
			w.T.Errorf("%s does not print\n%s\nbut\n%s", command, missing, printed)
		}
	}
}

// runLine runs a line of the page in a shell, with the gateway of the test, and returns both outputs.
func runLine(w *harness.World, line string) string {
	w.T.Helper()
	gateway := w.Command(w.T.Context())
	cmd := exec.CommandContext(w.T.Context(), "sh", "-c", `gateway() { "$GATEWAY_UNDER_TEST" "$@"; }; `+line)
	cmd.Env = append(gateway.Env, "GATEWAY_UNDER_TEST="+gateway.Path, "SUDO_UID=1000")
	out, _ := cmd.CombinedOutput() // most commands of the page fail on purpose
	return string(out)
}

// firstMissing returns the first line that was not printed, regardless of times and column widths.
func firstMissing(printed string, want []string) string {
	plain := func(line string) string { return blanks.ReplaceAllString(varying.ReplaceAllString(line, "_"), " ") }
	has := map[string]bool{}
	for line := range strings.Lines(printed) {
		has[plain(strings.TrimRight(line, "\n"))] = true
	}
	for _, line := range want {
		if !has[plain(line)] {
			return line
		}
	}
	return ""
}
