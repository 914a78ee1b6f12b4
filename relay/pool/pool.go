package pool

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

var (
	// ErrClosed refuses a connection because the pool was closed.
	ErrClosed = errors.New("the pool of connections was closed")
	// ErrLimit refuses a connection because of [Limits.Room].
	ErrLimit = errors.New("the limit of connections is reached")
	// ErrMemory refuses a connection because of [Limits.Acquire].
	ErrMemory = errors.New("there is no memory for the connection")
)

// Conn is a connection to a server. J is the type of the judgements of requests, such as a policy. The methods do not block.
type Conn[J any] interface {
	// Usable reports whether a request may use the connection, which other requests have used.
	Usable(by J) bool
	// Fit reports whether the connection, if it is idle, is kept for further requests.
	Fit() bool
	// Cost returns the memory that the connection takes, in bytes. It is not called without Limits.
	Cost(idle bool) int
	// HangUp closes the connection. It is called without locks, and possibly several times.
	HangUp()
}

// Limits bounds the connections of a pool. Its methods are called with the pool's lock held.
type Limits interface {
	// Room reports whether another connection may be opened while that many are open.
	Room(open int) bool
	// Count adds n to the number of open connections.
	Count(n int)
	// Acquire reserves memory, in bytes, and reports whether it was available. Release returns it.
	Acquire(bytes int) bool
	Release(bytes int)
}

// Pool keeps connections by key. At a limit, the connection that has been idle longest is closed. Set the fields before the first use.
// Safe for concurrent use.
type Pool[K comparable, J any] struct {
	Limits   Limits        // nil: no limits on open connections
	Idle     int           // maximum number of idle connections
	IdleEach int           // the same for one key; 0: no limit
	IdleTime time.Duration // how long connections are kept idle
	// Owner returns the owner of a key. Beyond Idle, connections of owners with more than an equal share give way. nil: the connection
	// that has been idle longest gives way.
	Owner     func(K) string
	Plain     time.Duration // how long the pool remembers that a server speaks HTTP/1.1 only; 0: for ever
	PlainMost int           // how many such servers it remembers at least, in addition to those with connections; 0: no limit
	// Retry reports whether a request makes another attempt after one that another request began has failed; nil: it never does.
	Retry func(error) bool
	// Panicked is called with the value of a panic in an attempt, on the stack of the panic and whether or not a request still waits; nil:
	// only requests that wait learn of it, as a [Panic].
	Panicked func(K, any)

	open atomic.Int64 // number of places; written under mu

	mu      sync.Mutex
	ports   map[K]*port[K, J]
	oldest  *Place[K, J] // of the list of idle connections, longest idle first
	newest  *Place[K, J]
	idle    int            // length of the list
	owned   map[string]int // the same by owner, if there is an Owner
	dropped []*Place[K, J] // to be closed by unlock
	sweep   *time.Timer    // runs while there are idle connections
	closed  bool
}

// port is the state of one key. It exists while the key has places or a protocol to remember.
type port[K comparable, J any] struct {
	places  int
	idle    []*Place[K, J] // with connections for one request at a time, most recently used last
	shared  []*Place[K, J]
	dialing *attempt[K, J] // in progress, or nil
	speaks  bool           // the server has accepted a shared connection, and still had one since
	plain   bool           // the last server spoke HTTP/1.1 only
	until   time.Time      // end of plain; zero: no end
}

// Place is the right to one open connection.
type Place[K comparable, J any] struct {
	pool *Pool[K, J]
	key  K
	port *port[K, J]

	// Guarded by pool.mu.
	conn             Conn[J]   // nil until there is one
	shared           Shared[J] // conn, if it is shared
	users            int       // requests that share it, and the attempt that made it
	held             bool      // false once released or revoked
	cost             int       // memory acquired for it
	isIdle           bool      // it is in the list
	since            time.Time // it is idle
	previous, follow *Place[K, J]
}

// Key returns the key of the place.
func (pl *Place[K, J]) Key() K { return pl.key }

// Open returns the number of places, of connections in use or idle.
func (p *Pool[K, J]) Open() int { return int(p.open.Load()) }

// Stats are numbers of a pool.
type Stats struct {
	Idle    int // idle connections
	Ports   int // keys with connections or a remembered protocol
	Waiting int // requests that wait for an attempt
}

// Stats returns the current numbers.
func (p *Pool[K, J]) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := Stats{Idle: p.idle, Ports: len(p.ports)}
	for _, at := range p.ports {
		if at.dialing != nil {
			s.Waiting += at.dialing.waiters
		}
	}
	return s
}

// unlock releases the lock and then closes the dropped connections, because closing must not block others.
func (p *Pool[K, J]) unlock() {
	dropped := p.dropped
	p.dropped = nil
	p.mu.Unlock()
	for _, pl := range dropped {
		if pl.conn != nil {
			pl.conn.HangUp()
		}
	}
}

// Acquire returns a place for one more connection. cost is the memory for dialling it. The error is [ErrClosed], [ErrLimit] or
// [ErrMemory].
func (p *Pool[K, J]) Acquire(key K, cost int) (*Place[K, J], error) {
	p.mu.Lock()
	defer p.unlock()
	return p.acquireLocked(key, cost)
}

func (p *Pool[K, J]) acquireLocked(key K, cost int) (*Place[K, J], error) {
	if p.closed {
		return nil, ErrClosed
	}
	for p.Limits != nil && !p.Limits.Room(p.Open()) {
		if !p.dropOldestLocked() {
			return nil, ErrLimit
		}
	}
	pl := &Place[K, J]{pool: p, key: key}
	if !p.chargeLocked(pl, cost) {
		return nil, ErrMemory
	}
	pl.held = true
	p.countLocked(1)
	pl.port = p.portLocked(key)
	pl.port.places++
	return pl, nil
}

func (p *Pool[K, J]) countLocked(n int) {
	p.open.Add(int64(n))
	if p.Limits != nil {
		p.Limits.Count(n)
	}
}

// chargeLocked changes the memory reserved for a place, and closes idle connections to get it. It returns false if that does not
// suffice.
func (p *Pool[K, J]) chargeLocked(pl *Place[K, J], cost int) bool {
	if p.Limits == nil {
		return true
	}
	for cost > pl.cost {
		if p.Limits.Acquire(cost - pl.cost) {
			pl.cost = cost
			return true
		}
		if !p.dropOldestLocked() {
			return false
		}
	}
	p.Limits.Release(pl.cost - cost)
	pl.cost = cost
	return true
}

// portLocked returns the state of a key, creating it if needed.
func (p *Pool[K, J]) portLocked(key K) *port[K, J] {
	if at := p.ports[key]; at != nil {
		return at
	}
	if p.ports == nil {
		p.ports = map[K]*port[K, J]{}
	}
	if p.PlainMost > 0 && len(p.ports) >= p.Open()+p.PlainMost {
		for k, at := range p.ports {
			if at.places == 0 {
				delete(p.ports, k)
			}
		}
	}
	at := &port[K, J]{}
	p.ports[key] = at
	return at
}

// tidyLocked forgets a key without places or remembered protocol.
func (p *Pool[K, J]) tidyLocked(key K, at *port[K, J]) {
	if at.places == 0 && !at.isPlain() && p.ports[key] == at {
		delete(p.ports, key)
	}
}

func (at *port[K, J]) isPlain() bool {
	return at.plain && (at.until.IsZero() || time.Now().Before(at.until))
}

// Fill puts a newly dialled connection for one request at a time into use. If the error is [ErrMemory], the caller closes the connection
// and releases the place.
func (pl *Place[K, J]) Fill(conn Conn[J]) error {
	p := pl.pool
	p.mu.Lock()
	defer p.unlock()
	pl.conn = conn
	return p.useLocked(pl)
}

// useLocked charges for a connection that is in use. A revoked place takes no memory.
func (p *Pool[K, J]) useLocked(pl *Place[K, J]) error {
	if p.Limits != nil && pl.held && !p.chargeLocked(pl, pl.conn.Cost(false)) {
		return ErrMemory
	}
	return nil
}

// Release releases the place: its connection was closed, was never made, or is counted elsewhere from now on. Only the first call has
// an effect.
func (pl *Place[K, J]) Release() {
	pl.pool.mu.Lock()
	defer pl.pool.unlock()
	pl.pool.releaseLocked(pl)
}

func (p *Pool[K, J]) releaseLocked(pl *Place[K, J]) {
	if !pl.held {
		return
	}
	pl.held = false
	p.countLocked(-1)
	if p.Limits != nil {
		p.Limits.Release(pl.cost)
		pl.cost = 0
	}
	p.wakeLocked(pl)
	at := pl.port
	if i := slices.Index(at.shared, pl); i >= 0 {
		at.shared = slices.Delete(at.shared, i, i+1)
		at.speaks = at.speaks && len(at.shared) > 0
	}
	at.places--
	p.tidyLocked(pl.key, at)
}

// dropLocked revokes the place and schedules its connection to be closed.
func (p *Pool[K, J]) dropLocked(pl *Place[K, J]) {
	p.releaseLocked(pl)
	p.dropped = append(p.dropped, pl)
}

func (p *Pool[K, J]) dropOldestLocked() bool {
	oldest := p.oldest
	if oldest != nil {
		p.dropLocked(oldest)
	}
	return oldest != nil
}

// Rest keeps a connection whose exchange has ended cleanly for further requests, within the limits.
func (pl *Place[K, J]) Rest() {
	pl.pool.mu.Lock()
	defer pl.pool.unlock()
	pl.pool.restLocked(pl)
}

func (p *Pool[K, J]) restLocked(pl *Place[K, J]) {
	if p.closed || !pl.held || p.Idle == 0 || p.IdleEach > 0 && pl.port.resting() >= p.IdleEach || !pl.conn.Fit() {
		p.dropLocked(pl)
		return
	}
	pl.since, pl.isIdle, pl.previous = time.Now(), true, p.newest
	if p.newest != nil {
		p.newest.follow = pl
	} else {
		p.oldest = pl
	}
	p.newest = pl
	p.countIdleLocked(pl, 1)
	if pl.shared == nil {
		pl.port.idle = append(pl.port.idle, pl)
	}
	if p.Limits != nil {
		p.chargeLocked(pl, min(pl.cost, pl.conn.Cost(true)))
	}
	if p.idle > p.Idle {
		p.dropExcessLocked(pl)
	}
	if p.sweep == nil {
		p.sweep = time.AfterFunc(p.IdleTime, p.closeOld)
	}
}

// countIdleLocked counts a connection that was put into the list or removed from it.
func (p *Pool[K, J]) countIdleLocked(pl *Place[K, J], n int) {
	p.idle += n
	if p.Owner == nil {
		return
	}
	owner := p.Owner(pl.key)
	if p.owned == nil {
		p.owned = map[string]int{}
	}
	if p.owned[owner] += n; p.owned[owner] == 0 {
		delete(p.owned, owner)
	}
}

// dropExcessLocked drops the idle connection that gives way to the latest: the oldest of its owner if that has more than an equal share,
// else the oldest of another one that has.
func (p *Pool[K, J]) dropExcessLocked(latest *Place[K, J]) {
	if p.Owner == nil {
		p.dropOldestLocked()
		return
	}
	share, own := p.Idle/len(p.owned), p.Owner(latest.key)
	over := p.owned[own] > share
	for pl := p.oldest; pl != nil; pl = pl.follow {
		if owner := p.Owner(pl.key); over && owner == own || !over && p.owned[owner] > share {
			p.dropLocked(pl)
			return
		}
	}
}

// resting returns the number of idle connections.
func (at *port[K, J]) resting() int {
	n := len(at.idle)
	for _, pl := range at.shared {
		if pl.isIdle {
			n++
		}
	}
	return n
}

// wakeLocked removes a connection from the idle ones, if it is one.
func (p *Pool[K, J]) wakeLocked(pl *Place[K, J]) {
	if !pl.isIdle {
		return
	}
	if pl.previous != nil {
		pl.previous.follow = pl.follow
	} else {
		p.oldest = pl.follow
	}
	if pl.follow != nil {
		pl.follow.previous = pl.previous
	} else {
		p.newest = pl.previous
	}
	pl.isIdle, pl.previous, pl.follow = false, nil, nil
	p.countIdleLocked(pl, -1)
	list := pl.port.idle
	if last := len(list) - 1; last >= 0 && list[last] == pl {
		list[last] = nil
		pl.port.idle = list[:last]
	} else if i := slices.Index(list, pl); i >= 0 {
		pl.port.idle = slices.Delete(list, i, i+1)
	}
}

// Take returns the most recently used idle connection of a key that a request may use, or nil. It closes others.
func (p *Pool[K, J]) Take(key K, by J) Conn[J] {
	for {
		pl := p.pop(key)
		switch {
		case pl == nil:
			return nil
		case pl.conn.Usable(by) && (p.Limits == nil || pl.Fill(pl.conn) == nil):
			return pl.conn
		}
		pl.Release()
		pl.conn.HangUp()
	}
}

func (p *Pool[K, J]) pop(key K) *Place[K, J] {
	p.mu.Lock()
	defer p.unlock()
	at := p.ports[key]
	if at == nil || len(at.idle) == 0 {
		return nil
	}
	pl := at.idle[len(at.idle)-1]
	p.wakeLocked(pl)
	return pl
}

// closeOld closes connections that have been idle for too long.
func (p *Pool[K, J]) closeOld() { p.CloseIdle(p.IdleTime) }

// CloseIdle closes connections that have been idle for age or longer. With age 0 it also forgets which servers speak HTTP/1.1 only.
func (p *Pool[K, J]) CloseIdle(age time.Duration) {
	p.mu.Lock()
	defer p.unlock()
	p.stopSweepLocked()
	for key, at := range p.ports {
		if age == 0 {
			at.plain = false
			p.tidyLocked(key, at)
		}
	}
	for pl := p.oldest; pl != nil; pl = p.oldest {
		if left := age - time.Since(pl.since); left > 0 {
			p.sweep = time.AfterFunc(left, p.closeOld)
			return
		}
		p.dropLocked(pl)
	}
}

func (p *Pool[K, J]) stopSweepLocked() {
	if p.sweep != nil {
		p.sweep.Stop()
		p.sweep = nil
	}
}

// CloseUnfit closes the idle connections that [Conn.Fit] rejects.
func (p *Pool[K, J]) CloseUnfit() {
	p.mu.Lock()
	defer p.unlock()
	for pl := p.oldest; pl != nil; {
		next := pl.follow
		if !pl.conn.Fit() {
			p.dropLocked(pl)
		}
		pl = next
	}
}

// Forget forgets the protocol of a key's server, which may have gone.
func (p *Pool[K, J]) Forget(key K) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if at := p.ports[key]; at != nil {
		at.speaks, at.plain = false, false
		p.tidyLocked(key, at)
	}
}

// Close closes everything except connections for one request at a time that are in use, which end with their clients. It ends attempts,
// and prevents new connections.
func (p *Pool[K, J]) Close() {
	p.mu.Lock()
	defer p.unlock()
	p.closed = true
	for p.dropOldestLocked() {
	}
	for key, at := range p.ports {
		for _, pl := range slices.Clone(at.shared) {
			p.dropLocked(pl)
		}
		if at.dialing != nil {
			at.dialing.cancel()
		}
		delete(p.ports, key)
	}
	p.stopSweepLocked()
}
