// Package host owns the boxes of one gateway. It wires the parts together (store, kernel rules, DNS, proxy, public URLs,
// launcher), makes, changes and removes boxes through all of them, and has the services that answer the calls of the API.
//
// Call [Listen] for the sockets, then [Open], which builds the gateway, then [Host.Recover], which picks up the boxes of an
// earlier run, then [Host.Serve], which returns when its context ends or a server fails, then [Host.Close]. Kernel rules
// and boxes outlive all of it: a gateway that is down leaves its boxes closed to whatever a name decides.
package host

import (
	"boxgate/host/box"

	"boxgate/host/usage"

	"boxgate/host/rules"

	"context"
	"sync/atomic"

	"boxgate/api"
	"boxgate/api/server"
	"boxgate/host/handover"
	"boxgate/host/keys"
	"boxgate/host/schedule"
	"boxgate/host/urls"
	"boxgate/policy"
)

// Host is one gateway. The calls of the API are answered by its services, each with one subject over the parts that it needs.
//
// Lock order: the mutex that serialises changes of all boxes, then that of a box, then that of a table.
type Host struct {
	policies     *rules.Service    // changes what they may do
	lifecycle    *box.Service      // makes, attaches, recovers and deletes them
	publicURLs   *urls.Service     // makes and deletes their public URLs
	usage        *usage.Service    // puts them to sleep and wakes them
	scheduled    *schedule.Service // runs commands in them again and again
	settings     *box.Settings     // keeps what else can be configured
	snapshotHost *box.Snapshots    // takes snapshots of them
	git          *usage.Git        // keeps who makes commits in them
	events       *events           // reads decisions
	authorities  *box.Authorities  // shows certificate authorities
	auditTrail   *auditTrail       // keeps who changed what
	keys         *keys.Service     // changes the keys of the store and of the API
	sources      *sources          // shows and refreshes the operator's secrets
	selfTests    *selfTests        // attacks boxes from inside

	parts        *parts
	protection   *rules.Protection
	quota        *rules.Quota
	sleeper      *usage.Sleeper
	room         *usage.RoomKeeper
	recovered    atomic.Bool
	noWatch      bool                  // for tests: see Serve
	text         []byte                // of the configuration file
	before       *handover.Predecessor // whose place this process takes; nil: nobody's
	turn         *adminTurn
	arriving     arrivals
	serving      *serving
	succession   *succession
	stopLoops    func() // set once they run
	endFollowing func() // ends the streams of decisions; likewise
	control      Control
	ready        func()
}

// Ready implements the Health of [boxgate/api/gateway]: boxes were recovered, and every listener accepts connections.
func (h *Host) Ready(ctx context.Context) error {
	if !h.recovered.Load() {
		return api.Errorf(api.ErrUnavailable, "the gateway is starting")
	}
	if err := h.serving.check(ctx); err != nil {
		return api.Errorf(api.ErrUnavailable, "%v", err)
	}
	return nil
}

// Services returns the parts that answer the calls of the API.
func (h *Host) Services() server.Services {
	return server.Services{
		Boxes: usage.NewListing(h.parts.boxes, h.parts.meter), Life: h.lifecycle, Lifecycle: h.usage, Commands: h.usage, Sessions: h.usage, Files: h.usage, Git: h.git,
		Rules: h.policies, BoxRules: h.policies, Explain: h.policies, Settings: h.settings, Decisions: h.events, URLs: h.publicURLs,
		Schedules: h.scheduled, Errands: h.scheduled, Snapshots: h.snapshotHost, SelfTests: h.selfTests, Keys: h.keys, TrailReader: h.auditTrail,
		Health: h, Store: h.keys, Secrets: h.sources, Authorities: h.authorities,
	}
}

// Tokens returns the placeholders of a box's header rules, by the names of their variables; for who starts the commands of an attached
// box.
func (h *Host) Tokens(ctx context.Context, id policy.BoxID) (map[string]string, error) {
	return h.usage.Tokens(ctx, id)
}
