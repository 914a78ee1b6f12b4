package scenario

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
)

func decide() Scenario {
	return Scenario{
		ID: "S10", Title: "The decision itself", Cost: perCall,
		Note: "The function that every verdict comes from, without anything around it, against a policy of 1,000 names and 1,000 networks: the Go benchmark beside it in package policy, the slowest of its requests. Not measured where the source is not at hand.",
		Cases: []Case{
			{Name: "policy.Decide", Coarse: true, Own: decisions},
			{Name: "its allocations", Cost: perAlloc, Own: allocations},
		},
		Targets: []Goal{atMost("policy.Decide", "", 300), atMost("its allocations", "", 0)},
	}
}

func decisions(t Turn) ([]Sample, error) {
	ns, _, err := t.gateway.decisionCost(t)
	return []Sample{{Cost: ns, Rate: 1e9 / ns}}, err
}

func allocations(t Turn) ([]Sample, error) {
	_, count, err := t.gateway.decisionCost(t)
	return []Sample{{Cost: count}}, err
}

// decisionCost returns the result of the benchmark, which runs once per round.
func (g *gateway) decisionCost(t Turn) (ns, allocations float64, err error) {
	if g.decision.round != t.round || g.decision.ns == 0 {
		ns, allocations, err = g.decide(t.ctx)
		g.decision.round, g.decision.ns, g.decision.allocations = t.round, ns, allocations
	}
	return g.decision.ns, g.decision.allocations, err
}

// decide runs the benchmark of the gateway's source, and returns the nanoseconds and the allocations of the slowest
// request.
func (g *gateway) decide(ctx context.Context) (ns, allocations float64, err error) {
	cmd := exec.CommandContext(ctx, "go", "test", "-C", g.source, "-run", "^$", "-bench", "^BenchmarkDecide$", "-benchmem", "-benchtime", "100ms", "./policy")
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		return 0, 0, fmt.Errorf("%w: %s", err, complaint.String())
	}
	return parseBenchmark(string(out))
}

// parseBenchmark returns the highest figures in the output of a Go benchmark.
func parseBenchmark(text string) (ns, allocations float64, err error) {
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if !strings.HasPrefix(line, "Benchmark") {
			continue
		}
		for i := 1; i < len(fields); i++ {
			switch fields[i] {
			case "ns/op":
				ns = max(ns, number(fields[i-1]))
			case "allocs/op":
				allocations = max(allocations, number(fields[i-1]))
			}
		}
	}
	if ns == 0 {
		return 0, 0, fmt.Errorf("not the output of a benchmark: %q", text)
	}
	return ns, allocations, nil
}

func number(text string) float64 {
	n, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return 0
	}
	return n
}
