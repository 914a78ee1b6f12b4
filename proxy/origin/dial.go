// Package origin makes and pools connections to origin servers: to addresses that the current policy allows, over TLS with
// verified servers, in a separate pool per box.
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
	"sync"
	"syscall"
	"time"

	"boxgate/internal/memory"
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
	Credential func(ctx context.Context, secret string, host name.Name, port uint16) (value name.Secret, revoked func() bool, err error)
	// Panicked logs a panic while connecting to a server. It is called on the stack of the panic; it may be nil.
	Panicked  func(policy.BoxID, any)
	Services  Services // of the operator; nil: there are none
	MaxPerBox int      // connections of a box, in use or idle
	MaxAll    int      // connections of all boxes together; the last quarter is reserved for boxes with few; 0: no limit
	MaxExtra  int      // parallel attempts of all boxes in addition to the first of each connection
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

// Services connects to the services that the operator opens to boxes by name. Safe for concurrent use.
type Services interface {
	// IsGateway reports whether a connection to an address would reach a socket of the gateway.
	IsGateway(netip.AddrPort) bool
	// DialBox connects to a service in a box at the address that it has now. ok is false for a service outside of boxes.
	DialBox(ctx context.Context, service name.Name, at netip.AddrPort) (conn net.Conn, ok bool, err error)
}

// judgeService refuses services, of the operator and of the cluster, at the gateway's own sockets, which the configuration cannot open.
func (p *Origins) judgeService(c *policy.Compiled, d Target, a netip.Addr) error {
	if !d.Request.Name.IsService() && !c.IsClusterAddr(a) {
		return nil
	}
	if p.cfg.Services == nil || p.cfg.Services.IsGateway(netip.AddrPortFrom(a, d.Asked.Port)) {
		return policy.Decision{Reason: name.ReasonHostPort, Version: d.Decision.Version}.Err(d.dialling(a))
	}
	return nil
}

// judgeDial asks the current policy whether an address may be dialled. Addresses of the gateway itself and the sink are
// always refused.
func (p *Origins) judgeDial(ctx context.Context, box *policy.Box, d Target, a netip.Addr) error {
	a = a.Unmap()
	c := box.Policy.Load()
	if p.cfg.Router.IsOwn(a) || p.cfg.Router.IsSink(a) {
		return policy.Decision{Reason: name.ReasonHostPort, Version: route.Version(c)}.Err(d.dialling(a))
	}
	was := d.Routed
	d.Bind(a)
	p.cfg.Router.Update(ctx, c, box, &d.Routed)
	if why := was.OverruledBy(d.Route); why != nil {
		return why
	}
	return p.judgeService(c, d, a)
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
	if d.Request.Name.IsService() && p.cfg.Services != nil {
		if err := p.judgeDial(ctx, box, d, a); err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		if conn, ok, err := p.cfg.Services.DialBox(ctx, d.Request.Name, netip.AddrPortFrom(a, d.Asked.Port)); ok {
			return conn, err
		}
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

// Target is the destination of a connection and the way to connect to it.
type Target struct {
	route.Routed
	name   name.Name // the host; zero if not known
	secure bool      // over TLS, with a certificate for name

	identity *Identity // authenticates the gateway; may be nil
	forward  bool      // it is a proxy of a forwarding rule, judged by the policy for proxies
	shown    name.Name // in errors
	literal  bool      // the box has given an address instead of a name
	legacy   bool      // old cipher suites are offered
	http1    bool      // HTTP/2 is not offered
}

// To returns the target of a route. secure is set for TLS.
func To(rt route.Routed, secure bool) Target {
	d := Target{Routed: rt}
	d.Set(Options{Secure: secure})
	return d
}

// Options are the properties of connections to a target that its route does not have.
type Options struct {
	Secure   bool      // over TLS, with a certificate for the name of the route
	Identity *Identity // authenticates the gateway; may be nil
	Legacy   bool      // the server is also offered old cipher suites
	HTTP1    bool      // the server is not offered HTTP/2
}

// Set completes a target that has its route. It works in place, as it is called for each request.
func (d *Target) Set(o Options) {
	d.name, d.shown = d.Request.Name, d.Request.Name
	d.secure, d.identity, d.legacy, d.http1 = o.Secure, o.Identity, o.Legacy, o.HTTP1
}

// Literal returns the target for a box that has given an address instead of a name: other addresses of names with that
// address must not be used.
func (d Target) Literal() Target {
	d.literal = true
	return d
}

// Via returns, for requests to d, the target of a proxy that the policy for proxies ([policy.Compiled.Forwarding]) has a
// route to, over verified TLS, with the other options of d. Errors mention d.
func (d *Target) Via(rt route.Routed) *Target {
	via := &Target{Routed: rt, forward: true}
	via.Set(Options{Secure: true, Identity: d.identity, Legacy: d.legacy, HTTP1: d.http1})
	via.shown = d.shown
	return via
}

// boxOf returns the box in whose name connections are made. For proxies it has the policy for proxies.
func (d Target) boxOf(box *policy.Box) *policy.Box {
	if !d.forward {
		return box
	}
	own := &policy.Box{ID: box.ID}
	own.Policy.Store(box.Policy.Load().Forwarding())
	return own
}

// key identifies the targets of a box that may share a connection: one host, judged alike.
type key struct {
	name   name.Name
	addr   netip.Addr // of a destination allowed by address; invalid where the name decided
	port   uint16
	secure bool

	identity string // of the client certificate; "": no certificate
	forward  bool
	by       string // the key of the upstream proxy; "": no proxy
	from     policy.Source
	legacy   bool
	http1    bool
	audited  bool // connected only because the policy is audited; no credential is sent on it
}

// decider returns the part of a box's policy that decides about connections of the key.
func (k key) decider(c *policy.Compiled) *policy.Compiled {
	switch {
	case k.forward:
		return c.Forwarding()
	case k.audited:
		return c
	}
	return c.Enforced()
}

// shown returns the name for errors, or the zero name for a proxy, which the box does not know.
func (k key) shown() name.Name {
	if k.forward {
		return name.Name{}
	}
	return k.name
}

func (d *Target) key() key {
	k := key{name: d.Asked.Name, port: d.Asked.Port, secure: d.secure, identity: d.identity.key(), forward: d.forward, by: d.Upstream.Key()}
	k.from, k.legacy, k.http1, k.audited = d.From, d.legacy, d.http1, d.Audited
	if !d.ByName {
		k.addr = d.Asked.Addr
	}
	return k
}

// Client identifies the client of a connection to a server.
type Client struct {
	Box    *policy.Box
	Memory *memory.Account            // of the box
	Denied func() *policy.DeniedError // returns the reason why the box may not have more connections, or nil
}

// This part tries the addresses of a name as the box's own client would (RFC 8305): the client's connection to the gateway
// has already succeeded, so it does not try other addresses itself.

const (
	// Stagger is the time after which the next address is tried in parallel (RFC 8305, 5).
	Stagger = 250 * time.Millisecond
	// mostAddresses limits the addresses tried for one connection.
	mostAddresses = 16
	// mostExtra limits the extra attempts of a box at the same time.
	mostExtra = 64
)

// extras counts the attempts of boxes that run in parallel to another of the same connection. Limits on connections assume
// one socket to a server, and a name under the box's control may have any number of addresses that never answer. Safe for
// concurrent use.
type extras struct {
	most int // of all boxes

	mu    sync.Mutex
	all   int
	boxes map[policy.BoxID]int
}

// acquire counts one more attempt of a box and returns true, or returns false at the limit. The caller must call leave.
func (e *extras) acquire(box policy.BoxID) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.all >= e.most || e.boxes[box] >= min(mostExtra, max(1, e.most/4)) {
		return false
	}
	if e.boxes == nil {
		e.boxes = map[policy.BoxID]int{}
	}
	e.all++
	e.boxes[box]++
	return true
}

func (e *extras) release(box policy.BoxID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all--
	if e.boxes[box]--; e.boxes[box] == 0 {
		delete(e.boxes, box)
	}
}

// Extra returns the number of extra attempts of all boxes.
func (p *Origins) Extra() int {
	p.extras.mu.Lock()
	defer p.extras.mu.Unlock()
	return p.extras.all
}

// race is the state of connecting to one of several addresses.
type race struct {
	p   *Origins
	ctx context.Context
	box *policy.Box

	d       Target
	alone   func() bool  // reports whether only the race's own attempts are running; nil: always
	addrs   []netip.Addr // not yet tried
	others  netip.Addr   // if valid, look up the rest of the name's addresses; this one was already tried
	results chan attempt
	running int   // number of attempts, including the lookup of other addresses
	failed  error // error of the attempts
}

// attempt is the result of an attempt, or of the lookup of other addresses.
type attempt struct {
	conn     net.Conn
	err      error
	found    []netip.Addr
	panicked any
}

// DialFirst connects box to the first of the candidates that accepts; after Stagger, the next is tried in parallel. If the
// only candidate is the address that the box has chosen for a name, the other addresses of the name follow, each judged
// like the first. It is [Origins.Dial] after [Origins.Candidates].
func (p *Origins) DialFirst(ctx context.Context, box *policy.Box, d Target, addrs []netip.Addr) (net.Conn, error) {
	r := &race{p: p, box: box, d: d, addrs: addrs}
	if p.hasOthers(box, d, addrs) {
		r.others = addrs[0]
	}
	if len(addrs) == 1 && !r.others.IsValid() {
		conn, err := p.DialAddr(ctx, box, d, addrs[0], false)
		if err != nil {
			err = r.verdict(err)
		}
		return conn, err
	}
	if len(addrs) == 0 {
		return r.run(ctx)
	}
	return r.runAfterFirst(ctx)
}

// DialOthers connects box to one of the other addresses of d's name, apart from the one that the box has chosen and the
// caller tries. alone reports whether that attempt has ended; it is called in the caller's goroutine. An error means that
// there are no other addresses, or that all refuse.
func (p *Origins) DialOthers(ctx context.Context, box *policy.Box, d Target, tried netip.Addr, alone func() bool) (net.Conn, error) {
	if !p.hasOthers(box, d, []netip.Addr{tried}) {
		return nil, errNoOthers
	}
	return (&race{p: p, box: box, d: d, alone: alone, others: tried}).run(ctx)
}

var errNoOthers = errors.New("there is no other address")

// hasOthers reports whether the name of d may have other addresses than the only candidate, and the box could choose
// between them: the candidate was granted for the name.
func (p *Origins) hasOthers(box *policy.Box, d Target, addrs []netip.Addr) bool {
	return len(addrs) == 1 && !d.There && !d.literal && !d.name.IsZero() && addrs[0].IsValid() && addrs[0] == d.Asked.Addr.Unmap() &&
		p.cfg.Resolver.Granted(box.ID, d.name, addrs[0]) && (d.ByName || resolvable(box, d.name))
}

// resolvable reports whether the current policy allows a lookup of the name at the upstream DNS servers. The box may have
// resolved it under an earlier policy.
func resolvable(box *policy.Box, n name.Name) bool {
	c := box.Policy.Load()
	return c.Decide(policy.Request{Stage: policy.StageDNS, Box: box.ID, Name: n}).Allowed() || c.ResolvesOthers(n)
}

// isOfAll reports whether an address belongs to every name that the connection may be for. If the client has not sent its
// host, these are the names granted for the address that it dialled. Anyone can publish a name with that address and one
// under his own control.
func (p *Origins) isOfAll(box *policy.Box, d Target, a netip.Addr) bool {
	stranger := func(n name.Name) bool { return !p.cfg.Resolver.Granted(box.ID, n, a) }
	return d.Action == policy.Broker || !slices.ContainsFunc(d.Known.Told, stranger) // a broker's server proves its name
}

// runAfterFirst tries the first address in the caller's goroutine: most connections need no other. The other attempts
// begin once it has failed, or in parallel after the stagger.
func (r *race) runAfterFirst(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r.ctx, r.results, r.running = ctx, make(chan attempt), 1
	first, d, won := r.addrs[0], r.d, make(chan attempt, 1) // the timer's goroutine changes r.d for the other addresses
	r.addrs = r.addrs[1:]
	more := len(r.addrs) > 0
	others := time.AfterFunc(r.stagger(), func() {
		won <- recovered(func() (a attempt) {
			a.conn, a.err = r.tryAll(ctx, cancel)
			return a
		})
	})
	end := recovered(func() (a attempt) {
		a.conn, a.err = r.p.DialAddr(ctx, r.box, d, first, more)
		return a
	})
	if !others.Stop() {
		r.results <- end
		end = <-won
	} else if end.err != nil {
		r.running, r.failed = 0, end.err
		return r.tryAll(ctx, cancel)
	}
	if end.panicked != nil {
		panic(end.panicked) // it closes the connection that needs it
	}
	return end.conn, end.err
}

// run tries the addresses until one accepts or all have failed.
func (r *race) run(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	r.ctx, r.results = ctx, make(chan attempt)
	return r.tryAll(ctx, cancel)
}

// stagger returns the time after which the next address is tried in parallel.
func (r *race) stagger() time.Duration {
	if r.d.Upstream != nil {
		return r.p.cfg.AddressTimeout // a proxy answers only after it has reached the server
	}
	return Stagger
}

// tryAll begins the next attempt, and then others until one succeeds or all have failed. cancel ends the running ones.
func (r *race) tryAll(ctx context.Context, cancel context.CancelFunc) (net.Conn, error) {
	defer cancel()
	defer func() { go drain(r.results, r.running) }()
	stagger := r.stagger()
	next := time.NewTimer(stagger)
	defer next.Stop()
	for r.start(); r.running > 0 || len(r.addrs) > 0 && ctx.Err() == nil; {
		var ended <-chan struct{}
		if r.running == 0 { // no extra attempt is available yet
			ended = ctx.Done()
		}
		select {
		case <-ended:
		case <-next.C:
			r.start()
		case a := <-r.results:
			r.running--
			switch {
			case a.panicked != nil:
				panic(a.panicked) // it closes the connection that needs it
			case a.conn != nil:
				return a.conn, nil
			case a.err != nil:
				r.failed = errors.Join(r.failed, a.err)
			}
			r.addrs = append(r.addrs, a.found...)
			if ctx.Err() == nil {
				r.start()
			}
		}
		next.Reset(stagger)
	}
	return nil, r.verdict(r.failed)
}

// start begins the next attempt, or the lookup of other addresses after all known ones. At the limit of extra attempts it
// waits for the running one.
func (r *race) start() {
	switch {
	case len(r.addrs) > 0:
		extra := r.running > 0 || r.alone != nil && !r.alone()
		if extra && !r.p.extras.acquire(r.box.ID) {
			return
		}
		a := r.addrs[0]
		r.addrs = r.addrs[1:]
		d, more := r.d, len(r.addrs) > 0
		r.begin(func() (end attempt) {
			if extra {
				defer r.p.extras.release(r.box.ID)
			}
			end.conn, end.err = r.p.DialAddr(r.ctx, r.box, d, a, more)
			return end
		})
	case r.others.IsValid():
		tried := r.others
		r.others = netip.Addr{}
		r.d.ByName = true // the addresses found belong to the name
		d := r.d
		r.begin(func() attempt { return attempt{found: r.p.others(r.ctx, r.box, d, tried)} })
	}
}

// begin runs a part of the race in a goroutine. It passes a panic on, which would end the gateway there.
func (r *race) begin(part func() attempt) {
	r.running++
	go func() { r.results <- recovered(part) }()
}

// recovered returns the result of a part of the race, or its panic.
func recovered(part func() attempt) (end attempt) {
	defer func() {
		if v := recover(); v != nil {
			end = attempt{panicked: v}
		}
	}()
	return part()
}

// drain closes connections that succeed after another.
func drain(results <-chan attempt, running int) {
	for range running {
		if a := <-results; a.conn != nil {
			socket.Abort(a.conn)
		}
	}
}

// others returns the addresses of d's name without the one that was tried, alternating families and beginning with the
// other one. The connection may go to each, and each was judged.
func (p *Origins) others(ctx context.Context, box *policy.Box, d Target, tried netip.Addr) (good []netip.Addr) {
	addrs, err := p.cfg.Resolver.Lookup(ctx, box, d.name)
	if err != nil {
		return nil
	}
	for _, a := range route.Interleave(addrs, tried.Is4()) {
		if a != tried && len(good) < mostAddresses && p.isOfAll(box, d, a) && p.judgeDial(ctx, box, d, a) == nil {
			good = append(good, a)
		}
	}
	return good
}

// verdict returns the error after all attempts have failed.
func (r *race) verdict(failed error) error {
	var denied *policy.DeniedError
	var proxy *problem.Upstream // takes precedence over other errors
	switch {
	case errors.As(failed, &denied):
		return denied
	case errors.As(failed, &proxy):
		return proxy
	}
	return &problem.Upstream{Reason: name.ReasonUnreachable, Name: r.d.shown, Err: failed}
}
