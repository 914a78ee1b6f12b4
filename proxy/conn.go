package proxy

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"boxgate/audit"
	"boxgate/internal/fault"
	"boxgate/internal/memory"
	"boxgate/policy"
	"boxgate/proxy/contain"
	"boxgate/proxy/problem"
	"boxgate/proxy/socket"
	"boxgate/proxy/tunnel"
)

// conn is one client connection on its way through the proxy. Its handler alone uses it.
type conn struct {
	p     *Proxy
	tcp   *net.TCPConn
	head  []byte         // bytes of the client that were read by whoever accepted it
	orig  netip.AddrPort // where the box was going; Addr invalid when that is the sink or a name of the explicit proxy
	port  uint16
	bound policy.Name // the name CONNECT gave: the connection goes there or nowhere
	box   *policy.Box
	usage *usage       // what is counted for the box, or for all that are none
	first memory.Claim // what the first bytes take
	live  *liveConn
	ctx   context.Context
	since time.Time   // when the wait for the first bytes began
	event audit.Event // refused by a fault of the gateway until something else is known
	// opening tells of the decision if what it allows goes on; nil while nothing is allowed.
	opening *audit.Opening
	// explicit says that the client speaks to a proxy: no CONNECT has said yet where it wants to go.
	explicit bool
	handed   bool // another goroutine has the connection now
	last     bool // the client was told something last, and must be able to read it: see lingeringClose
	quiet    bool // no decision of its own: each request records one
	// mustSpeak says that the server had its chance to speak first.
	mustSpeak bool
}

// newConn opens the decision record of a connection just accepted.
func (p *Proxy) newConn(tcp *net.TCPConn, orig netip.AddrPort) *conn {
	now := time.Now()
	return &conn{
		p: p, tcp: tcp, orig: orig, port: orig.Port(), ctx: p.base, since: now,
		event: audit.Event{
			Time: now, Stage: policy.StageConn, Protocol: policy.TCP, Addr: orig.Addr(), Port: orig.Port(),
			Action: audit.ActionRefuse, Reason: policy.ReasonInternal,
		},
	}
}

// handleTransparent is the way of one connection that was steered here: record, box and limit, own addresses, first
// bytes, decision, and what the decision says.
func (p *Proxy) handleTransparent(tcp *net.TCPConn, listener netip.AddrPort) {
	c := p.newConn(tcp, p.originalDst(tcp))
	defer c.end()
	if !c.admit() {
		return
	}
	if !c.orig.IsValid() || c.orig == listener || p.isOwn(c.orig.Addr()) {
		c.refuse(kindOther, policy.ReasonHostPort)
		return
	}
	if p.isSink(c.orig.Addr()) {
		c.orig = netip.AddrPortFrom(netip.Addr{}, c.port)
		c.event.Addr = netip.Addr{}
	}
	c.serve()
}

// admit finds the box and counts the connection against its limits. From here on a cut closes it.
func (c *conn) admit() bool {
	from := addrPort(c.tcp.RemoteAddr()).Addr()
	if c.find(from); c.box == nil {
		c.event.Error = "from " + from.String()
		c.refuse(kindOther, policy.ReasonUnknownBox)
		return false
	}
	c.event.Box = c.box.ID
	if !c.usage.arrivals.Allow() {
		c.refuse(kindOther, policy.ReasonLimit)
		return false
	}
	if !c.usage.memory.Acquire(memory.Connections, connCost) {
		c.refuse(kindOther, policy.ReasonLimit)
		return false
	}
	ctx, cancel := context.WithCancel(c.p.base)
	if c.live = c.p.live.add(c.box, c.p.cfg.MaxConns, cancel); c.live == nil {
		cancel()
		c.usage.memory.Release(memory.Connections, connCost)
		c.refuse(kindOther, policy.ReasonLimit)
		return false
	}
	c.ctx = ctx
	c.first.Open(c.usage.memory, memory.FirstBytes)
	return c.live.attach(c.tcp)
}

// end closes the connection and records its decision. A panic of the handler ends here: the connection dies of it and
// nothing else does. Its text is not logged, as it might quote what passed through.
func (c *conn) end() {
	if c.handed {
		return
	}
	if v := recover(); v != nil {
		contain.Log(c.p.cfg.Log, "panic in a connection", c.event.Box, v)
		c.event.Error = "fault of the gateway"
		c.quiet = false
		c.refuse(kindOther, policy.ReasonInternal)
	}
	c.event.Duration = time.Since(c.event.Time)
	c.first.Release()
	if c.live != nil {
		c.event.BytesIn, c.event.BytesOut = c.live.in.Load(), c.live.out.Load()
		if why := c.live.stopped(); why != nil {
			c.event.Error = why.Error() // whatever followed from it
		}
		defer c.p.live.remove(c.live)
		c.usage.memory.Release(memory.Connections, connCost)
	}
	if c.opening != nil {
		c.opening.End(&c.event)
	}
	if !c.quiet {
		c.record()
	}
	if c.last {
		socket.LingeringClose(c.tcp)
	}
	_ = c.tcp.Close() // most often it is closed by now
}

// serve reads the first bytes and does what the policy says about them.
func (c *conn) serve() {
	c.proceed(c.peek())
}

// proceed does what the policy says about the first bytes; err is why they were not read to their end.
func (c *conn) proceed(f first, err error) {
	if err != nil || f.kind == kindOversize {
		c.refusePeek(f, err)
		return
	}
	if f.kind == kindHTTP {
		c.forward(f)
		return
	}
	fault.Mark(c.ctx, "proxy: first bytes read")
	v := c.decide(f)
	if v.intercept && c.p.isHosts(v.request.Name) {
		v = v.refused(policy.ReasonHostPort)
	}
	c.note(f, v)
	switch {
	case !v.decision.Allowed():
		c.deny(f, v)
	case f.kind == kindSilent && f.eof:
		_ = c.tcp.Close() // came and went without a word: there is nothing to bring anywhere
	case v.intercept:
		c.intercept(f, v)
	default:
		c.splice(f, v)
	}
}

// note puts what was decided into the event.
func (c *conn) note(f first, v verdict) {
	c.event.Name = v.request.Name.String()
	if c.event.Name == "" {
		c.event.Name = cmp.Or(f.sni, c.bound.String())
	}
	c.event.Verdict, c.event.Reason = v.decision.Verdict, v.decision.Reason
	c.event.Rule, c.event.Version = v.decision.Rule, v.decision.Version
	switch {
	case !v.decision.Allowed():
		c.event.Action = audit.ActionRefuse
	case v.intercept:
		c.event.Action = audit.ActionIntercept
	default:
		c.event.Action = audit.ActionSplice
	}
}

// peek reads the first message. On 80 and 443 the client speaks first and silence is no answer.
func (c *conn) peek() (first, error) {
	if c.clientSpeaksFirst() || c.mustSpeak {
		return peek(c.tcp, &c.first, c.head, c.since.Add(c.p.cfg.PeekTimeout), time.Time{})
	}
	if len(c.head) == 0 && slices.Contains(serverFirst, c.port) {
		return first{kind: kindSilent}, nil
	}
	f, err := peek(c.tcp, &c.first, c.head, c.since.Add(c.p.cfg.PeekTimeout), c.since.Add(c.p.cfg.SilenceTimeout))
	if errors.Is(err, os.ErrDeadlineExceeded) && f.kind == kindPartial && f.data[0] != recordHandshake && !c.namesDecide() {
		return f.complete(), nil // a protocol that begins like a request line, its server's turn now
	}
	return f, err
}

// serverFirst are ports of protocols in which the server greets: FTP, SSH, SMTP, POP3, NNTP, IMAP, submission, MySQL, VNC.
var serverFirst = []uint16{21, 22, 25, 110, 119, 143, 587, 2525, 3306, 5900}

// clientSpeaksFirst reports whether a silent client must not be let through: on the ports of TLS and HTTP, where a name
// has to come, and where a name this may be about is to be intercepted.
func (c *conn) clientSpeaksFirst() bool {
	if isWeb(c.port) {
		return true
	}
	pol := c.box.Policy.Load()
	return slices.ContainsFunc(c.impliedNames(), func(n policy.Name) bool { return pol.Intercepts(n, c.port) })
}

// impliedNames returns the names this connection may be for when its bytes do not say: the one CONNECT gave, else those
// for which the box was told the address it dialled.
func (c *conn) impliedNames() []policy.Name {
	switch {
	case !c.bound.IsZero():
		return []policy.Name{c.bound}
	case c.orig.Addr().IsValid():
		return c.p.cfg.Resolver.GrantedNames(c.box.ID, c.orig.Addr())
	default:
		return nil
	}
}

// forward hands plain HTTP to the message loop, which judges each request by its Host.
func (c *conn) forward(f first) {
	c.quiet = true
	s := &session{
		p: c.p, box: c.box, usage: c.usage, orig: c.orig, port: c.port, explicit: c.explicit, live: c.live,
		client: newReplay(c, f.data),
	}
	c.finish(s, c.p.serveHTTP1(c.ctx, s))
}

// intercept terminates TLS and hands what is inside to the message loop of the protocol that was negotiated.
func (c *conn) intercept(f first, v verdict) {
	if !c.usage.intercept(c.p.cfg.MaxInterceptions) {
		c.refuse(kindOther, policy.ReasonLimit) // reset: the policy denies nothing here
		return
	}
	defer c.usage.release()
	client, err := c.p.terminate(c.ctx, c.box, newReplay(c, f.data), v.request.Name, nil)
	if err != nil {
		c.event.Error = err.Error()
		c.refuse(kindOther, policy.ReasonClientTLS)
		return
	}
	if client.ConnectionState().NegotiatedProtocol == "h2" {
		if !c.usage.memory.Acquire(memory.HTTP2, http2Cost) {
			c.refuse(kindOther, policy.ReasonLimit)
			return
		}
		defer c.usage.memory.Release(memory.HTTP2, http2Cost)
	}
	c.open()
	s := &session{
		p: c.p, box: c.box, usage: c.usage, name: v.request.Name, orig: c.orig, port: c.port, secure: true,
		client: client, alpn: client.ConnectionState().NegotiatedProtocol, live: c.live,
	}
	if s.alpn == "h2" {
		c.finish(s, c.p.serveHTTP2(c.ctx, s))
		return
	}
	c.finish(s, c.p.serveHTTP1(c.ctx, s))
}

// finish ends the connection of a message loop in good order: what was answered last must arrive.
func (c *conn) finish(s *session, err error) {
	if c.live.denied() != nil {
		return
	}
	if err != nil {
		c.event.Error = err.Error()
	}
	_ = c.tcp.SetWriteDeadline(time.Now().Add(socket.LingerTime))
	if t, ok := s.client.(*tls.Conn); ok {
		_ = t.CloseWrite() // a client that is gone needs no close_notify
	}
	c.last = true
}

// splice dials the upstream and passes bytes unread, those that were peeked first.
func (c *conn) splice(f first, v verdict) {
	to := v.target(c)
	to.barred = c.barred(f, v)
	up, err := c.p.dial(c.ctx, c.box, to)
	if err != nil {
		c.failed(f, err)
		return
	}
	upstream, ok := socket.TCP(up)
	if !ok || !c.live.attach(upstream) {
		_ = up.Close()
		return
	}
	c.live.require(policy.Request{
		Stage: policy.StageDial, Box: c.box.ID, Name: v.request.Name,
		Addr: addrPort(upstream.RemoteAddr()).Addr(), Port: c.port, Protocol: policy.TCP,
	})
	if c.p.recheck(c.live) {
		return // which closed both
	}
	if c.owesName(f) && !c.serverSpoke(upstream) {
		c.live.detach(upstream)
		socket.Reset(upstream)
		c.live.unsettle()
		c.since, c.mustSpeak = time.Now(), true
		c.proceed(c.peek()) // judged by what the client says now, if anything
		return
	}
	_ = upstream.SetWriteDeadline(time.Now().Add(c.p.cfg.DialTimeout)) // the tunnel sets its own
	if _, err := upstream.Write(f.data); err != nil {
		_ = upstream.Close()
		c.failed(f, err)
		return
	}
	c.live.out.Add(int64(len(f.data)))
	c.first.Release()
	dialled(&c.event, addrPort(upstream.RemoteAddr()).Addr(), c.orig.Addr())
	c.open()
	c.handOver(upstream)
}

// open says that what was allowed begins.
func (c *conn) open() {
	c.opening = &audit.Opening{}
	c.opening.Begin(c.p.cfg.Audit, c.event)
}

// handOver lets a goroutine with a fresh stack carry the tunnel: the one that read a ClientHello has grown to several
// times the size, and would keep it for the life of the connection.
func (c *conn) handOver(upstream *net.TCPConn) {
	t := &conn{p: c.p, tcp: c.tcp, box: c.box, usage: c.usage, live: c.live, ctx: c.ctx, event: c.event, opening: c.opening}
	c.handed = true
	c.p.running.Add(1) // this handler still counts, so the count is not zero
	go func() {
		defer t.p.running.Done()
		defer t.end()
		count := tunnel.Counters{In: &t.live.in, Out: &t.live.out, Pipes: &t.usage.pipes}
		if err := t.p.tunnels.Splice(t.tcp, upstream, count, t.box.ID); err != nil && t.live.denied() == nil {
			t.event.Error = err.Error()
		}
	}()
}

// failed refuses an allowed connection whose upstream cannot be had, by the policy at the address or for another reason.
func (c *conn) failed(f first, err error) {
	var denied *policy.DeniedError
	if errors.As(err, &denied) {
		d := denied.Decision
		c.event.Addr, c.event.Rule, c.event.Version = denied.Request.Addr, d.Rule, d.Version
		c.refuse(f.kind, d.Reason)
		return
	}
	reason := policy.ReasonUnreachable
	var up *problem.Upstream
	if errors.As(err, &up) {
		reason = up.Reason
	}
	c.event.Error = err.Error()
	c.refuse(kindOther, reason) // as a server would that is not there
}
