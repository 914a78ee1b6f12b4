package proxy

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"boxgate/audit"
	"boxgate/boundary"
	"boxgate/internal/fault"
	"boxgate/internal/memory"
	"boxgate/internal/socket"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy/live"
	"boxgate/proxy/peek"
	"boxgate/proxy/problem"
	"boxgate/proxy/recovery"
	"boxgate/proxy/route"
	"boxgate/proxy/usage"
)

// connCost is the memory that a connection uses at least, in bytes: its goroutines and its smallest initial buffers.
const connCost = 16 << 10

// conn is one client connection passing through the proxy. Only its handler uses it.
type conn struct {
	p            *Proxy
	tcp          *net.TCPConn
	own          *socket.Owned  // tracks the owner of the connection: see handOver and passToTunnel
	from         netip.Addr     // source address that identifies the box
	onlyBox      *policy.Box    // if not nil, the only box that the connection may belong to
	head         []byte         // bytes already read from the client by the acceptor
	orig         netip.AddrPort // original destination; Addr is invalid for the sink and for names given to the explicit proxy
	sink         netip.Addr     // the sink address that the client dialled, if it did
	bound        name.Name      // the name in CONNECT: the only allowed destination
	box          *policy.Box
	usage        *usage.Box   // counters of the box, or those shared by all unknown sources
	cost         int          // memory that it uses at least, in bytes
	firstClaim   memory.Claim // for the first bytes
	releaseGrant func()       // releases the DNS grant for the destination address; may be nil
	live         *live.Conn
	ctx          context.Context
	waited       time.Duration // from the time of the event until the wait for the first bytes began
	event        audit.Event   // initially a refusal for an internal error
	// opening records the decision when the allowed traffic begins; nil before that.
	opening *audit.Opening
	port    uint16
	// explicit is true until a CONNECT names the destination of an explicit proxy client.
	explicit bool
	literal  bool // the CONNECT named an address instead of a host
	linger   bool // a final message was sent that the client must be able to read: see [socket.LingeringClose]
	noEvent  bool // no event for the connection: each request records its own
	// mustSpeak is set after the server had its chance to speak first.
	mustSpeak bool
	spliced   spliced
	detour    atomic.Pointer[detour] // nil unless a tunnel is connecting
	// interception counts against the box's limit; nil if TLS is not terminated.
	interception *usage.Interception
}

// newConn starts the audit event of a newly accepted connection. The caller must run its handler as the owner.
func (p *Proxy) newConn(tcp *net.TCPConn, orig netip.AddrPort, own *socket.Owned) *conn {
	now := time.Now()
	c := &conn{
		p: p, tcp: tcp, own: own, cost: connCost, from: addrPort(tcp.RemoteAddr()).Addr(), orig: orig, port: orig.Port(), ctx: p.base,
		event: audit.Event{
			Time: now, Stage: policy.StageConn, Protocol: policy.TCP, Addr: orig.Addr(), Port: orig.Port(),
			Action: audit.ActionRefuse, Reason: name.ReasonInternal,
		},
	}
	own.End = c.close
	return c
}

// handleTransparent handles a connection that the firewall redirected to the proxy: it opens the event, finds the box,
// checks limits and the gateway's own addresses, reads the first bytes, routes and acts on the route.
func (c *conn) handleTransparent(listener netip.AddrPort) {
	if !c.admit() {
		return
	}
	if !c.orig.IsValid() || c.orig == listener || c.p.core.Router.IsOwn(c.orig.Addr()) {
		c.refuse(peek.Other, name.ReasonHostPort)
		return
	}
	if c.p.core.Router.IsSink(c.orig.Addr()) {
		c.sink = c.orig.Addr()
		c.orig = netip.AddrPortFrom(netip.Addr{}, c.port)
		c.event.Addr = netip.Addr{}
	}
	c.serve()
}

// admit finds the box and counts the connection against its limits. Once it has returned true, a cut or the removal of the
// box closes the connection.
func (c *conn) admit() bool {
	if c.findBox(c.from); c.box == nil {
		c.event.Error = "from " + c.from.String()
		c.refuse(peek.Other, name.ReasonUnknownBox)
		return false
	}
	c.event.Box = c.box.ID
	if !c.usage.Arrivals.Allow() {
		c.refuse(peek.Other, name.ReasonLimit)
		return false
	}
	if !c.usage.Memory.Acquire(memory.Connections, c.cost) {
		c.refuse(peek.Other, name.ReasonLimit)
		return false
	}
	ctx, cancel := context.WithCancel(c.p.base)
	if c.live = c.p.live.Add(c.box, c.tcp.RemoteAddr(), c.usage.Limit(policy.LimitConnections, c.p.cfg.MaxConns), cancel); c.live == nil {
		cancel()
		c.usage.Memory.Release(memory.Connections, c.cost)
		c.refuse(peek.Other, name.ReasonLimit)
		return false
	}
	c.ctx = ctx
	c.firstClaim.Open(c.usage.Memory, memory.FirstBytes)
	if c.p.cfg.Boxes.BoxByAddr(c.from) != c.box { // CloseBox may have run before the connection was in the table
		c.refuse(peek.Other, name.ReasonUnknownBox)
		return false
	}
	return c.live.Attach(c.tcp)
}

// close closes the connection, releases its resources and records its event. It runs exactly once for each connection,
// however its socket was closed. panicked is the value of a panic in the handler, or nil; a panic ends this connection
// only, and its text is not logged, because it could quote traffic.
func (c *conn) close(panicked any) {
	if panicked != nil {
		recovery.Log(c.p.cfg.Log, "panic in a connection", c.event.Box, panicked)
		c.event.Error = "fault of the gateway"
		c.noEvent = false
		c.refuse(peek.Other, name.ReasonInternal)
	}
	c.event.Duration = time.Since(c.event.Time)
	c.firstClaim.Release()
	if c.releaseGrant != nil {
		c.releaseGrant()
	}
	c.interception.End()
	if c.live != nil {
		c.event.BytesIn, c.event.BytesOut = c.live.In.Load(), c.live.Out.Load()
		if why := c.live.Stopped(); why != nil {
			c.event.Error = why.Error() // replaces errors that followed from it
		}
		defer c.p.live.Remove(c.live)
		c.usage.Memory.Release(memory.Connections, c.cost)
	}
	if c.opening != nil {
		c.opening.End(&c.event)
	}
	if !c.noEvent {
		c.recordEvent()
	}
	if c.linger {
		socket.LingeringClose(c.tcp)
	}
	_ = c.tcp.Close() // usually closed already
}

// serve reads the first bytes and acts on the policy's route for them.
func (c *conn) serve() {
	c.proceed(c.peek())
}

// proceed routes the connection by its first bytes and acts on the route. err is the error that ended the reading early, if
// any.
func (c *conn) proceed(f peek.First, err error) {
	if err != nil || f.Kind == peek.Oversize {
		c.refusePeek(f, err)
		return
	}
	if f.Kind == peek.HTTP {
		c.forward(f)
		return
	}
	fault.Mark(c.ctx, "proxy: first bytes read")
	if c.p.core.IsInside(c.box, f.Name) { // served over plain HTTP only, and never resolved
		c.event.Name = f.Name.String()
		c.refuse(f.Kind, name.ReasonHostPort)
		return
	}
	rt := c.decide(f)
	if (rt.Action == policy.Intercept || rt.Action == policy.Broker) && c.p.belongsToHost(rt.Request.Name) {
		rt.Route = refusedRoute(rt.Route, name.ReasonHostPort)
	}
	switch c.noteDecision(f, rt.Route); {
	case rt.Action == policy.AwaitClient && f.Kind == peek.Silent: // the policy changed during the wait
		c.mustSpeak = true
		c.proceed(c.peek())
	case rt.Action == policy.AwaitClient:
		c.refusePeek(f, os.ErrDeadlineExceeded)
	case rt.Action == policy.Refuse:
		c.deny(f, rt.Route)
	case f.Kind == peek.Silent && f.Ended && rt.Action != policy.Splice:
		_ = c.tcp.Close() // closed without sending anything: no data to judge or to forward
	case rt.Action == policy.Intercept:
		c.intercept(f, rt)
	case rt.Action == policy.Broker:
		c.broker(f, rt)
	default:
		c.splice(f, rt)
	}
}

// decide routes the connection and registers the route, so that a later policy can cut it.
func (c *conn) decide(f peek.First) route.Routed {
	pol := c.box.Policy.Load()
	asked, known := c.evidence(f)
	rt := c.p.core.Router.Route(c.ctx, pol, c.box, asked, known)
	c.event.Seen = seen(asked, known, c.literal || !c.bound.IsZero())
	c.orig = netip.AddrPortFrom(rt.Asked.Addr, c.port) // Route may have resolved the name from CONNECT
	if rt.Action == policy.Refuse || rt.Action == policy.AwaitClient {
		return rt
	}
	// This checks a policy that was applied since pol was loaded; later policies check the settled route.
	if c.live.SetRoute(rt); c.box.Policy.Load() != pol && c.p.recheck(c.live) {
		rt.Route = refusedRoute(rt.Route, name.ReasonPolicyChanged)
		rt.Decision.Version = route.Version(c.box.Policy.Load())
	}
	return rt
}

// refusedRoute returns a route that refuses the connection for a reason outside the policy.
func refusedRoute(rt policy.Route, why name.Reason) policy.Route {
	return policy.Route{Request: rt.Request, Decision: policy.Decision{Reason: why, Version: rt.Decision.Version}}
}

// noteDecision copies the decision into the event.
func (c *conn) noteDecision(f peek.First, rt policy.Route) {
	c.event.Name = rt.Request.Name.String()
	if c.event.Name == "" {
		c.event.Name = cmp.Or(f.SNI, c.bound.String())
	}
	if !rt.Decision.Allowed() {
		c.nameByDNS()
	}
	c.event.Verdict, c.event.Reason = rt.Decision.Verdict, rt.Decision.Reason
	c.event.Rule, c.event.Version = rt.Decision.Rule, rt.Decision.Version
	switch {
	case !rt.Decision.Allowed():
		c.event.Action = audit.ActionRefuse
	case rt.Action == policy.Intercept:
		c.event.Action = audit.ActionIntercept
	case rt.Action == policy.Broker:
		c.event.Action = audit.ActionBroker
	default:
		c.event.Action = audit.ActionSplice
	}
}

// nameByDNS fills in the name of a refusal's event if the client sent no name: the latest name in whose DNS answer the box got the address. The log can then suggest a rule for that name.
func (c *conn) nameByDNS() {
	at := c.orig.Addr()
	if !at.IsValid() {
		at = c.sink
	}
	if c.event.Name != "" || c.box == nil || !at.IsValid() {
		return
	}
	if names := c.p.cfg.Resolver.GrantedNames(c.box.ID, at); len(names) > 0 {
		c.event.Name = names[0].String()
	}
}

// firstBytesBy returns the time at which the wait for the first bytes has lasted d.
func (c *conn) firstBytesBy(d time.Duration) time.Time { return c.event.Time.Add(c.waited + d) }

// restartWait lets the wait for the first bytes begin again.
func (c *conn) restartWait() { c.waited = time.Since(c.event.Time) }

// peek reads the first message. Where the policy requires the client to speak first, silence is a timeout. Most clients
// have sent something when their connection is accepted, so the policy is evaluated for silence only after a pause.
func (c *conn) peek() (peek.First, error) {
	deadline, silence := c.firstBytesBy(c.p.cfg.PeekTimeout), time.Time{}
	if !c.mustSpeak {
		if len(c.head) == 0 && policy.ServerSpeaksFirst(c.port) && c.mayBeSilent() {
			return peek.First{Kind: peek.Silent}, nil
		}
		silence = c.firstBytesBy(c.p.cfg.SilenceTimeout)
	}
	f, err := peek.Read(c.tcp, &c.firstClaim, c.head, deadline, silence)
	silent := err == nil && f.Kind == peek.Silent && !f.Ended
	if (silent || pausedInLine(f, err)) && !c.mayBeSilent() {
		f, err = peek.Read(c.tcp, &c.firstClaim, f.Data, deadline, time.Time{})
	}
	if pausedInLine(f, err) {
		return f, nil // possibly another protocol with a similar beginning, whose server speaks next
	}
	return f, err
}

// pausedInLine reports whether reading f ended in a pause after the beginning of a request line.
func pausedInLine(f peek.First, err error) bool {
	return errors.Is(err, os.ErrDeadlineExceeded) && f.Kind == peek.Partial && !f.BeginsTLS()
}

// mayBeSilent reports whether a client that sends nothing may be waiting for its server to speak first.
func (c *conn) mayBeSilent() bool {
	if c.mustSpeak {
		return false
	}
	asked, known := c.evidence(peek.First{Kind: peek.Silent})
	return c.box.Policy.Load().Route(asked, known).Action != policy.AwaitClient
}

// forward passes plain HTTP to the message loop, which judges each request by its Host.
func (c *conn) forward(f peek.First) {
	c.noEvent = true
	s := c.p.core.NewSession(c.box, c.usage, c.live, newReplay(c, f.Data))
	s.Orig, s.Port, s.Explicit = c.orig, c.port, c.explicit
	c.serveHTTP1(s)
}

// startTraffic records that the allowed traffic begins, and holds the DNS grant for the destination address until the connection is
// closed.
func (c *conn) startTraffic() {
	if rt, ok := c.live.Route(); ok && c.releaseGrant == nil && c.orig.Addr().IsValid() {
		c.releaseGrant = c.p.cfg.Resolver.RetainGrant(c.box.ID, rt.Request.Name, c.orig.Addr())
	}
	c.opening = &audit.Opening{}
	c.opening.Begin(c.p.cfg.Audit, &c.event)
}

// step is one stage of handling a connection. It returns the next step, or nil after the last one.
type step func() step

// handOver continues an allowed connection in a new goroutine, and runs each further step in another. Reading the first
// bytes, a handshake and requests grow a goroutine's stack to several times its initial size, and it would keep that for
// the life of the connection. The caller must not use the connection afterwards.
func (c *conn) handOver(next step) {
	c.head = nil
	c.own.Go(func() {
		if after := next(); after != nil {
			c.handOver(after)
		}
	})
}

// findBox looks up the box by source address, and its counters. If the box is removed at the same time, the source counts as
// unknown, and the counters that CloseBox has dropped are not recreated.
func (c *conn) findBox(from netip.Addr) {
	boxes := c.p.cfg.Boxes
	c.box = boxes.BoxByAddr(from)
	if c.onlyBox != nil && c.box != c.onlyBox {
		c.box = nil
	}
	c.usage = c.p.usages.Of(c.box)
	if c.box != nil && boxes.BoxByAddr(from) != c.box {
		c.p.usages.Forget(c.box.ID)
		c.box, c.usage = nil, c.p.usages.Of(nil)
	}
}

// recordEvent records the event. Refusals that a box can trigger as fast as it can connect are coalesced.
func (c *conn) recordEvent() {
	if c.usage != nil && (c.event.Reason == name.ReasonLimit || c.event.Reason == name.ReasonUnknownBox) {
		c.usage.Refusals.Add(c.event)
		return
	}
	c.p.cfg.Audit.Record(c.event)
}

// This part collects the evidence for routing a connection. The full table is in docs/first-bytes.md.

// evidence returns the policy request and evidence for a connection whose first bytes are f. They do not depend on how the
// connection arrived: first bytes in a tunnel of the explicit proxy are treated like any others.
func (c *conn) evidence(f peek.First) (policy.Request, policy.Evidence) {
	r := c.connRequest(f.Name)
	e := policy.Evidence{Opening: f.Opening(), Bound: c.bound}
	begunTLS := f.Kind == peek.TLS || f.Kind == peek.BadTLS // names resolved by the box are no evidence here
	if c.bound.IsZero() && r.Addr.IsValid() && !begunTLS {
		e.Told = c.p.cfg.Resolver.GrantedNames(c.box.ID, r.Addr)
	}
	if c.bound.IsZero() && c.sink.IsValid() && !begunTLS {
		e.Told = c.services()
	}
	return r, e
}

// services returns the service that a connection to the sink without a name is for: the only one on its port that the policy allows, or
// the one of several that DNS answered last. While the connection may be for a denied name, which has the same address, it is for no
// service.
func (c *conn) services() []name.Name {
	pol, told := c.box.Policy.Load(), c.p.cfg.Resolver.GrantedNames(c.box.ID, c.sink)
	if len(told) > 0 && !slices.Contains(pol.ServicesOn(0), told[0]) {
		return nil
	}
	possible := pol.ServicesOn(c.port)
	if len(possible) < 2 {
		return possible
	}
	for _, n := range told {
		if slices.Contains(possible, n) {
			return []name.Name{n}
		}
	}
	return nil
}

// seen returns the part of the evidence that other policies need for a decision about the same connection.
func seen(r policy.Request, e policy.Evidence, proxied bool) audit.Seen {
	s := audit.Seen{Known: true, Opening: e.Opening, Proxied: proxied}
	switch {
	case !r.Name.IsZero():
		s.Source = audit.NameSent
	case !e.Bound.IsZero():
		s.Source = audit.NameBound
	case len(e.Told) == 1:
		s.Source = audit.NameLooked
	case len(e.Told) > 1:
		s.Source = audit.NameGuess
	}
	return s
}

// connRequest returns the requested destination of the connection, under the given name.
func (c *conn) connRequest(name name.Name) policy.Request {
	return policy.Request{
		Stage: policy.StageConn, Box: c.box.ID, Name: name, Addr: c.orig.Addr(), Port: c.port, Protocol: policy.TCP,
	}
}

// replayConn returns the peeked bytes before reading more, and counts the bytes in both directions. Safe for one reader
// and one writer at a time.
type replayConn struct {
	net.Conn // TCP, read and written directly
	head     []byte
	claim    *memory.Claim // for head
	live     *live.Conn
}

// newReplay returns a replayConn that takes ownership of head, the first bytes of the connection.
func newReplay(c *conn, head []byte) *replayConn {
	return &replayConn{Conn: socket.NewDirect(c.tcp), head: head, claim: &c.firstClaim, live: c.live}
}

// Read returns the peeked bytes first.
func (c *replayConn) Read(b []byte) (int, error) {
	if len(c.head) > 0 {
		n := copy(b, c.head)
		if c.head = c.head[n:]; len(c.head) == 0 {
			c.head = nil // do not keep the buffer for the life of the connection
			c.claim.Release()
		}
		c.live.Out.Add(int64(n))
		return n, nil
	}
	n, err := c.Conn.Read(b)
	c.live.Out.Add(int64(n))
	return n, err
}

// Write writes to the client.
func (c *replayConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.live.In.Add(int64(n))
	return n, err
}

// ReadFrom copies r to the client, with splice(2) if r allows it.
func (c *replayConn) ReadFrom(r io.Reader) (int64, error) {
	n, err := io.Copy(c.Conn, r)
	c.live.In.Add(n)
	return n, err
}

// CloseWrite closes the sending side.
func (c *replayConn) CloseWrite() error {
	if t, ok := socket.TCP(c.Conn); ok {
		return t.CloseWrite()
	}
	return net.ErrClosed
}

// NetConn returns the underlying connection. Reading from it skips the peeked bytes.
func (c *replayConn) NetConn() net.Conn { return c.Conn }

const (
	pageBytes   = 64 << 10
	pageTimeout = 5 * time.Second // for reading the request that the denial page answers
)

// refuse refuses the connection in its own protocol and records the reason, replacing any earlier decision.
func (c *conn) refuse(k peek.Kind, why name.Reason) {
	c.event.Verdict, c.event.Action, c.event.Reason = policy.Deny, audit.ActionRefuse, why
	if k == peek.TLS || k == peek.BadTLS {
		_ = c.tcp.SetWriteDeadline(time.Now().Add(socket.LingerTime))
		_, _ = c.tcp.Write(accessDenied) // the client may have disconnected
		c.linger = true
		return
	}
	socket.Reset(c.tcp)
}

// deny refuses a connection that the policy denied: with an alert, or with a denial page if pages are enabled, the name is
// a public one, and the box is within its limit of interceptions. The page's leaf is issued by the box's CA, which other
// machines may trust as well, so names that mean a different host on each machine get no leaf.
func (c *conn) deny(f peek.First, rt policy.Route) {
	if c.p.cfg.DenyPage && f.Kind == peek.TLS && !f.NamesRoot() && f.Name.IsPublic() && !c.p.belongsToHost(f.Name) && c.live.Denied() == nil {
		if page := c.usage.Intercept(c.p.cfg.MaxInterceptions, len(f.Data)); page != nil {
			defer page.End()
			c.denyPage(f, rt)
			return
		}
	}
	c.refuse(f.Kind, rt.Decision.Reason)
}

// refusePeek refuses a connection whose first message could not be read.
func (c *conn) refusePeek(f peek.First, err error) {
	c.event.Name = f.SNI
	c.nameByDNS()
	switch {
	case errors.Is(err, memory.ErrFull):
		c.refuse(peek.Other, name.ReasonLimit)
	case f.Kind == peek.Oversize:
		c.refuse(peek.Other, name.ReasonPeekSize)
	case errors.Is(err, os.ErrDeadlineExceeded):
		c.refuse(peek.Other, name.ReasonPeekTimeout)
	case c.live.Stopped() != nil:
		c.refuse(peek.Other, name.ReasonPeekTimeout) // its deadline was shortened
	case c.live.Denied() != nil: // cut while peeking
		c.refuse(peek.Other, name.ReasonPolicyChanged)
	default:
		c.event.Error = err.Error()
		c.refuse(peek.Other, name.ReasonNoName)
	}
}

// denyPage terminates TLS with a leaf, reads one request and answers it with 403. The request is not forwarded: the decision
// applies to the whole connection.
func (c *conn) denyPage(f peek.First, rt policy.Route) {
	c.event.Verdict, c.event.Action, c.event.Reason = policy.Deny, audit.ActionRefuse, rt.Decision.Reason
	client, err := c.p.terminate(c.box, newReplay(c, f.Data), len(f.Data), f.Name, []string{"http/1.1"}, false)
	if err != nil {
		c.event.Error = err.Error()
		socket.Reset(c.tcp)
		return
	}
	_ = client.SetDeadline(time.Now().Add(pageTimeout))
	_, err = http.ReadRequest(bufio.NewReader(io.LimitReader(client, pageBytes)))
	if err != nil {
		c.event.Error = err.Error()
		socket.Reset(c.tcp)
		return
	}
	answer := problem.Of(rt.Err())
	c.p.core.Advise(c.box, &answer, boundary.Denial{Host: answer.Host, Port: c.port})
	c.event.Status = answer.Status
	_ = problem.Write(client, answer) // the client may have disconnected
	_ = client.CloseWrite()
	c.linger = true
}

// accessDenied is a TLS record with the fatal alert access_denied (RFC 8446, 6.2): the answer to a ClientHello with a
// refused name. It is sent before any certificate, so the client sees a refusal and not an untrusted server.
var accessDenied = []byte{21, 3, 3, 0, 2, 2, 49}
