package state

import (
	"cmp"
	"context"
	"maps"
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

// Box is one box in memory: what the data path reads, and what its changes start from.
type Box struct {
	policy.Box // its Policy is nil while the box has no network
	Name       string
	CreatedAt  time.Time
	Attached   *store.Attached        // as it was first; nil: launched here. What it is attached to now is in Record
	env        map[string]name.Secret // given to every command
	Layers     []string               // of the snapshot that it was made from

	Shown    atomic.Pointer[api.Box]      // what the API shows; published after each change, so that no reader waits for one
	Timed    atomic.Pointer[store.Policy] // the policy in force, with its leases; published likewise
	Gate     awake.Gate                   // open while the box is idle and stays so
	Sandbox  atomic.Pointer[Attachment]   // what an attached box is attached to
	Progress atomic.Pointer[string]       // of the preparation of its image; nil: none is under way

	EndingLeases atomic.Bool // its leases are being ended
	Rousing      atomic.Bool // what a visitor has sent is waking it
	Spent        atomic.Bool // it has used up its quota, and is cut off
	Sparing      atomic.Bool // that is being changed

	mu             sync.Mutex    // serialises changes; held for as long as one takes
	Moving         chan struct{} // closed at the end of the change of state that is under way; nil: none is
	Record         store.Box
	Spec           policy.Spec
	Named          string        // the named policy that it follows, which says Spec; "": none
	Leases         []store.Lease // what it allows or denies for a time besides; those that have ended are not compiled
	Version        uint64        // of the policy in force
	LastVersion    uint64        // the highest ever assigned: one that was rolled back is not used again
	Headers        []policy.HeaderRule
	HeadersVersion uint64
	Hosted         api.Hosted
	Status         api.Status
	Problem        string    // why Status is error
	Filling        bool      // it was paused because it filled the disk
	Ended          bool      // because its first process has ended: it can be started again
	Rated          time.Time // when a key without the role admin changed its rates last
	Life           uint64    // how often its first process was started or found
	Deleting       bool      // its deletion has begun: nothing more is made of it
	Deleted        bool
}

// Lock takes the lock of the box, under which it is changed.
func (b *Box) Lock() { b.mu.Lock() }

// Unlock gives the lock of the box back.
func (b *Box) Unlock() { b.mu.Unlock() }

// TryLock takes the lock of the box unless somebody has it.
func (b *Box) TryLock() bool { return b.mu.TryLock() }

// NewBox makes the box of a stored record; its policy is not in force yet.
func NewBox(r store.Box, p store.Policy, headers store.Headers, hosted api.Hosted) *Box {
	b := &Box{
		Name: r.Name, CreatedAt: r.CreatedAt, Attached: r.Attached, env: r.Env, Layers: r.Layers, Record: r, Hosted: hosted, Status: api.Status(r.State), Problem: r.Error,
		Spec: p.Spec, Named: p.Named, Leases: p.Leases, Version: p.Version, LastVersion: p.Version, Headers: headers.Rules, HeadersVersion: headers.Version,
	}
	b.ID, b.V4, b.V6 = r.ID, r.V4, r.V6
	if r.Attached != nil {
		b.Search = namesOfSearch(r.Attached.Search)
	}
	b.Gate.Touch(r.UpdatedAt)
	b.Publish()
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

// Unlocked runs a slow step of a change of the box without its lock, so that changes of all boxes do not wait for this
// one. Afterwards the box may have changed; it may even be deleted. The caller holds the lock of b.
func (b *Box) Unlocked(step func() error) error {
	b.Unlock()
	defer b.Lock()
	return step()
}

// Gone returns ErrNotFound for a box that was deleted while the caller waited for its lock.
func (b *Box) Gone() error {
	if b.Deleted {
		return api.ErrNotFound
	}
	return nil
}

// Connected reports whether the box has its network. The caller holds the lock of b.
func (b *Box) Connected() bool { return b.Policy.Load() != nil }

func (b *Box) policyState() api.PolicyState {
	return api.PolicyState{Spec: b.Spec, Named: b.Named, Version: b.Version, Warnings: b.warnings()}
}

// TakePolicy notes a policy that is in force and stored. The caller holds the lock of b.
func (b *Box) TakePolicy(p store.Policy) {
	b.Spec, b.Named, b.Leases, b.Version = p.Spec, p.Named, p.Leases, p.Version
}

// StoredPolicy is the policy in force as the store holds it.
func (b *Box) StoredPolicy() store.Policy {
	return store.Policy{Spec: b.Spec, Version: b.Version, Leases: b.Leases, Named: b.Named}
}

// HeaderState returns the header rules of the box. The caller holds the lock of b.
func (b *Box) HeaderState() api.HeaderState {
	return api.HeaderState{Rules: b.Headers, Version: b.HeadersVersion, Warnings: b.warnings()}
}

// warnings are those of the policy in force; a box without network has none.
func (b *Box) warnings() []document.Problem {
	if c := b.Policy.Load(); c != nil {
		return c.Warnings()
	}
	return nil
}

// AwaitSettled waits until no change of the box's state is under way. The caller holds the lock of b, which is released meanwhile.
func (b *Box) AwaitSettled(ctx context.Context) error {
	for b.Moving != nil {
		moving := b.Moving
		err := b.Unlocked(func() error {
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
	return b.Gone()
}

// BeginMove begins a change of the box's state, during which nobody enters, and returns what ends it. The caller holds the lock of b at both
// times.
func (b *Box) BeginMove() (end func()) {
	b.Moving = make(chan struct{})
	b.Publish()
	return func() {
		close(b.Moving)
		b.Moving = nil
		b.Publish()
	}
}

// Publish makes the present state what the API shows, and lets users in if the box is awake. The caller holds the lock of b.
func (b *Box) Publish() {
	if b.Gate.Close(); b.Status == api.StatusIdle && b.Moving == nil && !b.Deleted {
		b.Gate.Open()
	}
	inForce := b.StoredPolicy()
	b.Timed.Store(&inForce)
	b.Shown.Store(&api.Box{
		ID: b.ID, Name: b.Name, Labels: b.Record.Labels, Size: b.Record.Size, Runtime: b.Record.Runtime,
		KeepAlive: b.Record.KeepAlive, InitCommand: b.Record.InitCommand, Ephemeral: b.Record.Ephemeral,
		ExpiresAt: b.Record.ExpiresAt, Status: b.Status, Error: b.Problem, V4: b.V4, V6: b.V6, Source: b.Record.Source, Limits: api.BoxLimits(b.Record.Limits), Policy: b.policyState(),
		Hosted: b.Hosted, Attached: attachedView(b.Record.Attached), CreatedBy: b.Record.CreatedBy, CreatedAt: b.CreatedAt, UpdatedAt: b.Record.UpdatedAt,
	})
}

// ShowError shows the box in state error for as long as this gateway runs: at the next start the stored state counts.
// The caller holds the lock of b.
func (b *Box) ShowError(problem string) {
	b.Status, b.Problem = api.StatusError, problem
	b.Publish()
}

// View is the box as the API shows it.
func (b *Box) View() api.Box {
	v := *b.Shown.Load()
	if v.Status == api.StatusIdle && b.Gate.Users() > 0 {
		v.Status = api.StatusRunning
	}
	if line := b.Progress.Load(); line != nil {
		v.Progress = *line
	}
	v.LastActivity, v.OwnLimits = b.Gate.Last(), b.Limits.Load()
	return v
}

// ViewWithWarnings is the answer to the request that made the box. The caller holds the lock of b.
func (b *Box) ViewWithWarnings() api.Box {
	v := b.View()
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

// AwaitLock waits until nobody has the lock of the box.
func (b *Box) AwaitLock() {
	b.Lock()
	defer b.Unlock()
}

// TryLockOrWait takes the lock of the box, unless the box is busy and this is not the last time.
func (b *Box) TryLockOrWait(last bool) bool {
	if last {
		b.Lock()
		return true
	}
	return b.TryLock()
}

// SetState stores the state of the box and takes it over. The caller holds the lock of b.
func (b *Box) SetState(db *store.DB, s api.Status, problem string) error {
	if b.Deleting && s != api.StatusDeleted {
		return api.ErrNotFound // the state of a box that goes is final
	}
	record := b.Record
	record.State, record.Error, record.UpdatedAt = string(s), problem, time.Now()
	if err := db.UpdateBox(record); err != nil {
		return err
	}
	b.Record, b.Status, b.Problem = record, s, problem
	b.Publish()
	return nil
}

// environment is that given with the box, and the placeholders of the header rules in force, which take precedence: they keep
// a secret out of the box. It is added to every command and is not in the container's own configuration, which is on disk
// in the clear.
func (b *Box) environment() map[string]string {
	env := make(map[string]string, len(b.env))
	for name, value := range b.env {
		env[name] = value.Reveal()
	}
	maps.Copy(env, b.Policy.Load().Tokens())
	return env
}

// EnvironmentWith is the environment with variables added for one command. They win over those given with the box, but not over the
// placeholders of the header rules in force.
func (b *Box) EnvironmentWith(added map[string]string) map[string]string {
	env := b.environment()
	maps.Copy(env, added)
	maps.Copy(env, b.Policy.Load().Tokens())
	return env
}
