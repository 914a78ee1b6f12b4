package command

import (
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/cmd/gateway/command/cli"
	"boxgate/cmd/gateway/command/cni"
	"boxgate/cmd/gateway/command/oci"
	"boxgate/config"
)

const cniHelp = `Attach pods to the gateway, as a CNI plugin (specification 1.1).

A container runtime calls it, as ` + cni.Program + ` in its directory of plugins, with the call in CNI_* variables and the configuration of
the network on standard input. See docs/attach/kubernetes.md.`

// newCNICommand is `gateway cni`.
func newCNICommand(o *cli.Options) *cobra.Command {
	return &cobra.Command{
		Use: "cni", Short: "Attach pods to the gateway (a CNI plugin, called by container runtimes)", Long: cniHelp, Args: cli.ExactArgs(0),
		RunE: func(*cobra.Command, []string) error {
			if os.Getenv(cni.CommandVariable) == "" {
				return cli.Usagef("%s is not set: container runtimes call this command, as the plugin %s", cni.CommandVariable, cni.Program)
			}
			plugin := cni.Plugin{Open: func(file, admin string) (config.Config, *api.Client, error) {
				mine := cli.Options{ConfigFile: o.ConfigFile, Admin: o.Admin, JSON: true}
				if file != "" {
					mine.ConfigFile = file
				}
				if admin != "" {
					mine.Admin = admin
				}
				cfg, err := mine.Load()
				if err != nil {
					return cfg, nil, err
				}
				client, err := mine.QuietClient()
				return cfg, client, err
			}}
			return plugin.Run()
		},
	}
}

// Arguments returns the arguments of a command line, whose first word is the program. A program with the name of a plugin or of a runtime
// is that command, because the programs that call it give no other.
func Arguments(line []string) []string {
	if len(line) > 0 && filepath.Base(line[0]) == cni.Program {
		return append([]string{"cni"}, line[1:]...)
	}
	return oci.Arguments(line)
}
