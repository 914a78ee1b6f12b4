package origin

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"maps"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"boxgate/internal/socket"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy/problem"
	"boxgate/proxy/route"
)

// Config configures [Origins]. All fields are required except the limits over all boxes.
type Config struct {
	Router           *route.Router
	Resolver         route.Resolver
	Roots            *x509.CertPool // for server certificates; nil: the system's
	DialTimeout      time.Duration  // for resolving and dialling, over all addresses
	AddressTimeout   time.Duration  // for one of several addresses
	HandshakeTimeout time.Duration
	// Credential returns the value of a secret of the configuration, for upstream proxies, and a function that reports
	// whether it has been revoked since. nil: there are no secrets.
	Credential func(ctx context.Context, secret string) (value name.Secret, revoked func() bool, err error)
	MaxPerBox  int // connections of a box, in use or idle
	MaxAll     int // connections of all boxes together; the last quarter is reserved for boxes with few; 0: no limit
	MaxExtra   int // parallel attempts of all boxes in addition to the first of each connection
}

// Origins makes connections to origin servers and pools them per box: no box can affect the connections of another. Create
// it with [New]. Safe for concurrent use.
type Origins struct {
	cfg    Config
	pools  allPools
	extras extras
}

// New returns an Origins without connections.
func New(cfg Config) *Origins {
	return &Origins{cfg: cfg, extras: extras{most: cfg.MaxExtra}}
}

// CloseBox drops the state of a box. HTTP/1.1 connections in use are closed by their clients.
func (p *Origins) CloseBox(box policy.BoxID) { p.pools.closeBox(box) }

// CloseIdle closes the connections of a box that have been idle for age or longer.
func (p *Origins) CloseIdle(box policy.BoxID, age time.Duration) {
	if pool := p.pools.find(box); pool != nil {
		pool.conns.CloseIdle(age)
	}
}

// CloseElsewhere closes the idle connections of a box whose source address its policy no longer uses.
func (p *Origins) CloseElsewhere(box policy.BoxID) {
	if pool := p.pools.find(box); pool != nil {
		pool.conns.CloseUnfit()
	}
}

// CloseAllIdle closes the idle connections of all boxes.
func (p *Origins) CloseAllIdle() {
	p.pools.mu.RLock()
	pools := slices.Collect(maps.Values(p.pools.boxes))
	p.pools.mu.RUnlock()
	for _, pool := range pools {
		pool.conns.CloseIdle(0)
	}
}

// Open returns the number of connections to servers of all boxes, in use or idle.
func (p *Origins) Open() int { return int(p.pools.open.Load()) }

// Stats returns the number of connections of a box.
func (p *Origins) Stats(box policy.BoxID) (n Stats) {
	if pool := p.pools.find(box); pool != nil {
		now := pool.conns.Stats()
		n = Stats{Open: pool.conns.Open(), Idle: now.Idle, Hosts: now.Ports}
	}
	return n
}

// Close drops the state of all boxes.
func (p *Origins) Close() { p.pools.close() }

// sessionsOf returns the TLS session cache of a box, which is not shared with other boxes, or nil after the box was
// removed.
func (p *Origins) sessionsOf(box policy.BoxID) tls.ClientSessionCache {
	if pool := p.pools.find(box); pool != nil {
		return pool.sessions
	}
	return nil
}

// Dial connects box to d. Every address is judged by the current policy, and again by the dialer once the socket exists.
// Errors are of type *[policy.DeniedError] or *[problem.Upstream].
func (p *Origins) Dial(ctx context.Context, box *policy.Box, d Target) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.DialTimeout)
	defer cancel()
	box = d.boxOf(box)
	addrs, err := p.Candidates(ctx, box, d)
	if err != nil {
		return nil, d.hidden(err)
	}
	conn, err := p.DialFirst(ctx, box, d, addrs)
	return conn, d.hidden(err)
}

// hidden returns err. If it is a denial about a proxy, hidden replaces it: the box has not requested the proxy and must not
// learn its address.
func (d Target) hidden(err error) error {
	var denied *policy.DeniedError
	if !d.forward || !errors.As(err, &denied) {
		return err
	}
	return &problem.Upstream{Reason: name.ReasonUnreachable, Name: d.shown, Err: errors.New(denied.Error())}
}

// Candidates returns the addresses of d that the current policy allows, in the order to try them. The zero Addr stands for
// any address that an upstream proxy finds. If no address is allowed, the error is of type *[policy.DeniedError] or
// *[problem.Upstream].
func (p *Origins) Candidates(ctx context.Context, box *policy.Box, d Target) ([]netip.Addr, error) {
	if d.There {
		if err := p.judgeName(ctx, box, d); err != nil {
			return nil, err
		}
		return []netip.Addr{{}}, nil
	}
	addrs, err := p.addresses(ctx, box, d)
	if err != nil {
		return nil, &problem.Upstream{Reason: name.ReasonUnresolved, Name: d.shown, Err: err}
	}
	var good []netip.Addr
	var denied error
	for _, a := range addrs {
		if err := p.judgeDial(ctx, box, d, a); err != nil {
			denied = err
			continue
		}
		good = append(good, a)
	}
	switch {
	case len(good) > 0:
		return good, nil
	case denied != nil:
		return nil, denied
	default:
		return nil, &problem.Upstream{Reason: name.ReasonUnresolved, Name: d.shown}
	}
}

// addresses returns the possible addresses of d, not yet judged. The address that the box dialled is used for a name only
// while a grant maps the name to it: otherwise it is merely the box's claim.
func (p *Origins) addresses(ctx context.Context, box *policy.Box, d Target) ([]netip.Addr, error) {
	orig := d.Asked.Addr.Unmap()
	if !d.ByName {
		if !orig.IsValid() {
			return nil, nil
		}
		return []netip.Addr{orig}, nil
	}
	if d.name.IsZero() {
		return nil, nil
	}
	if orig.IsValid() && p.cfg.Resolver.Granted(box.ID, d.name, orig) {
		return []netip.Addr{orig}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, p.cfg.DialTimeout)
	defer cancel()
	addrs, err := p.cfg.Resolver.Lookup(ctx, box, d.name)
	if err != nil {
		return nil, err
	}
	return route.Interleave(addrs, orig.Is6()), nil
}

// judgeDial asks the current policy whether an address may be dialled. Addresses of the gateway itself and the sink are
// always refused.
func (p *Origins) judgeDial(ctx context.Context, box *policy.Box, d Target, a netip.Addr) error {
	a = a.Unmap()
	c := box.Policy.Load()
	if p.cfg.Router.IsOwn(a) || p.cfg.Router.IsSink(a) {
		return policy.Decision{Reason: name.ReasonHostPort, Version: route.Version(c)}.Err(d.dialling(a))
	}
	asked, known := d.At(a)
	if why := d.OverruledBy(p.cfg.Router.Route(ctx, c, box, asked, known).Route); why != nil {
		return why
	}
	return nil
}

// dialling returns the policy request for one address of the target.
func (d Target) dialling(a netip.Addr) policy.Request {
	return policy.Request{Stage: policy.StageDial, Box: d.Asked.Box, Name: d.name, Addr: a, Port: d.Asked.Port, Protocol: policy.TCP}
}

// DialAddr dials one address. The dialer judges the address of the socket just before it connects, so no code in between
// can have changed it.
func (p *Origins) DialAddr(ctx context.Context, box *policy.Box, d Target, a netip.Addr, others bool) (net.Conn, error) {
	timeout := p.cfg.DialTimeout
	if others {
		timeout = p.cfg.AddressTimeout
	}
	if d.Upstream != nil {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		return p.dialBy(ctx, box, d, a)
	}
	from, ok := d.From.For(a)
	if !ok {
		return nil, d.sourceless(errNoSource)
	}
	var unbound error
	dialer := net.Dialer{
		Timeout:         timeout,
		KeepAliveConfig: socket.KeepAlive(),
		ControlContext: func(ctx context.Context, _, address string, raw syscall.RawConn) error {
			to, err := netip.ParseAddrPort(address)
			if err != nil {
				return err
			}
			if err := p.judgeDial(ctx, box, d, to.Addr()); err != nil || !from.IsValid() {
				return err
			}
			err = raw.Control(func(fd uintptr) { unbound = socket.Bind(int(fd), from) })
			return errors.Join(err, unbound)
		},
	}
	conn, err := dialer.DialContext(ctx, "tcp", netip.AddrPortFrom(a, d.Asked.Port).String())
	if unbound != nil {
		return nil, d.sourceless(unbound)
	}
	return conn, err
}

// errNoSource is the error for a box with given source addresses and a destination of another family.
var errNoSource = errors.New("the box has no source address of this family")

// sourceless returns the error for a connection without a source address.
func (d Target) sourceless(why error) error {
	return &problem.Upstream{Reason: name.ReasonSourceAddress, Name: d.shown, Err: why}
}
