package state

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"boxgate/agents"
	"boxgate/api"
	"boxgate/host/idle"
	"boxgate/host/sandboxns"
	"boxgate/launcher"
	"boxgate/launcher/oci"
	"boxgate/policy"
	"boxgate/policy/document"
	"boxgate/policy/name"
	"boxgate/store"
)

// Box is one box in memory: the state that the data path reads, and the state that changes start from.
type Box struct {
	policy.Box // its Policy is nil while the box is disconnected
	Name       string
	CreatedAt  time.Time
	Attached   *store.Attached        // the first attachment; nil: launched. Record has the current one
	env        map[string]name.Secret // for every command
	Layers     []string               // of the snapshot it was created from

	Shown    atomic.Pointer[api.Box]           // the API's view; published after each change, so that readers do not wait for changes
	Applied  atomic.Pointer[store.Policy]      // the applied policy with its leases; published likewise
	Gate     idle.Gate                         // open while the box is idle and is not changing state
	Tap      *api.Tap                          // of a virtual machine; set before the box is in the table
	Sandbox  atomic.Pointer[Attachment]        // current sandbox of an attached box
	Token    atomic.Pointer[store.RemoteToken] // of a remote box; nil: none; published as Shown is
	Progress atomic.Pointer[string]            // of the preparation of its image; nil: not preparing

	EndingLeases  atomic.Bool          // leases are being ended
	Waking        atomic.Bool          // a visitor's data is waking the box
	Spent         atomic.Bool          // the box has used up its quota and is cut off
	Asks          atomic.Pointer[bool] // whether the box may ask for approvals; nil: as configured
	ChangingSpent atomic.Bool          // Spent is being changed

	mu             sync.Mutex    // serialises changes; held for the whole change
	StateChange    chan struct{} // closed when the running change of state ends; nil: not changing
	Record         store.Box
	Spec           policy.Spec
	Named          string         // the named policy that the box follows, whose copy is Spec; may be empty
	Leases         []store.Lease  // temporary entries in addition to Spec; ended ones are not compiled
	Version        uint64         // of the applied policy
	LastVersion    uint64         // the highest ever assigned: the version of a rolled back change is not reused
	Unended        store.Policy   // without ended leases, and not applied yet because that failed; zero: none
	Unstored       []store.Policy // in force without ended leases before the store could be written, the oldest first
	Headers        []policy.HeaderRule
	HeadersVersion uint64
	Hosted         api.Hosted
	Status         api.Status
	Problem        string        // the reason for Status error
	FilledDisk     bool          // paused because it filled the disk
	Ended          bool          // in state error because its first process has ended; it can be started again
	RatesChangedAt time.Time     // last rate change by a key without the role admin
	Expiry         *time.Timer   // deletes the box at its end; nil: never
	RenewedAt      time.Duration // on the boot clock, when it got a new end as it was resumed; 0: not since the gateway's start
	Starts         uint64        // number of times its first process was started or recovered
	Rooted         bool          // it was started last with launcher.root
	Alone          bool          // the global header rules do not apply to it; set before it is compiled
	Deleting       bool          // its deletion has begun: no further steps create anything for it
	Deleted        bool
}

// Lock takes the lock of the box, which every change needs.
func (b *Box) Lock() { b.mu.Lock() }

// Unlock releases the lock of the box.
func (b *Box) Unlock() { b.mu.Unlock() }

// TryLock takes the lock of the box if it is free.
func (b *Box) TryLock() bool { return b.mu.TryLock() }

// NewBox returns the box of a stored record. Its policy is not applied yet. last is the highest version that its policy ever had, also
// if it was rolled back.
func NewBox(r store.Box, p store.Policy, headers store.Headers, hosted api.Hosted, last uint64) *Box {
	b := &Box{
		Name: r.Name, CreatedAt: r.CreatedAt, Attached: r.Attached, env: r.Env, Layers: r.Layers, Record: r, Hosted: hosted, Status: api.Status(r.State), Problem: r.Error,
		Spec: p.Spec, Named: p.Named, Leases: p.Leases, Version: p.Version, LastVersion: max(last, p.Version), Headers: headers.Rules, HeadersVersion: headers.Version,
	}
	b.ID, b.V4, b.V6 = r.ID, r.V4, r.V6
	if r.Attached != nil {
		b.Search = namesOfSearch(r.Attached.Search)
	}
	b.Gate.Touch(r.UpdatedAt)
	b.Publish()
	return b
}

// namesOfSearch parses a stored search list, skipping invalid names.
func namesOfSearch(list []string) (names []name.Name) {
	for _, s := range list {
		if n, err := name.Parse(s); err == nil {
			names = append(names, n)
		}
	}
	return names
}

// Unlocked runs a slow step of a change without the lock of the box, so that changes of all boxes do not wait for this
// one. Afterwards the box may have changed or been deleted. The caller holds the lock of b.
func (b *Box) Unlocked(step func() error) error {
	b.Unlock()
	defer b.Lock()
	return step()
}

// Gone returns [api.ErrNotFound] if the box was deleted while the caller waited for its lock.
func (b *Box) Gone() error {
	if b.Deleted {
		return api.ErrNotFound
	}
	return nil
}

// Connected reports whether the box has its network. The caller holds the lock of b.
func (b *Box) Connected() bool { return b.Policy.Load() != nil }

// policyState returns the policy for the API, its leases without the time that is left.
func (b *Box) policyState() api.PolicyState {
	s := api.PolicyState{Spec: b.Spec, Named: b.Named, Version: b.Version, Warnings: b.warnings()}
	for _, l := range b.Leases {
		s.Leases = append(s.Leases, api.Lease{LeaseEntry: api.LeaseEntry{Allow: l.Allow, Audit: l.Audit, Entry: l.Entry}, StartedAt: l.StartedAt, ExpiresAt: l.ExpiresAt})
	}
	return s
}

// SetPolicy sets the policy in memory after it was applied and stored. The caller holds the lock of b.
func (b *Box) SetPolicy(p store.Policy) {
	b.Spec, b.Named, b.Leases, b.Version = p.Spec, p.Named, p.Leases, p.Version
}

// StoredPolicy returns the current policy in the store's form.
func (b *Box) StoredPolicy() store.Policy {
	return store.Policy{Spec: b.Spec, Version: b.Version, Leases: b.Leases, Named: b.Named}
}

// HeaderState returns the header rules of the box. The caller holds the lock of b.
func (b *Box) HeaderState() api.HeaderState {
	return api.HeaderState{Rules: b.Headers, Version: b.HeadersVersion, Warnings: b.warnings()}
}

// warnings returns the warnings of the applied policy, nil for a disconnected box.
func (b *Box) warnings() []document.Problem {
	if c := b.Policy.Load(); c != nil {
		return c.Warnings()
	}
	return nil
}

// AwaitStateChange waits until no change of state is running. The caller holds the lock of b, which is released while
// waiting.
func (b *Box) AwaitStateChange(ctx context.Context) error {
	for b.StateChange != nil {
		moving := b.StateChange
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

// BeginStateChange begins a change of the box's state, during which no user can enter, and returns a function that ends it. The
// caller holds the lock of b for both calls.
func (b *Box) BeginStateChange() (end func()) {
	b.StateChange = make(chan struct{})
	b.Publish()
	return func() {
		close(b.StateChange)
		b.StateChange = nil
		b.Publish()
	}
}

// Publish makes the current state visible to the API, and opens the gate if the box is awake. The caller holds the lock
// of b.
func (b *Box) Publish() {
	if b.Gate.Close(); b.Status == api.StatusIdle && b.StateChange == nil && !b.Deleted {
		b.Gate.Open()
	}
	inForce := b.StoredPolicy()
	b.Applied.Store(&inForce)
	b.Asks.Store(b.Record.Asks)
	if a := b.Record.Attached; b.Deleting {
		b.Token.Store(nil) // no connection enters after the last ones were cut
	} else if a != nil {
		b.Token.Store(a.Token)
	}
	b.Shown.Store(&api.Box{
		ID: b.ID, Name: b.Name, Labels: b.Record.Labels, Metadata: b.Record.Metadata, Size: b.Record.Size, Runtime: b.Record.Runtime,
		KeepAlive: b.Record.KeepAlive, InitCommand: b.Record.InitCommand, User: b.Record.User, Home: b.Record.Home, Ephemeral: b.Record.Ephemeral,
		ExpiresAt: b.Record.ExpiresAt, OnEnd: b.Record.OnEnd, AutoResume: b.Record.AutoResume, PausedAtEnd: b.Record.PausedAtEnd, Status: b.Status, Error: b.Problem, V4: b.V4, V6: b.V6, Source: b.Record.Source, Root: b.Rooted, Limits: api.BoxLimits(b.Record.Limits), Policy: b.policyState(),
		Hosted: b.Hosted, Attached: attachedView(b.Record.Attached, b.Tap), CreatedBy: b.Record.CreatedBy, CreatedAt: b.CreatedAt, UpdatedAt: b.Record.UpdatedAt,
	})
}

// ShowError puts the box in state error without storing that: the next start uses the stored state. The caller holds the
// lock of b.
func (b *Box) ShowError(problem string) {
	b.Status, b.Problem = api.StatusError, problem
	b.Publish()
}

// View returns the box as the API shows it.
func (b *Box) View() api.Box {
	v := *b.Shown.Load()
	if v.Status == api.StatusIdle && b.Gate.Users() > 0 {
		v.Status = api.StatusRunning
	}
	if line := b.Progress.Load(); line != nil {
		v.Progress = *line
	}
	v.LastActivity, v.EffectiveLimits = b.Gate.Last(), b.Limits.Load()
	return v
}

// ViewWithWarnings returns the view for the request that created the box. The caller holds the lock of b.
func (b *Box) ViewWithWarnings() api.Box {
	v := b.View()
	v.Warnings = b.warnings()
	return v
}

// attachedView converts a stored attachment to its API form. tap is the description of its tap, if any.
func attachedView(a *store.Attached, tap *api.Tap) *api.Attached {
	if a == nil {
		return nil
	}
	note := ""
	if a.Kind == api.AttachOCI {
		note = oci.ByName(a.Runtime).AttachedNote()
	}
	return &api.Attached{Note: note, Kind: a.Kind, Ref: a.Ref, Container: a.Container, Stack: cmp.Or(a.Stack, api.StackHost), Runtime: a.Runtime, NetNS: a.NetNS, Pod: a.Pod, Tap: tap, Remote: remoteView(a)}
}

// remoteView returns what the API shows of a remote box; nil for another.
func remoteView(a *store.Attached) *api.Remote {
	if a.Kind != api.AttachRemote {
		return nil
	}
	v := &api.Remote{Note: api.RemoteNote}
	if a.Token != nil {
		v.TokenExpiresAt = a.Token.ExpiresAt.Unix()
	}
	return v
}

// AwaitLock waits until the lock of the box is free.
func (b *Box) AwaitLock() {
	b.Lock()
	defer b.Unlock()
}

// TryLockOrWait takes the lock of the box if it is free, or waits for it if last is set.
func (b *Box) TryLockOrWait(last bool) bool {
	if last {
		b.Lock()
		return true
	}
	return b.TryLock()
}

// SetState stores the state of the box, then sets it in memory. The caller holds the lock of b.
func (b *Box) SetState(records store.Boxes, s api.Status, problem string) error {
	if b.Deleting && s != api.StatusDeleted {
		return api.ErrNotFound // the state of a box that is being deleted is final
	}
	record := b.Record
	record.State, record.Error, record.UpdatedAt = string(s), problem, time.Now()
	if err := records.Update(record); err != nil {
		return err
	}
	b.Record, b.Status, b.Problem = record, s, problem
	b.Publish()
	return nil
}

// environment returns the box's own variables and the placeholders of the applied header rules. Placeholders take
// precedence, because they keep a secret out of the box. The environment is passed to every command, and kept out of the
// container's configuration, which is on disk in the clear.
func (b *Box) environment() map[string]string {
	env := make(map[string]string, len(b.env))
	for name, value := range b.env {
		env[name] = value.Reveal()
	}
	for name, value := range agents.Variables(b.Shown.Load().Hosted) { // a variable of the box's own stays
		if _, given := env[name]; !given {
			env[name] = value
		}
	}
	maps.Copy(env, b.Policy.Load().Tokens())
	return env
}

// EnvironmentWith returns the environment with variables added for one command. They override the box's own variables,
// but not the placeholders of the applied header rules.
func (b *Box) EnvironmentWith(added map[string]string) map[string]string {
	env := b.environment()
	maps.Copy(env, added)
	maps.Copy(env, b.Policy.Load().Tokens())
	return env
}

// Attachment is the sandbox that a box is attached to.
type Attachment struct {
	sandboxns.Sandbox
	Turn uint64 // number of changes so far
}

// Follow updates Sandbox from the record. pin is the path of the pinned network namespace, "" if the sandbox has lost it. The
// caller holds the lock of b.
func (b *Box) Follow(pin string) {
	a := b.Record.Attached
	next := &Attachment{Sandbox: sandboxns.Sandbox{Kind: a.Kind, Ref: a.Ref, Container: a.Container, NetNS: a.NetNS, Pin: pin}}
	if last := b.Sandbox.Load(); last != nil {
		next.Turn = last.Turn + 1
	}
	b.Sandbox.Store(next)
}

// ShowGone shows that the box's sandbox has no network namespace. The caller holds the lock of b.
func (b *Box) ShowGone(problem string) {
	b.Status, b.Problem = api.StatusGone, problem
	b.Publish()
}

// ErrAttached refuses calls that only the owner of an attached sandbox can serve.
var ErrAttached = api.Errorf(api.ErrConflict, "the box is attached: its maker runs the commands in it")

// IsRemote reports whether the sandbox of a box runs elsewhere, so that it has no interface and no namespace here.
func (b *Box) IsRemote() bool { return b.Attached != nil && b.Attached.Kind == api.AttachRemote }

// ErrEnded is the error for a box whose first process has ended.
var ErrEnded = errors.New("its first process has ended: it was killed, or the box ran out of memory; resume the box to start it again from its files")

// Sandboxes manages the containers of launched boxes and the network namespaces of attached ones.
type Sandboxes struct{ *launcher.Launcher }

// Namespace returns the path of the network namespace of a running box.
func (s Sandboxes) Namespace(ctx context.Context, b *Box) (string, error) {
	if b.Attached != nil {
		return s.AttachedNamespace(b.ID)
	}
	status, err := s.State(ctx, b.ID)
	if err != nil {
		return "", err
	}
	return NamespaceOf(status)
}

// HasGuestStack reports whether the sandbox of a box runs its own network stack on the interface.
func (s Sandboxes) HasGuestStack(b *Box) bool {
	if b.Attached != nil {
		return b.Attached.Stack == api.StackGuest
	}
	return s.HasOwnStack()
}

// NamespaceOf returns the path of the network namespace of a running launched box.
func NamespaceOf(status launcher.Status) (string, error) {
	switch status.State {
	case launcher.StateIdle, launcher.StateRunning, launcher.StatePaused:
		return status.NetNS, nil
	case launcher.StateStopped:
		return "", errors.New("it does not run since the host was restarted: use or resume the box first")
	}
	return "", ErrEnded
}

// WhyEnded returns the reason why the first process of a box has ended, as far as it is known.
func (s Sandboxes) WhyEnded(id policy.BoxID) error {
	if used, err := s.Usage(id); err == nil && used.OOMKills > 0 {
		return fmt.Errorf("%w (the box ran out of memory: the kernel has killed %d of its processes for that)", ErrEnded, used.OOMKills)
	}
	return ErrEnded
}

// Release removes the processes and files of a launched box, or unpins the namespace of an attached one.
func (s Sandboxes) Release(ctx context.Context, b *Box) error {
	if b.Attached != nil {
		return s.DetachNamespace(b.ID)
	}
	return s.Delete(ctx, b.ID)
}

// PruneAttached unpins namespaces that do not belong to a box.
func (s Sandboxes) PruneAttached(known *Table) error {
	ids, err := s.AttachedBoxes()
	if err != nil {
		return err
	}
	for _, id := range ids {
		if _, err := known.Find(id); err != nil {
			if err := s.DetachNamespace(id); err != nil {
				return err
			}
		}
	}
	return nil
}
