package host

import (
	"boxgate/certs/acme"
	"boxgate/fleet/node"
)

// shareCertificates makes a host of a fleet obtain certificates together with the others: they are in etcd, and what this host keeps in its
// state directory is a cache for the time without etcd. Without a fleet nothing changes.
//
// The order of the sources: etcd, then the cache. What a host obtained before it joined is in the cache, and is not shared: the names of its
// public URLs are those of the fleet from then on, so that the first host that needs a certificate orders it.
//
// Limits of orders ([acme.Config.Order]) remain those of one host. They bound what its own boxes may make it order; the issuer bounds the
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
