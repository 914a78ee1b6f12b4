package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"boxgate/audit/trail"
	"boxgate/cmd/gateway/command/cli"
)

// newAuditCommand is `gateway audit`.
func newAuditCommand(o *cli.Options) *cobra.Command {
	var window cli.Window
	var key, box string
	var version uint64
	var follow bool
	cmd := &cobra.Command{
		Use:   "audit [--since T] [--until T] [--key KEY] [--box B [--policy-version N]] [-f]",
		Short: "Print the audit trail of the API: changes and refused calls, with their keys; --json prints it as stored",
		Args:  cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			query := url.Values{}
			if err := window.Set(query); err != nil {
				return err
			}
			for name, value := range map[string]string{"key": key, "box": box} {
				if value != "" {
					query.Set(name, value)
				}
			}
			if version != 0 {
				query.Set("policy_version", strconv.FormatUint(version, 10))
			}
			if follow {
				if query.Has("until") {
					return cli.Usagef("--until is for entries that exist; leave out -f")
				}
				query.Set("follow", "true")
			}
			client, err := o.Client()
			if err != nil {
				return err
			}
			return client.Events(cmd.Context(), "/v2/audit?"+query.Encode(), func(string) {}, func(line []byte) error {
				return printEntry(cmd.OutOrStdout(), line, o.JSON)
			})
		},
	}
	f := cmd.Flags()
	window.AddFlags(f, " (default: at the oldest entry)")
	f.StringVar(&key, "key", "", "only calls with this API key, by its name or ID")
	f.StringVar(&box, "box", "", "only calls about this box, by its ID or name")
	f.Uint64Var(&version, "policy-version", 0, "only the change that led to this version of the box's policy, as numbered in decisions")
	f.BoolVarP(&follow, "follow", "f", false, "keep printing new entries")
	cmd.AddCommand(newAuditVerifyCommand(o))
	return cmd
}

// printEntry prints an entry unchanged or in columns.
func printEntry(w io.Writer, line []byte, asJSON bool) error {
	var e trail.Entry
	if asJSON || json.Unmarshal(line, &e) != nil {
		_, err := fmt.Fprintln(w, string(line))
		return err
	}
	e = e.Origin()
	status := textOrDash("")
	if e.Status != 0 {
		status = fmt.Sprint(e.Status)
	}
	_, err := fmt.Fprintf(w, "%s %6d %-7s %s %s %s %s", e.Time.Local().Format(time.DateTime), e.Seq, e.Kind, textOrDash(e.Key), textOrDash(e.Remote), textOrDash(e.Route), status)
	if err == nil && e.Box != "" {
		_, err = fmt.Fprintf(w, " box=%s", e.Box)
	}
	if err == nil && e.Note != "" {
		_, err = fmt.Fprintf(w, " %s", e.Note)
	}
	if err == nil && len(e.Change.RawMessage) > 0 {
		_, err = fmt.Fprintf(w, " %s", e.Change.RawMessage)
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(w)
	return err
}

func newAuditVerifyCommand(o *cli.Options) *cobra.Command {
	return &cobra.Command{
		Use:   "verify",
		Short: "Check that no entry of the audit trail was changed, inserted or removed",
		Args:  cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			broken := false
			err := o.Call(cmd, "GET", "/v2/audit/verify", nil, cli.Decoded(func(w io.Writer, r trail.Report) error {
				broken = len(r.Problems) > 0
				for _, p := range r.Problems {
					fmt.Fprintln(w, p)
				}
				_, err := fmt.Fprintf(w, "%s, from %d to %d; the last has the hash %s.\n", cli.Count(r.Entries, "entry", "entries"), r.First, r.Head.Seq, r.Head.Hash)
				return err
			}))
			if err == nil && broken {
				return errors.New("the audit trail is not as it was written; compare it with a copy kept elsewhere")
			}
			return err
		},
	}
}
