package host

import (
	"context"
	"time"

	"boxgate/fleet/shared"
	"boxgate/host/keys"
	"boxgate/host/rules"
)

// fleetKeys returns the API keys of the fleet, nil without a fleet.
func (p *parts) fleetKeys() keys.Fleet {
	if p.fleet == nil {
		return nil
	}
	return p.fleet.Shared()
}

// fleetHeaders returns the header rules of the fleet, nil without a fleet.
func (p *parts) fleetHeaders() rules.FleetHeaders {
	if p.fleet == nil {
		return nil
	}
	return p.fleet.Shared()
}

// openShared applies the shared objects of the fleet to the tables of this host, now and at each change.
func (o *opening) openShared(context.Context) error {
	f := o.parts.fleet
	if f == nil {
		return nil
	}
	o.turn.leaseEnded = f.LeaseEnded
	f.Shared().Attach(map[shared.Kind]shared.Apply{shared.APIKeys: o.keys.ApplyFleet, shared.Headers: o.policies.ApplyFleetHeaders})
	return nil
}

// fenceEvery is the interval at which open logins over SSH are compared with the fence. Requests of the API do so themselves.
const fenceEvery = time.Second

// followFence checks open logins over SSH again when the fence closes, until ctx is done.
func (h *Host) followFence(ctx context.Context) {
	tick := time.NewTicker(fenceEvery)
	defer tick.Stop()
	for fenced := false; ; {
		if now := h.parts.fleet.Fenced(); now != fenced {
			if fenced = now; fenced {
				h.parts.ssh.Recheck()
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
