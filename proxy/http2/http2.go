// Package http2 serves HTTP/2 clients: it has the request of each stream judged, forwards it over the HTTP version that the
// server speaks, and relays the response.
package http2

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"boxgate/boundary"
	"boxgate/internal/memory"
	"boxgate/internal/socket"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy/exchange"
	"boxgate/proxy/header"
	"boxgate/proxy/origin"
	"boxgate/proxy/problem"
	"boxgate/proxy/recovery"
	"boxgate/relay/h1"
	"boxgate/relay/h2/downstream"
	"boxgate/rule/placeholder"
)

const (
	// ConnCost is the most memory that a connection uses, in bytes: read data, a frame in several records, the written
	// batch and the next one, answers to the client's own frames, a header table and recent literals, goroutines.
	ConnCost    = 136 << 10
	connIdle    = 32 << 10                                     // part of ConnCost used without a request: connection state, header table, a goroutine's stack
	refusalCost = 24 << 10                                     // memory of a stream that the gateway answers itself
	streamCost  = origin.ResponseWindow + 72<<10               // memory of a forwarded stream: the response window, buffers, goroutines
	uploadCost  = downstream.StreamWindow + replayMax + 32<<10 // memory for the body of its request
)

// conn is the state of one HTTP/2 client connection.
type conn struct {
	s   *exchange.Session
	ctx context.Context

	mu      sync.Mutex
	flights map[*stream]struct{} // the allowed requests in progress
}

// Serve handles the streams of one connection until it ends. Each request is judged by the policy at that time, and
// forwarded over HTTP/2 or translated if the upstream speaks only HTTP/1.1. It closes s.Client. holds contains [ConnCost]; Serve
// releases a part of it while there is no request.
func Serve(ctx context.Context, s *exchange.Session, holds *memory.Claim) error {
	c := &conn{s: s, ctx: ctx, flights: map[*stream]struct{}{}}
	s.Live.Watch(c)
	defer s.Live.Watch(nil)
	if !s.Secure {
		_ = s.Client.Close()
		return origin.ErrNoName // HTTP/2 is only negotiated in a TLS handshake
	}
	downstream.Serve(ctx, s.Client, downstream.Config{
		Start: c.start, Handler: c.serve, Refused: c.refused, Memory: s.Usage.Memory, Idle: exchange.ClientIdle, Sleeper: &sleeper{s, holds},
		Panicked: func(v any) { recovery.Log(s.Core.Log, "panic in an HTTP/2 connection", s.Box.ID, v) },
	})
	return nil
}

// sleeper manages the memory of an idle connection.
type sleeper struct {
	s     *exchange.Session
	holds *memory.Claim
}

// Sent implements [downstream.Sleeper].
func (m *sleeper) Sent() int64 { return m.s.Live.Out.Load() }

// Sleep implements [downstream.Sleeper].
func (m *sleeper) Sleep() {
	m.holds.Shrink(ConnCost - connIdle)
	m.s.TLS.Rest(m.Sent())
}

// Wake implements [downstream.Sleeper]. A connection that cannot wake ends, and releases the rest.
func (m *sleeper) Wake() bool { return m.holds.Grow(ConnCost-connIdle) && m.s.TLS.Wake() }

// streamCut is the maximum time until a denied stream has ended.
const streamCut = 50 * time.Millisecond

// Recheck implements [boxgate/proxy/live.Requests]: it checks whether the requests in progress may continue. Denied streams
// are reset individually; if one does not end, for example because a write blocks on a client that does not read, the whole
// connection is cut.
func (c *conn) Recheck(pol *policy.Compiled) policy.Decision {
	limit := time.NewTimer(streamCut)
	defer limit.Stop()
	for _, cut := range c.cut(pol) {
		select {
		case <-cut.done:
		case <-limit.C:
			return cut.why
		}
	}
	return policy.Decision{Verdict: policy.Allow}
}

// Revoked implements [boxgate/proxy/live.Requests].
func (c *conn) Revoked() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for st := range c.flights {
		if st.flight.Revoked() {
			return true
		}
	}
	return false
}

// InFlight implements [boxgate/proxy/live.Requests].
func (c *conn) InFlight() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.flights) > 0
}

// cutting is a stream that a policy denies.
type cutting struct {
	done chan struct{} // closed when it has ended
	why  policy.Decision
}

// cut cancels the streams that a policy denies, and records the denial in each.
func (c *conn) cut(pol *policy.Compiled) (all []cutting) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for st := range c.flights {
		d := st.flight.Stands(pol)
		if d.Allowed() {
			continue
		}
		if st.cut == nil {
			st.cut, st.done = &d, make(chan struct{})
		}
		st.client.Cancel(nil)
		all = append(all, cutting{st.done, *st.cut})
	}
	return all
}

// setFlight updates the state that the policy must keep allowing while the request to an address is in progress.
func (st *stream) setFlight(to netip.Addr) {
	st.c.mu.Lock()
	defer st.c.mu.Unlock()
	st.flight.Set(st.s, &st.decision, to)
	st.c.flights[st] = struct{}{}
}

// land removes a request that has ended from the flights. It returns the decision that cut it, or nil.
func (st *stream) land() *policy.Decision {
	st.c.mu.Lock()
	defer st.c.mu.Unlock()
	delete(st.c.flights, st)
	return st.cut
}

// stream is one request of an HTTP/2 connection, with memory that later requests use again.
type stream struct {
	x     exchange.Exchange
	sent  []hpack.HeaderField // the head sent to the upstream
	small []byte              // buffer of a small body
	progress
}

// progress is the part of a [stream] that no other request needs.
type progress struct {
	c        *conn
	s        *exchange.Session
	client   *downstream.Stream
	ctx      context.Context // of the client's stream
	target   string          // :path, or the authority of a CONNECT
	length   int64           // of the forwarded body; -1: unknown
	fields   []hpack.HeaderField
	w        response
	next     func(*stream)    // the remaining steps of a request that was started without a goroutine
	early    early            // the part that was sent so far
	denial   *problem.Problem // because of a limit; may be nil
	counts   bool             // counts as one of the box's requests
	decision exchange.Decision
	scrub    *exchange.Scrubbing // of the response; may be nil
	holds    memory.Claim        // memory reserved for it

	// Guarded by c.mu while the request is among c.flights.
	flight exchange.Inflight
	cut    *policy.Decision // by a later policy
	done   chan struct{}    // closed when the request has ended; nil unless cut

	expects  bool        // the client waits for 100 before it sends the body
	asked    atomic.Bool // it was sent 100
	uploaded atomic.Int64
	watch    placeholder.Watch
	leaked   atomic.Bool // its body or trailers contain a placeholder
	garbled  atomic.Bool // its body cannot be searched for placeholders

	rewriting *exchange.Rewriting // nil unless the request was changed
	reset     http2.ErrCode       // reset code if the handler breaks off
	shared    bool                // another goroutine may still use it after its end
}

// errAbort is the panic value that ends a handler and resets its stream.
var errAbort = errors.New("the stream is reset")

var streams = sync.Pool{New: func() any { return &stream{} }}

// open begins the event of a request.
func (c *conn) open(client *downstream.Stream) *stream {
	st, ok := streams.Get().(*stream)
	if !ok {
		panic("http2: a foreign value among the streams")
	}
	st.c, st.s, st.client, st.w.s, st.reset, st.next = c, c.s, client, client, http2.ErrCodeInternal, (*stream).handle
	st.begin()
	st.x.Begin(c.s)
	return st
}

// serve handles a request from its beginning.
func (c *conn) serve(client *downstream.Stream) { c.open(client).Serve() }

// Serve handles the remaining steps of a request, in a goroutine.
func (st *stream) Serve() {
	defer st.recycle()
	defer st.finishRequest()
	st.ctx = st.client.Context()
	st.next(st)
}

// recycle returns the memory of an ended request to the pool.
func (st *stream) recycle() {
	if st.done != nil {
		close(st.done)
	}
	if st.shared {
		return
	}
	clear(st.sent)
	clear(st.small)
	st.sent, st.progress = st.sent[:0], progress{}
	streams.Put(st)
}

// handle handles a request.
func (st *stream) handle() {
	if st.admit(); st.denial != nil {
		st.deny()
		return
	}
	st.decide()
}

// decide judges a request within the limits of its box, and forwards it.
func (st *stream) decide() {
	if !st.judge() {
		return
	}
	if st.isWebSocket() {
		st.fields = st.decision.WithoutExtensionsHTTP2(st.fields)
	}
	if st.decision.ReadsResponse() {
		st.fields = header.NarrowHTTP2(st.fields)
	}
	if refused := st.watchBody(); refused != nil {
		st.refuse(refused)
		return
	}
	if (st.decision.Rewrites() || st.watch.Decodes() || st.rewriting.Buffered()) && !st.rewrite() {
		return
	}
	if st.isWebSocket() {
		st.serveWebSocket()
		return
	}
	st.forward()
}

// admit counts a request, and sets its denial if it exceeds a limit of its box. It reserves memory for refusing it with a
// response, which may wait for a client that does not read. If that is not available, the stream is reset.
func (st *stream) admit() {
	taken := st.s.Usage
	if st.x.Captured() {
		st.capture()
	}
	st.holds.Open(taken.Memory, memory.Streams)
	if !st.holds.Grow(refusalCost + header.SizeFactor*st.headSize()) {
		st.x.Refused(exchange.NoMemory())
		st.resetWith(http2.ErrCodeRefusedStream)
	}
	if !taken.Requests.Allow() {
		m := st.message()
		st.x.Named(&m)
		st.denial = exchange.TooMany()
		return
	}
	if !taken.Streams.Enter(taken.Limit(policy.LimitStreams, st.s.Core.MaxStreams)) {
		st.denial = &problem.Problem{Status: http.StatusServiceUnavailable, Reason: name.ReasonLimit,
			Detail: "The box has reached its limit of requests in progress."}
		return
	}
	st.counts = true
	if !st.holds.Grow(st.cost()) {
		st.denial = exchange.NoMemory()
	}
}

// deny refuses a request that exceeds a limit.
func (st *stream) deny() { st.refuse(st.denial) }

// releaseResources releases the resources of a request that has ended.
func (st *stream) releaseResources() {
	st.early.releaseConn()
	st.scrub.End()
	st.watch.Close()
	st.rewriting.Close()
	if st.counts {
		st.s.Usage.Streams.Leave()
		st.counts = false
	}
	st.holds.Release()
}

// cost returns the additional memory of a forwarded stream.
func (st *stream) cost() int {
	if st.length == 0 {
		return streamCost
	}
	return streamCost + uploadCost
}

// finishRequest records the request and ends the response. A panic other than errAbort is a bug: it is logged and fails only this
// stream.
func (st *stream) finishRequest() { st.conclude(recover()) }

func (st *stream) conclude(v any) {
	st.releaseResources()
	cut := st.land()
	st.x.Event.BytesOut = st.uploaded.Load()
	if cut != nil {
		st.x.Cut(*cut)
	}
	if st.leaked.Load() {
		st.x.Leaked()
	}
	st.x.End()
	if v == nil {
		st.w.endResponse()
		return
	}
	if err, ok := v.(error); !ok || !errors.Is(err, errAbort) {
		st.shared = true // an upload may continue for a moment
		recovery.Log(st.s.Core.Log, "panic in an exchange", st.s.Box.ID, v)
	}
	st.client.Reset(st.reset)
}

// judge decides the request, as [http1.judge] does, and answers it if refused.
func (st *stream) judge() bool {
	m := st.message()
	for {
		st.s.Judge(st.ctx, &m, &st.decision)
		st.judgeHead()
		st.x.Judged(&m, &st.decision)
		if st.decision.Unread() {
			if !st.readMessages(&m) {
				return false
			}
			continue
		}
		if p := st.decision.Refused; p != nil {
			st.refuse(p)
			return false
		}
		if st.setFlight(netip.Addr{}); st.confirm() {
			return true
		}
	}
}

// confirm replaces the placeholders of an allowed request whose flight has begun. If the policy has changed since it was
// judged, it returns false: the request must be judged again.
func (st *stream) confirm() bool {
	if st.s.Box.Policy.Load() != st.decision.Policy {
		return false
	}
	if !st.decision.Rewrites() { // Rewrite does that later
		placeholder.SwapHTTP2(st.fields, st.decision.Swaps)
	}
	return true
}

// judgeHead refuses a request whose head could be interpreted differently by other programs.
func (st *stream) judgeHead() {
	if st.decision.Refused == nil && st.headSize() > h1.MaxHead {
		st.decision.Refused = exchange.BadRequest("The request is refused: its head is too large.")
		st.decision.Refused.Status = http.StatusRequestHeaderFieldsTooLarge
		st.decision.Reason = name.ReasonBadRequest
	}
	if st.decision.Refused != nil && st.decision.Reason != name.ReasonAmbiguousPath && st.decision.Reason != name.ReasonAmbiguousRequest {
		return
	}
	switch {
	case !st.wellFormed():
		st.decision.Refused = exchange.BadRequest("The request is refused: a field or the path holds what HTTP/1.1 could not carry.")
	case st.lines() > h1.MaxFields:
		st.decision.Refused = exchange.BadRequest("The request is refused: " + h1.TooManyFields + ".")
	default:
		return
	}
	st.decision.Reason = name.ReasonBadRequest
}

// refuse answers with a problem.
func (st *stream) refuse(p *problem.Problem) {
	st.x.Refused(p)
	st.s.Core.Advise(st.s.Box, p, boundary.Denial{Host: p.Host, Port: st.x.Event.Port, Method: st.x.Event.Method, Path: st.x.Event.Path})
	body := p.Body()
	fields := []hpack.HeaderField{{Name: "content-type", Value: p.MediaType()}, {Name: "cache-control", Value: "no-store"}}
	for _, f := range p.Fields {
		fields = append(fields, hpack.HeaderField{Name: strings.ToLower(f[0]), Value: f[1]})
	}
	if st.client.Method != http.MethodHead {
		fields = append(fields, hpack.HeaderField{Name: "content-length", Value: strconv.Itoa(len(body))})
	}
	st.w.begin(p.Status, fields)
	if st.x.Captured() {
		st.x.CaptureOwn(version, p.Status, exchange.CapturedHTTP2(fields), body)
	}
	_, err := st.w.Write(body)
	st.x.Failed(err)
}

// refuseUpstream reports to the client why the upstream could not be used.
func (st *stream) refuseUpstream(err error) {
	st.x.Unserved(err)
	if st.leaked.Load() {
		st.refuse(exchange.LeakProblem())
		return
	}
	if st.garbled.Load() {
		st.refuse(exchange.BadRequest("The request is refused: " + placeholder.ErrCoded.Error() + "."))
		return
	}
	if st.ctx.Err() != nil {
		panic(errAbort) // the client disconnected, or the connection was cut
	}
	p := exchange.UpstreamProblem(err)
	if p.Host == "" {
		p.Host = st.decision.Request.Name.String()
	}
	st.refuse(p)
}

// refused records a request that never reached its handler, or the end of a connection after a protocol error of the
// client. It counts as a request. If the client exceeds its rate limit, its connection is closed, because such a request
// gets no response.
func (c *conn) refused(r downstream.Refusal) {
	var x exchange.Exchange
	x.Begin(c.s)
	x.Refused(&problem.Problem{Reason: name.ReasonBadRequest})
	x.Event.Error = r.Why
	if h1.ValidMethod(r.Method) {
		x.Event.Method = r.Method
	}
	if h1.ValidTarget(r.Path) {
		x.Event.Path = exchange.WithoutQuery(r.Path)
	}
	if over := !c.s.Usage.Requests.Allow(); over || r.Flood {
		x.Event.Reason = name.ReasonLimit
		socket.Abort(c.s.Client)
	}
	x.End()
}
