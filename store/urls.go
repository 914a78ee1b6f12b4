package store

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
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
