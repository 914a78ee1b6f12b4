package host

import (
	"cmp"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"boxgate/api"
	"boxgate/host/awake"
	"boxgate/policy"
	"boxgate/policy/document"
	"boxgate/policy/name"
	"boxgate/store"
)

// box is one box in memory: what the data path reads, and what its changes start from.
type box struct {
	policy.Box // its Policy is nil while the box has no network
	name       string
	createdAt  time.Time
	attached   *store.Attached        // as it was first; nil: launched here. What it is attached to now is in record
	env        map[string]name.Secret // given to every command
	layers     []string               // of the snapshot that it was made from

	shown    atomic.Pointer[api.Box]      // what the API shows; published after each change, so that no reader waits for one
	timed    atomic.Pointer[store.Policy] // the policy in force, with its leases; published likewise
	gate     awake.Gate                   // open while the box is idle and stays so
	sandbox  atomic.Pointer[attachment]   // what an attached box is attached to
	progress atomic.Pointer[string]       // of the preparation of its image; nil: none is under way

	endingLeases atomic.Bool // its leases are being ended
	rousing      atomic.Bool // what a visitor has sent is waking it
	spent        atomic.Bool // it has used up its quota, and is cut off; see quota
	sparing      atomic.Bool // that is being changed

	mu             sync.Mutex    // serialises changes; held for as long as one takes
	moving         chan struct{} // closed at the end of the change of state that is under way; nil: none is
	record         store.Box
	spec           policy.Spec
	named          string        // the named policy that it follows, which says spec; "": none
	leases         []store.Lease // what it allows or denies for a time besides; those that have ended are not compiled
	version        uint64        // of the policy in force
	lastVersion    uint64        // the highest ever assigned: one that was rolled back is not used again
	headers        []policy.HeaderRule
	headersVersion uint64
	hosted         api.Hosted
	status         api.Status
	problem        string    // why status is error
	filling        bool      // it was paused because it filled the disk
	ended          bool      // because its first process has ended: it can be started again
	rated          time.Time // when a key without the role admin changed its rates last
	life           uint64    // how often its first process was started or found
	deleting       bool      // its deletion has begun: nothing more is made of it
	deleted        bool
}

// newBox makes the box of a stored record; its policy is not in force yet.
func newBox(r store.Box, p store.Policy, headers store.Headers, hosted api.Hosted) *box {
	b := &box{
		name: r.Name, createdAt: r.CreatedAt, attached: r.Attached, env: r.Env, layers: r.Layers, record: r, hosted: hosted, status: api.Status(r.State), problem: r.Error,
		spec: p.Spec, named: p.Named, leases: p.Leases, version: p.Version, lastVersion: p.Version, headers: headers.Rules, headersVersion: headers.Version,
	}
	b.ID, b.V4, b.V6 = r.ID, r.V4, r.V6
	if r.Attached != nil {
		b.Search = namesOfSearch(r.Attached.Search)
	}
	b.gate.Touch(r.UpdatedAt)
	b.publish()
	return b
}

// namesOfSearch parses a stored search list.
func namesOfSearch(list []string) (names []name.Name) {
	for _, s := range list {
		if n, err := name.Parse(s); err == nil {
			names = append(names, n)
		}
	}
	return names
}

// unlocked runs a slow step of a change of the box without its lock, so that changes of all boxes do not wait for this
// one. Afterwards the box may have changed; it may even be deleted. The caller holds b.mu.
func (b *box) unlocked(step func() error) error {
	b.mu.Unlock()
	defer b.mu.Lock()
	return step()
}

// gone returns ErrNotFound for a box that was deleted while the caller waited for its lock.
func (b *box) gone() error {
	if b.deleted {
		return api.ErrNotFound
	}
	return nil
}

// connected reports whether the box has its network. The caller holds b.mu.
func (b *box) connected() bool { return b.Policy.Load() != nil }

func (b *box) policyState() api.PolicyState {
	return api.PolicyState{Spec: b.spec, Named: b.named, Version: b.version, Warnings: b.warnings()}
}

// take notes a policy that is in force and stored. The caller holds b.mu.
func (b *box) take(p store.Policy) {
	b.spec, b.named, b.leases, b.version = p.Spec, p.Named, p.Leases, p.Version
}

// storedPolicy is the policy in force as the store holds it.
func (b *box) storedPolicy() store.Policy {
	return store.Policy{Spec: b.spec, Version: b.version, Leases: b.leases, Named: b.named}
}

func (b *box) headerState() api.HeaderState {
	return api.HeaderState{Rules: b.headers, Version: b.headersVersion, Warnings: b.warnings()}
}

// warnings are those of the policy in force; a box without network has none.
func (b *box) warnings() []document.Problem {
	if c := b.Policy.Load(); c != nil {
		return c.Warnings()
	}
	return nil
}

// settled waits until no change of the box's state is under way. The caller holds b.mu, which is released meanwhile.
func (b *box) settled(ctx context.Context) error {
	for b.moving != nil {
		moving := b.moving
		err := b.unlocked(func() error {
			select {
			case <-moving:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
		if err != nil {
			return err
		}
	}
	return b.gone()
}

// move begins a change of the box's state, during which nobody enters, and returns what ends it. The caller holds b.mu at both
// times.
func (b *box) move() (end func()) {
	b.moving = make(chan struct{})
	b.publish()
	return func() {
		close(b.moving)
		b.moving = nil
		b.publish()
	}
}

// publish makes the present state what the API shows, and lets users in if the box is awake. The caller holds b.mu.
func (b *box) publish() {
	if b.gate.Close(); b.status == api.StatusIdle && b.moving == nil && !b.deleted {
		b.gate.Open()
	}
	inForce := b.storedPolicy()
	b.timed.Store(&inForce)
	b.shown.Store(&api.Box{
		ID: b.ID, Name: b.name, Labels: b.record.Labels, Size: b.record.Size, Runtime: b.record.Runtime,
		KeepAlive: b.record.KeepAlive, InitCommand: b.record.InitCommand, Ephemeral: b.record.Ephemeral,
		ExpiresAt: b.record.ExpiresAt, Status: b.status, Error: b.problem, V4: b.V4, V6: b.V6, Source: b.record.Source, Limits: api.BoxLimits(b.record.Limits), Policy: b.policyState(),
		Hosted: b.hosted, Attached: attachedView(b.record.Attached), CreatedBy: b.record.CreatedBy, CreatedAt: b.createdAt, UpdatedAt: b.record.UpdatedAt,
	})
}

// showError shows the box in state error for as long as this gateway runs: at the next start the stored state counts.
// The caller holds b.mu.
func (b *box) showError(problem string) {
	b.status, b.problem = api.StatusError, problem
	b.publish()
}

// view is the box as the API shows it.
func (b *box) view() api.Box {
	v := *b.shown.Load()
	if v.Status == api.StatusIdle && b.gate.Users() > 0 {
		v.Status = api.StatusRunning
	}
	if line := b.progress.Load(); line != nil {
		v.Progress = *line
	}
	v.LastActivity, v.OwnLimits = b.gate.Last(), b.Limits.Load()
	return v
}

// viewWithWarnings is the answer to the request that made the box. The caller holds b.mu.
func (b *box) viewWithWarnings() api.Box {
	v := b.view()
	v.Warnings = b.warnings()
	return v
}

// attachedView is what the API shows of what was attached.
func attachedView(a *store.Attached) *api.Attached {
	if a == nil {
		return nil
	}
	return &api.Attached{Kind: a.Kind, Ref: a.Ref, Container: a.Container, Stack: cmp.Or(a.Stack, api.StackHost)}
}
