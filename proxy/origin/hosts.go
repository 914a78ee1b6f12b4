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

// hosts remembers unusual servers of one box, for a time.
type hosts struct {
	hellos memo[struct{}] // servers that need small hellos
	offers memo[offer]    // offers of servers that share no way to encrypt with the gateway
	logins memo[struct{}] // servers that offer a login of the connection
}

// memo remembers a property of servers. Safe for concurrent use.
type memo[V any] struct {
	mu    sync.Mutex
	known map[host]property[V]
}

type property[V any] struct {
	value V
	until time.Time
}

func (m *memo[V]) find(at host) (value V, known bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.known[at]
	return p.value, time.Now().Before(p.until)
}

// note remembers a value for a time. It drops other servers until there is room: their properties are detected again.
func (m *memo[V]) note(at host, value V, life time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.known == nil {
		m.known = map[host]property[V]{}
	}
	for other := range m.known {
		if len(m.known) < maxHosts {
			break
		}
		delete(m.known, other)
	}
	m.known[at] = property[V]{value, time.Now().Add(life)}
}

// NoteLogin records that an HTTP/1.1 server has offered a box a connection-based login (NTLM, Negotiate).
func (p *Origins) NoteLogin(box policy.BoxID, name name.Name, port uint16) {
	p.hostsOf(box).logins.note(host{name, port}, struct{}{}, loginTime)
}

// OffersLogin reports whether [Origins.NoteLogin] has recorded the server within the last hour. Records may be dropped
// earlier.
func (p *Origins) OffersLogin(box policy.BoxID, name name.Name, port uint16) bool {
	_, offers := p.hostsOf(box).logins.find(host{name, port})
	return offers
}

// hostsOf returns the remembered hosts of a box, or others if the box was removed.
func (p *Origins) hostsOf(box policy.BoxID) *hosts {
	if pool := p.pools.find(box); pool != nil {
		return &pool.known
	}
	return &hosts{}
}
