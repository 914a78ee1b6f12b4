package origin

import (
	"sync"
	"time"

	"boxgate/policy"
	"boxgate/policy/name"
)

const (
	maxHosts   = 128       // maximum number of hosts remembered for a box
	smallTime  = time.Hour // how long a host gets small hellos
	loginTime  = time.Hour // how long HTTP/1.1 is preferred with clients of a host
	offersTime = time.Minute
)

// host is a server with remembered properties.
type host struct {
	name name.Name
	port uint16
}

// hosts remembers unusual servers of one box, for a time. It is nil after the box was removed. Safe for concurrent use.
type hosts struct {
	mu     sync.Mutex
	hellos map[host]time.Time // end of small hellos, by host
	offers map[host]offered
	logins map[host]time.Time // end of the preference for HTTP/1.1 for clients that log in on the connection, by host
}

// offered is the explained offer of a server that shares no way to encrypt with the gateway.
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

// offer returns the text for a host that was probed recently.
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

// dropAny drops entries until one more fits. Dropped properties are detected again.
func dropAny[V any](m map[host]V) {
	for k := range m {
		if len(m) < maxHosts {
			return
		}
		delete(m, k)
	}
}

// NoteLogin records that an HTTP/1.1 server has offered a box a connection-based login (NTLM, Negotiate).
func (p *Origins) NoteLogin(box policy.BoxID, name name.Name, port uint16) {
	p.hostsOf(box).noteLogin(host{name, port})
}

// OffersLogin reports whether [Origins.NoteLogin] has recorded the server within the last hour. Records may be dropped
// earlier.
func (p *Origins) OffersLogin(box policy.BoxID, name name.Name, port uint16) bool {
	return p.hostsOf(box).login(host{name, port})
}

// hostsOf returns the remembered hosts of a box, or nil after the box was removed.
func (p *Origins) hostsOf(box policy.BoxID) *hosts {
	p.pools.mu.RLock()
	defer p.pools.mu.RUnlock()
	if pool := p.pools.boxes[box]; pool != nil {
		return &pool.known
	}
	return nil
}
