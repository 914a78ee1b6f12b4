package origin

import (
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"time"

	"boxgate/internal/memory"
	"boxgate/internal/socket"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy/offer"
	"boxgate/proxy/problem"
	"boxgate/proxy/usage"
	"boxgate/relay/pool"
)

const (
	idleTime = 60 * time.Second // how long idle connections are kept; servers commonly close them after 60 to 75 s
	MaxIdle  = 64               // maximum idle connections of a box, over all hosts

	// Memory for a connection, in bytes.
	originCost  = 120 << 10 // TLS, its certificates, a record or frame each way, one frame in several records
	plainIdle   = 4 << 10   // without TLS, while it is idle
	usualServer = 8 << 10   // typical maximum of a handshake's bytes, whose certificates originCost includes
)

// costOf returns the memory for a connection in use. That of TLS depends on the bytes that the server sent in the handshake.
func costOf(conn net.Conn) int {
	if t, ok := conn.(*socket.Terminated); ok {
		return originCost + 4*max(0, t.HandshakeBytes()-usualServer)
	}
	return originCost
}

// cost returns the memory for dialling a connection.
func (k key) cost() int {
	if k.secure {
		return max(originCost, socket.ServerCost)
	}
	return originCost
}

var errLimit = error(problem.Fixed("the box has reached its limit of connections to servers"))

// errBoxGone refuses a request that outlived its box.
var errBoxGone = &policy.DeniedError{Decision: policy.Decision{Reason: name.ReasonUnknownBox}}

// boxPool contains a box's connections to origin servers and their limits ([pool.Limits]). Safe for concurrent use.
type boxPool struct {
	conns pool.Pool[key, *policy.Compiled]
	box   *policy.Box
	max   int       // of its connections, unless the box has its own limit
	all   *allPools // the pools of all boxes
	total int       // limit on the connections of all; 0: no limit

	memory   *memory.Account // of the box
	sessions tls.ClientSessionCache
	known    hosts
}

// place is the right of a box to one open connection to an origin server.
type place = pool.Place[key, *policy.Compiled]

func newBoxPool(box *policy.Box, max int, holds *memory.Account) *boxPool {
	p := &boxPool{box: box, max: max, memory: holds, sessions: newSessions(), all: &allPools{}}
	p.conns.Limits, p.conns.Idle, p.conns.IdleTime, p.conns.PlainMost = p, MaxIdle, idleTime, max
	p.conns.Retry = func(error) bool { return true } // the policy may have changed since the other request
	return p
}

// most returns the maximum number of connections of the box.
func (p *boxPool) most() int { return int(p.box.Limits.Of(policy.LimitUpstreams, int64(p.max))) }

// Room implements [pool.Limits]: it reports whether the box may have one more connection, by its own limit and by its share of the
// total.
func (p *boxPool) Room(open int) bool {
	return open < p.most() && usage.Room(open, int(p.all.open.Load()), p.total, int(p.all.sharers.Load()))
}

// Count implements [pool.Limits].
func (p *boxPool) Count(n int) { p.all.open.Add(int64(n)) }

// Acquire implements [pool.Limits].
func (p *boxPool) Acquire(bytes int) bool { return p.memory.Acquire(memory.Upstreams, bytes) }

// Release implements [pool.Limits].
func (p *boxPool) Release(bytes int) { p.memory.Release(memory.Upstreams, bytes) }

// refused returns the error for a request to key after an error of the pool.
func refused(key key, err error) error {
	switch {
	case errors.Is(err, pool.ErrClosed):
		return errBoxGone
	case errors.Is(err, pool.ErrLimit):
		return &problem.Upstream{Reason: name.ReasonLimit, Name: key.shown(), Err: errLimit}
	case errors.Is(err, pool.ErrMemory):
		return &problem.Upstream{Reason: name.ReasonLimit, Name: key.shown(), Err: memory.ErrFull}
	}
	return err
}

// crowded reports whether the box has so many open connections that idle clients should not keep one reserved.
func (p *boxPool) crowded() bool { return p.conns.Open() > p.most()/2 }

// fits reports whether a connection has the source address that the box's policy uses: otherwise no request will use it.
func (p *boxPool) fits(pl *place) bool { return pl.Key().from == p.box.Policy.Load().Source() }

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
	hellos memo[struct{}]    // servers that need small hellos
	offers memo[offer.Offer] // offers of servers that share no way to encrypt with the gateway
	logins memo[struct{}]    // servers that offer a login of the connection
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
