package http2

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"

	"boxgate/internal/h1"
	"boxgate/internal/h2/downstream"
	"boxgate/internal/memory"
	"boxgate/internal/socket"
	"boxgate/policy"
	"boxgate/proxy/contain"
	"boxgate/proxy/exchange"
	"boxgate/proxy/header"
	"boxgate/proxy/origin"
	"boxgate/proxy/placeholder"
	"boxgate/proxy/problem"
)

const (
	// ConnCost is the most memory that a connection uses, in bytes: a frame that is read, a batch that is written and the
	// next one, answers to the client's own frames, header tables, goroutines.
	ConnCost    = 112 << 10
	refusalCost = 24 << 10                                     // memory of a stream that the gateway itself answers
	streamCost  = origin.ResponseWindow + 72<<10               // memory of a forwarded stream: what its server may send ahead, buffers, goroutines
	uploadCost  = downstream.StreamWindow + replayMax + 32<<10 // memory for the body of its request
)

// conn is the state of one HTTP/2 client connection.
type conn struct {
	s *exchange.Session

	mu      sync.Mutex
	flights map[*exchange.Inflight]*stream
}

// Serve handles the streams of one connection until it ends. Each request is judged under the policy in force at the
// time and forwarded over HTTP/2 or, if the upstream speaks only HTTP/1.1, translated. It closes s.client.
func Serve(ctx context.Context, s *exchange.Session) error {
	c := &conn{s: s, flights: map[*exchange.Inflight]*stream{}}
	s.Live.Watch(c.watch)
	defer s.Live.Watch(nil)
	conn, ok := s.Client.(*tls.Conn)
	if !ok {
		_ = s.Client.Close()
		return origin.ErrNoName // HTTP/2 is only negotiated in a TLS handshake
	}
	downstream.Serve(ctx, conn, downstream.Config{
		Handler: c.serve, Refused: c.refused, Memory: s.Usage.Memory, Idle: exchange.ClientIdle,
		Panicked: func(v any) { contain.Log(s.Core.Log, "panic in an HTTP/2 connection", s.Box.ID, v) },
	})
	return nil
}

// streamCut is how long a stream has to end once the policy denies it.
const streamCut = 50 * time.Millisecond

// watch is called on every policy change to check whether the requests in progress may continue. Denied streams are
// reset individually; if one does not end, as when a write blocks on a client that does not read, the whole connection
// is cut.
func (c *conn) watch(pol *policy.Compiled) policy.Decision {
	limit := time.NewTimer(streamCut)
	defer limit.Stop()
	for _, st := range c.denied(pol) {
		st.cancel()
		select {
		case <-st.done:
		case <-limit.C:
			return *st.cut.Load()
		}
	}
	return policy.Decision{Verdict: policy.Allow}
}

// denied returns the streams that a policy denies, noting the denial in each.
func (c *conn) denied(pol *policy.Compiled) (cut []*stream) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for f, st := range c.flights {
		if d := f.Stands(pol); !d.Allowed() {
			st.cut.CompareAndSwap(nil, &d)
			cut = append(cut, st)
		}
	}
	return cut
}

// publish updates what is known of a request in progress; either argument may be nil.
func (c *conn) publish(st *stream, old, now *exchange.Inflight) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.flights, old)
	if now != nil {
		c.flights[now] = st
	}
}

// stream is one request of an HTTP/2 connection.
type stream struct {
	c      *conn
	s      *exchange.Session
	client *downstream.Stream
	w      http.ResponseWriter
	r      *http.Request
	x      exchange.Exchange
	ruling exchange.Ruling
	scrub  *exchange.Scrubbing // of the response; nil if it is not scrubbed
	flight *exchange.Inflight
	holds  memory.Claim // memory reserved for it
	cancel context.CancelFunc
	done   chan struct{}                   // closed when the request has ended
	cut    atomic.Pointer[policy.Decision] // of a later policy that denies it

	expects  bool         // the client waits for 100 before it sends the body
	uploaded atomic.Int64 // bytes of the request's body
	watch    placeholder.Watch
	leaked   atomic.Bool   // its body or trailers contain a placeholder
	reset    http2.ErrCode // how the stream is reset if its handler breaks off
}

// serve handles one request.
func (c *conn) serve(client *downstream.Stream) {
	ctx, cancel := context.WithCancel(client.Context())
	defer cancel()
	r, expects := newRequest(ctx, client)
	w := &response{s: client, header: http.Header{}}
	st := &stream{
		c: c, s: c.s, client: client, w: w, r: r, cancel: cancel, done: make(chan struct{}), expects: expects,
		reset: http2.ErrCodeInternal,
	}
	defer close(st.done)
	st.x.Begin(c.s)
	defer st.end(w)
	if !st.admit() {
		return
	}
	defer st.holds.Release()
	if !c.s.Usage.Requests.Allow() {
		m := st.message()
		st.x.Named(&m)
		w.Header().Set("Retry-After", exchange.RetryAfter)
		st.refuse(exchange.TooMany())
		return
	}
	if !c.s.Usage.Streams.Enter(c.s.Core.MaxStreams) {
		st.refuse(&problem.Problem{Status: http.StatusServiceUnavailable, Reason: policy.ReasonLimit,
			Detail: "The box has reached its limit of requests in progress."})
		return
	}
	defer c.s.Usage.Streams.Leave()
	if !st.holds.Grow(st.cost()) {
		st.refuse(exchange.NoMemory())
		return
	}
	if !st.judge() {
		return
	}
	defer func() { st.scrub.End() }()
	if st.ruling.Scrub != nil {
		header.Narrow(st.r.Header)
	}
	if st.isWebSocket() {
		st.serveWebSocket()
		return
	}
	st.watch = placeholder.NewWatch(st.ruling.Policy)
	st.forward()
}

// admit reserves the memory to refuse a request with a response, which may wait for a client that does not read. If it
// is not available, the stream is reset.
func (st *stream) admit() bool {
	st.holds.Open(st.s.Usage.Memory, memory.Streams)
	if st.holds.Grow(refusalCost + header.SizeFactor*headSize(st.r)) {
		return true
	}
	st.x.Refused(exchange.NoMemory())
	st.resetWith(http2.ErrCodeRefusedStream)
	return false
}

// cost is the additional memory that a forwarded stream may use.
func (st *stream) cost() int {
	if st.r.ContentLength == 0 {
		return streamCost
	}
	return streamCost + uploadCost
}

// end records the request and ends the response. Any panic other than http.ErrAbortHandler is our own bug: it is logged
// and fails only this stream.
func (st *stream) end(w *response) {
	v := recover()
	st.c.publish(st, st.flight, nil)
	st.x.Event.BytesOut = st.uploaded.Load()
	if d := st.cut.Load(); d != nil {
		st.x.Cut(*d)
	}
	if st.leaked.Load() {
		st.x.Leaked()
	}
	st.x.End()
	if v == nil {
		w.finish()
		return
	}
	if err, ok := v.(error); !ok || !errors.Is(err, http.ErrAbortHandler) {
		contain.Log(st.s.Core.Log, "panic in an exchange", st.s.Box.ID, v)
	}
	st.client.Reset(st.reset)
}

// judge decides the request, as [http1.judge] does, and answers it if refused.
func (st *stream) judge() bool {
	m := st.message()
	for {
		st.ruling = st.s.Judge(st.r.Context(), &m)
		if st.ruling.Refused == nil && headSize(st.r) > h1.MaxHead {
			st.ruling.Refused = exchange.BadRequest("The request is refused: its head is too large.")
			st.ruling.Refused.Status = http.StatusRequestHeaderFieldsTooLarge
			st.ruling.Reason = policy.ReasonBadRequest
		}
		if (st.ruling.Refused == nil || st.ruling.Reason == policy.ReasonAmbiguousPath) && !st.wellFormed() {
			st.ruling.Refused = exchange.BadRequest("The request is refused: a field or the path holds what HTTP/1.1 could not carry.")
			st.ruling.Reason = policy.ReasonBadRequest
		}
		st.x.Judged(&m, &st.ruling)
		if p := st.ruling.Refused; p != nil {
			st.refuse(p)
			return false
		}
		st.setFlight(st.ruling.Inflight(st.s, netip.Addr{}))
		if st.s.Box.Policy.Load() == st.ruling.Policy {
			placeholder.SwapHeader(st.r.Header, st.ruling.Swaps)
			return true
		}
	}
}

func (st *stream) setFlight(f *exchange.Inflight) {
	st.c.publish(st, st.flight, f)
	st.flight = f
}

func (st *stream) message() exchange.Message {
	scheme := "https"
	if st.r.TLS == nil { // :scheme was not https
		scheme = "http"
	}
	return exchange.Message{
		Method: st.r.Method, Authority: st.r.Host, Scheme: scheme, Path: st.r.RequestURI, Websocket: st.isWebSocket(),
		Tokens: placeholder.InHTTP2Request(st.r),
	}
}

func (st *stream) isWebSocket() bool {
	return st.r.Method == http.MethodConnect && st.r.Header.Get(":protocol") == "websocket"
}

// headSize returns about how long a request's head is when written as HTTP/1.1.
func headSize(r *http.Request) int {
	return len(r.Method) + len(r.RequestURI) + len(r.Host) + 32 + header.Size(r.Header)
}

// wellFormed validates a request by the rules of the HTTP/1.1 parser, so that it means the same on every path.
func (st *stream) wellFormed() bool {
	if !h1.ValidMethod(st.r.Method) || !h1.ValidTarget(st.r.RequestURI) || len(st.r.Header) > h1.MaxFields {
		return false
	}
	if st.r.RequestURI == "*" && st.r.Method != http.MethodOptions {
		return false
	}
	if _, ok := st.r.Header[":protocol"]; ok && st.r.Method != http.MethodConnect {
		return false // RFC 8441, 4
	}
	if length, ok := st.r.Header["Content-Length"]; ok && (len(length) != 1 || length[0] != strconv.FormatInt(st.r.ContentLength, 10)) {
		return false // RFC 9113, 8.1.1: it must match the body
	}
	for name, values := range st.r.Header {
		if name == ":protocol" {
			continue
		}
		for _, v := range values {
			if !h1.ValidField(name, v) {
				return false
			}
		}
	}
	return true
}

// refuse answers with a problem.
func (st *stream) refuse(p *problem.Problem) {
	st.x.Refused(p)
	h := st.w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	body := p.Body()
	if st.r.Method != http.MethodHead {
		h.Set("Content-Length", strconv.Itoa(len(body)))
	}
	st.w.WriteHeader(p.Status)
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
	if st.r.Context().Err() != nil {
		panic(http.ErrAbortHandler) // the client disconnected, or the connection was cut
	}
	p := exchange.UpstreamProblem(err)
	if p.Host == "" {
		p.Host = st.ruling.Request.Name.String()
	}
	st.refuse(p)
}

// refused records a request that never reached its handler, or the end of a connection whose client broke the protocol.
// It counts as a request. A client over its rate limit loses the connection for it, as it cannot be told to wait.
func (c *conn) refused(r downstream.Refusal) {
	var x exchange.Exchange
	x.Begin(c.s)
	x.Refused(&problem.Problem{Reason: policy.ReasonBadRequest})
	x.Event.Error = r.Why
	if h1.ValidMethod(r.Method) {
		x.Event.Method = r.Method
	}
	if h1.ValidTarget(r.Path) {
		x.Event.Path = exchange.WithoutQuery(r.Path)
	}
	if over := !c.s.Usage.Requests.Allow(); over || r.Flood {
		x.Event.Reason = policy.ReasonLimit
		socket.Abort(c.s.Client)
	}
	x.End()
}
