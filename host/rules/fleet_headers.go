package rules

import (
	"context"
	"errors"
	"fmt"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/fleet"
	"boxgate/fleet/shared"
	"boxgate/host/change"
	"boxgate/host/state"
	"boxgate/policy"
	"boxgate/policy/document"
	"boxgate/store"
)

// FleetHeaders has the header rules of the fleet; implemented by [boxgate/fleet/node.Shared].
type FleetHeaders interface {
	// OpenHeaders opens the rules among the objects of their kind.
	OpenHeaders(objects map[string][]byte) (shared.HeaderRules, error)
	// ChangeHeaders replaces the rules, and returns when they are in force on every host with a lease.
	ChangeHeaders(ctx context.Context, least uint64, check func(version uint64) error, document []byte) (version uint64, err error)
	// Founding is the ID of the fleet's founding: rules of another fleet are forgotten.
	Founding() string
	// Fenced reports whether the rules must not be used. It does not block.
	Fenced() bool
}

// fleetFence is closed while the rules of the fleet must not be used: past the fence of the host, while etcd has earlier rules than this host had in
// force, and while there is only the copy of an earlier run.
func (p *Service) fleetFence() bool {
	return p.fleetRules == nil || !p.fleetKnown.Load() || p.fleetBehind.Load() || p.fleetRules.Fenced()
}

// errNoFleet is the error of a call for the rules of a fleet.
var errNoFleet = api.Errorf(api.ErrNotFound, "this host is not a member of a fleet: fleet.name is not set")

// FleetHeaders implements the Host of [boxgate/api/rules].
func (p *Service) FleetHeaders(context.Context) (api.HeaderState, error) {
	if p.fleetRules == nil {
		return api.HeaderState{}, errNoFleet
	}
	now := p.committedFleet()
	return api.HeaderState{Rules: now.Rules, Version: now.Version, Warnings: p.headerWarnings(now.Rules), Fleet: true}, nil
}

// headerWarnings tells which rules of the fleet do not apply on this host, because it has rules for the same pattern, and whether the rules
// are behind.
func (p *Service) headerWarnings(rules []policy.HeaderRule) (all []document.Problem) {
	own := map[string]bool{}
	for _, r := range p.committedGlobal().Rules {
		own[r.Pattern.WithDefaultPort(443).String()] = true
	}
	for _, r := range rules {
		if key := r.Pattern.WithDefaultPort(443).String(); own[key] {
			own[key] = false
			all = append(all, document.Problem{Pointer: document.Pointer("/attach_headers", r.Pattern.String()), Message: "has a global rule of this host, which replaces the fleet's here"})
		}
	}
	if p.fleetBehind.Load() {
		all = append(all, document.Problem{Message: "etcd has an earlier version than this host had in force, as after a restored backup; requests to these hosts are refused until the rules are set again"})
	}
	return all
}

// SetFleetHeaders implements the Host of [boxgate/api/rules]. The rules of the fleet are not in the history of versions.
func (p *Service) SetFleetHeaders(ctx context.Context, rules []policy.HeaderRule, ifMatch *uint64) (api.HeaderState, error) {
	if p.fleetRules == nil {
		return api.HeaderState{}, errNoFleet
	}
	text, err := store.EncodeHeaders(rules)
	if err != nil {
		return api.HeaderState{}, err
	}
	if len(text) > shared.MaxHeaderRules {
		return api.HeaderState{}, change.InvalidAt("", fmt.Sprintf("the header rules of a fleet have at most %d KiB; these have %d", shared.MaxHeaderRules>>10, len(text)>>10))
	}
	was := p.committedFleet()
	version, err := p.fleetRules.ChangeHeaders(ctx, was.Version, func(version uint64) error {
		if ifMatch != nil && *ifMatch != max(version, was.Version) {
			return api.ErrPrecondition
		}
		return nil
	}, text)
	switch {
	case err == nil:
		return api.HeaderState{Rules: rules, Version: version, Was: was.Rules, Warnings: p.headerWarnings(rules), Fleet: true}, nil
	case errors.Is(err, api.ErrPrecondition):
		return api.HeaderState{}, err
	case errors.Is(err, fleet.ErrUnreachable):
		p.log.Warn("a change of the header rules of the fleet", zap.Error(err))
		return api.HeaderState{}, api.Errorf(api.ErrUnavailable, "whether the header rules of the fleet were changed is not known, list them: %w", err)
	}
	p.log.Warn("a change of the header rules of the fleet", zap.Error(err))
	return api.HeaderState{}, api.Errorf(api.ErrUnavailable, "the header rules of the fleet: %w", err)
}

// ApplyFleetHeaders makes the rules of the fleet the ones in force on this host, as a [shared.Apply] does. Each box takes them in one step. The
// copy in the store is written first, so that a start without etcd refuses requests to their hosts. An earlier version than the one in
// force is not used, and closes the fence for the rules of the fleet, until a later one comes. It does not wait for other changes for long, as
// later ones of the fleet wait for it.
func (p *Service) ApplyFleetHeaders(objects map[string][]byte) error {
	next, err := p.fleetRules.OpenHeaders(objects)
	if err != nil {
		return err
	}
	waiting, cancel := context.WithTimeout(context.Background(), p.fleetPatience)
	defer cancel()
	if !lockWithin(waiting, &p.changingGlobal) {
		return errBusy
	}
	defer p.changingGlobal.Unlock()
	now := p.committedFleet()
	switch {
	case next.Version < now.Version:
		p.log.Error("etcd has earlier header rules of the fleet than this host had in force; requests to their hosts are refused until the rules are set again",
			zap.Uint64("version", next.Version), zap.Uint64("in force", now.Version))
		p.fleetBehind.Store(true)
		return nil
	case next.Version == 0:
		p.fleetKnown.Store(true)
		return nil
	}
	rules, err := store.DecodeHeaders(next.Document)
	if err != nil {
		return err
	}
	to := store.Headers{Rules: rules, Version: next.Version}
	if err := p.store.SetFleetHeaders(p.fleetRules.Founding(), to); err != nil {
		return err
	}
	p.setCommittedFleet(to)
	p.shared.setFleet(rules)
	if err := p.eachConnectedWithin(waiting, p.takeOrClose); err != nil {
		return err
	}
	p.fleetBehind.Store(false)
	p.fleetKnown.Store(true)
	return nil
}

// takeOrClose applies the shared inputs to a box. One that fails gets its stored policy with them, and if that fails too it is closed: rules of
// the fleet are not rolled back for one box. An error means that it could not be closed. The caller holds the lock of b.
func (p *Service) takeOrClose(b *state.Box) error {
	ctx, cancel := change.Detach(context.Background())
	defer cancel()
	err := p.contain(b, func() error { return p.recompile(ctx, b) })
	if err == nil {
		return nil
	}
	p.log.Error("a box could not take the header rules of the fleet", zap.String("box", string(b.ID)), zap.Error(err))
	if p.contain(b, func() error { return p.tryStored(b) }) == nil {
		return nil
	}
	return p.closeBox(b)
}

// loadFleetHeaders reads the copy of the fleet's rules at the start. They are in force, behind the fence, until the host has followed the fleet. A host
// without a fleet, or of another one, forgets them.
func (p *Service) loadFleetHeaders() error {
	founding, stored, err := p.store.FleetHeaders()
	switch {
	case err != nil:
		return err
	case p.fleetRules == nil || founding != p.fleetRules.Founding():
		if founding == "" {
			return nil
		}
		return p.store.SetFleetHeaders("", store.Headers{})
	}
	p.setCommittedFleet(stored)
	p.shared.setFleet(stored.Rules)
	return nil
}

func (p *Service) committedFleet() store.Headers {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ofFleet
}

func (p *Service) setCommittedFleet(h store.Headers) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ofFleet = h
}
