package report

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"boxgate/bench/scenario"
	"boxgate/bench/stat"
)

// goals lists the goals, met or not.
func (r *Report) goals(b *strings.Builder, rows map[key]*row) {
	var lines []string
	met := 0
	for _, s := range r.Scenarios {
		for _, g := range s.Targets {
			for _, c := range s.Cases {
				if g.Case != "" && g.Case != c.Name || !r.measured(s, c, g, rows) {
					continue
				}
				l, ok := r.goalLine(s, c, g, rows)
				lines = append(lines, l)
				if ok {
					met++
				}
			}
		}
	}
	if len(lines) > 0 {
		fmt.Fprintf(b, "\n## Targets\n\n%d of %d are met.\n\n| scenario | case | what | against | target | measured | |\n|---|---|---|---|---|---|---|\n%s",
			met, len(lines), strings.Join(lines, ""))
	}
}

// measured reports whether this run measured a program of a goal.
func (r *Report) measured(s scenario.Scenario, c scenario.Case, g scenario.Goal, rows map[key]*row) bool {
	return rows[key{s.ID, c.Name, r.Ours}] != nil || g.Peer != "" && rows[key{s.ID, c.Name, g.Peer}] != nil
}

// goalLine returns a row of the table of goals, and whether the goal is met.
func (r *Report) goalLine(s scenario.Scenario, c scenario.Case, g scenario.Goal, rows map[key]*row) (line string, met bool) {
	ours := rows[key{s.ID, c.Name, r.Ours}].figures(g.Of)
	against, measured, text := "", medianOf(ours), ""
	switch {
	case g.Peer != "":
		against = g.Peer
		measured, text = compared(ours, rows[key{s.ID, c.Name, g.Peer}].figures(g.Of))
	case g.Than != "":
		against = "its own: " + g.Than
		measured, text = compared(ours, rows[key{s.ID, g.Than, r.Ours}].figures(g.Of))
	case g.Of == scenario.Worst && len(ours) > 0:
		measured = slices.Max(slices.Collect(maps.Values(ours)))
		text = costText(measured)
	default:
		text = costText(measured)
	}
	said, met := verdict(g, measured)
	return fmt.Sprintf("| %s | %s | %s | %s | %s %s | %s | %s |\n", s.ID, c.Name, subject(s, c, g), against, relation(g), costText(g.Bound), text, said), met
}

func verdict(g scenario.Goal, measured float64) (text string, met bool) {
	met = measured <= g.Bound
	if g.Of == scenario.Rate {
		met = measured >= g.Bound
	}
	switch {
	case math.IsNaN(measured):
		return "**not measured**", false
	case met:
		return "met", true
	}
	return "**missed**", false
}

func compared(ours, theirs map[int]float64) (median float64, text string) {
	ratio := stat.Ratios(ours, theirs)
	return ratio.Median, ratioText(ratio)
}

func relation(g scenario.Goal) string {
	if g.Of == scenario.Rate {
		return "≥"
	}
	return "≤"
}

// subject names the figure of a goal.
func subject(s scenario.Scenario, c scenario.Case, g scenario.Goal) string {
	unit := c.Cost
	if unit == "" {
		unit = s.Cost
	}
	switch g.Of {
	case scenario.P99:
		return "p99, µs"
	case scenario.Rate:
		return "throughput"
	case scenario.Worst:
		return unit + ", worst round"
	}
	return unit
}
