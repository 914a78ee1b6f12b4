package dns

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	mdns "github.com/miekg/dns"
)

const (
	maxIdleConns = 8
	maxIdleTime  = 8 * time.Second
)

// errMismatch is returned if the answer on a stream does not match the question.
var errMismatch = errors.New("upstream answered another question")

// overStream asks over TCP or TLS. If a kept connection turns out dead, it tries once more on a new one.
func (u *upstream) overStream(ctx context.Context, name string, qtype uint16) (*mdns.Msg, error) {
	q := question(name, qtype)
	if conn := u.idle.popConn(); conn != nil {
		if m, err := u.askStream(ctx, conn, q); err == nil || ctx.Err() != nil {
			return m, err
		}
	}
	conn, err := u.connect(ctx)
	if err != nil {
		return nil, err
	}
	return u.askStream(ctx, conn, q)
}

func (u *upstream) connect(ctx context.Context) (net.Conn, error) {
	conn, err := u.dial(ctx, "tcp", u.addr)
	if err != nil || u.tls == nil {
		return conn, err
	}
	secure := tls.Client(conn, u.tls)
	if err := secure.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, err
	}
	return secure, nil
}

// askStream sends q on conn and reads the answer. It keeps conn for reuse if possible, else closes it.
func (u *upstream) askStream(ctx context.Context, conn net.Conn, q *mdns.Msg) (*mdns.Msg, error) {
	m, err := roundTrip(ctx, conn, q)
	if err != nil || u.tls == nil || ctx.Err() != nil {
		conn.Close()
	} else {
		u.idle.pushConn(conn)
	}
	return m, err
}

func roundTrip(ctx context.Context, conn net.Conn, q *mdns.Msg) (*mdns.Msg, error) {
	defer interrupt(ctx, conn)()
	wire, err := q.Pack()
	if err != nil {
		return nil, err
	}
	if err := writeMessage(conn, wire); err != nil {
		return nil, err
	}
	wire, err = readMessage(conn, mdns.MaxMsgSize)
	if err != nil {
		return nil, err
	}
	m := new(mdns.Msg)
	if err := m.Unpack(wire); err != nil {
		return nil, fmt.Errorf("malformed answer: %w", err)
	}
	if !isAnswerTo(m, q) || m.Truncated {
		return nil, errMismatch
	}
	return m, nil
}

// errMessageSize is returned for a length prefix beyond the reader's limit.
var errMessageSize = errors.New("DNS message is too long")

// readMessage reads one length-prefixed message (RFC 1035, section 4.2.2).
func readMessage(r io.Reader, limit int) ([]byte, error) {
	var size [2]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint16(size[:]))
	if n > limit {
		return nil, errMessageSize
	}
	wire := make([]byte, n)
	if _, err := io.ReadFull(r, wire); err != nil {
		return nil, err
	}
	return wire, nil
}

// writeMessage writes length and message in one segment (RFC 7766, section 8).
func writeMessage(w io.Writer, wire []byte) error {
	_, err := w.Write(append(binary.BigEndian.AppendUint16(make([]byte, 0, len(wire)+2), uint16(len(wire))), wire...))
	return err
}

// idleConns keeps connections for reuse, the most recent first. The zero value is ready.
type idleConns struct {
	mu    sync.Mutex
	conns []idleConn // oldest first
}

type idleConn struct {
	net.Conn
	since time.Time
}

func (i *idleConns) popConn() net.Conn {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.expireLocked()
	if len(i.conns) == 0 {
		return nil
	}
	last := i.conns[len(i.conns)-1]
	i.conns = i.conns[:len(i.conns)-1]
	return last.Conn
}

func (i *idleConns) pushConn(conn net.Conn) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.expireLocked()
	if len(i.conns) == maxIdleConns {
		conn.Close()
		return
	}
	i.conns = append(i.conns, idleConn{conn, time.Now()})
}

func (i *idleConns) expireLocked() {
	for len(i.conns) > 0 && time.Since(i.conns[0].since) > maxIdleTime {
		i.conns[0].Close()
		i.conns = i.conns[1:]
	}
}
