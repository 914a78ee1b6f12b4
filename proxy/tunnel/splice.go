package tunnel

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/internal/socket"
	"boxgate/policy"
	"boxgate/proxy/contain"
)

// Counters are updated while a tunnel is open.
type Counters struct {
	In    *atomic.Int64 // bytes written to the client
	Out   *atomic.Int64 // bytes written to the server
	Pipes *atomic.Int64 // pipes in use by the client's box; at most a quarter of all
}

// Spec describes a tunnel.
type Spec struct {
	Client *net.TCPConn // nobody else may close it or read from it while the tunnel is open
	Box    policy.BoxID
	Owner  Owner
	Count  Counters
}

// Owner is told what becomes of a tunnel: either Ended or Failed is called, once and from any goroutine.
type Owner interface {
	// Ended says that both sides are closed; the error is nil after a graceful close. It must not block.
	Ended(error)
	// Opened says that a server to which the tunnel has connected by itself has taken the first bytes. It must not block
	// nor use the tunnel.
	Opened()
	// Failed says that such a server cannot be reached. The client is left as it was. It has a goroutine of its own.
	Failed(error)
	// Slow says that such a server has not accepted for a moment. Other servers may be tried: see [Tunnel.Yield]. It has a
	// goroutine of its own.
	Slow()
}

// Tunnel relays bytes both ways until both sides have closed, one has reset, or it has been idle for the idle timeout. An
// event loop moves the bytes, many of them in the kernel (splice(2)), so that an idle tunnel has two sockets and neither
// a goroutine nor a buffer.
type Tunnel struct {
	Spec
	pool *Pool
	loop *loop // set by Start
	slot slot  // in loop

	queued bool // it has another turn without an event; the loop's own

	mu     sync.Mutex
	ends   [2]end  // the client and the server
	flows  [2]flow // what is read from each of them
	dial   *dial   // nil once connected
	moved  time.Time
	timer  *time.Timer
	kept   bool // keep-alive is set
	closed bool
	report func() // tells how the tunnel closed; nil once it was called
}

// end is one side of a tunnel.
type end struct {
	conn    *net.TCPConn // nil if the tunnel made the socket
	fd      int          // -1 until Start: until then others may close conn
	in, out bool         // there may be something to read, room to write
	fin     bool         // its peer sends no more than what is there
	alert   bool         // a short read does not mean that nothing is left: there is an error, or urgent data
	delays  bool         // small writes still wait for acknowledgements (Nagle)
}

// The indices of the ends.
const client, server = 0, 1

// ErrIdle ends a tunnel that has been idle for the idle timeout.
var ErrIdle = errors.New("idle timeout")

// ErrLost ends a tunnel whose server has vanished.
var ErrLost = errors.New("the server acknowledges nothing any more")

// errClosed ends a tunnel that was cut.
var errClosed = errors.New("the tunnel was cut")

// Splice returns a tunnel between two sockets, which it owns from now on: both must be plain. It relays once
// [Tunnel.Start] was called.
func (p *Pool) Splice(s Spec, upstream *net.TCPConn) *Tunnel {
	t := &Tunnel{Spec: s, pool: p}
	t.ends[client] = end{conn: s.Client, fd: -1, out: true}
	t.ends[server] = end{conn: upstream, fd: -1, out: true}
	return t
}

// descriptor returns the descriptor of a socket, valid until that is closed, or -1.
func descriptor(c *net.TCPConn) int {
	fd := -1
	if raw, err := c.SyscallConn(); err == nil {
		_ = raw.Control(func(d uintptr) { fd = int(d) })
	}
	return fd
}

// Start begins to relay. From now on nobody but the tunnel may close its sockets.
func (t *Tunnel) Start() {
	defer t.settle()
	t.mu.Lock()
	if t.closed {
		return
	}
	for i := range t.ends {
		if e := &t.ends[i]; e.conn != nil {
			e.fd = descriptor(e.conn)
		}
	}
	t.moved = time.Now()
	wait := min(t.pool.idle, t.pool.LostAfter)
	if t.dial != nil {
		wait = min(t.dial.timeout, t.dial.patience)
	}
	t.timer = time.AfterFunc(wait, t.expire)
	if err := t.pool.join(t); err != nil {
		t.shut(err, true)
	}
}

// Close cuts the tunnel: both sides see a reset. It does not wait for [Owner.Ended].
func (t *Tunnel) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil
	}
	t.shut(errClosed, true)
	go t.tell(t.report) // the caller may hold a lock that it needs
	t.report = nil
	return nil
}

// expire ends the tunnel if it was idle, or did not connect in time.
func (t *Tunnel) expire() {
	defer t.settle()
	t.mu.Lock()
	if t.closed {
		return
	}
	if t.dial != nil {
		t.late()
		return
	}
	if left := t.pool.idle - time.Since(t.moved); left > 0 {
		if t.keepAlive(); t.isLost() {
			t.shut(ErrLost, true)
			return
		}
		t.timer.Reset(min(left, t.pool.LostAfter))
		return
	}
	t.shut(ErrIdle, true)
}

// isLost reports whether the server has vanished.
func (t *Tunnel) isLost() (lost bool) {
	e := &t.ends[server]
	if e.conn == nil {
		return socket.Unanswered(e.fd) >= t.pool.LostAfter
	}
	return socket.UnansweredBy(e.conn) >= t.pool.LostAfter
}

// turn reacts to an event of one end, and reports whether the tunnel has more to do that needs no further event.
func (t *Tunnel) turn(side int, what uint32) (again bool) {
	defer t.settle()
	t.mu.Lock()
	if t.closed {
		return false
	}
	if t.dial != nil && !t.connected(what) {
		return false
	}
	e := &t.ends[side]
	e.in = e.in || what&(unix.EPOLLIN|unix.EPOLLPRI|unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0
	e.out = e.out || what&(unix.EPOLLOUT|unix.EPOLLHUP|unix.EPOLLERR) != 0
	e.fin = e.fin || what&unix.EPOLLRDHUP != 0
	e.alert = e.alert || what&(unix.EPOLLPRI|unix.EPOLLERR) != 0
	if what != 0 && (t.queued || t.flows[client].bulk || t.flows[server].bulk) {
		return true // when those with less to move have had their turn
	}
	return t.relay()
}

// relay moves what can be moved at once, but no more than one turn of it.
func (t *Tunnel) relay() (again bool) {
	before := t.flows[client].total + t.flows[server].total
	for side := range t.flows {
		more, err := t.run(side)
		if err != nil {
			t.broken(side, err)
			return false
		}
		again = again || more
	}
	if t.flows[client].total+t.flows[server].total != before {
		t.moved = time.Now()
	}
	if t.flows[client].passed && t.flows[server].passed {
		t.shut(nil, false)
		return false
	}
	return again
}

// broken ends the tunnel after an error of the flow from one side. Both sides are reset, so that neither takes a partial
// transfer for a complete one.
func (t *Tunnel) broken(side int, err error) {
	if t.flows[1-side].passed && (errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET)) {
		err = nil // the side that had closed first did not wait for the other's last data
	}
	t.shut(err, true)
}

// shut closes both sides. What is to be reported is left to the caller.
func (t *Tunnel) shut(err error, reset bool) {
	t.leave()
	for i := range t.ends {
		t.ends[i].close(reset)
	}
	t.report = func() { t.Owner.Ended(err) }
}

// leave ends everything but the sockets.
func (t *Tunnel) leave() {
	t.closed = true
	if t.timer != nil {
		t.timer.Stop()
	}
	for i := range t.flows {
		t.flows[i].drop(t)
	}
	if t.loop != nil {
		t.loop.remove(t)
	}
}

// settle contains a panic, unlocks the tunnel and reports its end. It must be deferred before the tunnel is locked.
func (t *Tunnel) settle() {
	if v := recover(); v != nil {
		contain.Log(t.pool.log, "panic in a tunnel", t.Box, v)
		if !t.closed {
			t.shut(contain.ErrFault, true)
		}
	}
	report := t.report
	t.report = nil
	t.mu.Unlock()
	if report != nil {
		t.tell(report)
	}
}

// tell reports how the tunnel closed. A panic of its owner ends nothing else.
func (t *Tunnel) tell(report func()) {
	defer func() {
		if v := recover(); v != nil {
			contain.Log(t.pool.log, "panic at the end of a tunnel", t.Box, v)
		}
	}()
	report()
}

// close closes the socket, so that its peer sees a reset or the end.
func (e *end) close(reset bool) {
	fd := e.fd
	e.fd = -1
	switch {
	case e.conn != nil && reset:
		socket.Reset(e.conn) // not by its number: it may have been closed, and the number be another's
	case e.conn != nil:
		_ = e.conn.Close()
	default:
		if reset {
			_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
		}
		socket.Close(fd)
	}
}
