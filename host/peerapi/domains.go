package peerapi

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/fleet/directory"
	"boxgate/internal/fault"
)

// Claims is the part of the fleet that Domains uses; implemented by [boxgate/fleet/node.Node].
type Claims interface {
	Directory
	// Claims returns the known claims by their domains; false: there was no listing yet.
	Claims() (claims map[string]directory.Claim, known bool)
	IsMember(host string) bool
}

// DomainsConfig configures [Domains].
type DomainsConfig struct {
	Fleet Claims
	// Served returns the domains that this host serves, with the IDs of their API keys. Serves reports whether a domain is one of them.
	Served func() map[string]string
	Serves func(domain string) bool
	// Freed returns the API key that had a domain on this host until recently, and when its URL released it; a zero time: it is not kept.
	Freed func(domain string) (key string, at time.Time, err error)
	Log   *zap.Logger
}

// Domains claims the domains of this host's public URLs in the fleet, so that no other host has them, and all hosts know where their visitors
// belong. A domain is claimed before its URL is stored; everything else, also the claim of a URL that was not stored because the gateway crashed, is
// brought up to date by [Domains.Run]. Safe for concurrent use.
type Domains struct {
	DomainsConfig

	changes   sync.Mutex           // held while a claim is given up, and while a domain becomes pending
	pending   map[string]int       // domains that are claimed, and not served yet; guarded by changes
	given     map[string]int64     // revisions of claims that were given up, perhaps without an answer, and may be among the known ones; guarded by changes
	conflicts map[string]time.Time // domains that this host serves, and another has claimed: when that was found; used by sync alone
	checked   time.Time            // when the freed domains were last compared with the store; likewise
}

// checkFreedEvery is the time between two comparisons of all freed domains with the store.
const checkFreedEvery = time.Minute

// NewDomains returns the domains of a host.
func NewDomains(c DomainsConfig) *Domains {
	return &Domains{DomainsConfig: c, pending: map[string]int{}, given: map[string]int64{}, conflicts: map[string]time.Time{}}
}

// Claim claims domains for an API key, all or not one, before they are stored. Call done once they are served, or will not be. A domain that another
// host serves, or that is kept for another key, is an [api.ErrConflict]. If the directory does not answer, only domains that this host has
// already can be claimed; others are an [api.ErrUnavailable].
func (d *Domains) Claim(ctx context.Context, domains []string, key string, admin bool) (done func(), err error) {
	if len(domains) == 0 {
		return func() {}, nil
	}
	d.hold(domains, 1)
	done = sync.OnceFunc(func() { d.hold(domains, -1) })
	own := d.Fleet.Directory()
	if d.has(own.Host, domains) {
		return done, nil
	}
	ctx, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	err = own.ClaimDomains(ctx, domains, directory.By{Key: key, Admin: admin, Member: d.Fleet.IsMember})
	switch {
	case err == nil:
		return done, nil
	case errors.Is(err, directory.ErrDomainTaken), errors.Is(err, directory.ErrDomainKept):
		done()
		return nil, api.Errorf(api.ErrConflict, "%v", err)
	}
	done()
	return nil, &api.Error{Kind: api.ErrUnavailable, Cause: err, Message: "the domains could not be claimed in the fleet, and the public URL was not changed: its directory does not answer, or this host is cut off from it"}
}

// has reports whether a host, this one, has all of the domains in use.
func (d *Domains) has(host string, domains []string) bool {
	known, _ := d.Fleet.Claims()
	d.changes.Lock()
	defer d.changes.Unlock()
	return !slices.ContainsFunc(domains, func(domain string) bool {
		claim := known[domain]
		return claim.Host != host || !claim.Freed.IsZero() || claim.Revision == d.given[domain]
	})
}

// hold counts domains as pending, or no longer.
func (d *Domains) hold(domains []string, n int) {
	d.changes.Lock()
	defer d.changes.Unlock()
	for _, domain := range domains {
		if d.pending[domain] += n; d.pending[domain] == 0 {
			delete(d.pending, domain)
		}
	}
}

// Run keeps the claims up to date until ctx is done.
func (d *Domains) Run(ctx context.Context) {
	tick := time.NewTicker(fault.Interval(syncEvery))
	defer tick.Stop()
	for {
		if err := d.sync(ctx, time.Now()); err != nil && ctx.Err() == nil {
			d.Log.Warn("the claims of this host to domains are not up to date in the fleet", zap.Error(err))
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// sync makes the claims agree with the domains that this host serves or keeps. Claims of hosts that left are removed. A fenced host changes no claim.
func (d *Domains) sync(ctx context.Context, now time.Time) error {
	claims, known := d.Fleet.Claims()
	if d.Fleet.Fenced() || !known {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	own := d.Fleet.Directory()
	all := now.Sub(d.checked) >= checkFreedEvery
	if all {
		d.checked = now
	}
	for _, domain := range slices.Sorted(maps.Keys(claims)) {
		claim := claims[domain]
		gone := !d.Fleet.IsMember(claim.Host) && !claim.Kept(now)
		ended := claim.Host == own.Host && (claim.Freed.IsZero() && !d.Serves(domain) || !claim.Freed.IsZero() && (all || !claim.Kept(now)))
		if !gone && !ended {
			continue
		}
		if err := d.release(ctx, own, domain, claim, now); err != nil {
			return err
		}
	}
	d.changes.Lock()
	maps.DeleteFunc(d.given, func(domain string, revision int64) bool { return claims[domain].Revision != revision })
	d.changes.Unlock()
	served := d.Served()
	for _, domain := range slices.Sorted(maps.Keys(served)) {
		if claim := claims[domain]; claim.Host == own.Host && claim.Freed.IsZero() || now.Sub(d.conflicts[domain]) < conflictEvery {
			continue
		}
		err := own.ClaimDomains(ctx, []string{domain}, directory.By{Key: served[domain], Member: d.Fleet.IsMember})
		delete(d.conflicts, domain)
		switch {
		case errors.Is(err, directory.ErrDomainTaken), errors.Is(err, directory.ErrDomainKept):
			d.conflicts[domain] = now
			d.Log.Warn("a domain of a public URL of this host is another host's in the fleet, and its visitors are not served here", zap.String("domain", domain), zap.Error(err))
		case err != nil:
			return err
		}
	}
	maps.DeleteFunc(d.conflicts, func(domain string, _ time.Time) bool { _, ok := served[domain]; return !ok })
	return nil
}

// release gives up the claim to a domain that this host does not serve: it stays for the key that had the domain, as long as the store keeps that, or
// is deleted.
func (d *Domains) release(ctx context.Context, own directory.Directory, domain string, claim directory.Claim, now time.Time) error {
	d.changes.Lock()
	defer d.changes.Unlock()
	if d.pending[domain] > 0 || d.Serves(domain) {
		return nil
	}
	if claim.Host != own.Host {
		return own.ReplaceDomain(ctx, domain, claim, nil)
	}
	key, at, err := d.Freed(domain)
	if err != nil {
		return err
	}
	kept := directory.Domain{Host: own.Host, Key: key, Freed: at}
	switch {
	case !kept.Kept(now):
		d.given[domain] = claim.Revision
		return own.ReplaceDomain(ctx, domain, claim, nil)
	case claim.Key == key && claim.Freed.Equal(at):
		return nil
	}
	d.given[domain] = claim.Revision
	return own.ReplaceDomain(ctx, domain, claim, &kept)
}
