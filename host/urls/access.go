package urls

import (
	"context"
	"errors"
	"slices"
	"time"

	"boxgate/api"
	"boxgate/host/change"
	"boxgate/host/handover"
	"boxgate/ingress"
	"boxgate/ingress/access"
	"boxgate/ingress/account"
	"boxgate/ingress/link"
	"boxgate/ingress/signin"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/store"
)

// newURLKey returns a new key for a public URL.
func newURLKey() name.Secret {
	key := access.NewKey()
	return name.NewSecret(string(key[:]))
}

// urlAccess returns the access rules of a stored URL other than its credentials. With an invalid key, sessions and links
// are disabled.
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
		Accounts: (*account.Rules)(r.Accounts),
		Created:  r.CreatedAt, Sessions: key.For(access.Sessions), Links: key.For(access.Links),
		Expires: r.ExpiresAt, Origins: r.Origins, Ended: access.NewEnded(ended, r.SignedOutBefore),
	}
}

// signOut stores the sessions of a URL that were ended early, so that they stay ended after a restart.
func signOut(stored store.URLs, t ingress.Target) error {
	_, err := stored.Change(t.Box, t.Addr.Port(), t.Access.Created, func(r *store.URL) {
		// Read inside the transaction, which serialises changes; otherwise an older list could overwrite a newer one.
		r.SignedOut, r.SignedOutBefore = signedOut(t.Access.Ended)
	})
	if errors.Is(err, store.ErrNotFound) {
		return nil // the URL was deleted or replaced, which ended its sessions
	}
	return err
}

// SignOut is signOut that also covers a predecessor. The predecessor does not learn about sessions that end here, so it
// cuts all its visitors of the URL.
func SignOut(stored store.URLs, before *handover.Predecessor, t ingress.Target) error {
	before.SendOrder(handover.Message{Kind: handover.URL, URL: t.ID})
	return signOut(stored, t)
}

// signedOut returns the ended sessions in the store's form.
func signedOut(ended *access.Ended) (list []store.SignedOut, before time.Time) {
	sessions, before := ended.All()
	for id, until := range sessions {
		list = append(list, store.SignedOut{Session: id.String(), Until: until})
	}
	slices.SortFunc(list, func(a, b store.SignedOut) int { return a.Until.Compare(b.Until) })
	return list, before
}

// SignURL implements the Host of [boxgate/api/urls].
func (u *Service) SignURL(_ context.Context, id policy.BoxID, port uint16, req api.LinkRequest) (api.Link, error) {
	if _, err := u.config.Boxes.Find(id); err != nil {
		return api.Link{}, err
	}
	target, ok := u.config.Table.Lookup(u.config.Ingress.HostName(id, port))
	if !ok {
		return api.Link{}, api.Errorf(api.ErrNotFound, "port %d of this box has no public URL", port)
	}
	if target.Auth.Open {
		return api.Link{}, api.Errorf(api.ErrConflict, "this public URL is open to everybody: create it with bearer_token or basic_auth to sign links to it")
	}
	now, end := time.Now(), target.Access.Expires
	if !end.IsZero() && !now.Before(end) {
		return api.Link{}, api.Errorf(api.ErrConflict, "this public URL has expired: create it again")
	}
	prefix, ok := link.Canonical(req.PathPrefix)
	if !ok {
		return api.Link{}, change.InvalidAt("/path_prefix", "must be a path such as /files, without . or .. segments, empty segments and encoded slashes")
	}
	l := link.Link{Expires: now.Add(req.ExpiresIn), Prefix: prefix, Methods: req.Methods}
	if !end.IsZero() && end.Before(l.Expires) {
		l.Expires = end
	}
	address := u.urlOf(id, port, "") + link.Escape(prefix) + "?" + signin.LinkParameter + "=" + link.Sign(target.Access.Links, target.ID, l)
	return api.Link{URL: name.NewSecret(address), ExpiresAt: l.Expires}, nil
}
