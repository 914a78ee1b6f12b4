package origin

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"

	"boxgate/internal/fault"
	"boxgate/internal/socket"
	"boxgate/policy"
	"boxgate/proxy/problem"
)

// maxSessions is the number of TLS sessions cached per box.
const maxSessions = 128

// DialTLS dials d and performs a TLS handshake that verifies the server to be d.name against the configured roots, and
// presents the client certificate of d, if it has one. alpn lists the protocols to offer, most preferred first. Errors are of type *[policy.DeniedError] or *[problem.Upstream].
func (p *Origins) DialTLS(ctx context.Context, box *policy.Box, d Target, alpn []string) (*tls.Conn, error) {
	if d.name.IsZero() {
		return nil, &problem.Upstream{Reason: policy.ReasonUpstreamTLS, Err: ErrNoName}
	}
	raw, err := p.Dial(ctx, box, d)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{
		ServerName:         d.name.String(),
		RootCAs:            p.cfg.Roots,
		NextProtos:         alpn,
		MinVersion:         tls.VersionTLS12,
		Time:               fault.Now,
		ClientSessionCache: p.sessionsOf(box.ID),
	}
	check := d.identity.present(config)
	conn := tls.Client(direct(raw), config)
	ctx, cancel := context.WithTimeout(ctx, p.cfg.HandshakeTimeout)
	defer cancel()
	err = conn.HandshakeContext(ctx)
	if err == nil {
		err = check()
	}
	if err != nil {
		_ = raw.Close()
		return nil, &problem.Upstream{Reason: policy.ReasonUpstreamTLS, Name: d.shown, Err: fmt.Errorf("TLS handshake: %w", err)}
	}
	return conn, nil
}

// direct returns a connection that was dialled with direct reads and writes.
func direct(c net.Conn) net.Conn {
	switch c := c.(type) {
	case *net.TCPConn:
		return socket.NewDirect(c)
	case *passage:
		c.Conn = direct(c.Conn)
	}
	return c
}

// ErrNoName refuses TLS without a name, or with one that was not judged.
var ErrNoName = error(problem.Fixed("the TLS handshake names no host this connection was judged for"))
