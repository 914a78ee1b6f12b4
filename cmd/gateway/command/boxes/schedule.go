package boxes

import (
	"encoding/json"
	"io"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/cmd/gateway/command/cli"
)

// newSchedule is `gateway box schedule`.
func newSchedule(o *cli.Options) *cobra.Command {
	cmd := cli.Group("schedule", "Run commands and prompts of the agent in a box repeatedly")
	cmd.AddCommand(newScheduleExec(o), newScheduleAgent(o), &cobra.Command{
		Use: "list BOX", Aliases: []string{"ls"}, Short: "List the schedules of a box, oldest first", Args: cli.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.Call(cmd, "GET", api.BoxPath(args[0], "schedules"), nil, cli.Decoded(printSchedules))
		},
	}, &cobra.Command{
		Use: "get BOX ID", Short: "Show one schedule", Args: cli.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.Call(cmd, "GET", schedulePath(args), nil, cli.Indented)
		},
	},
		newScheduleState(o, "pause", "Pause schedules: runs that are due in the meantime are skipped"),
		newScheduleState(o, "resume", "Resume paused schedules"),
		&cobra.Command{
			Use: "rm BOX ID...", Short: "Remove schedules; a run in progress continues", Args: cli.MinArgs(2),
			RunE: func(cmd *cobra.Command, args []string) error {
				for _, id := range args[1:] {
					if err := o.Call(cmd, "DELETE", schedulePath([]string{args[0], id}), nil, cli.Silent); err != nil {
						return err
					}
				}
				return nil
			},
		})
	return cmd
}

// schedulePath returns the API path of the schedule in the arguments.
func schedulePath(args []string, below ...string) string {
	return api.BoxPath(args[0], append([]string{"schedules", url.PathEscape(args[1])}, below...)...)
}

// scheduleAnswer is a schedule as the API returns it.
type scheduleAnswer struct {
	ID            string   `json:"id"`
	Type          string   `json:"type"`
	Cron          string   `json:"cron"`
	TimeZone      string   `json:"time_zone"`
	Command       []string `json:"command"`
	Prompt        string   `json:"prompt"`
	Status        string   `json:"status"`
	NextRunAt     int64    `json:"next_run_at"`
	LastRunAt     int64    `json:"last_run_at"`
	LastRunStatus string   `json:"last_run_status"`
	TotalRuns     int64    `json:"total_runs"`
	TotalFailures int64    `json:"total_failures"`
}

func printSchedules(w io.Writer, list []scheduleAnswer) error {
	rows := [][]string{{"ID", "TYPE", "CRON", "STATUS", "NEXT", "LAST", "RUNS", "FAILED", "COMMAND OR PROMPT"}}
	for _, s := range list {
		last := moment(s.LastRunAt)
		if s.LastRunStatus != "" {
			last += " " + s.LastRunStatus
		}
		rows = append(rows, []string{
			s.ID, s.Type, word(strings.TrimSpace(s.Cron + " " + s.TimeZone)), s.Status, moment(s.NextRunAt), last,
			strconv.FormatInt(s.TotalRuns, 10), strconv.FormatInt(s.TotalFailures, 10), word(strings.Join(s.Command, " ") + s.Prompt),
		})
	}
	return cli.Table(w, rows...)
}

// scheduleFlags holds the common flags of new schedules.
type scheduleFlags struct {
	cron, zone, folder, webhook, headers string
	timeout                              time.Duration
}

func (s *scheduleFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&s.cron, "cron", "", "when: five fields, such as '*/5 * * * *', or @hourly, @daily, @weekly, @monthly or @yearly")
	f.StringVar(&s.zone, "time-zone", "", "time zone of --cron, such as Europe/Berlin (default: UTC)")
	f.StringVar(&s.folder, "folder", "", "working directory, absolute or below /workspace/home")
	f.StringVar(&s.webhook, "webhook-url", "", "receives the result of each run, in a request under the policy of the box")
	f.StringVar(&s.headers, "webhook-headers", "", "headers of that request: a JSON or YAML object, @FILE or -; put secrets into header rules instead")
	cli.Duration(f, &s.timeout, "timeout", 0, "how long a run may take before it is killed (default: an hour)")
}

// body returns the request for a new schedule.
func (s *scheduleFlags) body(cmd *cobra.Command, in *Input, kind string) (map[string]any, error) {
	if err := CheckTimeout(cmd, s.timeout); err != nil {
		return nil, err
	}
	if s.cron == "" {
		return nil, cli.Usagef("give --cron, such as --cron '*/5 * * * *'")
	}
	body := set(map[string]any{"type": kind, "cron": s.cron}, map[string]string{"time_zone": s.zone, "folder": s.folder, "webhook_url": s.webhook})
	if s.timeout != 0 {
		body["timeout"] = milliseconds(s.timeout)
	}
	headers, err := in.Document("--webhook-headers", s.headers, "an object of headers")
	if headers != nil {
		body["webhook_headers"] = headers
	}
	return body, err
}

// printMade prints the ID of a new schedule.
func printMade(w io.Writer, s scheduleAnswer) error {
	return cli.Table(w, []string{s.ID, "next run", moment(s.NextRunAt)})
}

func newScheduleExec(o *cli.Options) *cobra.Command {
	var s scheduleFlags
	cmd := &cobra.Command{
		Use: "exec BOX --cron WHEN -- COMMAND [ARG...]", Short: "Run a command repeatedly, and print the ID of the schedule", Args: cli.MinArgs(2),
		Example: "  gateway box schedule exec demo --cron '*/5 * * * *' -- sh -c 'date >>log'",
		RunE: func(cmd *cobra.Command, args []string) error {
			body, err := s.body(cmd, NewInput(cmd), "exec")
			if err != nil {
				return err
			}
			body["command"] = args[1:]
			return o.Call(cmd, "POST", api.BoxPath(args[0], "schedules"), body, cli.Decoded(printMade))
		},
	}
	s.add(cmd)
	cli.MapFields(cmd, map[string]string{"/command": "COMMAND"})
	return cmd
}

func newScheduleAgent(o *cli.Options) *cobra.Command {
	var s scheduleFlags
	var model, options string
	cmd := &cobra.Command{
		Use: "agent BOX PROMPT --cron WHEN", Short: "Run the agent of a box repeatedly, and print the ID of the schedule", Args: cli.ExactArgs(2),
		Example: "  gateway box schedule agent demo 'Review the changes of the day' --cron @daily",
		RunE: func(cmd *cobra.Command, args []string) error {
			in := NewInput(cmd)
			body, err := s.body(cmd, in, "prompt")
			if err != nil {
				return err
			}
			prompt, err := in.Text("PROMPT", args[1])
			if err != nil {
				return err
			}
			var chosen json.RawMessage
			if chosen, err = in.Document("--options", options, "an object of options"); err != nil {
				return err
			}
			if chosen != nil {
				body["agent_options"] = chosen
			}
			body["prompt"] = prompt
			set(body, map[string]string{"model": model})
			return o.Call(cmd, "POST", api.BoxPath(args[0], "schedules"), body, cli.Decoded(printMade))
		},
	}
	s.add(cmd)
	cmd.Flags().StringVar(&model, "model", "", "model of its runs (default: the box's)")
	cmd.Flags().StringVar(&options, "options", "", optionsHelp)
	cli.MapFields(cmd, map[string]string{"/prompt": "PROMPT", "/agent_options": "--options"})
	return cmd
}

// newScheduleState is `gateway box schedule pause` or `resume`.
func newScheduleState(o *cli.Options, call, short string) *cobra.Command {
	return &cobra.Command{
		Use: call + " BOX ID...", Short: short, Args: cli.MinArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, id := range args[1:] {
				err := o.Call(cmd, "POST", schedulePath([]string{args[0], id}, call), nil, cli.Decoded(func(w io.Writer, s scheduleAnswer) error {
					return cli.Table(w, []string{s.ID, s.Status})
				}))
				if err != nil {
					return err
				}
			}
			return nil
		},
	}
}
