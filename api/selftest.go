package api

import (
	"net/http"
	"time"

	"boxgate/policy"
)

// SelfTestVerdict is the outcome of one probe of a self-test.
type SelfTestVerdict string

// The verdicts.
const (
	ProbeTight   SelfTestVerdict = "tight"   // refused as the policy says, and logged
	ProbeHole    SelfTestVerdict = "hole"    // something got through, or the refusal was not the one promised
	ProbeNotRun  SelfTestVerdict = "not_run" // could not be run, so nothing is known
	ProbeSkipped SelfTestVerdict = "skipped" // does not apply: the policy allows the target, or has no such rule
)

// SelfTestProbe is one line of the scorecard: one attack, tried over one address family.
type SelfTestProbe struct {
	Group    string
	Attack   string
	Family   string // "ipv4" or "ipv6"
	Target   string // where it was aimed: an address, an address and port, or a name
	Expected string // what the policy in force promises
	Seen     string // what the box saw and what was logged
	Verdict  SelfTestVerdict
	Why      string // for every verdict but ProbeTight
}

// SelfTestReport is a scorecard.
type SelfTestReport struct {
	Box      policy.BoxID
	Mode     policy.Mode // of the policy that was tested
	Version  uint64      // of that policy
	Started  time.Time
	Duration time.Duration
	Probes   []SelfTestProbe

	// Untestable says why the box cannot be tested from its network namespace, in which case no probe was sent; empty
	// if it was tested.
	Untestable string
}

// SelfTestStatus is the result of a scorecard.
type SelfTestStatus string

// The statuses. Only SelfTestTight is a pass.
const (
	SelfTestTight      SelfTestStatus = "tight"
	SelfTestNotTight   SelfTestStatus = "not_tight"  // a hole was found, or a probe that could have found one was not run
	SelfTestUntestable SelfTestStatus = "untestable" // nothing was tried
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

// Count returns how many probes have the verdict.
func (r SelfTestReport) Count(v SelfTestVerdict) int {
	n := 0
	for _, p := range r.Probes {
		if p.Verdict == v {
			n++
		}
	}
	return n
}

// Tight reports whether every probe was run or did not apply, none found a hole, and at least one was run.
func (r SelfTestReport) Tight() bool {
	return r.Untestable == "" && r.Count(ProbeHole) == 0 && r.Count(ProbeNotRun) == 0 && r.Count(ProbeTight) > 0
}

// selfTestView is a scorecard as JSON.
type selfTestView struct {
	Box           string              `json:"box"`
	Tight         bool                `json:"tight" doc:"no hole was found, and every probe that could have found one was run"`
	Status        string              `json:"status" doc:"tight; not_tight; or untestable, when the box has a network stack of its own: nothing was tried, and reason says why"`
	Reason        string              `json:"reason,omitempty" doc:"why the box is untestable"`
	Mode          string              `json:"mode" doc:"mode of the policy in force"`
	PolicyVersion uint64              `json:"policy_version"`
	StartedAt     time.Time           `json:"started_at"`
	DurationMS    int64               `json:"duration_ms"`
	Summary       selfTestSummaryView `json:"summary"`
	Probes        []selfTestProbeView `json:"probes"`
}

// selfTestSummaryView counts the probes by verdict.
type selfTestSummaryView struct {
	Tight   int `json:"tight"`
	Holes   int `json:"holes"`
	NotRun  int `json:"not_run"`
	Skipped int `json:"skipped" doc:"allowed by the policy, or not applicable to it"`
}

// selfTestProbeView is one line of a scorecard.
type selfTestProbeView struct {
	Group    string `json:"group"`
	Attack   string `json:"attack"`
	Family   string `json:"family" doc:"ipv4 or ipv6"`
	Target   string `json:"target"`
	Expected string `json:"expected"`
	Seen     string `json:"seen,omitempty"`
	Verdict  string `json:"verdict" doc:"tight, hole, not_run or skipped"`
	Why      string `json:"why,omitempty"`
}

func selfTestViewOf(r SelfTestReport) selfTestView {
	v := selfTestView{
		Box: string(r.Box), Tight: r.Tight(), Status: string(r.Status()), Reason: r.Untestable, Mode: string(r.Mode), PolicyVersion: r.Version, StartedAt: r.Started,
		DurationMS: r.Duration.Milliseconds(), Probes: []selfTestProbeView{},
		Summary: selfTestSummaryView{r.Count(ProbeTight), r.Count(ProbeHole), r.Count(ProbeNotRun), r.Count(ProbeSkipped)},
	}
	for _, p := range r.Probes {
		v.Probes = append(v.Probes, selfTestProbeView{
			p.Group, p.Attack, p.Family, p.Target, p.Expected, p.Seen, string(p.Verdict), p.Why,
		})
	}
	return v
}

// selfTest runs the attack list from inside the box. A hole is not a failure of the call: it is in the card.
func (a *API) selfTest(_ http.ResponseWriter, r *http.Request) (reply, error) {
	box, err := a.box(r)
	if err != nil {
		return reply{}, err
	}
	report, err := a.Host.SelfTest(r.Context(), box.ID)
	if err != nil {
		return reply{}, err
	}
	return reply{body: selfTestViewOf(report)}, nil
}
