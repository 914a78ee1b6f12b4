// Package host is the composition root of a gateway. It wires the store, kernel rules, DNS, proxy, public URLs and
// launcher together, and holds the services that answer API calls by creating, changing and deleting boxes.
//
// Call [listen.Open] for the sockets; then [Open], which builds the gateway; then [Host.Recover], which recovers the
// boxes of an earlier run; then [Host.Serve], which returns when its context is done or a server fails; then
// [Host.Close]. Kernel rules and boxes outlive the gateway: while it is down, boxes reach only addresses that their
// policies allow directly, and cannot resolve names.
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

// Host is one gateway: its services and the parts below them. It is complete when [Open] returns; afterwards only the
// states of its life cycle change (being replaced, ending).
//
// Lock order: the mutex of a replacement, the mutex of the global header rules, the mutex of the named policies, the lock
// of a box, the locks of tables, which are never held together. Only a change of a named policy and the recovery hold the
// locks of several boxes.
//
// Opening order: store, audit trail, secrets, decisions, DNS, proxy, public URLs, launcher, kernel rules; then the
// services and the protected ranges; last the boxes ([Host.Recover]) and the listeners ([Host.Serve]). Stopping runs in
// reverse: the API first, so that no change begins, then certificate issuers, public URLs and the proxy, DNS last. Then
// [Host.Close] releases the kernel rules, exports, the history and the trail, closes the launcher and the secrets, and
// finally the store. A successor gets the resources that only one process can hold before this process has drained
// ([Host.Replace]).
type Host struct {
	services
	parts      *parts
	options    Options
	turn       *adminTurn
	health     *health
	loops      *loops
	arrivals   arrivals
	succession *succession
	adminGroup int // ID of admin.group, set by Serve; negative: none
}

// services answer API calls and run the background work for boxes.
type services struct {
	policies    *rules.Service     // policies and header rules of boxes
	protection  *rules.Protection  // protects the host's addresses
	quota       *rules.Quota       // cuts off boxes that have used up their traffic quota
	lifecycle   *box.Service       // creates, attaches, recovers and deletes boxes
	settings    *box.Settings      // other settings of boxes
	snapshots   *box.Snapshots     // snapshots of boxes
	authorities *box.Authorities   // certificate authorities of boxes
	publicURLs  *urls.Service      // public URLs
	usage       *usage.Service     // commands in boxes; pausing and resuming
	idle        *usage.IdlePauser  // pauses idle boxes
	disk        *usage.DiskGuard   // keeps disk space free
	git         *usage.Git         // author of git commits made in boxes
	scheduled   *schedule.Service  // scheduled commands
	events      *records.Decisions // reads decisions
	auditTrail  *records.Trail     // audit trail
	keys        *keys.Service      // API keys and the store's key
	sources     *keys.Secrets      // the operator's secrets
	selfTests   *box.SelfTests     // attacks boxes from inside
}

// Services returns the services that answer API calls.
func (h *Host) Services() server.Services {
	return server.Services{
		Boxes: usage.NewListing(h.parts.boxes, h.parts.meter), Life: h.lifecycle, Lifecycle: h.usage, Commands: h.usage, Sessions: h.usage, Files: h.usage, Git: h.git,
		Rules: h.policies, BoxRules: h.policies, Explain: h.policies, Settings: h.settings, Decisions: h.events, URLs: h.publicURLs,
		Schedules: h.scheduled, Webhooks: h.scheduled, Snapshots: h.snapshots, SelfTests: h.selfTests, Keys: h.keys, TrailReader: h.auditTrail,
		Health: h.health, Store: h.keys, Secrets: h.sources, Authorities: h.authorities,
	}
}

// Tokens returns the placeholder tokens of a box's header rules by variable name, for programs that start commands in
// attached boxes.
func (h *Host) Tokens(ctx context.Context, id policy.BoxID) (map[string]string, error) {
	return h.usage.Tokens(ctx, id)
}
