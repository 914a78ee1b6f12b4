package command

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"boxgate/cmd/gateway/command/cli"
	"boxgate/cmd/gateway/command/envfile"
	"boxgate/cmd/gateway/command/terminal"
	"boxgate/config"
	"boxgate/host"
	"boxgate/host/uninstall"
)

// newUninstallCommand is `gateway uninstall`.
func newUninstallCommand(o *cli.Options) *cobra.Command {
	var yes, purge, dryRun bool
	var environment string
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Remove the gateway and its boxes from this host, after listing the changes and asking",
		Long: "Remove the gateway from this host: its rules, routes, addresses and interfaces, its boxes, and its files below /run. Unless\n" +
			"--purge is given, the state stays, so that a gateway started later has its boxes again. The gateway must not be running.",
		Args: cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := setEnvironment(cmd, o, environment); err != nil {
				return err
			}
			cfg, err := o.Load()
			if err != nil {
				return err
			}
			plan, err := host.Uninstallation(cfg, purge)
			if err != nil {
				return err
			}
			if err := printPlan(cmd, o.JSON, plan, dryRun); err != nil || dryRun {
				return err
			}
			if err := confirmUninstall(cmd, yes); err != nil {
				return err
			}
			defer o.Waiting("removing")()
			return plan.Run(cmd.Context())
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	cmd.Flags().BoolVar(&purge, "purge", false, "also remove the state: keys, policies, secrets, and the files of boxes")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only list what would be removed")
	cmd.Flags().StringVar(&environment, "environment-file", "", "file with the environment variables of the service, parsed as by systemd (default: none)")
	return cmd
}

// setEnvironment sets the variables in a file of the service's environment. The file is parsed, not executed.
func setEnvironment(cmd *cobra.Command, o *cli.Options, file string) error {
	if file == "" {
		return nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("--environment-file: %s cannot be read: give a file with lines NAME=value", file)
	}
	for _, v := range envfile.Parse(string(text)) {
		if err := os.Setenv(v.Name, v.Value); err != nil {
			return fmt.Errorf("--environment-file: the value of %s cannot be used: correct it in %s", v.Name, file)
		}
	}
	if !cmd.Flags().Changed("config") {
		o.ConfigFile = os.Getenv(config.FileVariable)
	}
	return nil
}

// printPlan prints the items to be removed and those to be kept.
func printPlan(cmd *cobra.Command, asJSON bool, plan *uninstall.Plan, dryRun bool) error {
	if asJSON {
		return cli.WriteJSON(cmd.OutOrStdout(), plan)
	}
	w, verb := cmd.OutOrStdout(), "is removed"
	if dryRun {
		verb = "would be removed"
	}
	if err := printItems(w, "What "+verb+":", plan.Remove); err != nil {
		return err
	}
	return printItems(w, "What stays:", plan.Keep)
}

func printItems(w io.Writer, title string, items []uninstall.Item) error {
	lines := []string{title}
	for _, i := range items {
		lines = append(lines, "  "+i.What+": "+strings.Join(i.Names, ", "))
	}
	if len(items) == 0 {
		lines = append(lines, "  nothing")
	}
	_, err := io.WriteString(w, strings.Join(lines, "\n")+"\n")
	return err
}

// confirmUninstall asks for confirmation at a terminal. Without a terminal, --yes is required.
func confirmUninstall(cmd *cobra.Command, yes bool) error {
	if yes {
		return nil
	}
	if terminal.Of(cmd.InOrStdin()) == nil {
		return cli.Usagef("cannot ask here: give --yes, or --dry-run to only look")
	}
	fmt.Fprint(cmd.ErrOrStderr(), "Remove all of this? [y/N] ")
	answer, err := bufio.NewReader(cmd.InOrStdin()).ReadString('\n')
	if a := strings.ToLower(strings.TrimSpace(answer)); err != nil || a != "y" && a != "yes" {
		return errors.New("nothing was removed")
	}
	return nil
}
