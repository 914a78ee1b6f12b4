package proxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"go.uber.org/zap"

	"boxgate/audit"
	"boxgate/policy"
)

// Boxes finds the box behind a source address; nil means that the address is no box's. Safe for concurrent use.
type Boxes interface {
	BoxByAddr(netip.Addr) *policy.Box
}

// Resolver resolves names for a box and remembers what the box was told. Its answers are not trusted: every address is
// judged when it is dialled. Safe for concurrent use.
type Resolver interface {
	// Lookup returns the addresses of a name, of both families, in no particular order.
	Lookup(context.Context, *policy.Box, policy.Name) ([]netip.Addr, error)
	// Granted reports whether the box was told, and may still believe, that the name has this address.
	Granted(policy.BoxID, policy.Name, netip.Addr) bool
	// GrantedNames returns the names of which the box was told that they have this address.
	GrantedNames(policy.BoxID, netip.Addr) []policy.Name
}

// Leaves mints the certificates with which TLS towards a box is terminated. Safe for concurrent use.
type Leaves interface {
	Leaf(context.Context, policy.BoxID, policy.Name) (*tls.Certificate, error)
}

// Recorder takes one event for each decision. It never blocks. Safe for concurrent use.
type Recorder interface {
	Record(audit.Event)
}

// Config is what a [Proxy] needs. Boxes, Resolver, Leaves and Audit are required; durations and limits that are zero
// take the default named beside them.
type Config struct {
	Boxes    Boxes
	Resolver Resolver
	Leaves   Leaves
	Audit    Recorder
	Log      *zap.Logger    // nil: nothing is logged
	Roots    *x509.CertPool // trusted for upstreams; nil: the system's
	Sink     []netip.Addr   // the addresses DNS hands out for names a box may not reach: no destination of their own
	Own      []netip.Addr   // addresses of the gateway itself, never dialled whatever the policy says
	DenyPage bool           // a denied TLS connection gets a 403 page under a leaf instead of an alert

	MaxConns         int           // connections a box may have open, counted from accept; 2048
	PeekTimeout      time.Duration // until the first message must be complete where the client speaks first; 10 s
	SilenceTimeout   time.Duration // how long a client may stay silent before the server is taken to speak first; 300 ms
	HandshakeTimeout time.Duration // for each TLS handshake, with the box and with the upstream; 15 s
	DialTimeout      time.Duration // for resolving and dialling an upstream, over all its addresses; 15 s
	AddressTimeout   time.Duration // for one of several addresses; 3 s
	IdleTimeout      time.Duration // a spliced connection without a byte either way is closed; 1 h
}

func (c *Config) setDefaults() {
	if c.Log == nil {
		c.Log = zap.NewNop()
	}
	if c.MaxConns <= 0 {
		c.MaxConns = 2048
	}
	for d, def := range map[*time.Duration]time.Duration{
		&c.PeekTimeout:      10 * time.Second,
		&c.SilenceTimeout:   300 * time.Millisecond,
		&c.HandshakeTimeout: 15 * time.Second,
		&c.DialTimeout:      15 * time.Second,
		&c.AddressTimeout:   3 * time.Second,
		&c.IdleTimeout:      time.Hour,
	} {
		if *d <= 0 {
			*d = def
		}
	}
}

// Proxy is the egress proxy. Only [New] makes one. Safe for concurrent use.
type Proxy struct {
	cfg  Config
	live liveTable
	tls  boxTLSTable

	// onRecheck and onCloseBox are told after the live connections of a box were handled, so that idle upstream
	// connections kept for it can be dropped. Set by New alone.
	onRecheck  []func(policy.BoxID)
	onCloseBox []func(policy.BoxID)

	// originalDst tells where a transparently accepted connection was going. Tests replace it.
	originalDst func(net.Conn) netip.AddrPort

	base   context.Context // of every connection; cancelled when the drain of Shutdown is over
	cancel context.CancelFunc

	mu        sync.Mutex
	closing   bool
	listeners map[net.Listener]struct{}
	running   sync.WaitGroup // one for each connection; Add under mu and only while not closing
}

// New returns a proxy that serves nothing yet. It refuses a configuration that lacks a required part.
func New(cfg Config) (*Proxy, error) {
	if cfg.Boxes == nil || cfg.Resolver == nil || cfg.Leaves == nil || cfg.Audit == nil {
		return nil, errors.New("proxy: Boxes, Resolver, Leaves and Audit are required")
	}
	cfg.setDefaults()
	p := &Proxy{cfg: cfg, originalDst: localAddr, listeners: map[net.Listener]struct{}{}}
	p.base, p.cancel = context.WithCancel(context.Background())
	return p, nil
}

// localAddr is where a transparently accepted connection was going: the kernel gave the socket that address as its own.
func localAddr(c net.Conn) netip.AddrPort {
	a, ok := c.LocalAddr().(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	to := a.AddrPort()
	return netip.AddrPortFrom(to.Addr().Unmap().WithZone(""), to.Port())
}
