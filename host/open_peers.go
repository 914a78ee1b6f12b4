package host

import (
	"boxgate/host/peers"
	"boxgate/ingress"
)

// peerPipesMost is the maximum number of pipes of connections that are passed on, two descriptors each.
const peerPipesMost = 64

// openPeers returns the way to the public URLs of the other hosts of the fleet; nil: there is none, because fleet.ingress is not set.
func (p *parts) openPeers(connections int) (ingress.Fleet, error) {
	if p.fleet == nil || p.cfg.Fleet.Ingress == "" {
		return nil, nil
	}
	var err error
	p.peers, err = peers.New(peers.Config{
		Hosts: p.fleet, Own: p.fleet.Identity.Host, Parse: p.cfg.Ingress.ParseHostName, Pipes: max(4, min(peerPipesMost, connections/16)), Log: p.log.Named("fleet"),
	})
	return p.peers, err
}
