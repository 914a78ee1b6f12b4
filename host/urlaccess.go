package host

import (
	"errors"
	"slices"
	"time"

	"boxgate/ingress"
	"boxgate/ingress/access"
	"boxgate/policy"
	"boxgate/store"
)

// newURLKey makes the key of a public URL.
func newURLKey() policy.Secret {
	key := access.NewKey()
	return policy.NewSecret(string(key[:]))
}

// urlAccess is what a stored URL has beyond its credentials. A key that is not one gives it neither sessions nor links.
func urlAccess(r store.URL) *ingress.Access {
	var key access.Key
	if text := r.Key.Reveal(); len(text) == len(key) {
		key = access.Key([]byte(text))
	}
	ended := map[access.ID]time.Time{}
	for _, s := range r.SignedOut {
		if id, ok := access.ParseID(s.Session); ok {
			ended[id] = s.Until
		}
	}
	return &ingress.Access{
		Created: r.CreatedAt, Sessions: key.For(access.Sessions), Expires: r.ExpiresAt, Origins: r.Origins, Ended: access.NewEnded(ended, r.SignedOutBefore),
	}
}

// signOut stores the sessions of a URL that were ended before their time, so that they stay ended after a restart.
func signOut(db *store.DB, t ingress.Target) error {
	sessions, before := t.Access.Ended.All()
	var list []store.SignedOut
	for id, until := range sessions {
		list = append(list, store.SignedOut{Session: id.String(), Until: until})
	}
	slices.SortFunc(list, func(a, b store.SignedOut) int { return a.Until.Compare(b.Until) })
	_, err := db.ChangeURL(t.Box, t.Addr.Port(), t.Access.Created, func(r *store.URL) { r.SignedOut, r.SignedOutBefore = list, before })
	if errors.Is(err, store.ErrNotFound) {
		return nil // the URL has gone or was replaced, and its sessions with it
	}
	return err
}
