package proxy

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/sys/unix"

	"boxgate/internal/socket"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy/exchange"
	"boxgate/proxy/origin"
	"boxgate/proxy/peek"
	"boxgate/proxy/problem"
	"boxgate/proxy/recovery"
	"boxgate/proxy/route"
	"boxgate/proxy/tunnel"
	"boxgate/relay/h2"
)

// This part forwards connections without parsing them.

// splice connects to the server and forwards the bytes unread, including the peeked ones.
func (c *conn) splice(f peek.First, rt route.Routed) {
	if c.isForURL(f, rt) {
		c.visit(f, rt.Request.Name)
		return
	}
	c.event.Via, c.event.Secrets = rt.Upstream.URL(), rt.Upstream.Secrets()
	deadline := time.Now().Add(c.p.cfg.DialTimeout)
	to := c.target(rt)
	addrs, err := c.p.core.Origins.Candidates(c.ctx, c.box, to)
	if err != nil {
		c.refuseFailed(f.Kind, err)
		return
	}
	alone := len(addrs) == 1 && rt.Action == policy.Splice && rt.Upstream == nil && !rt.Request.Name.IsService()
	if alone && c.startTunnel(f, rt, addrs[0], deadline) {
		return
	}
	ctx, cancel := context.WithDeadline(c.ctx, deadline)
	defer cancel()
	up, err := c.p.core.Origins.DialFirst(ctx, c.box, to, addrs)
	if err != nil {
		c.refuseFailed(f.Kind, err)
		return
	}
	c.forwardTo(f, rt, up)
}

// target returns the destination of the connection under a route.
func (c *conn) target(rt route.Routed) origin.Target {
	to := origin.To(rt, false)
	if c.literal {
		to = to.Literal()
	}
	return to
}

// forwardTo forwards between the client and a connected server.
func (c *conn) forwardTo(f peek.First, rt route.Routed, up net.Conn) {
	upstream, ok := socket.TCP(up)
	if !ok || !c.live.Attach(upstream) {
		_ = up.Close()
		return
	}
	if plain, ok := origin.Plain(up); ok {
		c.relay(f, rt, plain, addrPort(up.RemoteAddr()).Addr())
		return
	}
	c.relayLayered(f, rt, up)
}

// isForURL reports whether the connection is served locally, as a visit to a public URL of this gateway: TLS on the port of
// public URLs, with a name that the policy allows by name alone. The client dialled the sink, or used CONNECT with the
// name, so there is no address to judge or to dial.
func (c *conn) isForURL(f peek.First, rt route.Routed) bool {
	byName := f.Kind == peek.TLS && rt.Action == policy.Splice && rt.ByName && !rt.Asked.Addr.IsValid()
	return byName && c.p.cfg.URLs != nil && c.p.cfg.URLs.Served(rt.Request.Name, c.port)
}

// visit passes the connection to the server of the public URLs. The proxy still counts it and can cut it: a cut closes the
// socket and does not wait for that server's handler.
func (c *conn) visit(f peek.First, name name.Name) {
	c.startTraffic()
	c.live.Watch(visiting{})
	c.handOver(func() step {
		ended := make(chan struct{})
		c.p.handlers.Go(func() {
			defer close(ended)
			defer recovery.Panic(c.p.cfg.Log, c.box.ID, func() { _ = c.tcp.Close() })
			c.p.cfg.URLs.Visit(&visitor{Conn: c.tcp, c: c, first: f, rest: f.Data}, name)
		})
		select {
		case <-ended:
		case <-c.ctx.Done():
		}
		return nil
	})
}

// visiting implements [live.Requests] for requests to a public URL, which its server judges: to the proxy, the whole
// connection passes.
type visiting struct{}

// Recheck implements [live.Requests]. The connection itself is routed again.
func (visiting) Recheck(*policy.Compiled) policy.Decision {
	return policy.Decision{Verdict: policy.Allow}
}

// Revoked implements [live.Requests].
func (visiting) Revoked() bool { return false }

// InFlight implements [live.Requests].
func (visiting) InFlight() bool { return true }

// visitor is a box's connection as the server of a public URL reads it, including the peeked bytes.
type visitor struct {
	net.Conn
	c     *conn
	first peek.First
	rest  []byte // unread part of first
}

// NetConn returns the underlying connection, for socket options and addresses.
func (v *visitor) NetConn() net.Conn { return v.Conn }

// Read implements [net.Conn].
func (v *visitor) Read(p []byte) (n int, err error) {
	if len(v.rest) == 0 {
		n, err = v.Conn.Read(p)
	} else if n = copy(p, v.rest); n == len(v.rest) {
		v.rest = nil
		v.first.Recycle()
		v.c.firstClaim.Release()
	} else {
		v.rest = v.rest[n:]
	}
	v.c.live.Out.Add(int64(n))
	return n, err
}

// Write implements [net.Conn].
func (v *visitor) Write(p []byte) (int, error) {
	n, err := v.Conn.Write(p)
	v.c.live.In.Add(int64(n))
	return n, err
}

// relay forwards between the client and a connected server. at is the server's address, or the zero Addr if only an
// upstream proxy knows it.
func (c *conn) relay(f peek.First, rt route.Routed, upstream *net.TCPConn, at netip.Addr) {
	rt.Bind(at)
	if c.live.SetRoute(rt); c.p.recheck(c.live) {
		return // recheck closed both
	}
	if rt.Action == policy.AwaitServer {
		if !serverSpoke(c.tcp, upstream, c.p.cfg.IdleTimeout) {
			c.live.Detach(upstream)
			socket.Reset(upstream)
			c.live.SetRoute(route.Routed{})
			c.mustSpeak = true
			c.restartWait()
			c.proceed(c.peek()) // judged by what the client sends after the pause, if anything
			return
		}
		rt.Action, rt.Known.Greeted = policy.Splice, true
		if c.live.SetRoute(rt); c.p.recheck(c.live) {
			return
		}
	}
	_ = upstream.SetWriteDeadline(time.Now().Add(c.p.cfg.DialTimeout))
	if _, err := upstream.Write(f.Data); err != nil {
		_ = upstream.Close()
		c.refuseFailed(f.Kind, err)
		return
	}
	_ = upstream.SetWriteDeadline(time.Time{}) // fails only on a closed socket
	c.live.Out.Add(int64(len(f.Data)))
	f.Recycle()
	c.spliced = spliced{at: at}
	(*owner)(c).Opened()
	t := c.p.core.Tunnels.Splice(c.tunnelSpec(), upstream)
	c.passToTunnel(t, t.Start)
}

// relayLayered is relay for an upstream proxy that is reached over TLS, which takes goroutines. It does not support
// AwaitServer: the TLS records of the proxy would count as the server's greeting.
func (c *conn) relayLayered(f peek.First, rt route.Routed, up net.Conn) {
	defer func() { socket.Reset(up) }()
	at := addrPort(up.RemoteAddr()).Addr()
	rt.Bind(at)
	if c.live.SetRoute(rt); c.p.recheck(c.live) {
		return // recheck closed both
	}
	if rt.Action != policy.Splice {
		c.refuse(peek.Other, name.ReasonProtocol)
		return
	}
	_ = up.SetWriteDeadline(time.Now().Add(c.p.cfg.DialTimeout))
	if _, err := up.Write(f.Data); err != nil {
		c.refuseFailed(f.Kind, err)
		return
	}
	_ = up.SetWriteDeadline(time.Time{}) // fails only on a closed socket
	c.live.Out.Add(int64(len(f.Data)))
	f.Recycle()
	c.spliced = spliced{at: at}
	(*owner)(c).Opened()
	c.relayBytes(c.tcp, up, &c.live.Out, &c.live.In)
	c.linger = true
}

// startTunnel starts a tunnel that connects to the only address on its own, until the deadline. It returns false if the caller
// has to connect.
func (c *conn) startTunnel(f peek.First, rt route.Routed, to netip.Addr, deadline time.Time) bool {
	rt.Bind(to)
	if c.live.SetRoute(rt); c.p.recheck(c.live) {
		return true // recheck closed it
	}
	c.spliced = spliced{first: &f, at: to, name: rt.Request.Name}
	from, ok := rt.From.For(to)
	if !ok {
		return false
	}
	t, err := c.p.core.Tunnels.Dial(c.tunnelSpec(), from, netip.AddrPortFrom(to, rt.Asked.Port), f.Data, time.Until(deadline))
	if err != nil {
		return false
	}
	c.detour.Store(&detour{attempt: t, deadline: deadline})
	c.passToTunnel(t, t.Start)
	return true
}

// spliced is the state of a connection that a tunnel owns.
type spliced struct {
	first *peek.First // until the server has received it, then nil
	at    netip.Addr  // of the server
	name  name.Name
}

// tunnelSpec returns the description of the connection's tunnel.
func (c *conn) tunnelSpec() tunnel.Spec {
	return tunnel.Spec{
		Client: c.tcp, Box: c.box.ID, Owner: (*owner)(c),
		Count: tunnel.Counters{In: &c.live.In, Out: &c.live.Out, Pipes: &c.usage.Pipes},
	}
}

// passToTunnel makes a tunnel the owner of the connection, starts it unless the connection was cut, and ends the handler's
// goroutine, which a tunnel does not need. The caller must not use the connection afterwards.
func (c *conn) passToTunnel(t *tunnel.Tunnel, start func()) {
	c.head = nil
	c.own.HandOver(func() {
		if c.live.AttachTunnel(t) {
			start()
		}
	})
}

// owner receives the tunnel's events for a connection.
type owner conn

// Opened records that the server has received the first bytes.
func (o *owner) Opened() {
	c := (*conn)(o)
	if d := c.detour.Swap(nil); d != nil {
		d.stopSearch()
	}
	if c.spliced.first != nil {
		c.spliced.first.Recycle()
		c.spliced.first = nil
	}
	c.firstClaim.Release()
	exchange.Dialled(&c.event, c.spliced.at, c.orig.Addr())
	c.startTraffic()
}

// Ended closes and records the connection.
func (o *owner) Ended(err error) {
	c := (*conn)(o)
	c.own.Run(func() {
		switch {
		case c.opening == nil: // cut before the server accepted
			c.event.Error = err.Error()
			c.refuse(peek.Other, name.ReasonUnreachable)
		case err != nil && c.live.Denied() == nil:
			c.event.Error = err.Error()
		}
	})
}

// refuseFailed refuses an allowed connection whose server could not be reached, or whose resolved address was denied.
func (c *conn) refuseFailed(k peek.Kind, err error) {
	var denied *policy.DeniedError
	if errors.As(err, &denied) {
		d := denied.Decision
		c.event.Addr, c.event.Rule, c.event.Version = denied.Request.Addr, d.Rule, d.Version
		c.refuse(k, d.Reason)
		return
	}
	reason := name.ReasonUnreachable
	var up *problem.Upstream
	if errors.As(err, &up) {
		reason = up.Reason
	}
	c.event.Error = err.Error()
	c.refuse(peek.Other, reason) // a reset, as the kernel of an absent server would send
}

// This part moves a connection to another address of its name when the address that the client chose does not accept. A
// tunnel, which needs no goroutine, connects to the chosen address; the other addresses are dialled in parallel, and the
// first that accepts wins.

// detour is the state of the search for another address while a tunnel connects to the first.
type detour struct {
	attempt  *tunnel.Tunnel // connects to the address that the client chose
	deadline time.Time      // of all attempts together

	mu           sync.Mutex
	started      bool               // the search has started
	ended        bool               // the search has ended
	switched     bool               // another address is used
	attemptErr   error              // error of the attempt
	attemptOK    bool               // the attempt succeeded
	cancelSearch context.CancelFunc // cancels the search
}

// setCancel sets the function that cancels the search, and calls it if the attempt has already succeeded.
func (d *detour) setCancel(stop context.CancelFunc) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cancelSearch = stop; d.attemptOK {
		stop()
	}
}

// stopSearch cancels the search.
func (d *detour) stopSearch() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.attemptOK = true; d.cancelSearch != nil {
		d.cancelSearch()
	}
}

// hasFailed reports whether the attempt failed.
func (d *detour) hasFailed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.attemptErr != nil
}

// Slow tries the other addresses of the name, while the attempt continues.
func (o *owner) Slow() {
	c := (*conn)(o)
	if d := c.detour.Load(); d != nil {
		c.failOver(d)
	}
}

// Failed tries the other addresses of the name, or refuses the connection if they failed as well.
func (o *owner) Failed(err error) {
	c := (*conn)(o)
	d := c.detour.Load()
	if d == nil { // another address is used
		return
	}
	d.mu.Lock()
	d.attemptErr = err
	started, ended, switched := d.started, d.ended, d.switched
	d.mu.Unlock()
	switch {
	case !started:
		c.failOver(d)
	case ended && !switched:
		c.refuseUnreachable(err)
	}
}

// failOver connects to one of the other addresses, and uses it unless the attempt has succeeded first. It runs once per
// connection.
func (c *conn) failOver(d *detour) {
	d.mu.Lock()
	started := d.started
	d.started = true
	d.mu.Unlock()
	if started {
		return
	}
	up := c.dialOthers(d)
	switched := up != nil && d.attempt.Yield()
	d.mu.Lock()
	d.ended, d.switched = true, switched
	attemptErr := d.attemptErr
	d.mu.Unlock()
	switch {
	case switched:
		c.continueAt(up)
	case up != nil: // the attempt succeeded, or the connection was cut
		socket.Abort(up)
	case attemptErr != nil:
		c.refuseUnreachable(attemptErr)
	}
}

// dialOthers connects to one of the other addresses. It returns nil if all refuse.
func (c *conn) dialOthers(d *detour) (up net.Conn) {
	defer recovery.Panic(c.p.cfg.Log, c.box.ID, func() {})
	rt, ok := c.live.Route()
	if !ok {
		return nil
	}
	ctx, cancel := context.WithDeadline(c.ctx, d.deadline)
	defer cancel()
	d.setCancel(cancel)
	up, err := c.p.core.Origins.DialOthers(ctx, c.box, c.target(rt), rt.Known.Dialled, d.hasFailed)
	if err != nil {
		return nil
	}
	return up
}

// continueAt continues the connection with a connected server instead of the attempt's.
func (c *conn) continueAt(up net.Conn) {
	c.own.Run(func() {
		rt, ok := c.live.Route()
		if !c.live.Reclaim(c.tcp) || !ok { // it was cut
			socket.Abort(up)
			c.refuse(peek.Other, name.ReasonUnreachable)
			return
		}
		c.forwardTo(*c.spliced.first, rt, up)
	})
}

// refuseUnreachable refuses the connection because no address of its server accepts.
func (c *conn) refuseUnreachable(err error) {
	c.own.Run(func() {
		c.refuseFailed(c.spliced.first.Kind, &problem.Upstream{Reason: name.ReasonUnreachable, Name: c.spliced.name, Err: err})
	})
}

// This part handles clients that are silent at first. On most ports they are connected to the address, as the server may
// speak first. Where names decide, silence must not become a way to send unjudged bytes later.

// serverSpoke waits until one side has sent something or closed, and reports whether it was the server. It does not
// consume data of either socket. It returns false if neither side does within the idle timeout, and if the server speaks HTTP/2 in
// cleartext: its SETTINGS may come first (RFC 9113, 3.4), followed by the client's requests, which must be judged.
func serverSpoke(client, upstream *net.TCPConn, idle time.Duration) (server bool) {
	deadline := time.Now().Add(idle)
	_, _ = client.SetReadDeadline(deadline), upstream.SetReadDeadline(deadline)
	var both sync.WaitGroup
	both.Go(func() {
		server = readable(upstream)
		_ = client.SetReadDeadline(time.Unix(1, 0)) // wakes the other goroutine
	})
	readable(client)
	_ = upstream.SetReadDeadline(time.Unix(1, 0))
	both.Wait()
	_, _ = client.SetReadDeadline(time.Time{}), upstream.SetReadDeadline(time.Time{})
	return server && !greetsHTTP2(upstream)
}

// greetsHTTP2 reports whether the server's first bytes are, or may become, the SETTINGS frame that opens an HTTP/2
// connection. It does not consume them.
func greetsHTTP2(c *net.TCPConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return true
	}
	var b [h2.FrameHead]byte
	n := 0
	if raw.Control(func(fd uintptr) { n, _, err = unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT) }) != nil || err != nil {
		return false // closed
	}
	settings := []byte{0, b[1], b[2], byte(http2.FrameSettings), 0, 0, 0, 0, 0}
	return n > 0 && bytes.Equal(b[:n], settings[:n])
}

// readable waits until a socket has data to read or has reached its end, or its read deadline passes.
func readable(c *net.TCPConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	var b [1]byte
	ready := false
	err = raw.Read(func(fd uintptr) bool {
		_, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		ready = err != unix.EAGAIN && err != unix.EINTR
		return ready
	})
	return err == nil && ready
}
