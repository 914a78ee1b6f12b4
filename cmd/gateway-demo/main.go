// Command gateway-demo is the program behind `gateway demo`. It demonstrates every promise of the gateway next to it in
// temporary network namespaces, with a simulated internet. It is a separate program, so that the gateway, which holds
// keys, contains no part of that internet. It takes the flags of `gateway demo` and exits with the same statuses.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"boxgate/cmd/gateway/command/cli"
	"boxgate/internal/buildinfo"
	"boxgate/internal/lab/demo"
)

func main() { os.Exit(run(os.Args[1:])) }

// run executes a command line and returns its exit status: 0 if every step succeeded, 1 if not, 2 on a usage error.
func run(args []string) int {
	ctx, stop := cli.Interruptible()
	defer stop()
	var asJSON bool
	cmd := newCommand(&asJSON)
	cmd.SetArgs(args)
	return cli.Report(os.Stderr, cmd, cmd.ExecuteContext(ctx), asJSON)
}

// newCommand returns the command line of the demo.
func newCommand(asJSON *bool) *cobra.Command {
	var o demo.Options
	var keep, fleet bool
	cmd := &cobra.Command{
		Use:           "gateway-demo",
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "gateway demo"},
		Short:         "Demonstrate every promise of the gateway over real kernel paths, in temporary namespaces",
		Args:          cli.ExactArgs(0),
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if o.Gateway, err = gatewayAt(o.Gateway); err != nil {
				return err
			}
			o.Colour = cli.Coloured(cmd.OutOrStdout())
			if fleet && keep {
				return cli.Usagef("--keep is not possible with --fleet")
			}
			if fleet {
				return demo.RunFleet(cmd.Context(), cmd.OutOrStdout(), o)
			}
			if keep {
				o.Keep = cmd.InOrStdin()
			}
			return demo.Run(cmd.Context(), cmd.OutOrStdout(), o)
		},
	}
	cmd.Version = buildinfo.Get().Version
	cmd.SetVersionTemplate(buildinfo.Get().Of("gateway-demo") + "\n")
	cmd.CompletionOptions.DisableDefaultCmd = true
	cmd.SetFlagErrorFunc(cli.FlagError)
	f := cmd.Flags()
	f.StringVar(&o.Gateway, "gateway", "", "the gateway to show (default: the one beside this program)")
	f.StringVar(&o.ImageDir, "image-dir", "/var/lib/boxgate/images", "where the image of the box is kept")
	f.BoolVar(&keep, "keep", false, "leave everything open after the last step, with commands to try, until Enter or Ctrl-C")
	f.BoolVar(&fleet, "fleet", false, "demonstrate a fleet of three hosts instead, with an etcd")
	f.StringVar(&o.Etcd, "etcd", "/var/lib/boxgate/kubernetes/etcd", "with --fleet: the program of etcd, which make etcd builds")
	f.BoolVar(asJSON, "json", false, "print errors as JSON")
	return cmd
}

// gatewayAt returns the absolute path of the gateway to show. "" stands for the gateway next to this program.
func gatewayAt(path string) (string, error) {
	if path == "" {
		self, err := os.Executable()
		if err != nil {
			return "", err
		}
		path = filepath.Join(filepath.Dir(self), "gateway")
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("there is no %s, the gateway to show: build it with `make build`, or name another with --gateway", path)
	}
	return path, nil
}
