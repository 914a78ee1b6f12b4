package urls

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/config"
	"boxgate/host/boxdial"
	"boxgate/host/change"
	"boxgate/host/handover"
	"boxgate/host/keys"
	"boxgate/host/state"
	"boxgate/ingress"
	"boxgate/ingress/access"
	"boxgate/ingress/account"
	"boxgate/ingress/link"
	"boxgate/ingress/signin"
	"boxgate/internal/required"
	"boxgate/policy"
	"boxgate/policy/name"
	quotas "boxgate/quota"
	"boxgate/store"
)

// Config configures a [Service].
type Config struct {
	Ingress     config.Ingress
	HTTPS, HTTP uint16 // ports of the listeners; 0: disabled
	Log         *zap.Logger
	Store       store.URLs
	Visitors    *ingress.Ingress
	Boxes       *state.Table
	Table       *Table
	Reach       *boxdial.Boxes
	Domains     *Domains
	Holdings    *keys.Holdings
	Claims      Claims                `required:"false"` // nil: without a fleet
	Before      *handover.Predecessor `required:"false"`
	// TokenFields are the fields besides Authorization in which a visitor may send a token.
	TokenFields []string `required:"false"`
}

// Claims claims domains in a fleet.
type Claims interface {
	// Claim claims domains for an API key, all or not one, before they are stored. done must be called when they are in the table, or will not be.
	Claim(ctx context.Context, domains []string, key string, admin bool) (done func(), err error)
}

// Service creates and deletes the public URLs of boxes. Safe for concurrent use.
type Service struct {
	config  Config
	pending pendingNames
}

// New returns the service.
func New(c Config) (*Service, error) {
	if err := required.Fields(c); err != nil {
		return nil, err
	}
	return &Service{config: c}, nil
}

// urlOf returns the address of a public URL, with its port unless that is the scheme's default.
func (u *Service) urlOf(id policy.BoxID, port uint16, protocol string) string {
	return u.urlAt(u.config.Ingress.HostName(id, port), protocol)
}

// urlAt is urlOf for a host name.
func (u *Service) urlAt(host, protocol string) string {
	scheme, at, usual := "https", u.config.HTTPS, uint16(443)
	if protocol == api.ProtocolTCP {
		scheme, usual = "tls", 0 // which has no default port
	}
	if at == 0 {
		scheme, at, usual = "http", u.config.HTTP, 80
	}
	url := scheme + "://" + host
	if at != 0 && at != usual {
		url += ":" + strconv.Itoa(int(at))
	}
	return url
}

// URLs implements the Host of [boxgate/api/urls].
func (u *Service) URLs(_ context.Context, id policy.BoxID) ([]api.URL, error) {
	if _, err := u.config.Boxes.Find(id); err != nil {
		return nil, err
	}
	records, err := u.config.Store.List(id)
	if err != nil {
		return nil, err
	}
	u.pending.bringForward(id)
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

func (u *Service) urlView(r store.URL) (api.URL, error) {
	pending, err := u.config.Domains.pendingOf(r)
	return api.URL{
		URL: u.urlOf(r.Box, r.Port, r.Protocol), Port: r.Port, Hostnames: r.Hostnames, Pending: pending, Bearer: r.Bearer != nil, Basic: r.Password != nil,
		Protocol: cmp.Or(r.Protocol, api.URLProtocols[0]), CreatedAt: r.CreatedAt,
		ExpiresAt: r.ExpiresAt, Origins: r.Origins, Accounts: (*api.URLAccounts)(r.Accounts),
	}, err
}

// CreateURL implements the Host of [boxgate/api/urls].
func (u *Service) CreateURL(ctx context.Context, id policy.BoxID, req api.URLRequest) (api.URL, error) {
	asked, err := u.claimFor(ctx, id, req)
	if err != nil {
		return api.URL{}, err
	}
	served, err := u.claimInFleet(ctx, asked.proven(), asked.claim)
	if err != nil {
		return api.URL{}, err
	}
	defer served()
	b, err := u.config.Boxes.Lock(id)
	if err != nil {
		return api.URL{}, err
	}
	defer b.Unlock()
	if b.IsRemote() {
		return api.URL{}, api.Errorf(api.ErrConflict, "box %s runs elsewhere: the gateway cannot connect to its ports", id)
	}
	record := asked.record(id, req, time.Now())
	done, err := u.reserve(ctx, record)
	if err != nil {
		return api.URL{}, err
	}
	defer done()
	made := credentialsFor(req, &record)
	if err := u.storeURL(record, asked.claim); err != nil {
		return api.URL{}, err
	}
	u.putInService(record, b.V4)
	view, err := u.urlView(record)
	view.Token, view.Username, view.Password = made.Token, made.Username, made.Password
	return view, err
}

// claimed are the custom domains of a new URL, after the proof of control.
type claimed struct {
	claim     store.Claim
	hostnames []string // all of them
	pending   []string // those without a proof
}

// proven returns the domains with a proof.
func (c *claimed) proven() []string {
	return slices.DeleteFunc(slices.Clone(c.hostnames), func(host string) bool { return slices.Contains(c.pending, host) })
}

// claimInFleet claims domains in the fleet, if there is one. done must be called when they are in the table, or will not be.
func (u *Service) claimInFleet(ctx context.Context, domains []string, by store.Claim) (done func(), err error) {
	if u.config.Claims == nil {
		return func() {}, nil
	}
	return u.config.Claims.Claim(ctx, domains, by.Key, by.Admin)
}

// claimFor checks a request for a URL and claims its custom domains. The box must not be locked, because nameservers may be slow.
func (u *Service) claimFor(ctx context.Context, id policy.BoxID, req api.URLRequest) (c claimed, err error) {
	if err = u.permits(req); err != nil {
		return c, err
	}
	if u.config.Table.IsOwn(req.Port) {
		return c, change.InvalidAt("/port", "is served by the gateway itself for every box")
	}
	if c.hostnames, err = u.ownDomains(req.Hostnames); err != nil {
		return c, err
	}
	had, err := u.domainsOf(id, req.Port)
	if err != nil {
		return c, err
	}
	c.claim, c.pending, err = u.config.Domains.claim(ctx, api.CallerOf(ctx), req.Hostnames, had)
	return c, err
}

// record returns the record of a new URL, without its credentials.
func (c *claimed) record(id policy.BoxID, req api.URLRequest, now time.Time) store.URL {
	r := store.URL{
		Box: id, Port: req.Port, Pending: c.pending, Protocol: req.Protocol, CreatedAt: now, Origins: req.Origins, Key: newURLKey(),
		Hostnames: c.proven(),
		Accounts:  (*store.Accounts)(req.Accounts),
	}
	if c.claim.Key != store.OperatorKey {
		r.Owner = c.claim.Key
	}
	if req.ExpiresIn > 0 {
		r.ExpiresAt = now.Add(req.ExpiresIn)
	}
	return r
}

// putInService puts a stored URL into the table, and cuts the visitors whom its port had before: of the URL that it replaces, or of the
// shared ports of the box.
func (u *Service) putInService(record store.URL, addr netip.Addr) {
	old, replaced := u.config.Table.urlOf(record.Box, record.Port)
	shared := u.config.Table.sharedOf(record.Box)
	u.config.Table.set(u.hostsOf(record), urlTarget(record, addr))
	u.pending.set(record, time.Now())
	switch {
	case replaced:
		u.closeURL(old.ID)
	case shared != "":
		u.config.Visitors.ClosePort(shared, record.Port)
		u.config.Before.SendOrder(handover.Message{Kind: handover.URL, URL: shared})
	}
}

// permits returns an error if the configuration does not allow the URL.
func (u *Service) permits(req api.URLRequest) error {
	switch {
	case u.config.Ingress.HTTPS == "" && u.config.Ingress.HTTP == "":
		return api.Errorf(api.ErrForbidden, "public URLs are turned off: set ingress.https")
	case u.config.Ingress.RequireAuth && req.Protocol == api.ProtocolTCP:
		return api.Errorf(api.ErrForbidden, "this gateway requires authentication on public URLs, for which raw TCP has no place")
	case u.config.Ingress.RequireAuth && !req.Bearer && !req.Basic && req.Accounts == nil:
		return api.Errorf(api.ErrForbidden, "this gateway requires authentication on public URLs: ask for bearer_token, basic_auth or oidc")
	case req.Accounts != nil && u.config.Ingress.OIDC.Issuer == "":
		return change.InvalidAt("/oidc", "this gateway has no identity provider: set ingress.oidc")
	case req.Protocol == api.ProtocolTCP && u.config.HTTPS == 0:
		return change.InvalidAt("/protocol", "tcp needs TLS: set ingress.https")
	}
	return nil
}

// randomHex returns n random bytes in hexadecimal.
func randomHex(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails (crypto/rand)
	return hex.EncodeToString(b)
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

// domainsOf returns the active domains of a port's URL. A port without a URL has no domains.
func (u *Service) domainsOf(id policy.BoxID, port uint16) ([]string, error) {
	if _, err := u.config.Boxes.Find(id); err != nil {
		return nil, err
	}
	record, err := u.config.Store.Get(id, port)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return nil, err
	}
	return record.Hostnames, nil
}

// ownDomains returns the custom domains of a URL in the store's form.
func (u *Service) ownDomains(names []name.Name) ([]string, error) {
	var hosts []string
	for i, n := range names {
		if why := u.isGateways(n); why != "" {
			return nil, change.InvalidAt(fmt.Sprintf("/hostnames/%d", i), why)
		}
		hosts = append(hosts, n.String())
	}
	return hosts, nil
}

// isGateways returns why a name cannot be a custom domain, or "" if it can. Names within the gateway's own domain belong
// to the boxes whose IDs they contain, and the sign-in host serves all URLs.
func (u *Service) isGateways(n name.Name) string {
	domain, err := name.Parse(u.config.Ingress.Domain)
	switch {
	case err != nil || n.IsWithin(domain):
		return fmt.Sprintf("%s lies within %s, the domain of this gateway", n, u.config.Ingress.Domain)
	case n.String() == u.config.Table.ownHost:
		return fmt.Sprintf("%s is where visitors of this gateway sign in", n)
	}
	return ""
}

// storeURL stores a URL.
func (u *Service) storeURL(record store.URL, claim store.Claim) error {
	err := u.config.Store.Set(record, claim)
	if err == nil {
		return nil
	}
	if refused := u.config.Domains.apiError(err); refused != nil {
		return refused
	}
	return change.NotStored(u.config.Log, "the public URL could not be stored, nothing was changed", err)
}

// hostsOf returns the host names of a URL, without custom domains that now belong to the gateway after a change of the
// configuration.
func (u *Service) hostsOf(r store.URL) []string {
	hosts := []string{u.config.Ingress.HostName(r.Box, r.Port)}
	for _, h := range r.Hostnames {
		n, err := name.Parse(h)
		if err != nil || u.isGateways(n) != "" {
			u.config.Log.Warn("a domain of a public URL is the gateway's own now, and is not served", zap.String("box", string(r.Box)),
				zap.Uint16("port", r.Port), zap.String("domain", h))
			continue
		}
		hosts = append(hosts, h)
	}
	return hosts
}

// urlTarget converts a stored URL for the ingress. Replacing a URL changes its ID. A protocol stored by a newer version
// and unknown to this one is served as the default.
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
func (u *Service) DeleteURL(_ context.Context, id policy.BoxID, port uint16) error {
	b, err := u.config.Boxes.Lock(id)
	if err != nil {
		return err
	}
	defer b.Unlock()
	target, ok := u.config.Table.urlOf(id, port)
	if !ok {
		return api.Errorf(api.ErrNotFound, "port %d of this box has no public URL", port)
	}
	if err := u.config.Store.Delete(id, port); err != nil {
		return change.NotStored(u.config.Log, "the deletion could not be stored; the public URL stays", err)
	}
	u.config.Table.remove(id, port)
	u.pending.remove(id, port)
	u.closeURL(target.ID)
	return nil
}

// Recover loads the stored public URLs of a box.
func (u *Service) Recover(b *state.Box) error {
	records, err := u.config.Store.List(b.ID)
	if err != nil {
		return err
	}
	for _, r := range records {
		if r.Key.Reveal() == "" { // stored by an older version
			if r, err = u.config.Store.Change(r.Box, r.Port, r.CreatedAt, func(r *store.URL) { r.Key = newURLKey() }); err != nil {
				return err
			}
		}
		if u.config.Table.IsOwn(r.Port) {
			u.config.Log.Warn("the port of a public URL is the gateway's own now, and the URL is not served", zap.String("box", string(r.Box)), zap.Uint16("port", r.Port))
			continue
		}
		u.config.Table.set(u.hostsOf(r), urlTarget(r, b.V4))
		u.pending.set(r, time.Now())
	}
	return u.recoverPorts(b)
}

// Drop removes the public URLs of a box from the table and then cuts their connections, in this order, so that no new
// ones arrive in between.
func (u *Service) Drop(id policy.BoxID) {
	u.config.Table.RemoveBox(id)
	u.pending.remove(id, 0)
	u.config.Visitors.CloseBox(id)
	u.config.Before.SendOrder(handover.Message{Kind: handover.URLs, Box: id})
	u.config.Reach.Remove(id)
}

// closeURL cuts the requests of a URL, including requests that a predecessor drains.
func (u *Service) closeURL(id string) {
	u.config.Visitors.CloseURL(id)
	u.config.Before.SendOrder(handover.Message{Kind: handover.URL, URL: id})
}

// reserve reserves quota for a new URL, minus the usage of the URL that it replaces.
func (u *Service) reserve(ctx context.Context, next store.URL) (done func(), err error) {
	urls, domains := int64(1), int64(len(next.Hostnames)+len(next.Pending))
	if old, known := u.recorded(next.Box, next.Port); known && old.Owner == next.Owner {
		urls, domains = 0, domains-int64(len(old.Hostnames)+len(old.Pending))
	}
	first, err := u.config.Holdings.Reserve(ctx, quotas.URLs, urls)
	if err != nil {
		return nil, err
	}
	second, err := u.config.Holdings.Reserve(ctx, quotas.Domains, domains)
	if err != nil {
		first()
		return nil, err
	}
	return func() { first(); second() }, nil
}

// recorded returns the stored URL of a port, if there is one.
func (u *Service) recorded(id policy.BoxID, port uint16) (r store.URL, known bool) {
	r, err := u.config.Store.Get(id, port)
	return r, err == nil
}

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
	target, ok := u.config.Table.urlOf(id, port)
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
