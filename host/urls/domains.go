package urls

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/config"
	"boxgate/host/change"
	"boxgate/host/keys"
	"boxgate/internal/required"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/store"
)

// Proofs of a key's right to a domain.
const (
	proofDNS      = "dns"           // by a TXT record
	proofOperator = "operator"      // by an admin key, which needs no record
	proofConfig   = "configuration" // by ingress.domains
)

const (
	// challengeLabel is the label prefix of a domain's TXT record.
	challengeLabel = "_boxgate-challenge."
	// challengePrefix is the prefix of the record's text.
	challengePrefix = "boxgate-key="
	// mostLookups is the maximum number of concurrent TXT lookups on behalf of one key.
	mostLookups = 16
)

// Domains decides which API keys may use a domain for a public URL. Safe for concurrent use.
type Domains struct {
	rows config.Domains
	log  *zap.Logger
	// store has the owners of domains, and the tokens.
	store store.URLs
	keys  store.Keys
	// text looks up TXT records.
	text func(context.Context, name.Name) ([]string, error)

	mu      sync.Mutex
	lookups map[string]int // in flight, by key
}

// DomainsConfig configures [Domains].
type DomainsConfig struct {
	Rows  config.Domains
	Log   *zap.Logger
	Store store.URLs
	Keys  store.Keys
	// Text looks up TXT records.
	Text func(context.Context, name.Name) ([]string, error)
}

// NewDomains returns a Domains.
func NewDomains(c DomainsConfig) (*Domains, error) {
	if err := required.Fields(c); err != nil {
		return nil, err
	}
	return &Domains{rows: c.Rows, log: c.Log, store: c.Store, keys: c.Keys, text: c.Text}, nil
}

// claim checks which of the names a caller may use, and collects the proofs. Names without a proof are returned as
// pending. Names in had, which the URL already has, need no proof. An error refuses the whole request: a name is reserved
// for other keys, or too long.
func (d *Domains) claim(ctx context.Context, caller api.Caller, names []name.Name, had []string) (claim store.Claim, pending []string, err error) {
	claim = store.Claim{Key: caller.Key, Admin: caller.Role == api.RoleAdmin, Proofs: map[string]string{}}
	var unproven []name.Name
	for i, n := range names {
		if slices.Contains(had, n.String()) {
			continue
		}
		proof, err := d.proofWithoutRecord(caller, n, fmt.Sprintf("/hostnames/%d", i))
		if err != nil {
			return store.Claim{}, nil, err
		}
		if proof != "" {
			claim.Proofs[n.String()] = proof
			continue
		}
		known, err := d.store.Domain(n.String())
		if err != nil {
			return store.Claim{}, nil, err
		}
		if known.Key == "" || known.Key != claim.Key {
			unproven = append(unproven, n)
		}
	}
	for i, shown := range d.haveTokens(ctx, claim.Key, unproven) {
		if host := unproven[i].String(); shown {
			claim.Proofs[host] = proofDNS
		} else {
			pending = append(pending, host)
		}
	}
	return claim, pending, nil
}

// proofWithoutRecord returns the proof of a caller that does not need a TXT record for a name, or "" if one is needed.
func (d *Domains) proofWithoutRecord(caller api.Caller, n name.Name, pointer string) (proof string, err error) {
	row := d.rows.ForName(n)
	switch {
	case caller.Role == api.RoleAdmin:
		return proofOperator, nil
	case row != nil && row.ListsKey(caller.Key, caller.Name):
		return proofConfig, nil
	case row != nil:
		return "", api.Errorf(api.ErrForbidden, "%s lies within %s, which the operator keeps for other API keys: have this key entered in ingress.domains", n, row.Suffix)
	}
	if _, err := name.Parse(challengeLabel + n.String()); err != nil {
		return "", change.InvalidAt(pointer, fmt.Sprintf("is too long for the TXT record %s%s that shows whose it is", challengeLabel, n))
	}
	return "", nil
}

// haveTokens reports for each name whether its TXT record contains the key's token. Names beyond the key's limit of
// concurrent lookups count as unproven; ProvePending checks them later.
func (d *Domains) haveTokens(ctx context.Context, key string, names []name.Name) []bool {
	shown := make([]bool, len(names))
	var asking sync.WaitGroup
	for i, n := range names {
		if !d.beginLookup(key) {
			break
		}
		asking.Go(func() {
			defer d.endLookup(key)
			shown[i] = d.shown(ctx, key, n)
		})
	}
	asking.Wait()
	return shown
}

// shown reports whether a domain's TXT record contains the key's token. A failed lookup counts as no.
func (d *Domains) shown(ctx context.Context, key string, n name.Name) (ok bool) {
	defer func() {
		if recover() != nil {
			ok = false
			d.log.Error("panic while a TXT record was looked up")
		}
	}()
	record, err := name.Parse(challengeLabel + n.String())
	if err != nil {
		return false
	}
	want, err := d.recordText(key, n.String())
	if err != nil {
		return false
	}
	texts, err := d.text(ctx, record)
	if err != nil {
		d.log.Debug("a TXT record could not be looked up", zap.Stringer("name", record), zap.Error(err))
	}
	return slices.Contains(texts, want)
}

// recordText returns the text that a key's TXT record for a domain must contain.
func (d *Domains) recordText(key, host string) (string, error) {
	token, err := d.store.DomainToken(key, host)
	return challengePrefix + token, err
}

// pendingOf returns the TXT records that are needed for the pending domains of a URL.
func (d *Domains) pendingOf(r store.URL) (list []api.PendingName, err error) {
	for _, host := range r.Pending {
		value, err := d.recordText(cmp.Or(r.Owner, store.OperatorKey), host)
		if err != nil {
			return nil, err
		}
		list = append(list, api.PendingName{Hostname: host, Record: challengeLabel + host, Value: value})
	}
	return list, nil
}

// beginLookup counts a lookup, and reports whether the key may start it.
func (d *Domains) beginLookup(key string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.lookups[key] >= mostLookups {
		return false
	}
	if d.lookups == nil {
		d.lookups = map[string]int{}
	}
	d.lookups[key]++
	return true
}

func (d *Domains) endLookup(key string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.lookups[key]--; d.lookups[key] == 0 {
		delete(d.lookups, key)
	}
}

// keyOf returns the caller of a key ID, if the key is valid now.
func (d *Domains) keyOf(id string) (api.Caller, bool) {
	all, err := d.keys.All()
	if err != nil {
		return api.Caller{}, false
	}
	now := time.Now()
	for _, k := range all {
		if k.ID == id && (k.ExpiresAt.IsZero() || now.Before(k.ExpiresAt)) {
			return keys.CallerOf(k), true
		}
	}
	return api.Caller{}, false
}

// apiError converts an error of the store about domains to an API error. For other errors it returns nil.
func (d *Domains) apiError(err error) error {
	if kept, ok := errors.AsType[*store.KeptDomainError](err); ok {
		return api.Errorf(api.ErrConflict, "%v: only the key that had it, or an admin key, may take it before; if it is yours, have an admin do so", kept)
	}
	if errors.Is(err, store.ErrHostTaken) || errors.Is(err, store.ErrHostUnproven) {
		return api.Errorf(api.ErrConflict, "%v", err)
	}
	return nil
}

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
	served, err := u.claimInFleet(ctx, []string{n.host}, claim)
	if err != nil {
		u.config.Log.Info("a domain of a public URL is proven, and stays pending: it is not this host's in the fleet", zap.String("box", string(n.box)), zap.String("domain", n.host), zap.Error(err))
		return
	}
	defer served()
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
