package origin

import (
	"sync"
	"time"

	"boxgate/policy"
	"boxgate/policy/name"
)

const (
	maxHosts   = 128       // hosts that a box's memory has room for
	smallTime  = time.Hour // for which a host gets small hellos
	loginTime  = time.Hour // for which HTTP/1.1 is preferred with clients of a host
	offersTime = time.Minute
)

// host is a server that is remembered.
type host struct {
	name name.Name
	port uint16
}

// hosts remembers for one box, and for a time, servers that are out of the ordinary. It is nil for a box that is gone.
// Safe for concurrent use.
type hosts struct {
	mu     sync.Mutex
	hellos map[host]time.Time // until when a host gets small hellos
	offers map[host]offered
	logins map[host]time.Time // until when a host is one of HTTP/1.1 on whose connections clients log in
}

// offered is what a server that the gateway has no way to encrypt with was found to offer.
type offered struct {
	text  string
	until time.Time
}

func (h *hosts) small(at host) bool {
	if h == nil {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return time.Now().Before(h.hellos[at])
}

func (h *hosts) needsSmall(at host) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.hellos == nil {
		h.hellos = map[host]time.Time{}
	}
	dropAny(h.hellos)
	h.hellos[at] = time.Now().Add(smallTime)
}

// offer returns the text for a host that was asked lately.
func (h *hosts) offer(at host) (text string, known bool) {
	if h == nil {
		return "", false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	o := h.offers[at]
	return o.text, time.Now().Before(o.until)
}

func (h *hosts) noteOffer(at host, text string) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.offers == nil {
		h.offers = map[host]offered{}
	}
	dropAny(h.offers)
	h.offers[at] = offered{text, time.Now().Add(offersTime)}
}

func (h *hosts) login(at host) bool {
	if h == nil {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return time.Now().Before(h.logins[at])
}

func (h *hosts) noteLogin(at host) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.logins == nil {
		h.logins = map[host]time.Time{}
	}
	dropAny(h.logins)
	h.logins[at] = time.Now().Add(loginTime)
}

// dropAny makes room for one more entry. What is forgotten is found out again.
func dropAny[V any](m map[host]V) {
	for k := range m {
		if len(m) < maxHosts {
			return
		}
		delete(m, k)
	}
}

// NoteLogin notes that a server of HTTP/1.1 has offered a box a login of the connection (NTLM, Negotiate).
func (p *Origins) NoteLogin(box policy.BoxID, name name.Name, port uint16) {
	p.hostsOf(box).noteLogin(host{name, port})
}

// OffersLogin reports whether [Origins.NoteLogin] has noted the server within the last hour. It may have been forgotten.
func (p *Origins) OffersLogin(box policy.BoxID, name name.Name, port uint16) bool {
	return p.hostsOf(box).login(host{name, port})
}

// hostsOf returns the memory of a box; nil once the box is gone.
func (p *Origins) hostsOf(box policy.BoxID) *hosts {
	p.pools.mu.RLock()
	defer p.pools.mu.RUnlock()
	if pool := p.pools.boxes[box]; pool != nil {
		return &pool.known
	}
	return nil
}
