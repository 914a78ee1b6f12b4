package api

import "time"

// Fleet is the state of the fleet of a gateway: the hosts as etcd has them, and this host as it knows itself.
type Fleet struct {
	Name     string      `json:"name"`
	ID       string      `json:"id,omitempty" doc:"of the founding; absent: etcd does not answer"`
	Founded  time.Time   `json:"founded,omitzero" format:"date-time"`
	Revision int64       `json:"revision" doc:"of etcd; 0: etcd does not answer"`
	Problem  string      `json:"problem,omitempty" doc:"why etcd does not answer. The hosts are as this host last knew them then, and their state is unknown"`
	Hosts    []FleetHost `json:"hosts" doc:"by ID"`
	Own      *OwnHost    `json:"own,omitempty" doc:"this host, without asking etcd; absent in the answer of a command where no gateway runs"`
}

// States of a [FleetHost].
const (
	HostRunning    = "running"
	HostCordoned   = "cordoned"
	HostDrained    = "drained"
	HostAway       = "away"
	HostUnreadable = "unreadable"
	HostUnknown    = "unknown"
)

// FleetHost is a member of a fleet.
type FleetHost struct {
	ID       string    `json:"id" doc:"the IDs of its boxes begin with it" example:"3f9a01"`
	Name     string    `json:"name" doc:"of the machine"`
	State    string    `json:"state" doc:"away: no gateway holds its lease; drained: cordoned, and without boxes; unreadable: another program wrote its record; unknown: etcd does not answer" enum:"running cordoned drained away unreadable unknown"`
	Protocol int       `json:"protocol"`
	Joined   time.Time `json:"joined,omitzero" format:"date-time"`
	Cordoned bool      `json:"cordoned" doc:"it makes no new boxes"`
	Present  bool      `json:"present" doc:"its lease is valid"`
	Problem  string    `json:"problem,omitempty" doc:"why its record cannot be read"`
	Version  string    `json:"version,omitempty"`
	Boxes    int       `json:"boxes" doc:"as of its last report; 0 unless present"`
	Drained  bool      `json:"drained" doc:"it has no boxes, and knows that it is cordoned"`
	Since    time.Time `json:"since,omitzero" doc:"when its gateway started" format:"date-time"`
	Address  string    `json:"address,omitempty" doc:"where it accepts calls of the other hosts; absent: it does not"`
	Ingress  string    `json:"ingress,omitempty" doc:"where it accepts visitors from the other hosts; absent: it does not"`
	// Answered and Unreachable are the experience of one gateway with its calls; commands do not have them.
	Answered    time.Time `json:"answered_at,omitzero" doc:"when it last answered a call of this host; absent: not since this gateway started" format:"date-time"`
	Unreachable bool      `json:"unreachable,omitempty" doc:"it did not answer the latest call of this host, less than five minutes ago"`
}

// OwnHost is the state of a host in the fleet as its gateway knows it, without asking etcd.
type OwnHost struct {
	Host         string    `json:"host" doc:"ID"`
	Fenced       bool      `json:"fenced" doc:"it makes no new boxes, and refuses keys of the fleet"`
	Problem      string    `json:"problem,omitempty" doc:"why it has no lease"`
	LeaseSeconds float64   `json:"lease_seconds" doc:"left without another renewal"`
	Cordoned     bool      `json:"cordoned"`
	Revision     int64     `json:"revision" doc:"of etcd, up to which it has followed the fleet; 0: not yet"`
	Current      time.Time `json:"current,omitzero" doc:"when that was last known to be the latest one; absent: not yet" format:"date-time"`
	Listings     int       `json:"listings" doc:"complete listings of the fleet: one at the start, and one after each gap in the changes"`
	Certificate  time.Time `json:"certificate,omitzero" doc:"when its certificate of the fleet expires; absent: it has none" format:"date-time"`
}
