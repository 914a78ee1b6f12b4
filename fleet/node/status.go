package node

import (
	"cmp"
	"context"
	"slices"
	"time"

	"boxgate/fleet"
	"boxgate/fleet/roster"
)

// Status is what this host knows of itself in the fleet, without asking etcd.
type Status struct {
	Host         string    `json:"host"` // ID
	Fenced       bool      `json:"fenced"`
	Problem      string    `json:"problem,omitempty"` // why there is no lease
	LeaseSeconds float64   `json:"lease_seconds"`     // left without another keep-alive
	Cordoned     bool      `json:"cordoned"`
	Revision     int64     `json:"revision"`         // of etcd, up to which this host has followed the fleet; 0: not yet
	Current      time.Time `json:"current,omitzero"` // when that was last known to be the latest one
	Listings     int       `json:"listings"`
	Certificate  time.Time `json:"certificate,omitzero"` // when the host's certificate expires
}

// Status returns the status. It does not block.
func (n *Node) Status() Status {
	state := n.follower.State()
	s := Status{
		Host: n.Identity.Host, Fenced: n.Fenced(), LeaseSeconds: n.session.Left().Seconds(), Cordoned: n.Cordoned(), Revision: state.Revision, Current: state.At, Listings: state.Listings,
		Certificate: n.rotation.NotAfter(),
	}
	if err := n.Problem(); err != nil {
		s.Problem = err.Error()
	}
	return s
}

// State reads the fleet from etcd.
func (n *Node) State(ctx context.Context) (roster.State, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return n.roster.State(ctx)
}

// Known returns the hosts that this host has followed, by ID. Whether their gateways run is not known.
func (n *Node) Known() []fleet.Host {
	n.hosts.mu.RLock()
	defer n.hosts.mu.RUnlock()
	var list []fleet.Host
	for _, h := range n.hosts.known {
		list = append(list, h)
	}
	slices.SortFunc(list, func(a, b fleet.Host) int { return cmp.Compare(a.ID, b.ID) })
	return list
}

// Cordon sets whether a host takes new boxes. [roster.ErrNotMember]: no member has this ID.
func (n *Node) Cordon(ctx context.Context, host string, cordoned bool) error {
	if err := fleet.CheckHost(host); err != nil {
		return roster.ErrNotMember
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return n.roster.Cordon(ctx, host, cordoned)
}

// Lag returns for how many seconds the host has not known the latest state of the fleet; -1: it has not known one.
func (s Status) Lag() float64 {
	if s.Current.IsZero() {
		return -1
	}
	return max(0, time.Since(s.Current).Seconds())
}
