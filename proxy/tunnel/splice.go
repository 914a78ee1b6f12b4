// Package tunnel relays bytes between a client and an origin server, either unread or decrypted, until both sides have
// closed or the tunnel has been idle for the idle timeout.
package tunnel

import (
	"context"
	"errors"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"boxgate/internal/socket"
	"boxgate/policy"
	"boxgate/proxy/recovery"
	"boxgate/relay"
)

// Counters are updated while a tunnel is open.
type Counters struct {
	In    *atomic.Int64 // bytes written to the client
	Out   *atomic.Int64 // bytes written to the server
	Pipes *atomic.Int64 // pipes in use by the client's box; at most a quarter of all
}

// Spec describes a tunnel.
type Spec struct {
	Client *net.TCPConn // must not be closed or read by others while the tunnel is open
	Box    policy.BoxID
	Owner  Owner
	Count  Counters
}

// Owner receives the events of a tunnel. Either Ended or Failed is called, once and from any goroutine.
type Owner interface {
	// Ended is called when both sides are closed; the error is nil after a graceful close. It must not block.
	Ended(error)
	// Opened is called when the server of [Pool.Dial] has received the first bytes. It must not block or use
	// the tunnel.
	Opened()
	// Failed is called in its own goroutine when such a server cannot be reached. The client is left untouched.
	Failed(error)
	// Slow is called in its own goroutine when such a server has not accepted within 250 ms. The owner may try other
	// servers: see [Tunnel.Yield].
	Slow()
}

// Tunnel relays bytes both ways until both sides have closed, one has reset, or it has been idle for the idle timeout. An
// event loop moves the bytes, in bulk through the kernel (splice(2)), so an idle tunnel has two sockets and neither a
// goroutine nor a buffer.
type Tunnel struct {
	Spec
	pool *Pool
	loop *loop // set by Start
	slot slot  // in loop

	queued bool // has another turn without an event; used by the loop only

	mu           sync.Mutex
	ends         [2]endpoint // the client and the server
	flows        [2]flow     // data from each end to the other
	dial         *dial       // nil once connected
	lastMoved    time.Time
	timer        *time.Timer
	keepAliveSet bool // keep-alive is set
	closed       bool
	report       func() // calls the owner when the tunnel has closed; nil after that
}

// endpoint is one side of a tunnel.
type endpoint struct {
	conn               *net.TCPConn // nil for a socket that Dial made
	fd                 int          // -1 until Start, because others may close conn before
	readable, writable bool         // may be readable, writable
	fin                bool         // the peer sends no more than the buffered data
	alert              bool         // an error or urgent data is pending, so a short read does not mean an empty socket
	delays             bool         // Nagle's algorithm is on
}

// Indices of the ends.
const client, server = 0, 1

// ErrIdle closes a tunnel after the idle timeout.
var ErrIdle = errors.New("idle timeout")

// ErrLost closes a tunnel whose server has vanished.
var ErrLost = errors.New("the server acknowledges nothing any more")

// errClosed closes a tunnel that was cut.
var errClosed = errors.New("the tunnel was cut")

// Splice returns a tunnel between two plain TCP sockets and takes ownership of them. It relays from [Tunnel.Start] on.
func (p *Pool) Splice(s Spec, upstream *net.TCPConn) *Tunnel {
	t := &Tunnel{Spec: s, pool: p}
	t.ends[client] = endpoint{conn: s.Client, fd: -1, writable: true}
	t.ends[server] = endpoint{conn: upstream, fd: -1, writable: true}
	return t
}

// descriptor returns the file descriptor of a socket, valid until the socket is closed, or -1.
func descriptor(c *net.TCPConn) int {
	fd := -1
	if raw, err := c.SyscallConn(); err == nil {
		_ = raw.Control(func(d uintptr) { fd = int(d) })
	}
	return fd
}

// Start starts to relay. From now on only the tunnel may close its sockets.
func (t *Tunnel) Start() {
	defer t.unlockAndReport()
	t.mu.Lock()
	if t.closed {
		return
	}
	for i := range t.ends {
		if e := &t.ends[i]; e.conn != nil {
			e.fd = descriptor(e.conn)
		}
	}
	t.lastMoved = time.Now()
	wait := min(t.pool.idle, t.pool.LostAfter)
	if t.dial != nil {
		wait = min(t.dial.timeout, t.dial.slowAfter)
	}
	t.timer = time.AfterFunc(wait, t.expire)
	if err := t.pool.addToLoop(t); err != nil {
		t.closeBoth(err, true)
	}
}

// Close cuts the tunnel: both sides receive a reset. It does not wait for [Owner.Ended].
func (t *Tunnel) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil
	}
	t.closeBoth(errClosed, true)
	go t.runReport(t.report) // in a goroutine, because the caller may hold a lock that the owner needs
	t.report = nil
	return nil
}

// Cut stops the relaying and resets the client's side. finish, which must be called, resets the server's, and does not wait for
// [Owner.Ended] either. It is nil if the tunnel has ended before.
func (t *Tunnel) Cut() (finish func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil
	}
	t.release()
	t.ends[client].close(true)
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.ends[server].close(true)
		go t.runReport(func() { t.Owner.Ended(errClosed) })
	}
}

// expire is called by the timer. It closes the tunnel if it is idle, or if its server is lost or did not accept in time.
func (t *Tunnel) expire() {
	defer t.unlockAndReport()
	t.mu.Lock()
	if t.closed {
		return
	}
	if t.dial != nil {
		t.onSlowDial()
		return
	}
	if left := t.pool.idle - time.Since(t.lastMoved); left > 0 {
		if t.keepAlive(); t.isLost() {
			t.closeBoth(ErrLost, true)
			return
		}
		t.timer.Reset(min(left, t.pool.LostAfter))
		return
	}
	t.closeBoth(ErrIdle, true)
}

// isLost reports whether the server has vanished.
func (t *Tunnel) isLost() (lost bool) {
	e := &t.ends[server]
	if e.conn == nil {
		return socket.Unanswered(e.fd) >= t.pool.LostAfter
	}
	return socket.UnansweredBy(e.conn) >= t.pool.LostAfter
}

// handleEvent handles an event of one end. It reports whether the tunnel has more to do without a further event.
func (t *Tunnel) handleEvent(side int, what uint32) (again bool) {
	defer t.unlockAndReport()
	t.mu.Lock()
	if t.closed {
		return false
	}
	if t.dial != nil && !t.connected(what) {
		return false
	}
	e := &t.ends[side]
	e.readable = e.readable || what&(unix.EPOLLIN|unix.EPOLLPRI|unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0
	e.writable = e.writable || what&(unix.EPOLLOUT|unix.EPOLLHUP|unix.EPOLLERR) != 0
	e.fin = e.fin || what&unix.EPOLLRDHUP != 0
	e.alert = e.alert || what&(unix.EPOLLPRI|unix.EPOLLERR) != 0
	if what != 0 && (t.queued || t.flows[client].bulk || t.flows[server].bulk) {
		return true // after the tunnels with less to move
	}
	return t.relay()
}

// relay moves the available data, at most one turn of each flow.
func (t *Tunnel) relay() (again bool) {
	before := t.flows[client].total + t.flows[server].total
	for side := range t.flows {
		more, err := t.move(side)
		if err != nil {
			t.closeBroken(side, err)
			return false
		}
		again = again || more
	}
	if t.flows[client].total+t.flows[server].total != before {
		t.lastMoved = time.Now()
	}
	if t.flows[client].endPassed && t.flows[server].endPassed {
		t.closeBoth(nil, false)
		return false
	}
	return again
}

// closeBroken closes the tunnel after an error of the flow from one side. Both sides are reset, so that neither mistakes a
// partial transfer for a complete one.
func (t *Tunnel) closeBroken(side int, err error) {
	if t.flows[1-side].endPassed && (errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET)) {
		err = nil // the side that closed first did not wait for the other's last data
	}
	t.closeBoth(err, true)
}

// closeBoth closes both sides and sets report. The caller calls it.
func (t *Tunnel) closeBoth(err error, reset bool) {
	t.release()
	for i := range t.ends {
		t.ends[i].close(reset)
	}
	t.report = func() { t.Owner.Ended(err) }
}

// release releases everything but the sockets.
func (t *Tunnel) release() {
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

// unlockAndReport recovers from a panic, unlocks the tunnel and calls report. It must be deferred before the tunnel is locked.
func (t *Tunnel) unlockAndReport() {
	if v := recover(); v != nil {
		recovery.Log(t.pool.log, "panic in a tunnel", t.Box, v)
		if !t.closed {
			t.closeBoth(recovery.ErrFault, true)
		}
	}
	report := t.report
	t.report = nil
	t.mu.Unlock()
	if report != nil {
		t.runReport(report)
	}
}

// runReport calls report and recovers from a panic of the owner.
func (t *Tunnel) runReport(report func()) {
	defer func() {
		if v := recover(); v != nil {
			recovery.Log(t.pool.log, "panic at the end of a tunnel", t.Box, v)
		}
	}()
	report()
}

// close closes the socket, with a reset or gracefully.
func (e *endpoint) close(reset bool) {
	fd := e.fd
	e.fd = -1
	switch {
	case e.conn != nil && reset:
		socket.Reset(e.conn) // not by fd: if others closed conn, the number may be reused
	case e.conn != nil:
		_ = e.conn.Close()
	default:
		if reset {
			_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
		}
		socket.Close(fd)
	}
}

// Pool runs tunnels and provides their pipes. Safe for concurrent use.
type Pool struct {
	// LostAfter is how long a server may leave sent data unacknowledged. It must not change after the pool is used.
	LostAfter time.Duration

	idle  time.Duration
	log   *zap.Logger
	pipes pipePool

	mu     sync.Mutex
	loops  []*loop // started on demand, at most one for each processor
	next   int     // index of the loop for the next tunnel
	closed bool
}

// NewPool returns a pool whose tunnels are closed after being idle for idle. At most pipes pipes, two descriptors each, are
// in use at a time; further tunnels copy.
func NewPool(idle time.Duration, pipes int, log *zap.Logger) *Pool {
	return &Pool{LostAfter: socket.LostAfter, idle: idle, log: log, pipes: pipePool{max: pipes}}
}

// Pipes returns the number of pipes in use.
func (p *Pool) Pipes() int {
	p.pipes.mu.Lock()
	defer p.pipes.mu.Unlock()
	return p.pipes.lent
}

// Close closes the unused pipes and provides no more. Open tunnels continue by copying.
func (p *Pool) Close() {
	p.pipes.close()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, l := range p.loops {
		l.retire()
	}
	p.loops = nil
}

// addToLoop adds a tunnel to a loop, which watches it from then on.
func (p *Pool) addToLoop(t *Tunnel) error {
	if err := p.assign(t); err != nil {
		return err
	}
	if t.dial == nil {
		if err := t.loop.watch(t, client); err != nil {
			return err
		}
	}
	return t.loop.watch(t, server)
}

// assign gives a tunnel a slot in the next loop, in turn.
func (p *Pool) assign(t *Tunnel) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := runtime.GOMAXPROCS(0); len(p.loops) < n || p.closed {
		l, err := newLoop()
		if err != nil && len(p.loops) == 0 {
			return err
		}
		if err == nil && p.closed {
			l.add(t)
			l.retire() // ends with this tunnel
			return nil
		}
		if err == nil {
			p.loops = append(p.loops, l)
		}
	}
	p.next = (p.next + 1) % len(p.loops)
	p.loops[p.next].add(t)
	return nil
}

// Relay copies bytes between two ends until both directions have ended, or one has and the other stays silent. When it
// returns, neither end is in use.
func (p *Pool) Relay(client, server relay.End, box policy.BoxID) error {
	t := relay.Tunnel{
		Client: client, Server: server, Kill: socket.Reset,
		Half: func() func() bool {
			return time.AfterFunc(relay.Rest, func() { socket.Abort(client.Conn, server.Conn) }).Stop
		},
		Panicked: func(v any) { recovery.Log(p.log, "panic in an exchange", box, v) },
	}
	idle := p.WatchIdle(t.Abort, client.Read, server.Read)
	defer idle.Stop()
	var lost atomic.Bool
	defer p.WatchLost(server.Conn, func() { lost.Store(true); t.Abort() })()
	if err := t.Run(context.Background()); !lost.Load() {
		return err
	}
	return ErrLost
}
