// Package live knows the open connections of every box and how each passes, and cuts those that may no longer pass that way.
package live

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"boxgate/policy"
	"boxgate/proxy/route"
	"boxgate/proxy/socket"
	"boxgate/proxy/usage"
)

// cutTimeout bounds how long Recheck and CloseBox wait for the handler of a connection whose sockets they closed.
const cutTimeout = 2 * time.Second

// Table holds the open connections of every box. The zero value is empty.
type Table struct {
	Total int // connections of all boxes at most; 0: no limit

	mu    sync.Mutex
	open  int
	boxes map[policy.BoxID]map[*Conn]struct{}
}

// Conn is one open connection of a box, from accept until its handler has returned.
type Conn struct {
	Box    *policy.Box
	cancel context.CancelFunc // of the handler's context
	done   chan struct{}      // closed when the handler has returned

	In, Out atomic.Int64 // bytes towards the box and from it

	mu      sync.Mutex
	cut     *policy.DeniedError // set when the gateway closed it; nothing may be attached any more
	stop    error               // why it was closed, if no policy did it
	sockets map[net.Conn]struct{}
	passes  route.Routed // as what it passes; refused where nothing does, or where each request is routed by itself
	watcher func(*policy.Compiled) policy.Decision
}

// Add registers a connection of box, or returns nil when the box has max of them already, or its share of all there may be.
// The caller removes it when its handler returns; cancel ends the handler's context.
func (t *Table) Add(box *policy.Box, max int, cancel context.CancelFunc) *Conn {
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
	l := &Conn{Box: box, cancel: cancel, done: make(chan struct{}), sockets: map[net.Conn]struct{}{}}
	t.boxes[box.ID][l] = struct{}{}
	t.open++
	return l
}

// Remove takes out a connection whose handler has returned.
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

// Of returns the connections a box has open now.
func (t *Table) Of(box policy.BoxID) []*Conn {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]*Conn, 0, len(t.boxes[box]))
	for l := range t.boxes[box] {
		out = append(out, l)
	}
	return out
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

// Attach makes the connection's fate that of c: a cut closes it. It reports false, and closes c, when the connection
// was cut already. The bare TCP connection is what must be attached, so that closing it never waits for a peer.
func (l *Conn) Attach(c net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut != nil {
		socket.Reset(c)
		return false
	}
	l.sockets[c] = struct{}{}
	return true
}

// Detach undoes [Conn.Attach]: c has been closed, or is now another's.
func (l *Conn) Detach(c net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.sockets, c)
}

// Settle says how the connection passes from now on; the zero value that it does not.
func (l *Conn) Settle(rt route.Routed) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.passes = rt
}

// Watch sets the check of what is in flight in a connection whose requests are judged one by one; nil takes it away.
// A check that denies cuts the whole connection. It is called without any lock of the table held, from other
// goroutines, perhaps once more after it was taken away.
func (l *Conn) Watch(check func(*policy.Compiled) policy.Decision) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.watcher = check
}

// Denied returns why the gateway cut the connection, or nil.
func (l *Conn) Denied() *policy.DeniedError {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cut
}

// Stopped returns why the gateway cut the connection if no policy did, or nil.
func (l *Conn) Stopped() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stop
}

// Recheck asks the policy in force how the connection may pass, and cuts it if that is no longer the way it does. It reports
// whether it cut.
//
// The handler routes a connection, settles it, and looks whether the policy is still the same: one that was swapped in
// between is seen either there or by a recheck, which begins after the swap.
func (l *Conn) Recheck(reroute func(*policy.Compiled, *policy.Box, route.Routed) policy.Route) bool {
	c := l.Box.Policy.Load()
	l.mu.Lock()
	was, watcher := l.passes, l.watcher
	l.mu.Unlock()
	if was.Action != policy.Refuse {
		if why := was.OverruledBy(reroute(c, l.Box, was)); why != nil {
			return l.Close(why, nil)
		}
	}
	if watcher != nil {
		if d := watcher(c); !d.Allowed() {
			return l.Close(&policy.DeniedError{Request: policy.Request{Stage: policy.StageHTTP, Box: l.Box.ID}, Decision: d}, nil)
		}
	}
	return false
}

// Why connections are cut that the policy allows.
var (
	ErrShutdown   = errors.New("the gateway was shut down")
	ErrBoxRemoved = errors.New("the box was removed")
)

// Close resets every socket of the connection. Only the first call does, and reports true. stop says why, if no policy
// asks for it.
func (l *Conn) Close(why *policy.DeniedError, stop error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut != nil {
		return false
	}
	l.cut, l.stop = why, stop
	l.cancel()
	for c := range l.sockets {
		socket.Reset(c)
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
