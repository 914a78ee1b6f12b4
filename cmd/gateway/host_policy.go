package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/policy"
)

// Policy implements [api.Host].
func (h *host) Policy(_ context.Context, id policy.BoxID) (api.PolicyState, error) {
	b, err := h.find(id)
	if err != nil {
		return api.PolicyState{}, err
	}
	return b.shown.Load().Policy, nil
}

// SetPolicy implements [api.Host]: compile, stage in the store, put in force, commit. A failure before the new policy is
// in force changes nothing; a failure after it puts the old one back.
func (h *host) SetPolicy(ctx context.Context, id policy.BoxID, spec policy.Spec, ifMatch *uint64) (api.PolicyState, error) {
	b, err := h.find(id)
	if err != nil {
		return api.PolicyState{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.gone(); err != nil {
		return api.PolicyState{}, err
	}
	if ifMatch != nil && *ifMatch != b.version {
		return api.PolicyState{}, api.ErrPrecondition
	}
	version := b.lastVersion + 1
	next, err := policy.Compile(spec, b.rules(h.globalRules()), h.protected.Load(), version)
	if err != nil {
		return api.PolicyState{}, err
	}
	old := b.Policy.Load()
	if err := h.store.StagePolicy(id, spec, version); err != nil {
		return api.PolicyState{}, api.Errorf(api.ErrUnavailable, "the policy could not be stored, nothing was changed: %w", err)
	}
	ctx, cancel := begun(ctx)
	defer cancel()
	b.lastVersion = version
	if err := h.enforce(ctx, b, next); err != nil {
		return api.PolicyState{}, h.notInForce(id, errors.Join(err, h.store.AbortPolicy(id)))
	}
	if err := h.store.CommitPolicy(id); err != nil {
		return api.PolicyState{}, h.notInForce(id, errors.Join(err, h.restore(b, old), h.store.AbortPolicy(id)))
	}
	b.spec, b.version = spec, version
	b.publish()
	return b.policyState(), nil
}

// notInForce is the answer when a change was taken back; the details are for the log.
func (h *host) notInForce(id policy.BoxID, err error) error {
	h.log.Error("a change was taken back", zap.String("box", string(id)), zap.Error(err))
	return api.Errorf(api.ErrUnavailable, "the change could not be put in force and was taken back: %w", err)
}

// Explain implements [api.Host].
func (h *host) Explain(_ context.Context, id policy.BoxID, req policy.Request) (policy.Decision, error) {
	b, err := h.find(id)
	if err != nil {
		return policy.Decision{}, err
	}
	req.Box = id
	return b.Policy.Load().Decide(req), nil
}

// Headers implements [api.Host].
func (h *host) Headers(_ context.Context, id policy.BoxID) (api.HeaderState, error) {
	b, err := h.find(id)
	if err != nil {
		return api.HeaderState{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.headerState(), nil
}

// SetHeaders implements [api.Host]. The rules are put in force before they are stored; if storing fails, the old ones
// are put back.
func (h *host) SetHeaders(ctx context.Context, id policy.BoxID, rules []policy.HeaderRule, ifMatch *uint64) (api.HeaderState, error) {
	b, err := h.find(id)
	if err != nil {
		return api.HeaderState{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.gone(); err != nil {
		return api.HeaderState{}, err
	}
	if ifMatch != nil && *ifMatch != b.headersVersion {
		return api.HeaderState{}, api.ErrPrecondition
	}
	next, err := policy.Compile(b.spec, policy.MergeHeaders(h.globalRules(), rules), h.protected.Load(), b.version)
	if err != nil {
		return api.HeaderState{}, err
	}
	ctx, cancel := begun(ctx)
	defer cancel()
	old := b.Policy.Load()
	if err := h.enforce(ctx, b, next); err != nil {
		return api.HeaderState{}, h.notInForce(id, err)
	}
	version := b.headersVersion + 1
	if err := h.store.SetHeaders(id, rules, version); err != nil {
		return api.HeaderState{}, h.notInForce(id, errors.Join(err, h.restore(b, old)))
	}
	b.headers, b.headersVersion = rules, version
	b.publish()
	return b.headerState(), nil
}

// GlobalHeaders implements [api.Host].
func (h *host) GlobalHeaders(context.Context) (api.HeaderState, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return api.HeaderState{Rules: h.global, Version: h.globalVersion}, nil
}

// SetGlobalHeaders implements [api.Host]: the rules are stored, then put in force box by box. A box that could not take
// them is reported; it keeps the rules it had.
func (h *host) SetGlobalHeaders(ctx context.Context, rules []policy.HeaderRule, ifMatch *uint64) (api.HeaderState, error) {
	h.globalChange.Lock()
	defer h.globalChange.Unlock()
	h.mu.Lock()
	version := h.globalVersion
	h.mu.Unlock()
	if ifMatch != nil && *ifMatch != version {
		return api.HeaderState{}, api.ErrPrecondition
	}
	ctx, cancel := begun(ctx)
	defer cancel()
	if err := h.store.SetGlobalHeaders(rules, version+1); err != nil {
		return api.HeaderState{}, api.Errorf(api.ErrUnavailable, "the rules could not be stored, nothing was changed: %w", err)
	}
	h.mu.Lock()
	h.global, h.globalVersion = rules, version+1
	h.mu.Unlock()
	if err := h.recompile(ctx); err != nil {
		return api.HeaderState{}, api.Errorf(api.ErrUnavailable, "the rules are stored, but not in force everywhere; set them again: %w", err)
	}
	return api.HeaderState{Rules: rules, Version: version + 1}, nil
}

// recompile puts every box's policy in force again, after something that all share has changed: the global header
// rules or the protected ranges.
func (h *host) recompile(ctx context.Context) error {
	var errs []error
	for _, b := range h.all() {
		if err := h.recompileBox(ctx, b); err != nil {
			errs = append(errs, fmt.Errorf("box %s: %w", b.ID, err))
		}
	}
	return errors.Join(errs...)
}

func (h *host) recompileBox(ctx context.Context, b *box) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.deleted || !b.connected {
		return nil
	}
	next, err := policy.Compile(b.spec, b.rules(h.globalRules()), h.protected.Load(), b.version)
	if err != nil {
		return err
	}
	return h.enforce(ctx, b, next)
}

// globalRules returns the header rules of every box.
func (h *host) globalRules() []policy.HeaderRule {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.global)
}
