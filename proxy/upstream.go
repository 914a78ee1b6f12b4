package proxy

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/policy"
	"boxgate/proxy/h1"
)

const (
	upstreamIdle    = 60 * time.Second // an idle connection is kept for this long; servers commonly close after 60 to 75 s
	upstreamIdleMax = 64               // idle connections kept per box and host
	upstreamTick    = 5 * time.Second  // how often a wait for the upstream looks whether the client is still there
)

// upstreamKey says which requests may share a connection: those of one box to one host, judged in the same way.
type upstreamKey struct {
	box    policy.BoxID
	name   policy.Name
	addr   netip.Addr // of a destination that was allowed by its address; invalid where the name decided
	port   uint16
	secure bool
}

func keyOf(s *session, r *ruling) upstreamKey {
	k := upstreamKey{box: s.box.ID, name: r.request.Name, port: r.request.Port, secure: s.secure}
	if !r.byName {
		k.addr = r.request.Addr
	}
	return k
}

// upstream is one HTTP/1.1 connection to an origin server. One goroutine at a time uses it, but for writing while another
// reads.
type upstream struct {
	key  upstreamKey
	conn net.Conn
	in   h1.Reader

	tcp    *net.TCPConn
	raw    syscall.RawConn
	poll   [1]unix.PollFd
	quiet  bool
	look   func(fd uintptr)
	dial   policy.Request   // the address it goes to
	judged *policy.Compiled // the last policy that allowed dial
	served int              // requests sent before this one
	dirty  bool             // an exchange began and has not ended cleanly: never to be used again
	idle   time.Time        // since when it is in the pool
}

// newUpstream takes over a connection that was just dialled under the policy c.
func newUpstream(key upstreamKey, conn net.Conn, box *policy.Box) (*upstream, error) {
	tcp, ok := bareTCP(conn)
	if !ok {
		return nil, errors.New("upstream is no TCP connection")
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil, err
	}
	to, err := netip.ParseAddrPort(tcp.RemoteAddr().String())
	if err != nil {
		return nil, err
	}
	u := &upstream{key: key, conn: conn, tcp: tcp, raw: raw, dial: policy.Request{
		Stage: policy.StageDial, Box: box.ID, Name: key.name, Addr: to.Addr().Unmap(), Port: to.Port(), Protocol: policy.TCP,
	}}
	u.look = func(fd uintptr) {
		u.poll[0] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN | unix.POLLRDHUP}
		n, err := unix.Poll(u.poll[:], 0)
		u.quiet = n == 0 && err == nil
	}
	return u, nil
}

// usable reports whether an idle connection can carry another request: nothing has come from the server, neither bytes
// nor the end, and the policy in force still allows its address.
func (u *upstream) usable(c *policy.Compiled) bool {
	if u.judged != c && !c.Decide(u.dial).Allowed() {
		return false
	}
	u.judged, u.quiet = c, false
	return !u.dirty && len(u.in.Bytes()) == 0 && u.raw.Control(u.look) == nil && u.quiet
}

func (u *upstream) close() {
	u.in.Release()
	_ = u.tcp.Close() // not u.conn: a TLS close_notify could wait for a peer that does not read
}

// abort ends the connection under a goroutine that still uses it.
func (u *upstream) abort() { _ = u.tcp.Close() }

// write sends b; an error is an *[upstreamWriteError].
func (u *upstream) write(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	if _, err := u.conn.Write(b); err != nil {
		return &upstreamWriteError{err}
	}
	return nil
}

// upstreamWriteError says that it was the upstream that ended an upload. Its answer may still be readable.
type upstreamWriteError struct{ error }

func (e *upstreamWriteError) Unwrap() error { return e.error }

// patient reads from an upstream for as long as its client is there.
type patient struct {
	conn net.Conn
	ctx  context.Context
	gone func() bool
}

var errClientGone = errors.New("the client has gone")

// begin must be called before the reads of one exchange.
func (r *patient) begin() { _ = r.conn.SetReadDeadline(time.Now().Add(upstreamTick)) }

func (r *patient) Read(b []byte) (int, error) {
	for {
		n, err := r.conn.Read(b)
		if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		if err := r.ctx.Err(); err != nil {
			return 0, err
		}
		if r.gone() {
			return 0, errClientGone
		}
		r.begin()
	}
}

// clientGone returns a check whether the client closed its connection while it waits for an answer. Where TLS is
// terminated the end of the TCP stream says so; on plain HTTP a client may close its sending side and still listen.
func clientGone(s *session) func() bool {
	tcp, ok := bareTCP(s.client)
	if !ok {
		return func() bool { return false }
	}
	return func() bool {
		raw, err := tcp.SyscallConn()
		if err != nil {
			return true
		}
		gone := true
		_ = raw.Control(func(fd uintptr) {
			info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
			gone = err != nil || info.State == unix.BPF_TCP_CLOSE || (s.secure && info.State == unix.BPF_TCP_CLOSE_WAIT)
		})
		return gone
	}
}

// upstreamPool keeps idle HTTP/1.1 connections. The zero value is empty. Safe for concurrent use.
type upstreamPool struct {
	mu    sync.Mutex
	idle  map[upstreamKey][]*upstream // the one used last at the end
	sweep *time.Timer                 // runs while there are any
}

// take returns the connection used last that is still usable, or nil.
func (p *upstreamPool) take(key upstreamKey, c *policy.Compiled) *upstream {
	for {
		u := p.pop(key)
		if u == nil || u.usable(c) {
			return u
		}
		u.close()
	}
}

func (p *upstreamPool) pop(key upstreamKey) *upstream {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := p.idle[key]
	if len(list) == 0 {
		return nil
	}
	u := list[len(list)-1]
	list[len(list)-1] = nil
	p.setLocked(key, list[:len(list)-1])
	return u
}

func (p *upstreamPool) setLocked(key upstreamKey, list []*upstream) {
	if len(list) == 0 {
		delete(p.idle, key)
		return
	}
	p.idle[key] = list
}

// put keeps a connection whose last exchange ended cleanly, and closes any other: what its server still sends would be
// taken for the answer to the next request.
func (p *upstreamPool) put(u *upstream) {
	if u.dirty {
		u.close()
		return
	}
	u.in.Release()
	u.in.Source = nil
	u.idle = time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.idle == nil {
		p.idle = map[upstreamKey][]*upstream{}
	}
	if len(p.idle[u.key]) >= upstreamIdleMax {
		u.close()
		return
	}
	p.idle[u.key] = append(p.idle[u.key], u)
	if p.sweep == nil {
		p.sweep = time.AfterFunc(upstreamIdle, p.closeOld)
	}
}

// closeOld closes what has been idle for long and comes again while anything is left.
func (p *upstreamPool) closeOld() {
	p.mu.Lock()
	defer p.mu.Unlock()
	limit := time.Now().Add(-upstreamIdle)
	p.filterLocked(func(u *upstream) bool { return u.idle.After(limit) })
	p.sweep = nil
	if len(p.idle) > 0 {
		p.sweep = time.AfterFunc(upstreamIdle/2, p.closeOld)
	}
}

// closeBox drops every idle connection of a box.
func (p *upstreamPool) closeBox(box policy.BoxID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.filterLocked(func(u *upstream) bool { return u.key.box != box })
}

func (p *upstreamPool) filterLocked(keep func(*upstream) bool) {
	for key, list := range p.idle {
		kept := list[:0]
		for _, u := range list {
			if keep(u) {
				kept = append(kept, u)
				continue
			}
			u.close()
		}
		clear(list[len(kept):])
		p.setLocked(key, kept)
	}
}
