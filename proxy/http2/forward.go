package http2

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"boxgate/internal/buffers"
	"boxgate/internal/memory"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy/exchange"
	"boxgate/proxy/header"
	"boxgate/proxy/origin"
	"boxgate/proxy/problem"
	"boxgate/relay"
	"boxgate/relay/h1"
	"boxgate/relay/h2"
	"boxgate/relay/h2/upstream"
	"boxgate/rule/placeholder"
)

// errLogin refuses a login of a connection (NTLM, Negotiate) over HTTP/2, whose connections carry the requests of several
// clients.
var errLogin = error(problem.Fixed("a login of the connection takes HTTP/1.1, as the client was told"))

// logsIn reports whether the request, as the server gets it, is part of the login of a connection.
func (st *stream) logsIn() bool {
	isLogin := func(f hpack.HeaderField) bool { return h1.IsLogin(f.Name, f.Value) }
	return slices.ContainsFunc(st.fields, isLogin) || exchange.SetsLogin(st.decision.Set)
}

// leadToHTTP1 makes the client open another connection, over HTTP/1.1, for the login that the server offers.
func (st *stream) leadToHTTP1() {
	st.s.Core.Origins.NoteLogin(st.s.Box.ID, st.s.Name, st.s.Port)
	st.client.Drain()
}

// forward sends an allowed request over the version that the upstream speaks, and relays its response. A login of a
// connection must use HTTP/1.1 (HTTP_1_1_REQUIRED, RFC 9113, 7): there the client gets its own connection to the server.
func (st *stream) forward() {
	if st.logsIn() {
		st.x.Unserved(errLogin)
		st.resetWith(http2.ErrCodeHTTP11Required)
	}
	for again := st.repeatable(); ; again = false {
		up, err := st.connection()
		if err != nil {
			st.refuseUpstream(err)
			return
		}
		if up.H1 != nil {
			st.forward1(up.H1, again)
			return
		}
		if err = st.forward2(up.H2); err == nil {
			return
		}
		if !again || st.ctx.Err() != nil || errors.Is(err, errRepeat) {
			st.failed2(err)
			return
		}
	}
}

// connection returns a connection for the request: the one that it was begun on, or any.
func (st *stream) connection() (origin.Any, error) {
	if st.early.stream != nil {
		return origin.Any{H2: st.early.up}, nil
	}
	return st.s.Core.Origins.Any(st.ctx, st.s.Origin, st.decision.Target(st.s))
}

// repeatable reports whether a request may be retried once after a failure on a pooled connection.
func (st *stream) repeatable() bool {
	return st.length == 0 && relay.Idempotent(st.client.Method)
}

// failed2 reports to the client that there is no response. If the upstream reset the stream, the client gets the same
// reset and may retry an unprocessed request that cannot be retried from here (RFC 9113, 8.7). PROTOCOL_ERROR and
// FLOW_CONTROL_ERROR are not passed on: they concern the connection to the upstream, not the client's.
func (st *stream) failed2(err error) {
	code, reset := resetCode(err)
	if errors.Is(err, errRepeat) {
		code, reset = http2.ErrCodeRefusedStream, true
	}
	failure := &problem.Upstream{Reason: name.ReasonUpstreamHTTP, Name: st.decision.Request.Name, Err: err}
	if st.ctx.Err() != nil || !reset || code == http2.ErrCodeProtocol || code == http2.ErrCodeFlowControl {
		st.refuseUpstream(failure)
		return
	}
	st.x.Unserved(failure)
	st.resetWith(code)
}

// forward2 sends the request over HTTP/2 and relays the response. An error means that the client has not been answered.
func (st *stream) forward2(up *origin.H2Conn) error {
	a := st.attempts(up)
	defer func() { a.releaseConn() }() // another attempt may have replaced it
	var res result
	if err := a.send(&res); err != nil {
		return err
	}
	defer res.close()
	st.pass(&res)
	return nil
}

// pass relays a response whose head has arrived, or refuses it.
func (st *stream) pass(res *result) {
	if !st.holds.Grow(header.SizeFactor * header.SizeHTTP2(res.Fields)) {
		st.refuseUpstream(&problem.Upstream{Reason: name.ReasonLimit, Name: st.decision.Request.Name, Err: memory.ErrFull})
		return
	}
	if st.scrubbable(res.Status, st.bodiless(&res.Head), exchange.HTTP2Values(res.Fields)) {
		st.respond(res)
	}
}

// connection is one to an origin server.
type connection interface {
	Addr() netip.Addr
	AllowedBy(c *policy.Compiled) bool
}

// goesTo records the address of a connection, which the policy must keep allowing. It checks the address again unless the
// policy that judged the request has allowed it.
func (st *stream) goesTo(up connection) error {
	addr := up.Addr()
	st.setFlight(addr)
	if c := st.s.Box.Policy.Load(); c != st.decision.Policy || !up.AllowedBy(c) || st.decision.Revoked(st.s) || st.decision.Fenced() {
		if err := st.flight.Stands(c).Err(st.flight.Way.Asked); err != nil {
			return err
		}
		if err := st.decision.Stale(st.s); err != nil {
			return err
		}
	}
	st.x.Under(addr, st.decision.Request)
	return nil
}

// checkEnd aborts the request if the end of its body or its trailers, available once the body has been read, contain a
// placeholder.
func (st *stream) checkEnd() error {
	err := st.watch.End()
	if err == nil {
		err = placeholder.InHTTP2Trailer(st.client.Trailers())
	}
	return st.noted(err)
}

// noted records the reason why a body is refused.
func (st *stream) noted(err error) error {
	switch {
	case errors.Is(err, placeholder.ErrLate):
		st.leaked.Store(true)
	case errors.Is(err, placeholder.ErrCoded):
		st.garbled.Store(true)
	}
	return err
}

// respond relays an HTTP/2 response to the client as it arrives. A response without content is sent in a single frame
// with END_STREAM, which gRPC calls "Trailers-Only".
func (st *stream) respond(res *result) {
	st.x.Event.Status = res.Status
	st.answer(res.Status, header.PassResponse(res.Fields, false))
	st.finish(res.Stream)
}

// finish relays the content and the trailers of a response.
func (st *stream) finish(body *upstream.Stream) {
	if err := st.relay(body); err != nil {
		_ = st.w.sendHead(false) // the client may have left
		st.abort(err)
	}
	st.setTrailers(body.Trailers())
}

// abort resets the stream: a truncated body must not look complete.
func (st *stream) abort(err error) {
	if err == nil {
		err = relay.ErrProtocol
	}
	st.x.Failed(err)
	code, _ := resetCode(err)
	st.resetWith(code)
}

// relay copies a body, flushing before it waits for more.
func (st *stream) relay(body *upstream.Stream) error {
	if st.scrub != nil {
		return st.relayScrubbed(http2Body{body})
	}
	buf := bodyBuffers.Get()
	defer bodyBuffers.Put(buf)
	for {
		n, err := http2Body{body}.Read(*buf, st.w.Flush)
		if n > 0 {
			st.x.Event.BytesIn += int64(n)
			st.x.Download((*buf)[:n])
			if _, err := st.w.Write((*buf)[:n]); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// bodyBuffers are for bodies over HTTP/2.
var bodyBuffers = buffers.NewPool(32 << 10)

// resetCode returns the code if the upstream reset the stream.
func resetCode(err error) (http2.ErrCode, bool) {
	var reset *h2.StreamError
	if errors.As(err, &reset) && reset.Peer {
		return reset.Code, true
	}
	return http2.ErrCodeInternal, false
}

// resetWith resets the stream with a code. It does not return.
func (st *stream) resetWith(code http2.ErrCode) {
	st.reset = code
	panic(errAbort)
}

// attempts is one HTTP/2 request with its attempts. It is retried where that is safe: the server reported that it did not
// process the stream (by REFUSED_STREAM or GOAWAY), or the request was never sent.
type attempts struct {
	st     *stream
	up     *origin.H2Conn // of the attempt in progress
	used   bool           // a stream was opened on up
	n      int
	fields []hpack.HeaderField
	source *uploadSource // may be nil
}

const (
	maxAttempts  = 3
	attemptPause = time.Second // before the last attempt
)

// errRepeat fails a request that could be retried, but whose body is no longer available.
var errRepeat = error(problem.Fixed("the upstream did not handle the request, and its body is no longer available to retry it"))

// attempts prepares the request for its first attempt, on up.
func (st *stream) attempts(up *origin.H2Conn) *attempts {
	a := &attempts{st: st, up: up, fields: st.requestFields(), source: st.early.source}
	if st.length != 0 && a.source == nil {
		a.source = st.newUploadSource()
	}
	return a
}

// send sends the request until the server handles it. The response's body may still be arriving, and so may the request's,
// until the response's body is closed.
func (a *attempts) send(res *result) error {
	for {
		a.n++
		err := a.try(res)
		if err == nil || !upstream.Unprocessed(err) {
			return err
		}
		if err := a.another(); err != nil {
			return err
		}
	}
}

// try makes one attempt.
func (a *attempts) try(res *result) error {
	if a.st.early.stream != nil {
		return a.adopt(res)
	}
	if err := a.st.goesTo(a.up); err != nil {
		return err
	}
	if a.source != nil {
		if err := a.source.inspect(); err != nil {
			return err
		}
	}
	a.used = true
	s, err := a.up.Client.Open(a.st.ctx, a.fields, a.source == nil)
	if err != nil {
		return err
	}
	*res = result{Stream: s}
	if a.source != nil {
		res.source = a.source
		if !s.Complete(a.source.known()) {
			res.upload = a.st.upload(s, a.source.attempt())
		}
	}
	if err := a.st.receive(res); err != nil {
		res.close()
		return err
	}
	return nil
}

// adopt continues an attempt that was started without a goroutine.
func (a *attempts) adopt(res *result) error {
	a.used = true
	*res = result{Stream: a.st.early.stream, source: a.source}
	a.st.early = early{}
	res.Attend(a.st.ctx)
	if err := a.st.receive(res); err != nil {
		res.close()
		return err
	}
	return nil
}

// another acquires a connection for another attempt.
func (a *attempts) another() error {
	if a.source != nil && a.source.lost() {
		return errRepeat
	}
	a.releaseConn()
	switch a.n {
	case maxAttempts:
		return errRepeat
	case maxAttempts - 1:
		if err := pause(a.st.ctx, attemptPause); err != nil {
			return err
		}
	}
	up, err := a.st.s.Core.Origins.Any(a.st.ctx, a.st.s.Origin, a.st.decision.Target(a.st.s))
	if err != nil {
		return err
	}
	if up.H1 != nil { // the host now speaks HTTP/1.1: the client may retry
		up.H1.Keep()
		return errRepeat
	}
	a.up = up.H2
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (a *attempts) releaseConn() {
	if a.up != nil {
		a.up.Leave(a.used)
	}
	a.up, a.used = nil, false
}
