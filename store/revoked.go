package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"boxgate/llm"
	"boxgate/store/document"
	"boxgate/store/layout"
)

// RevokedKey has the limits of a revoked API key. They apply to its boxes and public URLs for as long as these exist, so that
// revoking a key does not widen their limits. Admin keys have none: after their revocation, the configured limits apply.
type RevokedKey struct {
	ID        string           `json:"-"`
	RevokedAt time.Time        `json:"revoked_at"`
	Quotas    map[string]int64 `json:"quotas,omitempty"`
	Model     llm.Limit        `json:"model,omitzero"`
}

// revokedPrefix precedes the ID of a revoked key in the keys of the settings.
const revokedPrefix = "revoked key "

// revokedGrace is the time for which the limits of a revoked key are kept without a box or URL: one of its requests may still be making
// some. Requests end within a second of the revocation of their key.
const revokedGrace = time.Hour

// Revoked returns the limits of revoked API keys.
func (db Keys) Revoked() (out []RevokedKey, err error) {
	err = db.view(func(tx *transaction) error {
		out, err = readRevoked(tx)
		return err
	})
	return out, err
}

func readRevoked(tx *transaction) (out []RevokedKey, err error) {
	settings, err := tx.table(layout.Settings)
	if err != nil {
		return nil, err
	}
	for _, key := range settings.Keys([]byte(revokedPrefix)) {
		var stored map[string]string // like all settings
		if _, err := tx.getSealed(layout.Settings, string(key), &stored); err != nil {
			return nil, err
		}
		var k RevokedKey
		if err := json.Unmarshal([]byte(stored["limits"]), &k); err != nil {
			return nil, fmt.Errorf("the limits of a revoked API key are damaged: %w", err)
		}
		k.ID = strings.TrimPrefix(string(key), revokedPrefix)
		out = append(out, k)
	}
	return out, nil
}

// keepLimits stores the limits of API keys that the transaction deletes, and forgets the limits of keys without boxes and URLs
// that were revoked earlier.
func keepLimits(tx *transaction, gone []APIKey, now time.Time) error {
	for _, k := range gone {
		if k.Role == RoleAdmin || len(k.Quotas) == 0 && !k.Model.IsSet() {
			continue
		}
		limits, err := json.Marshal(RevokedKey{RevokedAt: now, Quotas: k.Quotas, Model: k.Model})
		if err != nil {
			return err
		}
		if err := tx.putSealed(layout.Settings, revokedPrefix+k.ID, map[string]string{"limits": string(limits)}); err != nil {
			return err
		}
	}
	_ = forgetLimits(tx, now) // a record that cannot be read does not keep a key from being revoked
	return nil
}

func forgetLimits(tx *transaction, now time.Time) error {
	revoked, err := readRevoked(tx)
	if err != nil || len(revoked) == 0 {
		return err
	}
	needed, err := ownersOf(tx)
	if err != nil {
		return err
	}
	var errs []error
	for _, k := range revoked {
		if !needed[k.ID] && now.Sub(k.RevokedAt).Abs() >= revokedGrace {
			errs = append(errs, tx.delete(layout.Settings, []byte(revokedPrefix+k.ID)))
		}
	}
	return errors.Join(errs...)
}

// ownersOf returns the IDs of the API keys that have made a box or a public URL which exists.
func ownersOf(tx *transaction) (map[string]bool, error) {
	owners := map[string]bool{}
	boxes, err := tx.table(layout.Boxes)
	if err != nil {
		return nil, err
	}
	urls, err := tx.table(layout.URLs)
	if err != nil {
		return nil, err
	}
	err = boxes.Each(nil, func(_, data []byte) error {
		var b Box
		err := document.Decode(data, &b)
		owners[b.CreatedBy] = true
		return err
	})
	if err != nil {
		return nil, err
	}
	return owners, urls.Each(nil, func(_, data []byte) error {
		u, err := decodeURL(data)
		owners[u.Owner] = true
		return err
	})
}
