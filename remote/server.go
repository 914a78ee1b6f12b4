package remote

import (
	"bufio"
	"context"
	"crypto/tls"
	"net"
	"time"

	"go.uber.org/zap"

	"boxgate/internal/acceptor"
	"boxgate/internal/required"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy/recovery"
)

// Access is the right that a token gives.
type Access struct {
	Box     *policy.Box
	Expires time.Time // end of the token's validity
}

// Tokens checks tokens. Safe for concurrent use.
type Tokens interface {
	// Open returns the box that a token is valid for. The box must have that ID. The error says why it is refused; its text is
	// logged, and contains neither the token nor other text of the client.
	Open(id, token string) (Access, error)
}

// Proxy is the part of [boxgate/proxy.Proxy] that serves the connections.
type Proxy interface {
	// ServeRelayed serves a connection as one of the box to the explicit proxy. more is the memory of the relay in bytes.
	ServeRelayed(box *policy.Box, tcp *net.TCPConn, more int)
	// NoteRefusal records a refused connection of a box, or of a client without one if box is nil.
	NoteRefusal(box *policy.Box, why name.Reason, text string)
}

// Config configures a [Server]. All fields are required.
type Config struct {
	TLS    *tls.Config // its certificate; other fields are set by New
	Proxy  Proxy
	Tokens Tokens
	Log    *zap.Logger
	// Most is the maximum number of connections with a token, of all boxes together. One box gets half of them at most.
	Most int
	// Connections, Send and Receive are the configured limits of a box: open connections, and bytes per second from and to it.
	Connections   int
	Send, Receive int64 `required:"false"` // 0: no limit
}

// Server serves remote boxes. Create it with [New]; a nil Server has no connections. Safe for concurrent use.
type Server struct {
	cfg     Config
	relay   relays
	failing chan struct{} // has an element for each answer to a wrong token that is being delayed

	loops acceptor.Loops
}

// Listener accepts connections and bounds those of strangers; implemented by [boxgate/host/authlimit.Listener].
type Listener interface {
	net.Listener
	// Known ends the counting of a connection as one of a stranger.
	Known(c net.Conn)
}

// The time limits of strangers.
const (
	// helloTime is how long a client may take from its connection until it has named its destination.
	helloTime = 10 * time.Second
	// failTime delays the answer to a wrong token.
	failTime = time.Second
	// mostFailing is the maximum number of such answers that are being delayed.
	mostFailing = 256
	// partTime is how long a client may take to read the final answer.
	partTime = time.Second
)

// New returns a Server.
func New(cfg Config) (*Server, error) {
	if err := required.Fields(cfg); err != nil {
		return nil, err
	}
	cfg.TLS = cfg.TLS.Clone()
	cfg.TLS.MinVersion, cfg.TLS.NextProtos = tls.VersionTLS12, []string{"http/1.1"}
	return &Server{cfg: cfg, relay: relays{cfg: cfg, now: time.Now, boxes: map[policy.BoxID]*account{}}, failing: make(chan struct{}, mostFailing)}, nil
}

// Serve serves the connections of ln until [Server.Retire], and closes it. It returns an error only of closing ln.
func (s *Server) Serve(ln Listener) error {
	stop := s.relay.sweepRegularly()
	defer stop()
	return s.loops.Serve(ln, func(conn net.Conn) { s.handle(ln, conn) })
}

// Retire stops accepting. Connections that were accepted continue.
func (s *Server) Retire() {
	if s != nil {
		s.loops.Retire()
	}
}

// Shutdown retires the server and returns when its connections have ended. The proxy must be shut down, which ends them. When ctx
// ends, it closes them.
func (s *Server) Shutdown(ctx context.Context) error {
	if s == nil {
		return nil
	}
	s.Retire()
	s.relay.finish()
	err := s.loops.Wait(ctx)
	if err != nil {
		s.relay.cutAll()
	}
	return err
}

// Cut closes all connections of a box, such as after its token was replaced. The token must be invalid already.
func (s *Server) Cut(id policy.BoxID) {
	if s != nil {
		s.relay.cut(id)
	}
}

// Forget closes all connections of a box that is gone, and drops its counters.
func (s *Server) Forget(id policy.BoxID) {
	if s != nil {
		s.relay.forget(id)
	}
}

// Transferred returns how many bytes of payload were sent to a box and received from it since the box was first connected. ok is false
// for a box without connections so far.
func (s *Server) Transferred(id policy.BoxID) (in, out uint64, ok bool) {
	if s == nil {
		return 0, 0, false
	}
	return s.relay.transferred(id)
}

// Open returns the number of open connections with a token.
func (s *Server) Open() int {
	s.relay.mu.Lock()
	defer s.relay.mu.Unlock()
	return s.relay.n
}

// client is a connection during its greeting.
type client struct {
	*Server
	raw  net.Conn
	tls  *tls.Conn
	in   *bufio.Reader // of tls
	ln   Listener
	from string
}

// handle serves one connection. A panic ends it alone.
func (s *Server) handle(ln Listener, conn net.Conn) {
	defer conn.Close()
	defer recovery.Panic(s.cfg.Log, "", func() {})
	_ = conn.SetDeadline(time.Now().Add(helloTime))
	c := &client{Server: s, raw: conn, tls: tls.Server(conn, s.cfg.TLS), ln: ln, from: "from " + addressOf(conn) + ": "}
	if err := c.tls.Handshake(); err != nil {
		c.refuse("no TLS")
		return
	}
	c.in = bufio.NewReaderSize(c.tls, maxHead)
	first, err := c.in.Peek(1)
	switch {
	case err != nil:
		c.refuse("silent")
	case first[0] == socksVersion:
		c.socks()
	default:
		c.http()
	}
}

// addressOf returns the address of a client without its port, so that equal refusals look the same.
func addressOf(conn net.Conn) string {
	if tcp, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		return tcp.AddrPort().Addr().Unmap().String()
	}
	return "unknown"
}

// refuse records the refusal of a stranger.
func (c *client) refuse(why string) { c.cfg.Proxy.NoteRefusal(nil, name.ReasonUnknownBox, c.from+why) }

// part sends a final answer and waits until the client had time to read it.
func (c *client) part(answer []byte) {
	_ = c.raw.SetDeadline(time.Now().Add(partTime))
	_, _ = c.tls.Write(answer)
	_ = c.tls.CloseWrite()
	var rest [1 << 10]byte
	for range maxHead / len(rest) {
		if _, err := c.tls.Read(rest[:]); err != nil {
			return
		}
	}
}

// delay delays the answer to a wrong token, while the client still counts as a stranger. The listener may close the connection in that
// time, which does not end the delay: beyond mostFailing clients, the connection is closed without an answer instead.
func (c *client) delay() {
	select {
	case c.failing <- struct{}{}:
		time.Sleep(failTime)
		<-c.failing
	default:
		_ = c.raw.Close()
	}
}

// admit checks a token and takes a place for a connection of its box. If the token is refused, or the box has too many connections, it
// returns nil; full reports the latter.
func (c *client) admit(user, token string) (r *relay, full bool) {
	access, err := c.cfg.Tokens.Open(user, token)
	if err != nil {
		c.refuse(err.Error())
		c.delay()
		return nil, false
	}
	r = c.relay.enter(access, c.raw, c.tls)
	if r == nil {
		c.cfg.Proxy.NoteRefusal(access.Box, name.ReasonLimit, c.from+"too many remote connections")
		return nil, true
	}
	// A token that was replaced before enter is not cut by [Server.Cut].
	if _, err := c.cfg.Tokens.Open(user, token); err != nil {
		c.refuse(err.Error())
		r.leave()
		return nil, false
	}
	c.ln.Known(c.raw)
	return r, false
}
