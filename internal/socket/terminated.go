package socket

import (
	"crypto/tls"
	"errors"
	"net"
	"sync/atomic"
)

const (
	// LongestRecord is the most that a record of TLS has, in bytes.
	LongestRecord = 18 << 10
	// handshakeRest is the most that a client sends in a handshake after its first ClientHello and one more of the same length.
	handshakeRest = 8 << 10
	// ServerHandshake is the most that a server sends in a handshake, in bytes. Chains of certificates, with what proves their logging,
	// have less.
	ServerHandshake = 32 << 10
)

// What TLS with a server uses, in bytes: keys; a message of the handshake, whose buffer doubles as it grows and keeps its size; a record
// and the beginning of the next, likewise; certificates as they came and parsed.
const (
	serverKeys = 16 << 10
	// ServerCost is the most that it uses until the handshake is complete.
	ServerCost = serverKeys + 2*ServerHandshake + 2*LongestRecord + 2*ServerHandshake
)

// errHandshakeSize ends a connection whose client sends longer messages of the handshake than any client needs. crypto/tls gathers up to
// 256 KB of a message that claims to be a certificate, at any time, before it notices that it has asked for none.
var errHandshakeSize = errors.New("the client sends a message of the handshake that is too long")

// errServerSize is the same for servers, of which crypto/tls asks for a certificate: their chains have a tenth of that.
var errServerSize = errors.New("the server sends a message of the handshake that is too long")

// Terminated is the gateway's side of a connection by TLS. It bounds what may be read before something comes of it: the handshake is
// complete, or content is returned. Create it with [Terminate] or [Initiate]. Safe for one reader and one writer at a time.
type Terminated struct {
	*tls.Conn
	wire bounded
}

// Terminate returns the server's side of a connection whose client begins with a ClientHello of at most so many bytes.
// [Terminated.Established] must follow the handshake.
func Terminate(client net.Conn, hello int, cfg *tls.Config) *Terminated {
	t := &Terminated{wire: bounded{Conn: client, most: 2*hello + handshakeRest, then: LongestRecord, err: errHandshakeSize}}
	t.wire.direct, _ = client.(*Direct)
	t.Conn = tls.Server(&t.wire, cfg)
	return t
}

// Initiate returns the client's side of a connection to a server. [Terminated.Established] must follow the handshake. A server may have
// another handshake made later, if the configuration allows it. The configuration must be this connection's alone, and is changed.
func Initiate(server net.Conn, cfg *tls.Config) *Terminated {
	t, verify := &Terminated{}, cfg.VerifyConnection
	t.wire.open(server)
	t.wire.start = make([]byte, 0, maxStart)
	cfg.VerifyConnection = func(cs tls.ConnectionState) error {
		t.wire.made++
		if verify == nil {
			return nil
		}
		return verify(cs)
	}
	t.Conn = tls.Client(&t.wire, cfg)
	return t
}

// Start returns the first bytes that the server sent, up to 2 KiB, which is enough for a ServerHello of TLS 1.2. It returns nil once the
// handshake is complete, and on the server's side.
func (t *Terminated) Start() []byte { return t.wire.start }

// Heard reports whether the server has sent anything. Safe for concurrent use.
func (t *Terminated) Heard() bool { return t.wire.heard.Load() }

// Established notes that the handshake is complete.
func (t *Terminated) Established() { t.wire.established() }

// Read reads content.
func (t *Terminated) Read(p []byte) (int, error) {
	n, err := t.Conn.Read(p)
	if n > 0 {
		t.wire.content()
	}
	return n, err
}

// Took returns how many bytes of the peer's the handshake took.
func (t *Terminated) Took() int { return t.wire.took }

// IdleCost is what TLS with a server keeps while nothing is read, in bytes.
func (t *Terminated) IdleCost() int {
	certificates, gathered := t.wire.took, max(t.wire.took, int(t.wire.longest.Load()))
	if t.wire.made > 1 {
		certificates = gathered
	}
	return serverKeys + 2*certificates + 2*min(gathered, ServerHandshake) + 2*min(gathered, LongestRecord)
}

// ToServer is a connection to a server that something else speaks TLS over, bounded as [Initiate] does. [ToServer.Established] must follow
// the handshake. Safe for one reader and one writer at a time; the reader calls [ToServer.Content].
type ToServer struct{ *bounded }

// NewToServer returns one that has carried nothing of TLS yet.
func NewToServer(server net.Conn) ToServer {
	b := &bounded{}
	b.open(server)
	return ToServer{b}
}

// Established notes that the handshake is complete, but for what a server sends after its certificate.
func (s ToServer) Established() { s.established() }

// Content notes that content was read.
func (s ToServer) Content() { s.content() }

// bounded is the connection that crypto/tls reads from. A read returns at most one record, as crypto/tls buffers what it reads beyond one;
// after content, at most two, which halves the system calls of a long body.
type bounded struct {
	net.Conn
	direct  *Direct      // Conn, if it is one: saves two calls by interface for each record
	most    int          // to be read before something comes of it
	exactly bool         // most is not exceeded by a read
	got     int          // since something has; of the reader alone
	longest atomic.Int64 // the most that got was before content came
	took    int          // by the handshake
	made    int          // handshakes with a server
	then    int          // most, once the handshake is complete
	heard   atomic.Bool  // a server has sent something
	start   []byte       // the first bytes read, until the handshake is complete; nil: they are not kept
	err     error
}

// maxStart is the capacity of start in bytes.
const maxStart = 2 << 10

func (b *bounded) open(server net.Conn) {
	b.Conn, b.most, b.exactly, b.err = server, ServerHandshake, true, errServerSize
	b.direct, _ = server.(*Direct)
}

// established notes that the handshake is complete. A server may make another that is not much longer, or send tickets.
func (b *bounded) established() {
	if b.took = b.got; b.exactly {
		b.exactly, b.then = false, b.took+LongestRecord
	}
	b.most, b.start = b.then, nil
	b.got = 0
}

func (b *bounded) content() {
	if got := int64(b.got); got > b.longest.Load() {
		b.longest.Store(got)
	}
	b.got = 0
}

// Read reads from the peer.
func (b *bounded) Read(p []byte) (int, error) {
	if b.got > b.most {
		return 0, b.err
	}
	n := min(len(p), LongestRecord)
	switch {
	case b.exactly:
		n = min(n, b.most-b.got+1)
	case b.got == 0:
		n = min(len(p), 2*LongestRecord)
	}
	var err error
	if b.direct != nil {
		n, err = b.direct.Read(p[:n])
	} else {
		n, err = b.Conn.Read(p[:n])
	}
	b.got += n
	if b.start != nil {
		b.heard.Store(b.heard.Load() || n > 0)
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
