package command

import (
	"github.com/spf13/cobra"

	"boxgate/cmd/gateway/command/cli"
	"boxgate/internal/lab/demo"
)

// newDemoCommand is `gateway demo`: the tour.
func newDemoCommand() *cobra.Command {
	var imageDir string
	var keep bool
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show every promise over real kernel paths, in namespaces of its own",
		Args:  cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			o := demo.Options{ImageDir: imageDir}
			if keep {
				o.Keep = cmd.InOrStdin()
			}
			return demo.Run(cmd.Context(), cmd.OutOrStdout(), o)
		},
	}
	cmd.Flags().BoolVar(&keep, "keep", false, "leave everything open after the last step, with commands to try, until Enter or Ctrl-C")
	cmd.Flags().StringVar(&imageDir, "image-dir", "/var/lib/boxgate/images", "where the debian image is kept")
	return cmd
}
