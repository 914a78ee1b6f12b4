package sshd

import (
	"context"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	gossh "golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"boxgate/internal/sshflow"
	"boxgate/proxy/recovery"
)

// maxChannels is the maximum number of open channels of one connection: sessions, and connections to ports.
const maxChannels = 32

// The kinds of channels, in metrics.
const (
	kindSession = "session"
	kindForward = "direct-tcpip"
)

// client is one connection.
type client struct {
	server *Server
	conn   net.Conn
	gate   Gate
	flow   *sshflow.Flow
	ctx    context.Context // ends when the connection is cut or closed
	end    context.CancelFunc
	login  Login  // set by the handshake
	how    string // likewise
	tried  bool   // likewise: a password or a key was refused

	slots    chan struct{} // has an element for each open channel
	channels sync.WaitGroup

	mu      sync.Mutex
	leaving bool // no new channels
	ports   map[uint16]*portUse
	sshConn gossh.Conn // nil until logged in
}

// cut closes the connection and ends everything that it runs.
func (c *client) cut() {
	c.end()
	_ = c.flow.Close()
	_ = c.conn.Close()
}

// contained wraps f so that a panic in it cuts this connection only.
func (c *client) contained(f func()) func() {
	return func() {
		defer recovery.Panic(c.server.cfg.Log, "", c.cut)
		f()
	}
}

// unreadTime is how long a connection may be unread before [client.vanished] looks at it.
const unreadTime = 5 * time.Second

// vanished reports whether the client has closed the connection while commands do not read their input. Then the flow reads no further,
// so the end of the connection is behind data that is not read.
func (c *client) vanished() bool {
	if c.flow.Idle() < unreadTime {
		return false
	}
	socket, ok := c.conn.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return false
	}
	gone := false
	_ = raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		gone = err == nil && info.State != unix.BPF_TCP_ESTABLISHED
	})
	return gone
}

// serve serves the connection until it ends.
func (c *client) serve() {
	conn, channels, requests, ok := c.handshake()
	if !ok {
		return
	}
	defer c.server.forget(c)
	if !c.admit() {
		return
	}
	c.mu.Lock()
	c.sshConn, c.slots, c.ports = conn, make(chan struct{}, maxChannels), map[uint16]*portUse{}
	c.mu.Unlock()
	var rest sync.WaitGroup
	rest.Go(c.contained(func() { // keepalives and requests to listen: a refusal answers a keepalive as well as a success does
		sshflow.ForEach(c.flow, requests, func(r *gossh.Request) { _ = r.Reply(false, nil) })
	}))
	rest.Go(c.contained(func() { sshflow.ForEach(c.flow, channels, c.open) }))
	_ = conn.Wait()
	c.cut()
	rest.Wait()
	c.channels.Wait()
	c.closePorts()
}

// leave closes the connection once it has no channels, and refuses new ones.
func (c *client) leave() {
	c.mu.Lock()
	conn, again := c.sshConn, c.leaving
	c.leaving = true
	c.mu.Unlock()
	if again {
		return
	}
	go func() {
		c.channels.Wait()
		if conn != nil {
			_ = conn.Close()
		}
		c.cut()
	}()
}

// begin registers a channel, unless the connection is to have no more.
func (c *client) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.leaving || c.server.loops.Retired() {
		return false
	}
	c.channels.Add(1)
	return true
}

// open serves a channel that the client opens, in the background.
func (c *client) open(channel gossh.NewChannel) {
	kind := channel.ChannelType()
	if !slices.Contains([]string{kindSession, kindForward}, kind) {
		_ = channel.Reject(gossh.Prohibited, "boxgate: only sessions and connections to ports of the box's own loopback interface are served")
		return
	}
	select {
	case c.slots <- struct{}{}:
	default:
		_ = channel.Reject(gossh.ResourceShortage, "boxgate: the connection has too many channels; close some, or connect again")
		return
	}
	if !c.begin() {
		<-c.slots
		_ = channel.Reject(gossh.ConnectionFailed, "boxgate: the gateway is being stopped or replaced; connect again")
		return
	}
	open := c.server.channels.WithLabelValues(kind)
	open.Inc()
	go c.contained(func() {
		defer c.channels.Done()
		defer open.Dec()
		defer func() { <-c.slots }()
		if kind == kindForward {
			c.forward(channel)
		} else {
			c.session(channel)
		}
	})()
}

// input is the data that the client sends on a channel.
type input struct {
	gossh.Channel
	stream *sshflow.Stream
}

// Read implements [io.Reader].
func (i input) Read(b []byte) (int, error) {
	i.stream.CaughtUp()
	n, err := i.Channel.Read(b)
	i.stream.Consumed(n, n < len(b))
	return n, err
}

// drain discards what the client sends until the channel ends: unread data would stay in memory.
func drain(from interface{ Read([]byte) (int, error) }, stream *sshflow.Stream) {
	buf := make([]byte, 4<<10)
	for {
		stream.CaughtUp()
		n, err := from.Read(buf)
		stream.Consumed(n, n < len(buf))
		if err != nil {
			return
		}
	}
}
