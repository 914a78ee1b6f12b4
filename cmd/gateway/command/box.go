package command

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/cmd/gateway/command/cli"
)

// newBoxCommand is `gateway box`.
func newBoxCommand(o *cli.Options) *cobra.Command {
	cmd := cli.Group("box", "Create, list, use and remove boxes")
	cmd.AddCommand(newBoxCreate(o), newBoxList(o), newBoxGet(o), newBoxExec(o), newBoxShell(o))
	cmd.AddCommand(newBoxState(o, "pause", "Freeze boxes: they keep their memory and use no CPU"), newBoxState(o, "resume", "Resume paused boxes, and start boxes whose first process has ended"))
	cmd.AddCommand(newBoxCopy(o), newBoxSnapshot(o), newBoxSelfTest(o), newBoxTraffic(o), newBoxRemove(o), newBoxAttach(o), newBoxReattach(o), newBoxDetach(o), newBoxInstallCA(o), newBoxSource(o), newBoxLimits(o), newBoxLabel(o))
	return cmd
}

func newBoxList(o *cli.Options) *cobra.Command {
	var label string
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the boxes", Args: cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.Call(cmd, "GET", api.BoxesPath(label), nil, cli.Decoded(printBoxes))
		},
	}
	cmd.Flags().StringVar(&label, "label", "", "only boxes with this label")
	return cmd
}

func newBoxGet(o *cli.Options) *cobra.Command {
	return &cobra.Command{
		Use: "get BOX", Short: "Show one box", Args: cli.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.Call(cmd, "GET", api.BoxPath(args[0]), nil, cli.Indented)
		},
	}
}

// newBoxState is `gateway box pause` or `gateway box resume`.
func newBoxState(o *cli.Options, call, short string) *cobra.Command {
	return &cobra.Command{
		Use: call + " BOX...", Short: short, Args: cli.MinArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, box := range args {
				err := o.Call(cmd, "POST", api.BoxPath(box, call), nil, cli.Decoded(func(w io.Writer, b boxAnswer) error {
					return cli.Table(w, []string{b.ID, b.Status})
				}))
				if err != nil {
					return fmt.Errorf("%s: %w", box, err)
				}
			}
			return nil
		},
	}
}
