package main

import (
	"encoding/json"
	"fmt"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"boxgate/audit"
)

// newLogCommand is `gateway log`.
func newLogCommand(o *globalOptions) *cobra.Command {
	var follow, denied bool
	var box string
	var since time.Duration
	cmd := &cobra.Command{
		Use:   "log [-f] [--box B] [--denied]",
		Short: "Print the decisions, with -f as they happen",
		Args:  exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := o.client()
			if err != nil {
				return err
			}
			query := url.Values{}
			if follow {
				query.Set("follow", "true")
			}
			if denied {
				query.Set("denied", "true")
			}
			if since > 0 {
				query.Set("since", time.Now().Add(-since).Format(time.RFC3339))
			}
			path := "/v2/egress"
			if box != "" {
				path = boxPath(box, "egress")
			}
			return client.Lines(cmd.Context(), path+"?"+query.Encode(), func(line []byte) error {
				return printEvent(cmd, o.json, line)
			})
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&follow, "follow", "f", false, "go on with the decisions to come")
	f.BoolVar(&denied, "denied", false, "denials only")
	f.StringVar(&box, "box", "", "ID or name of a box (default: every box)")
	f.DurationVar(&since, "since", 0, "how far back to begin, such as 10m (default: all that is remembered)")
	return cmd
}

// printEvent prints one line of the stream: the JSON itself, or columns for people. A line that is no decision (how many
// a slow reader lost) is printed as it is.
func printEvent(cmd *cobra.Command, asJSON bool, line []byte) error {
	var e audit.Event
	if asJSON || json.Unmarshal(line, &e) != nil || e.Time.IsZero() {
		_, err := fmt.Fprintln(cmd.OutOrStdout(), string(line))
		return err
	}
	_, err := fmt.Fprintln(cmd.OutOrStdout(), audit.Line(e))
	return err
}
