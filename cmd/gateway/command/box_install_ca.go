package command

import (
	"fmt"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/cmd/gateway/command/cli"
)

// newBoxInstallCA is `gateway box install-ca`.
func newBoxInstallCA(o *cli.Options) *cobra.Command {
	return &cobra.Command{
		Use: "install-ca BOX...", Short: "Make attached containers trust the CA of their box and proxy.upstream_ca_files", Args: cli.MinArgs(1),
		Long: `Adds the CA of the box and the roots of proxy.upstream_ca_files to the certificates of a running container of Docker, as
--install-ca of ` + "`gateway box attach`" + ` does. Call it after roots were added to the configuration.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, box := range args {
				if err := installCA(cmd, o, box); err != nil {
					return fmt.Errorf("%s: %w", box, err)
				}
			}
			return nil
		},
	}
}

func installCA(cmd *cobra.Command, o *cli.Options, name string) error {
	client, err := o.Client()
	if err != nil {
		return err
	}
	var box struct {
		ID       string
		Attached *api.Attached
	}
	if err := client.Get(cmd.Context(), api.BoxPath(name), &box); err != nil {
		return err
	}
	if box.Attached == nil || box.Attached.Container == "" {
		return fmt.Errorf("it is not an attached container; launched boxes get new roots at their next start, and `gateway ca --box %s --bundle` prints them for others", name)
	}
	g, err := dockerGateway(o)
	if err != nil {
		return err
	}
	return g.InstallCA(cmd.Context(), box.ID, box.Attached.Container)
}
