// Package command implements the command line of the gateway: the command tree, and each command with its flags and
// output. Package cli contains their common parts.
package command

import (
	"os"
	"slices"

	"github.com/spf13/cobra"

	"boxgate/cmd/gateway/command/cli"
	"boxgate/internal/buildinfo"
)

// Run executes a command line and returns its exit status: 0 on success, 1 on a refusal or failure, 2 on a usage error.
// The first SIGINT or SIGTERM cancels the command; a second one stops the process immediately.
func Run(args []string) int {
	ctx, stop := cli.Interruptible()
	defer stop()

	var opts cli.Options
	root := newRootCommand(&opts)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	return cli.Report(os.Stderr, cmd, cli.AfterSignal(ctx, err), opts.JSON || wantsJSON(args))
}

// wantsJSON reports whether --json is on the command line. Parsing may have stopped before it.
func wantsJSON(args []string) bool {
	if i := slices.Index(args, "--"); i >= 0 {
		args = args[:i]
	}
	return slices.Contains(args, "--json")
}

// Tree returns all commands, for generating man pages and completions.
func Tree() *cobra.Command { return newRootCommand(&cli.Options{}) }

// newRootCommand builds the command tree.
func newRootCommand(opts *cli.Options) *cobra.Command {
	root := &cobra.Command{
		Use:           "gateway",
		Short:         "The network gateway of a sandbox host",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return cli.UnknownCommand(cmd, args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.Version = buildinfo.Get().Version
	root.SetVersionTemplate(buildinfo.Get().String() + "\n")
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(cli.FlagError)
	opts.Register(root)
	root.AddCommand(
		newServeCommand(opts), newReloadCommand(opts), newUpgradeCommand(opts), newCheckCommand(opts), newDemoCommand(opts), newRunCommand(opts), newInsideCommand(), newDockerCommand(opts), newHoldCommand(), newImageCommand(opts),
		newBoxCommand(opts), newSnapshotCommand(opts), newPolicyCommand(opts), newHeadersCommand(opts), newURLCommand(opts),
		newStatusCommand(opts), newTopCommand(opts), newUninstallCommand(opts), newSupportCommand(opts), newLogCommand(opts), newCACommand(opts), newVersionCommand(opts), newStoreCommand(opts), newAPIKeyCommand(opts), newAuditCommand(opts), newSecretCommand(opts), newProbeCommand(),
	)
	complete(root, opts)
	return root
}
