package rules

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"boxgate/api"
	apichange "boxgate/api/change"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/api/spec"
	"boxgate/api/strict"
	"boxgate/policy"
)

const leasesPath = "/v2/box/{id}/config/network-policy/leases"

// leaseView is a temporary entry of a policy.
type leaseView struct {
	Action    string `json:"action" enum:"allow deny audit" doc:"audit: the policy is audited, see setEnforcement"`
	Entry     string `json:"entry" doc:"empty with audit"`
	StartedAt int64  `json:"started_at"`
	ExpiresAt int64  `json:"expires_at"`
	ExpiresIn int64  `json:"expires_in" doc:"seconds that are left"`
	Idle      string `json:"idle,omitempty" doc:"why it has no effect beside the policy; in the answer that made it"`
}

// leasesView are all temporary entries of a policy.
type leasesView struct {
	Leases   []leaseView    `json:"leases"`
	Version  uint64         `json:"version" doc:"of the policy, also the ETag"`
	Warnings []problem.View `json:"warnings,omitempty"`
}

// leasesBody is a request for temporary entries.
type leasesBody struct {
	Action    string   `json:"action" enum:"allow deny"`
	Entries   []string `json:"entries" doc:"domains or CIDRs as in a policy"`
	ExpiresIn *int64   `json:"expires_in" doc:"seconds for which they last; 30 days at most" min:"1" max:"2592000" example:"3600"`
}

// leasesQuery selects temporary entries to end.
type leasesQuery struct {
	Action string `json:"action,omitempty" enum:"allow deny" doc:"only those with this action"`
	Entry  string `json:"entry,omitempty" doc:"only that of this destination, spelled as it was made"`
}

// Limits of one request.
const (
	mostLeaseSeconds = 30 * 24 * 3600
	mostLeaseEntries = 256
)

func viewLeases(list []api.Lease) []leaseView {
	var out []leaseView
	for _, l := range list {
		out = append(out, leaseView{l.Action(), l.Entry, l.StartedAt.Unix(), l.ExpiresAt.Unix(), int64((l.Left + time.Second - 1) / time.Second), l.Idle})
	}
	return out
}

func viewLeaseState(s api.PolicyState) rest.Reply {
	view := leasesView{Leases: viewLeases(s.Leases), Version: s.Version, Warnings: problem.Views(s.Warnings)}
	if view.Leases == nil {
		view.Leases = []leaseView{}
	}
	return rest.Reply{Body: view, Version: s.Version}
}

func (b *leasesBody) request() (api.LeaseRequest, error) {
	switch {
	case b.Action != api.ActionAllow && b.Action != api.ActionDeny:
		return api.LeaseRequest{}, problem.Invalid("/action", "must be allow or deny")
	case len(b.Entries) == 0 || len(b.Entries) > mostLeaseEntries:
		return api.LeaseRequest{}, problem.Invalid("/entries", "must have between 1 and %d destinations", mostLeaseEntries)
	case b.ExpiresIn == nil || *b.ExpiresIn < 1 || *b.ExpiresIn > mostLeaseSeconds:
		return api.LeaseRequest{}, problem.Invalid("/expires_in", "must be between 1 and %d seconds", mostLeaseSeconds)
	}
	var p problem.List
	spec.Entries(&p, "/entries", b.Entries, mostLeaseEntries)
	if err := p.Err(); err != nil {
		return api.LeaseRequest{}, err
	}
	return api.LeaseRequest{Allow: b.Action == api.ActionAllow, Entries: b.Entries, Lasts: time.Duration(*b.ExpiresIn) * time.Second}, nil
}

func (e *Endpoints) getLeases(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	return e.policyOf(r, viewLeaseState)
}

// policyOf returns a box's policy in the form of view.
func (e *Endpoints) policyOf(r *http.Request, view func(api.PolicyState) rest.Reply) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	state, err := e.Host.Policy(r.Context(), box.ID)
	if err != nil {
		return rest.Reply{}, err
	}
	return view(state), nil
}

// changePolicyOf changes a box's policy, on condition of the header If-Match, and returns it in the form of view. what describes
// the change in the box's history.
func (e *Endpoints) changePolicyOf(r *http.Request, id policy.BoxID, what string, view func(api.PolicyState) rest.Reply, change func(ctx context.Context, match *uint64) (api.PolicyState, error)) (rest.Reply, error) {
	match, err := rest.IfMatch(r)
	if err != nil {
		return rest.Reply{}, err
	}
	state, err := change(r.Context(), match)
	if err != nil {
		return rest.Reply{}, err
	}
	e.History.Log(id, "info", "user", "%s, version %d", what, state.Version)
	reply := view(state)
	reply.Change = apichange.OfPolicy(id, state)
	return reply, nil
}

func (e *Endpoints) addLeases(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	var body leasesBody
	if err := e.Bodies.Decode(w, r, &body); err != nil {
		return rest.Reply{}, err
	}
	req, err := body.request()
	if err != nil {
		return rest.Reply{}, err
	}
	what := fmt.Sprintf("%d temporary entries (%s) of the network policy for %v", len(req.Entries), body.Action, req.Lasts)
	reply, err := e.changePolicyOf(r, box.ID, what, viewLeaseState, func(ctx context.Context, match *uint64) (api.PolicyState, error) {
		return e.Host.AddLeases(ctx, box.ID, req, match)
	})
	reply.Status = http.StatusCreated
	return reply, err
}

func (e *Endpoints) endLeases(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	var q leasesQuery
	if err := rest.Query(r, &q); err != nil {
		return rest.Reply{}, err
	}
	if q.Action != "" && q.Action != api.ActionAllow && q.Action != api.ActionDeny {
		return rest.Reply{}, problem.Refuse(http.StatusUnprocessableEntity, `query parameter "action" must be allow or deny`)
	}
	matches := func(l api.LeaseEntry) bool {
		return (q.Action == "" || q.Action == l.Action()) && (q.Entry == "" || q.Entry == l.Entry)
	}
	return e.changePolicyOf(r, box.ID, "temporary entries of the network policy ended", viewLeaseState, func(ctx context.Context, match *uint64) (api.PolicyState, error) {
		return e.Host.EndLeases(ctx, box.ID, matches, match)
	})
}

// takeLeases takes the temporary entries that go on out of the body of a policy; nil if it does not say which.
func (m members) takeLeases() ([]byte, *[]api.LeaseEntry, error) {
	if m.fields["leases"] == nil {
		return m.text, nil, nil
	}
	var list []spec.LeaseEntry
	if err := strict.Unmarshal(m.fields["leases"], &list); err != nil {
		return nil, nil, problem.Invalid("/leases", "must be a list of entries as they were read: action and entry")
	}
	keep := []api.LeaseEntry{}
	for i, l := range list {
		if l.Action != api.ActionAllow && l.Action != api.ActionDeny && l.Action != api.ActionAudit {
			return nil, nil, problem.Invalid(fmt.Sprintf("/leases/%d/action", i), "must be allow, deny or audit")
		}
		keep = append(keep, api.LeaseEntry{Allow: l.Action != api.ActionDeny, Audit: l.Action == api.ActionAudit, Entry: l.Entry})
	}
	rest, err := m.without("leases")
	return rest, &keep, err
}
