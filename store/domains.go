package store

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"boxgate/policy"
	"boxgate/store/layout"
)

const (
	// reservationTime is how long a host name stays reserved for its API key after its URL is gone.
	reservationTime = 7 * 24 * time.Hour
	// maxFreedPerKey bounds the number of such names per key, and maxFreedTotal the total. The oldest are dropped
	// first: of the key, or of the key with the most names.
	maxFreedPerKey, maxFreedTotal = 256, 16384
)

// Domain records which API key has, or last had, a host name as the custom name of a public URL.
type Domain struct {
	Key   string    `json:"key"`   // ID of the API key
	Proof string    `json:"proof"` // how the key has proven control of the name
	Since time.Time `json:"since"`
	Freed time.Time `json:"freed,omitzero"` // when its URL released it; zero: in use
}

// ProofEarlier is the proof of names that URLs had before proofs were required.
const ProofEarlier = "earlier"

// Claim identifies the API key that requests host names, and how it has proven control of each.
type Claim struct {
	Key    string            // ID of the API key
	Admin  bool              // it may take names that are reserved for other keys
	Proofs map[string]string // by name. A missing name must have been proven by the key before
}

// Keys in the bucket of settings: domainPrefix and a host name for a [Domain], domainSecret for the secret of the
// tokens. The space in the prefix keeps them apart.
const (
	domainPrefix = "domain "
	domainSecret = "domains"
)

// KeptDomainError refuses a host name that another key had until recently.
type KeptDomainError struct {
	Host  string
	Until time.Time
}

// Error implements error.
func (e *KeptDomainError) Error() string {
	return fmt.Sprintf("%s belonged to another API key until recently, and is reserved for it until %s", e.Host, e.Until.UTC().Format(time.RFC3339))
}

// Domain returns the record of a host name. The record is zero if no URL has the name or had it recently.
func (db URLs) Domain(host string) (d Domain, err error) {
	err = db.view(func(tx *transaction) error {
		d, err = getDomain(tx, host)
		return err
	})
	return d, err
}

// DomainToken returns the token that a domain's owner publishes to let an API key use a host name: an HMAC of both, so
// it is stable, differs by key and by name, and does not reveal the key.
func (db URLs) DomainToken(key, host string) (string, error) {
	secret, err := db.getText(domainSecret)
	if err == nil && secret.Reveal() == "" {
		if err = db.setTextOnce(domainSecret, NewKey()); err == nil {
			secret, err = db.getText(domainSecret)
		}
	}
	if err != nil {
		return "", err
	}
	mac := hmac.New(sha256.New, []byte(secret.Reveal()))
	mac.Write([]byte(key + "\x00" + host))
	return hex.EncodeToString(mac.Sum(nil)[:16]), nil
}

// claimDomains claims the host names in next that are not in old, and frees the names that are only in old. old is zero
// for a new URL. The error is [ErrHostUnproven], or a [*KeptDomainError].
func claimDomains(tx *transaction, old, next URL, by Claim) error {
	now := time.Now().UTC()
	for _, host := range next.Hostnames {
		if slices.Contains(old.Hostnames, host) {
			continue
		}
		if err := claimDomain(tx, host, by, now); err != nil {
			return err
		}
	}
	for _, host := range next.Pending {
		d, err := getDomain(tx, host)
		if err == nil {
			err = d.checkReserved(host, by, now)
		}
		if err != nil {
			return err
		}
	}
	old.Hostnames = slices.DeleteFunc(slices.Clone(old.Hostnames), func(host string) bool { return slices.Contains(next.Hostnames, host) })
	return freeDomains(tx, []URL{old}, now)
}

// claimDomain gives a host name to a key.
func claimDomain(tx *transaction, host string, by Claim, now time.Time) error {
	d, err := getDomain(tx, host)
	if err != nil {
		return err
	}
	if err := d.checkReserved(host, by, now); err != nil {
		return err
	}
	proof, proven := by.Proofs[host]
	switch {
	case proven:
		d = Domain{Key: by.Key, Proof: proof, Since: now}
	case d.Key == by.Key && by.Key != "":
		d.Freed = time.Time{}
	default:
		return fmt.Errorf("%s: %w", host, ErrHostUnproven)
	}
	return putDomain(tx, host, d)
}

// checkReserved returns a [*KeptDomainError] if the name is reserved for another key.
func (d Domain) checkReserved(host string, by Claim, now time.Time) error {
	until := d.Freed.Add(reservationTime)
	if d.Freed.IsZero() || d.Key == by.Key || by.Admin || !now.Before(until) {
		return nil
	}
	return &KeptDomainError{Host: host, Until: until}
}

// freeDomains reserves the host names of deleted URLs for their keys, and deletes reservations that have ended.
func freeDomains(tx *transaction, gone []URL, now time.Time) error {
	freed := false
	for _, u := range gone {
		for _, host := range u.Hostnames {
			d, err := getDomain(tx, host)
			if err != nil {
				return err
			}
			if d.Key == "" { // of an older version
				if d, err = legacyDomain(tx, u); err != nil {
					return err
				}
			}
			d.Freed, freed = now, true
			if err := putDomain(tx, host, d); err != nil {
				return err
			}
		}
	}
	if !freed {
		return nil
	}
	return expireDomains(tx, now)
}

// legacyDomain returns the domain of a URL made by an older version: it belongs to the key that created the box.
func legacyDomain(tx *transaction, u URL) (Domain, error) {
	box, err := boxRecord(tx, u.Box)
	if err != nil {
		return Domain{}, err
	}
	return Domain{Key: cmp.Or(u.Owner, box.CreatedBy, OperatorKey), Proof: ProofEarlier, Since: u.CreatedAt}, nil
}

// expireDomains deletes reservations that have ended, and the oldest where there are too many.
func expireDomains(tx *transaction, now time.Time) error {
	settings, err := tx.table(layout.Settings)
	if err != nil {
		return err
	}
	type freed struct {
		host string
		at   time.Time
	}
	byKey, all := map[string][]freed{}, 0
	for _, key := range settings.Keys([]byte(domainPrefix)) {
		host := strings.TrimPrefix(string(key), domainPrefix)
		d, err := getDomain(tx, host)
		if err != nil {
			return err
		}
		if !d.Freed.IsZero() {
			byKey[d.Key] = append(byKey[d.Key], freed{host, d.Freed})
			all++
		}
	}
	forget := func(key string) error {
		oldest := byKey[key][0]
		byKey[key] = byKey[key][1:]
		all--
		return settings.Delete([]byte(domainPrefix + oldest.host))
	}
	for key, list := range byKey {
		slices.SortFunc(list, func(a, b freed) int { return a.at.Compare(b.at) })
		for len(byKey[key]) > maxFreedPerKey || len(byKey[key]) > 0 && !now.Before(byKey[key][0].at.Add(reservationTime)) {
			if err := forget(key); err != nil {
				return err
			}
		}
	}
	for all > maxFreedTotal {
		most := ""
		for key, list := range byKey {
			if most == "" || len(list) > len(byKey[most]) {
				most = key
			}
		}
		if err := forget(most); err != nil {
			return err
		}
	}
	return nil
}

// getDomain is [URLs.Domain] within a transaction.
func getDomain(tx *transaction, host string) (d Domain, err error) {
	_, err = tx.getSealed(layout.Settings, domainPrefix+host, &d)
	return d, err
}

func putDomain(tx *transaction, host string, d Domain) error {
	return tx.putSealed(layout.Settings, domainPrefix+host, d)
}

// ProveHost puts a pending host name of a public URL into service, if the URL still has the given creation time. The
// errors are [ErrNotFound], [ErrHostTaken], [ErrHostUnproven] and [*KeptDomainError].
func (db URLs) ProveHost(id policy.BoxID, port uint16, created time.Time, host string, by Claim) (URL, error) {
	var u URL
	err := db.update(func(tx *transaction) (err error) {
		if u, err = getURL(tx, id, port); err != nil {
			return err
		}
		at := slices.Index(u.Pending, host)
		if at < 0 || !u.CreatedAt.Equal(created) {
			return fmt.Errorf("%s of the public URL of port %d of box %s: %w", host, port, id, ErrNotFound)
		}
		urls, err := tx.table(layout.URLs)
		if err != nil {
			return err
		}
		if err := hostsFree(urls, urlKey(id, port), []string{host}); err != nil {
			return err
		}
		if err := claimDomain(tx, host, by, time.Now().UTC()); err != nil {
			return err
		}
		u.Pending = slices.Delete(u.Pending, at, at+1)
		u.Hostnames = append(u.Hostnames, host)
		return putURL(tx, u)
	})
	return u, err
}
