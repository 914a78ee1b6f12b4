package host

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/internal/fault"
	"boxgate/policy"
)

// Policy implements [api.Host].
func (h *Host) Policy(_ context.Context, id policy.BoxID) (api.PolicyState, error) {
	b, err := h.find(id)
	if err != nil {
		return api.PolicyState{}, err
	}
	return b.shown.Load().Policy, nil
}

// SetPolicy implements [api.Host]: compile, stage in the store, put in force, commit. A failure before the new policy is
// in force changes nothing; a failure after it puts the old one back.
func (h *Host) SetPolicy(ctx context.Context, id policy.BoxID, spec policy.Spec, ifMatch *uint64) (api.PolicyState, error) {
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
	in := h.inputs(b)
	in.spec, in.version = spec, version
	next, err := in.compile()
	if err != nil {
		return api.PolicyState{}, err
	}
	ctx, cancel := begun(ctx)
	defer cancel()
	b.lastVersion = version
	if err := h.guarded(b, func() error { return h.replacePolicy(ctx, b, spec, next) }); err != nil {
		return api.PolicyState{}, err
	}
	b.publish()
	return b.policyState(), nil
}

// replacePolicy stages, enforces and commits. The caller holds b.mu.
func (h *Host) replacePolicy(ctx context.Context, b *box, spec policy.Spec, next *policy.Compiled) error {
	if err := h.store.StagePolicy(b.ID, spec, next.Version()); err != nil {
		return h.notStored("the policy could not be stored, nothing was changed", err)
	}
	err := fault.At(ctx, "policy: staged")
	if err == nil {
		err = h.enforce(ctx, b, next)
	}
	if err != nil {
		return h.notInForce(b.ID, errors.Join(err, h.store.AbortPolicy(b.ID)))
	}
	if err = fault.At(ctx, "policy: in force"); err == nil {
		err = h.store.CommitPolicy(b.ID)
	}
	if err != nil {
		err = h.notStored("the policy could not be stored and was taken back", err)
		if err := errors.Join(err, h.settle(b)); b.version != next.Version() {
			return err
		}
		return nil // what failed had reached the disk all the same
	}
	fault.Mark(ctx, "policy: committed")
	b.spec, b.version = spec, next.Version()
	return nil
}

// notInForce is the answer when a change was taken back; the details are for the log.
func (h *Host) notInForce(id policy.BoxID, err error) error {
	h.log.Error("a change was taken back", zap.String("box", string(id)), zap.Error(err))
	return api.Errorf(api.ErrUnavailable, "the change could not be put in force and was taken back: %w", err)
}

// Explain implements [api.Host].
func (h *Host) Explain(_ context.Context, id policy.BoxID, req policy.Request) (policy.Decision, error) {
	b, err := h.find(id)
	if err != nil {
		return policy.Decision{}, err
	}
	req.Box = id
	return b.Policy.Load().Decide(req), nil
}

// Headers implements [api.Host].
func (h *Host) Headers(_ context.Context, id policy.BoxID) (api.HeaderState, error) {
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
func (h *Host) SetHeaders(ctx context.Context, id policy.BoxID, rules []policy.HeaderRule, ifMatch *uint64) (api.HeaderState, error) {
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
	in := h.inputs(b)
	in.headers = rules
	next, err := in.compile()
	if err != nil {
		return api.HeaderState{}, err
	}
	ctx, cancel := begun(ctx)
	defer cancel()
	if err := h.guarded(b, func() error { return h.replaceHeaders(ctx, b, rules, next) }); err != nil {
		return api.HeaderState{}, err
	}
	b.publish()
	return b.headerState(), nil
}

// replaceHeaders enforces and stores header rules. The caller holds b.mu.
func (h *Host) replaceHeaders(ctx context.Context, b *box, rules []policy.HeaderRule, next *policy.Compiled) error {
	if err := h.enforce(ctx, b, next); err != nil {
		return h.notInForce(b.ID, err)
	}
	version := b.headersVersion + 1
	err := fault.At(ctx, "headers: in force")
	if err == nil {
		err = h.store.SetHeaders(b.ID, rules, version)
	}
	if err != nil {
		err = h.notStored("the header rules could not be stored and were taken back", err)
		if err := errors.Join(err, h.settle(b)); b.headersVersion != version {
			return err
		}
		return nil // what failed had reached the disk all the same
	}
	fault.Mark(ctx, "headers: stored")
	b.headers, b.headersVersion = rules, version
	return nil
}

// GlobalHeaders implements [api.Host].
func (h *Host) GlobalHeaders(context.Context) (api.HeaderState, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return api.HeaderState{Rules: h.global, Version: h.globalVersion}, nil
}

// SetGlobalHeaders implements [api.Host]: the rules are stored, then put in force box by box. If a box does not take
// them, all get the old ones back.
func (h *Host) SetGlobalHeaders(ctx context.Context, rules []policy.HeaderRule, ifMatch *uint64) (api.HeaderState, error) {
	h.globalChange.Lock()
	defer h.globalChange.Unlock()
	h.mu.Lock()
	old, version := h.global, h.globalVersion
	h.mu.Unlock()
	if ifMatch != nil && *ifMatch != version {
		return api.HeaderState{}, api.ErrPrecondition
	}
	ctx, cancel := begun(ctx)
	defer cancel()
	if err := h.store.SetGlobalHeaders(rules, version+1); err != nil {
		return api.HeaderState{}, h.notStored("the header rules could not be stored, nothing was changed", err)
	}
	err := contained(h.log, func() error { return h.spreadGlobal(ctx, rules, version+1) })
	if err == nil {
		return api.HeaderState{Rules: rules, Version: version + 1}, nil
	}
	h.log.Error("header rules of all boxes are taken back", zap.Error(err))
	back := contained(h.log, func() error {
		if err := h.store.SetGlobalHeaders(old, version+2); err != nil {
			return err
		}
		return h.spreadGlobal(ctx, old, version+2)
	})
	if back != nil {
		return api.HeaderState{}, api.Errorf(api.ErrUnavailable, "the rules are not in force in all boxes; set them again: %w", errors.Join(err, back))
	}
	return api.HeaderState{}, api.Errorf(api.ErrUnavailable, "the rules could not be put in force and were taken back: %w", err)
}

// spreadGlobal puts stored header rules of all boxes in force.
func (h *Host) spreadGlobal(ctx context.Context, rules []policy.HeaderRule, version uint64) error {
	h.mu.Lock()
	h.global, h.globalVersion = rules, version
	h.mu.Unlock()
	fault.Mark(ctx, "global headers: stored")
	return h.recompile(ctx)
}

// recompile puts every box's policy in force again, after something that all share has changed: the global header
// rules or the protected ranges.
//
// A box that something else is being done with has its turn after the others, so that they do not wait for it.
func (h *Host) recompile(ctx context.Context) error {
	var errs []error
	next := func(b *box) {
		defer b.mu.Unlock()
		if err := h.recompileBox(ctx, b); err != nil {
			errs = append(errs, fmt.Errorf("box %s: %w", b.ID, err))
		}
	}
	var busy []*box
	for _, b := range h.all() {
		if !b.mu.TryLock() {
			busy = append(busy, b)
			continue
		}
		next(b)
	}
	for _, b := range busy {
		b.mu.Lock()
		next(b)
	}
	return errors.Join(errs...)
}

// recompileBox is recompile for one box. The caller holds b.mu.
func (h *Host) recompileBox(ctx context.Context, b *box) error {
	if b.deleted || !b.connected {
		return nil
	}
	next, err := h.inputs(b).compile()
	if err != nil {
		return err
	}
	return h.guarded(b, func() error {
		if err := fault.At(ctx, "all boxes: next one"); err != nil {
			return err
		}
		return h.enforce(ctx, b, next)
	})
}

// globalRules returns the header rules of every box.
func (h *Host) globalRules() []policy.HeaderRule {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.global)
}
