package proxy

import (
	"errors"
	"sync"

	"boxgate/policy"
	"boxgate/proxy/h1"
	"boxgate/proxy/header"
	"boxgate/proxy/origin"
	"boxgate/proxy/placeholder"
	"boxgate/proxy/problem"
)

const (
	outSize  = 4 << 10   // of a fresh output buffer: a head and a small body
	outFlush = 32 << 10  // content gathered in the output buffer before it is written
	outKeep  = 128 << 10 // output buffers up to this size are used again
)

var outBuffers = sync.Pool{New: func() any { b := make([]byte, 0, outSize); return &b }}

func borrowOut() []byte {
	b, ok := outBuffers.Get().(*[]byte)
	if !ok {
		panic("proxy: a foreign value in the output buffers")
	}
	return (*b)[:0]
}

func returnOut(b []byte) {
	if cap(b) > 0 && cap(b) <= outKeep {
		b = b[:0]
		outBuffers.Put(&b)
	}
}

// takeOut returns the empty output buffer.
func (h *http1) takeOut() []byte {
	if h.out == nil {
		h.out = borrowOut()
	}
	return h.out[:0]
}

func (h *http1) giveOut() {
	returnOut(h.out)
	h.out = nil
}

// forward sends a request that was allowed and brings its response back. A nil error means that the connection can carry
// another request.
func (h *http1) forward() error {
	upgrade := h.wantsWebSocket()
	if h.ruling.scrub != nil {
		header.NarrowFields(&h.req)
	}
	h.out = header.AppendRequest(h.takeOut(), &h.req, h.ruling.set, upgrade)
	h.in.Take(h.head)

	var up upload
	up.body.Begin(h.req.Body, false)
	up.set, up.watch = h.ruling.set, placeholder.NewWatch(h.ruling.policy)
	out, whole, err := up.gather(&h.in, h.out)
	h.out = out
	if err != nil {
		return h.refuseBody(err)
	}
	if err := h.send(whole); err != nil {
		return h.refuseUpstream(err)
	}
	h.x.event.BytesOut += up.sent
	if !whole {
		up.start(h)
	}
	return h.respond(&up, upgrade)
}

func (h *http1) wantsWebSocket() bool {
	r := &h.req
	return r.Upgrade != nil && r.Minor > 0 && r.Body.Empty() && string(r.Method) == "GET" && h1.EqualFold(r.Upgrade, "websocket")
}

// send writes what the output buffer holds to the upstream and waits for the beginning of the answer if the request is
// complete. A connection from the pool may have been closed by the server just now: a request without a body whose
// repetition does no harm is then sent once more, on a new connection.
func (h *http1) send(whole bool) error {
	again := whole && h.req.Body.Empty() && idempotent(h.ruling.request.Method)
	for {
		if err := h.connect(); err != nil {
			return err
		}
		used := h.up.Begin()
		_, err := h.up.NetConn.Write(h.out)
		if err == nil && whole {
			err = h.firstByte()
		}
		if err == nil || errors.Is(err, origin.ErrClientGone) {
			return err
		}
		if !whole && err != nil && !used {
			return nil // the upload meets the same error; the server may have answered before it closed
		}
		h.drop()
		if !used || !again || h.ctx.Err() != nil {
			return &problem.Upstream{Reason: policy.ReasonUpstreamHTTP, Name: h.ruling.request.Name, Err: err}
		}
	}
}

// firstByte waits for the answer, so that nothing was told to the client when the request has to be sent again.
func (h *http1) firstByte() error {
	if len(h.up.In.Bytes()) > 0 {
		return nil
	}
	return h.up.In.Fill()
}

func idempotent(method string) bool {
	switch method {
	case "GET", "HEAD", "OPTIONS":
		return true
	}
	return false
}

// connect makes sure there is an upstream connection, judged under the policy in force.
func (h *http1) connect() error {
	c := h.s.box.Policy.Load()
	if h.up != nil && !h.up.Usable(c) {
		h.drop()
	}
	if h.up == nil {
		up, err := h.s.p.origins.HTTP1(h.ctx, h.s.origin, h.ruling.target(h.s))
		if err != nil {
			return err
		}
		if !h.s.live.attach(up.TCP) {
			up.Close()
			return h.cutError()
		}
		h.up = up
	}
	h.up.ReadFor(h.ctx, h.gone)
	if err := h.publish(); err != nil {
		return err
	}
	h.x.under(h.up.Addr(), h.ruling.request)
	return nil
}

// publish adds the address to what must stay allowed, and looks once more whether it is.
func (h *http1) publish() error {
	f := h.ruling.inflight(h.s, h.up.Addr())
	h.flight.Store(f)
	c := h.s.box.Policy.Load()
	if c == h.ruling.policy && h.up.AllowedBy(c) {
		return nil
	}
	if d := f.stands(c); !d.Allowed() {
		h.drop()
		return d.Err(f.way.Asked)
	}
	return nil
}

func (h *http1) cutError() error {
	if d := h.s.live.denied(); d != nil {
		return d
	}
	return errClose
}

// refuseUpstream tells the client why the upstream could not be used.
func (h *http1) refuseUpstream(err error) error {
	h.x.unserved(err)
	if errors.Is(err, origin.ErrClientGone) || h.ctx.Err() != nil {
		h.drop()
		return err
	}
	p := upstreamProblem(err)
	if p.Host == "" {
		p.Host = h.ruling.request.Name.String()
	}
	h.head = 0 // already taken; what follows of the body is not read
	return h.refuse(p)
}
