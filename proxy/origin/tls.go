package origin

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/crypto/cryptobyte"

	"boxgate/internal/fault"
	"boxgate/internal/socket"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy/offer"
	"boxgate/proxy/problem"
)

// DialTLS dials d and performs a TLS handshake that verifies the server to be d.name against the configured roots, and
// presents the client certificate of d, if it has one. alpn lists the protocols to offer, most preferred first. Errors are
// of type *[policy.DeniedError] or *[problem.Upstream].
//
// Some servers and firewalls reset or drop a ClientHello that does not fit into one packet, which is the case with a
// post-quantum key share. A server that sends no byte in answer gets a second, small hello on a new connection, and is
// remembered.
func (p *Origins) DialTLS(ctx context.Context, box *policy.Box, d Target, alpn []string) (*socket.Terminated, error) {
	if d.name.IsZero() {
		return nil, &problem.Upstream{Reason: name.ReasonUpstreamTLS, Err: ErrNoName}
	}
	at, known := host{d.name, d.Asked.Port}, p.hostsOf(box.ID)
	h := handshake{alpn: alpn}
	_, h.small = known.hellos.find(at)
	conn, silent, err := p.handshake(ctx, box, d, &h)
	if silent && !h.small {
		h.small = true
		again, still, err2 := p.handshake(ctx, box, d, &h)
		if err2 == nil {
			known.hellos.note(at, struct{}{}, smallTime)
		}
		if !still {
			conn, err = again, err2
		}
	}
	if err != nil {
		return nil, p.explain(ctx, box, d, known, err)
	}
	return conn, nil
}

// handshake are the parameters of a handshake.
type handshake struct {
	alpn     []string
	small    bool      // with a ClientHello that fits one packet
	deadline time.Time // for both attempts, counted from the first connection
}

// smallGroups are offered in a small hello: a key share of ML-KEM has 1,216 bytes.
var smallGroups = []tls.CurveID{tls.X25519, tls.CurveP256, tls.CurveP384, tls.CurveP521}

// handshake dials d and makes one attempt. silent is set if it failed before the server had sent a byte.
func (p *Origins) handshake(ctx context.Context, box *policy.Box, d Target, h *handshake) (conn *socket.Terminated, silent bool, err error) {
	raw, err := p.Dial(ctx, box, d)
	if err != nil {
		return nil, false, err
	}
	if h.deadline.IsZero() {
		h.deadline = time.Now().Add(p.cfg.HandshakeTimeout)
	}
	var made *socket.Terminated
	config, check := p.clientConfig(box, d, h, func() []byte { return made.Start() })
	made = socket.Initiate(direct(raw), config)
	ctx, cancel := context.WithDeadline(ctx, h.deadline)
	defer cancel()
	attempt, abandon := context.WithCancel(ctx)
	defer abandon()
	if !h.small {
		waiting := time.AfterFunc(time.Until(h.deadline)/3, func() {
			if !made.HasReceived() {
				abandon()
			}
		})
		defer waiting.Stop()
	}
	err = made.HandshakeContext(attempt)
	if err == nil {
		err = check()
	}
	if err != nil {
		_ = raw.Close()
		silent = !made.HasReceived() && ctx.Err() == nil
		return nil, silent, &problem.Upstream{Reason: name.ReasonUpstreamTLS, Name: d.shown, Err: fmt.Errorf("TLS handshake: %w", err)}
	}
	made.Established()
	return made, false, nil
}

// clientConfig returns the configuration of one connection, and a check to run after its handshake.
//
// An HTTP/1.1 server may request one renegotiation, for example to ask for a client certificate for some paths. crypto/tls
// accepts it if the server's certificate stays the same. HTTP/2 forbids it (RFC 9113, 9.2.1).
func (p *Origins) clientConfig(box *policy.Box, d Target, h *handshake, start func() []byte) (config *tls.Config, check func() error) {
	config = &tls.Config{
		ServerName: d.name.String(),
		RootCAs:    p.cfg.Roots,
		NextProtos: h.alpn,
		MinVersion: tls.VersionTLS12,
		Time:       fault.Now,
	}
	sessions := &ownSessions{ClientSessionCache: p.sessionsOf(box.ID)}
	if sessions.ClientSessionCache != nil {
		config.ClientSessionCache = sessions
	}
	config.VerifyConnection = func(cs tls.ConnectionState) error {
		sessions.certificates = sizeOfCertificates(cs)
		if cs.NegotiatedProtocol != "h2" {
			config.Renegotiation = tls.RenegotiateOnceAsClient // the configuration is used for this connection only
		}
		return verify(cs, start())
	}
	if d.legacy { // whose sessions no other connection may resume
		config.CipherSuites, config.ClientSessionCache = offer.LegacySuites, nil
	}
	if h.small {
		config.CurvePreferences, config.ClientSessionCache = smallGroups, nil // tickets may have any size
	}
	return config, d.identity.present(config)
}

// direct returns a dialled connection with direct reads and writes.
func direct(c net.Conn) net.Conn {
	switch c := c.(type) {
	case *net.TCPConn:
		return socket.NewDirect(c)
	case *passage:
		c.Conn = direct(c.Conn)
	}
	return c
}

// ErrNoName refuses TLS without a name, or with a name that was not judged.
var ErrNoName = error(problem.Fixed("the TLS handshake names no host this connection was judged for"))

// This part detects the offer of a server that shares no way to encrypt with the gateway, to explain the error: the
// server's alert does not. It makes another connection and sends a ClientHello that offers more than the gateway supports.
// No other data is sent, and the answer is used for an error text only.

const (
	offerPatience = 3 * time.Second
)

// explain adds the server's offer to the error of a handshake that failed because the two sides share no parameters.
func (p *Origins) explain(ctx context.Context, box *policy.Box, d Target, known *hosts, err error) error {
	var up *problem.Upstream
	if !errors.As(err, &up) || up.Reason != name.ReasonUpstreamTLS || !problem.NothingInCommon(up.Err) {
		return err
	}
	at := host{d.name, d.Asked.Port}
	o, asked := known.offers.find(at)
	if !asked {
		o = p.ask(ctx, box, d)
		known.offers.note(at, o, offersTime)
	}
	text := o.Missing(d.legacy)
	if text == "" {
		return err
	}
	return &problem.Upstream{Reason: up.Reason, Name: up.Name, Err: fmt.Errorf("%w: %w", problem.Fixed(text), up.Err)}
}

// ask sends the hello to a server and returns its offer.
func (p *Origins) ask(ctx context.Context, box *policy.Box, d Target) (o offer.Offer) {
	ctx, cancel := context.WithTimeout(ctx, offerPatience)
	defer cancel()
	conn, err := p.Dial(ctx, box, d)
	if err != nil {
		return o
	}
	defer socket.Abort(conn)
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	hello, err := offer.Hello(d.name.String(), tls.VersionTLS13)
	if err != nil {
		return o
	}
	if _, err := conn.Write(hello); err == nil {
		o.Read(conn)
	}
	return o
}

// ErrRenegotiation refuses a server that cannot distinguish a new handshake from one that continues another client's
// session.
var ErrRenegotiation = error(problem.Fixed("the server does not support secure renegotiation (RFC 5746): what another client says could become the beginning of the request"))

// verify refuses servers that crypto/tls accepts, but OpenSSL does not. start is the beginning of the server's data. It is
// meant for tls.Config.VerifyConnection.
//
// A server that renegotiates without RFC 5746 may treat the request as the continuation of data that a man in the middle
// has sent, and reveal it with the headers that the gateway has set (CVE-2009-3555). Clients cannot detect whether a server
// would.
func verify(cs tls.ConnectionState, start []byte) error {
	if cs.Version < tls.VersionTLS13 && !renegotiatesSecurely(start) {
		return ErrRenegotiation
	}
	return problem.WeakKey(cs)
}

// renegotiatesSecurely reports whether the ServerHello at the beginning of start has the extension of RFC 5746, 3.4.
func renegotiatesSecurely(start []byte) bool {
	kind, body, ok := offer.NewMessages(bytes.NewReader(start)).Next()
	hello := cryptobyte.String(body)
	var session, extensions cryptobyte.String
	if !ok || kind != 2 || !hello.Skip(2+32) || !hello.ReadUint8LengthPrefixed(&session) || !hello.Skip(2+1) || !hello.ReadUint16LengthPrefixed(&extensions) {
		return false
	}
	for !extensions.Empty() {
		var id uint16
		var value cryptobyte.String
		if !extensions.ReadUint16(&id) || !extensions.ReadUint16LengthPrefixed(&value) {
			return false
		}
		if id == 0xff01 {
			return true
		}
	}
	return false
}

const (
	maxSessions = 128      // TLS sessions kept for a box
	maxSession  = 12 << 10 // bytes of one: the ticket, which may have any length, and the server's certificates; typically about 8,000
)

// ownSessions is the view of one connection on the TLS sessions of its box. It does not store long ones, so servers with
// these get a full handshake each time. Used by one connection only.
type ownSessions struct {
	tls.ClientSessionCache
	certificates int // bytes of the server's certificates, set before the handshake ends
}

func newSessions() tls.ClientSessionCache { return tls.NewLRUClientSessionCache(maxSessions) }

// Put implements [tls.ClientSessionCache].
func (s *ownSessions) Put(key string, of *tls.ClientSessionState) {
	if of != nil {
		ticket, state, err := of.ResumptionState()
		if err != nil || state == nil || s.certificates == 0 || len(ticket)+s.certificates > maxSession {
			return
		}
	}
	s.ClientSessionCache.Put(key, of)
}

// sizeOfCertificates returns the bytes of the certificates that a session of the connection keeps: those sent by the server
// with their timestamps and OCSP response, and those of each verified chain.
func sizeOfCertificates(cs tls.ConnectionState) (n int) {
	for _, c := range cs.PeerCertificates {
		n += len(c.Raw)
	}
	for _, chain := range cs.VerifiedChains {
		for _, c := range chain[min(1, len(chain)):] {
			n += len(c.Raw)
		}
	}
	for _, t := range cs.SignedCertificateTimestamps {
		n += len(t)
	}
	return n + len(cs.OCSPResponse)
}

// Identity is a client certificate with its key, for authenticating the gateway to a server. Connections with an identity
// are used only for requests with the same one, and connections without for requests without.
type Identity struct {
	certificate tls.Certificate
	sum         [sha256.Size]byte // of certificate and key as configured
}

// NewIdentity returns an identity of a certificate with its Leaf, parsed from the values of two secrets.
func NewIdentity(pair tls.Certificate, certificate, key name.Secret) *Identity {
	h, text := sha256.New(), certificate.Reveal()
	_ = binary.Write(h, binary.BigEndian, uint64(len(text))) // writes to a hash never fail
	h.Write([]byte(text))
	h.Write([]byte(key.Reveal()))
	return &Identity{pair, [sha256.Size]byte(h.Sum(nil))}
}

// Expired reports whether the certificate has expired.
func (i *Identity) Expired(now time.Time) bool { return now.After(i.certificate.Leaf.NotAfter) }

// key returns a string that identifies the identity, or "" for nil.
func (i *Identity) key() string {
	if i == nil {
		return ""
	}
	return string(i.sum[:])
}

// ErrUnasked refuses a server that does not request the client certificate that requests to it require.
var ErrUnasked = error(problem.Fixed("the server does not ask for the client certificate"))

// present makes a handshake present the identity, if there is one, and returns a check to run after the handshake.
//
// The handshake neither resumes a session nor can be resumed: a session keeps the certificate that it began with, and
// clients store sessions by the server's name only.
func (i *Identity) present(c *tls.Config) (check func() error) {
	if i == nil {
		return func() error { return nil }
	}
	asked := false
	c.ClientSessionCache = nil
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		asked = true
		return &i.certificate, nil
	}
	return func() error {
		if !asked {
			return ErrUnasked
		}
		return nil
	}
}
