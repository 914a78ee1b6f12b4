package approvals

import (
	"context"
	"slices"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/boundary"
	"boxgate/internal/fault"
	"boxgate/policy"
)

// Decisions reads the decisions about boxes.
type Decisions interface {
	// RecentEvents returns the decisions still in memory.
	RecentEvents(ctx context.Context, f api.EventFilter) (api.PastEvents, error)
}

// Authorities has the certificate authorities of boxes.
type Authorities interface {
	// CA returns the certificate of a box's authority as PEM.
	CA(ctx context.Context, id policy.BoxID) ([]byte, error)
}

// Inside is the view that a box has of itself. It implements the Host of [boxgate/boundary/endpoint].
type Inside struct {
	*Service
	Decisions   Decisions
	Authorities Authorities
	// Headers returns the patterns of the header rules of a box.
	Headers func(id policy.BoxID) ([]string, error)
}

// Boundary returns the policy of a box. It contains no values of headers.
func (i *Inside) Boundary(ctx context.Context, id policy.BoxID) (boundary.Policy, error) {
	state, err := i.Rules.Policy(ctx, id)
	if err != nil {
		return boundary.Policy{}, err
	}
	view := boundary.Policy{Spec: state.Spec, Version: state.Version, Temporary: []boundary.Temporary{}}
	for _, l := range state.Leases {
		action := "deny"
		if l.Allow {
			action = "allow"
		}
		view.Temporary = append(view.Temporary, boundary.Temporary{Action: action, Entry: l.Entry, ExpiresAt: l.ExpiresAt})
	}
	if view.Credentials, err = i.Headers(id); view.Credentials == nil {
		view.Credentials = []string{}
	}
	return view, err
}

// Denials returns the latest denials of a box, oldest first. Denials of visitors to its public URLs are not about the box.
func (i *Inside) Denials(ctx context.Context, id policy.BoxID) ([]audit.Event, error) {
	past, err := i.Decisions.RecentEvents(ctx, api.EventFilter{Box: id, Denied: true})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(past.Events, func(e audit.Event) bool { return e.Stage == policy.StageURL || e.Box != id }), nil
}

// Asked returns the ID of the open request of a box for a denied destination, or "".
func (i *Inside) Asked(id policy.BoxID, d boundary.Denial) string {
	a := i.of(id)
	a.mu.Lock()
	defer a.mu.Unlock()
	for request, o := range a.open {
		if o.covers(d) && fault.Now().Before(o.ends) {
			return request
		}
	}
	return ""
}

// Approvals returns the requests of a box without the effects of approvals.
func (i *Inside) Approvals(_ context.Context, id policy.BoxID) ([]api.Approval, error) {
	return i.list(id, plain)
}

// Approval returns a request of a box without the effect of an approval.
func (i *Inside) Approval(_ context.Context, id policy.BoxID, approval string) (api.Approval, error) {
	a, err := i.find(id, approval)
	return plain(a), err
}

// CA returns the certificate of the authority that a box must trust, as PEM.
func (i *Inside) CA(ctx context.Context, id policy.BoxID) ([]byte, error) {
	return i.Authorities.CA(ctx, id)
}
