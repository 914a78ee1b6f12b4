package command

import (
	"fmt"
	"io"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"boxgate/audit"
	"boxgate/audit/auditpage"
	"boxgate/audit/report"
	"boxgate/cmd/gateway/command/cli"
)

// reportFormats are the forms of a report.
const reportFormats = "html, json or csv"

// newReportCommand is `gateway report`.
func newReportCommand(o *cli.Options) *cobra.Command {
	var window cli.Window
	var box, format, file string
	cmd := &cobra.Command{
		Use:   "report [--box B] [--since T] [--until T] [--format html|json|csv] [--output FILE]",
		Short: "Write a report for an auditor: what left, under which policy, who changed or approved it, which secret was used where, what was refused",
		Long: `Writes a report on the traffic and the changes of a time, from the log of decisions and the audit trail of the gateway: one
HTML page that needs nothing else, JSON, or CSV. It needs a key with the role auditor or admin.`,
		Args: cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.JSON && !cmd.Flags().Changed("format") {
				format = "json"
			}
			if format != "html" && format != "json" && format != "csv" {
				return cli.Usagef("--format %q is not one of %s", format, reportFormats)
			}
			query := url.Values{}
			if err := window.Set(query); err != nil {
				return err
			}
			if box != "" {
				query.Set("box", box)
			}
			if file == "" && format == "html" && isTerminal(cmd.OutOrStdout()) {
				return cli.Usagef("an HTML page is not for a terminal; add --output report.html, or --format csv")
			}
			client, err := o.Client()
			if err != nil {
				return err
			}
			var r report.Report
			if err := client.Get(cmd.Context(), "/v2/audit/report?"+query.Encode(), &r); err != nil {
				return err
			}
			for _, note := range r.Notes {
				fmt.Fprintln(cmd.ErrOrStderr(), "gateway: "+audit.Escape(note, 1000))
			}
			return writeReport(cmd, o, r, format, file)
		},
	}
	f := cmd.Flags()
	f.StringVar(&box, "box", "", "ID or name of a box, which may be deleted (default: every box)")
	f.StringVar(&format, "format", "html", reportFormats)
	f.StringVarP(&file, "output", "o", "", "a new file for the report (default: standard output)")
	window.AddFlags(f, " (default: 24 hours before the end)")
	return cmd
}

// isTerminal reports whether a reader or writer is a terminal.
func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// writeReport writes a report to standard output or a new file.
func writeReport(cmd *cobra.Command, o *cli.Options, r report.Report, format, file string) error {
	write := func(w io.Writer) error {
		switch format {
		case "csv":
			return auditpage.WriteCSV(w, r)
		case "json":
			return cli.WriteJSON(w, r)
		}
		return auditpage.WriteHTML(w, r)
	}
	if file == "" {
		return write(cmd.OutOrStdout())
	}
	n, err := writeNew(file, func(w io.Writer) (int64, error) {
		counted := &countingWriter{w: w}
		err := write(counted)
		return counted.n, err
	})
	if err != nil {
		return err
	}
	if o.JSON {
		return cli.WriteJSON(cmd.OutOrStdout(), map[string]any{"file": file, "bytes": n})
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "The report on %s is in %s (%d bytes).\n", cli.Count(len(r.Boxes), "box", "boxes"), file, n)
	return err
}

// countingWriter counts the bytes written.
type countingWriter struct {
	w io.Writer
	n int64
}

// Write implements [io.Writer].
func (c *countingWriter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	return n, err
}

// newSecretUsedCommand is `gateway secret used`.
func newSecretUsedCommand(o *cli.Options) *cobra.Command {
	var window cli.Window
	cmd := &cobra.Command{
		Use:   "used NAME [--since T] [--until T]",
		Short: "Show which boxes used a secret, where and for which requests, and which changes name it",
		Args:  cli.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			query := url.Values{}
			if err := window.Set(query); err != nil {
				return err
			}
			return o.Call(cmd, "GET", "/v2/secrets/"+url.PathEscape(args[0])+"/uses?"+query.Encode(), nil, cli.Decoded(func(w io.Writer, u report.Uses) error {
				for _, note := range u.Notes {
					fmt.Fprintln(cmd.ErrOrStderr(), "gateway: "+audit.Escape(note, 1000))
				}
				return printUses(w, u)
			}))
		},
	}
	window.AddFlags(cmd.Flags(), " (default: 24 hours before the end)")
	return cmd
}

// printUses prints the uses of a secret in columns.
func printUses(w io.Writer, u report.Uses) error {
	when := u.Since.Local().Format(time.DateTime) + " to " + u.Until.Local().Format(time.DateTime)
	if len(u.Derived) > 0 {
		fmt.Fprintf(w, "Secrets made with %s, whose uses are included: %s.\n", u.Secret, strings.Join(u.Derived, ", "))
	}
	if len(u.Uses) == 0 {
		fmt.Fprintf(w, "No box used %s from %s.\n", u.Secret, when)
	} else {
		rows := [][]string{{"BOX", "SECRET", "DESTINATION", "REQUEST", "SET IN", "COUNT", "OUT", "FIRST", "LAST"}}
		for _, x := range u.Uses {
			rows = append(rows, useRow(x))
		}
		if err := cli.Table(w, rows...); err != nil {
			return err
		}
	}
	for _, c := range u.Changes {
		by := textOrDash(audit.Escape(c.By.Key, 64))
		if _, err := fmt.Fprintf(w, "%s %s %s: %s\n", c.Time.Local().Format(time.DateTime), by, audit.Escape(c.Call, 100), audit.Escape(strings.Join(c.What, "; "), 300)); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, "To replace it for every box: gateway secret replace %s\n", u.Secret)
	return err
}

func useRow(x report.Use) []string {
	name := x.BoxName
	if name == "" {
		name = string(x.Box)
	}
	to := audit.Escape(x.Host, 100)
	if x.Port != 0 {
		to += ":" + strconv.Itoa(int(x.Port))
	}
	request := audit.Escape(x.Method, 16)
	if len(x.Paths) > 0 {
		request += " " + audit.Escape(x.Paths[0], 60)
	}
	if len(x.Paths) > 1 {
		request += fmt.Sprintf(" and %d more", len(x.Paths)-1)
	}
	in := strings.Join(x.Headers, ",")
	if x.Login != "" {
		in = x.Login
	}
	return []string{
		audit.Escape(name, 64), x.Secret, to, textOrDash(strings.TrimSpace(request)), textOrDash(audit.Escape(in, 100)), strconv.FormatUint(x.Count, 10), strconv.FormatInt(x.BytesOut, 10),
		x.First.Local().Format(time.DateTime), x.Last.Local().Format(time.DateTime),
	}
}
