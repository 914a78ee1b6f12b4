package proxy

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"time"

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
)

// This file forwards connections without parsing them.

// splice connects to the server and forwards the bytes unread, including the peeked ones.
func (c *conn) splice(f peek.First, rt route.Routed) {
	if c.isForURL(f, rt) {
		c.visit(f, rt.Request.Name)
		return
	}
	c.event.Via = rt.Upstream.URL()
	deadline := time.Now().Add(c.p.cfg.DialTimeout)
	to := c.target(rt)
	addrs, err := c.p.core.Origins.Candidates(c.ctx, c.box, to)
	if err != nil {
		c.refuseFailed(f.Kind, err)
		return
	}
	if len(addrs) == 1 && rt.Action == policy.Splice && rt.Upstream == nil && c.startTunnel(f, rt, addrs[0], deadline) {
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
	rt.Asked, rt.Known = rt.At(at)
	if c.live.SetRoute(rt); c.p.recheck(c.live) {
		return // recheck closed both
	}
	if rt.Action == policy.AwaitServer {
		if !serverSpoke(c.tcp, upstream, c.p.cfg.IdleTimeout) {
			c.live.Detach(upstream)
			socket.Reset(upstream)
			c.live.SetRoute(route.Routed{})
			c.waitStart, c.mustSpeak = time.Now(), true
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
	c.spliced = spliced{first: f, at: at}
	(*owner)(c).Opened()
	t := c.p.core.Tunnels.Splice(c.tunnelSpec(), upstream)
	c.passToTunnel(t, t.Start)
}

// relayLayered is relay for an upstream proxy that is reached over TLS, which takes goroutines. It does not support
// AwaitServer: the TLS records of the proxy would count as the server's greeting.
func (c *conn) relayLayered(f peek.First, rt route.Routed, up net.Conn) {
	defer func() { socket.Reset(up) }()
	at := addrPort(up.RemoteAddr()).Addr()
	rt.Asked, rt.Known = rt.At(at)
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
	c.spliced = spliced{first: f, at: at}
	(*owner)(c).Opened()
	c.relayBytes(c.tcp, up, &c.live.Out, &c.live.In)
	c.linger = true
}

// startTunnel starts a tunnel that connects to the only address on its own, until the deadline. It returns false if the caller
// has to connect.
func (c *conn) startTunnel(f peek.First, rt route.Routed, to netip.Addr, deadline time.Time) bool {
	rt.Asked, rt.Known = rt.At(to)
	if c.live.SetRoute(rt); c.p.recheck(c.live) {
		return true // recheck closed it
	}
	c.spliced = spliced{first: f, at: to, name: rt.Request.Name}
	from, ok := rt.From.For(to)
	if !ok {
		return false
	}
	t, err := c.p.core.Tunnels.Dial(c.tunnelSpec(), from, netip.AddrPortFrom(to, rt.Asked.Port), f.Data, time.Until(deadline))
	if err != nil {
		return false
	}
	c.detour.attempt, c.detour.deadline = t, deadline
	c.passToTunnel(t, t.Start)
	return true
}

// spliced is the state of a connection that a tunnel owns.
type spliced struct {
	first peek.First // until the server has received it
	at    netip.Addr // of the server
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
func (c *conn) passToTunnel(t io.Closer, start func()) {
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
	c.detour.stopSearch()
	c.spliced.first.Recycle()
	c.spliced.first = peek.First{}
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
