// Package boxes implements the commands of `gateway box` that use the inside of a box: its runs, files, repositories, schedules, agent and
// skills. Together with the other commands they cover the methods of the npm SDK (docs/commands.md has the table). Text from a box is
// printed without control characters, unless it is the output of a command or goes to a file or a pipe.
package boxes

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/cmd/gateway/command/cli"
)

// Commands returns the commands, to be added to `gateway box`. list is `gateway box list`, which `gateway box ls` is without an argument.
func Commands(o *cli.Options, list func(cmd *cobra.Command, label string) error) []*cobra.Command {
	return []*cobra.Command{
		newRuns(o), newRun(o), newProcesses(o), newProcess(o), newLogs(o), newCode(o),
		newList(o, list), newStat(o), newCat(o), newWrite(o), newMove(o), newMakeDir(o), newAttributes(o), newWatch(o),
		newGit(o), newSchedule(o), newAgent(o), newSkill(o), newEnv(o), newInitCommand(o),
	}
}

// maxWord bounds names and other short text from a box in a table.
const maxWord = 100

// word makes short text safe for a terminal, on one line.
func word(text string) string {
	if text == "" {
		return "-"
	}
	return audit.Escape(text, maxWord)
}

// put writes text from a box: unchanged to a file or a pipe, and as [cli.Prose] to a terminal.
func put(w io.Writer, text string) error {
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		text = cli.Prose(text)
	}
	_, err := io.WriteString(w, text)
	return err
}

// moment formats Unix seconds; 0: never.
func moment(seconds int64) string {
	if seconds == 0 {
		return "-"
	}
	return time.Unix(seconds, 0).UTC().Format(time.RFC3339)
}

// milliseconds returns a duration flag as the API takes it. A part of a millisecond counts as a whole one.
func milliseconds(d time.Duration) int64 { return int64((d + time.Millisecond - 1) / time.Millisecond) }

// MaxTimeout is the longest timeout of a command or an agent.
const MaxTimeout = 7 * 24 * time.Hour

// CheckTimeout refuses durations outside the range of timeouts. Without the flag there is no timeout.
func CheckTimeout(cmd *cobra.Command, d time.Duration) error {
	if f := cmd.Flags().Lookup("timeout"); f.Changed && (d < time.Millisecond || d > MaxTimeout) {
		return cli.Usagef("--timeout: must be between 1ms and 7d")
	}
	return nil
}

// Cut splits BOX:PATH. ok is false for a box, which has no colon, and for a local name, which has a slash before the colon.
func Cut(arg string) (box, file string, ok bool) {
	box, file, ok = strings.Cut(arg, ":")
	return box, file, ok && box != "" && !strings.Contains(box, "/")
}

// fileOf parses an argument that must be BOX:PATH.
func fileOf(arg string) (box, file string, err error) {
	box, file, ok := Cut(arg)
	switch {
	case !ok:
		return "", "", cli.Usagef("%q is not BOX:PATH", arg)
	case file == "":
		return "", "", cli.Usagef("%q names no file; give BOX:PATH, with a path that is absolute or below %s", arg, api.Workspace)
	}
	return box, file, nil
}

// truncated warns that an answer of the gateway is incomplete.
func truncated(cmd *cobra.Command, is bool) {
	if is {
		fmt.Fprintln(cmd.ErrOrStderr(), "warning: the gateway cut the output, which is larger than an answer can be")
	}
}

// escape makes text from a box safe for a terminal, on one line of at most that many bytes.
func escape(text string, most int) string { return audit.Escape(text, most) }

// callInto makes a request, decodes the answer into v, and with --json prints it unchanged.
func callInto(cmd *cobra.Command, o *cli.Options, method, path string, in, v any) error {
	client, err := o.Client()
	if err != nil {
		return err
	}
	var answer json.RawMessage
	if err := client.Do(cmd.Context(), method, path, in, &answer); err != nil {
		return err
	}
	if err := json.Unmarshal(answer, v); err != nil {
		return fmt.Errorf("cannot parse the gateway's answer: %w", err)
	}
	return o.Show(cmd, answer, cli.Silent)
}

// asRefusal returns the refusal of the gateway that an error is.
func asRefusal(err error) (*api.ResponseError, bool) { return errors.AsType[*api.ResponseError](err) }

// offer completes a flag with the values that it takes.
func offer(cmd *cobra.Command, flag string, values ...string) {
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)) // fails for an unknown flag
}
