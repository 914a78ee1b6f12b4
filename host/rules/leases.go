package rules

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	apichange "boxgate/api/change"
	"boxgate/audit/trail"
	"boxgate/host/change"
	"boxgate/host/enforce"
	"boxgate/host/lease"
	"boxgate/host/state"
	"boxgate/policy"
	"boxgate/policy/amend"
	"boxgate/store"
	"boxgate/store/history"
)

// mostLeases is the maximum number of leases of a box.
const mostLeases = policy.MostBeside

// AddLeases implements the Host of [boxgate/api/rules].
func (p *Service) AddLeases(ctx context.Context, id policy.BoxID, req api.LeaseRequest, ifMatch *uint64) (api.PolicyState, error) {
	idle := map[api.LeaseEntry]string{}
	state, err := p.change(ctx, id, ifMatch, history.LeaseBegun, func(_ *state.Box, next *store.Policy) error {
		now, by := p.shared.now(), api.CallerOf(ctx).Key
		for i, text := range req.Entries {
			why, err := idleOf(next.Spec, text, req.Allow)
			if err != nil {
				return change.InvalidAt(fmt.Sprintf("/entries/%d", i), err.Error())
			}
			key := api.LeaseEntry{Allow: req.Allow, Entry: text}
			idle[key] = why
			if err := addLease(next, withKey(lease.New(req.Allow, text, req.Lasts, now), by)); err != nil {
				return err
			}
		}
		return nil
	})
	for i, l := range state.Leases {
		state.Leases[i].Idle = idle[l.LeaseEntry]
	}
	return state, err
}

// idleOf returns the reason why a temporary entry has no effect beside spec, "" if it has one.
func idleOf(spec policy.Spec, text string, allow bool) (string, error) {
	e, err := amend.ParseEntry(text)
	if err != nil {
		return "", err
	}
	return e.Idle(spec, allow)
}

// SetEnforcement implements the Host of [boxgate/api/rules].
func (p *Service) SetEnforcement(ctx context.Context, id policy.BoxID, audit time.Duration, ifMatch *uint64) (api.PolicyState, error) {
	if audit < 0 || audit > api.MaxAudit {
		return api.PolicyState{}, change.InvalidAt("/expires_in", fmt.Sprintf("must be at most %d seconds", int64(api.MaxAudit.Seconds())))
	}
	if role := api.CallerOf(ctx).Role; audit > 0 && !p.mayAudit(role) {
		return api.PolicyState{}, api.Errorf(api.ErrForbidden, "policy.audit of the configuration does not let keys with the role %s audit a policy", role)
	}
	return p.change(ctx, id, ifMatch, history.LeaseBegun, func(_ *state.Box, next *store.Policy) error {
		next.Leases = slices.DeleteFunc(next.Leases, func(l store.Lease) bool { return l.Audit })
		if audit == 0 {
			return nil
		}
		next.Leases = append(next.Leases, withKey(lease.NewAudit(audit, p.shared.now()), api.CallerOf(ctx).Key))
		if len(next.Leases) > mostLeases {
			return api.Errorf(api.ErrConflict, "a box has at most %d temporary entries; end some, or wait until they end", mostLeases)
		}
		return nil
	})
}

// mayAudit reports whether keys with a role may have a policy audited.
func (p *Service) mayAudit(role api.Role) bool {
	switch role {
	case api.RoleAdmin:
		return p.auditBy == string(api.RoleAdmin) || p.auditBy == string(api.RoleCreator) || p.auditBy == string(api.RoleBox)
	case api.RoleCreator:
		return p.auditBy == string(api.RoleCreator) || p.auditBy == string(api.RoleBox)
	case api.RoleBox:
		return p.auditBy == string(api.RoleBox)
	}
	return false
}

// EndLeases implements the Host of [boxgate/api/rules].
func (p *Service) EndLeases(ctx context.Context, id policy.BoxID, which func(api.LeaseEntry) bool, ifMatch *uint64) (api.PolicyState, error) {
	return p.change(ctx, id, ifMatch, history.LeaseEnded, func(_ *state.Box, next *store.Policy) error {
		before := len(next.Leases)
		next.Leases = slices.DeleteFunc(next.Leases, func(l store.Lease) bool { return which(leaseKey(l)) })
		if len(next.Leases) == before {
			return api.Errorf(api.ErrNotFound, "there is no such temporary entry; it may have ended")
		}
		return nil
	})
}

// keptLeases returns the leases that survive a replacement of the policy: those listed in keep, or if keep is nil, the denials.
// A client that replaces a whole policy must not open anything it did not mention, nor lift a denial it may not know
// about.
func keptLeases(running []store.Lease, keep *[]api.LeaseEntry) ([]store.Lease, error) {
	if keep == nil {
		return slices.DeleteFunc(running, func(l store.Lease) bool { return l.Allow }), nil
	}
	for i, key := range *keep {
		if !slices.ContainsFunc(running, func(l store.Lease) bool { return leaseKey(l) == key }) {
			return nil, change.InvalidAt(fmt.Sprintf("/leases/%d", i), "does not run, or has ended; leases are made by POST config/network-policy/leases")
		}
	}
	return slices.DeleteFunc(running, func(l store.Lease) bool { return !slices.Contains(*keep, leaseKey(l)) }), nil
}

func leaseKey(l store.Lease) api.LeaseEntry {
	return api.LeaseEntry{Allow: l.Allow, Audit: l.Audit, Entry: l.Entry}
}

// stateOf returns a box's policy as the API shows it, with the remaining time of its leases. A lease that is about to end
// has no time left; it is shown for as long as it is applied.
func (p *Service) stateOf(b *state.Box) api.PolicyState {
	state, now := b.Shown.Load().Policy, p.shared.now()
	state.Leases = leaseViews(b.Applied.Load().Leases, now)
	return state
}

// leaseViews converts leases to their API form.
func leaseViews(list []store.Lease, now lease.Now) (views []api.Lease) {
	for _, l := range list {
		views = append(views, api.Lease{LeaseEntry: leaseKey(l), StartedAt: l.StartedAt, ExpiresAt: l.ExpiresAt, Left: lease.Remaining(l, now)})
	}
	return views
}

// leaseTick is the longest time between two checks for ended leases, since the wall clock may jump.
const leaseTick = time.Second

// KeepLeases ends leases on time until ctx is done. Boxes do not wait for each other.
func (p *Service) KeepLeases(ctx context.Context) error {
	defer p.endingLeases.Wait()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.leasesChanged:
		case <-time.After(p.endDue(ctx)):
		}
	}
}

// endDue starts ending the leases that are due, and returns the delay until the next check.
func (p *Service) endDue(ctx context.Context) time.Duration {
	next, now := time.Hour, p.shared.now()
	for _, b := range p.boxes.All() {
		leases := b.Applied.Load().Leases
		due := false
		for _, l := range leases {
			left := lease.Remaining(l, now)
			if next = min(next, leaseTick); left > 0 {
				next = min(next, left)
			} else {
				due = true // noteLeases wakes KeepLeases
			}
		}
		if !due || ctx.Err() != nil || !b.EndingLeases.CompareAndSwap(false, true) {
			continue
		}
		p.endingLeases.Go(func() {
			defer b.EndingLeases.Store(false)
			suspended := p.lockToEnd(b)
			defer b.Unlock()
			if suspended {
				defer p.resume(b)
			}
			if err := p.stepOrRestore(b, func() error { return p.endLeases(b) }); err != nil {
				p.log.Error("a policy without its ended temporary entries could not be applied", zap.String("box", string(b.ID)), zap.Error(err))
			}
		})
	}
	return next
}

// leaseGrace is how long an ended lease stays in force while another change holds the lock of its box.
const leaseGrace = 10 * time.Second

// lockToEnd takes the lock of a box whose leases have ended. If another change holds it for too long, such as one that waits for
// a disk that does not answer or for many other boxes, the box is taken off the network meanwhile: lockToEnd reports that,
// and the caller resumes the box.
func (p *Service) lockToEnd(b *state.Box) (suspended bool) {
	locked, late := make(chan struct{}), make(chan bool)
	go func() { late <- p.suspendLate(b, locked) }()
	b.Lock()
	close(locked)
	return <-late
}

// suspendLate takes a box off the network if it is not locked in time and still has an entry that allows something and has ended. It
// tries again until that succeeds, and reports whether it tried.
func (p *Service) suspendLate(b *state.Box, locked <-chan struct{}) (tried bool) {
	for wait := p.leaseGrace; ; wait = min(p.leaseGrace, leaseTick) {
		select {
		case <-locked:
			return tried
		case <-time.After(wait):
		}
		if !p.overstays(b) {
			continue
		}
		tried = true
		err := p.contain(b, func() error { return p.net.Suspend(context.Background(), b.ID) })
		if err == nil {
			p.log.Error("a box is off the network until a running change of it ends: its temporary entries have ended, and the change holds its policy",
				zap.String("box", string(b.ID)))
			return true
		}
		p.log.Error("a box could not be taken off the network although its temporary entries have ended; retrying", zap.String("box", string(b.ID)), zap.Error(err))
	}
}

// overstays reports whether the policy of a box has an entry that allows something and has ended. A denial that has ended opens
// no destination by staying.
func (p *Service) overstays(b *state.Box) bool {
	now := p.shared.now()
	return slices.ContainsFunc(b.Applied.Load().Leases, func(l store.Lease) bool { return l.Allow && lease.Remaining(l, now) == 0 })
}

// resume puts a box that lockToEnd has suspended back on the network, or closes it if that fails. The caller holds the lock of b, and
// has applied its policy without ended leases, or closed it.
func (p *Service) resume(b *state.Box) {
	ctx, cancel := change.DetachRollback(context.Background())
	defer cancel()
	if err := p.contain(b, func() error { return p.net.Resume(ctx, b.ID) }); err != nil {
		p.log.Error("the network of a box could not be restored", zap.String("box", string(b.ID)), zap.Error(errors.Join(err, p.closeBox(b))))
	}
}

// endLeases applies the policy of a box without its ended leases, or closes the box if that policy does not compile or
// cannot be applied: the one in force still has the entries that have ended.
//
// It does not use [change.Apply]: a lease ends even if that cannot be stored, and a rollback must not bring it back. The
// next start drops it too, since its end time is stored. The caller holds the lock of b.
func (p *Service) endLeases(b *state.Box) error {
	running := p.shared.running(b.Leases)
	if b.Deleted || len(running) == len(b.Leases) {
		return nil
	}
	ctx, cancel := change.Detach(context.Background())
	defer cancel()
	in := p.shared.inputsOf(b)
	in.leases, in.version = running, b.LastVersion+1
	if b.Unended.Version == b.LastVersion && slices.Equal(b.Unended.Leases, running) { // an earlier attempt may have applied it
		in.version = b.LastVersion
	}
	b.LastVersion, b.Unended = in.version, store.Policy{Version: in.version, Leases: running}
	next, err := in.compile()
	if err == nil {
		err = p.enforceEnd(ctx, b, next)
	}
	if err != nil && b.Connected() {
		err = errors.Join(err, p.closeBox(b))
	}
	before := b.Leases
	b.Leases, b.Version, b.Unended = running, in.version, store.Policy{}
	b.Unstored = append(b.Unstored, b.StoredPolicy())
	if err := p.storeEnded(b); err != nil {
		p.log.Warn("the end of temporary entries could not be stored; they have still ended", zap.String("box", string(b.ID)), zap.Error(err))
	}
	b.Publish()
	p.noteLeases(b, before)
	p.recordEnds(b, before)
	return err
}

// storeEnded stores the policies that came into force when leases ended, each as a version of its own. It is a no-op if all are
// stored. The caller holds the lock of b.
func (p *Service) storeEnded(b *state.Box) error {
	for len(b.Unstored) > 0 {
		ended := b.Unstored[0]
		stored, err := p.store.Policy(b.ID)
		if err != nil {
			return err
		}
		if stored.Version < ended.Version { // else a failed commit had reached the disk
			by := p.originOfEnd(stored.Leases, ended.Leases)
			if err := errors.Join(p.store.StagePolicy(b.ID, ended, by), p.store.CommitPolicy(b.ID)); err != nil {
				return err
			}
		}
		b.Unstored = b.Unstored[1:]
	}
	return nil
}

// originOfEnd returns the origin of a policy whose leases have ended: the key that made them, unless several did.
func (p *Service) originOfEnd(before, after []store.Lease) history.Origin {
	by, keys := history.Origin{At: time.Now(), Cause: history.LeaseExpired}, map[string]bool{}
	for _, l := range before {
		if !slices.ContainsFunc(after, func(kept store.Lease) bool { return leaseKey(kept) == leaseKey(l) }) {
			by.KeyID, keys[l.Key] = l.Key, true
		}
	}
	if len(keys) != 1 {
		by.KeyID = ""
		return by
	}
	by.Key, by.Role = p.nameOfKey(by.KeyID)
	return by
}

// recordEnds writes the expired temporary entries to the audit trail, under the key that made them. The caller holds the
// lock of b.
func (p *Service) recordEnds(b *state.Box, before []store.Lease) {
	ended := map[string][]store.Lease{} // by the key that made them
	for _, l := range before {
		if !slices.Contains(b.Leases, l) {
			ended[l.Key] = append(ended[l.Key], l)
		}
	}
	var list []trail.Entry
	for _, key := range slices.Sorted(maps.Keys(ended)) {
		was := api.PolicyState{Spec: b.Spec, Named: b.Named, Leases: leaseViews(ended[key], p.shared.now())}
		is := api.PolicyState{Spec: b.Spec, Named: b.Named, Version: b.Version}
		data, err := json.Marshal(map[string]any{"policy": apichange.Policy(was, is, apichange.Whole)})
		if err != nil {
			continue
		}
		e := trail.Entry{Kind: trail.Policy, Box: b.ID, PolicyVersion: b.Version, KeyID: key, Change: trail.Change{RawMessage: data}, Note: "temporary entries have ended"}
		e.Key, e.Role = p.nameOfKey(key)
		list = append(list, e)
	}
	if _, err := p.trail.AppendAll(list); err != nil {
		p.log.Error("the end of temporary entries of a policy is not in the audit trail", zap.String("box", string(b.ID)), zap.Uint64("policy_version", b.Version), zap.Error(err))
	}
}

// nameOfKey returns the name and the role of an API key, empty if it was revoked.
func (p *Service) nameOfKey(id string) (name, role string) {
	all, _ := p.keys.All()
	for _, k := range all {
		if k.ID == id {
			return k.Name, k.Role
		}
	}
	return "", ""
}

// withKey sets the API key that made a lease.
func withKey(l store.Lease, key string) store.Lease {
	l.Key = key
	return l
}

// enforceEnd applies a policy without ended leases, and tries once more on failure, because rolling back would bring the
// ended leases back. If the kernel rejects it, the box is closed.
func (p *Service) enforceEnd(ctx context.Context, b *state.Box, next *policy.Compiled) error {
	err := p.net.Enforce(ctx, &b.Box, next)
	if err == nil || errors.Is(err, enforce.ErrClosed) {
		return p.noteClosed(b, err)
	}
	p.log.Warn("temporary entries of a policy did not end; retrying", zap.String("box", string(b.ID)), zap.Error(err))
	return p.noteClosed(b, p.net.Restore(&b.Box, next))
}

// noteLeases logs the leases that have begun or ended since before, and wakes KeepLeases. The caller holds the lock of b.
func (p *Service) noteLeases(b *state.Box, before []store.Lease) {
	for _, l := range before {
		if !slices.Contains(b.Leases, l) {
			p.noteLease(b, l, "a temporary entry of a policy has ended")
		}
	}
	for _, l := range b.Leases {
		if !slices.Contains(before, l) {
			p.noteLease(b, l, "a temporary entry of a policy has begun")
		}
	}
	select {
	case p.leasesChanged <- struct{}{}:
	default:
	}
}

func (p *Service) noteLease(b *state.Box, l store.Lease, what string) {
	p.log.Info(what, zap.String("box", string(b.ID)), zap.String("box_name", b.Name), zap.String("action", leaseKey(l).Action()), zap.String("entry", l.Entry),
		zap.Time("expires_at", l.ExpiresAt), zap.Uint64("policy_version", b.Version))
}

// EndLeasesWhileDraining ends leases on time until ctx is done, during a handover: for the connections that this process still serves
// while another process owns the kernel rules and the store.
func (p *Service) EndLeasesWhileDraining(ctx context.Context) {
	for ctx.Err() == nil {
		next := time.Hour
		for _, b := range p.boxes.All() {
			next = min(next, p.endLeasesHere(b))
		}
		select {
		case <-ctx.Done():
		case <-time.After(next):
		}
	}
}

// endLeasesHere rechecks a box's connections in this process against its policy without ended leases, and returns the delay
// until the next check. The process that owns the store ends the leases in the kernel and in the store once it serves.
func (p *Service) endLeasesHere(b *state.Box) (next time.Duration) {
	b.Lock()
	defer b.Unlock()
	next, now := time.Hour, p.shared.now()
	running := p.shared.running(b.Leases)
	for _, l := range running {
		next = min(next, leaseTick, lease.Remaining(l, now))
	}
	if len(running) == len(b.Leases) || b.Policy.Load() == nil {
		return next
	}
	in := p.shared.inputsOf(b) // of the same version: only the process that owns the store gives out new ones
	in.leases = running
	compiled, err := in.compile()
	if err != nil {
		b.Policy.Store(nil)
		p.net.Proxy.CloseBox(b.ID)
		return next
	}
	b.Leases = running
	b.Policy.Store(compiled)
	p.net.Proxy.Recheck(b.ID)
	return next
}
