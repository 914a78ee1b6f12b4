package proxy

import (
	"io"
	"net"

	"boxgate/internal/memory"
	"boxgate/internal/socket"
	"boxgate/proxy/live"
)

// replayConn returns the peeked bytes before reading more, and counts the bytes in both directions. Safe for one reader
// and one writer at a time.
type replayConn struct {
	net.Conn // TCP, read and written directly
	head     []byte
	claim    *memory.Claim // for head
	live     *live.Conn
}

// newReplay returns a replayConn that takes ownership of head, the first bytes of the connection.
func newReplay(c *conn, head []byte) *replayConn {
	return &replayConn{Conn: socket.NewDirect(c.tcp), head: head, claim: &c.firstClaim, live: c.live}
}

// Read returns the peeked bytes first.
func (c *replayConn) Read(b []byte) (int, error) {
	if len(c.head) > 0 {
		n := copy(b, c.head)
		if c.head = c.head[n:]; len(c.head) == 0 {
			c.head = nil // do not keep the buffer for the life of the connection
			c.claim.Release()
		}
		c.live.Out.Add(int64(n))
		return n, nil
	}
	n, err := c.Conn.Read(b)
	c.live.Out.Add(int64(n))
	return n, err
}

// Write writes to the client.
func (c *replayConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.live.In.Add(int64(n))
	return n, err
}

// ReadFrom copies r to the client, with splice(2) if r allows it.
func (c *replayConn) ReadFrom(r io.Reader) (int64, error) {
	n, err := io.Copy(c.Conn, r)
	c.live.In.Add(n)
	return n, err
}

// CloseWrite closes the sending side.
func (c *replayConn) CloseWrite() error {
	if t, ok := socket.TCP(c.Conn); ok {
		return t.CloseWrite()
	}
	return net.ErrClosed
}

// NetConn returns the underlying connection. Reading from it skips the peeked bytes.
func (c *replayConn) NetConn() net.Conn { return c.Conn }
