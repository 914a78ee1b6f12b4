package proxy

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"boxgate/policy"
	"boxgate/proxy/socket"
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

	mu       sync.Mutex
	cut      *policy.DeniedError // set when the gateway closed it; nothing may be attached any more
	stop     error               // why it was closed, if no policy did it
	sockets  map[net.Conn]struct{}
	requests []policy.Request // what must stay allowed for the connection to stay open
	passage  passage
	watcher  func(*policy.Compiled) policy.Decision
}

// add registers a connection of box, or returns nil when the box has max of them already, or its share of all there may be. The caller removes it when
// its handler returns; cancel ends the handler's context.
func (t *liveTable) add(box *policy.Box, max int, cancel context.CancelFunc) *liveConn {
	t.mu.Lock()
	defer t.mu.Unlock()
	if mine := len(t.boxes[box.ID]); mine >= max || !roomFor(mine, t.open, t.total, len(t.boxes)) {
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

// require adds a request that must stay allowed for the connection to stay open.
func (l *liveConn) require(r policy.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.requests = append(l.requests, r)
}

// passage says how a connection passes. The zero value says nothing yet.
type passage struct {
	spliced bool // bytes pass unread: a rule that wants interception cuts it
	asked   bool // it went to the address the box asked for, whatever its name: see borrows
	nameDue bool // it is, or may be to a lenient server, TLS or HTTP, and names no host
	unread  bool // no name is known to be in what the client says
}

// settle replaces what was required so far and says how the connection will pass.
func (l *liveConn) settle(r policy.Request, how passage) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.requests, l.passage = []policy.Request{r}, how
}

// unsettle takes settle and require back: what they were about has not come to be.
func (l *liveConn) unsettle() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.requests, l.passage = nil, passage{}
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

// recheck asks the policy in force about everything the connection stands on and cuts it if any of it is denied by now.
// It reports whether it cut.
//
// Whoever adds a requirement decides first, adds it, and rechecks: a policy that was swapped in between is seen either
// here or by [Proxy.Recheck], which begins after the swap.
func (l *liveConn) recheck(known knowledge) bool {
	c := l.box.Policy.Load()
	l.mu.Lock()
	requests, how, watcher := l.requests, l.passage, l.watcher
	l.mu.Unlock()
	for _, r := range requests {
		d := c.Decide(r)
		if d.Allowed() && how.evades(c, r, d, known) {
			d = policy.Decision{Reason: policy.ReasonPolicyChanged, Version: d.Version}
		}
		if !d.Allowed() {
			return l.close(&policy.DeniedError{Request: r, Decision: d}, nil)
		}
	}
	if watcher != nil {
		if d := watcher(c); !d.Allowed() {
			return l.close(&policy.DeniedError{Request: policy.Request{Stage: policy.StageHTTP, Box: l.box.ID}, Decision: d}, nil)
		}
	}
	return false
}

// grants reports whether a box was told, and may still believe, that a name has an address.
type grants func(policy.BoxID, policy.Name, netip.Addr) bool

// knowledge is what is known of the addresses of a box's connections.
type knowledge struct {
	granted grants
	ruled   func(*policy.Compiled, netip.AddrPort) bool // see Proxy.ruled
}

// evades reports whether a connection that is still allowed would have to pass in another way by now: intercepted, or to
// an address of its name.
func (how passage) evades(c *policy.Compiled, r policy.Request, d policy.Decision, known knowledge) bool {
	switch {
	case how.spliced && c.Intercepts(r.Name, r.Port):
		return true
	case how.spliced && how.unread && r.Stage == policy.StageDial && !borne(d, r.Port) && known.ruled(c, netip.AddrPortFrom(r.Addr, r.Port)):
		return true
	case how.spliced && how.nameDue && c.NamesDecide(r.Port) && d.Reason != policy.ReasonAllowedCIDR:
		return true
	case !how.asked:
		return false
	case !r.Name.IsZero():
		return borrows(r, d, known.granted)
	}
	return how.spliced && known.ruled(c, netip.AddrPortFrom(r.Addr, r.Port))
}

// borrows reports whether a connection that went to an address as it was asked for is allowed by now under its name alone,
// and nothing shows that the address is one of the name's: the name may be a mere claim.
func borrows(dialled policy.Request, d policy.Decision, granted grants) bool {
	return d.DialName && dialled.Stage == policy.StageDial && !granted(dialled.Box, dialled.Name, dialled.Addr)
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
