package selftest

import (
	"time"

	"boxgate/policy"
)

// Verdict is the outcome of one attack. The zero value is [NotRun].
type Verdict uint8

// The verdicts.
const (
	NotRun  Verdict = iota // outcome unknown
	Tight                  // refused as the policy promises, and logged
	Hole                   // traffic got through, or the refusal was not the promised one
	Skipped                // not applicable to this policy, which allows it or has no such rule
)

// String returns the word of the scorecard.
func (v Verdict) String() string {
	switch v {
	case Tight:
		return "tight"
	case Hole:
		return "hole"
	case Skipped:
		return "skipped"
	default:
		return "not_run"
	}
}

// Line is one attack over one address family.
type Line struct {
	Group    string
	Attack   string
	Family   string // "ipv4" or "ipv6"
	Target   string
	Expected string // the promise of the active policy
	Seen     string // the answer that the box received, and the logged decision
	Verdict  Verdict
	Why      string // for every verdict but Tight
}

// Card is the outcome of a run.
type Card struct {
	Mode     policy.Mode
	Version  uint64 // of the policy that was tested
	Started  time.Time
	Duration time.Duration
	Lines    []Line
}
