// Package command implements the command line of the gateway: the command tree, and each command with its flags and
// output. Package cli contains their common parts.
package command

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/cmd/gateway/command/cli"
	"boxgate/host/box"
	"boxgate/internal/buildinfo"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/policy/preset"
	"boxgate/selftest"
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

// firstCommands are the examples of the help without a command.
const firstCommands = `  gateway run --allow example.com -- curl -sS https://example.com/   # one command, without a service
  gateway check                                                      # may this host serve boxes?
  gateway serve                                                      # then, in another terminal:
  gateway box create --name demo --policy preset:npm
  gateway box exec demo -- npm view express version
  gateway log --box demo --denied                                    # with the commands that allow it`

// newRootCommand builds the command tree.
func newRootCommand(opts *cli.Options) *cobra.Command {
	root := &cobra.Command{
		Use:           "gateway",
		Short:         "The network gateway of a sandbox host",
		Example:       firstCommands,
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
		newServeCommand(opts), newReloadCommand(opts), newUpgradeCommand(opts), newCheckCommand(opts), newDemoCommand(opts), newRunCommand(opts), newInsideCommand(), newDockerCommand(opts), newHoldCommand(), newOCICommand(opts), newOCIWaitCommand(), newImageCommand(opts),
		newBoxCommand(opts), newSnapshotCommand(opts), newPolicyCommand(opts), newHeadersCommand(opts), newURLCommand(opts),
		newStatusCommand(opts), newTopCommand(opts), newUsageCommand(opts), newPricesCommand(opts), newUninstallCommand(opts), newSupportCommand(opts), newLogCommand(opts), newCACommand(opts), newVersionCommand(opts), newStoreCommand(opts), newAPIKeyCommand(opts), newAuditCommand(opts), newReportCommand(opts), newSecretCommand(opts), newApprovalsCommand(opts), newMCPCommand(), newProbeCommand(), newDoctorCommand(opts), newDoctorProbeCommand(), newCNICommand(opts), newFleetCommand(opts),
	)
	complete(root, opts)
	return root
}

// completionTimeout bounds how long a shell waits for the gateway's list of boxes.
const completionTimeout = 2 * time.Second

// complete adds completion to every command of a tree: for BOX and KEY arguments in its usage, and for the flags --box, --label,
// --policy and --reason.
func complete(cmd *cobra.Command, o *cli.Options) {
	for _, sub := range cmd.Commands() {
		complete(sub, o)
	}
	isFlag := func(word string) bool { return strings.HasPrefix(word, "[-") }
	if usage := slices.DeleteFunc(strings.Fields(cmd.Use), isFlag); cmd.ValidArgsFunction == nil && len(usage) > 1 {
		switch first, optional := strings.CutPrefix(usage[1], "["); {
		case optional && (strings.HasPrefix(first, "BOX") || first == "KEY]"):
			cmd.ValidArgsFunction = completeArguments(o, []string{usage[0], first[:3]})
		case first == "KEY", strings.HasPrefix(first, "BOX") && first != "BOX:PATH":
			cmd.ValidArgsFunction = completeArguments(o, usage)
		}
	}
	for name, values := range map[string]cobra.CompletionFunc{
		"box": func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
			return boxNames(cmd, o)
		},
		"label": func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
			return boxLabels(cmd, o)
		},
		"policy": completePolicy(o),
		"reason": completeReason,
	} {
		if cmd.Flags().Lookup(name) != nil {
			_ = cmd.RegisterFlagCompletionFunc(name, values) // fails if the flag already has a completion
		}
	}
}

// completeArguments completes the first argument with boxes, and the others according to the usage.
func completeArguments(o *cli.Options, usage []string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		switch next := usage[min(len(args)+1, len(usage)-1)]; {
		case isBulk(cmd) && next == "BOX":
			return completePolicy(o)(cmd, args, begun)
		case strings.HasPrefix(next, "BOX") && (len(args) == 0 || strings.HasSuffix(next, "...")):
			names, directive := boxNames(cmd, o)
			return slices.DeleteFunc(names, func(name string) bool { return slices.Contains(args, name) }), directive
		case next == "POLICY" && len(args) == 1:
			return completePolicy(o)(cmd, args, begun)
		case next == "KEY" && len(args) == 0:
			return fetchIDs(cmd, o, "/v2/api-keys")
		case next == "ID" && len(args) == 1 && usage[1] == "KEY":
			return fetchIDs(cmd, o, sshKeysPath(args[0]))
		case strings.Trim(next, "[]") == "FILE" && len(args) == 1:
			return nil, cobra.ShellCompDirectiveDefault
		case next == "[TTL|never]" && len(args) == 1:
			return []string{"never"}, cobra.ShellCompDirectiveNoFileComp
		case next == "RUN" && len(args) == 1:
			return fetchIDs(cmd, o, api.BoxPath(args[0], "runs"))
		case strings.HasPrefix(next, "ID") && len(args) >= 1 && cmd.HasParent() && cmd.Parent().Name() == "schedule":
			return fetchIDs(cmd, o, api.BoxPath(args[0], "schedules"))
		case next == "HOST...":
			return completePresets(begun), cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
}

// isBulk reports whether the command line of `gateway policy set` selects boxes by label, so that BOX is left out.
func isBulk(cmd *cobra.Command) bool {
	label := cmd.Flags().Lookup("label")
	return cmd.Name() == "set" && label != nil && label.Changed
}

// boxNames fetches the boxes from the gateway. It returns their names, or the IDs of boxes without a name.
func boxNames(cmd *cobra.Command, o *cli.Options) ([]string, cobra.ShellCompDirective) {
	var names []string
	for _, b := range fetchBoxes(cmd, o) {
		if b.Name != "" {
			names = append(names, b.Name)
		} else {
			names = append(names, b.ID)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// boxLabels fetches the labels of all boxes.
func boxLabels(cmd *cobra.Command, o *cli.Options) ([]string, cobra.ShellCompDirective) {
	var labels []string
	for _, b := range fetchBoxes(cmd, o) {
		labels = append(labels, b.Labels...)
	}
	slices.Sort(labels)
	return slices.Compact(labels), cobra.ShellCompDirectiveNoFileComp
}

// fetchBoxes fetches the boxes for a completion. It returns none if the gateway does not answer in time.
func fetchBoxes(cmd *cobra.Command, o *cli.Options) []boxAnswer {
	var boxes []boxAnswer
	if !fetchQuietly(cmd, o, "/v2/box", &boxes) {
		return nil
	}
	return boxes
}

// fetchQuietly fetches an answer for a completion. It reports false if the gateway does not answer in time.
func fetchQuietly(cmd *cobra.Command, o *cli.Options, path string, answer any) bool {
	client, err := o.QuietClient()
	if err != nil {
		return false
	}
	ctx := cmd.Context()
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, completionTimeout)
	defer cancel()
	return client.Get(ctx, path, answer) == nil
}

// fetchIDs fetches the IDs in a list, or in an object that contains one, such as the runs of a box.
func fetchIDs(cmd *cobra.Command, o *cli.Options, path string) (ids []string, directive cobra.ShellCompDirective) {
	type entry struct{ ID string }
	var answer json.RawMessage
	if fetchQuietly(cmd, o, path, &answer) {
		var list []entry
		var lists map[string][]entry
		_, _ = json.Unmarshal(answer, &list), json.Unmarshal(answer, &lists) // one of the two fails
		for _, more := range lists {
			list = append(list, more...)
		}
		for _, e := range list {
			ids = append(ids, e.ID)
		}
	}
	return ids, cobra.ShellCompDirectiveNoFileComp
}

// completePolicy completes a policy: a mode, presets, a named policy, or a file name after @.
func completePolicy(o *cli.Options) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
		switch {
		case strings.HasPrefix(begun, "@"):
			return nil, cobra.ShellCompDirectiveDefault
		case strings.HasPrefix(begun, cli.NamedPrefix):
			return namedNames(cmd, o, cli.NamedPrefix), cobra.ShellCompDirectiveNoFileComp
		}
		known := []string{string(policy.ModeAllowAll), string(policy.ModeDenyAll), cli.NamedPrefix}
		return append(known, completePresets(begun)...), cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	}
}

// completePresets completes the last name of a list of presets.
func completePresets(begun string) []string {
	before, given := cli.PresetPrefix, []string{}
	if list, ok := strings.CutPrefix(begun, cli.PresetPrefix); ok {
		given = strings.Split(list, ",")
		given = given[:len(given)-1]
		before += strings.Join(append(slices.Clone(given), ""), ",")
	}
	var all []string
	for _, name := range preset.Names() {
		if !slices.Contains(given, name) {
			all = append(all, before+name)
		}
	}
	return all
}

func completeReason(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	var all []string
	for _, r := range name.Reasons() {
		all = append(all, string(r))
	}
	return all, cobra.ShellCompDirectiveNoFileComp
}

// newVersionCommand is `gateway version`.
func newVersionCommand(o *cli.Options) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version, the revision and the Go version of this binary",
		Args:  cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.JSON {
				return cli.WriteJSON(cmd.OutOrStdout(), buildinfo.Get())
			}
			_, err := fmt.Fprintln(cmd.OutOrStdout(), buildinfo.Get())
			return err
		},
	}
}

// newProbeCommand is the process started by a self-test. It reads a plan and has no access to secrets.
func newProbeCommand() *cobra.Command {
	return &cobra.Command{
		Use:    box.ProbeCommand,
		Short:  "Send the traffic of a self-test (started by the gateway)",
		Args:   cli.ExactArgs(0),
		Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return selftest.Probe(cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
}
