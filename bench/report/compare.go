package report

import (
	"fmt"

	"boxgate/bench/stat"
)

// Compare compares the costs of two builds case by case. regressions lists the cases in which ours costs more than the
// threshold allows, or fails where the other does not.
func (r *Report) Compare(base string, threshold float64) (lines, regressions []string) {
	rows := r.rows()
	for _, s := range r.Scenarios {
		for _, c := range s.Cases {
			ours, theirs := rows[key{s.ID, c.Name, r.Ours}], rows[key{s.ID, c.Name, base}]
			if ours == nil || theirs == nil {
				continue
			}
			ratio := stat.Ratios(ours.cost, theirs.cost)
			line := fmt.Sprintf("%-4s %-18s %10s %10s  %s", s.ID, c.Name, number(theirs.median()), number(ours.median()), ratioText(ratio))
			if len(ours.failures) > 0 {
				line += fmt.Sprintf("  %d failed: %s", len(ours.failures), ours.failures[0])
			}
			lines = append(lines, line)
			if ratio.Median > threshold && !c.Coarse || len(ours.failures) > len(theirs.failures) {
				regressions = append(regressions, line)
			}
		}
	}
	return lines, regressions
}
