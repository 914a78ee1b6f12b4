package report

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"

	"boxgate/bench/scenario"
)

// example returns a report in which boxgate costs half as much as one peer, three times as much as another, and one
// program fails.
func example() *Report {
	r := &Report{
		Ours: "boxgate", Date: "today", Form: scenario.Form{Name: "tiny", Rounds: 3},
		Programs: []Version{{"boxgate", "1"}, {"dear", "2"}, {"cheap", "3"}, {"broken", "4"}, {"absent", ""}, {scenario.Direct, "x"}},
		Scenarios: []scenario.Scenario{{
			ID: "S1", Title: "Requests & <more>", Cost: "µs", Cases: []scenario.Case{{Name: "few", X: 1}, {Name: "many", X: 100}},
			Targets: []scenario.Goal{{Case: "few", Peer: "dear", Of: scenario.Rate, Bound: 1}, {Case: "few", Than: "many", Bound: 1}, {Case: "few", Peer: "dear", Bound: 0.6}, {Case: "few", Peer: "cheap", Bound: 1}, {Case: "many", Peer: "broken", Bound: 1}},
		}, {ID: "S5", Title: "Memory", Cost: memoryUnit, Cases: []scenario.Case{{Name: "idle"}}, Targets: []scenario.Goal{{Bound: 16}}}},
	}
	for round := range 3 {
		slow := float64(round + 1) // each round is slower, for all programs
		for name, cost := range map[string]float64{"boxgate": 10, "dear": 20, "cheap": 10. / 3, scenario.Direct: 0} {
			for _, c := range []string{"few", "many"} {
				r.Samples = append(r.Samples, scenario.Sample{Scenario: "S1", Case: c, Program: name, Round: round, Cost: cost * slow, Rate: 12345})
			}
		}
		r.Samples = append(r.Samples, scenario.Sample{Scenario: "S1", Case: "many", Program: "broken", Round: round, Error: "status | 502\n<x>"})
	}
	for _, conns := range []float64{100, 200} {
		r.Samples = append(r.Samples, scenario.Sample{Scenario: "S5", Case: "idle", Program: "boxgate", Cost: 16, Conns: conns})
	}
	return r
}

func TestMarkdown(t *testing.T) {
	page := example().Markdown()
	for _, want := range []string{
		"**Missing, and so not measured:** absent",
		"| few | cheap | 6.67 | 3.00 (3.00–3.00) | 12,345 |",
		"| few | **boxgate** | 20.0 |  |",
		"| few | dear | 40.0 | 0.50 (0.50–0.50) |",
		"| few | no proxy | – |",
		"| many | broken |  (3 failed: status / 502 (x)) | – |",
		"| S1 | few | µs | dear | ≤ 0.60 | 0.50 (0.50–0.50) | met |",
		"| S1 | few | throughput | dear | ≥ 1.00 | 1.00 (1.00–1.00) | met |",
		"| S1 | few | µs | its own: many | ≤ 1.00 | 1.00 (1.00–1.00) | met |", "\n4 of 6 are met.\n",
		"| S1 | few | µs | cheap | ≤ 1.00 | 3.00 (3.00–3.00) | **missed** |",
		"| S1 | many | µs | broken | ≤ 1.00 | – | **not measured** |",
		"| idle | **boxgate** | 16.0 |", "| S5 | idle | KB a connection |  | ≤ 16.0 | 16.0 | met |",
		"(benchmarks/s1.svg)", "(benchmarks/s5-idle.svg)",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if cheap, dear := strings.Index(page, "| few | cheap | 6.67"), strings.Index(page, "| few | dear | 40.0"); cheap > dear {
		t.Error("the cheapest is not the first")
	}
	if t.Failed() {
		t.Log(page)
	}
}

func TestPlotsAreWellFormed(t *testing.T) {
	plots := example().Plots()
	if len(plots) != 2 {
		t.Errorf("%d plots", len(plots))
	}
	for name, svg := range plots {
		d := xml.NewDecoder(strings.NewReader(svg))
		for {
			_, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		if !strings.Contains(svg, "prefers-color-scheme:dark") || !strings.Contains(svg, ">boxgate<") || strings.Contains(svg, "NaN") {
			t.Errorf("%s: %s", name, svg)
		}
	}
}

func TestOneDearProgramDoesNotFlattenThePlot(t *testing.T) {
	p := plot{Lines: []line{{"a", []point{{1, 10}}}, {"b", []point{{1, 14}}}, {"c", []point{{1, 900}}}}}
	if top, beyond := p.ceiling(); top != 15 || len(beyond) != 1 || beyond[0] != "c" {
		t.Errorf("the axis ends at %v, beyond it %v", top, beyond)
	}
}

func TestCompare(t *testing.T) {
	r := example()
	for _, test := range []struct {
		base      string
		threshold float64
		want      int
	}{
		{"dear", 1.1, 0}, {"cheap", 1.1, 2}, {"cheap", 3.1, 0},
	} {
		lines, regressions := r.Compare(test.base, test.threshold)
		if len(lines) != 2 || len(regressions) != test.want {
			t.Errorf("%+v: %q, regressions %q", test, lines, regressions)
		}
	}
	r.Scenarios[0].Cases[0].Coarse = true
	if lines, regressions := r.Compare("cheap", 1.1); len(lines) != 2 || len(regressions) != 1 {
		t.Errorf("a coarse cost is shown and fails nothing: %q, regressions %q", lines, regressions)
	}
	r.Samples = append(r.Samples, scenario.Sample{Scenario: "S1", Case: "few", Program: "boxgate", Round: 7, Error: "broken"})
	if _, regressions := r.Compare("dear", 1.1); len(regressions) != 1 {
		t.Errorf("a failure of ours alone is no regression: %q", regressions)
	}
}

func TestNumbers(t *testing.T) {
	for v, want := range map[float64]string{0: "", 0.123: "0.12", 9.87: "9.87", 12.34: "12.3", 123.4: "123", 1234567: "1,234,567", 1000: "1,000"} {
		if got := number(v); got != want {
			t.Errorf("number(%v) = %q, want %q", v, got, want)
		}
	}
}
