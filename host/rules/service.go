package rules

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/audit/trail"
	"boxgate/host/change"
	"boxgate/host/enforce"
	"boxgate/host/handover"
	"boxgate/host/state"
	"boxgate/internal/fault"
	"boxgate/internal/required"
	"boxgate/observe"
	"boxgate/policy"
	"boxgate/policy/name"
	quotas "boxgate/quota"
	"boxgate/store"
	"boxgate/store/history"
)

// Config configures a [Service].
type Config struct {
	Resolver Resolver `required:"false"` // nil: names are not looked up for explanations
	// Observed returns the traffic of a box for replays; nil: there are none.
	Observed func(ctx context.Context, id policy.BoxID) (observe.Summary, error) `required:"false"`
	Audit    string                                                              `required:"false"` // policy.audit of the configuration; "": policies are always enforced
	Log      *zap.Logger
	Store    store.Rules
	Records  store.Boxes
	Keys     store.Keys // to name the keys that made leases
	Boxes    *state.Table
	Shared   *Shared
	Net      *enforce.Enforcer
	Trail    *trail.Trail          // records changes that no API call asked for
	Before   *handover.Predecessor `required:"false"`
	Headers  FleetHeaders          `required:"false"` // of the fleet; nil: there is none
	Fleet    Fleet                 `required:"false"` // nil: this host is not a member of a fleet
	HostID   string                `required:"false"` // of this host in the fleet
}

// Resolver looks names up for explanations; it is implemented by dns.Server.
type Resolver interface {
	// Preview returns the addresses of a name for a box under a policy. looked is false if the gateway would not look it up.
	Preview(ctx context.Context, box *policy.Box, c *policy.Compiled, n name.Name) (addrs []netip.Addr, looked bool, err error)
}

// Service changes the policies and header rules of boxes, and the settings shared by all of them. Safe for concurrent
// use.
type Service struct {
	resolver Resolver
	auditBy  string
	before   *handover.Predecessor
	log      *zap.Logger
	store    store.Rules
	records  store.Boxes
	keys     store.Keys
	boxes    *state.Table
	shared   *Shared
	net      *enforce.Enforcer
	trail    *trail.Trail

	observed  func(ctx context.Context, id policy.BoxID) (observe.Summary, error)
	replaying chan struct{} // held while policies are replayed: one at a time
	replays   quotas.Turns  // of keys in the queue for replaying

	leasesChanged chan struct{} // wakes KeepLeases after leases have changed
	endingLeases  sync.WaitGroup
	leaseGrace    time.Duration // [leaseGrace], except in tests

	shown shown // effects of approvals

	changeRates changeRates // of the resources of namespaces

	fleet         Fleet // nil: no member of a fleet
	hostID        string
	fleetPolicies fleetPolicies
	fleetPatience time.Duration // [fleetPatience], except in tests

	changingGlobal sync.Mutex // serialises changes of the global header rules

	fleetRules  FleetHeaders // nil: no member of a fleet
	fleetKnown  atomic.Bool  // the rules of the fleet were applied once since the start
	fleetBehind atomic.Bool  // etcd has earlier rules of the fleet than this host had in force

	mu      sync.Mutex
	global  store.Headers // the committed global header rules
	ofFleet store.Headers // the rules of the fleet in force
}

// New returns a service with the stored global header rules and named policies loaded.
func New(c Config) (*Service, error) {
	if err := required.Fields(c); err != nil {
		return nil, err
	}
	p := &Service{
		resolver: c.Resolver, auditBy: c.Audit, before: c.Before, log: c.Log, store: c.Store, records: c.Records, keys: c.Keys, boxes: c.Boxes, shared: c.Shared, net: c.Net, trail: c.Trail, leasesChanged: make(chan struct{}, 1), leaseGrace: leaseGrace,
		observed: c.Observed, replaying: make(chan struct{}, 1), fleet: c.Fleet, hostID: c.HostID, fleetRules: c.Headers, fleetPatience: fleetPatience,
	}
	p.shared.fence = p.fleetFence
	if c.Fleet != nil {
		c.Shared.named.fenced = c.Fleet.Fenced
	}
	if err := errors.Join(p.loadGlobal(), p.loadFleetHeaders()); err != nil {
		return nil, err
	}
	return p, p.leaveFleet()
}

// Policy implements the Host of [boxgate/api/rules].
func (p *Service) Policy(_ context.Context, id policy.BoxID) (api.PolicyState, error) {
	b, err := p.boxes.Find(id)
	if err != nil {
		return api.PolicyState{}, err
	}
	return p.stateOf(b), nil
}

// SetPolicy implements the Host of [boxgate/api/rules].
func (p *Service) SetPolicy(ctx context.Context, id policy.BoxID, set api.PolicyChange, ifMatch *uint64) (api.PolicyState, error) {
	b, err := p.lockToFollow(ctx, id)
	if err != nil {
		return api.PolicyState{}, err
	}
	defer b.Unlock()
	defer p.shared.named.changing.RUnlock()
	if set.Named != "" {
		if set.Spec, err = p.shared.named.specFor(set.Named, "/named", b.Record.Attached); err != nil {
			return api.PolicyState{}, err
		}
	}
	if set.Headers != nil {
		return p.changeNetworkLocked(ctx, b, ifMatch, set)
	}
	return p.changeLocked(ctx, b, ifMatch, history.Replaced, editOf(set))
}

// editOf returns the edit that replaces a policy.
func editOf(set api.PolicyChange) func(*state.Box, *store.Policy) error {
	return func(_ *state.Box, next *store.Policy) (err error) {
		next.Spec, next.Named = set.Spec, set.Named
		next.Leases, err = keptLeases(next.Leases, set.Keep)
		return err
	}
}

// change edits a copy of a box's policy and applies it. Leases that have ended are dropped before edit is called. The
// version is incremented, and recorded in the history of the box with its cause and the caller.
func (p *Service) change(ctx context.Context, id policy.BoxID, ifMatch *uint64, cause history.Cause, edit func(*state.Box, *store.Policy) error) (api.PolicyState, error) {
	b, err := p.boxes.Lock(id)
	if err != nil {
		return api.PolicyState{}, err
	}
	defer b.Unlock()
	return p.changeLocked(ctx, b, ifMatch, cause, edit)
}

// changeLocked is change for a box that the caller has locked.
func (p *Service) changeLocked(ctx context.Context, b *state.Box, ifMatch *uint64, cause history.Cause, edit func(*state.Box, *store.Policy) error) (api.PolicyState, error) {
	if err := p.storeEnded(b); err != nil {
		return api.PolicyState{}, change.NotStored(p.log, "the policy of box "+string(b.ID)+" could not be stored, nothing was changed", err)
	}
	was, before := p.stateOf(b), b.Leases
	next, in, err := p.editedLocked(b, ifMatch, edit)
	if err != nil {
		return api.PolicyState{}, err
	}
	compiled, err := in.compile()
	if err != nil {
		return api.PolicyState{}, err
	}
	b.LastVersion = next.Version
	defer p.before.PolicyAlone(b.ID)()
	err = change.Apply(ctx, p.log, change.Change{
		What:    "the policy of box " + string(b.ID),
		Stage:   func() error { return p.store.StagePolicy(b.ID, next, change.OriginOf(ctx, cause)) },
		Enforce: func(ctx context.Context) error { return p.Enforce(ctx, b, compiled) },
		Commit: func() error {
			if err := p.store.CommitPolicy(b.ID); err != nil {
				return err
			}
			b.SetPolicy(next)
			return nil
		},
		Abort:       func() error { return p.store.AbortPolicy(b.ID) },
		ApplyStored: func() (bool, error) { err := p.applyStored(b); return b.Version == next.Version, err },
	})
	if err != nil {
		return api.PolicyState{}, err
	}
	b.Publish()
	p.noteLeases(b, before)
	state := p.stateOf(b)
	state.Was = &was
	return state, nil
}

// editedLocked returns the next policy of a box after an edit, and the inputs of its compilation. The caller holds the lock of b.
func (p *Service) editedLocked(b *state.Box, ifMatch *uint64, edit func(*state.Box, *store.Policy) error) (next store.Policy, in inputs, err error) {
	if ifMatch != nil && *ifMatch != b.Version {
		return next, in, api.ErrPrecondition
	}
	next = b.StoredPolicy()
	next.Version, next.Leases = b.LastVersion+1, p.shared.running(b.Leases)
	if err := edit(b, &next); err != nil {
		return next, in, err
	}
	in = p.shared.inputsOf(b)
	in.spec, in.leases, in.version = next.Spec, next.Leases, next.Version
	return next, in, nil
}

// Explain implements the Rules of [boxgate/api/egress].
func (p *Service) Explain(_ context.Context, id policy.BoxID, req policy.Request, knowsQuery bool) (policy.Explanation, error) {
	c, err := p.explainedPolicy(id)
	if err != nil {
		return policy.Explanation{}, err
	}
	req.Box = id
	return c.Explain(req, knowsQuery), nil
}

// lookupPatience bounds a look-up for an explanation.
const lookupPatience = 5 * time.Second

// Resolve implements the Rules of [boxgate/api/egress].
func (p *Service) Resolve(ctx context.Context, id policy.BoxID, n name.Name) (addrs []netip.Addr, looked bool, err error) {
	b, err := p.boxes.Find(id)
	if err != nil || p.resolver == nil {
		return nil, false, err
	}
	c, err := p.explainedPolicy(id)
	if err != nil {
		return nil, false, err
	}
	ctx, cancel := context.WithTimeout(ctx, lookupPatience)
	defer cancel()
	of := &b.Box
	if of.Policy.Load() == nil { // paused
		of = &policy.Box{ID: b.ID, V4: b.V4, V6: b.V6}
		of.Policy.Store(c)
	}
	return p.resolver.Preview(ctx, of, c, n)
}

// explainedPolicy returns the active policy of a box, or of a paused box the policy that it would start with.
func (p *Service) explainedPolicy(id policy.BoxID) (*policy.Compiled, error) {
	b, err := p.boxes.Find(id)
	if err != nil {
		return nil, err
	}
	if c := b.Policy.Load(); c != nil {
		return c, nil
	}
	b.Lock()
	defer b.Unlock()
	if b.Status != api.StatusPaused || b.Connected() {
		return b.Policy.Load(), nil
	}
	return p.shared.inputsOf(b).compile() // applied before the box resumes
}

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
	if err := p.store.AbortNetwork(b.ID); err != nil {
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
	b.LastVersion, b.Unstored = max(b.LastVersion, stored.Version), nil
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

// spread recompiles and applies the policy of every box after a change of the shared inputs.
func (p *Service) spread(ctx context.Context) error {
	return p.eachConnected(func(b *state.Box) error {
		ctx, cancel := change.Detach(ctx) // one deadline per box, however many there are
		defer cancel()
		err := p.stepOrRestore(b, func() error { return p.recompile(ctx, b) })
		if err != nil {
			return fmt.Errorf("box %s: %w", b.ID, err)
		}
		return nil
	})
}

// spreadOrClose is spread for a change that takes access away and is not rolled back: a box that failed to take it gets its
// stored policy with the changed inputs, and if that fails too, it is closed.
func (p *Service) spreadOrClose(ctx context.Context) error {
	return p.eachConnected(func(b *state.Box) error {
		ctx, cancel := change.Detach(ctx)
		defer cancel()
		err := p.contain(b, func() error { return p.recompile(ctx, b) })
		if err == nil {
			return nil
		}
		if b.Connected() {
			err = errors.Join(err, p.applyStored(b))
		}
		return fmt.Errorf("box %s: %w", b.ID, err)
	})
}

// recompile compiles a box's policy again and applies it. The caller holds the lock of b.
func (p *Service) recompile(ctx context.Context, b *state.Box) error {
	next, err := p.shared.inputsOf(b).compile()
	if err != nil {
		return err
	}
	if err := fault.At(ctx, "all boxes: next one"); err != nil {
		return err
	}
	return p.Enforce(ctx, b, next)
}

// stepOrRestore runs step for one box of a change of all boxes. After a panic it is unknown how far step got, so the stored
// state of the box is applied. The caller holds the lock of b.
func (p *Service) stepOrRestore(b *state.Box, step func() error) error {
	var err error
	if panicked := p.contain(b, func() error { err = step(); return nil }); panicked != nil {
		return api.Errorf(api.ErrUnavailable, "the change may have been rolled back: %w", errors.Join(panicked, p.applyStored(b)))
	}
	return err
}

// eachConnected calls f with the lock of each box that has a network, and continues after errors. Boxes whose lock is
// held come last, so that the others do not wait for them.
func (p *Service) eachConnected(f func(*state.Box) error) error {
	return p.eachConnectedWithin(context.Background(), f)
}

// eachConnectedWithin is eachConnected for a change that must not wait for long: a box whose lock is not free before waiting is done is left out,
// with [errBusy].
func (p *Service) eachConnectedWithin(waiting context.Context, f func(*state.Box) error) error {
	var errs []error
	next := func(b *state.Box) {
		defer b.Unlock()
		if !b.Deleted && b.Connected() {
			errs = append(errs, f(b))
		}
	}
	var busy []*state.Box
	for _, b := range p.boxes.All() {
		if !b.TryLock() {
			busy = append(busy, b)
			continue
		}
		next(b)
	}
	for _, b := range busy {
		if !lockWithin(waiting, b) {
			errs = append(errs, fmt.Errorf("%w: box %s", errBusy, b.ID))
			continue
		}
		next(b)
	}
	return errors.Join(errs...)
}
