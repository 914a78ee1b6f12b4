package main

import (
	"flag"
	"strings"
	"testing"

	"boxgate/bench/report"
	"boxgate/bench/scenario"
)

func TestFlags(t *testing.T) {
	none := func(*flag.FlagSet) {}
	o, err := parse("run", []string{"-long", "-rounds", "9", "-scenarios", "S1,S6"}, none)
	if err != nil || o.form.Name != "long" || o.form.Rounds != 9 {
		t.Errorf("%+v, %v", o, err)
	}
	if s := o.scenarios(); len(s) != 2 || s[0].ID != "S1" || s[1].ID != "S6" {
		t.Errorf("%d scenarios", len(s))
	}
	for _, bad := range [][]string{{"-scenarios", "S1,S99"}, {"-scenarios", "S"}, {"extra"}} {
		if _, err := parse("run", bad, none); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestGateFailsOnARegression(t *testing.T) {
	r := &report.Report{Ours: head, Scenarios: scenario.All(scenario.Tiny)[:1]}
	for name, cost := range map[string]float64{head: 12, base: 10} {
		r.Samples = append(r.Samples, scenario.Sample{Scenario: "S1", Case: "1 connection", Program: name, Cost: cost})
	}
	if err := gate(r, 1.25); err != nil {
		t.Errorf("1.2 times as much is within the threshold of 1.25: %v", err)
	}
	if err := gate(r, 1.1); err == nil || !strings.Contains(err.Error(), "regression: S1") {
		t.Errorf("1.2 times as much is beyond the threshold of 1.1: %v", err)
	}
}

// A comparison without measurements must fail.
func TestGateFailsOnNothing(t *testing.T) {
	if err := gate(&report.Report{Ours: head, Scenarios: scenario.All(scenario.Tiny)}, 1.1); err == nil {
		t.Error("a comparison of nothing passed")
	}
}

func TestUnknownCommands(t *testing.T) {
	for _, args := range [][]string{{"x"}, {"load", "extra"}, {"peer"}, {"origin"}} {
		if err := command(t.Context(), args); err == nil {
			t.Errorf("%q was accepted", args)
		}
	}
}
