package box

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"go.uber.org/zap"

	"boxgate/agents"
	"boxgate/api"
	"boxgate/certs"
	"boxgate/host/boxdial"
	"boxgate/host/change"
	"boxgate/host/enforce"
	"boxgate/host/rules"
	"boxgate/host/state"
	"boxgate/host/usage"
	"boxgate/internal/fault"
	"boxgate/internal/required"
	"boxgate/launcher"
	"boxgate/policy"
	"boxgate/store"
	"boxgate/store/history"
)

// URLs manages the public URLs of boxes.
type URLs interface {
	// Recover loads the stored public URLs of a box.
	Recover(b *state.Box) error
	// Drop forgets the public URLs of a box and cuts their connections.
	Drop(id policy.BoxID)
}

// ProvisionerConfig configures a [Provisioner].
type ProvisionerConfig struct {
	Log          *zap.Logger
	Records      store.Boxes
	Rules        store.Rules
	Installation store.Installation
	Shared       *rules.Shared
	Net          *enforce.Enforcer
	Sandboxes    state.Sandboxes
	Minter       *certs.Minter
	Authorities  *Authorities
	URLs         URLs
	Reach        *boxdial.Boxes
	// Fetch provides the layers of snapshots of other hosts, for an API key. progress is called with one line for each.
	Fetch  func(ctx context.Context, key string, layers []string, progress func(string)) error `required:"false"`
	Roots  []byte                                                                              // additional CA certificates that launched boxes trust, in PEM
	Agents []byte                                                                              `required:"false"` // introduction for agents in launched boxes; empty: none
	DNS    []netip.Addr                                                                        // resolvers of boxes
}

// Provisioner runs the steps that create boxes or start them again. Safe for concurrent use.
type Provisioner struct {
	log          *zap.Logger
	records      store.Boxes
	rules        store.Rules
	installation store.Installation
	shared       *rules.Shared
	net          *enforce.Enforcer
	sandboxes    state.Sandboxes
	minter       *certs.Minter
	authorities  *Authorities
	urls         URLs
	reach        *boxdial.Boxes
	fetch        func(ctx context.Context, key string, layers []string, progress func(string)) error
	roots        []byte
	agents       []byte
	dns          []netip.Addr
}

// NewProvisioner returns a Provisioner.
func NewProvisioner(c ProvisionerConfig) (*Provisioner, error) {
	if err := required.Fields(c); err != nil {
		return nil, err
	}
	return &Provisioner{
		log: c.Log, records: c.Records, rules: c.Rules, installation: c.Installation, shared: c.Shared, net: c.Net, sandboxes: c.Sandboxes, minter: c.Minter, authorities: c.Authorities, urls: c.URLs,
		reach: c.Reach, fetch: c.Fetch, roots: c.Roots, agents: c.Agents, dns: c.DNS,
	}, nil
}

// provisioning is one box while it is launched, attached or recovered.
type provisioning struct {
	*Provisioner
	box     *state.Box
	foreign *os.File                         // the network namespace to attach; nil unless the box is being attached
	files   []agents.File                    // for the home directory of a new box
	note    func(format string, args ...any) // adds a warning to the log of a new box
	running map[policy.BoxID]launcher.Status // containers launched by an earlier run; nil unless the box is being recovered

	compiled *policy.Compiled
	ca       *certs.Authority
	netns    string
	undo     change.Undo
}

// step is one step of provisioning. A step with side effects adds its rollback to p.undo before it begins.
type step func(*provisioning, context.Context) error

// The lists of steps. Each compiles the policy and applies it without releasing the box's lock in between. It is applied
// before the first process of a launched box runs, and as soon as an attached or recovered box has its interface.
var (
	launchSteps = []step{
		(*provisioning).compile, (*provisioning).storeInitial, (*provisioning).ensureImage, // ensureImage releases the lock
		(*provisioning).compile, (*provisioning).addAuthority, (*provisioning).makeNamespace, (*provisioning).makeReachable,
		(*provisioning).connect, (*provisioning).awaitNetwork, (*provisioning).startProcess, (*provisioning).installSkills, (*provisioning).storeIdle,
	}
	attachSteps = []step{
		(*provisioning).compile, (*provisioning).storeInitial, (*provisioning).addAuthority, (*provisioning).pinNamespace,
		(*provisioning).makeReachable, (*provisioning).connect, (*provisioning).awaitNetwork, (*provisioning).storeIdle,
	}
	reattachSteps = []step{
		(*provisioning).compile, (*provisioning).addAuthority, (*provisioning).pinNamespace, (*provisioning).makeReachable,
		(*provisioning).connect, (*provisioning).awaitNetwork, (*provisioning).storeIdle,
	}
	recoverSteps = []step{ // all steps before the network, which boxes join together
		(*provisioning).compile, (*provisioning).findNamespace, (*provisioning).makeReachable, (*provisioning).addAuthority, (*provisioning).findURLs,
	}
	stoppedSteps = []step{(*provisioning).findURLs}                          // the box has no processes: see [Provisioner.Restart]
	rejoinSteps  = []step{(*provisioning).connect, (*provisioning).cutFlows} // for boxes that could not join together with the others
)

// leftoverError is a failure whose rollback failed as well.
type leftoverError struct{ cause, left error }

func (e *leftoverError) Error() string {
	return fmt.Sprintf("%v; and the rollback failed: %v", e.cause, e.left)
}

func (e *leftoverError) Unwrap() []error { return []error{e.cause, e.left} }

// errDeletedConcurrently is the error for a request whose box was deleted by another request.
var errDeletedConcurrently = api.Errorf(api.ErrConflict, "the box was deleted while it was being made")

// provision takes a box through steps. If one fails or panics, it undoes the steps in reverse order; if that fails too,
// the error is a *leftoverError. The caller holds the box's lock.
func (l *Provisioner) provision(ctx context.Context, p *provisioning, steps []step) error {
	p.Provisioner = l
	err := change.Contain(l.log, func() error {
		for _, s := range steps {
			if p.box.Deleting { // while a step had released the lock
				return errDeletedConcurrently
			}
			if err := s(p, ctx); err != nil {
				return err
			}
		}
		if p.box.Deleting {
			return errDeletedConcurrently
		}
		return nil
	}, zap.String("box", string(p.box.ID)))
	if err == nil {
		return nil
	}
	if p.box.Deleted { // its addresses may already be reused
		return errDeletedConcurrently
	}
	if left := p.undo.Run(ctx, l.log); left != nil {
		return &leftoverError{cause: err, left: left}
	}
	return err
}

// compile compiles the policy. The box is already in the table, so a change of the shared inputs is either compiled in or
// reaches the box later.
func (p *provisioning) compile(context.Context) (err error) {
	p.compiled, err = p.shared.Compile(p.box)
	return err
}

// storeInitial stores the policy and header rules of a new box. If the gateway dies before the box is complete, its next
// start removes the box.
func (p *provisioning) storeInitial(ctx context.Context) error {
	if err := fault.At(ctx, "create: record stored"); err != nil {
		return err
	}
	b := p.box
	by := change.OriginOf(ctx, history.Created)
	err := p.rules.StagePolicy(b.ID, b.StoredPolicy(), by)
	if err == nil {
		err = p.rules.StageHeaders(b.ID, b.Headers, b.HeadersVersion, by)
	}
	if err == nil {
		err = fault.At(ctx, "create: policy staged")
	}
	if err == nil {
		err = errors.Join(p.rules.CommitPolicy(b.ID), p.rules.CommitHeaders(b.ID))
	}
	if err != nil {
		return change.NotStored(p.log, "its policy could not be stored", err)
	}
	return nil
}

// addAuthority registers the box's CA with the proxy. A new box gets a new CA, which is stored.
func (p *provisioning) addAuthority(ctx context.Context) (err error) {
	if p.ca, err = p.authorities.ofBox(p.box.ID); err != nil {
		return fmt.Errorf("its certificate authority: %w", err)
	}
	if err := fault.At(ctx, "create: authority stored"); err != nil {
		return err
	}
	p.undo.Add(func(context.Context) error { p.minter.Remove(p.box.ID); return nil })
	return p.minter.Add(p.box.ID, p.ca)
}

// makeNamespace makes the network namespace of a box to be launched, without any process in it.
func (p *provisioning) makeNamespace(ctx context.Context) (err error) {
	p.undo.Add(func(ctx context.Context) error {
		return p.box.Unlocked(func() error { return p.sandboxes.Delete(ctx, p.box.ID) })
	})
	if p.netns, err = p.sandboxes.Prepare(ctx, p.launchSpec()); err != nil {
		return fmt.Errorf("its network namespace: %w", err)
	}
	return nil
}

// pinNamespace pins the network namespace of a box to be attached.
func (p *provisioning) pinNamespace(ctx context.Context) (err error) {
	p.undo.Add(func(context.Context) error { return p.sandboxes.DetachNamespace(p.box.ID) })
	p.netns, err = p.sandboxes.AttachNamespace(p.box.ID, p.foreign)
	return errors.Join(err, fault.At(ctx, "attach: namespace pinned"))
}

// findNamespace finds the network namespace of a running box.
func (p *provisioning) findNamespace(context.Context) (err error) {
	if p.box.Attached != nil {
		p.netns, err = p.sandboxes.AttachedNamespace(p.box.ID)
		return err
	}
	status, found := p.running[p.box.ID]
	if !found {
		return launcher.ErrNotFound
	}
	p.box.Rooted = status.Root
	p.netns, err = state.NamespaceOf(status)
	return err
}

// makeReachable lets public URLs reach servers on the box's loopback. A sandbox with its own network stack is skipped:
// its namespace is not the sandbox's network, so it is reachable by its address only.
func (p *provisioning) makeReachable(context.Context) error {
	if p.sandboxes.HasGuestStack(p.box) {
		return nil
	}
	p.undo.Add(func(context.Context) error { p.reach.Remove(p.box.ID); return nil })
	return p.reach.Add(p.box.ID, p.box.V6, p.netns)
}

// findURLs loads the box's public URLs. Visitors are not served yet.
func (p *provisioning) findURLs(context.Context) error {
	p.undo.Add(func(context.Context) error { p.urls.Drop(p.box.ID); return nil })
	return p.urls.Recover(p.box)
}

// connect gives the box a closed interface and applies its policy.
func (p *provisioning) connect(ctx context.Context) error {
	p.undo.Add(func(ctx context.Context) error { return p.net.Disconnect(ctx, &p.box.Box) })
	return p.net.Connect(ctx, &p.box.Box, p.location(), p.compiled)
}

// location returns the location of the box's interface.
func (p *provisioning) location() enforce.Interface {
	return enforce.Interface{NetNS: p.netns, GuestStack: p.sandboxes.HasGuestStack(p.box), Tap: tapOf(p.box.Record.Attached), Remote: p.box.IsRemote()}
}

// awaitNetwork waits until the box's first packet would get through.
func (p *provisioning) awaitNetwork(ctx context.Context) error {
	return p.unlockedStep(func() error { return p.net.Await(ctx, &p.box.Box) })
}

// startProcess starts the first process of a launched box.
func (p *provisioning) startProcess(ctx context.Context) error {
	if err := p.unlockedStep(func() error { return p.sandboxes.Create(ctx, p.launchSpec()) }); err != nil {
		return err
	}
	p.box.Rooted = p.sandboxes.GivesRoot()
	return fault.At(ctx, "create: box runs")
}

// unlockedStep runs a slow step without the box's lock. It fails if another request has disconnected the box meanwhile.
func (p *provisioning) unlockedStep(f func() error) error {
	if err := p.box.Unlocked(f); err != nil {
		return err
	}
	if !p.box.Connected() {
		return errDeletedConcurrently
	}
	return nil
}

// cutFlows cuts connections that the kernel may have accepted under a policy that was never committed.
func (p *provisioning) cutFlows(ctx context.Context) error { return p.net.CutFlows(ctx, &p.box.Box) }

// storeIdle completes a new box. From here on the next start keeps it.
func (p *provisioning) storeIdle(context.Context) error {
	if err := p.box.SetState(p.records, api.StatusIdle, ""); err != nil {
		return change.NotStored(p.log, "its state could not be stored", err)
	}
	return nil
}

func (p *provisioning) launchSpec() launcher.Spec {
	r := p.box.Record
	var files []launcher.HomeFile
	for _, f := range p.files {
		files = append(files, launcher.HomeFile(f))
	}
	return launcher.Spec{
		ID: r.ID, Image: r.Image, Layers: r.Layers, Size: launcher.Size(r.Size), CA: p.ca.CertificatePEM(), Roots: p.roots,
		Hostname: hostnameOf(r), Account: launcher.Account{Name: r.User, Home: r.Home}, Git: usage.GitIdentityOf(p.box.Hosted), DNS: p.dns, Agents: p.agents, Files: files,
	}
}

// RenewRoots adds the configured roots to the certificates of a running launched box, unless it was given them before.
func (l *Provisioner) RenewRoots(ctx context.Context, id policy.BoxID) error {
	ca, err := l.minter.Authority(id)
	if err != nil {
		return err
	}
	return l.sandboxes.RenewRoots(ctx, id, ca.CertificatePEM(), l.roots)
}

// Authorities holds the CAs of the boxes, and that of the installation.
type Authorities struct {
	store  store.Authorities
	minter *certs.Minter
	urls   *certs.Authority // nil unless the internal CA signs public URLs
}

// NewAuthorities returns the service. urls is nil unless the internal CA signs public URLs.
func NewAuthorities(stored store.Authorities, minter *certs.Minter, urls *certs.Authority) *Authorities {
	return &Authorities{stored, minter, urls}
}

// CA implements the Authorities of [boxgate/api/gateway].
func (a *Authorities) CA(_ context.Context, id policy.BoxID) ([]byte, error) {
	ca, err := a.minter.Authority(id)
	if err != nil {
		return nil, api.ErrNotFound
	}
	return ca.CertificatePEM(), nil
}

// IngressCA implements the Authorities of [boxgate/api/gateway].
func (a *Authorities) IngressCA(context.Context) ([]byte, error) {
	if a.urls == nil {
		return nil, api.Errorf(api.ErrNotFound, "the public URLs of this gateway do not use an internal CA: ingress.tls.mode is another")
	}
	return a.urls.CertificatePEM(), nil
}

// ofBox returns the interception CA of a box.
func (a *Authorities) ofBox(id policy.BoxID) (*certs.Authority, error) {
	return EnsureAuthority("boxgate box "+string(id),
		func() (store.CA, error) { return a.store.CA(id) },
		func(ca store.CA) error { return a.store.SetCA(id, ca) })
}

// EnsureAuthority returns the CA that load finds. On the first call, it makes one and saves it with keep.
func EnsureAuthority(name string, load func() (store.CA, error), keep func(store.CA) error) (*certs.Authority, error) {
	stored, err := load()
	if err == nil {
		return certs.LoadCA(stored.CertPEM, stored.KeyPEM)
	}
	if !errors.Is(err, store.ErrNotFound) {
		return nil, err
	}
	ca, err := certs.NewCA(name)
	if err != nil {
		return nil, err
	}
	key, err := ca.KeyPEM()
	if err != nil {
		return nil, err
	}
	return ca, keep(store.CA{CertPEM: ca.CertificatePEM(), KeyPEM: key})
}
