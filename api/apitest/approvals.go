package apitest

import (
	"context"
	"slices"

	"boxgate/api"
	"boxgate/api/problem"
	"boxgate/policy"
)

// AddApproval adds an open request of a box for access. Its candidate has the digest "digest".
func (h *Host) AddApproval(a api.Approval) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	a.State, a.Candidate = api.ApprovalOpen, &api.Candidate{Digest: "digest", Opens: "TCP connections to port 443 of " + a.Host, Denied: "not_allowed", Mode: policy.ModeCustom}
	h.approvals = append(h.approvals, a)
}

// Approvals implements the Host of [boxgate/api/approvals].
func (h *Host) Approvals(_ context.Context, id policy.BoxID) ([]api.Approval, error) {
	leave, err := h.beginCall()
	defer leave()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(h.approvals), func(a api.Approval) bool { return id != "" && a.Box != id }), nil
}

// Approval implements the Host of [boxgate/api/approvals].
func (h *Host) Approval(ctx context.Context, id policy.BoxID, approval string) (api.Approval, error) {
	all, err := h.Approvals(ctx, id)
	if err != nil {
		return api.Approval{}, err
	}
	i := slices.IndexFunc(all, func(a api.Approval) bool { return a.ID == approval })
	if i < 0 {
		return api.Approval{}, api.ErrNotFound
	}
	return all[i], nil
}

// AnswerApproval implements the Host of [boxgate/api/approvals]. It changes no policy.
func (h *Host) AnswerApproval(ctx context.Context, id policy.BoxID, approval string, given api.ApprovalAnswer) (api.Approval, *api.PolicyState, error) {
	a, err := h.Approval(ctx, id, approval)
	if err != nil {
		return a, nil, err
	}
	known := []string{string(api.ApprovalOnce), string(api.ApprovalAlways), string(api.ApprovalDenied), api.ApprovalNeedsHuman}
	switch {
	case given.Reason == "":
		return a, nil, problem.Invalid("/reason", "is missing")
	case !slices.Contains(known, given.Answer):
		return a, nil, problem.Invalid("/answer", "must be once, always, denied or needs_human")
	}
	if a.State != api.ApprovalOpen || given.Answer != string(api.ApprovalDenied) && given.Digest != a.Candidate.Digest {
		return a, nil, api.ErrConflict
	}
	h.Mu.Lock()
	defer h.Mu.Unlock()
	a.State, a.Answer, a.By, a.Candidate = api.ApprovalState(given.Answer), given.Reason, api.CallerOf(ctx).Name, nil
	for i := range h.approvals {
		if h.approvals[i].ID == approval {
			h.approvals[i] = a
		}
	}
	return a, nil, nil
}

// Asks implements the Host of [boxgate/api/approvals].
func (h *Host) Asks(id policy.BoxID) bool {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	b := h.ByID[id]
	return b != nil && b.asks
}

// SetAsks implements the Host of [boxgate/api/approvals].
func (h *Host) SetAsks(_ context.Context, id policy.BoxID, on *bool) (bool, error) {
	b, leave, err := h.box(id)
	defer leave()
	if err != nil {
		return false, err
	}
	b.asks = on != nil && *on
	return b.asks, nil
}
