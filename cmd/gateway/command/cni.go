package command

import (
	"os"
	"path/filepath"
	"strings"

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
	cmd := &cobra.Command{
		Use: "cni", Short: "Attach pods to the gateway (a CNI plugin, called by container runtimes)", Long: cniHelp, Args: cli.ExactArgs(0),
		RunE: func(*cobra.Command, []string) error {
			if os.Getenv(cni.CommandVariable) == "" {
				return cli.Usagef("%s is not set: container runtimes call this command, as the plugin %s", cni.CommandVariable, cni.Program)
			}
			if err := clearEnvironment(); err != nil {
				return err
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
	cmd.AddCommand(newCNIInstall())
	return cmd
}

// newCNIInstall is `gateway cni install`.
func newCNIInstall() *cobra.Command {
	var i cni.Installation
	var remove bool
	cmd := &cobra.Command{
		Use: "install --binaries DIR [--networks DIR] [--alone DIR]", Short: "Install the CNI plugin on this host, or remove it", Args: cli.ExactArgs(0),
		Long: `Install the CNI plugin: the binary, the gateway's configuration for it, and a network that chains it to the cluster's, which runtimes
prefer because its name is the first. The network of the cluster is copied: repeat this when that has changed.`,
		Example: "  gateway cni install --binaries /opt/cni/bin --networks /etc/cni/net.d\n  gateway cni install --binaries /opt/cni/bin --alone /etc/cni/boxgate.d     # for a runtime class",
		RunE: func(*cobra.Command, []string) error {
			if i.Binaries == "" || i.Networks == "" && i.Alone == "" {
				return cli.Usagef("give --binaries, and --networks, --alone or both")
			}
			if remove {
				return i.Remove()
			}
			self, err := os.Executable()
			if err != nil {
				return err
			}
			return i.Install(self)
		},
	}
	f := cmd.Flags()
	f.StringVar(&i.Binaries, "binaries", "", "directory of CNI plugins, such as /opt/cni/bin")
	f.StringVar(&i.Networks, "networks", "", "directory of CNI networks, such as /etc/cni/net.d, to chain the plugin")
	f.StringVar(&i.Alone, "alone", "", "directory for a network with the plugin alone, to be named by cni_conf_dir of a runtime")
	f.StringVar(&i.Config, "copy-config", "", "configuration of the gateway to copy to the host")
	f.StringVar(&i.HostConfig, "host-config", "", "configuration file on the host, as the plugin names it (default: that of the commands)")
	f.StringVar(&i.Root, "root", "/", "where the root of the host is mounted, for --copy-config")
	f.StringSliceVar(&i.Namespaces, "namespace", nil, "Kubernetes namespace of which all pods are the gateway's (may be repeated)")
	f.BoolVar(&remove, "remove", false, "remove the networks and the plugin; remove the pods first")
	return cmd
}

// clearEnvironment removes the variables that would change the gateway's configuration: the environment is that of a container runtime.
func clearEnvironment() error {
	for _, entry := range os.Environ() {
		if name, _, _ := strings.Cut(entry, "="); strings.HasPrefix(name, config.EnvironmentPrefix) {
			if err := os.Unsetenv(name); err != nil {
				return err
			}
		}
	}
	return nil
}

// Arguments returns the arguments of a command line, whose first word is the program. A program with the name of a plugin or of a runtime
// is that command, because the programs that call it give no other.
func Arguments(line []string) []string {
	if len(line) > 0 && filepath.Base(line[0]) == cni.Program {
		return append([]string{"cni"}, line[1:]...)
	}
	return oci.Arguments(line)
}
