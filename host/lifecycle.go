package host

import (
	"boxgate/host/rules"

	"boxgate/host/urls"

	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/api/history"
	"boxgate/audit"
	"boxgate/certs"
	"boxgate/config"
	"boxgate/firewall"
	"boxgate/host/change"
	"boxgate/host/enforce"
	"boxgate/host/follow"
	"boxgate/host/keys"
	"boxgate/host/meter"
	"boxgate/host/reach"
	"boxgate/host/schedule"
	"boxgate/host/state"
	"boxgate/ingress"
	"boxgate/policy"
	"boxgate/store"
)

// lifecycle makes, attaches, recovers and deletes boxes.
type lifecycle struct {
	store       *store.DB
	cfg         config.Config
	addrs       config.Addresses
	roots       []byte // in PEM, which launched boxes trust besides the public ones
	log         *zap.Logger
	audit       *audit.Log
	firewall    *firewall.Firewall
	minter      *certs.Minter
	authorities *authorities
	boxes       *state.Table
	shared      *rules.Shared
	net         *enforce.Enforcer
	sandboxes   state.Sandboxes
	urls        *urls.Service
	reach       *reach.Boxes
	visitors    *ingress.Ingress
	commands    *commands
	meter       *meter.Meter
	quota       *rules.Quota
	settings    *settings
	snapshots   *snapshotHost
	follower    *follow.Follower
	scheduled   *schedule.Service
	history     *history.History
	holdings    *keys.Holdings
}

// checkNew finds mistakes in the request for a new box, before anything is made.
func (l *lifecycle) checkNew(name string, spec policy.Spec, headers []policy.HeaderRule) error {
	if err := l.shared.CheckNew(spec, headers); err != nil {
		return err
	}
	if looksLikeID.MatchString(name) {
		return change.InvalidAt("/name", "looks like the ID of a box; choose another name")
	}
	return nil
}

// pools are the addresses that boxes get: all but the network address, the gateway's and the sink's.
func (l *lifecycle) pools() store.Pools {
	return store.Pools{V4: l.addrs.PoolV4, V6: l.addrs.PoolV6, Reserved: 3}
}

// expiryRetry is how long after a failed deletion an ephemeral box is tried again.
const expiryRetry = time.Minute

// expireLater deletes an ephemeral box after that time, and tries again until it is gone.
func (l *lifecycle) expireLater(b *state.Box, after time.Duration) {
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
