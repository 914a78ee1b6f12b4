package cli

import (
	"encoding/json"
	"fmt"
	"io"
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
