package command

import (
	"strings"
	"time"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/cmd/gateway/command/cli"
)

// newURLSignCommand is `gateway url sign`.
func newURLSignCommand(o *cli.Options) *cobra.Command {
	var expires time.Duration
	var path string
	var methods []string
	cmd := &cobra.Command{
		Use: "sign BOX PORT", Short: "Sign a link to a public URL; it needs no other credential", Args: cli.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			for i := range methods {
				methods[i] = strings.ToUpper(methods[i])
			}
			body := map[string]any{"expires_in": int64(expires / time.Second), "path_prefix": path, "methods": methods}
			return o.Call(cmd, "POST", api.BoxPath(args[0], "preview", args[1], "sign"), body, cli.Decoded(renderURL))
		},
	}
	cli.MapFields(cmd, map[string]string{"/path_prefix": "--path", "/methods": "--method"})
	cli.Duration(cmd.Flags(), &expires, "expires-in", time.Hour, "validity, such as 10m or 7d")
	cmd.Flags().StringVar(&path, "path", "/", "the permitted path, including everything below it")
	cmd.Flags().StringSliceVar(&methods, "method", []string{"GET", "HEAD"}, "a permitted method (repeatable)")
	return cmd
}
