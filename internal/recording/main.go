// Command recording draws a picture of a run of the demo: it reads the output of `gateway demo` and writes an SVG that
// shows one step after the other, for `make docs`. Values that change with each run, such as times and keys, are
// replaced.
package main

import (
	"fmt"
	"html"
	"io"
	"os"
	"regexp"
	"strings"
	"unicode"
)

// The size of the picture in characters, and the seconds for which each step is shown.
const (
	columns = 116
	rows    = 15
	seconds = 5
)

// frame is one step in the picture.
type frame struct {
	title string
	lines []string // narration, commands and output, indented as printed
}

func main() {
	if err := record(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "recording:", err)
		os.Exit(1)
	}
}

func record(in io.Reader, out io.Writer) error {
	printed, err := io.ReadAll(in)
	if err != nil {
		return err
	}
	frames := framesOf(string(printed))
	if len(frames) == 0 || !strings.Contains(string(printed), "What you saw") {
		return fmt.Errorf("this is not the output of a demo that was complete")
	}
	_, err = io.WriteString(out, draw(frames))
	return err
}

var (
	colour  = regexp.MustCompile("\x1b\\[[0-9;]*m")
	heading = regexp.MustCompile(`^\d+ of \d+  (.*?)  \([0-9.]+ s\)$`)
)

// framesOf reads the steps of the demo, without its summary.
func framesOf(printed string) []frame {
	printed, _, _ = strings.Cut(colour.ReplaceAllString(printed, ""), "\nSummary\n")
	var frames []frame
	for line := range strings.Lines(printed) {
		line = strings.TrimRight(line, " \n")
		if i := strings.LastIndex(line, "\r"); i >= 0 {
			line = line[i+1:]
		}
		switch found := heading.FindStringSubmatch(line); {
		case found != nil:
			frames = append(frames, frame{title: found[1]})
		case len(frames) > 0 && line != "":
			f := &frames[len(frames)-1]
			f.lines = append(f.lines, steady(strings.TrimPrefix(line, "   ")))
		}
	}
	return frames
}

// replaced are the values that change with each run.
var replaced = []struct {
	what *regexp.Regexp
	by   string
}{
	{regexp.MustCompile(`sk-demo-[a-z0-9]+`), "sk-demo-…"},
	{regexp.MustCompile(`/var/lib/boxgate/labs/lab-[0-9]+`), "…"},
	{regexp.MustCompile(`\b[0-9a-f]{64}\b`), "…"},
	{regexp.MustCompile(`\b[0-9a-f]{16}\b`), "4a1c9e02b7d35f68"},
	{regexp.MustCompile(`\b\d\d:\d\d:\d\d\.\d+`), "12:00:00.000"},
	{regexp.MustCompile(` +(took|in|out)=\S+`), ""},
	{regexp.MustCompile(`"created_at":\d+`), `"created_at":…`},
	{regexp.MustCompile(`(192\.0\.2\.\d+):\d+`), "$1:…"},
	{regexp.MustCompile(`\b\d+ ms\b`), "a few ms"},
	{regexp.MustCompile(`(\S)   +`), "$1  "}, // columns of the log, in a single line
}

func steady(line string) string {
	for _, r := range replaced {
		line = r.what.ReplaceAllString(line, r.by)
	}
	return line
}

// visibleLines trims a step to the height of the picture. Its last lines stay because they contain the result.
func (f frame) visibleLines() []string {
	lines := make([]string, 0, len(f.lines))
	for _, line := range f.lines {
		if text := []rune(line); len(text) > columns {
			line = string(text[:columns-1]) + "…"
		}
		lines = append(lines, line)
	}
	if over := len(lines) - rows; over > 0 {
		const first, last = rows - 4, 3
		lines = append(append(lines[:first:first], "  …"), lines[len(lines)-last:]...)
	}
	return lines
}

const style = `
    text { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", "Liberation Mono", monospace; white-space: pre; fill: #1f2328; }
    .back { fill: #f6f8fa; stroke: #d1d9e0; } .title { font-weight: 600; } .about { fill: #59636e; } .typed { fill: #0969da; } .deny { fill: #d1242f; } .allow { fill: #1a7f37; }
    @media (prefers-color-scheme: dark) {
      text { fill: #f0f6fc; } .back { fill: #0d1117; stroke: #3d444d; } .about { fill: #9198a1; } .typed { fill: #4493f8; } .deny { fill: #f85149; } .allow { fill: #3fb950; }
    }
`

// stills are the indices of the steps in the still picture: a secret is injected, a host is refused, and the policy opened.
var stills = []int{2, 4, 6}

// still returns the essence of a step: its first one or two commands, and the last two lines of their output with words.
func (f frame) still() []string {
	var groups [][]string // a command and its output
	for _, line := range f.visibleLines() {
		switch {
		case strings.HasPrefix(line, "$ "):
			groups = append(groups, []string{line})
		case len(groups) > 0 && strings.ContainsFunc(line, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }):
			groups[len(groups)-1] = append(groups[len(groups)-1], strings.TrimSpace(line))
		}
	}
	groups = groups[:min(len(groups), 2)]
	var lines []string
	for _, g := range groups {
		output := g[1:]
		lines = append(append(lines, g[0]), output[max(0, len(output)-2/len(groups)):]...)
	}
	return lines
}

// drawStill draws the still picture, which the animation hides.
func drawStill(b *strings.Builder, frames []frame, left, top, lineHeight int) {
	b.WriteString("  <g class=\"still\">\n")
	for n, i := range stills {
		if i >= len(frames) {
			break
		}
		y := top + n*lineHeight*(rows+2)/len(stills)
		fmt.Fprintf(b, "    <text class=\"title\" x=\"%d\" y=\"%d\">%s</text>\n", left, y, html.EscapeString(frames[i].title))
		y += 4
		for _, line := range frames[i].still() {
			y += lineHeight
			fmt.Fprintf(b, "    <text class=\"%s\" x=\"%d\" y=\"%d\">%s</text>\n", classOf(1, line), left, y, html.EscapeString(line))
		}
	}
	b.WriteString("  </g>\n")
}

// draw draws the picture. The steps are shown in turn. A viewer that prefers reduced motion and a renderer without animations
// show a still picture of three of them.
func draw(frames []frame) string {
	const lineHeight, left, top = 19, 16, 26
	width, height := 2*left+columns*8, top+(rows+2)*lineHeight
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" xml:space="preserve" role="img" aria-labelledby="title">`+"\n", width, height)
	fmt.Fprintf(&b, "  <title id=\"title\">gateway demo, step by step</title>\n  <style>%s", style)
	fmt.Fprintf(&b, "    .frame { opacity: 0; animation: turn %ds steps(1, end) infinite; }\n    .still { animation: hide 1s steps(1, end) forwards; }\n", len(frames)*seconds)
	fmt.Fprintf(&b, "    @keyframes turn { 0%% { opacity: 1; } %.3f%%, 100%% { opacity: 0; } }\n    @keyframes hide { 0%%, 100%% { opacity: 0; } }\n", 100/float64(len(frames)))
	b.WriteString("    @media (prefers-reduced-motion: reduce) { .frame, .still { animation: none; } }\n  </style>\n")
	fmt.Fprintf(&b, "  <rect class=\"back\" x=\"0.5\" y=\"0.5\" width=\"%d\" height=\"%d\" rx=\"8\"/>\n", width-1, height-1)
	drawStill(&b, frames, left, top, lineHeight)
	for i, f := range frames {
		fmt.Fprintf(&b, "  <g class=\"frame\" opacity=\"0\" style=\"animation-delay: %ds\">\n", i*seconds)
		fmt.Fprintf(&b, "    <text class=\"title\" x=\"%d\" y=\"%d\">%d of %d  %s</text>\n", left, top, i+1, len(frames), html.EscapeString(f.title))
		for n, line := range f.visibleLines() {
			fmt.Fprintf(&b, "    <text class=\"%s\" x=\"%d\" y=\"%d\">%s</text>\n", classOf(n, line), left, top+(n+1)*lineHeight+4, html.EscapeString(line))
		}
		b.WriteString("  </g>\n")
	}
	return b.String() + "</svg>\n"
}

func classOf(n int, line string) string {
	switch {
	case strings.HasPrefix(line, "$ "):
		return "typed"
	case strings.Contains(line, "  DENY  "):
		return "deny"
	case strings.Contains(line, "  allow  "):
		return "allow"
	case n == 0:
		return "about"
	}
	return "said"
}
