package proxy

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

// liveTable holds the open connections of every box. The zero value is empty.
type liveTable struct {
	total int // connections of all boxes at most; 0: no limit

	mu    sync.Mutex
	open  int
	boxes map[policy.BoxID]map[*liveConn]struct{}
}

// liveConn is one open connection of a box, from accept until its handler has returned.
type liveConn struct {
	box    *policy.Box
	cancel context.CancelFunc // of the handler's context
	done   chan struct{}      // closed when the handler has returned

	in, out atomic.Int64 // bytes towards the box and from it

	mu      sync.Mutex
	cut     *policy.DeniedError // set when the gateway closed it; nothing may be attached any more
	stop    error               // why it was closed, if no policy did it
	sockets map[net.Conn]struct{}
	passes  route.Routed // as what it passes; refused where nothing does, or where each request is routed by itself
	watcher func(*policy.Compiled) policy.Decision
}

// add registers a connection of box, or returns nil when the box has max of them already, or its share of all there may be. The caller removes it when
// its handler returns; cancel ends the handler's context.
func (t *liveTable) add(box *policy.Box, max int, cancel context.CancelFunc) *liveConn {
	t.mu.Lock()
	defer t.mu.Unlock()
	if mine := len(t.boxes[box.ID]); mine >= max || !usage.Room(mine, t.open, t.total, len(t.boxes)) {
		return nil
	}
	if t.boxes == nil {
		t.boxes = map[policy.BoxID]map[*liveConn]struct{}{}
	}
	if t.boxes[box.ID] == nil {
		t.boxes[box.ID] = map[*liveConn]struct{}{}
	}
	l := &liveConn{box: box, cancel: cancel, done: make(chan struct{}), sockets: map[net.Conn]struct{}{}}
	t.boxes[box.ID][l] = struct{}{}
	t.open++
	return l
}

func (t *liveTable) remove(l *liveConn) {
	t.mu.Lock()
	delete(t.boxes[l.box.ID], l)
	t.open--
	if len(t.boxes[l.box.ID]) == 0 {
		delete(t.boxes, l.box.ID)
	}
	t.mu.Unlock()
	l.cancel()
	close(l.done)
}

// of returns the connections a box has open now.
func (t *liveTable) of(box policy.BoxID) []*liveConn {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]*liveConn, 0, len(t.boxes[box]))
	for l := range t.boxes[box] {
		out = append(out, l)
	}
	return out
}

// all returns every open connection.
func (t *liveTable) all() []*liveConn {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []*liveConn
	for _, conns := range t.boxes {
		for l := range conns {
			out = append(out, l)
		}
	}
	return out
}

// attach makes the connection's fate that of c: a cut closes it. It reports false, and closes c, when the connection
// was cut already. The bare TCP connection is what must be attached, so that closing it never waits for a peer.
func (l *liveConn) attach(c net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut != nil {
		socket.Reset(c)
		return false
	}
	l.sockets[c] = struct{}{}
	return true
}

// detach undoes attach: c has been closed, or is now another's.
func (l *liveConn) detach(c net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.sockets, c)
}

// settle says how the connection passes from now on; the zero value that it does not.
func (l *liveConn) settle(rt route.Routed) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.passes = rt
}

// watch sets the check of what is in flight in a connection whose requests are judged one by one; nil takes it away.
// A check that denies cuts the whole connection. It is called without any lock of the table held, from other
// goroutines, perhaps once more after it was taken away.
func (l *liveConn) watch(check func(*policy.Compiled) policy.Decision) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.watcher = check
}

// denied returns why the gateway cut the connection, or nil.
func (l *liveConn) denied() *policy.DeniedError {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cut
}

// stopped returns why the gateway cut the connection if no policy did, or nil.
func (l *liveConn) stopped() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stop
}

// recheck asks the policy in force how the connection may pass, and cuts it if that is no longer the way it does. It reports
// whether it cut.
//
// The handler routes a connection, settles it, and looks whether the policy is still the same: one that was swapped in
// between is seen either there or by [Proxy.Recheck], which begins after the swap.
func (l *liveConn) recheck(reroute func(*policy.Compiled, *policy.Box, route.Routed) policy.Route) bool {
	c := l.box.Policy.Load()
	l.mu.Lock()
	was, watcher := l.passes, l.watcher
	l.mu.Unlock()
	if was.Action != policy.Refuse {
		if why := was.OverruledBy(reroute(c, l.box, was)); why != nil {
			return l.close(why, nil)
		}
	}
	if watcher != nil {
		if d := watcher(c); !d.Allowed() {
			return l.close(&policy.DeniedError{Request: policy.Request{Stage: policy.StageHTTP, Box: l.box.ID}, Decision: d}, nil)
		}
	}
	return false
}

// Why connections are cut that the policy allows.
var (
	errShutdown   = errors.New("the gateway was shut down")
	errBoxRemoved = errors.New("the box was removed")
)

// close resets every socket of the connection. Only the first call does, and reports true. stop says why, if no policy
// asks for it.
func (l *liveConn) close(why *policy.DeniedError, stop error) bool {
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

// wait returns when the handlers of the connections have returned, or after cutTimeout.
func wait(conns []*liveConn) {
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
