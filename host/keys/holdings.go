package keys

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/host/snapshots"
	"boxgate/host/state"
	"boxgate/internal/required"
	"boxgate/launcher"
	"boxgate/policy"
	quotas "boxgate/quota"
	"boxgate/store"
)

// Holdings counts the objects of API keys for their quotas: boxes, snapshots, public URLs and their custom domains,
// schedules, and secrets. An object counts for the key that made it; objects of older versions, without a recorded creator, count for
// the operator. Safe for concurrent use.
type Holdings struct {
	log       *zap.Logger
	book      *quotas.Book
	boxes     *state.Table
	keys      store.Keys
	snapshots store.Snapshots
	// layer returns the size of a layer on disk; an error if the layer is not complete.
	layer          func(layer string) (int64, error)
	elsewhere      func(box policy.BoxID) ([]store.Snapshot, error) // see [HoldingsConfig]
	elsewhereLayer func(layer string) (int64, bool)
	// space returns an error if the state directory has no space for n more bytes.
	space func(n int64) error

	kinds [quotas.Secrets + 1]kindHoldings
}

// kindHoldings guards the count of one kind.
type kindHoldings struct {
	mu      sync.Mutex
	tally   tally     // of kinds that the store does not count; guarded by mu; nil: must be recounted
	counted time.Time // time of the count
}

// tally is the number of objects of a kind by key ID.
type tally map[string]int64

// add counts n objects of a creator as stored in records.
func (t tally) add(creator string, n int64) { t[cmp.Or(creator, api.OperatorKey)] += n }

// tallyAge is the maximum age of a tally. A request is only refused by a fresh tally.
const tallyAge = time.Second

// CreatorOf returns the ID of a request's API key as stored in records: "" for the operator's.
func CreatorOf(ctx context.Context) string {
	if key := api.CallerOf(ctx).Key; key != api.OperatorKey {
		return key
	}
	return ""
}

// HoldingsConfig configures [Holdings].
type HoldingsConfig struct {
	Log       *zap.Logger
	Book      *quotas.Book
	Boxes     *state.Table
	Keys      store.Keys
	Snapshots store.Snapshots
	// Layer returns the size of a layer on disk; an error if the layer is not complete.
	Layer func(layer string) (int64, error)
	// Elsewhere returns the snapshots of other hosts, and ElsewhereLayer the size of a layer of theirs. Without them there are no other hosts.
	Elsewhere      func(box policy.BoxID) ([]store.Snapshot, error) `required:"false"`
	ElsewhereLayer func(layer string) (int64, bool)                 `required:"false"`
	// Space returns an error if the state directory has no space for n more bytes.
	Space func(n int64) error
}

// NewHoldings returns the holdings of a gateway, and registers their counts with its book of quotas.
func NewHoldings(c HoldingsConfig) (*Holdings, error) {
	if err := required.Fields(c); err != nil {
		return nil, err
	}
	h := &Holdings{log: c.Log, book: c.Book, boxes: c.Boxes, keys: c.Keys, snapshots: c.Snapshots, layer: c.Layer, elsewhere: c.Elsewhere, elsewhereLayer: c.ElsewhereLayer, space: c.Space}
	for k := range quotas.Kind(len(h.kinds)) {
		if k.Counted() {
			h.book.Count(k, func(of quotas.Holder) int64 { return h.countOf(k, of) })
		}
	}
	return h, nil
}

// countOf returns a key's number of objects of a kind, at most tallyAge old.
func (h *Holdings) countOf(k quotas.Kind, of quotas.Holder) int64 {
	kind := &h.kinds[k]
	kind.mu.Lock()
	defer kind.mu.Unlock()
	n, err := h.countLocked(k, of.ID, tallyAge)
	if err != nil {
		h.log.Error("the objects of API keys could not be counted", zap.Stringer("quota", k), zap.Error(err))
	}
	return n
}

// Reserve reserves n more objects of a kind for the API key of a request. It returns a [quotas.Error] if that exceeds the
// key's quota. Call done once the new objects are stored, or after a failure.
func (h *Holdings) Reserve(ctx context.Context, k quotas.Kind, n int64) (done func(), err error) {
	holder := api.CallerOf(ctx).Holder()
	if n <= 0 || holder.Operator {
		return func() {}, nil
	}
	kind := &h.kinds[k]
	kind.mu.Lock()
	defer kind.mu.Unlock()
	var release func()
	for _, age := range []time.Duration{tallyAge, 0} {
		has, err := h.countLocked(k, holder.ID, age)
		if err != nil {
			return nil, err
		}
		if release, err = h.book.Reserve(holder, k, n, func() int64 { return has }); err == nil {
			break
		} else if age == 0 {
			return nil, err
		}
	}
	return sync.OnceFunc(func() {
		kind.mu.Lock()
		defer kind.mu.Unlock()
		kind.tally = nil // it lacks the objects created in between
		release()
	}), nil
}

// countLocked returns a key's number of objects of a kind. The store's counts are exact; the others may be as old as age.
func (h *Holdings) countLocked(k quotas.Kind, key string, age time.Duration) (int64, error) {
	switch k {
	case quotas.Boxes, quotas.SnapshotBytes:
		t, err := h.tallyLocked(k, age)
		return t[key], err
	}
	stored, err := h.keys.Holdings(key)
	switch k {
	case quotas.Snapshots:
		if err != nil || h.elsewhere == nil {
			return stored.Snapshots, err
		}
		more, err := h.elsewhere("")
		for _, s := range more {
			if cmp.Or(s.TakenBy, api.OperatorKey) == key {
				stored.Snapshots++
			}
		}
		return stored.Snapshots, err
	case quotas.URLs:
		return stored.URLs, err
	case quotas.Domains:
		return stored.Domains, err
	case quotas.Schedules:
		return stored.Schedules, err
	case quotas.Secrets:
		return stored.Secrets, err
	}
	return 0, err
}

// tallyLocked returns a tally that is at most age old.
func (h *Holdings) tallyLocked(k quotas.Kind, age time.Duration) (tally, error) {
	kind := &h.kinds[k]
	if now := time.Now(); kind.tally == nil || now.Sub(kind.counted) >= age {
		t, err := h.count(k)
		if err != nil {
			return nil, err
		}
		kind.tally, kind.counted = t, now
	}
	return kind.tally, nil
}

// count counts the objects of a kind by key.
func (h *Holdings) count(k quotas.Kind) (tally, error) {
	t := tally{}
	switch k {
	case quotas.Boxes:
		for _, b := range h.boxes.Unsorted() {
			t.add(b.Shown.Load().CreatedBy, 1)
		}
	case quotas.SnapshotBytes:
		return h.countBytes()
	}
	return t, nil
}

// countBytes adds up the sizes of the layers that each key's snapshots and boxes use, each layer once, since it stays on
// disk for as long as one of them needs it.
func (h *Holdings) countBytes() (tally, error) {
	list, err := h.snapshots.All()
	if err != nil {
		return nil, err
	}
	sizes, owned, t := map[string]int64{}, map[[2]string]bool{}, tally{}
	add := func(key string, layers []string) {
		for _, layer := range layers {
			if owned[[2]string{key, layer}] {
				continue
			}
			owned[[2]string{key, layer}] = true
			size, known := sizes[layer]
			if !known {
				var err error
				if size, err = h.layer(layer); err != nil && h.elsewhereLayer != nil {
					size, _ = h.elsewhereLayer(layer)
				} // an incomplete layer counts by its reservation
				sizes[layer] = size
			}
			t.add(key, size)
		}
	}
	if h.elsewhere != nil {
		more, err := h.elsewhere("")
		if err != nil {
			return nil, err
		}
		list = append(list, more...)
	}
	for _, s := range list {
		add(cmp.Or(s.TakenBy, api.OperatorKey), s.Layers)
	}
	for _, b := range h.boxes.Unsorted() {
		add(cmp.Or(b.Shown.Load().CreatedBy, api.OperatorKey), b.Layers)
	}
	return t, nil
}

// growthStep is the number of bytes reserved at a time.
const growthStep = 4 << 20

// Snapshot reserves one more snapshot for the API key of a request, and its first bytes.
func (h *Holdings) Snapshot(ctx context.Context) (snapshots.Allowance, error) {
	counted, err := h.Reserve(ctx, quotas.Snapshots, 1)
	if err != nil {
		return snapshots.Allowance{}, err
	}
	g := &growing{holdings: h, ctx: ctx}
	if err := g.grow(1); err != nil {
		counted()
		return snapshots.Allowance{}, err
	}
	return snapshots.Allowance{Stored: counted, Grow: g.grow, Release: g.release}, nil
}

// growing is a snapshot that is being written.
type growing struct {
	holdings *Holdings
	ctx      context.Context // of the request
	unused   int64           // reserved bytes not used yet
	releases []func()
}

// grow reserves n more bytes of the key's quota and of the disk.
func (g *growing) grow(n int64) error {
	if n <= g.unused {
		g.unused -= n
		return nil
	}
	missing := n - g.unused
	var err error
	for _, more := range []int64{max(missing, growthStep), missing} {
		if err = g.holdings.CheckSpace(more); err != nil {
			continue
		}
		var done func()
		if done, err = g.holdings.Reserve(g.ctx, quotas.SnapshotBytes, more); err == nil {
			g.releases, g.unused = append(g.releases, done), g.unused+more-n
			return nil
		}
	}
	return err
}

// CheckSpace returns an error if n more bytes would not leave the gateway's reserve on the disk.
func (h *Holdings) CheckSpace(n int64) error {
	err := h.space(n)
	if full, ok := errors.AsType[*launcher.DiskFullError](err); ok {
		return api.Errorf(api.ErrFull, "%w", full)
	}
	return err
}

// release releases all reservations.
func (g *growing) release() {
	for _, done := range g.releases {
		done()
	}
	g.releases, g.unused = nil, 0
}

// quotaMetrics exports the quota usage of API keys.
type quotaMetrics struct {
	book *quotas.Book
	keys func() []quotas.Holder // all keys: the book does not have the objects they have made
}

var (
	quotaUsed = prometheus.NewDesc("boxgate_quota_used",
		"Usage of a quota by an API key; with the key \"\", by all keys that are not admin keys.", []string{"quota", "key"}, nil)
	quotaLimit = prometheus.NewDesc("boxgate_quota_limit",
		"Limit of a quota, with the labels of boxgate_quota_used.", []string{"quota", "key"}, nil)
	quotaRefused = prometheus.NewDesc("boxgate_quota_refused_total",
		"Requests and connections that were refused for a quota.", []string{"quota"}, nil)
)

// mostQuotaKeys limits the metrics of single keys to the ones closest to a quota.
const mostQuotaKeys = 20

// Register registers the metrics of the quotas.
func (k *Service) Register(metrics *prometheus.Registry) error {
	return metrics.Register(quotaMetrics{k.quotas, k.holders})
}

// holders returns all API keys.
func (k *Service) holders() (list []quotas.Holder) {
	all, err := k.keys.All()
	if err != nil {
		k.log.Error("the API keys cannot be read, and have no metrics", zap.Error(err))
	}
	for _, found := range all {
		list = append(list, CallerOf(found).Holder())
	}
	return list
}

// Describe implements [prometheus.Collector].
func (m quotaMetrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- quotaUsed
	ch <- quotaLimit
	ch <- quotaRefused
}

// Collect implements [prometheus.Collector].
func (m quotaMetrics) Collect(ch chan<- prometheus.Metric) {
	show := func(key string, k quotas.Kind, u quotas.Use) {
		if u.Limit == 0 {
			return
		}
		ch <- prometheus.MustNewConstMetric(quotaUsed, prometheus.GaugeValue, float64(u.Used), k.String(), key)
		ch <- prometheus.MustNewConstMetric(quotaLimit, prometheus.GaugeValue, float64(u.Limit), k.String(), key)
	}
	for _, k := range quotas.Kinds() {
		shared, refused := m.book.Shared(k)
		show("", k, shared)
		ch <- prometheus.MustNewConstMetric(quotaRefused, prometheus.CounterValue, float64(refused), k.String())
	}
	for _, h := range m.book.Holders(quotas.APIKey, mostQuotaKeys, m.keys()...) {
		for k, u := range h.Uses {
			show(h.Holder.ID, quotas.Kind(k), u)
		}
	}
}
