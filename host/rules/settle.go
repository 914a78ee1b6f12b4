package rules

import (
	"context"
	"errors"
	"fmt"

	"go.uber.org/zap"

	"boxgate/host/change"
	"boxgate/host/enforce"
	"boxgate/host/state"
	"boxgate/policy"
)

// Enforce applies a policy to a box; see [enforce.Enforcer.Enforce]. The caller holds the lock of b.
func (p *Service) Enforce(ctx context.Context, b *state.Box, next *policy.Compiled) error {
	return p.noteClosed(b, p.net.Enforce(ctx, &b.Box, next))
}

// contain runs a step for a box and converts a panic into an error.
func (p *Service) contain(b *state.Box, step func() error) error {
	return change.Contain(p.log, step, zap.String("box", string(b.ID)))
}

// applyStored applies the stored state of a box. If that fails, it closes the box. The caller holds the lock of b.
func (p *Service) applyStored(b *state.Box) error {
	err := p.contain(b, func() error { return p.tryStored(b) })
	if err == nil {
		return nil
	}
	return errors.Join(err, p.closeBox(b))
}

// tryStored reads a box's policy and header rules from the store and applies them.
func (p *Service) tryStored(b *state.Box) error {
	if err := errors.Join(p.store.AbortPolicy(b.ID), p.store.AbortHeaders(b.ID)); err != nil {
		// E.g. on a full disk. The next change replaces the staged one, the next start drops it.
		p.log.Warn("a staged change stays in the store", zap.String("box", string(b.ID)), zap.Error(err))
	}
	stored, err := p.store.Policy(b.ID)
	if err != nil {
		return err
	}
	headers, err := p.store.Headers(b.ID)
	if err != nil {
		return err
	}
	in, leases := p.shared.inputsOf(b), p.shared.RebaseLeases(stored.Leases)
	in.spec, in.leases, in.version, in.headers = stored.Spec, p.shared.running(leases), stored.Version, headers.Rules
	next, err := in.compile()
	if err != nil {
		return err
	}
	b.Spec, b.Named, b.Leases, b.Version = stored.Spec, stored.Named, leases, stored.Version
	b.Headers, b.HeadersVersion = headers.Rules, headers.Version
	b.LastVersion = max(b.LastVersion, stored.Version)
	b.Publish()
	return p.noteClosed(b, p.net.Restore(&b.Box, next))
}

// closedProblem is the error that the API shows for a closed box.
const closedProblem = "its policy could not be applied, so it is closed; restart the gateway, or delete it"

// closeBox disconnects a box from the network because its policy cannot be applied. The caller holds the lock of b.
func (p *Service) closeBox(b *state.Box) error {
	ctx, cancel := change.DetachRollback(context.Background())
	defer cancel()
	err := p.contain(b, func() error { return p.net.Disconnect(ctx, &b.Box) })
	_ = p.noteClosed(b, errors.Join(enforce.ErrClosed, err))
	if err != nil {
		return fmt.Errorf("closing the box: %w", err)
	}
	return nil
}

// noteClosed logs and shows that a box was closed if err is [enforce.ErrClosed]. It returns err.
func (p *Service) noteClosed(b *state.Box, err error) error {
	if errors.Is(err, enforce.ErrClosed) {
		p.log.Error("a box is closed: its policy could not be applied", zap.String("box", string(b.ID)), zap.Error(err))
		b.ShowError(closedProblem)
	}
	return err
}
