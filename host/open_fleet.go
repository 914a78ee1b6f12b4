package host

import (
	"context"
	"errors"
	"fmt"

	"boxgate/api"
	"boxgate/fleet"
	"boxgate/fleet/node"
	"boxgate/internal/buildinfo"
	"boxgate/policy/name"
)

// errNoMember is the error of a host that is configured for a fleet but has not joined it.
var errNoMember = errors.New("fleet.name is set, but this host is not a member of a fleet: run `gateway fleet init` on the first host, or `gateway fleet join` with a token of a member")

// openFleet claims the ID of this host in its fleet, if fleet.name is set. Etcd need not answer.
func (p *parts) openFleet(ctx context.Context) error {
	c := p.cfg.Fleet
	if !c.Enabled() {
		return nil
	}
	text, err := p.store.Installation.Fleet()
	if err != nil {
		return err
	}
	if text.Reveal() == "" {
		return errNoMember
	}
	identity, err := fleet.Decode[fleet.Identity]([]byte(text.Reveal()))
	if err != nil {
		return fmt.Errorf("the membership in the store: %w", err)
	}
	host, err := p.store.Installation.HostID()
	if err != nil {
		return err
	}
	if identity.Host != host {
		return fmt.Errorf("the membership in the store is that of host %s, and this is host %s: run `gateway fleet leave`, and join again", identity.Host, host)
	}
	p.fleet, err = node.New(node.Config{
		Access: fleet.Access{Endpoints: c.Endpoints, CAFile: c.TLS.CAFile, CertFile: c.TLS.CertFile, KeyFile: c.TLS.KeyFile}, Fleet: c.Name, Identity: identity, StateDir: p.cfg.StateDir,
		Version: buildinfo.Get().Version, Ingress: c.Ingress, Address: c.Advertise, Boxes: func() int { return len(p.boxes.All()) }, Log: p.log.Named("fleet"),
	})
	if err != nil {
		return err
	}
	if err := p.fleet.Start(ctx); err != nil {
		return err
	}
	p.openPeerAPI()
	return errors.Join(p.metrics.Register(p.fleet), p.metrics.Register(p.peerAPI.client))
}

// admitByFleet refuses new boxes on a host that is fenced or cordoned.
func (p *parts) admitByFleet() error {
	switch {
	case p.fleet == nil:
		return nil
	case p.fleet.Fenced():
		return api.Errorf(api.ErrUnavailable, "this host makes no boxes, because it is cut off from its fleet: etcd does not answer, or the host was removed; `gateway fleet status` has the reason")
	case p.fleet.Cordoned():
		return api.Errorf(api.ErrUnavailable, "this host makes no boxes, because it is cordoned; to end that: gateway fleet uncordon %s", p.fleet.Identity.Host)
	}
	return nil
}

// errNoFleet answers requests for tokens on a host without a fleet.
var errNoFleet = errors.New("this gateway is not a member of a fleet: fleet.name is not set")

// FleetToken makes a token for another host to join the fleet.
func (h *Host) FleetToken(ctx context.Context) (name.Secret, error) {
	if h.parts.fleet == nil {
		return name.Secret{}, errNoFleet
	}
	return h.parts.fleet.Token(ctx)
}
