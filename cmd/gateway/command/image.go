package command

import (
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"boxgate/cmd/gateway/command/cli"
	"boxgate/config"
	"boxgate/host"
	"boxgate/launcher"
)

// newImageCommand is `gateway image`.
func newImageCommand(o *cli.Options) *cobra.Command {
	i := &imageCommand{options: o}
	cmd := cli.Group("image", "Prepare, list and remove the images of boxes")
	cmd.AddCommand(i.pull(), i.list(), i.remove())
	return cmd
}

// imageCommand holds the flags of the image commands. They work on the image directory and need no running gateway.
type imageCommand struct {
	options *cli.Options
	dir     string
}

func (i *imageCommand) withDir(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().StringVar(&i.dir, "dir", "", "directory of the images (default: launcher.image_dir)")
	return cmd
}

func (i *imageCommand) load() (config.Config, error) {
	cfg, err := i.options.Load()
	if err == nil && i.dir != "" {
		cfg.Launcher.ImageDir, err = filepath.Abs(i.dir)
	}
	return cfg, err
}

// images opens the image directory.
func (i *imageCommand) images() (launcher.Images, error) {
	cfg, err := i.load()
	if err != nil {
		return launcher.Images{}, err
	}
	return host.Images(cfg)
}

func (i *imageCommand) pull() *cobra.Command {
	return i.withDir(&cobra.Command{
		Use:     "pull IMAGE",
		Aliases: []string{"build"},
		Short:   "Pull, build or unpack an image, so that the first box need not wait for it",
		Long: "Pull, build or unpack an image, so that the first box need not wait for it. IMAGE is the name of a runtime, such as\n" +
			"golang or one in launcher.images, or an image in the syntax of launcher.images.",
		Args: cli.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := i.load()
			if err != nil {
				return err
			}
			return host.EnsureImage(cmd.Context(), cfg, args[0], func(line string) {
				fmt.Fprintln(cmd.OutOrStdout(), line)
			})
		},
	})
}

// imageView is the JSON output for an image.
type imageView struct {
	Name   string    `json:"name"`
	Source string    `json:"source"`
	Bytes  int64     `json:"bytes"`
	Made   time.Time `json:"made"`
	UsedBy []string  `json:"used_by"`
}

func (i *imageCommand) list() *cobra.Command {
	return i.withDir(&cobra.Command{
		Use:   "list",
		Short: "List the stored images with the number of boxes and snapshots that use them",
		Args:  cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			images, err := i.images()
			if err != nil {
				return err
			}
			list, err := images.List()
			if err != nil {
				return err
			}
			views, rows := []imageView{}, [][]string{{"NAME", "SOURCE", "SIZE", "MADE", "USED BY"}}
			for _, s := range list {
				views = append(views, imageView{s.Key, s.Source, s.Bytes, s.Made, append([]string{}, s.Holders...)})
				rows = append(rows, []string{s.Key, s.Source, fmt.Sprintf("%d MB", s.Bytes/1e6), s.Made.Format(time.DateOnly), strconv.Itoa(len(s.Holders))})
			}
			if i.options.JSON {
				return cli.WriteJSON(cmd.OutOrStdout(), views)
			}
			return cli.Table(cmd.OutOrStdout(), rows...)
		},
	})
}

func (i *imageCommand) remove() *cobra.Command {
	return i.withDir(&cobra.Command{
		Use:   "rm IMAGE...",
		Short: "Remove images that are not used by a box or snapshot",
		Args:  cli.MinArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			images, err := i.images()
			if err != nil {
				return err
			}
			for _, name := range args {
				if err := images.Remove(cmd.Context(), name); err != nil {
					return err
				}
				fmt.Fprintln(cmd.OutOrStdout(), "removed", name)
			}
			return nil
		},
	})
}
