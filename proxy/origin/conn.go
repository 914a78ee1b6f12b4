package origin

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"

	"boxgate/internal/memory"
	"boxgate/policy"
	"boxgate/proxy/h1"
	"boxgate/proxy/socket"
)

// Conn is one HTTP/1.1 connection to an origin server. One goroutine at a time uses it, but for writing while another
// reads.
type Conn struct {
	key     key
	place   *place
	NetConn net.Conn
	In      h1.Reader
	holds   memory.Claim // for in

	TCP    *net.TCPConn
	reader clientAwareReader
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
func newUpstream(pl *place, conn net.Conn, box *policy.Box) (u *Conn, err error) {
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
	u = &Conn{key: pl.key, place: pl, NetConn: conn, TCP: tcp, raw: raw, dial: dial}
	u.holds.Open(pl.pool.memory, memory.Buffers)
	u.In.Memory = memory.Doubled{Claim: &u.holds}
	pl.h1 = u
	u.look = func(fd uintptr) {
		u.poll[0] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN | unix.POLLRDHUP}
		n, err := unix.Poll(u.poll[:], 0)
		u.quiet = n == 0 && err == nil
	}
	return u, nil
}

// dialRequest is the question that the policy answered when conn was dialled.
func dialRequest(key key, conn net.Conn, box *policy.Box) (policy.Request, error) {
	to, err := netip.ParseAddrPort(conn.RemoteAddr().String())
	return policy.Request{
		Stage: policy.StageDial, Box: box.ID, Name: key.name, Addr: to.Addr().Unmap(), Port: to.Port(), Protocol: policy.TCP,
	}, err
}

// Serves reports whether the connection leads where a target does.
func (u *Conn) Serves(to Target) bool { return u.key == to.key() }

// Addr is the address that the connection leads to.
func (u *Conn) Addr() netip.Addr { return u.dial.Addr }

// AllowedBy reports whether a policy was asked about the address, and allowed it.
func (u *Conn) AllowedBy(c *policy.Compiled) bool { return u.judged == c }

// Crowded reports whether the box has so many connections open that none should be kept for a client that is silent.
func (u *Conn) Crowded() bool { return u.place.pool.crowded() }

// begin begins an exchange, of which the connection is not fit for another until [Conn.Done]. It reports whether there was one
// before.
func (u *Conn) Begin() (again bool) {
	u.served++
	u.dirty = true
	return u.served > 1
}

// Again reports whether the connection has carried an exchange.
func (u *Conn) Again() bool { return u.served > 0 }

// Done ends an exchange in good order.
func (u *Conn) Done() {
	u.dirty = false
	u.In.Release()
}

// ReadFor has the connection read from for as long as ctx lasts and gone, called now and then, reports false. The next calls of
// u.in.Fill fail with the error of ctx, or errClientGone, otherwise.
func (u *Conn) ReadFor(ctx context.Context, gone func() bool) {
	u.reader = clientAwareReader{conn: u.NetConn, ctx: ctx, gone: gone}
	u.In.Source = &u.reader
	u.reader.begin()
}

// Uncount gives back the place of a connection that counts with its client's from now on, as every tunnel does.
func (u *Conn) Uncount() { u.place.release() }

// Usable reports whether an idle connection can carry another request: nothing has come from the server, neither bytes
// nor the end, and the policy in force still allows its address.
func (u *Conn) Usable(c *policy.Compiled) bool {
	if u.judged != c && !c.Decide(u.dial).Allowed() {
		return false
	}
	u.judged, u.quiet = c, false
	return !u.dirty && len(u.In.Bytes()) == 0 && u.raw.Control(u.look) == nil && u.quiet
}

// Keep lets other requests of the box use the connection if its last exchange ended cleanly, and closes any other: what
// its server still sends would be taken for the answer to the next request.
func (u *Conn) Keep() {
	if u.dirty {
		u.Close()
		return
	}
	u.In.Release()
	u.In.Source = nil
	u.place.pool.rest(u.place)
}

// Close ends the connection. It waits for no peer.
func (u *Conn) Close() {
	u.In.Release()
	_ = u.TCP.Close() // not u.conn: a TLS close_notify could wait for a peer that does not read
	u.place.release()
}

// Abort ends the connection under a goroutine that still uses it.
func (u *Conn) Abort() { _ = u.TCP.Close() }

// write sends b; an error is an *[WriteError].
func (u *Conn) Write(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	if _, err := u.NetConn.Write(b); err != nil {
		return &WriteError{err}
	}
	return nil
}

// WriteError says that it was the upstream that ended an upload. Its answer may still be readable.
type WriteError struct{ error }

func (e *WriteError) Unwrap() error { return e.error }
