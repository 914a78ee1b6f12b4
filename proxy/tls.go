package proxy

import (
	"context"
	"crypto/tls"
	"net"
	"slices"
	"sync"

	"boxgate/internal/fault"
	"boxgate/policy"
	"boxgate/proxy/origin"
)

// tlsConfigs are the configurations with which TLS of boxes is terminated. Boxes share nothing of them, such as ticket keys.
// The zero value is empty.
type tlsConfigs struct {
	mu    sync.Mutex
	boxes map[policy.BoxID]*tls.Config
}

// tlsConfig returns the configuration of a box, made at its first use.
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
	cfg := p.tlsConfig(box.ID)
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
		return nil, origin.ErrNoName
	}
	return conn, nil
}
