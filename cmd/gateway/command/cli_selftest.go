package command

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/host"
	"boxgate/selftest"
)

// selfTestCard is the scorecard as the commands read it.
type selfTestCard struct {
	Box, Mode     string
	Tight         bool
	Status        api.SelfTestStatus
	Reason        string
	PolicyVersion uint64 `json:"policy_version"`
	DurationMS    int64  `json:"duration_ms"`
	Summary       struct {
		Tight, Holes, Skipped int
		NotRun                int `json:"not_run"`
	}
	Probes []struct{ Group, Attack, Family, Target, Expected, Seen, Verdict, Why string }
}

// newBoxSelfTest is `gateway box selftest`.
func newBoxSelfTest(o *globalOptions) *cobra.Command {
	return &cobra.Command{
		Use:   "selftest BOX",
		Short: "Attack the gateway from inside a box and print a scorecard; exits 0 only if the box is tight, and 3 if it cannot be tested",
		Args:  exactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var card selfTestCard
			keep := func(w io.Writer, data json.RawMessage) error {
				if err := json.Unmarshal(data, &card); err != nil {
					return fmt.Errorf("cannot parse the gateway's answer: %w", err)
				}
				if o.json {
					_, err := fmt.Fprintln(w, string(data))
					return err
				}
				return printCard(w, card)
			}
			client, err := o.client()
			if err != nil {
				return err
			}
			var answer json.RawMessage
			if err := client.Do(cmd.Context(), "POST", api.BoxPath(args[0], "selftest"), nil, &answer); err != nil {
				return err
			}
			if err := keep(cmd.OutOrStdout(), answer); err != nil {
				return err
			}
			if card.Status == api.SelfTestUntestable {
				return statusError{ExitUntestable, fmt.Errorf("box %s cannot be tested from here", args[0])}
			}
			if !card.Tight {
				return fmt.Errorf("box %s is not tight, or could not be tested fully; see the lines marked HOLE or NOT RUN", args[0])
			}
			return nil
		},
	}
}

// verdictWords are the verdicts as printed: those that need attention are in capitals.
var verdictWords = map[string]string{"tight": "tight", "hole": "HOLE", "not_run": "NOT RUN", "skipped": "-"}

// printCard prints a line for each probe, then a summary.
func printCard(w io.Writer, card selfTestCard) error {
	if card.Status == api.SelfTestUntestable {
		_, err := fmt.Fprintf(w, "box %s, policy %s version %d: CANNOT BE TESTED FROM HERE, nothing was tried. Run attacks inside the sandbox "+
			"instead. Reason: %s\n", card.Box, card.Mode, card.PolicyVersion, card.Reason)
		return err
	}
	rows := [][]string{{"VERDICT", "GROUP", "ATTACK", "FAMILY", "TARGET", "EXPECTED", "SEEN"}}
	for _, p := range card.Probes {
		seen := p.Seen
		switch {
		case p.Why == "":
		case p.Verdict == "skipped":
			seen = p.Why
		default:
			seen = p.Why + " (" + p.Seen + ")"
		}
		rows = append(rows, []string{verdictWords[p.Verdict], p.Group, p.Attack, p.Family, p.Target, p.Expected, seen})
	}
	if err := table(w, rows...); err != nil {
		return err
	}
	word := "TIGHT"
	if !card.Tight {
		word = "NOT TIGHT"
	}
	_, err := fmt.Fprintf(w, "\nbox %s, policy %s version %d: %s. %d tight, %d holes, %d not run, %d skipped; %.1f s\n",
		card.Box, card.Mode, card.PolicyVersion, word, card.Summary.Tight, card.Summary.Holes, card.Summary.NotRun,
		card.Summary.Skipped, float64(card.DurationMS)/1000)
	return err
}

// newProbeCommand is the process that a self-test starts. It reads a plan and has no secrets.
func newProbeCommand() *cobra.Command {
	return &cobra.Command{
		Use:    host.ProbeCommand,
		Short:  "Send the traffic of a self-test (started by the gateway)",
		Args:   exactArgs(0),
		Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return selftest.Probe(cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
}
