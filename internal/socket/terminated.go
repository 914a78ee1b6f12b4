package socket

import (
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"sync/atomic"
)

const (
	// LongestRecord is the maximum size of a TLS record, in bytes.
	LongestRecord = 18 << 10
	// handshakeRest bounds the handshake bytes of a client beyond two ClientHellos (RFC 8446, section 4.1.4: a
	// HelloRetryRequest).
	handshakeRest = 8 << 10
	// ServerHandshake bounds the handshake bytes of a server. Certificate chains with their SCTs are smaller.
	ServerHandshake = 32 << 10
)

// The memory of a TLS connection to a server, in bytes: keys; a buffer for handshake messages, which doubles as it
// grows and never shrinks; a buffer for a record and the start of the next, likewise; certificates, raw and parsed.
const (
	serverKeys = 16 << 10
	// ServerCost is the most memory used until the handshake is complete.
	ServerCost = serverKeys + 2*ServerHandshake + 2*LongestRecord + 2*ServerHandshake
)

// errHandshakeSize ends a connection whose client sends longer handshake messages than any client needs. crypto/tls
// buffers up to 256 KB of an alleged certificate message, at any time, before it rejects it as unexpected.
var errHandshakeSize = errors.New("the client sends a message of the handshake that is too long")

// errServerSize is the same for servers, which do send certificates: real chains have a tenth of that.
var errServerSize = errors.New("the server sends a message of the handshake that is too long")

// Terminated is the gateway's side of a TLS connection. It bounds the bytes read before the handshake completes or
// content is returned. Create it with [Terminate] or [Initiate]. Safe for one reader and one writer at a time.
type Terminated struct {
	*tls.Conn
	wire bounded
}

// Terminate returns the server side of a connection whose client begins with a ClientHello of at most hello bytes. Call
// [Terminated.Established] after the handshake.
func Terminate(client net.Conn, hello int, cfg *tls.Config) *Terminated {
	t := &Terminated{wire: bounded{Conn: client, limit: 2*hello + handshakeRest, laterLimit: LongestRecord, err: errHandshakeSize}}
	t.wire.direct, _ = client.(*Direct)
	t.Conn = tls.Server(&t.wire, cfg)
	return t
}

// Initiate returns the client side of a connection to a server. Call [Terminated.Established] after the handshake. The
// server may renegotiate if cfg allows it. Initiate changes cfg, which must not be shared.
func Initiate(server net.Conn, cfg *tls.Config) *Terminated {
	t, verify := &Terminated{}, cfg.VerifyConnection
	t.wire.open(server)
	t.wire.start = starts.Get().(*[maxStart]byte)[:0]
	cfg.VerifyConnection = func(cs tls.ConnectionState) error {
		t.wire.handshakes++
		if verify == nil {
			return nil
		}
		return verify(cs)
	}
	t.Conn = tls.Client(&t.wire, cfg)
	return t
}

// Start returns the first bytes received from the server, up to 2 KiB: enough for a TLS 1.2 ServerHello. It returns nil
// after the handshake, and on the server side.
func (t *Terminated) Start() []byte { return t.wire.start }

// HasReceived reports whether the server has sent anything. Safe for concurrent use.
func (t *Terminated) HasReceived() bool { return t.wire.received.Load() }

// Established must be called when the handshake is complete.
func (t *Terminated) Established() { t.wire.established() }

// Read reads content.
func (t *Terminated) Read(p []byte) (int, error) {
	n, err := t.Conn.Read(p)
	if n > 0 {
		t.wire.content()
	}
	return n, err
}

// HandshakeBytes returns the number of bytes received during the handshake.
func (t *Terminated) HandshakeBytes() int { return t.wire.handshakeBytes }

// IdleCost returns the memory that TLS with a server keeps while idle, in bytes.
func (t *Terminated) IdleCost() int {
	certificates, gathered := t.wire.handshakeBytes, max(t.wire.handshakeBytes, int(t.wire.longest.Load()))
	if t.wire.handshakes > 1 {
		certificates = gathered
	}
	return serverKeys + 2*certificates + 2*min(gathered, ServerHandshake) + 2*min(gathered, LongestRecord)
}

// ToServer is a connection to a server for another TLS implementation, bounded as by [Initiate]. Call
// [ToServer.Established] after the handshake. Safe for one reader, one writer and one caller of [ToServer.Content] at a time.
type ToServer struct{ *bounded }

// NewToServer returns a ToServer for a connection that has carried no TLS bytes.
func NewToServer(server net.Conn) ToServer {
	b := &bounded{}
	b.open(server)
	return ToServer{b}
}

// Established must be called when the handshake is complete, except for messages after the server's certificate.
func (s ToServer) Established() { s.established() }

// Content must be called after content was read.
func (s ToServer) Content() { s.content() }

// bounded is the connection below crypto/tls. A read returns at most one record, because crypto/tls buffers all bytes
// beyond one. After content it returns at most two, which halves the system calls of a long body.
type bounded struct {
	net.Conn
	direct         *Direct      // Conn if it is a *Direct: saves two interface calls per record
	limit          int          // limit of sinceContent
	strict         bool         // reads exceed limit by at most a byte
	sinceContent   atomic.Int64 // bytes read since the last content; pgconn reads in another goroutine while it writes slowly
	longest        atomic.Int64 // largest sinceContent before content
	handshakeBytes int          // bytes of the handshake
	handshakes     int          // handshakes completed with a server
	laterLimit     int          // limit after the handshake
	received       atomic.Bool  // the server has sent data
	start          []byte       // first bytes read, until the handshake is complete; nil to keep none
	err            error
}

// maxStart is the capacity of start in bytes.
const maxStart = 2 << 10

// starts keeps the buffers for start of completed handshakes.
var starts = sync.Pool{New: func() any { return new([maxStart]byte) }}

func (b *bounded) open(server net.Conn) {
	b.Conn, b.limit, b.strict, b.err = server, ServerHandshake, true, errServerSize
	b.direct, _ = server.(*Direct)
}

// established resets the limits after the handshake. A server may renegotiate with slightly more bytes, or send
// tickets.
func (b *bounded) established() {
	if b.handshakeBytes = int(b.sinceContent.Load()); b.strict {
		b.strict, b.laterLimit = false, b.handshakeBytes+LongestRecord
	}
	if b.limit = b.laterLimit; cap(b.start) == maxStart {
		starts.Put((*[maxStart]byte)(b.start[:maxStart]))
		b.start = nil
	}
	b.sinceContent.Store(0)
}

func (b *bounded) content() {
	if got := b.sinceContent.Swap(0); got > b.longest.Load() {
		b.longest.Store(got)
	}
}

// Read reads from the peer.
func (b *bounded) Read(p []byte) (int, error) {
	since := int(b.sinceContent.Load())
	if since > b.limit {
		return 0, b.err
	}
	n := min(len(p), LongestRecord)
	switch {
	case b.strict:
		n = min(n, b.limit-since+1)
	case since == 0:
		n = min(len(p), 2*LongestRecord)
	}
	var err error
	if b.direct != nil {
		n, err = b.direct.Read(p[:n])
	} else {
		n, err = b.Conn.Read(p[:n])
	}
	b.sinceContent.Add(int64(n))
	if b.start != nil {
		b.received.Store(b.received.Load() || n > 0)
		b.start = append(b.start, p[:min(n, cap(b.start)-len(b.start))]...)
	}
	return n, err
}

// Write writes to the peer.
func (b *bounded) Write(p []byte) (int, error) {
	if b.direct != nil {
		return b.direct.Write(p)
	}
	return b.Conn.Write(p)
}

// NetConn returns the connection below.
func (b *bounded) NetConn() net.Conn { return b.Conn }
