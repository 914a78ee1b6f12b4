// Package live tracks the open connections of every box with their routes, and cuts those whose route is no longer allowed.
package live

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"boxgate/internal/socket"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy/route"
	"boxgate/proxy/usage"
)

// cutTimeout bounds how long Recheck and CloseBox wait for the handler of a connection that was cut.
const cutTimeout = 2 * time.Second

// Table contains the open connections of every box. The zero value is empty.
type Table struct {
	Total int // maximum connections of all boxes; 0: no limit

	mu    sync.Mutex
	open  int
	boxes map[policy.BoxID]map[*Conn]struct{}
}

// Conn is one open connection of a box, from accept until its handler returns.
type Conn struct {
	Box    *policy.Box
	client net.Addr           // the client's address
	cancel context.CancelFunc // of the handler's context
	done   chan struct{}      // closed when the handler has returned

	In, Out atomic.Int64 // bytes to and from the box

	mu      sync.Mutex
	cut     *policy.DeniedError // set when the gateway closed it: no socket can be attached after that
	stop    error               // the reason, if the policy did not cut it
	sockets []net.Conn
	tunnel  Tunnel        // owns the sockets if not nil
	route   *route.Routed // its route; nil if it has none or each request is routed separately
	watcher Requests
	needs   func(*policy.Compiled) bool // nil: a new policy is asked only for the route and the requests
}

// Requests are the requests in flight on a connection whose requests are judged one by one. Safe for concurrent use.
type Requests interface {
	// Recheck evaluates a new policy for the requests. If it denies one, the whole connection is cut.
	Recheck(*policy.Compiled) policy.Decision
	// Revoked reports whether a request was sent with a secret that has been revoked since.
	Revoked() bool
	// InFlight reports whether a request that the policy allows is in flight.
	InFlight() bool
}

// Tunnel owns the sockets of a connection whose bytes it relays. Its methods must not wait for the handler of the connection. Safe for
// concurrent use.
type Tunnel interface {
	// Close resets both sides.
	io.Closer
	// Cut stops the relaying and resets the client's side. finish, which must be called without locks of the table, resets the
	// server's; it is nil if the tunnel has ended before.
	Cut() (finish func())
}

// Add registers a connection of box from an address. It returns nil if the box has max of them, or has used up its share of
// the total. The caller must call Remove when its handler returns; cancel cancels the handler's context.
func (t *Table) Add(box *policy.Box, client net.Addr, max int, cancel context.CancelFunc) *Conn {
	t.mu.Lock()
	defer t.mu.Unlock()
	if mine := len(t.boxes[box.ID]); mine >= max || !usage.Room(mine, t.open, t.Total, len(t.boxes)) {
		return nil
	}
	if t.boxes == nil {
		t.boxes = map[policy.BoxID]map[*Conn]struct{}{}
	}
	if t.boxes[box.ID] == nil {
		t.boxes[box.ID] = map[*Conn]struct{}{}
	}
	l := &Conn{Box: box, client: client, cancel: cancel, done: make(chan struct{})}
	t.boxes[box.ID][l] = struct{}{}
	t.open++
	return l
}

// Remove removes a connection whose handler has returned.
func (t *Table) Remove(l *Conn) {
	t.mu.Lock()
	delete(t.boxes[l.Box.ID], l)
	t.open--
	if len(t.boxes[l.Box.ID]) == 0 {
		delete(t.boxes, l.Box.ID)
	}
	t.mu.Unlock()
	l.cancel()
	close(l.done)
}

// Of returns the open connections of a box.
func (t *Table) Of(box policy.BoxID) []*Conn {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]*Conn, 0, len(t.boxes[box]))
	for l := range t.boxes[box] {
		out = append(out, l)
	}
	return out
}

// Count returns the number of a box's open connections.
func (t *Table) Count(box policy.BoxID) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.boxes[box])
}

// Any reports whether a connection is open.
func (t *Table) Any() bool { return t.Open() > 0 }

// Open returns the number of open connections of all boxes.
func (t *Table) Open() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.open
}

// All returns every open connection.
func (t *Table) All() []*Conn {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []*Conn
	for _, conns := range t.boxes {
		for l := range conns {
			out = append(out, l)
		}
	}
	return out
}

// Attach registers c to be closed by a cut of the connection. If the connection was already cut, it closes c and returns
// false. Attach the bare TCP connection, so that closing it never waits for a peer.
func (l *Conn) Attach(c net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut != nil {
		socket.Reset(c)
		return false
	}
	l.sockets = append(l.sockets, c)
	return true
}

// AttachTunnel registers r to be closed by a cut, and passes the ownership of all attached sockets to it. If the connection was
// already cut, it closes r and returns false.
func (l *Conn) AttachTunnel(r Tunnel) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut != nil {
		_ = r.Close()
		return false
	}
	l.sockets, l.tunnel = nil, r
	return true
}

// Reclaim undoes [Conn.AttachTunnel] after r has given up its sockets, and attaches c. If the connection was cut, it closes c and
// returns false.
func (l *Conn) Reclaim(c net.Conn) bool {
	l.mu.Lock()
	l.tunnel = nil
	l.mu.Unlock()
	return l.Attach(c)
}

// Route returns the route of the connection, or false if it has none.
func (l *Conn) Route() (route.Routed, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.route == nil {
		return route.Routed{}, false
	}
	return *l.route, true
}

// Detach undoes [Conn.Attach]. Call it when c is closed or changes its owner.
func (l *Conn) Detach(c net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sockets = slices.DeleteFunc(l.sockets, func(o net.Conn) bool { return o == c })
}

// SetRoute sets the route of the connection. The zero value removes it.
func (l *Conn) SetRoute(rt route.Routed) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.route = nil
	if rt.Action != policy.Refuse {
		l.route = &rt
	}
}

// Watch sets the requests of a connection whose requests are judged one by one; nil removes them. Their methods are called
// without locks of the table held, possibly once more after their removal.
func (l *Conn) Watch(requests Requests) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.watcher = requests
}

// Need sets a condition that every later policy must meet, or the connection is cut. Afterwards, recheck the connection: the
// policy may have changed before.
func (l *Conn) Need(condition func(*policy.Compiled) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.needs = condition
}

// Client returns the client's address of the connection.
func (l *Conn) Client() net.Addr { return l.client }

// Passes reports whether the policy lets bytes pass now: the connection is spliced, or an allowed request is in flight on
// it. It is false while the first bytes are read, and between the requests of an intercepted connection.
func (l *Conn) Passes() bool {
	l.mu.Lock()
	cut, spliced, requests := l.cut != nil, l.tunnel != nil, l.watcher
	l.mu.Unlock()
	return !cut && (spliced || requests != nil && requests.InFlight())
}

// Denied returns the denial for which the gateway cut the connection, or nil.
func (l *Conn) Denied() *policy.DeniedError {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cut
}

// Stopped returns the reason why the gateway cut the connection, if that is not the policy, or nil.
func (l *Conn) Stopped() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stop
}

// Spliced reports whether a tunnel relays the connection unread: [Conn.Recheck] then waits no longer than reroute does.
func (l *Conn) Spliced() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.tunnel != nil && l.watcher == nil
}

// Recheck routes the connection again under the current policy, and cuts it if the policy no longer allows its route. If it
// cuts, it returns the function that finishes the cut, else nil. A tunnel has then stopped, but its server is reset by finish, so that
// of many connections all clients can be cut first.
//
// No swap of the policy is missed: the handler settles the route and then checks that the policy is unchanged, and a
// recheck starts after the swap.
func (l *Conn) Recheck(reroute func(*policy.Compiled, *policy.Box, route.Routed) policy.Route) (finish func()) {
	c := l.Box.Policy.Load()
	l.mu.Lock()
	was, watcher, needs := l.route, l.watcher, l.needs
	l.mu.Unlock()
	if was != nil {
		if why := was.OverruledBy(reroute(c, l.Box, *was)); why != nil {
			return l.cutBy(why)
		}
	}
	d := policy.Decision{Verdict: policy.Allow}
	if needs != nil && !needs(c) {
		d = policy.Decision{Reason: name.ReasonPolicyChanged, Version: route.Version(c)}
	} else if watcher != nil {
		d = watcher.Recheck(c)
	}
	if d.Allowed() {
		return nil
	}
	return l.cutBy(&policy.DeniedError{Request: policy.Request{Stage: policy.StageHTTP, Box: l.Box.ID}, Decision: d})
}

// cutBy cuts the connection because of the policy. It returns nil if it was cut before.
func (l *Conn) cutBy(why *policy.DeniedError) (finish func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut != nil {
		return nil
	}
	l.cut = why
	l.cancel()
	socket.Reset(l.sockets...)
	if l.tunnel != nil {
		finish = l.tunnel.Cut()
	}
	if finish == nil {
		finish = func() {}
	}
	return finish
}

// Revoked reports whether a request in progress was sent with a secret that has been revoked since.
func (l *Conn) Revoked() bool {
	l.mu.Lock()
	watcher := l.watcher
	l.mu.Unlock()
	return watcher != nil && watcher.Revoked()
}

// Reasons for cutting connections that the policy allows.
var (
	ErrShutdown   = errors.New("the gateway was shut down")
	ErrBoxRemoved = errors.New("the box was removed")
)

// Close resets every socket of the connection. Only the first call has an effect, and returns true. stop is the reason if
// the policy did not cut the connection.
func (l *Conn) Close(why *policy.DeniedError, stop error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut != nil {
		return false
	}
	l.cut, l.stop = why, stop
	l.cancel()
	socket.Reset(l.sockets...)
	if l.tunnel != nil {
		_ = l.tunnel.Close()
	}
	return true
}

// Wait returns when the handlers of the connections have returned, or after cutTimeout.
func Wait(conns []*Conn) {
	limit := time.NewTimer(cutTimeout)
	defer limit.Stop()
	for _, l := range conns {
		select {
		case <-l.done:
		case <-limit.C:
			return
		}
	}
}
