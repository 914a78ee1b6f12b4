package origin

import (
	"container/list"
	"crypto/tls"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"boxgate/internal/memory"
	"boxgate/internal/socket"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy/problem"
	"boxgate/proxy/usage"
)

const (
	idleTime = 60 * time.Second // how long idle connections are kept; servers commonly close them after 60 to 75 s
	MaxIdle  = 64               // maximum idle connections of a box, over all hosts

	// Memory for a connection, in bytes.
	originCost  = 120 << 10 // TLS, its certificates, a record or frame each way, one frame in several records
	plainIdle   = 4 << 10   // without TLS, while it is idle
	usualServer = 8 << 10   // typical maximum of a handshake's bytes, whose certificates originCost includes
)

// tlsCost returns the memory for a TLS connection whose server sent took bytes in the handshake.
func tlsCost(took int) int { return originCost + 4*max(0, took-usualServer) }

var errLimit = error(problem.Fixed("the box has reached its limit of connections to servers"))

// boxPool contains a box's connections to origin servers. Every connection has a place from before it is dialled until it
// is closed, in use or idle. When a box needs more places than it may have, its longest idle connection is closed. Safe for
// concurrent use.
type boxPool struct {
	box   *policy.Box
	max   int       // of its connections, unless the box has its own limit
	all   *allPools // the pools of all boxes
	total int       // limit on the connections of all; 0: no limit

	memory   *memory.Account // of the box
	sessions tls.ClientSessionCache
	known    hosts

	open atomic.Int64 // number of places; written under mu

	mu      sync.Mutex
	idle    list.List       // of *place: idle connections, longest idle first
	kept    map[key][]*Conn // idle HTTP/1.1 connections, most recently used last
	hosts   map[key]*h2Host // of HTTP/2; at most 2*most()
	dropped []*place        // to be closed by unlock
	sweep   *time.Timer     // runs while idle is not empty
	closed  bool            // the box was removed
}

// place is the right of a box to one open connection to an origin server.
type place struct {
	pool *boxPool
	key  key
	h1   *Conn         // the connection, once there is one; at most one of h1 and h2 is set
	h2   *H2Conn       // written under pool.mu
	done chan struct{} // closed when the dial has ended, if others wait for it; else nil

	// Guarded by pool.mu.
	held  bool          // false once released or revoked
	cost  int           // memory acquired for it
	at    *list.Element // in pool.idle; nil while in use
	since time.Time     // when it was put there
}

func newBoxPool(box *policy.Box, max int, holds *memory.Account) *boxPool {
	return &boxPool{
		box: box, max: max, memory: holds, sessions: newSessions(), all: &allPools{},
		kept: map[key][]*Conn{}, hosts: map[key]*h2Host{},
	}
}

// unlock releases the lock and then closes the dropped connections, because closing must not block others.
func (p *boxPool) unlock() {
	dropped := p.dropped
	p.dropped = nil
	p.mu.Unlock()
	for _, pl := range dropped {
		pl.hangUp()
	}
}

// hangUp closes the connection of a dropped place. It never blocks on the peer.
func (pl *place) hangUp() {
	if pl.h1 != nil {
		pl.h1.Close()
	}
	if pl.h2 != nil {
		pl.h2.Client.Close()
	}
}

// acquire returns a place for one more connection, or a *[problem.Upstream] if all are in use.
func (p *boxPool) acquire(key key) (*place, error) {
	p.mu.Lock()
	defer p.unlock()
	return p.acquireLocked(key)
}

func (p *boxPool) acquireLocked(key key) (*place, error) {
	if p.closed {
		return nil, errBoxGone
	}
	for !p.roomLocked() {
		if !p.dropOldestLocked() {
			return nil, &problem.Upstream{Reason: name.ReasonLimit, Name: key.shown(), Err: errLimit}
		}
	}
	pl := &place{pool: p, key: key}
	cost := originCost
	if key.secure {
		cost = max(cost, socket.ServerCost)
	}
	if !p.chargeLocked(pl, cost) {
		return nil, &problem.Upstream{Reason: name.ReasonLimit, Name: key.shown(), Err: memory.ErrFull}
	}
	pl.held = true
	p.open.Add(1)
	p.all.open.Add(1)
	return pl, nil
}

// chargeLocked changes the memory reserved for a place, and closes idle connections to get it. It returns false if that
// does not suffice.
func (p *boxPool) chargeLocked(pl *place, cost int) bool {
	for cost > pl.cost {
		if p.memory.Acquire(memory.Upstreams, cost-pl.cost) {
			pl.cost = cost
			return true
		}
		if !p.dropOldestLocked() {
			return false
		}
	}
	p.memory.Release(memory.Upstreams, pl.cost-cost)
	pl.cost = cost
	return true
}

// use charges for a connection that is in use, after a dial or when it was idle. The error is a *[problem.Upstream].
func (pl *place) use(conn net.Conn) error {
	cost := originCost
	if t, ok := conn.(*socket.Terminated); ok {
		cost = tlsCost(t.HandshakeBytes())
	}
	p := pl.pool
	p.mu.Lock()
	defer p.unlock()
	if pl.held && !p.chargeLocked(pl, cost) {
		return &problem.Upstream{Reason: name.ReasonLimit, Name: pl.key.shown(), Err: memory.ErrFull}
	}
	return nil
}

// most returns the maximum number of connections of the box.
func (p *boxPool) most() int { return int(p.box.Limits.Of(policy.LimitUpstreams, int64(p.max))) }

// roomLocked reports whether the box may have one more connection, by its own limit and by its share of the total.
func (p *boxPool) roomLocked() bool {
	mine := int(p.open.Load())
	return mine < p.most() && usage.Room(mine, int(p.all.open.Load()), p.total, int(p.all.sharers.Load()))
}

// errBoxGone refuses a request that outlived its box.
var errBoxGone = &policy.DeniedError{Decision: policy.Decision{Reason: name.ReasonUnknownBox}}

// crowded reports whether the box has so many open connections that idle clients should not keep one reserved.
func (p *boxPool) crowded() bool { return p.open.Load() > int64(p.most()/2) }

// release releases the place: its connection was closed, was never made, or is counted elsewhere from now on. Only the
// first call has an effect.
func (pl *place) release() {
	pl.pool.mu.Lock()
	defer pl.pool.unlock()
	pl.pool.releaseLocked(pl)
}

func (p *boxPool) releaseLocked(pl *place) {
	if !pl.held {
		return
	}
	pl.held = false
	p.open.Add(-1)
	p.all.open.Add(-1)
	p.memory.Release(memory.Upstreams, pl.cost)
	pl.cost = 0
	p.wakeLocked(pl)
	if pl.h2 != nil {
		p.forgetLocked(pl.h2)
	}
}

// dropLocked revokes the place and schedules its connection to be closed.
func (p *boxPool) dropLocked(pl *place) {
	p.releaseLocked(pl)
	p.dropped = append(p.dropped, pl)
}

func (p *boxPool) dropOldestLocked() bool {
	oldest := p.oldestLocked()
	if oldest != nil {
		p.dropLocked(oldest)
	}
	return oldest != nil
}

// oldestLocked returns the place of the longest idle connection, or nil.
func (p *boxPool) oldestLocked() *place {
	e := p.idle.Front()
	if e == nil {
		return nil
	}
	pl, ok := e.Value.(*place)
	if !ok {
		panic("proxy: a foreign value among the idle connections")
	}
	return pl
}

// rest returns a connection to the pool.
func (p *boxPool) rest(pl *place) {
	p.mu.Lock()
	defer p.unlock()
	p.restLocked(pl)
}

func (p *boxPool) restLocked(pl *place) {
	if p.closed || !pl.held || p.isElsewhere(pl) {
		p.dropLocked(pl)
		return
	}
	pl.since = time.Now()
	pl.at = p.idle.PushBack(pl)
	if pl.h1 != nil { // an idle HTTP/1.1 connection is not read, in contrast to HTTP/2
		p.kept[pl.key] = append(p.kept[pl.key], pl.h1)
		p.chargeLocked(pl, min(pl.cost, pl.h1.idleCost()))
	}
	if p.idle.Len() > MaxIdle {
		p.dropOldestLocked()
	}
	if p.sweep == nil {
		p.sweep = time.AfterFunc(idleTime, p.closeOld)
	}
}

// wakeLocked removes a connection from the idle ones, if it is one.
func (p *boxPool) wakeLocked(pl *place) {
	if pl.at == nil {
		return
	}
	p.idle.Remove(pl.at)
	pl.at = nil
	if pl.h1 == nil {
		return
	}
	list := p.kept[pl.key]
	if i := slices.Index(list, pl.h1); i >= 0 {
		list = slices.Delete(list, i, i+1)
	}
	if len(list) == 0 {
		delete(p.kept, pl.key)
		return
	}
	p.kept[pl.key] = list
}

// acquireIdle returns the most recently used idle HTTP/1.1 connection that is still usable, or nil.
func (p *boxPool) acquireIdle(key key, c *policy.Compiled) *Conn {
	for {
		u := p.pop(key)
		if u == nil || u.Usable(c) && u.place.use(u.NetConn) == nil {
			return u
		}
		u.Close()
	}
}

func (p *boxPool) pop(key key) *Conn {
	p.mu.Lock()
	defer p.unlock()
	list := p.kept[key]
	if len(list) == 0 {
		return nil
	}
	u := list[len(list)-1]
	p.wakeLocked(u.place)
	return u
}

// closeOld closes connections that have been idle for too long, and reschedules itself for the next one.
func (p *boxPool) closeOld() { p.closeIdle(idleTime) }

// closeIdle closes connections that have been idle for age or longer.
func (p *boxPool) closeIdle(age time.Duration) {
	p.mu.Lock()
	defer p.unlock()
	if p.sweep != nil {
		p.sweep.Stop()
		p.sweep = nil
	}
	for pl := p.oldestLocked(); pl != nil; pl = p.oldestLocked() {
		if left := age - time.Since(pl.since); left > 0 {
			p.sweep = time.AfterFunc(left, p.closeOld)
			return
		}
		p.dropLocked(pl)
	}
}

// isElsewhere reports whether a connection has a source address that the box's policy no longer uses, so that no request
// will use it.
func (p *boxPool) isElsewhere(pl *place) bool { return pl.key.from != p.box.Policy.Load().Source() }

// closeElsewhere closes the idle connections that isElsewhere selects.
func (p *boxPool) closeElsewhere() {
	p.mu.Lock()
	defer p.unlock()
	for e := p.idle.Front(); e != nil; {
		pl, ok := e.Value.(*place)
		e = e.Next() // dropping takes it out of the list
		if ok && p.isElsewhere(pl) {
			p.dropLocked(pl)
		}
	}
}

// close closes everything except HTTP/1.1 connections in use, which end with their clients, and prevents new ones.
func (p *boxPool) close() {
	p.mu.Lock()
	defer p.unlock()
	p.closed = true
	for p.dropOldestLocked() {
	}
	for _, host := range p.hosts {
		for _, u := range slices.Clone(host.conns) {
			p.dropLocked(u.place)
		}
	}
	clear(p.hosts)
	if p.sweep != nil {
		p.sweep.Stop()
		p.sweep = nil
	}
}
