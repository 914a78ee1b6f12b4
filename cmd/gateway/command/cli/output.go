package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
)

// Table writes rows in aligned columns; the first row is the heading.
func Table(w io.Writer, rows ...[]string) error {
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(tw, strings.Join(row, "\t"))
	}
	return tw.Flush()
}

// WriteJSON prints v as one line of JSON.
func WriteJSON(w io.Writer, v any) error { return json.NewEncoder(w).Encode(v) }

// Warning is a warning as the API returns it.
type Warning struct{ Pointer, Message string }

// PrintWarnings prints the warnings of an answer to stderr.
func PrintWarnings(cmd *cobra.Command, warnings []Warning) {
	for _, w := range warnings {
		fmt.Fprintf(cmd.ErrOrStderr(), "warning: %s: %s\n", w.Pointer, w.Message)
	}
}

// Count returns a number and its noun, such as "1 box" or "3 boxes": one is the singular, many the plural.
func Count[N ~int | ~int64 | ~uint64](n N, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.FormatInt(int64(n), 10) + " " + many
}
