// Package authlimit limits connections of clients without an API key, so that they cannot occupy all connections of a
// listener.
package authlimit

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"boxgate/internal/peernet"
	"boxgate/internal/socket"
)

// Listener limits the connections that have not presented an API key. A connection above the limit evicts the oldest
// connection of the peer that has the most, so a peer that opens many closes its own, and clients with a key get in. The
// networks that one IPv6 customer can have ([peernet]) count as peers as well, a /56 for half of its connections, a /48 for a
// quarter. A connection that has presented a key is counted by [Keyed] instead.
type Listener struct {
	net.Listener
	// Keyed counts the connections that presented a key; nil: they are not counted. Set it before the first Accept.
	Keyed *Keyed

	most int

	open atomic.Int64 // open connections, with and without a key

	mu     sync.Mutex
	byPeer map[string][]*conn   // by peer, oldest first
	wider  map[netip.Prefix]int // connections of the /56 and /48 networks of IPv6 peers
	n      int
}

// New returns a Listener that allows up to most connections without a key.
func New(ln net.Listener, most int) *Listener {
	return &Listener{Listener: ln, most: most, byPeer: map[string][]*conn{}, wider: map[netip.Prefix]int{}}
}

// conn is one connection, counted until it is closed or has presented a key. It has no NetConn method, so that its server
// cannot close the socket without calling Close.
type conn struct {
	net.Conn
	listener *Listener
	peer     string
	networks [peernet.Levels]netip.Prefix // of an IPv6 peer elsewhere; otherwise zero
	closed   atomic.Bool
	keyed    keyed

	asked       sync.Once
	credentials Credentials // of the client of a Unix socket, once asked
	unknown     error
}

// Drain implements [socket.Drainer] if the listener below does.
func (l *Listener) Drain() { socket.Drain(l.Listener) }

// Accept implements [net.Listener].
func (l *Listener) Accept() (net.Conn, error) {
	accepted, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: accepted, listener: l}
	c.peer, c.networks = peerOf(accepted)
	l.open.Add(1)
	if evicted := l.add(c); evicted != nil {
		_ = evicted.Conn.Close() // its server notices, and calls Close
	}
	return c, nil
}

// add counts a connection, and returns the evicted one, if any.
func (l *Listener) add(c *conn) (evicted *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.byPeer[c.peer] = append(l.byPeer[c.peer], c)
	l.widenLocked(c, 1)
	if l.n++; l.n <= l.most {
		return nil
	}
	evicted = l.oldestLocked()
	l.removeLocked(evicted)
	return evicted
}

// oldestLocked returns the oldest connection of the peer with the most, counting networks. In a network that has the most, that is the
// one of the narrower network with the most there: a neighbour with two connections stays if somebody else has many networks.
func (l *Listener) oldestLocked() *conn {
	var most, level int // level of the network that has the most; 0: the peer itself
	var first *conn
	for _, conns := range l.byPeer {
		for i := range conns[0].networks {
			if n := l.heldLocked(conns, i) << (peernet.Levels - 1 - i); n > most {
				most, first, level = n, conns[0], i
			}
		}
	}
	for ; level > 0; level-- {
		around, n := first.networks[level], 0
		for _, conns := range l.byPeer {
			if held := l.heldLocked(conns, level-1); conns[0].networks[level] == around && held > n {
				first, n = conns[0], held
			}
		}
	}
	return first
}

// heldLocked returns the number of connections of a peer, given its own, for level 0, and otherwise of its network of that level; 0 for no
// network.
func (l *Listener) heldLocked(conns []*conn, level int) int {
	if level == 0 {
		return len(conns)
	}
	return l.wider[conns[0].networks[level]]
}

func (l *Listener) remove(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.removeLocked(c)
}

func (l *Listener) removeLocked(c *conn) {
	conns := l.byPeer[c.peer]
	i := slices.Index(conns, c)
	if i < 0 {
		return
	}
	l.n--
	l.widenLocked(c, -1)
	if l.byPeer[c.peer] = slices.Delete(conns, i, i+1); len(l.byPeer[c.peer]) == 0 {
		delete(l.byPeer, c.peer)
	}
}

// widenLocked counts a connection for the wider networks of its peer.
func (l *Listener) widenLocked(c *conn, by int) {
	for _, network := range c.networks[1:] {
		if !network.IsValid() {
			return
		}
		if l.wider[network] += by; l.wider[network] == 0 {
			delete(l.wider, network)
		}
	}
}

// Known ends the counting of a connection that the listener has accepted, for servers that know clients by other means than an API
// key. They must limit such connections themselves.
func (l *Listener) Known(accepted net.Conn) {
	if c, ok := accepted.(*conn); ok && c.listener == l {
		l.remove(c)
	}
}

// Held returns the number of open connections, with and without a key.
func (l *Listener) Held() int { return int(l.open.Load()) }

// Close implements [net.Conn].
func (c *conn) Close() error {
	if c.closed.CompareAndSwap(false, true) {
		c.listener.open.Add(-1)
	}
	c.listener.remove(c)
	c.uncountKey()
	return c.Conn.Close()
}

// SyscallConn gives access to the socket, for [syscall.Conn].
func (c *conn) SyscallConn() (syscall.RawConn, error) {
	below, ok := c.Conn.(syscall.Conn)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	return below.SyscallConn()
}

type connKey struct{}

// ConnContext makes a request's connection available to [Keyed.Shown]; it is an [http.Server.ConnContext] callback.
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, below(c))
}

// below returns the connection that a listener has accepted, below TLS.
func below(c net.Conn) net.Conn {
	if secured, ok := c.(interface{ NetConn() net.Conn }); ok {
		return secured.NetConn()
	}
	return c
}

// UserOf identifies the user of this host who has sent a request to a server with [ConnContext]. It returns "" if that is not known,
// or the request came from another host.
func UserOf(ctx context.Context) string {
	c, ok := ctx.Value(connKey{}).(*conn)
	if !ok || !strings.HasPrefix(c.peer, userPrefix) {
		return ""
	}
	return c.peer
}

// userPrefix begins what identifies a user of this host.
const userPrefix = "user "

// peerOf identifies the peer of a connection: the user on this host, or else the network of its address, with the networks around
// it. It runs for every connection before the next is accepted, so it must be cheap.
func peerOf(c net.Conn) (peer string, networks [peernet.Levels]netip.Prefix) {
	switch c := c.(type) {
	case *net.UnixConn:
		if peer, err := credentialsOf(c); err == nil {
			return userPrefix + strconv.Itoa(peer.UID), networks
		}
	case *net.TCPConn:
		remote, ok := c.RemoteAddr().(*net.TCPAddr)
		local, okLocal := c.LocalAddr().(*net.TCPAddr)
		if !ok || !okLocal {
			break
		}
		if uid, here := socketUser(remote.AddrPort(), local.AddrPort()); here {
			return userPrefix + strconv.FormatUint(uint64(uid), 10), networks
		}
		network := peernet.Network(remote.AddrPort().Addr())
		return network.String(), peernet.All(network)
	}
	return "unknown", networks
}

// socketUser returns the owner of the other end of a TCP connection, if that is on this host and still open. It asks the
// kernel for that socket only; a dump would iterate over all sockets.
func socketUser(remote, local netip.AddrPort) (uid uint32, here bool) {
	from, to := remote.Addr().Unmap(), local.Addr().Unmap()
	question := make(diagQuestion, diagQuestionSize)
	question[0], question[1] = unix.AF_INET, unix.IPPROTO_TCP
	if from.Is6() {
		question[0] = unix.AF_INET6
	}
	binary.NativeEndian.PutUint32(question[4:], ^uint32(0)) // any state
	binary.BigEndian.PutUint16(question[8:], remote.Port())
	binary.BigEndian.PutUint16(question[10:], local.Port())
	copy(question[12:28], from.AsSlice())
	copy(question[28:44], to.AsSlice())
	binary.NativeEndian.PutUint64(question[48:], ^uint64(0)) // INET_DIAG_NOCOOKIE
	request := nl.NewNetlinkRequest(nl.SOCK_DIAG_BY_FAMILY, 0)
	request.AddData(question)
	answers, err := request.Execute(unix.NETLINK_INET_DIAG, 0)
	if err != nil || len(answers) != 1 || len(answers[0]) < diagAnswerSize {
		return 0, false
	}
	answer := answers[0]
	// For a remote peer the kernel may return a listener on the peer's port, which is not the other end. A socket closed
	// by its program has no inode, and its user is unknown.
	if binary.BigEndian.Uint16(answer[6:]) != local.Port() || binary.NativeEndian.Uint32(answer[68:]) == 0 {
		return 0, false
	}
	return binary.NativeEndian.Uint32(answer[64:]), true
}

// diagQuestion is a struct inet_diag_req_v2 (linux/inet_diag.h); the answer is a struct inet_diag_msg.
type diagQuestion []byte

const (
	diagQuestionSize = 56
	diagAnswerSize   = 72
)

// Len implements [nl.NetlinkRequestData].
func (q diagQuestion) Len() int { return len(q) }

// Serialize implements [nl.NetlinkRequestData].
func (q diagQuestion) Serialize() []byte { return q }
