package proxy

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/internal/memory"
	"boxgate/policy"
	"boxgate/proxy/h1"
	"boxgate/proxy/socket"
)

// upstreamTick is how often a wait for the upstream looks whether the client is still there.
const upstreamTick = 5 * time.Second

// upstreamKey says which requests of a box may share a connection: those to one host, judged in the same way.
type upstreamKey struct {
	name   policy.Name
	addr   netip.Addr // of a destination that was allowed by its address; invalid where the name decided
	port   uint16
	secure bool
}

func keyOf(s *session, r *ruling) upstreamKey {
	k := upstreamKey{name: r.request.Name, port: r.request.Port, secure: s.secure}
	if !r.byName {
		k.addr = r.request.Addr
	}
	return k
}

// upstream is one HTTP/1.1 connection to an origin server. One goroutine at a time uses it, but for writing while another
// reads.
type upstream struct {
	key   upstreamKey
	place *place
	conn  net.Conn
	in    h1.Reader
	holds memory.Claim // for in

	tcp    *net.TCPConn
	raw    syscall.RawConn
	poll   [1]unix.PollFd
	quiet  bool
	look   func(fd uintptr)
	dial   policy.Request   // the address it goes to
	judged *policy.Compiled // the last policy that allowed dial
	served int              // requests sent before this one
	dirty  bool             // an exchange began and has not ended cleanly: never to be used again
}

// newUpstream takes over a connection that was just dialled, and its place. On an error both are given back.
func newUpstream(pl *place, conn net.Conn, box *policy.Box) (u *upstream, err error) {
	defer func() {
		if u == nil {
			socket.Abort(conn)
			pl.release()
		}
	}()
	tcp, ok := socket.TCP(conn)
	if !ok {
		return nil, errors.New("upstream is no TCP connection")
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil, err
	}
	dial, err := dialRequest(pl.key, conn, box)
	if err != nil {
		return nil, err
	}
	u = &upstream{key: pl.key, place: pl, conn: conn, tcp: tcp, raw: raw, dial: dial}
	u.holds.Open(pl.pool.memory, memory.Buffers)
	u.in.Memory = memory.Doubled{Claim: &u.holds}
	pl.h1 = u
	u.look = func(fd uintptr) {
		u.poll[0] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN | unix.POLLRDHUP}
		n, err := unix.Poll(u.poll[:], 0)
		u.quiet = n == 0 && err == nil
	}
	return u, nil
}

// dialRequest is the question that the policy answered when conn was dialled.
func dialRequest(key upstreamKey, conn net.Conn, box *policy.Box) (policy.Request, error) {
	to, err := netip.ParseAddrPort(conn.RemoteAddr().String())
	return policy.Request{
		Stage: policy.StageDial, Box: box.ID, Name: key.name, Addr: to.Addr().Unmap(), Port: to.Port(), Protocol: policy.TCP,
	}, err
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

// keep lets other requests of the box use the connection if its last exchange ended cleanly, and closes any other: what
// its server still sends would be taken for the answer to the next request.
func (u *upstream) keep() {
	if u.dirty {
		u.close()
		return
	}
	u.in.Release()
	u.in.Source = nil
	u.place.pool.rest(u.place)
}

func (u *upstream) close() {
	u.in.Release()
	_ = u.tcp.Close() // not u.conn: a TLS close_notify could wait for a peer that does not read
	u.place.release()
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

// clientAwareReader reads from an upstream for as long as its client is there.
type clientAwareReader struct {
	conn net.Conn
	ctx  context.Context
	gone func() bool
}

var errClientGone = errors.New("the client has gone")

// begin must be called before the reads of one exchange.
func (r *clientAwareReader) begin() { _ = r.conn.SetReadDeadline(time.Now().Add(upstreamTick)) }

func (r *clientAwareReader) Read(b []byte) (int, error) {
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
	tcp, ok := socket.TCP(s.client)
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
