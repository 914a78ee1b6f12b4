package rules

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"boxgate/api"
	"boxgate/host/change"
	"boxgate/host/state"
	"boxgate/internal/fault"
	"boxgate/policy"
	"boxgate/store"
	"boxgate/store/history"
)

// mostNamed is the maximum number of named policies.
const mostNamed = 256

// namedPolicies holds the committed named policies. A box that follows one has its own copy, updated with it. The zero
// value is empty.
type namedPolicies struct {
	// changing is write-locked while a named policy changes together with its boxes, and read-locked while a box starts
	// or stops following one. It is locked before boxes, with patiently.
	changing sync.RWMutex

	fenced func() bool // policies of the fleet may be out of date; nil: there is no fleet

	mu  sync.Mutex
	all map[string]store.Policy
}

func (n *namedPolicies) find(name string) (p store.Policy, known bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	p, known = n.all[name]
	return p, known
}

// set replaces the whole map.
func (n *namedPolicies) set(all map[string]store.Policy) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all = all
}

// copied returns a copy of the map.
func (n *namedPolicies) copied() map[string]store.Policy {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := map[string]store.Policy{}
	maps.Copy(all, n.all)
	return all
}

// specOf returns the policy called name. If it does not exist, the error refers to pointer in the request's document.
func (n *namedPolicies) specOf(name, pointer string) (policy.Spec, error) {
	p, known := n.find(name)
	if !known {
		return policy.Spec{}, change.InvalidAt(pointer, fmt.Sprintf("there is no named policy %q", name))
	}
	return p.Spec, nil
}

// loadNamed reads the committed named policies.
func (p *Service) loadNamed() error {
	all, err := p.store.NamedPolicies()
	if err == nil {
		p.shared.named.set(all)
	}
	return err
}

// NamedPolicies implements the Host of [boxgate/api/rules].
func (p *Service) NamedPolicies(context.Context) ([]api.NamedPolicy, error) {
	all := p.shared.named.copied()
	var list []api.NamedPolicy
	for _, name := range slices.Sorted(maps.Keys(all)) {
		list = append(list, p.namedView(name, all[name]))
	}
	return list, nil
}

func (p *Service) namedView(name string, named store.Policy) api.NamedPolicy {
	view := api.NamedPolicy{Name: name, Spec: named.Spec, Version: named.Version, Resource: named.Resource, Fleet: named.Fleet != "", Warnings: p.fleetWarnings(name, named)}
	for _, b := range p.boxes.All() {
		if b.Applied.Load().Named == name {
			view.Boxes = append(view.Boxes, b.View())
		}
	}
	return view
}

// SetNamedPolicy implements the Host of [boxgate/api/rules]. If any box cannot take the policy, all boxes keep the old
// one.
func (p *Service) SetNamedPolicy(ctx context.Context, name string, spec policy.Spec, ifMatch *uint64) (api.NamedPolicy, error) {
	if _, known := p.shared.named.find(name); !known && p.fleetPolicies.has(name) {
		return api.NamedPolicy{}, errOfFleet(name)
	}
	return p.replaceNamed(ctx, name, ifMatch, store.Policy{Spec: spec})
}

// replaceNamed makes next, whose version it sets, the policy called name. If any box cannot take it, all boxes keep the old one.
func (p *Service) replaceNamed(ctx context.Context, name string, ifMatch *uint64, next store.Policy) (api.NamedPolicy, error) {
	boxes, err := p.lockFollowers(ctx, name)
	if err != nil {
		return api.NamedPolicy{}, err
	}
	named := &p.shared.named
	defer named.changing.Unlock()
	defer unlock(boxes)
	old, _ := named.find(name)
	if err := errors.Join(p.mayChange(old, ifMatch), named.refusal(name, next)); err != nil {
		return api.NamedPolicy{}, err
	}
	next.Version = old.Version + 1
	in := p.shared.sharedInputs()
	in.spec, in.version, in.tokens = next.Spec, next.Version, store.NewKey()
	alone, err := in.compile()
	if err != nil {
		return api.NamedPolicy{}, err
	}
	changed, err := p.changeNamed(ctx, name, next, boxes)
	if err != nil {
		return api.NamedPolicy{}, err
	}
	view := p.namedView(name, next)
	view.Warnings, view.Was, view.Followers = append(alone.Warnings(), view.Warnings...), old.Spec, changed
	return view, nil
}

// mayChange refuses a change whose ifMatch does not match, and any change in a process that is being replaced.
func (p *Service) mayChange(old store.Policy, ifMatch *uint64) error {
	switch {
	case p.boxes.HandedOver.Load():
		return state.ErrHandedOver
	case ifMatch != nil && *ifMatch != old.Version:
		return api.ErrPrecondition
	}
	return nil
}

// busyRetries is how many times a change waits for a busy box without holding locks.
const busyRetries = 3

// patiently calls f until f finds no busy box. Between calls it waits for the busy box, at most until ctx is done,
// without holding locks: some boxes stay locked for minutes. To avoid starvation among many busy boxes, the last call
// passes last = true, and f then waits with its locks held.
func patiently(ctx context.Context, f func(last bool) (busy *state.Box)) error {
	for n := range busyRetries + 1 {
		busy := f(n == busyRetries)
		if busy == nil {
			break
		}
		busy.AwaitLock()
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

// lockToFollow locks a box, and the named policies for reading. On an error it holds neither lock.
func (p *Service) lockToFollow(ctx context.Context, id policy.BoxID) (*state.Box, error) {
	b, err := p.boxes.Find(id)
	if err != nil {
		return nil, err
	}
	changing := &p.shared.named.changing
	if err := patiently(ctx, func(last bool) *state.Box {
		if changing.RLock(); b.TryLockOrWait(last) {
			return nil
		}
		changing.RUnlock()
		return b
	}); err != nil {
		return nil, err
	}
	if b, err = p.boxes.Locked(b); err != nil {
		changing.RUnlock()
	}
	return b, err
}

// lockFollowers locks the named policies for writing, which freezes the set of followers, and all boxes that follow name.
// On an error it holds no locks. No other code holds the locks of several boxes once the gateway serves.
func (p *Service) lockFollowers(ctx context.Context, name string) (list []*state.Box, err error) {
	changing := &p.shared.named.changing
	err = patiently(ctx, func(last bool) (busy *state.Box) {
		changing.Lock()
		if list, busy = p.tryFollowers(name, last); busy != nil {
			changing.Unlock()
		}
		return busy
	})
	return list, err
}

// tryFollowers locks the boxes that follow a named policy. If one is busy, it returns that box and holds no locks.
func (p *Service) tryFollowers(name string, last bool) (list []*state.Box, busy *state.Box) {
	for _, b := range p.boxes.All() {
		switch {
		case b.Applied.Load().Named != name:
		case !b.TryLockOrWait(last):
			unlock(list)
			return nil, b
		case b.Deleted:
			b.Unlock()
		default:
			list = append(list, b)
		}
	}
	return list, nil
}

func unlock(boxes []*state.Box) {
	for _, b := range boxes {
		b.Unlock()
	}
}

// follower is a box with the policy that a change of its named policy gives it.
type follower struct {
	*state.Box
	before   []store.Lease
	was      api.PolicyState
	next     store.Policy
	compiled *policy.Compiled
}

// compileFollower compiles the policy that a named policy gives a box. The caller holds the lock of b.
func (p *Service) compileFollower(b *state.Box, named store.Policy) (follower, error) {
	f := follower{Box: b, before: b.Leases, was: p.stateOf(b), next: b.StoredPolicy()}
	f.next.Spec, f.next.Version, f.next.Leases = named.Spec, b.LastVersion+1, p.shared.running(b.Leases)
	in := p.shared.inputsOf(b)
	in.spec, in.leases, in.version = f.next.Spec, f.next.Leases, f.next.Version
	var err error
	if f.compiled, err = in.compile(); err != nil {
		return f, api.Errorf(api.ErrConflict, "nothing was changed, because the policy is not valid for box %s, which follows it: %w", b.ID, err)
	}
	return f, nil
}

// changeNamed changes a named policy and the policies of its followers, in one store transaction, and applies them box by
// box. It returns the followers' policies before and after. The caller holds the locks of the boxes.
func (p *Service) changeNamed(ctx context.Context, name string, next store.Policy, boxes []*state.Box) (changed []api.Follower, err error) {
	var list []follower
	var ids []policy.BoxID
	stored := map[policy.BoxID]store.Policy{}
	for _, b := range boxes {
		if err := p.storeEnded(b); err != nil {
			return nil, change.NotStored(p.log, "the named policy "+name+" could not be stored, nothing was changed", err)
		}
		f, err := p.compileFollower(b, next)
		if err != nil {
			return nil, err
		}
		list, ids, stored[b.ID] = append(list, f), append(ids, b.ID), f.next
	}
	for _, f := range list {
		f.LastVersion = f.next.Version
		defer p.before.PolicyAlone(f.ID)()
	}
	err = change.Apply(ctx, p.log, change.Change{
		What: "the named policy " + name,
		Stage: func() error {
			return p.store.StageNamed(name, next, stored, change.OriginOf(ctx, history.NamedChanged))
		},
		Enforce: func(ctx context.Context) error { return p.enforceNamed(ctx, list) },
		Commit: func() error {
			if err := p.store.CommitNamed(name, ids); err != nil {
				return err
			}
			p.setNamed(name, next)
			for _, f := range list {
				f.SetPolicy(f.next)
			}
			return nil
		},
		Abort: func() error { return p.store.AbortNamed(name, ids) },
		ApplyStored: func() (bool, error) {
			err := p.applyStoredNamed(name, boxes, ids)
			now, _ := p.shared.named.find(name)
			return now.Version == next.Version && now.Fleet == next.Fleet && now.Problem == next.Problem, err // versions of the fleet may come again
		},
	})
	if err != nil {
		return nil, err
	}
	for _, f := range list {
		f.Publish()
		p.noteLeases(f.Box, f.before)
		changed = append(changed, api.Follower{Box: f.ID, Was: f.was, Is: p.stateOf(f.Box)})
	}
	return changed, nil
}

// setNamed sets a named policy in memory after it was applied and stored.
func (p *Service) setNamed(name string, next store.Policy) {
	all := p.shared.named.copied()
	all[name] = next
	p.shared.named.set(all)
}

// enforceNamed applies the policies of the followers. If one box fails, the committed policy is applied again to it and
// to the boxes before it.
func (p *Service) enforceNamed(ctx context.Context, list []follower) error {
	for i, f := range list {
		err := p.enforceOne(ctx, f)
		if err == nil {
			continue
		}
		errs := []error{fmt.Errorf("box %s: %w", f.ID, err)}
		for _, done := range list[:i+1] {
			errs = append(errs, p.applyStored(done.Box))
		}
		return errors.Join(errs...)
	}
	return nil
}

func (p *Service) enforceOne(ctx context.Context, f follower) error {
	ctx, cancel := change.Detach(ctx) // one deadline per box, however many there are
	defer cancel()
	if err := p.Enforce(ctx, f.Box, f.compiled); err != nil {
		return err
	}
	return fault.At(ctx, "named policy: one box has it")
}

// applyStoredNamed applies the stored state of a named policy and its followers. The caller holds their locks.
func (p *Service) applyStoredNamed(name string, boxes []*state.Box, ids []policy.BoxID) error {
	errs := []error{p.store.AbortNamed(name, ids), p.loadNamed()}
	for _, b := range boxes {
		errs = append(errs, p.applyStored(b))
	}
	return errors.Join(errs...)
}

// mostNames is the maximum number of boxes named in an error.
const mostNames = 20

// DeleteNamedPolicy implements the Host of [boxgate/api/rules].
func (p *Service) DeleteNamedPolicy(_ context.Context, name string, ifMatch *uint64) (api.NamedPolicy, error) {
	was, err := p.deleteNamed(name, ifMatch)
	if err == nil {
		p.sharedAgain(name)
	}
	return was, err
}

func (p *Service) deleteNamed(name string, ifMatch *uint64) (api.NamedPolicy, error) {
	named := &p.shared.named
	named.changing.Lock()
	defer named.changing.Unlock()
	old, known := named.find(name)
	if !known {
		return api.NamedPolicy{}, errNoNamed(name)
	}
	if err := p.mayChange(old, ifMatch); err != nil {
		return api.NamedPolicy{}, err
	}
	if old.Fleet != "" {
		return api.NamedPolicy{}, errOfFleet(name)
	}
	if boxes := p.namedView(name, old).Boxes; len(boxes) > 0 {
		return api.NamedPolicy{}, inUse(name, boxes)
	}
	switch err := p.store.DeleteNamed(name); {
	case errors.Is(err, store.ErrConflict): // by a box whose record could not be read at startup
		return api.NamedPolicy{}, api.Errorf(api.ErrConflict, "a box that could not be recovered follows the policy %q; delete the box first", name)
	case errors.Is(err, store.ErrNotFound):
		return api.NamedPolicy{}, errNoNamed(name)
	case err != nil:
		return api.NamedPolicy{}, change.NotStored(p.log, "the deletion of the named policy could not be stored", err)
	}
	all := named.copied()
	delete(all, name)
	named.set(all)
	return api.NamedPolicy{Name: name, Spec: old.Spec, Version: old.Version}, nil
}

func errNoNamed(name string) error {
	return api.Errorf(api.ErrNotFound, "there is no named policy %q", name)
}

// inUse refuses to delete a named policy that boxes follow.
func inUse(name string, boxes []api.Box) error {
	var names []string
	for _, b := range boxes[:min(len(boxes), mostNames)] {
		if b.Name != "" {
			names = append(names, b.Name)
		} else {
			names = append(names, string(b.ID))
		}
	}
	more := ""
	if len(boxes) > mostNames {
		more = fmt.Sprintf(" and %d more", len(boxes)-mostNames)
	}
	return api.Errorf(api.ErrConflict, "the policy %q is that of %s%s; give these boxes another policy, or delete them, first", name, strings.Join(names, ", "), more)
}
