package command

import (
	"bufio"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/cmd/gateway/command/cli"
	"boxgate/cmd/gateway/command/terminal"
)

// boxRemove holds the flags of `gateway box rm`.
type boxRemove struct {
	o        *cli.Options
	all, yes bool
}

func newBoxRemove(o *cli.Options) *cobra.Command {
	r := boxRemove{o: o}
	cmd := &cobra.Command{
		Use: "rm BOX... | --all", Short: "Stop boxes and remove all their data", Args: cli.MinArgs(0),
		ValidArgsFunction: completeArguments(o, []string{"rm", "BOX..."}),
		RunE: func(cmd *cobra.Command, boxes []string) error {
			switch {
			case r.all && len(boxes) > 0:
				return cli.Usagef("give boxes or --all, not both")
			case r.all:
				return r.removeAll(cmd)
			case len(boxes) == 0:
				return cli.MinArgs(1)(cmd, boxes)
			}
			for _, box := range boxes {
				if err := r.remove(cmd, box); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&r.all, "all", false, "remove every box, after asking")
	cmd.Flags().BoolVar(&r.yes, "yes", false, "with --all: do not ask")
	return cmd
}

func (r *boxRemove) remove(cmd *cobra.Command, box string) error {
	if err := r.o.Call(cmd, "DELETE", api.BoxPath(box), nil, cli.Silent); err != nil {
		return fmt.Errorf("%s: %w", box, err)
	}
	return nil
}

// removeAll removes all boxes and continues after a failure.
func (r *boxRemove) removeAll(cmd *cobra.Command) error {
	client, err := r.o.Client()
	if err != nil {
		return err
	}
	var boxes []boxAnswer
	if err := client.Get(cmd.Context(), "/v2/box", &boxes); err != nil {
		return err
	}
	if len(boxes) == 0 {
		return nil
	}
	if err := r.confirm(cmd, boxes); err != nil {
		return err
	}
	var errs []error
	for _, b := range boxes {
		errs = append(errs, r.remove(cmd, b.ID))
	}
	return errors.Join(errs...)
}

// confirm asks at a terminal whether to remove the boxes. Without a terminal, --yes is required.
func (r *boxRemove) confirm(cmd *cobra.Command, boxes []boxAnswer) error {
	if r.yes {
		return nil
	}
	if terminal.Of(cmd.InOrStdin()) == nil {
		return cli.Usagef("--all removes %s and cannot ask here: give --yes as well", cli.Count(len(boxes), "box", "boxes"))
	}
	var names []string
	for _, b := range boxes {
		names = append(names, strings.TrimSpace(b.ID+" "+b.Name))
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "Remove %s with all files: %s? [y/N] ", cli.Count(len(boxes), "box", "boxes"), strings.Join(names, ", "))
	answer, err := bufio.NewReader(cmd.InOrStdin()).ReadString('\n')
	if a := strings.ToLower(strings.TrimSpace(answer)); err != nil || a != "y" && a != "yes" {
		return errors.New("nothing was removed")
	}
	return nil
}
