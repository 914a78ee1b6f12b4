// Package host owns the boxes of one gateway. It wires the parts together (store, kernel rules, DNS, proxy, public URLs,
// launcher), makes, changes and removes boxes through all of them, and has the services that answer the calls of the API.
//
// Call [listen.Open] for the sockets, then [Open], which builds the gateway, then [Host.Recover], which picks up the boxes of an
// earlier run, then [Host.Serve], which returns when its context ends or a server fails, then [Host.Close]. Kernel rules
// and boxes outlive all of it: a gateway that is down leaves its boxes closed to whatever a name decides.
package host

import (
	"context"

	"boxgate/api/server"
	"boxgate/host/box"
	"boxgate/host/keys"
	"boxgate/host/records"
	"boxgate/host/rules"
	"boxgate/host/schedule"
	"boxgate/host/urls"
	"boxgate/host/usage"
	"boxgate/policy"
)

// Host is one gateway: its services, over its parts. It is made by [Open], whole: none of its fields changes afterwards but the states of
// what it goes through (being replaced, ending).
//
// Lock order: the mutex of a replacement, then that of the global header rules, then that of the named policies, then the lock of a box,
// then those of tables, which are never held together. Only a change of a named policy and the recovery hold the locks of several boxes.
//
// Order of opening: store, audit trail, secrets, decisions, DNS, proxy, public URLs, launcher, kernel rules; then the services, the protected
// ranges in force, and last the boxes ([Host.Recover]) and the listeners ([Host.Serve]). What stops does so the other way round: the
// API first, so that no change begins, then issuers, public URLs and the proxy, DNS last; then [Host.Close] lets go of the kernel rules,
// exports, the history and the trail, closes the launcher and the secrets, and the store last. A successor gets what only one process can
// have before this one has drained ([Host.Replace]).
type Host struct {
	services
	parts      *parts
	options    Options
	turn       *adminTurn
	health     *health
	loops      *loops
	arriving   arrivals
	succession *succession
}

// services answer the calls of the API, and do in the background what the boxes need.
type services struct {
	policies    *rules.Service     // changes what they may do
	protection  *rules.Protection  // of the addresses of the host
	quota       *rules.Quota       // cuts them off
	lifecycle   *box.Service       // makes, attaches, recovers and deletes them
	settings    *box.Settings      // keeps what else can be configured
	snapshots   *box.Snapshots     // takes snapshots of them
	authorities *box.Authorities   // shows certificate authorities
	publicURLs  *urls.Service      // makes and deletes their public URLs
	usage       *usage.Service     // runs commands in them, puts them to sleep and wakes them
	idle        *usage.IdlePauser  // finds idle ones
	disk        *usage.DiskGuard   // keeps room on the disk
	git         *usage.Git         // keeps who makes commits in them
	scheduled   *schedule.Service  // runs commands in them again and again
	events      *records.Decisions // reads decisions
	auditTrail  *records.Trail     // keeps who changed what
	keys        *keys.Service      // changes the keys of the store and of the API
	sources     *keys.Secrets      // shows and refreshes the operator's secrets
	selfTests   *box.SelfTests     // attacks boxes from inside
}

// Services returns the parts that answer the calls of the API.
func (h *Host) Services() server.Services {
	return server.Services{
		Boxes: usage.NewListing(h.parts.boxes, h.parts.meter), Life: h.lifecycle, Lifecycle: h.usage, Commands: h.usage, Sessions: h.usage, Files: h.usage, Git: h.git,
		Rules: h.policies, BoxRules: h.policies, Explain: h.policies, Settings: h.settings, Decisions: h.events, URLs: h.publicURLs,
		Schedules: h.scheduled, Errands: h.scheduled, Snapshots: h.snapshots, SelfTests: h.selfTests, Keys: h.keys, TrailReader: h.auditTrail,
		Health: h.health, Store: h.keys, Secrets: h.sources, Authorities: h.authorities,
	}
}

// Tokens returns the placeholders of a box's header rules, by the names of their variables; for who starts the commands of an attached
// box.
func (h *Host) Tokens(ctx context.Context, id policy.BoxID) (map[string]string, error) {
	return h.usage.Tokens(ctx, id)
}
