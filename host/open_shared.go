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

// fleetPolicies returns the named policies of the fleet, nil without a fleet.
func (p *parts) fleetPolicies() rules.Fleet {
	if p.fleet == nil {
		return nil
	}
	return p.fleet.Shared()
}

// hostID returns the ID of this host in its fleet; empty without a fleet.
func (p *parts) hostID() string {
	if p.fleet == nil {
		return ""
	}
	return p.fleet.Identity.Host
}

// openShared makes the admin API look at the fence.
func (o *opening) openShared(context.Context) error {
	if f := o.parts.fleet; f != nil {
		o.turn.leaseEnded = f.LeaseEnded
	}
	return nil
}

// applyShared applies the shared objects of the fleet to the tables of this host, now and at each change. Call it when the boxes are
// known, since boxes that follow a policy of the fleet change with it.
func (h *Host) applyShared() {
	if f := h.parts.fleet; f != nil {
		f.Shared().Attach(map[shared.Kind]shared.Apply{shared.APIKeys: h.keys.ApplyFleet, shared.Policies: h.policies.ApplyFleet, shared.Headers: h.policies.ApplyFleetHeaders})
	}
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
