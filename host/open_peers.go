package host

import (
	"context"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"boxgate/api/members"
	"boxgate/api/server"
	"boxgate/fleet/directory"
	"boxgate/host/box"
	"boxgate/host/peerapi"
	"boxgate/host/peers"
	"boxgate/host/urls"
	"boxgate/ingress"
)

// peerAPI are the other hosts of the fleet. All methods may be called on nil, without a fleet.
type peerAPI struct {
	client  *peerapi.Client
	names   *peerapi.Names
	domains *peerapi.Domains
	server  atomic.Pointer[http.Server] // of the calls of other hosts; nil: fleet.advertise is not set, or it is not served yet
}

// openPeerAPI makes the connections to other hosts, which are opened when they are used.
func (p *parts) openPeerAPI() {
	log := p.log.Named("fleet")
	p.peerAPI = &peerAPI{client: peerapi.NewClient(p.fleet, log), names: peerapi.NewNames(p.fleet, p.directoryEntries, log)}
	p.peerAPI.domains = peerapi.NewDomains(peerapi.DomainsConfig{
		Fleet: p.fleet, Log: log,
		Served: func() map[string]string { return p.urlTable.Domains() }, Serves: func(domain string) bool { return p.urlTable.Serves(domain) },
		Freed: func(domain string) (key string, at time.Time, err error) {
			d, err := p.store.URLs.Domain(domain)
			return d.Key, d.Freed, err
		},
	})
}

// directoryEntries returns the boxes of this host as the directory of the fleet has them.
func (p *parts) directoryEntries() map[string]directory.Entry {
	entries := map[string]directory.Entry{}
	for _, b := range p.boxes.Unsorted() {
		shown := b.Shown.Load()
		entries[string(shown.ID)] = directory.Entry{Name: shown.Name, Labels: shown.Labels}
	}
	return entries
}

// fleetNames claims the names of boxes; nil without a fleet.
func (p *parts) fleetNames() box.Names {
	if p.peerAPI == nil {
		return nil
	}
	return p.peerAPI.names
}

// fleetDomains claims the domains of public URLs; nil without a fleet.
func (p *parts) fleetDomains() urls.Claims {
	if p.peerAPI == nil {
		return nil
	}
	return p.peerAPI.domains
}

// elsewhere reaches the other hosts of the fleet; nil without a fleet.
func (p *parts) elsewhere() server.Elsewhere {
	if p.peerAPI == nil {
		return nil
	}
	return p.peerAPI.client
}

// members shows the hosts of the fleet; nil without a fleet.
func (p *parts) members() members.Host {
	if p.peerAPI == nil {
		return nil
	}
	return p.peerAPI.client
}

// servePeerAPI serves the calls of other hosts, if fleet.advertise is set. They reach the admin API alone, not the dashboard.
func (h *Host) servePeerAPI(run func(string, func() error), admin *server.API) {
	p := h.parts
	if p.peerAPI == nil || p.listeners.Fleet == nil {
		return
	}
	tried := tryable(p.listeners.Fleet)
	strangers := p.shares.Keyless(tried)
	s := peerapi.NewServer(peerapi.ServerConfig{Fleet: p.fleet, API: h.turn.wrap(admin), Most: p.shares.Hosts(), Log: p.log.Named("fleet"), Refused: p.peerAPI.client.CountRefused, Known: func(c net.Conn) {
		if secured, ok := c.(interface{ NetConn() net.Conn }); ok {
			strangers.Known(secured.NetConn())
		}
	}})
	s.TLSConfig = p.fleet.Peers().Server(p.fleet.Certificate)
	s.TLSConfig.NextProtos = []string{"http/1.1"}
	p.peerAPI.server.Store(s)
	h.health.serving.add("fleet", tried, nil, func() (int, int) { return strangers.Held(), 0 })
	run("other hosts of the fleet", func() error { return s.ServeTLS(strangers, "", "") })
}

// shutdown ends the server, after running calls have ended or drain is done, and the connections to other hosts.
func (f *peerAPI) shutdown(drain context.Context) error {
	if f == nil {
		return nil
	}
	defer f.client.Close()
	if s := f.server.Load(); s != nil {
		return s.Shutdown(drain)
	}
	return nil
}

// peerPipesMost is the maximum number of pipes of connections that are passed on, two descriptors each.
const peerPipesMost = 64

// openPeers returns the way to the public URLs of the other hosts of the fleet; nil: there is none, because fleet.ingress is not set.
func (p *parts) openPeers(connections int) (ingress.Fleet, error) {
	if p.fleetHost() == "" {
		return nil, nil
	}
	var err error
	p.peers, err = peers.New(peers.Config{
		Hosts: p.fleet, Own: p.fleet.Identity.Host, Parse: p.cfg.Ingress.ParseHostName, Common: p.urlTable.Common, Pipes: max(4, min(peerPipesMost, connections/16)), Log: p.log.Named("fleet"),
	})
	if err != nil {
		return nil, err
	}
	return p.peers, p.metrics.Register(p.peers)
}

// fleetHost returns the ID of this host if other hosts of a fleet pass visitors on to it, or "".
func (p *parts) fleetHost() string {
	if p.fleet == nil || p.cfg.Fleet.Ingress == "" {
		return ""
	}
	return p.fleet.Identity.Host
}
