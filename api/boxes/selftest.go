package boxes

import (
	"net/http"
	"time"

	"boxgate/api"
	"boxgate/api/rest"
)

// selfTestView is a self-test report in JSON.
type selfTestView struct {
	Box           string              `json:"box"`
	Tight         bool                `json:"tight" doc:"no hole was found, and every probe that could have found one was run"`
	Status        string              `json:"status" enum:"tight not_tight untestable" doc:"tight; not_tight; or untestable, if the box has its own network stack: no probe was run, and reason explains why"`
	Reason        string              `json:"reason,omitempty" doc:"why the box is untestable"`
	Mode          string              `json:"mode" doc:"mode of the active policy"`
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

// selfTestProbeView is one probe of a self-test report.
type selfTestProbeView struct {
	Group    string `json:"group"`
	Attack   string `json:"attack"`
	Family   string `json:"family" enum:"ipv4 ipv6"`
	Target   string `json:"target"`
	Expected string `json:"expected"`
	Seen     string `json:"seen,omitempty"`
	Verdict  string `json:"verdict" enum:"tight hole not_run skipped"`
	Why      string `json:"why,omitempty"`
}

func selfTestViewOf(r api.SelfTestReport) selfTestView {
	v := selfTestView{
		Box: string(r.Box), Tight: r.Tight(), Status: string(r.Status()), Reason: r.Untestable, Mode: string(r.Mode), PolicyVersion: r.Version, StartedAt: r.Started,
		DurationMS: r.Duration.Milliseconds(), Probes: []selfTestProbeView{},
		Summary: selfTestSummaryView{r.Count(api.ProbeTight), r.Count(api.ProbeHole), r.Count(api.ProbeNotRun), r.Count(api.ProbeSkipped)},
	}
	for _, p := range r.Probes {
		v.Probes = append(v.Probes, selfTestProbeView{
			p.Group, p.Attack, p.Family, p.Target, p.Expected, p.Seen, string(p.Verdict), p.Why,
		})
	}
	return v
}

// selfTest runs the attacks inside the box. A hole is part of the report and does not fail the call.
func (e *Endpoints) selfTest(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	report, err := e.SelfTests.SelfTest(r.Context(), box.ID)
	if err != nil {
		return rest.Reply{}, err
	}
	return rest.Reply{Body: selfTestViewOf(report)}, nil
}
