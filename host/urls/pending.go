package urls

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/store"
)

const (
	// firstLookup is the delay of the first lookup after the URL was created. It doubles with each further one, up to
	// lastLookup.
	firstLookup, lastLookup = 2 * time.Second, time.Hour
	// hurriedLookup is the minimum time between two lookups of a domain whose user is waiting.
	hurriedLookup = 10 * time.Second
	// concurrentLookups is the maximum number of concurrent lookups, and lookupsOfKey the maximum for one key.
	concurrentLookups, lookupsOfKey = 16, 4
)

// pendingNames holds the domains of public URLs that are not proven yet. Safe for concurrent use.
type pendingNames struct {
	mu    sync.Mutex
	names map[pendingName]*nextLookup
	last  map[string]time.Time // last turn of a key; only of keys with names
}

// pendingName is a pending domain of a URL.
type pendingName struct {
	box       policy.BoxID
	port      uint16
	host      string
	createdAt time.Time
	key       string // ID of the API key that must prove it
}

// nextLookup holds the next and the last lookup of a pending domain.
type nextLookup struct {
	at, last time.Time
	wait     time.Duration
}

// set replaces the pending domains of a port with the pending domains of its new URL.
func (p *pendingNames) set(r store.URL, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deleteLocked(func(n pendingName) bool { return n.box == r.Box && n.port == r.Port })
	for _, host := range r.Pending {
		if p.names == nil {
			p.names, p.last = map[pendingName]*nextLookup{}, map[string]time.Time{}
		}
		n := pendingName{r.Box, r.Port, host, r.CreatedAt, cmp.Or(r.Owner, store.OperatorKey)}
		p.names[n] = &nextLookup{at: now.Add(firstLookup), last: now, wait: firstLookup}
	}
}

// remove removes the pending domains of a box, or of one of its ports; port 0 means all.
func (p *pendingNames) remove(id policy.BoxID, port uint16) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deleteLocked(func(n pendingName) bool { return n.box == id && (port == 0 || n.port == port) })
}

func (p *pendingNames) deleteLocked(gone func(pendingName) bool) {
	maps.DeleteFunc(p.names, func(n pendingName, _ *nextLookup) bool { return gone(n) })
}

// bringForward brings forward the next lookups for a box when its URLs are listed: a user who has published a record wants to
// see the result.
func (p *pendingNames) bringForward(id policy.BoxID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for n, look := range p.names {
		if soon := look.last.Add(hurriedLookup); n.box == id && soon.Before(look.at) {
			look.at = soon
		}
	}
}

// due returns the domains to look up now, and schedules their next lookups. Keys take turns, so that a key with many
// domains on unresponsive nameservers does not delay the domains of others.
func (p *pendingNames) due(now time.Time) (list []pendingName) {
	p.mu.Lock()
	defer p.mu.Unlock()
	byKey, known := map[string][]pendingName{}, map[string]bool{}
	for n, look := range p.names {
		known[n.key] = true
		if !now.Before(look.at) {
			byKey[n.key] = append(byKey[n.key], n)
		}
	}
	maps.DeleteFunc(p.last, func(key string, _ time.Time) bool { return !known[key] })
	keys := slices.SortedFunc(maps.Keys(byKey), func(a, b string) int { return p.last[a].Compare(p.last[b]) })
	for _, key := range keys {
		of := byKey[key]
		slices.SortFunc(of, func(a, b pendingName) int { return p.names[a].at.Compare(p.names[b].at) })
		n := min(len(of), lookupsOfKey, concurrentLookups-len(list))
		if n == 0 {
			continue
		}
		p.last[key] = now
		for _, name := range of[:n] {
			look := p.names[name]
			look.wait = min(2*look.wait, lastLookup)
			look.at, look.last = now.Add(look.wait), now
			list = append(list, name)
		}
	}
	return list
}

// ProvePending puts pending domains into service once they are proven, until ctx is done.
func (u *Service) ProvePending(ctx context.Context) {
	tick := time.NewTicker(firstLookup / 2)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		var looking sync.WaitGroup
		for _, n := range u.pending.due(time.Now()) {
			looking.Go(func() { u.prove(ctx, n) })
		}
		looking.Wait()
	}
}

// prove puts a pending domain into service if its key has proven it. The key must still be valid.
func (u *Service) prove(ctx context.Context, n pendingName) {
	host, err := name.Parse(n.host)
	caller, valid := u.config.Domains.keyOf(n.key)
	if err != nil || !valid || u.isGateways(host) != "" {
		return
	}
	claim, pending, err := u.config.Domains.claim(ctx, caller, []name.Name{host}, nil)
	if err != nil || len(pending) > 0 {
		return
	}
	b, err := u.config.Boxes.Find(n.box)
	if err != nil || !b.TryLock() { // it is being changed; the next lookup is soon enough
		return
	}
	if _, err := u.config.Boxes.Locked(b); err != nil {
		return
	}
	defer b.Unlock()
	record, err := u.config.Store.ProveHost(n.box, n.port, n.createdAt, n.host, claim)
	if err != nil {
		u.config.Log.Info("a domain of a public URL is proven, and stays pending", zap.String("box", string(n.box)), zap.Uint16("port", n.port),
			zap.String("domain", n.host), zap.Error(err))
		return
	}
	u.config.Table.set(u.hostsOf(record), urlTarget(record, b.V4))
	u.pending.set(record, time.Now())
	u.config.Log.Info("a domain of a public URL is in service", zap.String("box", string(n.box)), zap.Uint16("port", n.port),
		zap.String("domain", n.host), zap.String("key", n.key), zap.String("proof", claim.Proofs[n.host]))
}
