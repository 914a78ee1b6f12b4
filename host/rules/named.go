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
)

// mostNamed bounds the named policies.
const mostNamed = 256

// namedPolicies are the committed named policies. A box that follows one has a copy of what it says, which changes with it. The
// zero value has none.
type namedPolicies struct {
	// changing is held for writing while a named policy changes with its boxes, and for reading while a box begins or ceases to
	// follow one. It is taken before the locks of boxes, by patiently.
	changing sync.RWMutex

	mu  sync.Mutex
	all map[string]store.Policy
}

func (n *namedPolicies) find(name string) (p store.Policy, known bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	p, known = n.all[name]
	return p, known
}

// set replaces all of them.
func (n *namedPolicies) set(all map[string]store.Policy) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all = all
}

// copied returns all of them.
func (n *namedPolicies) copied() map[string]store.Policy {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := map[string]store.Policy{}
	maps.Copy(all, n.all)
	return all
}

// specOf returns what a named policy says. The error for one that does not exist is for the place where it is named.
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
	view := api.NamedPolicy{Name: name, Spec: named.Spec, Version: named.Version}
	for _, b := range p.boxes.All() {
		if b.Timed.Load().Named == name {
			view.Boxes = append(view.Boxes, b.View())
		}
	}
	return view
}

// SetNamedPolicy implements the Host of [boxgate/api/rules]. If one box does not take the policy, none keeps it.
func (p *Service) SetNamedPolicy(ctx context.Context, name string, spec policy.Spec, ifMatch *uint64) (api.NamedPolicy, error) {
	boxes, err := p.lockFollowers(ctx, name)
	if err != nil {
		return api.NamedPolicy{}, err
	}
	named := &p.shared.named
	defer named.changing.Unlock()
	defer unlock(boxes)
	old, known := named.find(name)
	if err := p.mayChange(old, ifMatch); err != nil {
		return api.NamedPolicy{}, err
	}
	if !known && len(named.copied()) >= mostNamed {
		return api.NamedPolicy{}, api.Errorf(api.ErrConflict, "there are at most %d named policies; delete some", mostNamed)
	}
	next := store.Policy{Spec: spec, Version: old.Version + 1}
	in := p.shared.inputs()
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
	view.Warnings, view.Was, view.Followers = alone.Warnings(), old.Spec, changed
	return view, nil
}

// mayChange refuses a change of a named policy that has another version, and one in a process that is being replaced.
func (p *Service) mayChange(old store.Policy, ifMatch *uint64) error {
	switch {
	case p.boxes.Lent.Load():
		return state.ErrLent
	case ifMatch != nil && *ifMatch != old.Version:
		return api.ErrPrecondition
	}
	return nil
}

// patience is how many times a change waits for busy boxes without a lock in its hands.
const patience = 3

// patiently calls f until it finds no box busy. Meanwhile it waits, until ctx at most, for the box that is, with nothing held: some
// keep their locks for minutes. But among boxes of which one or the other is always busy a change must come to its turn: the last
// time, f is told to wait with what it holds.
func patiently(ctx context.Context, f func(last bool) (busy *state.Box)) error {
	for n := range patience + 1 {
		busy := f(n == patience)
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

// lockToFollow returns a box with its lock held, and with that of the named policies, for reading. On an error it holds neither.
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

// lockFollowers returns the boxes that follow a named policy, with their locks held, and with that of the named policies, which
// keeps boxes from beginning or ceasing to follow. On an error it holds none. Nothing else holds the locks of several boxes
// once the gateway serves.
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

// tryFollowers returns the boxes that follow a named policy, with their locks held; or one that is busy, and holds none.
func (p *Service) tryFollowers(name string, last bool) (list []*state.Box, busy *state.Box) {
	for _, b := range p.boxes.All() {
		switch {
		case b.Timed.Load().Named != name:
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

// following is a box, and what a change of the named policy that it follows makes of its own.
type following struct {
	*state.Box
	before   []store.Lease
	was      api.PolicyState
	next     store.Policy
	compiled *policy.Compiled
}

// follow compiles what a named policy makes of a box. The caller holds the lock of b.
func (p *Service) follow(b *state.Box, named store.Policy) (following, error) {
	f := following{Box: b, before: b.Leases, was: p.stateOf(b), next: b.StoredPolicy()}
	f.next.Spec, f.next.Version, f.next.Leases = named.Spec, b.LastVersion+1, p.shared.running(b.Leases)
	in := p.shared.of(b)
	in.spec, in.leases, in.version = f.next.Spec, f.next.Leases, f.next.Version
	var err error
	if f.compiled, err = in.compile(); err != nil {
		return f, api.Errorf(api.ErrConflict, "nothing was changed, because box %s, which follows the policy, cannot have it: %w", b.ID, err)
	}
	return f, nil
}

// changeNamed changes a named policy and those of the boxes that follow it: in the store at once, and for each box by the way of a
// change of its own. It returns the policies of the boxes before and after. The caller holds the locks of the boxes.
func (p *Service) changeNamed(ctx context.Context, name string, next store.Policy, boxes []*state.Box) (changed []api.Follower, err error) {
	var list []following
	var ids []policy.BoxID
	stored := map[policy.BoxID]store.Policy{}
	for _, b := range boxes {
		f, err := p.follow(b, next)
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
		What:    "the named policy " + name,
		Stage:   func() error { return p.store.StageNamed(name, next, stored) },
		Enforce: func(ctx context.Context) error { return p.enforceNamed(ctx, list) },
		Commit: func() error {
			if err := p.store.CommitNamed(name, ids); err != nil {
				return err
			}
			p.takeNamed(name, next)
			for _, f := range list {
				f.TakePolicy(f.next)
			}
			return nil
		},
		Abort: func() error { return p.store.AbortNamed(name, ids) },
		Settle: func() (bool, error) {
			err := p.settleNamed(name, boxes, ids)
			now, _ := p.shared.named.find(name)
			return now.Version == next.Version, err
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

// takeNamed notes a named policy that is in force and stored.
func (p *Service) takeNamed(name string, next store.Policy) {
	all := p.shared.named.copied()
	all[name] = next
	p.shared.named.set(all)
}

// enforceNamed puts the policies of boxes that follow a named one in force. If one box does not take it, what is committed is put in
// force again in those that have.
func (p *Service) enforceNamed(ctx context.Context, list []following) error {
	for i, f := range list {
		err := p.enforceOne(ctx, f)
		if err == nil {
			continue
		}
		errs := []error{fmt.Errorf("box %s: %w", f.ID, err)}
		for _, done := range list[:i+1] {
			errs = append(errs, p.settle(done.Box))
		}
		return errors.Join(errs...)
	}
	return nil
}

func (p *Service) enforceOne(ctx context.Context, f following) error {
	ctx, cancel := change.Begun(ctx) // however many boxes there are
	defer cancel()
	if err := p.Enforce(ctx, f.Box, f.compiled); err != nil {
		return err
	}
	return fault.At(ctx, "named policy: one box has it")
}

// settleNamed puts in force what the store holds of a named policy and of the boxes that follow it. The caller holds their locks.
func (p *Service) settleNamed(name string, boxes []*state.Box, ids []policy.BoxID) error {
	errs := []error{p.store.AbortNamed(name, ids), p.loadNamed()}
	for _, b := range boxes {
		errs = append(errs, p.settle(b))
	}
	return errors.Join(errs...)
}

// mostNames bounds how many boxes a refusal names.
const mostNames = 20

// DeleteNamedPolicy implements the Host of [boxgate/api/rules].
func (p *Service) DeleteNamedPolicy(_ context.Context, name string, ifMatch *uint64) (api.NamedPolicy, error) {
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
	if boxes := p.namedView(name, old).Boxes; len(boxes) > 0 {
		return api.NamedPolicy{}, inUse(name, boxes)
	}
	switch err := p.store.DeleteNamed(name); {
	case errors.Is(err, store.ErrConflict): // by a box whose record could not be read when the gateway started
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
