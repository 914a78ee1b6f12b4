package http2

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/netip"

	"golang.org/x/net/http2"

	"boxgate/internal/buffers"
	"boxgate/internal/h2"
	"boxgate/internal/memory"
	"boxgate/policy"
	"boxgate/proxy/exchange"
	"boxgate/proxy/header"
	"boxgate/proxy/origin"
	"boxgate/proxy/placeholder"
	"boxgate/proxy/problem"
)

// forward sends an allowed request over the version that the upstream speaks, and relays its response.
func (st *stream) forward() {
	ctx, cancel := context.WithCancel(st.r.Context())
	defer cancel()
	for again := st.repeatable(); ; again = false {
		up, err := st.s.Core.Origins.Any(ctx, st.s.Origin, st.ruling.Target(st.s))
		if err != nil {
			st.refuseUpstream(err)
			return
		}
		if up.H1 != nil {
			st.forward1(ctx, up.H1, again)
			return
		}
		if err = st.forward2(ctx, up.H2); err == nil {
			return
		}
		if !again || ctx.Err() != nil || errors.Is(err, errRepeat) {
			st.failed2(ctx, err)
			return
		}
	}
}

// repeatable reports whether a request may be retried once after a failure on a pooled connection.
func (st *stream) repeatable() bool {
	return st.r.ContentLength == 0 && exchange.Idempotent(st.r.Method)
}

// failed2 reports to the client that there is no response. If the upstream reset the stream, the client gets the same
// reset and may retry an unprocessed request that cannot be retried from here (RFC 9113, 8.7). PROTOCOL_ERROR and
// FLOW_CONTROL_ERROR are not passed on: they concern the connection to the upstream, not the client's.
func (st *stream) failed2(ctx context.Context, err error) {
	code, reset := resetCode(err)
	if errors.Is(err, errRepeat) {
		code, reset = http2.ErrCodeRefusedStream, true
	}
	failure := &problem.Upstream{Reason: policy.ReasonUpstreamHTTP, Name: st.ruling.Request.Name, Err: err}
	if ctx.Err() != nil || !reset || code == http2.ErrCodeProtocol || code == http2.ErrCodeFlowControl {
		st.refuseUpstream(failure)
		return
	}
	st.x.Unserved(failure)
	st.resetWith(code)
}

// forward2 sends the request over HTTP/2 and relays the response. On an error nothing was sent to the client yet.
func (st *stream) forward2(ctx context.Context, up *origin.H2Conn) error {
	a := st.attempts(ctx, up)
	defer a.leave()
	res, err := a.send()
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if !st.holds.Grow(header.SizeFactor * header.Size(res.Header)) {
		st.refuseUpstream(&problem.Upstream{Reason: policy.ReasonLimit, Name: st.ruling.Request.Name, Err: memory.ErrFull})
		return nil
	}
	if !st.scrubbable(res.StatusCode, withoutBody(res, st.r.Method), func(name string) []string { return res.Header[name] }) {
		return nil
	}
	st.respond(res)
	return nil
}

// goesTo adds the address to what the policy must keep allowing, and checks it once more.
func (st *stream) goesTo(addr netip.Addr) error {
	f := st.ruling.Inflight(st.s, addr)
	st.setFlight(f)
	if err := f.Stands(st.s.Box.Policy.Load()).Err(f.Way.Asked); err != nil {
		return err
	}
	st.x.Under(addr, st.ruling.Request)
	return nil
}

// checkTrailers aborts the request if its trailers, available once the body has been read, contain a placeholder.
func (st *stream) checkTrailers() error {
	err := placeholder.InHTTP2Trailer(st.r.Trailer)
	if err != nil {
		st.leaked.Store(true)
	}
	return err
}

// respond relays an HTTP/2 response to the client as it arrives.
func (st *stream) respond(res *http.Response) {
	st.x.Event.Status = res.StatusCode
	header.Copy(st.w.Header(), res.Header)
	for name := range res.Trailer {
		st.w.Header().Add("Trailer", name)
	}
	st.maskHead()
	// A response without a body is sent in a single frame with END_STREAM: what gRPC calls "Trailers-Only".
	if res.ContentLength == 0 && len(res.Trailer) == 0 && st.r.Method != http.MethodHead {
		n, err := io.Copy(io.Discard, res.Body)
		if err == nil && n == 0 && len(res.Trailer) == 0 {
			st.w.WriteHeader(res.StatusCode)
			return
		}
		st.abort(err)
	}
	st.w.WriteHeader(res.StatusCode)
	if err := st.relay(res.Body); err != nil {
		st.abort(err)
	}
	st.trailers(res.Trailer)
}

// abort resets the stream: a truncated body must not look complete.
func (st *stream) abort(err error) {
	if err == nil {
		err = exchange.ErrProtocol
	}
	st.x.Failed(err)
	code, _ := resetCode(err)
	st.resetWith(code)
}

// relay copies a body, flushing before it waits for more.
func (st *stream) relay(body io.Reader) error {
	if st.scrub != nil {
		return st.relayScrubbed(http2Body{body})
	}
	controller := http.NewResponseController(st.w)
	if err := controller.Flush(); err != nil {
		return err
	}
	buf := bodyBuffers.Get()
	defer bodyBuffers.Put(buf)
	for {
		n, err := body.Read(*buf)
		if n > 0 {
			st.x.Event.BytesIn += int64(n)
			if _, err := st.w.Write((*buf)[:n]); err != nil {
				return err
			}
			if err := controller.Flush(); err != nil {
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

// trailers sends the trailer fields, announced or not.
func (st *stream) trailers(t http.Header) {
	exchange.MaskHeader(st.ruling.Scrub, t)
	for name, values := range t {
		for _, v := range values {
			st.w.Header().Add(http.TrailerPrefix+name, v)
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
	panic(http.ErrAbortHandler)
}
