package box

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/api/history"
	"boxgate/audit"
	"boxgate/config"
	"boxgate/firewall"
	"boxgate/host/change"
	"boxgate/host/keys"
	"boxgate/host/meter"
	"boxgate/host/rules"
	"boxgate/host/sandboxwatch"
	"boxgate/host/schedule"
	"boxgate/host/state"
	"boxgate/host/usage"
	"boxgate/ingress"
	"boxgate/internal/required"
	"boxgate/policy"
	"boxgate/store"
)

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
	Quota       *rules.Quota
	Settings    *Settings
	Snapshots   *Snapshots
	Schedules   *schedule.Service
	History     *history.History
	Holdings    *keys.Holdings
}

// Service creates, attaches, recovers and deletes boxes. Safe for concurrent use.
type Service struct {
	*Provisioner
	cfg       config.Config
	addrs     config.Addresses
	audit     *audit.Log
	firewall  *firewall.Firewall
	boxes     *state.Table
	visitors  *ingress.Ingress
	usage     *usage.Service
	meter     *meter.Meter
	quota     *rules.Quota
	settings  *Settings
	snapshots *Snapshots
	follower  *sandboxwatch.Follower
	schedules *schedule.Service
	history   *history.History
	holdings  *keys.Holdings
}

// New returns the service. It has no boxes before [Service.Recover].
func New(c Config) (*Service, error) {
	if err := required.Fields(c); err != nil {
		return nil, err
	}
	l := &Service{
		Provisioner: c.Provisioner, cfg: c.Config, addrs: c.Addresses, audit: c.Audit, firewall: c.Firewall, boxes: c.Boxes, visitors: c.Visitors, usage: c.Usage,
		meter: c.Meter, quota: c.Quota, settings: c.Settings, snapshots: c.Snapshots, schedules: c.Schedules, history: c.History, holdings: c.Holdings,
	}
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

// expiryRetry is the delay before the deletion of an expired ephemeral box is retried.
const expiryRetry = time.Minute

// expireLater deletes an ephemeral box after a delay, and retries until it is gone.
func (l *Service) expireLater(b *state.Box, after time.Duration) {
	if b.Record.ExpiresAt.IsZero() {
		return
	}
	time.AfterFunc(after, func() {
		err := l.DeleteBox(context.Background(), b.ID)
		if err == nil || errors.Is(err, api.ErrNotFound) {
			return
		}
		l.log.Error("an ephemeral box was not deleted at its end", zap.String("box", string(b.ID)), zap.Error(err))
		l.expireLater(b, expiryRetry)
	})
}
