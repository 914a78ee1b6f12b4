// Package command is the command line of the gateway: its commands, flags, output and exit statuses. It exits 0 on
// success, 1 when something was refused or failed, 2 on a usage error.
package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"boxgate/config"
	"boxgate/internal/buildinfo"
)

// Exit statuses of every command.
const (
	ExitOK         = 0
	ExitFailed     = 1
	ExitUsage      = 2
	ExitUntestable = 3 // of `gateway box selftest`: the box cannot be tested
)

// usageError is a mistake on the command line.
type usageError struct{ error }

// exitError carries the status of a command that ran in a box.
type exitError struct{ status int }

func (e exitError) Error() string { return fmt.Sprintf("the command exited with status %d", e.status) }

// statusError is an error with an exit status of its own.
type statusError struct {
	status int
	error
}

// Run executes one command line and returns its exit status. The first SIGINT or SIGTERM cancels the command; a second
// one stops the process at once.
func Run(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)

	root := newRootCommand()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	var usage usageError
	var exit exitError
	var other statusError
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &exit):
		return exit.status
	case errors.As(err, &usage):
		fmt.Fprintf(os.Stderr, "gateway: %v\nSee `gateway --help`.\n", err)
		return ExitUsage
	case errors.As(err, &other):
		fmt.Fprintf(os.Stderr, "gateway: %v\n", err)
		return other.status
	default:
		fmt.Fprintf(os.Stderr, "gateway: %v\n", err)
		return ExitFailed
	}
}

// newRootCommand builds the command tree.
func newRootCommand() *cobra.Command {
	var opts globalOptions
	root := &cobra.Command{
		Use:           "gateway",
		Short:         "The network gateway of a sandbox host",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{fmt.Errorf("unknown command %q", args[0])}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.Version = buildinfo.Get().Version
	root.SetVersionTemplate(buildinfo.Get().String() + "\n")
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.PersistentFlags().StringVar(&opts.config, "config", os.Getenv("BOXGATE_CONFIG"), "configuration file")
	root.PersistentFlags().BoolVar(&opts.json, "json", false, "print JSON")
	root.PersistentFlags().StringVar(&opts.admin, "admin", os.Getenv("BOXGATE_ADMIN"),
		"admin API: a socket path or a URL (default: the configuration's socket)")
	root.AddCommand(
		newServeCommand(&opts), newCheckCommand(&opts), newDemoCommand(&opts), newImageCommand(&opts),
		newBoxCommand(&opts), newPolicyCommand(&opts), newHeadersCommand(&opts), newURLCommand(&opts),
		newLogCommand(&opts), newCACommand(&opts), newVersionCommand(&opts), newStoreCommand(&opts), newAPIKeyCommand(&opts), newProbeCommand(),
	)
	return root
}

// globalOptions are the flags of every command.
type globalOptions struct {
	config string
	admin  string
	json   bool
}

// load reads the configuration that the flags and the environment give.
func (o *globalOptions) load() (config.Config, error) { return config.Load(o.config, os.Environ()) }

// exactArgs is cobra.ExactArgs with the exit status of a usage error.
func exactArgs(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != n {
			return usageError{fmt.Errorf("%s: %d argument(s) given, usage: %s", cmd.CommandPath(), len(args), cmd.UseLine())}
		}
		return nil
	}
}

// minArgs is cobra.MinimumNArgs with the exit status of a usage error.
func minArgs(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < n {
			return usageError{fmt.Errorf("%s: arguments missing, usage: %s", cmd.CommandPath(), cmd.UseLine())}
		}
		return nil
	}
}
