package command

import (
	"cmp"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/cmd/gateway/command/cli"
	"boxgate/config"
	"boxgate/host"
)

// newReloadCommand is `gateway reload`.
func newReloadCommand(o *cli.Options) *cobra.Command {
	return replaceCommand(o, "reload", "Reload the configuration of the running gateway",
		"The configuration is applied as a whole or not at all: if it is invalid, or a gateway cannot start with it, the current one stays.\n"+
			"DNS, the proxy and public URLs keep working, and open connections are drained.")
}

// newUpgradeCommand is `gateway upgrade`.
func newUpgradeCommand(o *cli.Options) *cobra.Command {
	return replaceCommand(o, "upgrade", "Replace the running gateway by the installed program, without interruption",
		"First install the new program at the path of the running one. DNS, the proxy and public URLs keep working, and open connections are\n"+
			"drained. If the new program does not start, the running one continues.")
}

func replaceCommand(o *cli.Options, word, short, long string) *cobra.Command {
	return &cobra.Command{
		Use: word, Short: short, Long: long, Args: cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			var done reloadResult
			if err := host.AskControl(cmd.Context(), word, &done); err != nil {
				return err
			}
			renew := done.Replaced && slices.ContainsFunc(done.Changes, func(d config.Difference) bool { return d.Key == rootsKey })
			if o.JSON {
				err := cli.WriteJSON(cmd.OutOrStdout(), done)
				if renew {
					renewRoots(cmd, o, io.Discard)
				}
				return err
			}
			for _, c := range done.Changes {
				fmt.Fprintln(cmd.OutOrStdout(), c)
			}
			message := "the configuration has not changed"
			if done.Replaced {
				message = "another process serves; the one before drains its connections"
			}
			_, err := fmt.Fprintln(cmd.OutOrStdout(), message)
			if renew {
				renewRoots(cmd, o, cmd.OutOrStdout())
			}
			return err
		},
	}
}

const rootsKey = "proxy.upstream_ca_files"

// renewRoots adds new roots to the attached containers in which the CA of their box is installed, and warns of each container
// that does not get them. The reload itself has succeeded.
func renewRoots(cmd *cobra.Command, o *cli.Options, out io.Writer) {
	var boxes []struct {
		ID, Name, Status string
		Attached         *api.Attached
	}
	client, err := o.Client()
	if err == nil {
		err = client.Get(cmd.Context(), api.BoxesPath(""), &boxes)
	}
	if err != nil {
		fmt.Fprintf(cmd.ErrOrStderr(), "warning: containers do not trust all of %s: %v; try `gateway box install-ca BOX`\n", rootsKey, err)
		return
	}
	launched := 0
	for _, box := range boxes {
		shown := cmp.Or(box.Name, box.ID)
		switch {
		case box.Attached == nil && box.Status != string(api.StatusPaused):
			launched++
		case box.Attached == nil || box.Attached.Container == "":
		default:
			g, err := dockerGateway(o)
			renewed := false
			if err == nil {
				renewed, err = g.RenewCA(cmd.Context(), box.ID, box.Attached.Container)
			}
			if err != nil {
				fmt.Fprintf(cmd.ErrOrStderr(), "warning: %s does not trust all of %s: %v; try `gateway box install-ca %[1]s`\n", shown, rootsKey, err)
			} else if renewed {
				fmt.Fprintf(out, "%s: new programs in the container trust %s\n", shown, rootsKey)
			}
		}
	}
	if launched > 0 {
		fmt.Fprintf(out, "%s: %s from the next start on\n", rootsKey, cli.Count(uint64(launched), "running box trusts them", "running boxes trust them"))
	}
}
