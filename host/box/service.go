package box

import (
	"context"
	"fmt"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/api/history"
	"boxgate/audit"
	"boxgate/config"
	"boxgate/firewall"
	"boxgate/host/change"
	"boxgate/host/keys"
	"boxgate/host/lease"
	"boxgate/host/meter"
	"boxgate/host/rules"
	"boxgate/host/sandboxwatch"
	"boxgate/host/schedule"
	"boxgate/host/state"
	"boxgate/host/usage"
	"boxgate/ingress"
	"boxgate/internal/fault"
	"boxgate/internal/required"
	"boxgate/policy"
	"boxgate/store"
)

// Models has the accounts of models of boxes; implemented by [boxgate/host/models].
type Models interface {
	// Forget drops the account of a deleted box.
	Forget(policy.BoxID)
}

// Config configures a [Service].
type Config struct {
	Config      config.Config
	Addresses   config.Addresses
	Provisioner *Provisioner
	Audit       *audit.Log
	Firewall    *firewall.Firewall
	Boxes       *state.Table
	Visitors    *ingress.Ingress
	Usage       *usage.Service
	Meter       *meter.Meter
	Models      Models
	Quota       *rules.Quota
	Settings    *Settings
	Snapshots   *Snapshots
	Schedules   *schedule.Service
	History     *history.History
	Holdings    *keys.Holdings
	// CutRemote cuts the connections of a remote box.
	CutRemote func(policy.BoxID)
	// Admit returns an error while this host makes no new boxes.
	Admit func() error
	// Names claims the names of boxes in a fleet. nil: a name is unique on this host only.
	Names Names `required:"false"`
}

// Names claims the names of boxes; implemented by [boxgate/host/peerapi].
type Names interface {
	// Claim claims the name of a new box, before the box is stored. done must be called after that, or if the box will not be stored. Without
	// must, a fleet that does not answer is no error.
	Claim(ctx context.Context, id policy.BoxID, name string, labels []string, must bool) (done func(), err error)
	// Release frees the name of a box that was deleted.
	Release(ctx context.Context, id policy.BoxID)
}

// Service creates, attaches, recovers and deletes boxes. Safe for concurrent use.
type Service struct {
	*Provisioner
	lifetimes *lifetimes
	cfg       config.Config
	addrs     config.Addresses
	audit     *audit.Log
	firewall  *firewall.Firewall
	boxes     *state.Table
	visitors  *ingress.Ingress
	usage     *usage.Service
	meter     *meter.Meter
	models    Models
	quota     *rules.Quota
	settings  *Settings
	snapshots *Snapshots
	follower  *sandboxwatch.Follower
	schedules *schedule.Service
	history   *history.History
	holdings  *keys.Holdings
	cutRemote func(policy.BoxID)
	admitted  func() error // [Config.Admit]
	names     Names        // nil: there is no fleet
}

// New returns the service. It has no boxes before [Service.Recover].
func New(c Config) (*Service, error) {
	if err := required.Fields(c); err != nil {
		return nil, err
	}
	l := &Service{
		Provisioner: c.Provisioner, cfg: c.Config, addrs: c.Addresses, audit: c.Audit, firewall: c.Firewall, boxes: c.Boxes, visitors: c.Visitors, usage: c.Usage,
		meter: c.Meter, models: c.Models, quota: c.Quota, settings: c.Settings, snapshots: c.Snapshots, schedules: c.Schedules, history: c.History, holdings: c.Holdings,
		cutRemote: c.CutRemote, admitted: c.Admit, names: c.Names,
	}
	l.lifetimes = &lifetimes{log: l.log, records: l.records, boxes: l.boxes, delete: l.deleteLocked, pause: l.pauseAtEnd, most: l.cfg.Launcher.MaxTTL, kept: l.cfg.Launcher.MaxPaused, history: l.history, now: lease.System}
	l.usage.RenewBy(l.lifetimes.renew)
	l.follower = sandboxwatch.New(followed{l}, l.log)
	return l, nil
}

// Follow follows the sandboxes of attached boxes until ctx is done.
func (l *Service) Follow(ctx context.Context) { l.follower.Run(ctx) }

// checkNew reports mistakes in the request for a new box, before anything is created.
func (l *Service) checkNew(name string, spec policy.Spec, headers []policy.HeaderRule) error {
	if err := l.shared.CheckNew(spec, headers); err != nil {
		return err
	}
	if looksLikeID.MatchString(name) {
		return change.InvalidAt("/name", "looks like the ID of a box; choose another name")
	}
	return nil
}

// pools returns the addresses for boxes: the pools without the network's, the gateway's and the sink's address.
func (l *Service) pools() store.Pools {
	return store.Pools{V4: l.addrs.PoolV4, V6: l.addrs.PoolV6, Reserved: 3}
}

// DeleteBox implements the Host of [boxgate/api/boxes]. The network is removed first, so that no traffic leaves while
// processes are being stopped. The record is removed last: if the gateway dies half-way, its next start deletes the rest.
// The box's files are removed later (see [boxgate/launcher.Launcher.KeepTrashEmpty]). The deletion continues if the
// caller disconnects.
func (l *Service) DeleteBox(ctx context.Context, id policy.BoxID) error {
	ctx, cancel := change.Detach(ctx)
	defer cancel()
	b, err := l.boxes.Lock(id)
	if err != nil {
		return err
	}
	defer b.Unlock()
	return l.deleteLocked(ctx, b)
}

// deleteLocked is DeleteBox for a box whose lock the caller holds.
func (l *Service) deleteLocked(ctx context.Context, b *state.Box) error {
	if err := change.Contain(l.log, func() error { return l.tearDown(ctx, b) }, zap.String("box", string(b.ID))); err != nil {
		l.log.Error("a box could not be deleted", zap.String("box", string(b.ID)), zap.Error(err))
		if b.Deleted {
			return nil
		}
		b.ShowError("it could not be fully deleted; delete it again")
		return api.Errorf(api.ErrUnavailable, "deleting box %s: %w", b.ID, err)
	}
	return nil
}

// tearDown deletes a box step by step. It can be repeated after a failure. The caller holds the lock of b.
func (l *Service) tearDown(ctx context.Context, b *state.Box) error {
	b.Deleting = true
	b.Publish()
	l.urls.Drop(b.ID)
	if err := fault.At(ctx, "delete: begun"); err != nil {
		return err
	}
	if err := l.net.Disconnect(ctx, &b.Box); err != nil {
		return fmt.Errorf("its network: %w", err)
	}
	// A store that cannot be written does not keep a box alive. It is written again at the end.
	if err := b.SetState(l.records, api.StatusDeleted, ""); err != nil {
		l.log.Error("the deletion of a box was not stored", zap.String("box", string(b.ID)), zap.Error(err))
	}
	if err := fault.At(ctx, "delete: deletion stored"); err != nil {
		return err
	}
	if err := b.Unlocked(func() error { return l.sandboxes.Release(ctx, b) }); err != nil {
		return err
	}
	if err := fault.At(ctx, "delete: nothing runs"); err != nil {
		return err
	}
	return l.removeBox(b)
}

// removeBox removes a box from the store and from memory. If the store fails, the box stays in the table. The caller holds the lock of b.
func (l *Service) removeBox(b *state.Box) error {
	if b.Deleted { // by another request
		return nil
	}
	l.urls.Drop(b.ID)
	if err := l.records.Delete(b.ID); err != nil {
		return change.NotStored(l.log, "its deletion could not be stored", err)
	}
	b.Deleted = true
	l.lifetimes.forget(b)
	defer func() {
		l.snapshots.sweepLayers(b)
		l.boxes.Remove(b.ID)
		l.follower.Look(b.ID)
		l.audit.Forget(b.ID)
		l.history.Forget(b.ID)
		l.meter.Forget(b.ID)
		l.models.Forget(b.ID)
		l.schedules.Forget(b.ID)
		if l.names != nil {
			l.names.Release(context.Background(), b.ID)
		}
	}()
	fault.Mark(context.Background(), "delete: record gone")
	return nil
}
