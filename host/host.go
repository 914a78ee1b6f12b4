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
	"crypto/tls"
	"crypto/x509"
	"errors"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"boxgate/api/history"
	"boxgate/api/server"
	"boxgate/audit"
	"boxgate/audit/archive"
	"boxgate/audit/export"
	"boxgate/audit/lines"
	"boxgate/certs"
	"boxgate/certs/acme"
	"boxgate/config"
	"boxgate/dns"
	"boxgate/firewall"
	"boxgate/fleet/node"
	"boxgate/host/approvals"
	"boxgate/host/authlimit"
	"boxgate/host/box"
	"boxgate/host/boxdial"
	"boxgate/host/doctor"
	"boxgate/host/enforce"
	"boxgate/host/handover"
	"boxgate/host/har"
	"boxgate/host/keys"
	"boxgate/host/keysecrets"
	"boxgate/host/listen"
	"boxgate/host/meter"
	"boxgate/host/models"
	"boxgate/host/netns"
	"boxgate/host/peers"
	"boxgate/host/records"
	"boxgate/host/rules"
	"boxgate/host/schedule"
	hostservices "boxgate/host/services"
	"boxgate/host/share"
	"boxgate/host/snapshots"
	"boxgate/host/state"
	"boxgate/host/urls"
	"boxgate/host/usage"
	"boxgate/ingress"
	"boxgate/internal/fault"
	"boxgate/internal/memory"
	"boxgate/kube"
	"boxgate/launcher"
	"boxgate/observe"
	"boxgate/policy"
	"boxgate/proxy"
	quotas "boxgate/quota"
	"boxgate/remote"
	"boxgate/secrets"
	"boxgate/secrets/identity"
	"boxgate/sshd"
	"boxgate/store"
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
	policies    *rules.Service      // policies and header rules of boxes
	protection  *rules.Protection   // protects the host's addresses
	quota       *rules.Quota        // cuts off boxes that have used up their traffic quota
	lifecycle   *box.Service        // creates, attaches, recovers and deletes boxes
	settings    *box.Settings       // other settings of boxes
	snapshots   *box.Snapshots      // snapshots of boxes
	authorities *box.Authorities    // certificate authorities of boxes
	publicURLs  *urls.Service       // public URLs
	usage       *usage.Service      // commands in boxes; pausing and resuming
	idle        *usage.IdlePauser   // pauses idle boxes
	disk        *usage.DiskGuard    // keeps disk space free
	git         *usage.Git          // author of git commits made in boxes
	scheduled   *schedule.Service   // scheduled commands
	events      *records.Decisions  // reads decisions
	versions    *rules.Versions     // reads the history of policies
	auditTrail  *records.Trail      // audit trail
	keys        *keys.Service       // API keys and the store's key
	sources     *keys.Secrets       // the operator's secrets
	keySecrets  *keysecrets.Service // secrets of API keys
	selfTests   *box.SelfTests      // attacks boxes from inside
	doctor      *doctor.Service     // diagnoses hosts
	captures    *har.Service        // records the requests of boxes
	approvals   *approvals.Service  // requests of boxes for access
	resources   *kube.Controller    `required:"false"` // policies of a cluster; nil: disabled
}

// Services returns the services that answer API calls.
func (h *Host) Services() server.Services {
	return server.Services{
		Boxes: usage.NewListing(h.parts.boxes, h.parts.meter, h.parts.models.Box), Life: h.lifecycle, Lifecycle: h.usage, Commands: h.usage, Sessions: h.usage, Files: h.usage, Git: h.git,
		Rules: h.policies, BoxRules: h.policies, Explain: h.policies, Settings: h.settings, Decisions: h.events, Versions: h.versions, URLs: h.publicURLs,
		Schedules: h.scheduled, Webhooks: h.scheduled, Snapshots: h.snapshots, SelfTests: h.selfTests, Samples: h.parts.samples, Doctor: h.doctor, Captures: h.captures, Keys: h.keys, KeySecrets: h.keySecrets, TrailReader: h.auditTrail,
		Health: h.health, Store: h.keys, Secrets: h.sources, Authorities: h.authorities, Approvals: h.approvals, Models: h.parts.models,
	}
}

// Tokens returns the placeholder tokens of a box's header rules by variable name, for programs that start commands in
// attached boxes.
func (h *Host) Tokens(ctx context.Context, id policy.BoxID) (map[string]string, error) {
	return h.usage.Tokens(ctx, id)
}

// parts are the building blocks of a gateway. The steps of [open] open them in order; each step needs only earlier ones.
// They do not change after [open] has returned.
type parts struct {
	cfg       config.Config
	log       *zap.Logger
	lines     *lines.Writer `required:"false"` // of decisions; nil: disabled
	addrs     config.Addresses
	listeners *listen.Sockets
	apart     *netns.Net            `required:"false"` // nil: boxes are in the gateway's own namespace
	before    *handover.Predecessor `required:"false"` // the process being replaced
	metrics   *prometheus.Registry
	shares    share.Descriptors // file descriptors
	memory    *memory.Budget    // shared by boxes
	quotas    *quotas.Book      // of API keys
	keyed     *authlimit.Keyed  // connections of clients that presented an API key
	adminTLS  *tls.Config       `required:"false"` // of admin.listen; nil: plain HTTP

	boxes      *state.Table
	connected  *enforce.Registry
	urlTable   *urls.Table
	dialect    *dialectNames
	domains    *urls.Domains
	orders     *urls.Orders
	ownURLs    *urls.OwnURLs
	inside     *inside // endpoint for boxes
	reach      *boxdial.Boxes
	visits     *usage.Visits
	forBoxes   *hostservices.Services // of the operator
	remote     *remote.Server         `required:"false"` // of boxes elsewhere; nil: disabled
	ssh        *sshd.Server           `required:"false"` // nil: disabled
	minter     *certs.Minter
	history    *history.History
	roots      *x509.CertPool // trusted for upstream servers
	addedRoots []byte         // configured additions to roots, in PEM; launched boxes trust them too

	store        *store.DB
	trail        *records.Trail
	past         *archive.Store `required:"false"` // nil: disabled
	historyLines *lines.Writer  `required:"false"` // lines for past; nil: disabled
	observed     *observe.Log   `required:"false"` // sums of the traffic of boxes; nil: disabled
	audit        *audit.Log
	exporters    export.Exporters // of decisions; empty: disabled
	pushed       *export.Metrics  `required:"false"` // sends the metrics; nil: disabled
	exports      []audit.Export   // the exporters' inputs
	secrets      *secrets.Secrets
	keySecrets   *keysecrets.Values // together with the configured ones, for requests of boxes
	tokens       *identity.Issuer
	dns          *dns.Server
	proxy        *proxy.Proxy
	ingress      *ingress.Ingress
	urlCA        *certs.Authority `required:"false"` // nil unless the internal CA signs public URLs
	acme         *acme.Manager    `required:"false"` // nil unless ingress.tls.mode is acme

	certificates certificates // of public URLs

	fleet   *node.Node   `required:"false"` // this host in its fleet; nil: disabled
	peers   *peers.Peers `required:"false"` // public URLs of the other hosts; nil: disabled
	peerAPI *peerAPI     `required:"false"` // the other hosts of the fleet; nil: disabled

	launcher        *launcher.Launcher
	snapshotManager *snapshots.Manager
	holdings        *keys.Holdings // of API keys
	provisioner     *box.Provisioner
	net             *enforce.Enforcer // applies policies
	shared          *rules.Shared     // inputs shared by the policies of all boxes
	firewall        *firewall.Firewall
	meter           *meter.Meter
	samples         *usage.Samples  // of the use of boxes
	models          *models.Service // accounts of models
	traffic         *remoteTraffic  // of remote boxes
}

// newParts returns the parts that need only the options. It divides descriptors and memory among boxes.
func newParts(o Options) (*parts, error) {
	descriptors, err := share.RaiseDescriptors()
	if err != nil {
		return nil, err
	}
	shares := share.MemoryOf(o.Config)
	shares.LimitRuntime()
	boxes := &state.Table{Limits: o.Config.Limits.BoxLimits(), ModelLimit: o.Config.Limits.Model.Limit()}
	book := quotas.New(quotas.Config{Defaults: o.Config.Quotas.Limits(), Totals: share.Totals(descriptors, shares)})
	return &parts{
		cfg: o.Config, log: o.Log, lines: o.Decisions, addrs: o.Addresses, listeners: o.Listeners, apart: o.Apart, before: o.Before,
		metrics: prometheus.NewRegistry(), shares: descriptors, memory: shares.Budget(), quotas: book, keyed: authlimit.NewKeyed(book),
		boxes: boxes, connected: &enforce.Registry{}, reach: &boxdial.Boxes{}, history: history.New(boxes.Has),
	}, nil
}

// close closes the open parts.
func (p *parts) close() error {
	var errs []error
	if p.firewall != nil {
		errs = append(errs, p.firewall.Close(), fault.At(context.Background(), "stop: kernel rules let go"))
	}
	p.closeExports()
	if p.past != nil {
		_ = p.historyLines.Sync() // lost lines are counted
		errs = append(errs, p.past.Close())
	}
	if p.observed != nil {
		errs = append(errs, p.observed.Close())
	}
	if p.trail != nil {
		errs = append(errs, p.trail.Log().Close())
	}
	if p.acme != nil {
		p.acme.Close()
	}
	if p.snapshotManager != nil {
		p.snapshotManager.Close()
	}
	if p.launcher != nil {
		if len(p.boxes.All()) == 0 {
			forgetRun(p.launcher.RunDir())
		}
		errs = append(errs, p.launcher.Close())
	}
	p.secrets.Close()
	if p.peers != nil {
		p.peers.Close()
	}
	if p.fleet != nil {
		errs = append(errs, p.fleet.Close())
	}
	if p.models != nil {
		errs = append(errs, p.models.Close())
	}
	if p.store != nil {
		errs = append(errs, p.store.Close())
	}
	return errors.Join(errs...)
}
