package host

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"boxgate/api"
	"boxgate/ingress"
	"boxgate/policy"
	"boxgate/store"
)

// urlTable finds the target of a public URL's host name. Safe for concurrent use.
type urlTable struct {
	mu     sync.RWMutex
	byHost map[string]ingress.Target
}

// Lookup implements [ingress.URLs].
func (t *urlTable) Lookup(host string) (ingress.Target, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	target, ok := t.byHost[host]
	return target, ok
}

func (t *urlTable) set(host string, target ingress.Target) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byHost == nil {
		t.byHost = map[string]ingress.Target{}
	}
	t.byHost[host] = target
}

func (t *urlTable) remove(host string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.byHost, host)
}

// urlHost is the host name of the public URL of a box's port.
func (h *Host) urlHost(id policy.BoxID, port uint16) string {
	return fmt.Sprintf("%s-%d.%s", id, port, h.cfg.Ingress.Domain)
}

// urlOf is the URL as people open it; a port other than 443 is part of it.
func (h *Host) urlOf(id policy.BoxID, port uint16) string {
	scheme, listener, usual := "https", h.listeners.https, "443"
	if listener == nil {
		scheme, listener, usual = "http", h.listeners.http, "80"
	}
	url := scheme + "://" + h.urlHost(id, port)
	if listener != nil {
		if p := strconv.Itoa(int(portOf(listener))); p != usual {
			url += ":" + p
		}
	}
	return url
}

// URLs implements [api.Host].
func (h *Host) URLs(_ context.Context, id policy.BoxID) ([]api.URL, error) {
	if _, err := h.find(id); err != nil {
		return nil, err
	}
	records, err := h.store.URLs(id)
	if err != nil {
		return nil, err
	}
	var urls []api.URL
	for _, r := range records {
		urls = append(urls, h.urlView(r))
	}
	slices.SortFunc(urls, func(a, b api.URL) int { return int(a.Port) - int(b.Port) })
	return urls, nil
}

func (h *Host) urlView(r store.URL) api.URL {
	return api.URL{
		URL: h.urlOf(r.Box, r.Port), Port: r.Port, Bearer: r.Bearer != nil, Basic: r.Password != nil, CreatedAt: r.CreatedAt,
	}
}

// CreateURL implements [api.Host].
func (h *Host) CreateURL(_ context.Context, id policy.BoxID, req api.URLRequest) (api.URL, error) {
	b, err := h.find(id)
	if err != nil {
		return api.URL{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.gone(); err != nil {
		return api.URL{}, err
	}
	if h.cfg.Ingress.HTTPS == "" && h.cfg.Ingress.HTTP == "" {
		return api.URL{}, api.Errorf(api.ErrForbidden, "public URLs are turned off: set ingress.https")
	}
	if h.cfg.Ingress.RequireAuth && !req.Bearer && !req.Basic {
		return api.URL{}, api.Errorf(api.ErrForbidden, "this gateway requires authentication on public URLs: ask for bearer_token or basic_auth")
	}
	record := store.URL{Box: id, Port: req.Port, CreatedAt: time.Now()}
	var made api.URL
	if req.Bearer {
		token := randomHex(32)
		digest := store.KeyHash(ingress.BearerDigest(token))
		record.Bearer, made.Token = &digest, policy.NewSecret(token)
	}
	if req.Basic {
		user, password := "box", randomHex(24)
		digest := store.KeyHash(ingress.BasicDigest(user, password))
		record.Username, record.Password = user, &digest
		made.Username, made.Password = policy.NewSecret(user), policy.NewSecret(password)
	}
	if err := h.store.SetURL(record); err != nil {
		return api.URL{}, h.notStored("the public URL could not be stored, nothing was changed", err)
	}
	name := h.urlHost(id, req.Port)
	old, had := h.urls.Lookup(name)
	h.urls.set(name, urlTarget(record, b.V4))
	if had {
		h.ingress.CloseURL(old.ID)
	}
	view := h.urlView(record)
	view.Token, view.Username, view.Password = made.Token, made.Username, made.Password
	return view, nil
}

// urlTarget is what the ingress needs of a stored URL. A URL that was made anew has another ID.
func urlTarget(r store.URL, addr netip.Addr) ingress.Target {
	return ingress.Target{
		ID:  fmt.Sprintf("%s-%d-%d", r.Box, r.Port, r.CreatedAt.UnixNano()),
		Box: r.Box, Addr: netip.AddrPortFrom(addr, r.Port),
		Auth: ingress.Auth{
			Open:   r.Bearer == nil && r.Password == nil,
			Bearer: (*ingress.Digest)(r.Bearer),
			Basic:  (*ingress.Digest)(r.Password),
		},
	}
}

// DeleteURL implements [api.Host].
func (h *Host) DeleteURL(_ context.Context, id policy.BoxID, port uint16) error {
	b, err := h.find(id)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	target, ok := h.urls.Lookup(h.urlHost(id, port))
	if !ok {
		return api.Errorf(api.ErrNotFound, "port %d of this box has no public URL", port)
	}
	if err := h.store.DeleteURL(id, port); err != nil {
		return h.notStored("the deletion could not be stored, the public URL stays", err)
	}
	h.urls.remove(h.urlHost(id, port))
	h.ingress.CloseURL(target.ID)
	return nil
}

// dropURLs forgets the public URLs of a box and cuts what came in by them. The table goes first: whoever comes later
// finds nothing.
func (h *Host) dropURLs(id policy.BoxID) {
	h.urls.removeBox(id)
	h.ingress.CloseBox(id)
}

// removeBox forgets the URLs of a box.
func (t *urlTable) removeBox(id policy.BoxID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.byHost, func(_ string, target ingress.Target) bool { return target.Box == id })
}
