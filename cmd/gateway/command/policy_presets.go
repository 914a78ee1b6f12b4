package command

import (
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"boxgate/cmd/gateway/command/cli"
	"boxgate/policy/preset"
)

// newPolicyPresets is `gateway policy presets`. It needs no running gateway.
func newPolicyPresets(o *cli.Options) *cobra.Command {
	return &cobra.Command{
		Use: "presets [NAME...]", Short: "List the presets, or show the hosts of some",
		Long: `Presets are lists of the hosts of well-known services. "preset:NAME,NAME" is a policy that allows exactly these hosts. The
presets are part of this program: a newer release may contain a newer version of a preset, with other hosts. Existing
policies made from a preset do not change with it.`,
		Example: "  gateway policy presets github\n  gateway box create --policy preset:github,pypi\n  gateway policy allow demo preset:npm",
		Args:    cli.MinArgs(0),
		RunE: func(cmd *cobra.Command, names []string) error {
			if len(names) == 0 {
				return listPresets(cmd, o, preset.Names())
			}
			return showPresets(cmd, o, names)
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return preset.Names(), cobra.ShellCompDirectiveNoFileComp
		},
	}
}

func findPresets(names []string) ([]preset.Preset, error) {
	var all []preset.Preset
	for _, name := range names {
		p, err := preset.Find(strings.TrimPrefix(name, cli.PresetPrefix))
		if err != nil {
			return nil, cli.UsageError(err)
		}
		all = append(all, p)
	}
	return all, nil
}

func listPresets(cmd *cobra.Command, o *cli.Options, names []string) error {
	all, err := findPresets(names)
	if err != nil {
		return err
	}
	if o.JSON {
		return cli.WriteJSON(cmd.OutOrStdout(), all)
	}
	rows := [][]string{{"NAME", "VERSION", "HOSTS", "FOR"}}
	for _, p := range all {
		rows = append(rows, []string{p.Name, strconv.Itoa(p.Version), strconv.Itoa(len(p.AllowedDomains)), p.About})
	}
	return cli.Table(cmd.OutOrStdout(), rows...)
}

func showPresets(cmd *cobra.Command, o *cli.Options, names []string) error {
	all, err := findPresets(names)
	if err != nil {
		return err
	}
	if o.JSON {
		return cli.WriteJSON(cmd.OutOrStdout(), all)
	}
	var rows [][]string
	for _, p := range all {
		rows = append(rows, []string{p.Name + ":", p.About + " (version " + strconv.Itoa(p.Version) + ", from " + p.Source + ")"})
		for _, host := range p.AllowedDomains {
			rows = append(rows, []string{"", host})
		}
	}
	return cli.Table(cmd.OutOrStdout(), rows...)
}
