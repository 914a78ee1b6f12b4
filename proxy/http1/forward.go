package http1

import (
	"context"
	"errors"

	"boxgate/internal/buffers"
	"boxgate/internal/h1"
	"boxgate/policy/name"
	"boxgate/proxy/exchange"
	"boxgate/proxy/header"
	"boxgate/proxy/origin"
	"boxgate/proxy/problem"
)

// takeOut returns the output buffer, emptied.
func (h *conn) takeOut() []byte {
	if h.out == nil {
		h.out = buffers.BorrowOut()
	}
	return h.out[:0]
}

func (h *conn) giveOut() {
	buffers.ReturnOut(h.out)
	h.out = nil
}

// forward sends an allowed request and relays its response. A nil error means that the connection can carry another
// request.
func (h *conn) forward() error {
	upgrade := h.wantsWebSocket()
	h.switches, h.looked = upgrade, false
	h.narrow()
	up := &h.upload
	*up = upload{body: up.body}
	up.body.Begin(h.req.Body, false)
	refused := h.watchBody(up)
	defer up.end()
	if refused != nil {
		return h.refuse(refused)
	}
	if h.ruling.Rewrites() || up.watch.Decodes() {
		if allowed, err := h.rewrite(up); !allowed {
			return err
		}
	}
	h.bindRequest()
	if h.up != nil && !h.up.Serves(h.ruling.Target(h.s)) {
		h.park()
		h.req.Close = h.req.Close || h.bound
	}
	if via := h.ruling.Via; via != nil {
		header.Readdress(&h.req, via.Authority, via.Target)
	}
	h.out = header.AppendRequest(h.takeOut(), &h.req, h.ruling.Set, upgrade)
	h.in.Take(h.head)

	up.set = h.ruling.Set
	out, whole, err := up.resume(&h.in, h.out, h.req.Body.Chunked)
	h.out = out
	if err != nil {
		return h.refuseBody(err)
	}
	if err := h.send(whole); err != nil {
		return h.refuseUpstream(err)
	}
	h.x.Event.BytesOut += up.sent
	if !whole {
		up.start(h)
	}
	return h.respond(up, upgrade)
}

// narrow removes from the request what could lead to messages that cannot be searched.
func (h *conn) narrow() {
	if h.req.Upgrade != nil {
		h.req.Fields = h.ruling.WithoutExtensions(h.req.Fields)
	}
	if h.ruling.Scrub != nil {
		header.NarrowFields(&h.req)
	}
}

// watchBody sets what searches the body for placeholders.
func (h *conn) watchBody(u *upload) (refused *problem.Problem) {
	if h.req.Body.Empty() || !h.ruling.Policy.HasPlaceholders() {
		return nil
	}
	u.watch, refused = h.s.Watch(&h.ruling, exchange.FieldValues(h.req.Fields)("Content-Encoding"))
	return refused
}

func (h *conn) wantsWebSocket() bool {
	r := &h.req
	return r.Upgrade != nil && r.Minor > 0 && r.Body.Empty() && string(r.Method) == "GET" && h1.EqualFold(r.Upgrade, "websocket")
}

// send flushes the output buffer to the upstream and, if the request is complete, waits for the first byte of the
// response. The server may have just closed a kept connection: an idempotent request without a body is then retried on
// a new one (RFC 9110, 9.2.2), so it is sent without asking first whether one just used is still open.
func (h *conn) send(whole bool) error {
	again := whole && h.req.Body.Empty() && exchange.Idempotent(h.ruling.Request.Method)
	connect := h.s.Core.Origins.HTTP1
	tied := h.bound && h.up != nil
	if h.bound {
		again, connect = again && !tied, h.s.Core.Origins.Fresh1
	}
	for {
		if err := h.connect(again, connect); err != nil {
			return err
		}
		used := h.up.Begin()
		if again {
			h.up.AskAgain()
		}
		_, err := h.up.NetConn.Write(h.out)
		if err == nil && whole {
			err = h.firstByte()
			h.up.Answered()
		}
		if err == nil || errors.Is(err, origin.ErrClientGone) {
			return err
		}
		if h.up.Ended() && !errors.Is(err, origin.ErrVanished) {
			return errEnded
		}
		if !whole && err != nil && !used {
			return nil // the upload meets the same error; the server may have answered before it closed
		}
		h.drop()
		if connect = h.s.Core.Origins.Fresh1; tied {
			return errors.Join(errUntied, err)
		}
		if !used || !again || h.ctx.Err() != nil {
			return &problem.Upstream{Reason: name.ReasonUpstreamHTTP, Name: h.ruling.Request.Name, Err: err}
		}
	}
}

// firstByte waits for the response, so that a retry happens before anything is sent to the client.
func (h *conn) firstByte() error {
	if len(h.up.In.Bytes()) > 0 {
		return nil
	}
	return h.up.In.Fill()
}

// connector is [origin.Origins.HTTP1] or [origin.Origins.Fresh1].
type connector func(context.Context, origin.Client, origin.Target) (*origin.Conn, error)

// connect ensures that there is an upstream connection, judged under the policy in force; a new one comes from another.
// again says that the request may be sent again: then one that was used just now is taken to be open.
func (h *conn) connect(again bool, another connector) error {
	c := h.s.Box.Policy.Load()
	if h.up != nil && (!h.up.Ready(c) || (!again || !h.up.Fresh(parkAfter)) && !h.up.Quiet()) {
		h.drop()
		if h.bound {
			return errUntied
		}
	}
	if h.up == nil {
		up, err := another(h.ctx, h.s.Origin, h.ruling.Target(h.s))
		if err != nil {
			return err
		}
		if !h.s.Live.Attach(up.TCP) {
			up.Close()
			return h.cutError()
		}
		h.up = up
	}
	h.up.ReadFor(h.ctx, h.gone)
	if err := h.publish(); err != nil {
		return err
	}
	h.x.Under(h.up.Addr(), h.ruling.Request)
	return nil
}

// publish adds the address to what the policy must keep allowing, and checks it once more.
func (h *conn) publish() error {
	h.flight.set(h.s, &h.ruling, h.up.Addr())
	c := h.s.Box.Policy.Load()
	if c == h.ruling.Policy && h.up.AllowedBy(c) && !h.ruling.Revoked(h.s) {
		return nil
	}
	f, _ := h.flight.load()
	if d := f.Stands(c); !d.Allowed() {
		h.drop()
		return d.Err(f.Way.Asked)
	}
	if err := h.ruling.Stale(h.s); err != nil {
		h.drop()
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

// refuseUpstream reports to the client why the upstream could not be used.
func (h *conn) refuseUpstream(err error) error {
	h.x.Unserved(err)
	if errors.Is(err, origin.ErrClientGone) || h.ctx.Err() != nil {
		h.drop()
		return err
	}
	if errors.Is(err, errUntied) {
		return errClose
	}
	p := exchange.UpstreamProblem(err)
	if p.Host == "" {
		p.Host = h.ruling.Request.Name.String()
	}
	h.head = 0 // already consumed; the rest of the body is not read
	return h.refuse(p)
}
