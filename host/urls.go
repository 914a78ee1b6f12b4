package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/config"
	"boxgate/host/change"
	"boxgate/host/handover"
	"boxgate/host/keys"
	"boxgate/host/reach"
	"boxgate/host/state"
	"boxgate/ingress"
	"boxgate/policy"
	"boxgate/policy/name"
	quotas "boxgate/quota"
	"boxgate/store"
)

// publicURLs makes and deletes the public URLs of boxes.
type publicURLs struct {
	before    *handover.Predecessor
	cfg       config.Ingress
	listeners *Listeners
	log       *zap.Logger
	store     *store.DB
	ingress   *ingress.Ingress
	boxes     *state.Table
	table     *urlTable
	reach     *reach.Boxes
	domains   *domains
	pending   pendingNames
	holdings  *keys.Holdings
}

// urlOf is the URL as it is opened; a port other than the scheme's own is part of it.
func (u *publicURLs) urlOf(id policy.BoxID, port uint16, protocol string) string {
	scheme, listener, usual := "https", u.listeners.https, "443"
	if protocol == api.ProtocolTCP {
		scheme, usual = "tls", "" // which has no port of its own
	}
	if listener == nil {
		scheme, listener, usual = "http", u.listeners.http, "80"
	}
	url := scheme + "://" + u.cfg.HostName(id, port)
	if listener != nil {
		if p := strconv.Itoa(int(portOf(listener))); p != usual {
			url += ":" + p
		}
	}
	return url
}

// URLs implements the Host of [boxgate/api/urls].
func (u *publicURLs) URLs(_ context.Context, id policy.BoxID) ([]api.URL, error) {
	if _, err := u.boxes.Find(id); err != nil {
		return nil, err
	}
	records, err := u.store.URLs(id)
	if err != nil {
		return nil, err
	}
	u.pending.hurry(id)
	var urls []api.URL
	for _, r := range records {
		view, err := u.urlView(r)
		if err != nil {
			return nil, err
		}
		urls = append(urls, view)
	}
	slices.SortFunc(urls, func(a, b api.URL) int { return int(a.Port) - int(b.Port) })
	return urls, nil
}

func (u *publicURLs) urlView(r store.URL) (api.URL, error) {
	pending, err := u.domains.pendingOf(r)
	return api.URL{
		URL: u.urlOf(r.Box, r.Port, r.Protocol), Port: r.Port, Hostnames: r.Hostnames, Pending: pending, Bearer: r.Bearer != nil, Basic: r.Password != nil,
		Protocol: cmp.Or(r.Protocol, api.URLProtocols[0]), CreatedAt: r.CreatedAt,
		ExpiresAt: r.ExpiresAt, Origins: r.Origins, Accounts: (*api.URLAccounts)(r.Accounts),
	}, err
}

// CreateURL implements the Host of [boxgate/api/urls].
func (u *publicURLs) CreateURL(ctx context.Context, id policy.BoxID, req api.URLRequest) (api.URL, error) {
	if err := u.permits(req); err != nil {
		return api.URL{}, err
	}
	hostnames, err := u.ownDomains(req.Hostnames)
	if err != nil {
		return api.URL{}, err
	}
	// Before the box is locked: nameservers may take their time.
	had, err := u.domainsOf(id, req.Port)
	if err != nil {
		return api.URL{}, err
	}
	claim, pending, err := u.domains.claim(ctx, api.CallerOf(ctx), req.Hostnames, had)
	if err != nil {
		return api.URL{}, err
	}
	b, err := u.boxes.Lock(id)
	if err != nil {
		return api.URL{}, err
	}
	defer b.Unlock()
	record := store.URL{
		Box: id, Port: req.Port, Pending: pending, Protocol: req.Protocol, CreatedAt: time.Now(), Origins: req.Origins, Key: newURLKey(),
		Hostnames: slices.DeleteFunc(hostnames, func(host string) bool { return slices.Contains(pending, host) }),
	}
	if claim.Key != store.OperatorKey {
		record.Owner = claim.Key
	}
	done, err := u.reserve(ctx, record)
	if err != nil {
		return api.URL{}, err
	}
	defer done()
	record.Accounts = (*store.Accounts)(req.Accounts)
	if req.ExpiresIn > 0 {
		record.ExpiresAt = record.CreatedAt.Add(req.ExpiresIn)
	}
	made := credentialsFor(req, &record)
	if err := u.keep(record, claim); err != nil {
		return api.URL{}, err
	}
	old, replaced := u.table.Lookup(u.cfg.HostName(id, req.Port))
	u.table.set(u.hostsOf(record), urlTarget(record, b.V4))
	u.pending.set(record, time.Now())
	if replaced {
		u.closeURL(old.ID)
	}
	view, err := u.urlView(record)
	view.Token, view.Username, view.Password = made.Token, made.Username, made.Password
	return view, err
}

// permits returns an error if the configuration does not allow such a URL.
func (u *publicURLs) permits(req api.URLRequest) error {
	switch {
	case u.cfg.HTTPS == "" && u.cfg.HTTP == "":
		return api.Errorf(api.ErrForbidden, "public URLs are turned off: set ingress.https")
	case u.cfg.RequireAuth && req.Protocol == api.ProtocolTCP:
		return api.Errorf(api.ErrForbidden, "this gateway requires authentication on public URLs, for which raw TCP has no place")
	case u.cfg.RequireAuth && !req.Bearer && !req.Basic && req.Accounts == nil:
		return api.Errorf(api.ErrForbidden, "this gateway requires authentication on public URLs: ask for bearer_token, basic_auth or oidc")
	case req.Accounts != nil && u.cfg.OIDC.Issuer == "":
		return change.InvalidAt("/oidc", "this gateway has no identity provider: set ingress.oidc")
	case req.Protocol == api.ProtocolTCP && u.listeners.https == nil:
		return change.InvalidAt("/protocol", "tcp needs TLS: set ingress.https")
	}
	return nil
}

// credentialsFor makes the credentials of a URL, puts their digests into its record, and returns them.
func credentialsFor(req api.URLRequest, record *store.URL) (made api.URL) {
	if req.Bearer {
		token := randomHex(32)
		digest := store.KeyHash(ingress.BearerDigest(token))
		record.Bearer, made.Token = &digest, name.NewSecret(token)
	}
	if req.Basic {
		user, password := "box", randomHex(32)
		digest := store.KeyHash(ingress.BasicDigest(user, password))
		record.Username, record.Password = user, &digest
		made.Username, made.Password = name.NewSecret(user), name.NewSecret(password)
	}
	return made
}

// domainsOf returns the domains that the URL of a port has in service. A port without a URL has no domains.
func (u *publicURLs) domainsOf(id policy.BoxID, port uint16) ([]string, error) {
	if _, err := u.boxes.Find(id); err != nil {
		return nil, err
	}
	record, err := u.store.URL(id, port)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return nil, err
	}
	return record.Hostnames, nil
}

// ownDomains returns the domains of a URL as they are stored.
func (u *publicURLs) ownDomains(names []name.Name) ([]string, error) {
	var hosts []string
	for i, n := range names {
		if why := u.isGateways(n); why != "" {
			return nil, change.InvalidAt(fmt.Sprintf("/hostnames/%d", i), why)
		}
		hosts = append(hosts, n.String())
	}
	return hosts, nil
}

// isGateways says why a name can be no URL's own domain, or returns "". Names at and below the gateway's own domain belong to
// the boxes whose IDs are in them, and visitors sign in at one host for all URLs.
func (u *publicURLs) isGateways(n name.Name) string {
	domain, err := name.Parse(u.cfg.Domain)
	switch {
	case err != nil || n.IsWithin(domain):
		return fmt.Sprintf("%s lies within %s, the domain of this gateway", n, u.cfg.Domain)
	case n.String() == u.table.own:
		return fmt.Sprintf("%s is where visitors of this gateway sign in", n)
	}
	return ""
}

// keep stores a URL.
func (u *publicURLs) keep(record store.URL, claim store.Claim) error {
	err := u.store.SetURL(record, claim)
	if err == nil {
		return nil
	}
	if refused := u.domains.refusal(err); refused != nil {
		return refused
	}
	return change.NotStored(u.log, "the public URL could not be stored, nothing was changed", err)
}

// hostsOf lists the host names that lead to a URL. Domains that it was given under another configuration, and that are the
// gateway's now, are not among them.
func (u *publicURLs) hostsOf(r store.URL) []string {
	hosts := []string{u.cfg.HostName(r.Box, r.Port)}
	for _, h := range r.Hostnames {
		n, err := name.Parse(h)
		if err != nil || u.isGateways(n) != "" {
			u.log.Warn("a domain of a public URL is the gateway's own now, and is not served", zap.String("box", string(r.Box)),
				zap.Uint16("port", r.Port), zap.String("domain", h))
			continue
		}
		hosts = append(hosts, h)
	}
	return hosts
}

// urlTarget is what the ingress needs of a stored URL. A URL that was replaced has another ID. What a newer version has stored
// of a protocol that this one does not know is served as the default.
func urlTarget(r store.URL, addr netip.Addr) ingress.Target {
	protocol, _ := ingress.ParseProtocol(r.Protocol)
	return ingress.Target{
		Protocol: protocol,
		ID:       fmt.Sprintf("%s-%d-%d", r.Box, r.Port, r.CreatedAt.UnixNano()),
		Box:      r.Box, Owner: cmp.Or(r.Owner, store.OperatorKey), Addr: netip.AddrPortFrom(addr, r.Port),
		Auth: ingress.Auth{
			Open:   r.Bearer == nil && r.Password == nil && r.Accounts == nil,
			Bearer: (*ingress.Digest)(r.Bearer),
			Basic:  (*ingress.Digest)(r.Password),
		},
		Access: urlAccess(r),
	}
}

// DeleteURL implements the Host of [boxgate/api/urls].
func (u *publicURLs) DeleteURL(_ context.Context, id policy.BoxID, port uint16) error {
	b, err := u.boxes.Lock(id)
	if err != nil {
		return err
	}
	defer b.Unlock()
	target, ok := u.table.Lookup(u.cfg.HostName(id, port))
	if !ok {
		return api.Errorf(api.ErrNotFound, "port %d of this box has no public URL", port)
	}
	if err := u.store.DeleteURL(id, port); err != nil {
		return change.NotStored(u.log, "the deletion could not be stored; the public URL stays", err)
	}
	u.table.remove(id, port)
	u.pending.remove(id, port)
	u.closeURL(target.ID)
	return nil
}

// recover makes the stored public URLs of a box known again.
func (u *publicURLs) recover(b *state.Box) error {
	records, err := u.store.URLs(b.ID)
	if err != nil {
		return err
	}
	for _, r := range records {
		if r.Key.Reveal() == "" { // of an older version
			if r, err = u.store.ChangeURL(r.Box, r.Port, r.CreatedAt, func(r *store.URL) { r.Key = newURLKey() }); err != nil {
				return err
			}
		}
		u.table.set(u.hostsOf(r), urlTarget(r, b.V4))
		u.pending.set(r, time.Now())
	}
	return nil
}

// drop forgets the public URLs of a box and cuts their connections. The table goes first, so that no connection comes
// after that.
func (u *publicURLs) drop(id policy.BoxID) {
	u.table.removeBox(id)
	u.pending.remove(id, 0)
	u.ingress.CloseBox(id)
	u.before.Tell(handover.Message{Kind: handover.URLs, Box: id})
	u.reach.Remove(id)
}

// closeURL cuts the requests of a URL, also those that the predecessor drains.
func (u *publicURLs) closeURL(id string) {
	u.ingress.CloseURL(id)
	u.before.Tell(handover.Message{Kind: handover.URL, URL: id})
}

// reserve asks for what a new URL, in place of the one of the same port, has more than that.
func (u *publicURLs) reserve(ctx context.Context, next store.URL) (done func(), err error) {
	urls, domains := int64(1), int64(len(next.Hostnames)+len(next.Pending))
	if old, known := u.recorded(next.Box, next.Port); known && old.Owner == next.Owner {
		urls, domains = 0, domains-int64(len(old.Hostnames)+len(old.Pending))
	}
	first, err := u.holdings.Reserve(ctx, quotas.URLs, urls)
	if err != nil {
		return nil, err
	}
	second, err := u.holdings.Reserve(ctx, quotas.Domains, domains)
	if err != nil {
		first()
		return nil, err
	}
	return func() { first(); second() }, nil
}

// recorded returns the stored URL of a port, if there is one.
func (u *publicURLs) recorded(id policy.BoxID, port uint16) (r store.URL, known bool) {
	r, err := u.store.URL(id, port)
	return r, err == nil
}
