package command

import (
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"boxgate/cmd/gateway/command/cli"
	"boxgate/host"
)

// newImageCommand is `gateway image`.
func newImageCommand(o *cli.Options) *cobra.Command {
	var dir string
	build := &cobra.Command{
		Use:   "build IMAGE",
		Short: "Build or unpack an image, so that the first box does not have to wait for it",
		Args:  cli.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := o.Load()
			if err != nil {
				return err
			}
			if dir != "" {
				if cfg.Launcher.ImageDir, err = filepath.Abs(dir); err != nil {
					return err
				}
			}
			return host.EnsureImage(cmd.Context(), cfg, args[0], func(line string) {
				fmt.Fprintln(cmd.OutOrStdout(), line)
			})
		},
	}
	build.Flags().StringVar(&dir, "dir", "", "where images are kept (default: launcher.image_dir)")
	cmd := cli.Group("image", "Prepare the images of boxes")
	cmd.AddCommand(build)
	return cmd
}
