package rules

import (
	"net/http"
	"reflect"

	"boxgate/api"
	"boxgate/api/rest"
	"boxgate/api/spec"
	"boxgate/policy"
)

// replayQuery selects the traffic of a replay.
type replayQuery struct {
	Since   string `json:"since,omitempty" doc:"a time, Unix seconds, or a duration back from now; only traffic seen at or after it" example:"24h"`
	Against int64  `json:"against,omitempty" doc:"a version of the policy, to compare with it instead of the policy in force" min:"1"`
}

// putPolicyQuery asks for the effect of a change instead of the change.
type putPolicyQuery struct {
	DryRun bool   `json:"dry_run,omitempty" doc:"check the change and compare it with the policy in force, without making it"`
	Since  string `json:"since,omitempty" doc:"with dry_run: a time, Unix seconds, or a duration back from now; only traffic seen at or after it" example:"24h"`
}

// setPolicyView describes the answers of setPolicy: the policy in force, or with dry_run the effect of the change.
type setPolicyView struct{}

// Forms describes the answers.
func (setPolicyView) Forms() []reflect.Type {
	return []reflect.Type{reflect.TypeFor[policyView](), reflect.TypeFor[spec.Replay]()}
}

// replay compares the policy in the body, which is that of a change, with the policy in force.
func (e *Endpoints) replay(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	var q replayQuery
	if err := rest.Query(r, &q); err != nil {
		return rest.Reply{}, err
	}
	set, match, err := e.givenChange(w, r)
	if err != nil {
		return rest.Reply{}, err
	}
	return e.compare(r, box.ID, q.Since, uint64(q.Against), set, match)
}

// compare answers with the effect of a change that is not made.
func (e *Endpoints) compare(r *http.Request, box policy.BoxID, since string, against uint64, set api.PolicyChange, match *uint64) (rest.Reply, error) {
	from, err := spec.Since(since)
	if err != nil {
		return rest.Reply{}, err
	}
	out, err := e.Host.Replay(r.Context(), box, set, api.ReplayQuery{Since: from, Against: against}, match)
	if err != nil {
		return rest.Reply{}, err
	}
	return rest.Reply{Body: spec.ViewReplay(out), Version: out.Version}, nil
}
