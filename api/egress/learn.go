package egress

import (
	"net/http"
	"net/netip"
	"slices"
	"time"

	"boxgate/api"
	"boxgate/api/rest"
	"boxgate/observe"
	"boxgate/policy"
	"boxgate/policy/learn"
	"boxgate/policy/name"
)

// learnQuery selects the traffic that a policy is proposed for.
type learnQuery struct {
	Since string `json:"since,omitempty" doc:"a time, Unix seconds, or a duration back from now; only destinations that were reached at or after it" example:"48h"`
}

// learnedView is a proposed policy in JSON.
type learnedView struct {
	learn.Proposal
	Audited  bool       `json:"audited" doc:"the policy is audited; otherwise only allowed destinations were reached"`
	Overflow uint64     `json:"overflow" doc:"decisions that are not considered, because the box has as many different ones as it may have"`
	Lost     uint64     `json:"lost" doc:"decisions that are not considered, because they arrived faster than they could be summed up"`
	Since    *time.Time `json:"complete_since,omitempty" doc:"older traffic may be missing, for its age or for space"`
}

// learned proposes a policy for the traffic of a box.
func (e *Endpoints) learned(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	var q learnQuery
	if err := rest.Query(r, &q); err != nil {
		return rest.Reply{}, err
	}
	window, err := rest.Window(q.Since, "")
	if err != nil {
		return rest.Reply{}, err
	}
	s, err := e.Host.Observations(r.Context(), box.ID)
	if err != nil {
		return rest.Reply{}, err
	}
	var seen []learn.Seen
	for i := range s.Observations {
		if o := &s.Observations[i]; !o.Last.Before(window.Since) {
			seen = append(seen, seenIn(o)...)
		}
	}
	view := learnedView{Proposal: learn.Propose(box.Policy.Spec, seen), Overflow: s.Overflow, Lost: s.Lost}
	view.Audited = slices.ContainsFunc(box.Policy.Leases, func(l api.Lease) bool { return l.Audit })
	if !s.Since.IsZero() {
		view.Since = &s.Since
	}
	return rest.Reply{Body: view}, nil
}

// seenIn returns the reached destinations of an observation. A look-up alone reaches none.
func seenIn(o *observe.Observation) []learn.Seen {
	if o.Verdict != policy.Allow || o.Count == 0 || o.Reason == name.ReasonUnnamed || o.Reason == name.ReasonGateway {
		return nil
	}
	if o.Stage != policy.StageConn && o.Stage != policy.StageHTTP && o.Stage != policy.StageKernel {
		return nil
	}
	s := learn.Seen{
		Destination: learn.Destination{Name: o.Name, Addr: o.Addr, Port: o.Port, Protocol: o.Protocol},
		Method:      o.Method, Paths: o.Paths, Shape: o.Shape, More: o.More, Count: o.Count, First: o.First, Last: o.Last,
	}
	switch {
	case o.Reason == name.ReasonWouldDeny:
		s.Refusal = o.Rule
	case o.Reason == name.ReasonAllowedCIDR:
		s.Entry = o.Rule
	}
	claimed := o.Reason == name.ReasonNotDenied && policy.IsOfCeiling(o.Rule) // an entry of allowed_cidrs has allowed it under any name
	if _, err := name.Parse(o.Name); err == nil && !claimed && (o.Protocol == policy.TCP || o.Protocol == "") {
		return []learn.Seen{s}
	}
	addrs := o.Addrs
	if o.Addr.IsValid() {
		addrs = []netip.Addr{o.Addr}
	}
	var list []learn.Seen
	for _, a := range addrs { // a name of UDP is only a guess, and policies judge it by address
		s.Name, s.Addr = "", a
		list = append(list, s)
	}
	return list
}
