package command

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/cmd/gateway/command/cli"
	"boxgate/cmd/gateway/command/terminal"
	"boxgate/cmd/gateway/command/top"
)

// newTopCommand is `gateway top`.
func newTopCommand(o *cli.Options) *cobra.Command {
	var once bool
	var label string
	cmd := &cobra.Command{
		Use: "top", Short: "Show the activity of the boxes live, with keys to allow, deny and explain denials",
		Long: `Shows the connections, requests, denials and bytes per second of each box, and the latest denials. Arrow keys select a denial;
a and d allow or deny its destination for a time, e explains it, / filters boxes, s sorts, p pauses, q quits.
For scripts, --once observes two seconds and prints one table, or one JSON document with --json.`,
		Args: cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !once && o.JSON {
				return cli.Usagef("--json needs --once: `gateway top --once --json`")
			}
			if !once && (!terminal.IsOne(os.Stdin) || !terminal.IsOne(os.Stdout)) {
				return cli.Usagef("gateway top needs a terminal; elsewhere use `gateway top --once`, with --json for scripts")
			}
			client, err := o.Client()
			if err != nil {
				return err
			}
			if once {
				return topOnce(cmd, o, client, label)
			}
			if _, err := top.Boxes(cmd.Context(), client, label); err != nil { // reported before the terminal is drawn on
				return err
			}
			return top.Run(cmd.Context(), client, label)
		},
	}
	cmd.Flags().StringVar(&label, "label", "", "only boxes with this label")
	cmd.Flags().BoolVar(&once, "once", false, "observe once, print and exit; needs no terminal")
	return cmd
}

// topOnce observes one interval and prints it.
func topOnce(cmd *cobra.Command, o *cli.Options, client *api.Client, label string) error {
	m, err := observeOnce(cmd.Context(), client, label)
	if err != nil {
		return err
	}
	rows, denials := m.Rows(top.ByDenials, ""), m.Denials("")
	if o.JSON {
		return cli.WriteJSON(cmd.OutOrStdout(), map[string]any{"boxes": append([]top.Row{}, rows...), "denials": append([]audit.Event{}, denials...)})
	}
	return printTop(cmd.OutOrStdout(), rows, denials)
}

func observeOnce(ctx context.Context, client *api.Client, label string) (*top.Model, error) {
	list, err := top.Boxes(ctx, client, label)
	if err != nil {
		return nil, err
	}
	m := &top.Model{Listed: label != ""}
	m.Boxes(time.Now(), list)
	looking, cancel := context.WithTimeout(ctx, top.Interval)
	defer cancel()
	if err := top.Follow(looking, client, m.Event, func(string) {}); err != nil && looking.Err() == nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if list, err = top.Boxes(ctx, client, label); err != nil {
		return nil, err
	}
	m.Boxes(time.Now(), list)
	return m, nil
}

func printTop(w io.Writer, rows []top.Row, denials []audit.Event) error {
	table := [][]string{{"BOX", "STATUS", "CONN/S", "REQ/S", "DENY/S", "IN/S", "OUT/S"}}
	for _, r := range rows {
		line := []string{audit.Escape(r.Label(), 64), r.Status}
		for _, f := range []float64{r.Connections, r.Requests, r.Denials, r.BytesIn, r.BytesOut} {
			line = append(line, fmt.Sprintf("%.1f", f))
		}
		table = append(table, line)
	}
	if err := cli.Table(w, table...); err != nil {
		return err
	}
	for _, e := range denials[:min(len(denials), 10)] {
		if _, err := fmt.Fprintln(w, audit.Line(e)); err != nil {
			return err
		}
	}
	return nil
}
