package rules

import (
	"context"

	"boxgate/api"
	"boxgate/host/change"
	"boxgate/host/state"
	"boxgate/policy"
	"boxgate/store"
	"boxgate/store/history"
)

// This part replaces the policy and the header rules of a box in one change. Both are compiled into one policy, which the proxy
// and DNS reach by one pointer, and are staged and committed in one transaction each: a request, a restart and the history see
// the old pair or the new one.

// Network implements the Host of [boxgate/api/rules].
func (p *Service) Network(_ context.Context, id policy.BoxID) (api.PolicyState, error) {
	b, err := p.boxes.Lock(id) // so that both are of the same change
	if err != nil {
		return api.PolicyState{}, err
	}
	defer b.Unlock()
	return p.networkOf(b), nil
}

// networkOf returns the policy of a box with its header rules. The caller holds the lock of b.
func (p *Service) networkOf(b *state.Box) api.PolicyState {
	s, headers := p.stateOf(b), b.HeaderState()
	s.Headers = &headers
	return s
}

// headersOf returns the box's own header rules after a change of its policy. The error is [api.ErrPrecondition] if the change is
// for another version of them. The caller holds the lock of b.
func headersOf(b *state.Box, set api.PolicyChange) ([]policy.HeaderRule, error) {
	if set.Headers == nil {
		return b.Headers, nil
	}
	if match := set.Headers.IfMatch; match != nil && *match != b.HeadersVersion {
		return nil, api.ErrPrecondition
	}
	return set.Headers.Rules, nil
}

// nextHeaders returns header rules with the version that follows all earlier ones of the box, also versions that were rolled back.
// The caller holds the lock of b.
func (p *Service) nextHeaders(b *state.Box, rules []policy.HeaderRule) (store.Headers, error) {
	last, err := p.store.LastHeadersVersion(b.ID)
	if err != nil {
		return store.Headers{}, change.NotStored(p.log, "the header rules of box "+string(b.ID)+" could not be stored, nothing was changed", err)
	}
	return store.Headers{Rules: rules, Version: max(b.HeadersVersion, last) + 1}, nil
}

// changeNetworkLocked replaces the policy and the header rules of a box that the caller has locked. After an error, both are the
// old ones.
func (p *Service) changeNetworkLocked(ctx context.Context, b *state.Box, ifMatch *uint64, set api.PolicyChange) (api.PolicyState, error) {
	if err := p.storeEnded(b); err != nil {
		return api.PolicyState{}, change.NotStored(p.log, "the policy of box "+string(b.ID)+" could not be stored, nothing was changed", err)
	}
	was, before := p.networkOf(b), b.Leases
	next, in, err := p.editedLocked(b, ifMatch, editOf(set))
	if err != nil {
		return api.PolicyState{}, err
	}
	if in.headers, err = headersOf(b, set); err != nil {
		return api.PolicyState{}, err
	}
	headers, err := p.nextHeaders(b, in.headers)
	if err != nil {
		return api.PolicyState{}, err
	}
	compiled, err := in.compile()
	if err != nil {
		return api.PolicyState{}, err
	}
	b.LastVersion = next.Version
	err = change.Apply(ctx, p.log, change.Change{
		What:    "the policy and the header rules of box " + string(b.ID),
		Stage:   func() error { return p.store.StageNetwork(b.ID, next, headers, change.OriginOf(ctx, history.Replaced)) },
		Enforce: func(ctx context.Context) error { return p.Enforce(ctx, b, compiled) },
		Commit: func() error {
			if err := p.store.CommitNetwork(b.ID); err != nil {
				return err
			}
			b.SetPolicy(next)
			b.Headers, b.HeadersVersion = headers.Rules, headers.Version
			return nil
		},
		Abort: func() error { return p.store.AbortNetwork(b.ID) },
		ApplyStored: func() (bool, error) {
			err := p.applyStored(b)
			return b.Version == next.Version && b.HeadersVersion == headers.Version, err
		},
	})
	if err != nil {
		return api.PolicyState{}, err
	}
	b.Publish()
	p.noteLeases(b, before)
	state := p.networkOf(b)
	state.Was, state.Headers.Was = &was, was.Headers.Rules
	return state, nil
}
