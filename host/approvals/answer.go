package approvals

import (
	"cmp"
	"context"
	"encoding/json"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	apichange "boxgate/api/change"
	"boxgate/audit/trail"
	"boxgate/host/change"
	"boxgate/internal/fault"
	"boxgate/policy"
	"boxgate/store"
)

// AnswerApproval answers an open request of a box. An approval applies the candidate with the given digest or has no effect: the error is
// an [api.ErrConflict] if the effect is another one by now, or if the request was answered. The policy is nil unless it was changed.
func (s *Service) AnswerApproval(ctx context.Context, id policy.BoxID, approval string, given api.ApprovalAnswer) (api.Approval, *api.PolicyState, error) {
	if err := checkText("/reason", given.Reason); err != nil {
		return api.Approval{}, nil, err
	}
	b, err := s.Boxes.Find(id)
	if err != nil {
		return api.Approval{}, nil, err
	}
	if err := s.mayAnswer(api.CallerOf(ctx), b.View()); err != nil {
		return api.Approval{}, nil, err
	}
	a := s.of(id)
	a.turn.Lock()
	defer a.turn.Unlock()
	found, err := s.find(id, approval)
	if err != nil {
		return api.Approval{}, nil, err
	}
	if found.State != string(api.ApprovalOpen) {
		return api.Approval{}, nil, api.Errorf(api.ErrConflict, "the request has been answered: %s", found.State)
	}
	answered, state, err := s.apply(ctx, found, given)
	if err != nil {
		return api.Approval{}, nil, err
	}
	return s.view(ctx, answered), state, nil
}

// mayAnswer returns an error if another key than that of the caller has to answer the requests of a box.
func (s *Service) mayAnswer(caller api.Caller, box api.Box) error {
	if s.FourEyes && (caller.Role == api.RoleBox || caller.Key == cmp.Or(box.CreatedBy, api.OperatorKey)) {
		return api.Errorf(api.ErrForbidden, "this gateway requires that another API key answers: %q belongs to the box that asks, or created it", caller.Name)
	}
	return nil
}

// apply changes the policy as an answer demands, and stores the answer. The caller has the turn of the box.
func (s *Service) apply(ctx context.Context, a store.Approval, given api.ApprovalAnswer) (store.Approval, *api.PolicyState, error) {
	var state *api.PolicyState
	grant := api.Grant{Destination: destinationOf(a), Digest: given.Digest}
	now := fault.Now().UTC().Round(0)
	var until time.Time
	switch given.Answer {
	case string(api.ApprovalOnce):
		grant.Lasts = cmp.Or(given.Lasts, a.Lasts, DefaultLasts)
		if grant.Lasts < time.Second || grant.Lasts > mostAnswer {
			return a, nil, change.InvalidAt("/expires_in", "must be between 1 second and 30 days")
		}
		until = now.Add(grant.Lasts)
	case string(api.ApprovalAlways):
	case string(api.ApprovalDenied):
	case api.ApprovalNeedsHuman:
		return s.leaveToHuman(ctx, a, given.Reason)
	default:
		return a, nil, change.InvalidAt("/answer", "must be once, always, denied or needs_human")
	}
	if given.Answer != string(api.ApprovalDenied) {
		after, err := s.Rules.Grant(ctx, a.Box, grant)
		if err != nil {
			return a, nil, err
		}
		state = &after
	}
	caller := api.CallerOf(ctx)
	stored, err := s.Store.Change(a.Box, a.ID, func(r *store.Approval) error {
		if r.State != string(api.ApprovalOpen) {
			return errAnswered
		}
		r.State, r.Answer, r.Key, r.KeyName, r.ClosedAt, r.Until = given.Answer, given.Reason, caller.Key, caller.Name, now, until
		if state != nil {
			r.Version, r.Candidate = state.Version, given.Digest
		}
		return nil
	})
	if err != nil && state == nil {
		return a, nil, err
	}
	if err != nil { // the access is there, and the trail has to show it
		s.Log.Error("an approval is in force, but its request could not be marked as answered", zap.String("box", string(a.Box)), zap.String("approval", a.ID), zap.Error(err))
		stored = a
	}
	s.of(a.Box).note(stored)
	s.counts.answered.WithLabelValues(given.Answer, byOf(caller)).Inc()
	s.Log.Info("a request of a box for access was answered", zap.String("box", string(a.Box)), zap.String("approval", a.ID), zap.String("answer", given.Answer), zap.String("key", caller.Name))
	s.of(a.Box).notify()
	return stored, state, nil
}

// leaveToHuman records that a reviewer does not answer a request itself.
func (s *Service) leaveToHuman(ctx context.Context, a store.Approval, why string) (store.Approval, *api.PolicyState, error) {
	stored, err := s.Store.Change(a.Box, a.ID, func(r *store.Approval) error {
		if r.State != string(api.ApprovalOpen) {
			return errAnswered
		}
		r.Human = why
		return nil
	})
	if err == nil {
		s.counts.answered.WithLabelValues(api.ApprovalNeedsHuman, byOf(api.CallerOf(ctx))).Inc()
	}
	s.of(a.Box).notify()
	return stored, nil, err
}

// record writes an answer that no API call has given to the audit trail.
func (s *Service) record(a api.Approval, by string, given api.ApprovalAnswer, state *api.PolicyState) {
	e := trail.Entry{Kind: trail.Policy, Box: a.Box, Key: by, Note: "answered a request of the box for access"}
	if state != nil {
		e.PolicyVersion = state.Version
	}
	if data, err := json.Marshal(apichange.OfApproval(a, given, state).What); err == nil {
		e.Change = trail.Change{RawMessage: data}
	}
	if _, err := s.Trail.Append(e); err != nil {
		s.Log.Error("an answer to a request of a box for access is not in the audit trail", zap.String("box", string(a.Box)), zap.String("approval", a.ID), zap.Error(err))
	}
}
