package command

import (
	"cmp"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"boxgate/cmd/gateway/command/cli"
)

// boxAnswer holds the fields of a box that the commands print.
type boxAnswer struct {
	ID, Name, Status, Size, Runtime, IPv4, IPv6, Error string
	Labels                                             []string
	NetworkPolicy                                      struct{ Mode string } `json:"network_policy"`
	Warnings                                           []cli.Warning
}

func (b boxAnswer) row() []string {
	return []string{b.ID, b.Name, b.Status, b.Size, b.NetworkPolicy.Mode, b.IPv4, b.IPv6}
}

var boxHeading = []string{"ID", "NAME", "STATUS", "SIZE", "POLICY", "IPV4", "IPV6"}

// printBoxes prints boxes as a table, with a column of labels if any box has one.
func printBoxes(w io.Writer, boxes []boxAnswer) error {
	labelled := slices.ContainsFunc(boxes, func(b boxAnswer) bool { return len(b.Labels) > 0 })
	heading := boxHeading
	if labelled {
		heading = append(slices.Clone(heading), "LABELS")
	}
	rows := [][]string{heading}
	for _, b := range boxes {
		row := b.row()
		if labelled {
			row = append(row, cmp.Or(strings.Join(b.Labels, ","), "-"))
		}
		rows = append(rows, row)
	}
	return cli.Table(w, rows...)
}

// newBoxAnswer prints a box that cmd created, and the warnings about it.
func newBoxAnswer(cmd *cobra.Command) cli.Render {
	return cli.Decoded(func(w io.Writer, b boxAnswer) error {
		cli.PrintWarnings(cmd, b.Warnings)
		return printBoxes(w, []boxAnswer{b})
	})
}
