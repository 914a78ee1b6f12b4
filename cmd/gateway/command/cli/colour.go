package cli

import (
	"bytes"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// Colour is a colour of text on a terminal: an SGR parameter.
type Colour string

// The colours.
const (
	Red    Colour = "31"
	Green  Colour = "32"
	Yellow Colour = "33"
)

// NoColour reports whether the user wants no colours: NO_COLOR is set and not empty (no-color.org), or the terminal has none.
func NoColour() bool { return os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" }

// Coloured reports whether to write colours to w: only to a terminal, unless the user wants none.
func Coloured(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd())) && !NoColour()
}

// words maps the words that are coloured to their colours.
var words = map[string]Colour{
	"ok": Green, "allow": Green, "warning": Yellow, "warning:": Yellow, "FAILED": Red, "FAILED:": Red, "DENY": Red, "FAIL": Yellow, "NOT AVAILABLE,": Red, "DOES NOT ACCEPT": Red,
}

// PaintFirst colours the first of the given words in a line, if it is a word of its own. Widths stay the same, so call it after
// aligning columns.
func PaintFirst(line string, of ...string) string {
	at, found := len(line), ""
	for _, word := range of {
		if i := strings.Index(" "+line+" ", " "+word+" "); i >= 0 && i < at {
			at, found = i, word
		}
	}
	if found == "" {
		return line
	}
	return line[:at] + "\x1b[" + string(words[found]) + "m" + found + "\x1b[0m" + line[at+len(found):]
}

// PaintedTable is [Table] with the first of the given words coloured in each line, if w is a terminal for that.
func PaintedTable(w io.Writer, of []string, rows ...[]string) error {
	if !Coloured(w) {
		return Table(w, rows...)
	}
	return paintedTable(w, of, rows...)
}

func paintedTable(w io.Writer, of []string, rows ...[]string) error {
	var text bytes.Buffer
	if err := Table(&text, rows...); err != nil {
		return err
	}
	var out strings.Builder
	for line := range strings.Lines(text.String()) {
		out.WriteString(PaintFirst(strings.TrimSuffix(line, "\n"), of...) + "\n")
	}
	_, err := io.WriteString(w, out.String())
	return err
}
