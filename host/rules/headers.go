package rules

import (
	"context"
	"errors"
	"slices"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/host/change"
	"boxgate/policy"
	"boxgate/store"
	"boxgate/store/history"
)

// Headers implements the Host of [boxgate/api/rules].
func (p *Service) Headers(_ context.Context, id policy.BoxID) (api.HeaderState, error) {
	b, err := p.boxes.Find(id)
	if err != nil {
		return api.HeaderState{}, err
	}
	b.Lock()
	defer b.Unlock()
	return b.HeaderState(), nil
}

// HeaderPatterns returns the patterns of the header rules that apply to a box, its own and the global ones, without duplicates.
func (p *Service) HeaderPatterns(id policy.BoxID) ([]string, error) {
	b, err := p.boxes.Lock(id)
	if err != nil {
		return nil, err
	}
	defer b.Unlock()
	var patterns []string
	for _, h := range p.shared.inputsOf(b).rules() {
		patterns = append(patterns, h.Pattern.String())
	}
	slices.Sort(patterns)
	return slices.Compact(patterns), nil
}

// SetHeaders implements the Host of [boxgate/api/rules].
func (p *Service) SetHeaders(ctx context.Context, id policy.BoxID, rules []policy.HeaderRule, ifMatch *uint64) (api.HeaderState, error) {
	b, err := p.boxes.Lock(id)
	if err != nil {
		return api.HeaderState{}, err
	}
	defer b.Unlock()
	if ifMatch != nil && *ifMatch != b.HeadersVersion {
		return api.HeaderState{}, api.ErrPrecondition
	}
	to, err := p.nextHeaders(b, rules)
	if err != nil {
		return api.HeaderState{}, err
	}
	was, version := b.Headers, to.Version
	in := p.shared.inputsOf(b)
	in.headers = rules
	next, err := in.compile()
	if err != nil {
		return api.HeaderState{}, err
	}
	err = change.Apply(ctx, p.log, change.Change{
		What:    "the header rules of box " + string(id),
		Stage:   func() error { return p.store.StageHeaders(id, rules, version, change.OriginOf(ctx, history.Replaced)) },
		Enforce: func(ctx context.Context) error { return p.Enforce(ctx, b, next) },
		Commit: func() error {
			if err := p.store.CommitHeaders(id); err != nil {
				return err
			}
			b.Headers, b.HeadersVersion = rules, version
			return nil
		},
		Abort:       func() error { return p.store.AbortHeaders(id) },
		ApplyStored: func() (bool, error) { err := p.applyStored(b); return b.HeadersVersion == version, err },
	})
	if err != nil {
		return api.HeaderState{}, err
	}
	b.Publish()
	state := b.HeaderState()
	state.Was = was
	return state, nil
}

// GlobalHeaders implements the Host of [boxgate/api/rules].
func (p *Service) GlobalHeaders(context.Context) (api.HeaderState, error) {
	g := p.committedGlobal()
	return api.HeaderState{Rules: g.Rules, Version: g.Version}, nil
}

// SetGlobalHeaders implements the Host of [boxgate/api/rules]. If any box cannot take the rules, all boxes keep the old
// ones.
func (p *Service) SetGlobalHeaders(ctx context.Context, rules []policy.HeaderRule, ifMatch *uint64) (api.HeaderState, error) {
	p.changingGlobal.Lock()
	defer p.changingGlobal.Unlock()
	old := p.committedGlobal()
	if ifMatch != nil && *ifMatch != old.Version {
		return api.HeaderState{}, api.ErrPrecondition
	}
	last, err := p.store.LastHeadersVersion("")
	if err != nil {
		return api.HeaderState{}, change.NotStored(p.log, "the header rules of all boxes could not be stored, nothing was changed", err)
	}
	next := store.Headers{Rules: rules, Version: max(old.Version, last) + 1}
	err = change.Apply(ctx, p.log, change.Change{
		What: "the header rules of all boxes",
		Stage: func() error {
			return p.store.StageGlobalHeaders(rules, next.Version, change.OriginOf(ctx, history.Replaced))
		},
		Enforce: func(ctx context.Context) error { return p.enforceGlobal(ctx, rules) },
		Commit: func() error {
			if err := p.store.CommitGlobalHeaders(); err != nil {
				return err
			}
			p.setCommittedGlobal(next)
			return nil
		},
		Abort: p.store.AbortGlobalHeaders,
		ApplyStored: func() (bool, error) {
			err := p.applyStoredGlobal()
			return p.committedGlobal().Version == next.Version, err
		},
	})
	if err != nil {
		return api.HeaderState{}, err
	}
	return api.HeaderState{Rules: rules, Version: next.Version, Was: old.Rules}, nil
}

// enforceGlobal applies global header rules to every box. On an error it applies the committed rules again.
func (p *Service) enforceGlobal(ctx context.Context, rules []policy.HeaderRule) error {
	p.shared.setGlobal(rules)
	err := p.spread(ctx)
	if err == nil {
		return nil
	}
	return errors.Join(err, p.restoreGlobal())
}

// restoreGlobal applies the committed global header rules to every box. A box that cannot take them is closed.
func (p *Service) restoreGlobal() error {
	p.shared.setGlobal(p.committedGlobal().Rules)
	return p.eachConnected(p.applyStored)
}

// applyStoredGlobal applies the stored global header rules. If the store cannot be read, it applies the last rules known to be
// committed.
func (p *Service) applyStoredGlobal() error {
	if err := p.store.AbortGlobalHeaders(); err != nil { // e.g. on a full disk; the next change replaces the staged rules, the next start drops them
		p.log.Warn("staged header rules of all boxes stay in the store", zap.Error(err))
	}
	stored, err := p.store.GlobalHeaders()
	if err == nil {
		p.setCommittedGlobal(stored)
	}
	return errors.Join(err, change.Contain(p.log, p.restoreGlobal))
}

// loadGlobal reads the committed global header rules at startup.
func (p *Service) loadGlobal() error {
	stored, err := p.store.GlobalHeaders()
	if err != nil {
		return err
	}
	p.setCommittedGlobal(stored)
	p.shared.setGlobal(stored.Rules)
	return p.loadNamed()
}

func (p *Service) committedGlobal() store.Headers {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.global
}

func (p *Service) setCommittedGlobal(h store.Headers) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.global = h
}
