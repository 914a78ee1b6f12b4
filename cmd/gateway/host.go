package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
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
	"boxgate/dns"
	"boxgate/firewall"
	"boxgate/ingress"
	"boxgate/launcher"
	"boxgate/policy"
	"boxgate/proxy"
	"boxgate/store"
)

// host owns the boxes: it implements [api.Host] over the parts of the gateway. Lock order: box.mu before host.mu.
type host struct {
	cfg       config
	log       *zap.Logger
	addrs     addresses
	listeners *listeners
	store     *store.DB
	audit     *audit.Log
	firewall  *firewall.Firewall
	dns       *dns.Server
	proxy     *proxy.Proxy
	minter    *certs.Minter
	launcher  *launcher.Launcher
	ingress   *ingress.Ingress
	urlCA     *certs.Authority // nil unless the internal CA signs public URLs
	registry  registry
	urls      urlTable
	protected atomic.Pointer[policy.Protected]

	metrics *prometheus.Registry

	globalChange sync.Mutex // serialises changes of the global header rules

	mu            sync.Mutex
	boxes         map[policy.BoxID]*box
	global        []policy.HeaderRule
	globalVersion uint64
	own           []netip.Prefix // the protected ranges of this host: its addresses and the pools
}

// box is one box in memory: what the data path reads, and what its changes are made from.
type box struct {
	policy.Box

	mu             sync.Mutex // serialises changes; held for as long as one takes
	record         store.Box
	spec           policy.Spec
	version        uint64
	headers        []policy.HeaderRule
	headersVersion uint64
	hosted         api.Hosted
	status         api.Status
	problem        string // why status is error
	deleted        bool
	lastActivity   time.Time
	running        int // commands
}

// gone returns ErrNotFound for a box that was deleted while the caller waited for its lock.
func (b *box) gone() error {
	if b.deleted {
		return api.ErrNotFound
	}
	return nil
}

// rules are the header rules that apply to the box.
func (b *box) rules(global []policy.HeaderRule) []policy.HeaderRule {
	return policy.MergeHeaders(global, b.headers)
}

func (b *box) policyState() api.PolicyState {
	return api.PolicyState{Spec: b.spec, Version: b.version, Warnings: b.Policy.Load().Warnings()}
}

func (b *box) headerState() api.HeaderState {
	return api.HeaderState{Rules: b.headers, Version: b.headersVersion, Warnings: b.Policy.Load().Warnings()}
}

// view is the box as the API shows it. The caller holds b.mu.
func (b *box) view() api.Box {
	status := b.status
	if status == api.StatusIdle && b.running > 0 {
		status = api.StatusRunning
	}
	return api.Box{
		ID: b.ID, Name: b.record.Name, Labels: b.record.Labels, Size: b.record.Size, Runtime: b.record.Runtime,
		KeepAlive: b.record.KeepAlive, InitCommand: b.record.InitCommand, Ephemeral: b.record.Ephemeral,
		ExpiresAt: b.record.ExpiresAt, Status: status, Error: b.problem, V4: b.V4, V6: b.V6, Policy: b.policyState(),
		Hosted: b.hosted, CreatedAt: b.record.CreatedAt, UpdatedAt: b.record.UpdatedAt, LastActivity: b.lastActivity,
	}
}

// find returns a box by its ID.
func (h *host) find(id policy.BoxID) (*box, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if b, ok := h.boxes[id]; ok {
		return b, nil
	}
	return nil, api.ErrNotFound
}

// all returns the boxes, oldest first.
func (h *host) all() []*box {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []*box
	for _, b := range h.boxes {
		out = append(out, b)
	}
	slices.SortFunc(out, func(a, b *box) int { return a.record.CreatedAt.Compare(b.record.CreatedAt) })
	return out
}

// Box implements [api.Host].
func (h *host) Box(_ context.Context, idOrName string) (api.Box, error) {
	b, err := h.find(policy.BoxID(idOrName))
	if err != nil {
		for _, other := range h.all() {
			if other.record.Name == idOrName && idOrName != "" {
				b, err = other, nil
			}
		}
	}
	if err != nil {
		return api.Box{}, api.Errorf(api.ErrNotFound, "there is no box %q", idOrName)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.view(), b.gone()
}

// Boxes implements [api.Host].
func (h *host) Boxes(_ context.Context, f api.BoxFilter) ([]api.Box, error) {
	var views []api.Box
	for _, b := range h.all() {
		b.mu.Lock()
		if !b.deleted && (f.Label == "" || slices.Contains(b.record.Labels, f.Label)) {
			views = append(views, b.view())
		}
		b.mu.Unlock()
	}
	return views, nil
}

// RecentEvents implements [api.Host].
func (h *host) RecentEvents(_ context.Context, f api.EventFilter) ([]audit.Event, error) {
	return h.audit.Recent(audit.Filter{Box: f.Box, Since: f.Since, Denied: f.Denied}), nil
}

// FollowEvents implements [api.Host].
func (h *host) FollowEvents(ctx context.Context, f api.EventFilter) (api.EventStream, error) {
	return h.audit.Subscribe(ctx, audit.Filter{Box: f.Box, Since: f.Since, Denied: f.Denied}), nil
}

// CA implements [api.Host].
func (h *host) CA(_ context.Context, id policy.BoxID) ([]byte, error) {
	ca, err := h.minter.Authority(id)
	if err != nil {
		return nil, api.ErrNotFound
	}
	return ca.CertificatePEM(), nil
}

// IngressCA implements [api.Host].
func (h *host) IngressCA(context.Context) ([]byte, error) {
	if h.urlCA == nil {
		return nil, api.Errorf(api.ErrNotFound, "the public URLs of this gateway use certificates from files, not an internal CA")
	}
	return h.urlCA.CertificatePEM(), nil
}

// Ready implements [api.Host].
func (h *host) Ready(context.Context) error {
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
func (h *host) gatewayAddrs() []netip.Addr { return []netip.Addr{h.addrs.gatewayV4, h.addrs.gatewayV6} }
