// Package peers passes connections to public URLs between the hosts of a fleet. It implements the Fleet of package ingress.
package peers

import (
	"context"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"boxgate/fleet/pki"
	"boxgate/ingress/balancer"
	"boxgate/internal/required"
	"boxgate/internal/socket"
	"boxgate/policy"
	"boxgate/proxy/tunnel"
)

// Hosts are the members of the fleet, as of the last known directory.
type Hosts interface {
	// IngressOf returns the address of the public URLs of another member; false: it is no member, or has none for other hosts.
	IngressOf(host string) (netip.AddrPort, bool)
	// DomainOwner returns the host that has a domain of its own, as of the last known claims; false: no host has it.
	DomainOwner(domain string) (host string, ok bool)
	// VisitorPeers verifies the other hosts, by the authority and the last known directory.
	VisitorPeers() pki.Peers
	// Certificate returns the certificate of this host for connections with other hosts.
	Certificate() (*tls.Certificate, error)
	// Secrets returns the secrets for headers to and from another member; false: it is no member.
	Secrets(host string) (to, from []byte, ok bool)
}

// Config configures [Peers].
type Config struct {
	Hosts Hosts
	Own   string // ID of this host
	// Parse returns the box that a host name means, see [boxgate/config.Ingress.ParseHostName].
	Parse func(host string) (id policy.BoxID, port uint16, ok bool)
	// Common reports whether all hosts serve a name in lower case, or none does, so that it is never a domain of a public URL.
	Common func(host string) bool
	Pipes  int // for splice(2), two descriptors each
	Log    *zap.Logger
}

// Peers are the other hosts. Safe for concurrent use.
type Peers struct {
	Config
	tunnels *tunnel.Pool
	fresh   *balancer.Fresh

	passed, failed atomic.Uint64 // connections of visitors, by whether the owner took them
	mu             sync.Mutex
	pipes          map[string]*atomic.Int64 // in use, by host
}

// idle is the time without a byte after which a connection ends. The host with the box has shorter ones.
const idle = 30 * 24 * time.Hour

// New returns the peers of this host.
func New(c Config) (*Peers, error) {
	if err := required.Fields(c); err != nil {
		return nil, err
	}
	return &Peers{Config: c, tunnels: tunnel.NewPool(idle, c.Pipes, c.Log), fresh: balancer.NewFresh(time.Now()), pipes: map[string]*atomic.Int64{}}, nil
}

// Close frees the pipes. Open connections go on.
func (p *Peers) Close() { p.tunnels.Close() }

var visitorsDesc = prometheus.NewDesc("boxgate_fleet_visitors_total", "Connections of visitors to boxes of other hosts, by whether their host took them.", []string{"result"}, nil)

// Describe implements [prometheus.Collector].
func (p *Peers) Describe(to chan<- *prometheus.Desc) { prometheus.DescribeByCollect(p, to) }

// Collect implements [prometheus.Collector].
func (p *Peers) Collect(to chan<- prometheus.Metric) {
	to <- prometheus.MustNewConstMetric(visitorsDesc, prometheus.CounterValue, float64(p.passed.Load()), "passed")
	to <- prometheus.MustNewConstMetric(visitorsDesc, prometheus.CounterValue, float64(p.failed.Load()), "failed")
}

// hostDigits is the length of the ID of a host, with which the IDs of its boxes begin.
const hostDigits = 6

// Owner implements [boxgate/ingress.Fleet].
func (p *Peers) Owner(host string) (owner string, ok bool) {
	if id, _, named := p.Parse(host); named && len(id) >= hostDigits {
		owner = string(id[:hostDigits])
	} else if named || p.Common(host) {
		return "", false
	} else if owner, ok = p.Hosts.DomainOwner(host); !ok {
		return "", false
	}
	if owner == p.Own {
		return "", false
	}
	_, ok = p.Hosts.IngressOf(owner)
	return owner, ok
}

// errNoPeer reports a host that has left since the ClientHello arrived.
var errNoPeer = errors.New("the host with the box is not a member of the fleet any longer")

// Dial implements [boxgate/ingress.Fleet].
func (p *Peers) Dial(ctx context.Context, owner, host string, from, to netip.AddrPort, first []byte) (*net.TCPConn, error) {
	return p.open(ctx, owner, balancer.Passed{From: from, To: to, Name: host, Mode: balancer.ModeTLS}, first)
}

// open connects to a host, and sends a header, with the fields that are the same for each, and first.
func (p *Peers) open(ctx context.Context, owner string, header balancer.Passed, first []byte) (*net.TCPConn, error) {
	c, err := p.dial(ctx, owner, header, first)
	if err != nil {
		p.failed.Add(1)
		return nil, err
	}
	p.passed.Add(1)
	return c, nil
}

// dial is [Peers.open] without its counters.
func (p *Peers) dial(ctx context.Context, owner string, header balancer.Passed, first []byte) (*net.TCPConn, error) {
	at, ok := p.Hosts.IngressOf(owner)
	key, _, known := p.Hosts.Secrets(owner)
	if !ok || !known {
		return nil, errNoPeer
	}
	c, err := new(net.Dialer).DialContext(ctx, "tcp", at.String())
	if err != nil {
		return nil, fmt.Errorf("host %s: %w", owner, err)
	}
	header.Sender, header.Receiver, header.At, header.Nonce = p.Own, owner, time.Now(), balancer.NewNonce()
	begin := header.Append(make([]byte, 0, balancer.PassedMost+len(first)), key)
	if deadline, ok := ctx.Deadline(); ok {
		_ = c.SetWriteDeadline(deadline)
	}
	if _, err := c.Write(append(begin, first...)); err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("host %s: %w", owner, err)
	}
	_ = c.SetWriteDeadline(time.Time{})
	tcp, _ := socket.TCP(c) // the network is tcp
	return tcp, nil
}

// Membership implements [boxgate/ingress.Fleet].
func (p *Peers) Membership(host string) (membership string, ok bool) {
	if _, ok = p.Hosts.IngressOf(host); !ok || host == p.Own {
		return "", false
	}
	key, ok := p.Hosts.VisitorPeers().Known(host)
	membership = host + "." + hex.EncodeToString(key)
	if own, err := p.Hosts.Certificate(); err == nil { // without one, Connect fails
		membership += "." + own.Leaf.SerialNumber.Text(62)
	}
	return membership, ok
}

// Connect implements [boxgate/ingress.Fleet].
func (p *Peers) Connect(ctx context.Context, host, protocol string, v balancer.Passed) (net.Conn, error) {
	v.To = netip.AddrPortFrom(netip.IPv6Unspecified(), 0) // the balancer's, which the other host does not need
	c, err := p.open(ctx, host, v, nil)
	if err != nil {
		return nil, err
	}
	settings := p.Hosts.VisitorPeers().Client(p.Hosts.Certificate, host)
	settings.NextProtos = []string{protocol}
	secure := tls.Client(c, settings)
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("host %s: %w", host, err)
	}
	if secure.ConnectionState().NegotiatedProtocol != protocol {
		_ = c.Close()
		return nil, fmt.Errorf("host %s does not speak %s with other hosts", host, protocol)
	}
	return secure, nil
}

// Accept implements [boxgate/ingress.Fleet].
func (p *Peers) Accept(host string) *tls.Config {
	settings := p.Hosts.VisitorPeers().Server(p.Hosts.Certificate)
	settings.NextProtos = []string{"h2", "http/1.1"}
	verify := settings.VerifyConnection
	settings.VerifyConnection = func(state tls.ConnectionState) error {
		if err := verify(state); err != nil {
			return err
		}
		return p.Still(host, state)
	}
	return settings
}

// Still implements [boxgate/ingress.Fleet].
func (p *Peers) Still(host string, state tls.ConnectionState) error {
	state.HandshakeComplete = true // VerifyConnection asks, too
	found, err := p.Hosts.VisitorPeers().Still(state)
	if err == nil && found != host {
		err = fmt.Errorf("host %s has sent the header, and host %s continues", host, found)
	}
	return err
}

// Open implements [boxgate/ingress.Fleet].
func (p *Peers) Open(raw []byte) (balancer.Passed, error) {
	passed, err := balancer.OpenPassed(raw, p.Own, func(sender string) ([]byte, bool) {
		_, from, ok := p.Hosts.Secrets(sender)
		return from, ok
	})
	if err != nil {
		return balancer.Passed{}, err
	}
	return passed, p.fresh.Accept(passed.At, passed.Nonce, time.Now())
}

// Splice implements [boxgate/ingress.Fleet].
func (p *Peers) Splice(visitor, owner *net.TCPConn, host string, in, out *atomic.Int64, ended func(error)) (start, cut func()) {
	t := p.tunnels.Splice(tunnel.Spec{Client: visitor, Owner: end(ended), Count: tunnel.Counters{In: in, Out: out, Pipes: p.pipesOf(host)}}, owner)
	return t.Start, func() { _ = t.Close() }
}

// pipesOf returns the number of pipes in use for a host. Members are few, and so are the counters.
func (p *Peers) pipesOf(host string) *atomic.Int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.pipes[host]
	if n == nil {
		n = new(atomic.Int64)
		p.pipes[host] = n
	}
	return n
}

// end implements [tunnel.Owner] for connected tunnels.
type end func(error)

// Ended implements [tunnel.Owner].
func (e end) Ended(err error) { e(err) }

// Opened, Failed and Slow implement [tunnel.Owner]; they are for tunnels that connect themselves.
func (e end) Opened()      {}
func (e end) Failed(error) {}
func (e end) Slow()        {}
