package rules

import (
	"context"
	"errors"
	"slices"
	"time"

	"boxgate/api"
	"boxgate/host/state"
	"boxgate/observe"
	"boxgate/observe/replay"
	"boxgate/policy"
	"boxgate/policy/authority"
	"boxgate/store"
)

// replayTime bounds the work of a replay. What is not replayed by then is counted as unknown.
const replayTime = 10 * time.Second

// pair is a policy in force and a candidate, each compiled with all inputs of the box, and without the operator's ceiling and the
// quota, which would hide differences of authority.
type pair struct {
	before, after, bareBefore, bareAfter *policy.Compiled
	own                                  []policy.HeaderRule // of the box: other keys than those of the operator may see only these
}

// Replay implements the Host of [boxgate/api/rules].
func (p *Service) Replay(ctx context.Context, id policy.BoxID, set api.PolicyChange, q api.ReplayQuery, ifMatch *uint64) (api.Replay, error) {
	caller := api.CallerOf(ctx)
	if h := caller.Holder(); !h.Operator { // others wait for each other, each with one replay, and the operator for none of them
		leave, err := p.replays.Enter(ctx, h.ID)
		if err != nil {
			return api.Replay{}, err
		}
		defer leave()
		select {
		case p.replaying <- struct{}{}:
			defer func() { <-p.replaying }()
		case <-ctx.Done():
			return api.Replay{}, ctx.Err()
		}
	}
	both, err := p.candidate(ctx, id, set, q.Against, ifMatch)
	if err != nil {
		return api.Replay{}, err
	}
	var seen observe.Summary
	unobserved := p.observed == nil
	if p.observed != nil {
		seen, err = p.observed(ctx, id)
		if unobserved = errors.Is(err, api.ErrConflict); err != nil && !unobserved {
			return api.Replay{}, err
		}
	}
	difference, err := compared(ctx, both)
	if err != nil {
		return api.Replay{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, replayTime)
	defer cancel()
	if caller.Role != api.RoleAdmin && caller.Role != api.RoleReader {
		difference.HideHeaders(both.own)
	}
	return api.Replay{
		Version: both.before.Version(), Result: replay.Run(ctx, both.before, both.after, seen.Observations, q.Since), Authority: difference,
		Overflow: seen.Overflow, Lost: seen.Lost, Complete: seen.Since, Unobserved: unobserved, Warnings: both.after.Warnings(),
	}, nil
}

// compared returns the difference of authority, which takes at most replayTime.
func compared(ctx context.Context, both pair) (authority.Difference, error) {
	within, cancel := context.WithTimeout(ctx, replayTime)
	defer cancel()
	d, err := authority.CompareWithin(within, both.bareBefore, both.bareAfter)
	if err != nil && ctx.Err() == nil {
		err = api.Errorf(api.ErrUnavailable, "the policies have too many names and ports to compare them within %s", replayTime)
	}
	return d, err
}

// candidate compiles a change of a policy in the same way as [Service.SetPolicy] does, and makes none. It is compared with
// the policy in force, or with the version against.
func (p *Service) candidate(ctx context.Context, id policy.BoxID, set api.PolicyChange, against uint64, ifMatch *uint64) (pair, error) {
	b, err := p.lockToFollow(ctx, id)
	if err != nil {
		return pair{}, err
	}
	defer b.Unlock()
	defer p.shared.named.changing.RUnlock()
	if set.Named != "" {
		if set.Spec, err = p.shared.named.specFor(set.Named, "/named", b.Record.Attached); err != nil {
			return pair{}, err
		}
	}
	return p.pairLocked(b, set, against, ifMatch)
}

// pairLocked compiles the policy in force, or an earlier version of it, and a candidate. The texts of versions have no temporary
// entries, so neither side has any then. The caller holds the lock of b.
func (p *Service) pairLocked(b *state.Box, set api.PolicyChange, against uint64, ifMatch *uint64) (both pair, err error) {
	_, in, err := p.editedLocked(b, ifMatch, editOf(set))
	if err != nil {
		return pair{}, err
	}
	if in.headers, err = headersOf(b, set); err != nil {
		return pair{}, err
	}
	now := p.shared.inputsOf(b)
	if against != 0 {
		if now.spec, err = p.pastSpec(b.ID, against); err != nil {
			return pair{}, err
		}
		now.version, now.leases, in.leases = against, nil, nil
	}
	if both.after, err = in.compile(); err != nil {
		return pair{}, err
	}
	if both.before = b.Policy.Load(); both.before == nil || against != 0 { // paused, or an earlier version
		if both.before, err = now.compile(); err != nil {
			return pair{}, err
		}
	}
	now.ceiling, now.spent, in.ceiling, in.spent = nil, false, nil, false
	if both.bareBefore, err = now.compile(); err != nil {
		return pair{}, err
	}
	both.own = slices.Concat(now.headers, in.headers)
	both.bareAfter, err = in.compile()
	return both, err
}

// pastSpec returns the policy of a box in one of its versions.
func (p *Service) pastSpec(id policy.BoxID, version uint64) (past policy.Spec, err error) {
	past, err = p.store.PastPolicy(id, version)
	if errors.Is(err, store.ErrNotFound) {
		err = api.Errorf(api.ErrNotFound, "the history of box %s has no version %d of its policy", id, version)
	}
	return past, err
}
