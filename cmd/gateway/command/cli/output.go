package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// Table writes rows in aligned columns; the first row is the heading.
func Table(w io.Writer, rows ...[]string) error {
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(tw, strings.Join(row, "\t"))
	}
	return tw.Flush()
}

// Prose makes text of several lines safe for a terminal: all but printable characters, line breaks and tabs becomes \xNN (bytes) or
// \u{NNNN}. It keeps letters outside ASCII, because people and agents write them.
func Prose(text string) string {
	bad := func(r rune) bool { return r != '\n' && r != '\t' && !unicode.IsPrint(r) }
	if utf8.ValidString(text) && !strings.ContainsFunc(text, bad) {
		return text
	}
	var out strings.Builder
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRuneInString(text[i:])
		switch {
		case r == utf8.RuneError && size == 1, r < 0x80 && bad(r):
			fmt.Fprintf(&out, `\x%02x`, text[i])
		case bad(r):
			fmt.Fprintf(&out, `\u{%04x}`, r)
		default:
			out.WriteRune(r)
		}
		i += size
	}
	return out.String()
}

// WriteJSON prints v as one line of JSON.
func WriteJSON(w io.Writer, v any) error { return json.NewEncoder(w).Encode(v) }

// Warning is a warning as the API returns it.
type Warning struct{ Pointer, Message string }

// PrintWarnings prints the warnings of an answer to stderr.
func PrintWarnings(cmd *cobra.Command, warnings []Warning) {
	for _, w := range warnings {
		about := ""
		if w.Pointer != "" {
			about = w.Pointer + ": "
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "warning: %s%s\n", about, w.Message)
	}
}

// Count returns a number and its noun, such as "1 box" or "3 boxes": one is the singular, many the plural.
func Count[N ~int | ~int64 | ~uint64](n N, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.FormatInt(int64(n), 10) + " " + many
}

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
