package proxy

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"slices"
	"sync"

	"boxgate/internal/fault"
	"boxgate/policy"
	"boxgate/proxy/problem"
)

// upstreamSessions is how many TLS sessions towards upstreams are kept for a box.
const upstreamSessions = 128

var errNoName = error(problem.Fixed("the TLS handshake names no host this connection was judged for"))

// boxTLS is the TLS state of one box: nothing of it is shared with another box, neither ticket keys nor sessions.
type boxTLS struct {
	server   *tls.Config
	sessions tls.ClientSessionCache
}

// boxTLSTable holds the TLS state of the boxes that have connected. The zero value is empty.
type boxTLSTable struct {
	mu    sync.Mutex
	boxes map[policy.BoxID]*boxTLS
}

// boxTLS returns the TLS state of a box, made at its first use.
func (p *Proxy) boxTLS(box policy.BoxID) *boxTLS {
	p.tls.mu.Lock()
	defer p.tls.mu.Unlock()
	if b := p.tls.boxes[box]; b != nil {
		return b
	}
	if p.tls.boxes == nil {
		p.tls.boxes = map[policy.BoxID]*boxTLS{}
	}
	b := &boxTLS{server: p.serverConfig(box), sessions: tls.NewLRUClientSessionCache(upstreamSessions)}
	p.tls.boxes[box] = b
	return b
}

func (p *Proxy) forgetTLS(box policy.BoxID) {
	p.tls.mu.Lock()
	defer p.tls.mu.Unlock()
	delete(p.tls.boxes, box)
}

// serverConfig returns the configuration with which TLS of one box is terminated. Session tickets carry the name they
// were made for and resume nothing else: a connection under another SNI makes a full handshake. Early data is never
// accepted (crypto/tls does so over QUIC alone).
func (p *Proxy) serverConfig(box policy.BoxID) *tls.Config {
	cfg := &tls.Config{
		MinVersion: tls.VersionTLS12,
		Time:       fault.Now,
		NextProtos: []string{"h2", "http/1.1", "http/1.0"},
		GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			name, err := policy.ParseName(hello.ServerName)
			if err != nil {
				return nil, err
			}
			return p.cfg.Leaves.Leaf(hello.Context(), box, name)
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
			return nil, nil // another name's ticket: no resumption, which is no error
		}
		return ss, nil
	}
	return cfg
}

func ticketName(cs tls.ConnectionState) []byte { return []byte("boxgate sni " + cs.ServerName) }

// isHosts reports whether a name leads to the gateway's host, whatever the policy says of it: localhost, or a public URL.
func (p *Proxy) isHosts(n policy.Name) bool {
	return n.IsLoopback() || slices.ContainsFunc(p.cfg.Host, n.IsWithin)
}

// terminate makes the TLS handshake with the box under a leaf for name. It fails unless the handshake names what was
// peeked: the decision was made for that name alone.
func (p *Proxy) terminate(ctx context.Context, box *policy.Box, client net.Conn, name policy.Name, alpn []string) (*tls.Conn, error) {
	cfg := p.boxTLS(box.ID).server
	if alpn != nil {
		cfg = cfg.Clone()
		cfg.NextProtos = alpn
	}
	ctx, cancel := context.WithTimeout(ctx, p.cfg.HandshakeTimeout)
	defer cancel()
	conn := tls.Server(client, cfg)
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	got, err := policy.ParseName(conn.ConnectionState().ServerName)
	if err != nil || got != name {
		return nil, errNoName
	}
	return conn, nil
}

// dialTLS dials d and makes a TLS handshake that proves the upstream to be d.name, against the configured roots. alpn is
// what is offered, best first. The error is a *[policy.DeniedError] or an *upstreamError.
func (p *Proxy) dialTLS(ctx context.Context, box *policy.Box, d target, alpn []string) (*tls.Conn, error) {
	if d.name.IsZero() {
		return nil, &problem.Upstream{Reason: policy.ReasonUpstreamTLS, Err: errNoName}
	}
	raw, err := p.dial(ctx, box, d)
	if err != nil {
		return nil, err
	}
	conn := tls.Client(raw, &tls.Config{
		ServerName:         d.name.String(),
		RootCAs:            p.cfg.Roots,
		NextProtos:         alpn,
		MinVersion:         tls.VersionTLS12,
		Time:               fault.Now,
		ClientSessionCache: p.boxTLS(box.ID).sessions,
	})
	ctx, cancel := context.WithTimeout(ctx, p.cfg.HandshakeTimeout)
	defer cancel()
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		return nil, &problem.Upstream{Reason: policy.ReasonUpstreamTLS, Name: d.name, Err: fmt.Errorf("TLS handshake: %w", err)}
	}
	return conn, nil
}
