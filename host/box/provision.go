package box

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/certs"
	"boxgate/host/change"
	"boxgate/host/enforce"
	"boxgate/host/reach"
	"boxgate/host/rules"
	"boxgate/host/state"
	"boxgate/host/usage"
	"boxgate/internal/fault"
	"boxgate/internal/required"
	"boxgate/launcher"
	"boxgate/policy"
	"boxgate/store"
)

// URLs are the public URLs of boxes.
type URLs interface {
	// Recover makes the stored public URLs of a box known again.
	Recover(b *state.Box) error
	// Drop forgets the public URLs of a box and cuts their connections.
	Drop(id policy.BoxID)
}

// ProvisionerConfig has the parts of a [Provisioner].
type ProvisionerConfig struct {
	Log         *zap.Logger
	Store       *store.DB
	Shared      *rules.Shared
	Net         *enforce.Enforcer
	Sandboxes   state.Sandboxes
	Minter      *certs.Minter
	Authorities *Authorities
	URLs        URLs
	Reach       *reach.Boxes
	Roots       []byte       // in PEM, which launched boxes trust besides the public ones
	DNS         []netip.Addr // of boxes
}

// Provisioner takes boxes through the steps by which they come into being, and starts them again. Safe for concurrent use.
type Provisioner struct {
	log         *zap.Logger
	store       *store.DB
	shared      *rules.Shared
	net         *enforce.Enforcer
	sandboxes   state.Sandboxes
	minter      *certs.Minter
	authorities *Authorities
	urls        URLs
	reach       *reach.Boxes
	roots       []byte
	dns         []netip.Addr
}

// NewProvisioner makes a provisioner.
func NewProvisioner(c ProvisionerConfig) (*Provisioner, error) {
	if err := required.Fields(c); err != nil {
		return nil, err
	}
	return &Provisioner{
		log: c.Log, store: c.Store, shared: c.Shared, net: c.Net, sandboxes: c.Sandboxes, minter: c.Minter, authorities: c.Authorities, urls: c.URLs,
		reach: c.Reach, roots: c.Roots, dns: c.DNS,
	}, nil
}

// provisioning is one box on its way to being complete: launched, attached or recovered. Each way is a list of steps.
type provisioning struct {
	*Provisioner
	box     *state.Box
	foreign *os.File                         // the network namespace to attach; nil unless the box is attached now
	running map[policy.BoxID]launcher.Status // what was launched by an earlier run; nil unless the box is recovered

	compiled *policy.Compiled
	ca       *certs.Authority
	netns    string
	undo     change.Undo
}

// step is one step of provisioning. One that has effects to undo adds how to p.undo before it begins.
type step func(*provisioning, context.Context) error

// The lists of steps. In each the policy is compiled, and put in force without the box's lock having been released in between. It is
// in force before the first process of a launched box runs, and as soon as an attached or recovered box has its interface.
var (
	launchSteps = []step{
		(*provisioning).compile, (*provisioning).storeInitial, (*provisioning).ensureImage, // which releases the lock
		(*provisioning).compile, (*provisioning).addAuthority, (*provisioning).makeNamespace, (*provisioning).makeReachable,
		(*provisioning).connect, (*provisioning).await, (*provisioning).startProcess, (*provisioning).storeIdle,
	}
	attachSteps = []step{
		(*provisioning).compile, (*provisioning).storeInitial, (*provisioning).addAuthority, (*provisioning).pinNamespace,
		(*provisioning).makeReachable, (*provisioning).connect, (*provisioning).await, (*provisioning).storeIdle,
	}
	reattachSteps = []step{
		(*provisioning).compile, (*provisioning).addAuthority, (*provisioning).pinNamespace, (*provisioning).makeReachable,
		(*provisioning).connect, (*provisioning).await, (*provisioning).storeIdle,
	}
	recoverSteps = []step{ // until the network, which boxes get together
		(*provisioning).compile, (*provisioning).findNamespace, (*provisioning).makeReachable, (*provisioning).addAuthority, (*provisioning).findURLs,
	}
	stoppedSteps = []step{(*provisioning).findURLs}                          // nothing runs of the box: see [lifecycle.restart]
	rejoinSteps  = []step{(*provisioning).connect, (*provisioning).cutFlows} // if it failed for some of them
)

// leftoverError is a failure whose rollback failed as well.
type leftoverError struct{ cause, left error }

func (e *leftoverError) Error() string {
	return fmt.Sprintf("%v; and the rollback failed: %v", e.cause, e.left)
}

func (e *leftoverError) Unwrap() []error { return []error{e.cause, e.left} }

// errDeletedMeanwhile is the answer to the request for a box that another request deleted.
var errDeletedMeanwhile = api.Errorf(api.ErrConflict, "the box was deleted while it was being made")

// provision takes a box through steps. When one fails or panics, those before it are undone, the last one first; if that
// fails, the error is a *leftoverError. The caller holds the box's lock.
func (l *Provisioner) provision(ctx context.Context, p *provisioning, steps []step) error {
	p.Provisioner = l
	err := change.Contain(l.log, func() error {
		for _, s := range steps {
			if p.box.Deleting { // since a step that released the lock
				return errDeletedMeanwhile
			}
			if err := s(p, ctx); err != nil {
				return err
			}
		}
		if p.box.Deleting {
			return errDeletedMeanwhile
		}
		return nil
	}, zap.String("box", string(p.box.ID)))
	if err == nil {
		return nil
	}
	if p.box.Deleted { // its addresses may be another's by now
		return errDeletedMeanwhile
	}
	if left := p.undo.Run(ctx, l.log); left != nil {
		return &leftoverError{cause: err, left: left}
	}
	return err
}

// compile makes the policy ready. By now the box is in the table: a change of what all boxes share is either compiled in or
// will find the box.
func (p *provisioning) compile(context.Context) (err error) {
	p.compiled, err = p.shared.Compile(p.box)
	return err
}

// storeInitial stores the policy and header rules of a new box. A gateway that dies before the box is complete removes it
// at its next start.
func (p *provisioning) storeInitial(ctx context.Context) error {
	if err := fault.At(ctx, "create: record stored"); err != nil {
		return err
	}
	b, db := p.box, p.store
	err := db.StagePolicy(b.ID, b.StoredPolicy())
	if err == nil {
		err = db.StageHeaders(b.ID, b.Headers, b.HeadersVersion)
	}
	if err == nil {
		err = fault.At(ctx, "create: policy staged")
	}
	if err == nil {
		err = errors.Join(db.CommitPolicy(b.ID), db.CommitHeaders(b.ID))
	}
	if err != nil {
		return change.NotStored(p.log, "its policy could not be stored", err)
	}
	return nil
}

// addAuthority makes the box's CA known to the proxy. The first time it is made, and stored.
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

// makeNamespace makes the network namespace of a box to be launched; nothing runs in it.
func (p *provisioning) makeNamespace(ctx context.Context) (err error) {
	p.undo.Add(func(ctx context.Context) error {
		return p.box.Unlocked(func() error { return p.sandboxes.Delete(ctx, p.box.ID) })
	})
	if p.netns, err = p.sandboxes.Prepare(ctx, p.launchSpec()); err != nil {
		return fmt.Errorf("its network namespace: %w", err)
	}
	return nil
}

// pinNamespace keeps the network namespace of a box to be attached.
func (p *provisioning) pinNamespace(ctx context.Context) (err error) {
	p.undo.Add(func(context.Context) error { return p.sandboxes.DetachNamespace(p.box.ID) })
	p.netns, err = p.sandboxes.AttachNamespace(p.box.ID, p.foreign)
	return errors.Join(err, fault.At(ctx, "attach: namespace pinned"))
}

// findNamespace finds the network namespace of a box that runs.
func (p *provisioning) findNamespace(context.Context) (err error) {
	if p.box.Attached != nil {
		p.netns, err = p.sandboxes.AttachedNamespace(p.box.ID)
		return err
	}
	status, found := p.running[p.box.ID]
	if !found {
		return launcher.ErrNotFound
	}
	p.netns, err = state.NamespaceOf(status)
	return err
}

// makeReachable lets public URLs reach what listens on the box's loopback. The namespace of a sandbox with a network stack of
// its own is not the sandbox's network: only the box's address leads into that.
func (p *provisioning) makeReachable(context.Context) error {
	if p.sandboxes.HasGuestStack(p.box) {
		return nil
	}
	p.undo.Add(func(context.Context) error { p.reach.Remove(p.box.ID); return nil })
	return p.reach.Add(p.box.ID, p.box.V6, p.netns)
}

// findURLs makes the box's public URLs known. Nobody is served yet.
func (p *provisioning) findURLs(context.Context) error {
	p.undo.Add(func(context.Context) error { p.urls.Drop(p.box.ID); return nil })
	return p.urls.Recover(p.box)
}

// connect gives the box its interface, closed, and puts its policy in force.
func (p *provisioning) connect(ctx context.Context) error {
	p.undo.Add(func(ctx context.Context) error { return p.net.Disconnect(ctx, &p.box.Box) })
	return p.net.Connect(ctx, &p.box.Box, p.at(), p.compiled)
}

// at is where the box gets its interface.
func (p *provisioning) at() enforce.Interface {
	return enforce.Interface{NetNS: p.netns, GuestStack: p.sandboxes.HasGuestStack(p.box)}
}

// await waits until no first packet of the box would be lost.
func (p *provisioning) await(ctx context.Context) error {
	return p.slowly(func() error { return p.net.Await(ctx, &p.box.Box) })
}

// startProcess starts the first process of a launched box.
func (p *provisioning) startProcess(ctx context.Context) error {
	if err := p.slowly(func() error { return p.sandboxes.Create(ctx, p.launchSpec()) }); err != nil {
		return err
	}
	return fault.At(ctx, "create: box runs")
}

// slowly runs a slow step without the box's lock. Meanwhile another request may have taken the box off the network.
func (p *provisioning) slowly(f func() error) error {
	if err := p.box.Unlocked(f); err != nil {
		return err
	}
	if !p.box.Connected() {
		return errDeletedMeanwhile
	}
	return nil
}

// cutFlows cuts connections that the kernel may have let through under a policy that was never committed.
func (p *provisioning) cutFlows(ctx context.Context) error { return p.net.CutFlows(ctx, &p.box.Box) }

// storeIdle completes a new box: from here on the next start keeps it.
func (p *provisioning) storeIdle(context.Context) error {
	if err := p.box.SetState(p.store, api.StatusIdle, ""); err != nil {
		return change.NotStored(p.log, "its state could not be stored", err)
	}
	return nil
}

func (p *provisioning) launchSpec() launcher.Spec {
	r := p.box.Record
	return launcher.Spec{
		ID: r.ID, Image: r.Image, Layers: r.Layers, Size: launcher.Size(r.Size), CA: p.ca.CertificatePEM(), Roots: p.roots,
		Hostname: hostnameOf(r), Git: usage.GitIdentityOf(p.box.Hosted), DNS: p.dns,
	}
}
