// Package report renders the results of the benchmarks: tables of medians and of per-round ratios, and plots.
package report

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"boxgate/bench/scenario"
	"boxgate/bench/stat"
)

// Report is the results of a run.
type Report struct {
	Date, Revision, Machine, Load string
	Form                          scenario.Form
	Scenarios                     []scenario.Scenario
	Programs                      []Version // in the order of the tables
	Samples                       []scenario.Sample
	Ours                          string // the program compared with the others
}

// Version is a program of the run. An empty version means that it was not found.
type Version struct{ Name, Version string }

// key names a row.
type key struct{ scenario, name, program string }

// row holds the results of one program in one case.
type row struct {
	cost, rate, p50, p99 map[stat.Round]float64
	failures             []string
	points               map[float64][]float64 // for memory: costs by number of connections
}

func newRow() *row {
	return &row{
		cost: map[stat.Round]float64{}, rate: map[stat.Round]float64{}, p50: map[stat.Round]float64{}, p99: map[stat.Round]float64{}, points: map[float64][]float64{},
	}
}

// rows collects the samples. The tables show the step of a memory measurement with the most connections.
func (r *Report) rows() map[key]*row {
	most := map[key]float64{}
	out := map[key]*row{}
	for _, s := range r.Samples {
		k := key{s.Scenario, s.Case, s.Program}
		if out[k] == nil {
			out[k] = newRow()
		}
		most[k] = max(most[k], s.Conns)
	}
	for _, s := range r.Samples {
		k := key{s.Scenario, s.Case, s.Program}
		out[k].add(s, s.Conns == most[k])
	}
	return out
}

func (w *row) add(s scenario.Sample, counts bool) {
	if s.Error != "" {
		w.failures = append(w.failures, s.Error)
		return
	}
	w.points[s.Conns] = append(w.points[s.Conns], s.Cost)
	if !counts {
		return
	}
	at := stat.Round{Start: s.Start, Number: s.Round}
	w.cost[at] = s.Cost
	w.rate[at], w.p50[at], w.p99[at] = s.Rate, s.P50, s.P99
}

// figures returns the per-round figures that a goal refers to. w may be nil.
func (w *row) figures(of scenario.Measure) map[stat.Round]float64 {
	switch {
	case w == nil:
		return nil
	case of == scenario.P99:
		return w.p99
	case of == scenario.Rate:
		return w.rate
	}
	return w.cost
}

// medianOf returns the median of the rounds, or NaN if there are none.
func medianOf(rounds map[stat.Round]float64) float64 {
	return stat.Median(slices.Collect(maps.Values(rounds)))
}

// median returns the median cost, or NaN.
func (w *row) median() float64 {
	if w == nil {
		return math.NaN()
	}
	return medianOf(w.cost)
}

// Markdown returns the page.
func (r *Report) Markdown() string {
	rows := r.rows()
	var b strings.Builder
	r.preface(&b)
	r.goals(&b, rows)
	for _, s := range r.Scenarios {
		r.scenario(&b, s, rows)
	}
	return b.String()
}

// introduction is written for readers new to the project.
const introduction = `boxgate is the gateway through which the sandboxes ("boxes") of AI agents reach the network. It decides about each
connection by a policy of names and addresses. Then it forwards it in the kernel, passes it on unread, or intercepts it: it
ends the TLS with a certificate of its own and sets headers, such as an API key that the box must not see. It answers the
boxes' DNS queries and publishes their servers. Here it is measured as it ships, from inside a box, beside programs that do
one of these things each.`

func (r *Report) preface(b *strings.Builder) {
	fmt.Fprintf(b, "# Benchmarks\n\n%s\n\nWritten by `make bench`: change nothing here. [How it measures](benchmarking.md).\n\n", introduction)
	fmt.Fprintf(b, "- %s, revision %s, %s form: %d rounds\n- %s; load average at the start %s\n", r.Date, r.Revision, r.Form.Name, r.Form.Rounds, r.Machine, r.Load)
	var have, missing []string
	for _, v := range r.Programs {
		if v.Version == "" {
			missing = append(missing, v.Name)
		} else {
			have = append(have, v.Name+" "+v.Version)
		}
	}
	fmt.Fprintf(b, "- %s\n", strings.Join(have, ", "))
	if len(missing) > 0 {
		fmt.Fprintf(b, "- **Missing, and so not measured:** %s\n", strings.Join(missing, ", "))
	}
	fmt.Fprintf(b, "\nOnly the ratios are results: absolute figures are those of one machine in one hour. A ratio is %s's cost divided by the other's, "+
		"round by round; the median is given, with the lowest and the highest. Below 1, %s costs less. "+
		"CPU is that of the program alone; the time of the kernel's interrupts, the load generator and the origin is not in it. "+
		"The rows of each case are in the order of their costs, so that whatever stands above **%s** beats it. "+
		"Throughput, p50 and p99 are those of the whole chain on shared processors.\n", r.Ours, r.Ours, r.Ours)
}

func ratioText(r stat.Ratio) string {
	if r.Rounds == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f (%.2f–%.2f)", r.Median, r.Low, r.High)
}

// scenario writes a section if any of its cases was measured.
func (r *Report) scenario(b *strings.Builder, s scenario.Scenario, rows map[key]*row) {
	var lines []string
	for _, c := range s.Cases {
		lines = append(lines, r.caseLines(s, c, rows)...)
	}
	if len(lines) == 0 {
		return
	}
	fmt.Fprintf(b, "\n## %s: %s\n\n%s\n\n", s.ID, s.Title, s.Note)
	fmt.Fprintf(b, "| case | program | %s | %s ÷ it | per second | p50 µs | p99 µs |\n|---|---|---:|---:|---:|---:|---:|\n%s", s.Cost, r.Ours, strings.Join(lines, ""))
	for _, p := range r.plots(s, rows) {
		fmt.Fprintf(b, "\n![%s](benchmarks/%s)\n", p.Title, p.file)
	}
}

// caseLines returns the rows of one case, the cheapest first. The row without a proxy, which costs nothing, is last.
func (r *Report) caseLines(s scenario.Scenario, c scenario.Case, rows map[key]*row) (lines []string) {
	ours := rows[key{s.ID, c.Name, r.Ours}]
	var present []string
	for _, p := range r.Programs {
		if rows[key{s.ID, c.Name, p.Name}] != nil {
			present = append(present, p.Name)
		}
	}
	place := func(program string) float64 {
		m := rows[key{s.ID, c.Name, program}].median()
		if program == scenario.Direct || math.IsNaN(m) {
			return math.Inf(1)
		}
		return m
	}
	slices.SortStableFunc(present, func(a, b string) int { return cmp.Compare(place(a), place(b)) })
	for _, program := range present {
		lines = append(lines, r.line(c, program, rows[key{s.ID, c.Name, program}], ours))
	}
	return lines
}

func (r *Report) line(c scenario.Case, program string, w, ours *row) string {
	cost, ratio, name := costText(w.median()), "", program
	switch {
	case program == scenario.Direct:
		cost = "–"
	case program == r.Ours:
		name = "**" + program + "**"
	case ours != nil:
		ratio = ratioText(stat.Ratios(ours.cost, w.cost))
	}
	if len(w.failures) > 0 {
		cost += fmt.Sprintf(" (%d failed: %s)", len(w.failures), escape(w.failures[0]))
	}
	label := c.Name
	for _, unit := range []string{c.Cost, c.Rate} {
		if unit != "" {
			label += ", " + unit
		}
	}
	return fmt.Sprintf("| %s | %s | %s | %s | %s | %s | %s |\n", label, name, cost, ratio, number(medianOf(w.rate)), number(medianOf(w.p50)), number(medianOf(w.p99)))
}

// escape escapes a text for a table cell.
func escape(s string) string {
	s = strings.Join(strings.Fields(strings.NewReplacer("|", "/", "<", "(", ">", ")").Replace(s)), " ")
	if len(s) > 120 {
		s = s[:120] + "…"
	}
	return s
}

// number formats three significant digits, and large numbers as integers with separators. It returns "" for 0 and NaN.
func number(v float64) string {
	switch {
	case math.IsNaN(v) || v == 0:
		return ""
	case math.Abs(v) >= 1000:
		return thousands(int64(math.Round(v)))
	case math.Abs(v) >= 100:
		return fmt.Sprintf("%.0f", v)
	case math.Abs(v) >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// costText formats a cost, which may be zero.
func costText(v float64) string {
	if v == 0 {
		return "0"
	}
	return number(v)
}

func thousands(n int64) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", thousands(n/1000), n%1000)
}

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

func compared(ours, theirs map[stat.Round]float64) (median float64, text string) {
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
			if ratio.Starts > 1 {
				line += fmt.Sprintf("  %.3f [%.3f–%.3f] in %d starts", ratio.Mean, ratio.From, ratio.To, ratio.Starts)
			}
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
