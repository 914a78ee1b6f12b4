// Package host owns the boxes of one gateway. It puts the parts together (store, kernel rules, DNS, proxy, public URLs,
// launcher), makes, changes and removes boxes through all of them, and is the only implementation of [api.Host].
//
// Call [Listen] for the sockets, then [Open], which picks up the boxes of an earlier run, then [Host.Serve], which returns
// when its context ends or a server fails, then [Host.Close]. Kernel rules and boxes outlive all of it: a gateway that is
// down leaves its boxes closed to whatever a name decides.
package host

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/certs"
	"boxgate/config"
	"boxgate/dns"
	"boxgate/firewall"
	"boxgate/ingress"
	"boxgate/internal/memory"
	"boxgate/launcher"
	"boxgate/policy"
	"boxgate/proxy"
	"boxgate/secrets"
	"boxgate/store"
)

// Host owns the boxes: it implements [api.Host] over the parts of the gateway. Lock order: box.mu before host.mu.
type Host struct {
	cfg       config.Config
	log       *zap.Logger
	addrs     config.Addresses
	listeners *Listeners
	shares    descriptors
	store     *store.DB
	audit     *audit.Log
	firewall  *firewall.Firewall
	dns       *dns.Server
	proxy     *proxy.Proxy
	minter    *certs.Minter
	secrets   *secrets.Secrets
	launcher  *launcher.Launcher
	ingress   *ingress.Ingress
	urlCA     *certs.Authority // nil unless the internal CA signs public URLs
	registry  registry
	urls      urlTable
	protected atomic.Pointer[policy.Protected]

	metrics *prometheus.Registry
	memory  *memory.Budget // which boxes share

	own []netip.Prefix // this host's addresses and the pools, protected in every box; used by reprotect alone

	globalChange sync.Mutex // serialises changes of the global header rules
	selfTesting  sync.Mutex // held by the self-test that runs
	noWatch      bool       // for tests: see serve

	mu            sync.Mutex
	boxes         map[policy.BoxID]*box
	global        []policy.HeaderRule
	globalVersion uint64
}

// box is one box in memory: what the data path reads, and what its changes are made from.
type box struct {
	policy.Box
	name      string
	createdAt time.Time
	attached  *store.Attached          // nil: launched here
	env       map[string]policy.Secret // comes with every command

	shown    atomic.Pointer[api.Box] // what the API shows; published after each change, so that no reader waits for one
	running  atomic.Int64            // commands
	activity atomic.Int64            // when a command last began or ended, in Unix nanoseconds

	mu             sync.Mutex // serialises changes; held for as long as one takes
	record         store.Box
	spec           policy.Spec
	version        uint64 // of the policy in force
	lastVersion    uint64 // highest ever given out: one that was taken back is not used again
	headers        []policy.HeaderRule
	headersVersion uint64
	hosted         api.Hosted
	status         api.Status
	problem        string // why status is error
	connected      bool   // its interface is attached; else it has no policy and no network
	deleted        bool
}

// unlocked runs a slow step of a change of the box without its lock, so that what goes through all boxes does not wait
// for this one. What holds of the box may have changed afterwards; it may even be deleted. The caller holds b.mu.
func (b *box) unlocked(step func() error) error {
	b.mu.Unlock()
	defer b.mu.Lock()
	return step()
}

// gone returns ErrNotFound for a box that was deleted while the caller waited for its lock.
func (b *box) gone() error {
	if b.deleted {
		return api.ErrNotFound
	}
	return nil
}

func (b *box) policyState() api.PolicyState {
	return api.PolicyState{Spec: b.spec, Version: b.version, Warnings: b.warnings()}
}

func (b *box) headerState() api.HeaderState {
	return api.HeaderState{Rules: b.headers, Version: b.headersVersion, Warnings: b.warnings()}
}

// warnings are those of the policy in force; a box without network has none.
func (b *box) warnings() []policy.Problem {
	if c := b.Policy.Load(); c != nil {
		return c.Warnings()
	}
	return nil
}

// publish makes the present state what the API shows. The caller holds b.mu.
func (b *box) publish() {
	b.shown.Store(&api.Box{
		ID: b.ID, Name: b.name, Labels: b.record.Labels, Size: b.record.Size, Runtime: b.record.Runtime,
		KeepAlive: b.record.KeepAlive, InitCommand: b.record.InitCommand, Ephemeral: b.record.Ephemeral,
		ExpiresAt: b.record.ExpiresAt, Status: b.status, Error: b.problem, V4: b.V4, V6: b.V6, Policy: b.policyState(),
		Hosted: b.hosted, Attached: attachedView(b.attached), CreatedAt: b.createdAt, UpdatedAt: b.record.UpdatedAt,
	})
}

// view is the box as the API shows it.
func (b *box) view() api.Box {
	v := *b.shown.Load()
	if v.Status == api.StatusIdle && b.running.Load() > 0 {
		v.Status = api.StatusRunning
	}
	v.LastActivity = time.Unix(0, b.activity.Load())
	return v
}

// find returns a box by its ID.
func (h *Host) find(id policy.BoxID) (*box, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if b, ok := h.boxes[id]; ok {
		return b, nil
	}
	return nil, api.ErrNotFound
}

// all returns the boxes, oldest first.
func (h *Host) all() []*box {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := slices.Collect(maps.Values(h.boxes))
	slices.SortFunc(out, func(a, b *box) int { return a.createdAt.Compare(b.createdAt) })
	return out
}

// Box implements [api.Host].
func (h *Host) Box(_ context.Context, idOrName string) (api.Box, error) {
	b, err := h.find(policy.BoxID(idOrName))
	if err != nil && idOrName != "" {
		for _, other := range h.all() {
			if other.name == idOrName {
				b, err = other, nil
			}
		}
	}
	if err != nil {
		return api.Box{}, api.Errorf(api.ErrNotFound, "there is no box %q", idOrName)
	}
	return b.view(), nil
}

// Boxes implements [api.Host].
func (h *Host) Boxes(_ context.Context, f api.BoxFilter) ([]api.Box, error) {
	var views []api.Box
	for _, b := range h.all() {
		if v := b.view(); f.Label == "" || slices.Contains(v.Labels, f.Label) {
			views = append(views, v)
		}
	}
	return views, nil
}

// RecentEvents implements [api.Host].
func (h *Host) RecentEvents(_ context.Context, f api.EventFilter) (api.PastEvents, error) {
	which := audit.Filter{Box: f.Box, Since: f.Since, After: f.After, Denied: f.Denied}
	missing := h.audit.Missing(which)
	return api.PastEvents{Events: h.audit.Recent(which), Run: h.audit.ID(), Missing: missing}, nil
}

// FollowEvents implements [api.Host].
func (h *Host) FollowEvents(ctx context.Context, f api.EventFilter) (api.EventStream, error) {
	return h.audit.Subscribe(ctx, audit.Filter{Box: f.Box, Since: f.Since, Denied: f.Denied}), nil
}

// CA implements [api.Host].
func (h *Host) CA(_ context.Context, id policy.BoxID) ([]byte, error) {
	ca, err := h.minter.Authority(id)
	if err != nil {
		return nil, api.ErrNotFound
	}
	return ca.CertificatePEM(), nil
}

// IngressCA implements [api.Host].
func (h *Host) IngressCA(context.Context) ([]byte, error) {
	if h.urlCA == nil {
		return nil, api.Errorf(api.ErrNotFound, "the public URLs of this gateway use certificates from files, not an internal CA")
	}
	return h.urlCA.CertificatePEM(), nil
}

// Ready implements [api.Host].
func (h *Host) Ready(context.Context) error {
	if h.protected.Load() == nil {
		return api.Errorf(api.ErrUnavailable, "the gateway is starting")
	}
	return nil
}

// randomHex returns n random bytes in hexadecimal.
func randomHex(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails (crypto/rand)
	return hex.EncodeToString(b)
}

// gatewayAddrs are the gateway's addresses as boxes see them.
func (h *Host) gatewayAddrs() []netip.Addr { return []netip.Addr{h.addrs.GatewayV4, h.addrs.GatewayV6} }
