package harness

import (
	"encoding/json"
	"fmt"
	"strings"

	"boxgate/api"
	"boxgate/cmd/gateway/command/cli"
)

// Scorecard is the output of `gateway box selftest --json`.
type Scorecard struct {
	Tight      bool
	Status     api.SelfTestStatus
	Reason     string
	DurationMS int64 `json:"duration_ms"`
	Summary    struct{ Tight, Holes int }
	Probes     []struct{ Group, Attack, Family, Verdict, Why string }
}

// String lists the probes, one per line.
func (c Scorecard) String() string {
	var s strings.Builder
	for _, p := range c.Probes {
		fmt.Fprintf(&s, "%+v\n", p)
	}
	return s.String()
}

// SelfTest runs the command in a world and returns its card and exit status.
func (w *World) SelfTest(box string) (Scorecard, int) {
	w.T.Helper()
	cmd := w.Command(w.T.Context(), "box", "selftest", box, "--json")
	var errout strings.Builder
	cmd.Stderr = &errout
	out, _ := cmd.Output()
	var card Scorecard
	if err := json.Unmarshal(out, &card); err != nil {
		w.T.Fatalf("%v: %s%s", err, out, errout.String())
	}
	return card, cmd.ProcessState.ExitCode()
}

// IsTight fails the test unless the box is tight.
func (w *World) IsTight(box string) Scorecard {
	w.T.Helper()
	card, code := w.SelfTest(box)
	if !card.Tight || code != cli.ExitOK || card.Summary.Tight < 60 {
		w.T.Errorf("exit status %d, %d tight:\n%s", code, card.Summary.Tight, card)
	}
	if card.DurationMS > 30_000 {
		w.T.Errorf("the card took %d ms", card.DurationMS)
	}
	return card
}
