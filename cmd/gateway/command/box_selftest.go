package command

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/cmd/gateway/command/cli"
)

// selfTestCard is the scorecard as the API returns it.
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
func newBoxSelfTest(o *cli.Options) *cobra.Command {
	return &cobra.Command{
		Use:   "selftest BOX",
		Short: "Attack the gateway from inside a box and print a scorecard; exits with 0 only if the box is tight, and with 3 if it cannot be tested",
		Args:  cli.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := o.Client()
			if err != nil {
				return err
			}
			var answer json.RawMessage
			if err := client.Do(cmd.Context(), "POST", api.BoxPath(args[0], "selftest"), nil, &answer); err != nil {
				return err
			}
			var card selfTestCard
			if err := json.Unmarshal(answer, &card); err != nil {
				return fmt.Errorf("cannot parse the gateway's answer: %w", err)
			}
			if o.JSON {
				_, err = fmt.Fprintln(cmd.OutOrStdout(), string(answer))
			} else {
				err = printCard(cmd.OutOrStdout(), card)
			}
			if err != nil {
				return err
			}
			return card.failure(args[0])
		},
	}
}

// failure returns the command's error: nil only for a box that was tested and is tight.
func (c *selfTestCard) failure(box string) error {
	if c.Status == api.SelfTestUntestable {
		return cli.StatusError{Status: cli.ExitUntestable, Err: fmt.Errorf("box %s cannot be tested from here", box)}
	}
	if !c.Tight {
		return fmt.Errorf("box %s is not tight, or could not be tested fully; see the lines marked HOLE or NOT RUN", box)
	}
	return nil
}

// verdictWords maps verdicts to their printed form. Verdicts that need attention are in capitals.
var verdictWords = map[string]string{"tight": "tight", "hole": "HOLE", "not_run": "NOT RUN", "skipped": "-"}

// printCard prints a line for each probe, then a summary.
func printCard(w io.Writer, card selfTestCard) error {
	if card.Status == api.SelfTestUntestable {
		_, err := fmt.Fprintf(w, "box %s, policy %s version %d: CANNOT BE TESTED FROM HERE, nothing was tried. Run attacks inside the sandbox "+
			"instead. Reason: %s\n", card.Box, card.Mode, card.PolicyVersion, card.Reason)
		return err
	}
	if err := cli.Table(w, card.rows()...); err != nil {
		return err
	}
	word := "TIGHT"
	if !card.Tight {
		word = "NOT TIGHT"
	}
	_, err := fmt.Fprintf(w, "\nbox %s, policy %s version %d: %s. %d tight, %s, %d not run, %d skipped; %.1f s\n",
		card.Box, card.Mode, card.PolicyVersion, word, card.Summary.Tight, cli.Count(card.Summary.Holes, "hole", "holes"), card.Summary.NotRun,
		card.Summary.Skipped, float64(card.DurationMS)/1000)
	return err
}

// rows returns the probes below a heading.
func (c *selfTestCard) rows() [][]string {
	rows := [][]string{{"VERDICT", "GROUP", "ATTACK", "FAMILY", "TARGET", "EXPECTED", "SEEN"}}
	for _, p := range c.Probes {
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
	return rows
}
