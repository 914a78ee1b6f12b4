package top

import (
	"cmp"
	"fmt"
	"net"
	"strconv"
	"strings"

	"boxgate/audit"
	"boxgate/cmd/gateway/command/cli"
)

// Style is the style of a line.
type Style int

// The styles.
const (
	Plain Style = iota
	Heading
	Selected
	Faint
	Denied // a box with denials
)

// Line is one line of the screen. It contains printable ASCII only, even if a box chose its name.
type Line struct {
	Text  string
	Style Style
}

// View is the state of the display.
type View struct {
	Model    *Model
	Sort     Sort
	Filter   string
	Paused   bool
	Selected int    // the denial that the keys act on
	Prompt   string // empty: no prompt
	Message  string // result of the last key
}

const keysHelp = "a allow  d deny  e explain  / filter  s sort  p pause  q quit"

// smallestWidth and smallestHeight are the minimum size of a usable screen.
const smallestWidth, smallestHeight = 20, 5

// Lines renders the view for a screen of the given size.
func (v *View) Lines(width, height int) []Line {
	if width < smallestWidth || height < smallestHeight {
		return clip([]Line{{"too small", Plain}}, width, height)
	}
	rows, denials := v.Model.Rows(v.Sort, v.Filter), v.Model.Denials(v.Filter)
	boxes := min(len(rows), max((height-4)/2, 1))
	out := []Line{{v.title(len(rows)), Heading}, {columns(width, "BOX", "STATUS", "CONN/S", "REQ/S", "DENY/S", "IN/S", "OUT/S"), Faint}}
	for _, r := range rows[:boxes] {
		style := Plain
		if r.Denials > 0 {
			style = Denied
		}
		out = append(out, Line{columns(width, r.Label(), r.Status, number(r.Connections), number(r.Requests), number(r.Denials), size(r.BytesIn), size(r.BytesOut)), style})
	}
	out = append(out, Line{"DENIALS", Faint})
	room := height - len(out) - 1
	first := max(0, min(v.Selected-room+1, len(denials)-room))
	for i := first; i < min(first+room, len(denials)); i++ {
		line := Line{denial(denials[i]), Plain}
		if i == v.Selected {
			line.Style = Selected
		}
		out = append(out, line)
	}
	for len(out) < height-1 {
		out = append(out, Line{})
	}
	out = append(out, Line{cmp.Or(v.Prompt, v.Message, keysHelp), Heading})
	return clip(out, width, height)
}

func (v *View) title(n int) string {
	title := fmt.Sprintf("gateway top  %s  by %s", cli.Count(n, "box", "boxes"), v.Sort)
	if v.Filter != "" {
		title += "  with " + strconv.Quote(v.Filter)
	}
	if v.Paused {
		title += "  PAUSED"
	}
	return title
}

// columns formats a row. The first column takes the remaining width; on a narrow screen, the last columns are left out.
func columns(width int, box string, rest ...string) string {
	const first, each = 12, 9
	fits := max(0, min((width-first)/each, len(rest)))
	wide := min(max(width-fits*each, first), 32)
	var b strings.Builder
	fmt.Fprintf(&b, "%-*.*s", wide, wide-1, audit.Escape(box, 64))
	for _, text := range rest[:fits] {
		fmt.Fprintf(&b, "%*.*s", each, each-1, audit.Escape(text, 64))
	}
	return b.String()
}

// denial formats a denial as one line.
func denial(e audit.Event) string {
	line := fmt.Sprintf("%s %-14.14s %-34s %s", e.Time.Local().Format("15:04:05"), cmp.Or(e.BoxName, string(e.Box)), where(e), e.Reason)
	if e.Count > 1 {
		line += " x" + strconv.FormatUint(e.Count, 10)
	}
	return line
}

func where(e audit.Event) string {
	host := e.Name
	if host == "" && e.Addr.IsValid() {
		host = e.Addr.String()
	}
	if e.Port != 0 {
		host = net.JoinHostPort(host, strconv.Itoa(int(e.Port)))
	}
	return strings.TrimSpace(e.Method + " " + host + e.Path)
}

// clip cuts lines to the size of the screen and escapes all but printable ASCII.
func clip(lines []Line, width, height int) []Line {
	lines = lines[:min(len(lines), max(height, 0))]
	for i, l := range lines {
		text := audit.Escape(l.Text, 4096)
		lines[i].Text = text[:min(len(text), max(width, 0))]
	}
	return lines
}

func number(f float64) string {
	switch {
	case f == 0:
		return "-"
	case f < 10:
		return strconv.FormatFloat(f, 'f', 1, 64)
	}
	return strconv.FormatFloat(f, 'f', 0, 64)
}

func size(f float64) string {
	for _, unit := range []string{"B", "K", "M", "G"} {
		if f < 1000 {
			return number(f) + map[bool]string{true: "", false: unit}[f == 0]
		}
		f /= 1000
	}
	return number(f) + "T"
}
