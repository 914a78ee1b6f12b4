package host

import (
	"boxgate/certs/acme"
	"boxgate/fleet/node"
)

// shareCertificates makes a host of a fleet obtain certificates together with the others: they are in etcd, and the copies in the state
// directory of this host are a cache for the time without etcd. Without a fleet it has no effect.
//
// It asks etcd before the cache. Certificates that a host obtained before it joined stay in the cache and are not shared: the first host of
// the fleet that needs one orders it.
//
// Limits of orders ([acme.Config.Order]) apply to each host for itself. They bound the orders that its own boxes can cause; the issuer bounds the
// fleet.
func (p *parts) shareCertificates(c *acme.Config) error {
	if p.fleet == nil {
		return nil
	}
	shared, err := p.fleet.Certificates(c.Storage)
	if err != nil {
		return err
	}
	if err := p.metrics.Register(shared); err != nil {
		return err
	}
	// A challenge that this host has begun may be asked of another one, behind a balancer or by a name with the addresses of all hosts.
	c.Storage, c.Shared = shared.Store, true
	return nil
}

// FleetStatus is the status of this host in its fleet, for `gateway fleet status`. It does not ask etcd.
func (h *Host) FleetStatus() (node.Status, error) {
	if h.parts.fleet == nil {
		return node.Status{}, errNoFleet
	}
	return h.parts.fleet.Status(), nil
}
