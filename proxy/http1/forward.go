package http1

import (
	"errors"

	"boxgate/policy/name"
	"boxgate/proxy/exchange"
	"boxgate/proxy/header"
	"boxgate/proxy/origin"
	"boxgate/proxy/problem"
	"boxgate/relay"
)

// forward sends an allowed request and relays its response. A nil error means that the connection can carry another
// request.
func (h *conn) forward() error {
	upgrade := relay.OpensWebSocket(&h.Req)
	h.switches, h.looked = upgrade, false
	h.narrow()
	defer h.body.close()
	if refused := h.beginBody(); refused != nil {
		return h.refuse(refused)
	}
	if h.decision.Rewrites() || h.body.watch.Decodes() || h.body.rewriting.Buffered() {
		if allowed, err := h.rewrite(&h.body); !allowed {
			return err
		}
	}
	h.bindRequest()
	if h.up != nil && !h.up.Serves(h.decision.Target(h.s)) {
		h.park()
		h.Req.Close = h.Req.Close || h.bound
	}
	if via := h.decision.Via; via != nil {
		header.Readdress(&h.Req, via.Authority, via.Target)
	}
	tied := h.bound && h.up != nil
	h.again = !tied && h.Req.Body.Empty() && relay.Idempotent(h.decision.Request.Method)
	h.Out.Buf = header.AppendRequest(h.Out.Take(), &h.Req, h.decision.Set, upgrade)
	h.body.set, h.body.chunks = h.decision.Set, h.Req.Body.Chunked
	h.Source, h.Res.Lenient = &h.body, h.decision.Lenient()
	defer h.endScrub()
	return h.Forward(&h.Exchange, h, upgrade, tied)
}

// narrow removes fields from the request that could lead to messages that cannot be searched.
func (h *conn) narrow() {
	if h.Req.Upgrade != nil {
		h.Req.Fields = h.decision.WithoutExtensions(h.Req.Fields)
	}
	if h.decision.Scrub != nil {
		header.NarrowFields(&h.Req)
	}
}

// Ask implements [relay.Sender].
func (h *conn) Ask(whole bool) (used bool, err error) {
	used = h.up.Begin()
	if h.again {
		h.up.AskAgain()
	}
	_, err = h.up.NetConn.Write(h.Out.Buf)
	if err == nil && whole {
		err = h.firstByte()
		h.up.Answered()
	}
	switch {
	case err == nil, errors.Is(err, relay.ErrClientGone):
		return used, err
	case h.up.Ended() && !errors.Is(err, origin.ErrVanished):
		return used, errEnded
	}
	return used, &problem.Upstream{Reason: name.ReasonUpstreamHTTP, Name: h.decision.Request.Name, Err: err}
}

// Final implements [relay.Sender].
func (h *conn) Final(err error) bool { return errors.Is(err, relay.ErrClientGone) }

// Again implements [relay.Sender]. Other kept connections have probably ended as well.
func (h *conn) Again(_ error, _, used bool) (again, fresh bool) {
	return used && h.again && h.ctx.Err() == nil, true
}

// Drop implements [relay.Sender]: it closes the upstream connection, whose last exchange did not end cleanly.
func (h *conn) Drop() {
	if h.up == nil {
		return
	}
	h.s.Live.Detach(h.up.TCP)
	h.up.Close()
	h.up = nil
}

// firstByte waits for the response, so that a retry is possible before any data is sent to the client.
func (h *conn) firstByte() error {
	if len(h.up.In.Bytes()) > 0 {
		return nil
	}
	return h.up.In.Fill()
}

// Connect implements [relay.Sender]: it ensures that there is an upstream connection, judged by the current policy. A
// connection that was just used is assumed to be open for a request that can be repeated.
func (h *conn) Connect(fresh bool) error {
	c := h.s.Box.Policy.Load()
	if h.up != nil && (!h.up.Ready(c) || (!h.again || !h.up.Fresh(relay.RestAfter)) && !h.up.Quiet()) {
		h.Drop()
		if h.bound {
			return relay.ErrUnbound
		}
	}
	if h.up == nil {
		if err := h.attach(fresh || h.bound); err != nil {
			return err
		}
	}
	h.up.ReadFor(h.ctx, h.gone)
	h.From, h.To = &h.up.In, h.up
	if err := h.publish(); err != nil {
		return err
	}
	h.x.Under(h.up.Addr(), h.decision.Request)
	return nil
}

// attach takes an upstream connection from the pool, or a new one if fresh is set.
func (h *conn) attach(fresh bool) (err error) {
	var up *origin.Conn
	if to := h.decision.Target(h.s); fresh {
		up, err = h.s.Core.Origins.Fresh1(h.ctx, h.s.Origin, to)
	} else {
		up, err = h.s.Core.Origins.HTTP1(h.ctx, h.s.Origin, to)
	}
	if err != nil {
		return err
	}
	if !h.s.Live.Attach(up.TCP) {
		up.Close()
		return h.cutError()
	}
	h.up = up
	return nil
}

// publish adds the address to the state that the policy must keep allowing, and checks that once more.
func (h *conn) publish() error {
	h.flight.set(h.s, &h.decision, h.up.Addr())
	c := h.s.Box.Policy.Load()
	if c == h.decision.Policy && h.up.AllowedBy(c) && !h.decision.Revoked(h.s) {
		return nil
	}
	f, _ := h.flight.load()
	if d := f.Stands(c); !d.Allowed() {
		h.Drop()
		return d.Err(f.Way.Asked)
	}
	if err := h.decision.Stale(h.s); err != nil {
		h.Drop()
		return err
	}
	return nil
}

func (h *conn) cutError() error {
	if d := h.s.Live.Denied(); d != nil {
		return d
	}
	return errClose
}

// Unsent implements [relay.Side].
func (h *conn) Unsent(err error) error { return h.refuseUpstream(err) }

// refuseUpstream reports to the client why the upstream could not be used.
func (h *conn) refuseUpstream(err error) error {
	h.x.Unserved(err)
	if errors.Is(err, relay.ErrClientGone) || h.ctx.Err() != nil {
		h.Drop()
		return err
	}
	if errors.Is(err, relay.ErrUnbound) {
		return errClose
	}
	p := exchange.UpstreamProblem(err)
	if p.Host == "" {
		p.Host = h.decision.Request.Name.String()
	}
	h.Head = 0 // already consumed; the rest of the body is not read
	return h.refuse(p)
}
