package command

import (
	"io"

	"github.com/spf13/cobra"

	"boxgate/cmd/gateway/command/cli"
)

// boxAnswer holds the fields of a box that the commands print.
type boxAnswer struct {
	ID, Name, Status, Size, Runtime, IPv4, IPv6, Error string
	NetworkPolicy                                      struct{ Mode string } `json:"network_policy"`
	Warnings                                           []cli.Warning
}

func (b boxAnswer) row() []string {
	return []string{b.ID, b.Name, b.Status, b.Size, b.NetworkPolicy.Mode, b.IPv4, b.IPv6}
}

var boxHeading = []string{"ID", "NAME", "STATUS", "SIZE", "POLICY", "IPV4", "IPV6"}

// newBoxAnswer prints a box that cmd created, and the warnings about it.
func newBoxAnswer(cmd *cobra.Command) cli.Render {
	return cli.Decoded(func(w io.Writer, b boxAnswer) error {
		cli.PrintWarnings(cmd, b.Warnings)
		return cli.Table(w, boxHeading, b.row())
	})
}
