package command

import (
	"io"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/cmd/gateway/command/cli"
)

// newBoxSource is `gateway box source`.
func newBoxSource(o *cli.Options) *cobra.Command {
	var none bool
	cmd := &cobra.Command{
		Use:   "source BOX (ADDRESS [ADDRESS] | --none)",
		Short: "Set the addresses from network.sources that a box's traffic leaves from; open connections are cut",
		Args:  cli.MinArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			list := append([]string{}, args[1:]...)
			if none == (len(list) > 0) {
				return cli.Usagef("give one or two addresses, or --none")
			}
			body := map[string]any{"source_addresses": list}
			return o.Call(cmd, "PUT", api.BoxPath(args[0], "config", "source-addresses"), body, cli.Decoded(func(w io.Writer, set struct {
				Addresses []string `json:"source_addresses"`
			}) error {
				var rows [][]string
				for _, a := range set.Addresses {
					rows = append(rows, []string{a})
				}
				return cli.Table(w, rows...)
			}))
		},
	}
	cli.MapFields(cmd, map[string]string{"/source_addresses": "ADDRESS"})
	cmd.Flags().BoolVar(&none, "none", false, "let the host choose")
	return cmd
}
