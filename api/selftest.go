package api

import (
	"time"

	"boxgate/policy"
)

// SelfTestVerdict is the outcome of one probe of a self-test.
type SelfTestVerdict string

// The verdicts.
const (
	ProbeTight   SelfTestVerdict = "tight"   // refused as the policy promises, and logged
	ProbeHole    SelfTestVerdict = "hole"    // traffic got through, or the refusal was not the promised one
	ProbeNotRun  SelfTestVerdict = "not_run" // could not be run, so the result is unknown
	ProbeSkipped SelfTestVerdict = "skipped" // does not apply: the policy allows the target, or has no such rule
)

// SelfTestProbe is one line of the scorecard: one attack, tried over one address family.
type SelfTestProbe struct {
	Group    string
	Attack   string
	Family   string // "ipv4" or "ipv6"
	Target   string // an address, an address and port, or a name
	Expected string // the promise of the active policy
	Seen     string // observations of the box and entries of the log
	Verdict  SelfTestVerdict
	Why      string // for every verdict except ProbeTight
}

// SelfTestReport is a scorecard.
type SelfTestReport struct {
	Box      policy.BoxID
	Mode     policy.Mode // of the policy that was tested
	Version  uint64      // of that policy
	Started  time.Time
	Duration time.Duration
	Probes   []SelfTestProbe

	// Untestable is why the box cannot be tested from its network namespace; no probe was sent then. Empty if it was
	// tested.
	Untestable string
}

// SelfTestStatus is the result of a scorecard.
type SelfTestStatus string

// The statuses. Only SelfTestTight is a pass.
const (
	SelfTestTight      SelfTestStatus = "tight"
	SelfTestNotTight   SelfTestStatus = "not_tight"  // a probe found a hole, or a probe that could have found one was not run
	SelfTestUntestable SelfTestStatus = "untestable" // no probe was run
)

// Status returns the result of the scorecard.
func (r SelfTestReport) Status() SelfTestStatus {
	switch {
	case r.Untestable != "":
		return SelfTestUntestable
	case r.Tight():
		return SelfTestTight
	default:
		return SelfTestNotTight
	}
}

// Count returns the number of probes with the verdict.
func (r SelfTestReport) Count(v SelfTestVerdict) int {
	n := 0
	for _, p := range r.Probes {
		if p.Verdict == v {
			n++
		}
	}
	return n
}

// Tight reports whether every probe was run or did not apply, no probe found a hole, and at least one was run.
func (r SelfTestReport) Tight() bool {
	return r.Untestable == "" && r.Count(ProbeHole) == 0 && r.Count(ProbeNotRun) == 0 && r.Count(ProbeTight) > 0
}
