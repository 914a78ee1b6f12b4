package directory

import (
	"context"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"boxgate/fleet"
)

// Domain is the claim of a host to a domain of a public URL that is not below the domain of the fleet. All hosts follow the claims, and pass
// visitors of a domain on to its host.
type Domain struct {
	Host string `json:"host"`
	Key  string `json:"key"` // ID of the API key that has the domain, or had it
	// Freed is when the URL released the domain, which the key alone may have again until [KeptTime] has passed; zero: in use.
	Freed time.Time `json:"freed,omitzero"`
}

// Claim is a [Domain] with the revision of etcd that made it.
type Claim struct {
	Domain
	Revision int64
}

// KeptTime is how long a domain is kept for the key that had it.
const KeptTime = 7 * 24 * time.Hour

// Kept reports whether a domain that was freed is still kept for its key.
func (d Domain) Kept(now time.Time) bool {
	return !d.Freed.IsZero() && now.Before(d.Freed.Add(KeptTime))
}

// By is who claims domains.
type By struct {
	Key   string // ID of the API key
	Admin bool   // it may have domains that are kept for other keys
	// Member reports whether a host is a member, as far as this host knows. Claims of a host that is not, and has no record in etcd either, do not count.
	Member func(host string) bool
}

// Errors of claims.
var (
	ErrDomainTaken = errors.New("another host of the fleet serves this domain")
	ErrDomainKept  = errors.New("the domain is kept for the API key that had it until recently, on any host of the fleet")
	ErrContended   = errors.New("other hosts change the same domains, again and again; try again")
)

// claimAttempts is how often a claim is tried again after another change of the same domains.
const claimAttempts = 8

func (d Directory) domainKey(domain string) string { return d.Keys.Domains() + domain }

// ClaimDomains claims domains for this host, all in one transaction, or none: [ErrDomainTaken], [ErrDomainKept], [ErrFenced], [ErrContended].
// There are at most 64. A domain that this host has in use stays as it is. After a [fleet.ErrUnreachable] it is not known whether the claims were made.
func (d Directory) ClaimDomains(ctx context.Context, domains []string, by By) error {
	claim, err := fleet.Encode(Domain{Host: d.Host, Key: by.Key})
	if err != nil || len(domains) == 0 {
		return err
	}
	var reads []clientv3.Op
	for _, domain := range domains {
		reads = append(reads, clientv3.OpGet(d.domainKey(domain)))
	}
	for range claimAttempts {
		found, err := d.Client.Txn(ctx).Then(reads...).Commit()
		if err != nil {
			return fleet.Unreachable(ctx, err)
		}
		conditions, then := []clientv3.Cmp{d.Guard()}, []clientv3.Op(nil)
		left := map[string]bool{}
		for i, domain := range domains {
			revision := int64(0)
			for _, kv := range found.Responses[i].GetResponseRange().Kvs {
				revision = kv.ModRevision
				had, err := fleet.Decode[Domain](kv.Value)
				if err != nil {
					return fmt.Errorf("%s: %w: its record is not readable", domain, ErrDomainTaken)
				}
				if err := d.mayTake(had, by, time.Now()); err != nil {
					return fmt.Errorf("%s: %w", domain, err)
				}
				switch {
				case !had.Freed.IsZero():
				case had.Host == d.Host:
					revision = -1
				case !left[had.Host]:
					if err := d.hasLeft(ctx, had.Host); err != nil {
						return fmt.Errorf("%s: %w", domain, err)
					}
					left[had.Host] = true // one condition for all its domains: etcd limits them
					conditions = append(conditions, d.absent(had.Host))
				}
			}
			if revision >= 0 {
				conditions = append(conditions, clientv3.Compare(clientv3.ModRevision(d.domainKey(domain)), "=", revision))
				then = append(then, clientv3.OpPut(d.domainKey(domain), claim))
			}
		}
		if len(then) == 0 {
			return nil
		}
		answer, err := d.Client.Txn(ctx).If(conditions...).Then(then...).Else(clientv3.OpGet(d.Keys.Presence(d.Host))).Commit()
		switch {
		case err != nil:
			return fleet.Unreachable(ctx, err)
		case answer.Succeeded:
			return nil
		case len(answer.Responses[0].GetResponseRange().Kvs) == 0:
			return ErrFenced
		}
	}
	return ErrContended
}

// mayTake returns an error if this host may not replace a claim.
func (d Directory) mayTake(had Domain, by By, now time.Time) error {
	switch {
	case had.Kept(now) && had.Key != by.Key && !by.Admin:
		return fmt.Errorf("%w, until %s", ErrDomainKept, had.Freed.Add(KeptTime).UTC().Format(time.RFC3339))
	case had.Freed.IsZero() && had.Host != d.Host && by.Member(had.Host):
		return fmt.Errorf("%w: %s", ErrDomainTaken, had.Host)
	}
	return nil
}

// hasLeft returns an error if a host has a record in etcd.
func (d Directory) hasLeft(ctx context.Context, host string) error {
	_, joined, err := fleet.Get(ctx, d.Client, d.Keys.Host(host))
	if err == nil && joined > 0 {
		err = fmt.Errorf("%w: %s", ErrDomainTaken, host)
	}
	return err
}

// absent is the condition that a host has no record. A host follows claims and records apart, so it may know the claim of a host that has just
// joined before its record; and it does not take hosts of later versions for members.
func (d Directory) absent(host string) clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(d.Keys.Host(host)), "=", 0)
}

// ReplaceDomain replaces a claim, as of its revision, with another one of this host; nil deletes it. A claim that has changed since stays, and so does
// one of another host that has a record. Neither is an error: whoever follows the claims and the hosts sees the new ones.
func (d Directory) ReplaceDomain(ctx context.Context, domain string, claim Claim, with *Domain) error {
	key := d.domainKey(domain)
	change := clientv3.OpDelete(key)
	if with != nil {
		text, err := fleet.Encode(*with)
		if err != nil {
			return err
		}
		change = clientv3.OpPut(key, text)
	}
	conditions := []clientv3.Cmp{d.Guard(), clientv3.Compare(clientv3.ModRevision(key), "=", claim.Revision)}
	if claim.Host != d.Host {
		conditions = append(conditions, d.absent(claim.Host))
	}
	answer, err := d.Client.Txn(ctx).If(conditions...).Then(change).Else(clientv3.OpGet(d.Keys.Presence(d.Host))).Commit()
	switch {
	case err != nil:
		return fleet.Unreachable(ctx, err)
	case !answer.Succeeded && len(answer.Responses[0].GetResponseRange().Kvs) == 0:
		return ErrFenced
	}
	return nil
}
