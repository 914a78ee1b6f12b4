package store

import (
	"bytes"
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/store/document"
	"boxgate/store/layout"
)

// URLs has the public URLs of boxes, and the owners of their host names.
type URLs struct{ *file }

// URL is the public URL of one port of a box. Credentials are stored only as hashes ([HashKey]); a nil hash means that
// there is no such credential. Without any credential, the URL is open to everyone.
type URL struct {
	Box       policy.BoxID `json:"box"`
	Port      uint16       `json:"port"`
	Bearer    *KeyHash     `json:"bearer,omitempty"`
	Username  string       `json:"username,omitempty"`
	Password  *KeyHash     `json:"password,omitempty"`
	Hostnames []string     `json:"hostnames,omitempty"` // canonical; unique among URLs
	Protocol  string       `json:"protocol,omitempty"`  // of the application; "" is auto
	CreatedAt time.Time    `json:"created_at"`
	ExpiresAt time.Time    `json:"expires_at,omitzero"` // zero: never
	Owner     string       `json:"owner,omitempty"`     // ID of the API key that made it; "" for the operator's, and in URLs of older versions
	Pending   []string     `json:"pending,omitempty"`   // like Hostnames, but control is not proven yet; other URLs may have them

	// Origins are the origins whose pages may use the browser's session for this URL, in the form that browsers send.
	Origins []string `json:"origins,omitempty"`
	// Accounts are the accounts at the identity provider that may visit; nil: no account.
	Accounts *Accounts `json:"accounts,omitempty"`
	// SignedOut are the sessions that were ended early.
	SignedOut []SignedOut `json:"signed_out,omitempty"`
	// SignedOutBefore is set if all sessions that began earlier were ended too.
	SignedOutBefore time.Time `json:"signed_out_before,omitzero"`
	// Key authenticates the sessions and links of this URL, sealed; empty in URLs of older versions.
	Key name.Secret `json:"-"`
}

// Accounts lists the accounts at the identity provider that may visit a public URL.
type Accounts struct {
	Emails  []string `json:"emails,omitempty"`
	Domains []string `json:"domains,omitempty"`
	Groups  []string `json:"groups,omitempty"`
}

// SignedOut is a session of a public URL that was ended early.
type SignedOut struct {
	Session string    `json:"session"` // its ID
	Until   time.Time `json:"until"`   // its regular end
}

// urlRecord is a stored public URL: its key is sealed.
type urlRecord struct {
	URL
	Sealed []byte `json:"key,omitempty"`
}

// Set stores a public URL, replacing that of the same port. It returns [ErrHostTaken], with the name, if another URL
// has one of the host names, and [ErrHostUnproven] or a [*KeptDomainError] if the claim does not cover one. Names that
// the URL of this port already has need no claim.
func (db URLs) Set(u URL, by Claim) error {
	return db.update(func(tx *transaction) error {
		if err := requireBox(tx, u.Box); err != nil {
			return err
		}
		urls, err := tx.table(layout.URLs)
		if err != nil {
			return err
		}
		if err := hostsFree(urls, urlKey(u.Box, u.Port), slices.Concat(u.Hostnames, u.Pending)); err != nil {
			return err
		}
		old, err := getURL(tx, u.Box, u.Port)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return err
		}
		if err := claimDomains(tx, old, u, by); err != nil {
			return err
		}
		return putURL(tx, u)
	})
}

// hostsFree returns [ErrHostTaken] if a URL other than the one with key own has one of the host names.
func hostsFree(urls document.Table, own []byte, hosts []string) error {
	if len(hosts) == 0 {
		return nil
	}
	return urls.Each(nil, func(key, data []byte) error {
		other, err := decodeURL(data)
		if err != nil || bytes.Equal(key, own) {
			return err
		}
		for _, host := range hosts {
			if slices.Contains(other.Hostnames, host) {
				return fmt.Errorf("%s: %w", host, ErrHostTaken)
			}
		}
		return nil
	})
}

// Change changes the public URL of one port of a box if it still has the given creation time, else it returns
// [ErrNotFound].
func (db URLs) Change(id policy.BoxID, port uint16, created time.Time, change func(*URL)) (URL, error) {
	var u URL
	err := db.update(func(tx *transaction) (err error) {
		if u, err = getURL(tx, id, port); err != nil {
			return err
		}
		if !u.CreatedAt.Equal(created) {
			return fmt.Errorf("public URL of port %d of box %s, before it was replaced: %w", port, id, ErrNotFound)
		}
		change(&u)
		return putURL(tx, u)
	})
	return u, err
}

func putURL(tx *transaction, u URL) error {
	key, record := urlKey(u.Box, u.Port), urlRecord{URL: u}
	if secret := u.Key.Reveal(); secret != "" {
		sealed, err := tx.sealJSON(layout.URLs, string(key), []byte(secret))
		if err != nil {
			return err
		}
		record.Sealed = sealed
	}
	data, err := json.Marshal(record)
	if err != nil {
		return err
	}
	old, err := getURL(tx, u.Box, u.Port)
	tx.subtractReplaced(old.Owner, ofURL(old), err)
	tx.adjustOnCommit(u.Owner, 1, ofURL(u))
	return tx.put(layout.URLs, key, data)
}

func getURL(tx *transaction, id policy.BoxID, port uint16) (URL, error) {
	data, err := tx.get(layout.URLs, urlKey(id, port))
	if err != nil {
		return URL{}, err
	}
	if data == nil {
		return URL{}, fmt.Errorf("public URL of port %d of box %s: %w", port, id, ErrNotFound)
	}
	return openURL(tx, urlKey(id, port), data)
}

// openURL decodes a record and opens its sealed part.
func openURL(tx *transaction, key, data []byte) (URL, error) {
	record, err := decodeURL(data)
	if err != nil || record.Sealed == nil {
		return record.URL, err
	}
	var secret []byte
	if err := tx.openJSON(layout.URLs, string(key), record.Sealed, &secret); err != nil {
		return URL{}, err
	}
	record.Key = name.NewSecret(string(secret))
	return record.URL, nil
}

// Get returns the public URL of one port of a box, or [ErrNotFound].
func (db URLs) Get(id policy.BoxID, port uint16) (u URL, err error) {
	err = db.view(func(tx *transaction) error {
		u, err = getURL(tx, id, port)
		return err
	})
	return u, err
}

// List returns the public URLs of a box sorted by port, or of all boxes if id is "".
func (db URLs) List(id policy.BoxID) ([]URL, error) {
	var out []URL
	err := db.view(func(tx *transaction) error {
		urls, err := tx.table(layout.URLs)
		if err != nil {
			return err
		}
		return urls.Each(urlPrefix(id), func(key, data []byte) error {
			u, err := openURL(tx, key, data)
			out = append(out, u)
			return err
		})
	})
	return out, err
}

// Delete removes the public URL of one port of a box, or returns [ErrNotFound].
func (db URLs) Delete(id policy.BoxID, port uint16) error {
	return db.update(func(tx *transaction) error {
		old, err := getURL(tx, id, port)
		if err != nil {
			return err
		}
		if err := freeDomains(tx, []URL{old}, time.Now().UTC()); err != nil {
			return err
		}
		tx.subtractReplaced(old.Owner, ofURL(old), nil)
		return tx.delete(layout.URLs, urlKey(id, port))
	})
}

// deleteURLs deletes the URLs of a box, whose record must still exist.
func deleteURLs(tx *transaction, id policy.BoxID) error {
	urls, err := tx.table(layout.URLs)
	if err != nil {
		return err
	}
	var gone []URL
	err = urls.Each(urlPrefix(id), func(_, data []byte) error {
		record, err := decodeURL(data)
		gone = append(gone, record.URL)
		return err
	})
	if err != nil {
		return err
	}
	if err := freeDomains(tx, gone, time.Now().UTC()); err != nil {
		return err
	}
	for _, u := range gone {
		tx.subtractReplaced(u.Owner, ofURL(u), nil)
	}
	for _, k := range urls.Keys(urlPrefix(id)) {
		if err := urls.Delete(k); err != nil {
			return err
		}
	}
	return nil
}

// urlPrefix is the key prefix of a box's URLs and schedules. The NUL keeps one ID from being a prefix of another.
func urlPrefix(id policy.BoxID) []byte {
	if id == "" {
		return nil
	}
	return append([]byte(id), 0)
}

func urlKey(id policy.BoxID, port uint16) []byte {
	return binary.BigEndian.AppendUint16(append([]byte(id), 0), port)
}

func decodeURL(data []byte) (urlRecord, error) {
	var record urlRecord
	if err := document.Decode(data, &record); err != nil {
		return urlRecord{}, fmt.Errorf("the record of a public URL is damaged: %w", err)
	}
	return record, nil
}

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
