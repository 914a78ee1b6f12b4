package http1

import (
	"errors"
	"io"
	"sync/atomic"
	"time"

	"boxgate/internal/memory"
	"boxgate/internal/socket"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy/exchange"
	"boxgate/proxy/header"
	"boxgate/proxy/origin"
	"boxgate/proxy/problem"
	"boxgate/proxy/recovery"
	"boxgate/relay"
	"boxgate/relay/h1"
	"boxgate/rule"
	"boxgate/rule/placeholder"
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
	if h.decision.ReadsResponse() {
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
	if c == h.decision.Policy && h.up.AllowedBy(c) && !h.decision.Revoked(h.s) && !h.decision.Fenced() {
		return nil
	}
	return h.confirm(c)
}

// confirm checks the request against a policy that has not judged it, or not with the address.
func (h *conn) confirm(c *policy.Compiled) error {
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

// This part handles connection-based logins (NTLM, Negotiate): requests after a login are the user's without any
// credential. So once a message has a part of a login, the client's connection and the server's are bound: neither carries
// requests of others, and when one ends, so does the other. A bound connection was never logged in by another client
// before, as that would have bound it.

// bindRequest binds the connection if the request, in its forwarded form, is part of a login.
func (h *conn) bindRequest() {
	if !h.bound {
		h.bound = h1.LogsIn(h.Req.Fields) || exchange.SetsLogin(h.decision.Set)
	}
}

// body is the body of a request ([relay.Source]), searched for placeholders.
type body struct {
	relay.Body
	h     *conn
	set   []rule.Field // trailers that repeat one of these are dropped
	watch placeholder.Watch

	rewriting *exchange.Rewriting // nil unless the request was changed
	kept      []byte              // the part of the body that was read for the rewriting and is not sent yet
	chunks    bool                // it is sent in chunks
}

// resetBody begins the body of the request.
func (h *conn) resetBody() {
	h.body = body{Body: h.body.Body, h: h}
	h.body.Begin(&h.In, h.Req.Body, &h.body)
}

// beginBody prepares to read the body, and to search it.
func (h *conn) beginBody() (refused *problem.Problem) {
	if !h.body.rewriting.Buffered() {
		h.resetBody()
	}
	h.Upload.Reset()
	if h.Req.Body.Empty() || !h.decision.Policy.HasPlaceholders() {
		return nil
	}
	h.body.watch, refused = h.s.Watch(&h.decision, relay.Values(h.Req.Fields, "content-encoding"))
	return refused
}

// close releases the resources of the body. Its upload must have stopped.
func (b *body) close() {
	b.watch.Close()
	b.rewriting.Close()
	b.rewriting = nil
}

// Gather implements [relay.Source].
func (b *body) Gather(head []byte) (grown []byte, content int, whole bool, err error) {
	if grown, content, whole, err = b.resume(head); err == nil && !whole {
		b.h.Unlimited() // a body may take its time; the box's connection limit bounds what waits
	}
	return grown, content, whole, err
}

// More implements [relay.Source].
func (b *body) More(out *relay.Output) (framed []byte, content int, last bool, err error) {
	if len(b.kept) == 0 {
		return b.Body.More(out)
	}
	out.Buf, content, last = b.unload(out.Take())
	return out.Buf, content, last, nil
}

// Interrupt implements [relay.Source].
func (b *body) Interrupt() { _ = b.h.Conn.SetReadDeadline(time.Unix(1, 0)) }

// Panicked implements [relay.Source].
func (b *body) Panicked(v any) { recovery.Log(b.h.s.Core.Log, "panic in an exchange", b.h.s.Box.ID, v) }

// Look implements [relay.Inspector].
func (b *body) Look(content []byte) error {
	b.h.x.CaptureUpload(content)
	return b.watch.Look(content)
}

// End implements [relay.Inspector].
func (b *body) End(trailers []h1.Field) error {
	if err := b.watch.End(); err != nil {
		return err
	}
	return placeholder.InTrailer(trailers)
}

// AppendLast implements [relay.Inspector].
func (b *body) AppendLast(out []byte, trailers []h1.Field) []byte {
	return header.AppendLastChunk(out, trailers, b.set)
}

// Await implements [relay.Inspector].
func (b *body) Await() {}

// This part is the egress side ([relay.Side]) of a response.

// Received implements [relay.Receiver].
func (h *conn) Received(r *h1.Response) {
	h.x.Repaired(r.Repairs)
	exchange.MaskHead(h.decision.Scrub, r)
	r.Fields = h.decision.ResponseFields(r.Fields)
}

// Interim implements [relay.Receiver].
func (h *conn) Interim(*h1.Response) error { return h.Client.Interim(&h.Exchange, h) }

// Passes implements [relay.ResponseFields].
func (h *conn) Passes(f *h1.Field) (value []byte, ok bool) { return f.Value, header.PassesResponse(f) }

// AppendExtra implements [relay.ResponseFields].
func (h *conn) AppendExtra(dst []byte) []byte { return dst }

// Inspect implements [relay.Side]: it begins to scrub before any part of the response is forwarded.
func (h *conn) Inspect(r *h1.Response) (err error) {
	h.x.Event.Status = r.Status
	if h.x.Metered() {
		h.x.Answered(r.Status, r.Body.Empty(), relay.ValuesIn(r.Fields))
	}
	if h.decision.Scrub != nil {
		err = h.beginScrub()
	}
	h.Recoded = h.scrub.Recodes()
	return err
}

// Begin implements [relay.Side].
func (h *conn) Begin() (end bool) {
	h.captureHead()
	if h1.LogsIn(h.Res.Fields) {
		h.bound = true
		h.s.Core.Origins.NoteLogin(h.s.Box.ID, h.s.Name, h.s.Port)
	}
	return h.bound && h.Res.Close
}

// captureHead records the head of the response.
func (h *conn) captureHead() {
	if h.x.Captured() {
		h.x.CaptureResponse(h.version(), h.Res.Status, exchange.CapturedResponse(&h.Res))
	}
}

// Put implements [relay.Sink].
func (h *conn) Put(content []byte) error {
	h.x.Download(content)
	return h.Client.Put(content)
}

// Relay implements [relay.Side].
func (h *conn) Relay() error {
	if h.scrub != nil {
		return h.relayScrubbed()
	}
	return h.Body.Copy(h)
}

// Fill implements [relay.Sink].
func (h *conn) Fill(in *h1.Reader) error { return in.Fill() }

// AppendEnd implements [relay.Side].
func (h *conn) AppendEnd(dst []byte, trailers []h1.Field) []byte {
	trailers = h.decision.ResponseFields(trailers)
	if h.x.Captured() {
		h.x.CaptureTrailers(exchange.CapturedFields(trailers))
	}
	return header.AppendLastChunk(dst, trailers, nil)
}

// Broken implements [relay.Side].
func (h *conn) Broken(err error) error {
	h.passed()
	h.Drop()
	socket.Reset(h.Conn)
	h.x.Failed(err)
	return err
}

// Settle implements [relay.Side].
func (h *conn) Settle(reuse bool) (end bool) {
	h.passed()
	if !reuse || !h.up.Done(h.Res.Body) {
		h.Drop()
	}
	return h.bound && h.up == nil
}

// passed records the forwarded bytes.
func (h *conn) passed() {
	h.x.Repaired(h.Body.Repairs)
	h.x.Event.BytesOut, h.x.Event.BytesIn = h.Upload.Content, h.Client.Passed
	if errors.Is(h.Upload.Err(), placeholder.ErrLate) {
		h.x.Leaked()
	}
}

// NoResponse implements [relay.Side].
func (h *conn) NoResponse(err error) error {
	if h.up.Ended() && errors.Is(err, io.ErrUnexpectedEOF) {
		err = errEnded
	}
	h.Drop()
	h.x.Event.BytesOut = h.Upload.Content
	fault := h.Upload.Fault()
	if leak := h.Upload.Err(); errors.Is(leak, placeholder.ErrLate) || errors.Is(leak, placeholder.ErrCoded) {
		fault = leak // even if the server just closed the connection, which stopped the upload
	}
	var malformed *h1.Error
	var known *problem.Upstream
	switch {
	case errors.As(fault, &malformed), errors.Is(fault, placeholder.ErrLate), errors.Is(fault, placeholder.ErrCoded):
		return h.refuseBody(fault)
	case errors.Is(fault, relay.ErrClientGone):
		h.x.Failed(fault)
		return errClose
	case fault != nil:
		h.x.Failed(fault)
	}
	if errors.Is(err, errEnded) || errors.As(err, &known) { // known: it cannot be scrubbed
		return h.refuseUpstream(err)
	}
	reason := name.ReasonUpstreamHTTP
	if errors.Is(err, memory.ErrFull) {
		reason = name.ReasonLimit
	}
	return h.refuseUpstream(&problem.Upstream{Reason: reason, Name: h.decision.Request.Name, Err: err})
}

// Tunnel implements [relay.Side]. It forwards the 101 and then relays bytes both ways between the client and the upstream.
// The request stays published: a later policy that denies it cuts the tunnel. n is the length of the response's head.
func (h *conn) Tunnel(n int) error {
	h.captureHead()
	h.Out.Buf = relay.AppendResponse(h.Out.Take(), &h.Res, relay.Answer{Minor: 1, Upgrade: true}, h)
	h.up.In.Take(n)
	if err := h.Flush(); err != nil {
		h.Drop()
		return err
	}
	h.Out.Give()
	defer h.Drop()
	h.up.Uncount() // the client's connection counts for both, as for every tunnel
	var in, out atomic.Int64
	toServer, end := h.s.Searched(h.ctx, &h.decision, h.up.NetConn)
	defer end()
	err := h.s.Core.Tunnels.Relay(
		relay.End{Conn: h.Conn, To: h.decision.Masking(h.Conn), In: &h.In, Read: &out},
		relay.End{Conn: h.up.NetConn, To: toServer, In: &h.up.In, Read: &in}, h.s.Box.ID)
	h.x.Event.BytesIn, h.x.Event.BytesOut = in.Load(), out.Load()
	h.x.Broken(err)
	return errClose
}
