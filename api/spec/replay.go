package spec

import (
	"net/http"
	"time"

	"boxgate/api"
	"boxgate/api/problem"
	"boxgate/observe/replay"
	"boxgate/policy/authority"
)

// Replay is a candidate policy compared with the policy in force.
type Replay struct {
	Version    uint64               `json:"version" doc:"of the policy in force, which stays in force"`
	Traffic    replay.Result        `json:"traffic" doc:"what would change of the traffic that the box has had"`
	Authority  authority.Difference `json:"authority" doc:"what the candidate allows and the policy in force does not, and the reverse, used or not; the operator's policy.ceiling is not considered"`
	Overflow   uint64               `json:"overflow" doc:"decisions that are not in the traffic, because the box has as many observations as it may have"`
	Lost       uint64               `json:"lost" doc:"decisions that are not in the traffic, because they arrived faster than they could be summed up"`
	Complete   *time.Time           `json:"complete_since,omitempty" doc:"older traffic may be missing; absent: none is"`
	Unobserved bool                 `json:"unobserved,omitempty" doc:"the gateway keeps no observations: log.observations.size is 0"`
	Warnings   []problem.View       `json:"warnings,omitempty" doc:"of the candidate"`
}

// SchemaName is the name in the description of the API.
func (Replay) SchemaName() string { return "replayView" }

// ViewReplay returns the JSON form of a comparison.
func ViewReplay(r api.Replay) Replay {
	v := Replay{Version: r.Version, Traffic: r.Result, Authority: r.Authority, Overflow: r.Overflow, Lost: r.Lost, Unobserved: r.Unobserved,
		Warnings: problem.Views(r.Warnings)}
	if !r.Complete.IsZero() {
		v.Complete = &r.Complete
	}
	return v
}

// Since reads the query parameter since of a replay; "" is the zero time.
func Since(text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	t, err := api.ParseSince(text, time.Now())
	if err != nil {
		return t, problem.Refuse(http.StatusUnprocessableEntity, `query parameter "since" must be a time (2026-01-02T15:04:05Z), Unix seconds or a duration back from now (10m, 7d)`)
	}
	return t, nil
}
