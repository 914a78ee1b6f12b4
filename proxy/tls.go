package proxy

import (
	"context"
	"crypto/tls"
	"net"
	"slices"
	"sync"
	"time"

	"boxgate/internal/fault"
	"boxgate/internal/socket"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy/origin"
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
// the ClientHello. alpn may be nil, for the default protocols. legacy accepts [origin.LegacySuites].
func (p *Proxy) terminate(box *policy.Box, client net.Conn, hello int, host name.Name, alpn []string, legacy bool) (*socket.Terminated, error) {
	cfg := p.tlsConfig(box.ID)
	if alpn != nil || legacy {
		cfg = cfg.Clone()
	}
	if alpn != nil {
		cfg.NextProtos = alpn
	}
	if legacy {
		cfg.CipherSuites = origin.LegacySuites
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
