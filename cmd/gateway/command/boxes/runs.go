package boxes

import (
	"cmp"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/cmd/gateway/command/cli"
)

// runAnswer is a run as the API returns it.
type runAnswer struct {
	ID           string `json:"id"`
	Type         string `json:"type"`
	Status       string `json:"status"`
	User         string `json:"user"`
	Prompt       string `json:"prompt"`
	Output       string `json:"output"`
	ErrorMessage string `json:"error_message"`
	ExitCode     *int   `json:"exit_code"`
	DurationMS   int64  `json:"duration_ms"`
	CreatedAt    int64  `json:"created_at"`
}

// duration formats the time that a run took.
func (r *runAnswer) duration() string {
	return (time.Duration(r.DurationMS) * time.Millisecond).Round(10 * time.Millisecond).String()
}

// user returns the user that the command ran as.
func (r *runAnswer) user() string { return cmp.Or(r.User, api.BoxUser) }

// newRuns is `gateway box runs`.
func newRuns(o *cli.Options) *cobra.Command {
	return &cobra.Command{
		Use: "runs BOX", Short: "List the latest commands and runs of the agent in a box, newest first", Args: cli.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.Call(cmd, "GET", api.BoxPath(args[0], "runs"), nil, cli.Decoded(printRuns))
		},
	}
}

func printRuns(w io.Writer, list struct{ Runs []runAnswer }) error {
	rows := [][]string{{"ID", "TYPE", "STATUS", "USER", "STARTED", "TOOK", "COMMAND OR PROMPT"}}
	for i := range list.Runs {
		r := &list.Runs[i]
		rows = append(rows, []string{r.ID, r.Type, r.Status, word(r.user()), moment(r.CreatedAt), r.duration(), word(r.Prompt)})
	}
	return cli.Table(w, rows...)
}

// newRun is `gateway box run`.
func newRun(o *cli.Options) *cobra.Command {
	cmd := cli.Group("run", "Show and cancel runs in a box: its commands, and those of its agent")
	cmd.AddCommand(&cobra.Command{
		Use: "get BOX RUN", Short: "Show one run, with its exit code and the beginning of its output", Args: cli.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.Call(cmd, "GET", runPath(args), nil, cli.Decoded(printRun))
		},
	}, &cobra.Command{
		Use: "cancel BOX RUN", Short: "Kill a run with everything it started; a run that has ended stays as it is", Args: cli.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.Call(cmd, "POST", runPath(args, "cancel"), nil, cli.Decoded(func(w io.Writer, r runAnswer) error {
				return cli.Table(w, []string{r.ID, r.Status})
			}))
		},
	})
	return cmd
}

// runPath returns the API path of the run in the arguments.
func runPath(args []string, below ...string) string {
	return api.BoxPath(args[0], append([]string{"runs", url.PathEscape(args[1])}, below...)...)
}

func printRun(w io.Writer, r runAnswer) error {
	code := "-"
	if r.ExitCode != nil {
		code = strconv.Itoa(*r.ExitCode)
	}
	rows := [][]string{
		{"run", r.ID}, {"type", r.Type}, {"status", r.Status}, {"user", word(r.user())}, {"exit code", code}, {"started", moment(r.CreatedAt)}, {"took", r.duration()},
		{"prompt", word(r.Prompt)},
	}
	if r.ErrorMessage != "" {
		rows = append(rows, []string{"error", word(r.ErrorMessage)})
	}
	if err := cli.Table(w, rows...); err != nil || r.Output == "" {
		return err
	}
	_, err := fmt.Fprintf(w, "\n%s\n", cli.Prose(r.Output))
	return err
}

// logAnswer is a line of the log of a box as the API returns it.
type logAnswer struct {
	Timestamp              int64
	Level, Source, Message string
}

// maxMessage bounds a line of the log on the terminal.
const maxMessage = 2000

// newLogs is `gateway box logs`.
func newLogs(o *cli.Options) *cobra.Command {
	var offset, limit int
	cmd := &cobra.Command{
		Use: "logs BOX", Short: "Print the log of a box: its runs, changes by users, requests to its public URLs", Args: cli.ExactArgs(1),
		Long: "Print the log of a box, oldest lines first: its runs, changes by users, requests to its public URLs. Decisions about its traffic are in\n" +
			"`gateway log --box BOX`.",
		RunE: func(cmd *cobra.Command, args []string) error {
			query := url.Values{}
			if offset != 0 {
				query.Set("offset", strconv.Itoa(offset))
			}
			if cmd.Flags().Changed("limit") {
				query.Set("limit", strconv.Itoa(limit))
			}
			path := api.BoxPath(args[0], "logs")
			if len(query) > 0 {
				path += "?" + query.Encode()
			}
			return o.Call(cmd, "GET", path, nil, cli.Decoded(printLogs))
		},
	}
	cmd.Flags().IntVar(&offset, "offset", 0, "number of lines to skip")
	cmd.Flags().IntVar(&limit, "limit", 0, "maximum number of lines (default: all in memory)")
	return cmd
}

func printLogs(w io.Writer, list struct{ Logs []logAnswer }) error {
	rows := [][]string{}
	for _, l := range list.Logs {
		rows = append(rows, []string{moment(l.Timestamp), word(l.Level), word(l.Source), logLine(l.Message)})
	}
	return cli.Table(w, rows...)
}

// logLine formats a message on one line.
func logLine(text string) string { return escape(text, maxMessage) }
