package origin

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"slices"
	"time"

	"boxgate/internal/fault"
	"boxgate/internal/socket"
	"boxgate/policy"
	"boxgate/policy/name"
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
		ServerName:         d.name.String(),
		RootCAs:            p.cfg.Roots,
		NextProtos:         h.alpn,
		MinVersion:         tls.VersionTLS12,
		Time:               fault.Now,
		ClientSessionCache: p.sessionsOf(box.ID),
	}
	config.VerifyConnection = func(cs tls.ConnectionState) error {
		if cs.NegotiatedProtocol != "h2" {
			config.Renegotiation = tls.RenegotiateOnceAsClient // the configuration is used for this connection only
		}
		return verify(cs, start())
	}
	if d.legacy { // whose sessions no other connection may resume
		config.CipherSuites, config.ClientSessionCache = LegacySuites, nil
	}
	if h.small {
		config.CurvePreferences, config.ClientSessionCache = smallGroups, nil // tickets may have any size
	}
	return config, d.identity.present(config)
}

// LegacySuites are the cipher suites of TLS 1.2 for hosts with upstream_tls or client_tls: legacy, the current ones included. Their order
// does not matter: crypto/tls prefers current ones, and the handshake detects changes of the list on the path (RFC 5246, 7.4.9). TLS 1.3 has its own.
//
// Not among them are RC4 (RFC 7465) and 3DES (CVE-2016-2183).
var LegacySuites = func() (ids []uint16) {
	for _, s := range tls.CipherSuites() {
		if slices.Contains(s.SupportedVersions, tls.VersionTLS12) {
			ids = append(ids, s.ID)
		}
	}
	return append(ids,
		tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256,
		tls.TLS_RSA_WITH_AES_128_GCM_SHA256, tls.TLS_RSA_WITH_AES_256_GCM_SHA384,
		tls.TLS_RSA_WITH_AES_128_CBC_SHA256, tls.TLS_RSA_WITH_AES_128_CBC_SHA, tls.TLS_RSA_WITH_AES_256_CBC_SHA,
	)
}()

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
