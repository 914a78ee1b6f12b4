package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"boxgate/internal/fault"
	"boxgate/internal/memory"
	"boxgate/internal/socket"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy/exchange"
	"boxgate/proxy/http1"
	"boxgate/proxy/http2"
	"boxgate/proxy/offer"
	"boxgate/proxy/origin"
	"boxgate/proxy/peek"
	"boxgate/proxy/problem"
	"boxgate/proxy/route"
)

// tlsConfigs are the server configurations used to terminate TLS, one per box, so that boxes share no state such as ticket
// keys. The zero value is empty.
type tlsConfigs struct {
	mu    sync.Mutex
	boxes map[policy.BoxID]*tls.Config
}

// tlsConfig returns the configuration of a box, creating it on first use.
func (p *Proxy) tlsConfig(box policy.BoxID) *tls.Config {
	p.tls.mu.Lock()
	defer p.tls.mu.Unlock()
	if c := p.tls.boxes[box]; c != nil {
		return c
	}
	if p.tls.boxes == nil {
		p.tls.boxes = map[policy.BoxID]*tls.Config{}
	}
	c := p.serverConfig(box)
	p.tls.boxes[box] = c
	return c
}

func (p *Proxy) forgetTLS(box policy.BoxID) {
	p.tls.mu.Lock()
	defer p.tls.mu.Unlock()
	delete(p.tls.boxes, box)
}

// serverConfig returns the TLS server configuration of one box. Session tickets contain the name they were issued for
// and resume no other: a connection with another SNI makes a full handshake. Early data is never accepted (crypto/tls
// supports it over QUIC only).
func (p *Proxy) serverConfig(box policy.BoxID) *tls.Config {
	cfg := &tls.Config{
		MinVersion: tls.VersionTLS12,
		Time:       fault.Now,
		NextProtos: []string{"h2", "http/1.1", "http/1.0"},
		GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			host, err := name.Parse(hello.ServerName)
			if err != nil {
				return nil, err
			}
			return p.cfg.Leaves.LeafFor(hello.Context(), hello, box, host)
		},
	}
	cfg.WrapSession = func(cs tls.ConnectionState, ss *tls.SessionState) ([]byte, error) {
		ss.Extra = append(ss.Extra, ticketName(cs))
		return cfg.EncryptTicket(cs, ss)
	}
	cfg.UnwrapSession = func(identity []byte, cs tls.ConnectionState) (*tls.SessionState, error) {
		ss, err := cfg.DecryptTicket(identity, cs)
		if err != nil || ss == nil {
			return nil, err
		}
		if !slices.ContainsFunc(ss.Extra, func(e []byte) bool { return string(e) == string(ticketName(cs)) }) {
			return nil, nil // ticket of another name: a full handshake, not an error
		}
		return ss, nil
	}
	return cfg
}

// loginProtocols is the ALPN preference for hosts where connections log in (NTLM, Kerberos), which HTTP/2 cannot. Clients
// that offer only h2 get it.
var loginProtocols = []string{"http/1.1", "http/1.0", "h2"}

func ticketName(cs tls.ConnectionState) []byte { return []byte("boxgate sni " + cs.ServerName) }

// belongsToHost reports whether a name belongs to the gateway's host regardless of the policy: localhost, or a public URL.
func (p *Proxy) belongsToHost(n name.Name) bool {
	return n.IsLoopback() || slices.ContainsFunc(p.cfg.Host, n.IsWithin)
}

// terminate performs the TLS handshake with the box, using a leaf for host. It fails unless the SNI is the one that was
// peeked: the decision was made for that name only. A cut closes the socket, which ends the handshake. The timeout is a
// deadline of the socket, because a context would cost a timer and a callback for each connection. hello is the length of
// the ClientHello. alpn may be nil, for the default protocols. legacy accepts [offer.LegacySuites].
func (p *Proxy) terminate(box *policy.Box, client net.Conn, hello int, host name.Name, alpn []string, legacy bool) (*socket.Terminated, error) {
	cfg := p.tlsConfig(box.ID)
	if alpn != nil || legacy {
		cfg = cfg.Clone()
	}
	if alpn != nil {
		cfg.NextProtos = alpn
	}
	if legacy {
		cfg.CipherSuites = offer.LegacySuites
	}
	if err := client.SetDeadline(time.Now().Add(p.cfg.boxHandshake())); err != nil {
		return nil, err
	}
	conn := socket.Terminate(client, hello, cfg)
	if err := conn.Handshake(); err != nil {
		return nil, err
	}
	got, err := name.Parse(conn.ConnectionState().ServerName)
	if err != nil || got != host {
		return nil, origin.ErrNoName
	}
	conn.Established()
	return conn, client.SetDeadline(time.Time{})
}

// boxHandshake returns the timeout of a TLS handshake with a box. If slow boxes are given more time for their first
// message, they get as much for the handshake.
func (c *Config) boxHandshake() time.Duration { return max(c.HandshakeTimeout, c.PeekTimeout) }

// unreadHello is the assumed length in bytes of a ClientHello that has not been read yet. Database clients send hellos
// shorter than 4 KiB.
const unreadHello = 16 << 10

// terminateAs performs the TLS handshake with the box for a connection whose host is known without SNI. If the box sends
// SNI, it must match. hello is the length of the ClientHello, or 0 if it has not arrived. The caller sets deadlines.
func (p *Proxy) terminateAs(ctx context.Context, box *policy.Box, client net.Conn, hello int, host name.Name, alpn string) (*socket.Terminated, error) {
	conn := socket.Terminate(client, max(hello, unreadHello), &tls.Config{
		MinVersion: tls.VersionTLS12, Time: fault.Now, NextProtos: []string{alpn}, SessionTicketsDisabled: true,
		GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			if got, err := name.Parse(hello.ServerName); hello.ServerName != "" && (err != nil || got != host) {
				return nil, origin.ErrNoName
			}
			return p.cfg.Leaves.LeafFor(ctx, hello, box.ID, host)
		},
	})
	err := conn.HandshakeContext(ctx)
	if err == nil {
		conn.Established()
	}
	return conn, err
}

// errRooted is the logged error of a TLS client whose SNI ends in a dot, so that no certificate can match it.
var errRooted = errors.New("the server name ends in a dot (RFC 6066, 3): leave it out of the URL, since requests for this host are intercepted")

// intercept terminates TLS and passes the connection to the message loop of the negotiated protocol.
func (c *conn) intercept(f peek.First, rt route.Routed) {
	if f.NamesRoot() {
		c.event.Error = errRooted.Error()
		c.refuse(f.Kind, name.ReasonProtocol)
		return
	}
	if c.interception = c.usage.Intercept(c.p.cfg.MaxInterceptions, len(f.Data)); c.interception == nil {
		c.refuse(peek.Other, name.ReasonLimit) // a reset, not an alert: the policy allowed the connection
		return
	}
	var alpn []string // the default protocols
	if c.p.core.Origins.OffersLogin(c.box.ID, rt.Request.Name, c.port) {
		alpn = loginProtocols
	}
	legacy := c.box.Policy.Load().LegacyClients(rt.Request.Name, c.port)
	client, err := c.p.terminate(c.box, newReplay(c, f.Data), len(f.Data), rt.Request.Name, alpn, legacy)
	if err != nil {
		c.event.Error = handshakeFault(err, c.live.In.Load()).Error()
		c.refuse(peek.Other, name.ReasonClientTLS)
		return
	}
	if legacy && offer.IsLegacySuite(client.ConnectionState().CipherSuite) && !c.needsLegacy(rt.Request.Name) {
		return
	}
	c.interception.Established(c.live.Out.Load())
	s := c.p.core.NewSession(c.box, c.usage, c.live, client)
	s.TLS = c.interception
	s.Name, s.Orig, s.Port, s.Secure = rt.Request.Name, c.orig, c.port, true
	if client.ConnectionState().NegotiatedProtocol == "h2" {
		c.handOver(func() step { c.serveHTTP2(s); return nil })
		return
	}
	c.startTraffic()
	c.serveHTTP1(s)
}

// needsLegacy has the connection cut when the policy no longer accepts old cipher suites for the host. It reports false if
// the connection was cut already.
func (c *conn) needsLegacy(host name.Name) bool {
	port := c.port
	c.live.Need(func(pol *policy.Compiled) bool { return pol.LegacyClients(host, port) })
	return !c.p.recheck(c.live) && c.live.Denied() == nil
}

// serveHTTP1 runs the message loop of HTTP/1.x. While the connection is idle between requests, it is handed over to a new
// goroutine.
func (c *conn) serveHTTP1(s *exchange.Session) {
	if next := c.serveRequests(s, func() (http1.Rest, error) { return http1.Serve(c.ctx, s) }); next != nil {
		c.handOver(next)
	}
}

// serveRequests serves requests until the connection has ended or becomes idle. In the latter case it returns the step that
// continues.
func (c *conn) serveRequests(s *exchange.Session, serve http1.Rest) step {
	rest, err := serve()
	if rest == nil {
		c.closeGracefully(s, err)
		return nil
	}
	return func() step { return c.serveRequests(s, rest) }
}

// serveHTTP2 runs the message loop of HTTP/2.
func (c *conn) serveHTTP2(s *exchange.Session) {
	var claim memory.Claim
	claim.Open(c.usage.Memory, memory.HTTP2)
	if !claim.Grow(http2.ConnCost) {
		c.refuse(peek.Other, name.ReasonLimit)
		return
	}
	defer claim.Close()
	c.startTraffic()
	c.closeGracefully(s, http2.Serve(c.ctx, s, &claim))
}

// closeGracefully closes a connection gracefully after its message loop, so that the last response arrives.
func (c *conn) closeGracefully(s *exchange.Session, err error) {
	if c.live.Denied() != nil {
		return
	}
	if err == nil && s.Secure && !s.Asked() {
		err = errRequestless
	}
	if err != nil {
		c.event.Error = err.Error()
	}
	_ = c.tcp.SetWriteDeadline(time.Now().Add(socket.LingerTime))
	if t, ok := s.Client.(*socket.Terminated); ok {
		_ = t.CloseWrite() // the client may have disconnected
	}
	c.linger = true
}

// errUntrusted is the error of a handshake that a client ended because of the gateway's certificate.
type errUntrusted struct {
	how string
	err error
}

// Error returns the text for the log, including the remedy.
func (e *errUntrusted) Error() string {
	return "the client does not trust the box's CA, or pins a certificate: it " + e.how +
		"; add the CA to its trust store (gateway ca), or remove the rules for the host so that its TLS is not terminated (" + e.err.Error() + ")"
}

// Unwrap returns the cause.
func (e *errUntrusted) Unwrap() error { return e.err }

// errRequestless is the error of a connection that the client closed right after the handshake. Some clients verify the
// certificate only then.
var errRequestless = errors.New("the connection ended without a request: perhaps the client, like wget, does not trust the box's CA (gateway ca)")

// certificateSent is the minimum number of bytes that the gateway has sent if its certificate was among them. Shorter
// flights are a HelloRetryRequest or a resumed session.
const certificateSent = 512

// handshakeFault explains a failed handshake with a client, after sent bytes were sent to it.
func handshakeFault(err error, sent int64) error {
	switch alert, received := problem.AlertOf(err); {
	case received && problem.AboutCertificate(alert):
		return &errUntrusted{"sent the alert " + strings.TrimPrefix(alert.Error(), "tls: "), err}
	case received || sent < certificateSent:
		return err
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return &errUntrusted{"closed the connection after it had received the certificate", err}
	}
	// Some clients send their alert unencrypted after both sides have keys, so its MAC is invalid.
	var record tls.RecordHeaderError
	if errors.As(err, &record) || strings.HasSuffix(err.Error(), "tls: bad record MAC") {
		return &errUntrusted{"sent unencrypted data after it had received the certificate, perhaps an alert", err}
	}
	return err
}
