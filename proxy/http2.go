package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"

	"boxgate/internal/memory"
	"boxgate/policy"
	"boxgate/proxy/contain"
	"boxgate/proxy/h1"
	"boxgate/proxy/h2"
	"boxgate/proxy/h2connect"
	"boxgate/proxy/header"
	"boxgate/proxy/origin"
	"boxgate/proxy/placeholder"
	"boxgate/proxy/problem"
	"boxgate/proxy/socket"
)

//lint:file-ignore SA1019 net/http serves listeners; this serves one connection, peeked at and with a context of its own.

func init() { h2connect.Restore() }

const (
	h2StreamWindow = 64 << 10 // of an upload, for each stream: boxes are near
	h2ConnWindow   = 1 << 20  // of all uploads of a connection
)

// http2Conn is the state of one HTTP/2 client connection.
type http2Conn struct {
	s      *session
	client *h2.ClientConn

	mu      sync.Mutex
	flights map[*inflight]*stream
}

// serveHTTP2 handles the streams of one connection until it ends. Each request is judged by itself, by the policy then in
// force; to the upstream it goes by HTTP/2 or, where that speaks only HTTP/1.1, translated. It closes s.client.
func (p *Proxy) serveHTTP2(ctx context.Context, s *session) error {
	c := &http2Conn{s: s, flights: map[*inflight]*stream{}}
	s.live.watch(c.watch)
	defer s.live.watch(nil)
	conn, ok := s.client.(*tls.Conn)
	if !ok {
		_ = s.client.Close()
		return origin.ErrNoName // HTTP/2 is chosen in a TLS handshake alone
	}
	server := &http2.Server{
		MaxConcurrentStreams: h2.Streams, IdleTimeout: clientIdle, MaxReadFrameSize: h2.FrameMax,
		MaxUploadBufferPerStream: h2StreamWindow, MaxUploadBufferPerConnection: h2ConnWindow,
	}
	c.client = h2.NewClientConn(conn, s.usage.Memory, c.malformedRequest, c.refusedByLibrary)
	defer c.client.Release()
	server.ServeConn(c.client, &http2.ServeConnOpts{
		Context: ctx,
		// The library's messages quote what a client sent: none is logged. Every refusal of ours is an event.
		BaseConfig: &http.Server{MaxHeaderBytes: h2.HeadRead, ErrorLog: log.New(io.Discard, "", 0)},
		Handler:    http.HandlerFunc(c.serve),
	})
	return nil
}

// streamCut is how long a stream may take to end once the policy denies it.
const streamCut = 50 * time.Millisecond

// watch is asked on every change of the policy whether the requests under way may go on. Streams that may not are reset
// alone; should one not end, such as in a write to a client that does not read, its denial cuts the whole connection.
func (c *http2Conn) watch(pol *policy.Compiled) policy.Decision {
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

// denied returns the streams that a policy denies, with the denial noted in each.
func (c *http2Conn) denied(pol *policy.Compiled) (cut []*stream) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for f, st := range c.flights {
		if d := f.stands(pol); !d.Allowed() {
			st.cut.CompareAndSwap(nil, &d)
			cut = append(cut, st)
		}
	}
	return cut
}

// publish replaces what is known of a request under way; either may be nil.
func (c *http2Conn) publish(st *stream, old, now *inflight) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.flights, old)
	if now != nil {
		c.flights[now] = st
	}
}

// stream is one request of an HTTP/2 connection.
type stream struct {
	c      *http2Conn
	s      *session
	w      http.ResponseWriter
	r      *http.Request
	x      exchange
	ruling ruling
	scrub  *scrubbing // of the response; nil if it is not scrubbed
	flight *inflight
	holds  memory.Claim // what the gateway may come to hold of it
	cancel context.CancelFunc
	done   chan struct{}                   // closed when the request has ended
	cut    atomic.Pointer[policy.Decision] // of the policy that came into force meanwhile and denies it

	expects  bool         // the client waits for 100 before it sends the body
	uploaded atomic.Int64 // bytes of the request's body
	watch    placeholder.Watch
	leaked   atomic.Bool // its body or trailers hold a placeholder
}

// serve handles one request.
func (c *http2Conn) serve(w http.ResponseWriter, r *http.Request) {
	defer c.give(w, r)()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	st := &stream{c: c, s: c.s, w: w, r: r.WithContext(ctx), cancel: cancel, done: make(chan struct{}), expects: h2.ExpectsContinue(r)}
	defer close(st.done)
	st.x.begin(c.s)
	defer st.end()
	w.Header()["Date"] = nil // the upstream's, or none
	if !st.admit() {
		return
	}
	defer st.holds.Release()
	if !c.s.usage.Requests.Allow() {
		m := st.message()
		st.x.named(&m)
		w.Header().Set("Retry-After", retryAfter)
		st.refuse(tooMany())
		return
	}
	if !c.s.usage.Streams.Enter(c.s.p.cfg.MaxStreams) {
		st.refuse(&problem.Problem{Status: http.StatusServiceUnavailable, Reason: policy.ReasonLimit,
			Detail: "The box has as many requests under way as it may have."})
		return
	}
	defer c.s.usage.Streams.Leave()
	if !st.holds.Grow(st.cost()) {
		st.refuse(noMemory())
		return
	}
	if !st.judge() {
		return
	}
	defer func() { st.scrub.end() }()
	if st.ruling.scrub != nil {
		header.Narrow(st.r.Header)
	}
	if st.isWebSocket() {
		st.serveWebSocket()
		return
	}
	st.watch = placeholder.NewWatch(st.ruling.policy)
	st.forward()
}

// admit claims what it takes to refuse a request in words: its answer may wait for a client that does not read. Without
// that the stream is reset.
func (st *stream) admit() bool {
	st.holds.Open(st.s.usage.Memory, memory.Streams)
	if st.holds.Grow(refusalCost + fieldsFactor*headSize(st.r)) {
		return true
	}
	st.x.refused(noMemory())
	st.resetWith(http2.ErrCodeRefusedStream)
	return false
}

// cost is what a stream that goes on may make the gateway hold besides.
func (st *stream) cost() int {
	if st.r.ContentLength == 0 {
		return streamCost
	}
	return streamCost + uploadCost
}

// end records the request. A panic that is no breaking off of the stream is a fault of ours: it is logged and dies here.
func (st *stream) end() {
	v := recover()
	st.c.publish(st, st.flight, nil)
	st.x.event.BytesOut = st.uploaded.Load()
	if d := st.cut.Load(); d != nil {
		st.x.cut(*d)
	}
	if st.leaked.Load() {
		st.x.leaked()
	}
	st.x.end()
	if v == nil {
		return
	}
	if err, ok := v.(error); !ok || !errors.Is(err, http.ErrAbortHandler) {
		contain.Log(st.s.p.cfg.Log, "panic in an exchange", st.s.box.ID, v)
	}
	panic(http.ErrAbortHandler) // the library resets the stream
}

// judge decides the request, as [http1.judge] does, and answers one that is refused.
func (st *stream) judge() bool {
	m := st.message()
	for {
		st.ruling = st.s.judge(st.r.Context(), &m)
		if st.ruling.refused == nil && headSize(st.r) > h1.MaxHead {
			st.ruling.refused = badRequest("The request is refused: its head is too large.")
			st.ruling.refused.Status = http.StatusRequestHeaderFieldsTooLarge
			st.ruling.reason = policy.ReasonBadRequest
		}
		if (st.ruling.refused == nil || st.ruling.reason == policy.ReasonAmbiguousPath) && !st.wellFormed() {
			st.ruling.refused = badRequest("The request is refused: a field or the path holds what HTTP/1.1 could not carry.")
			st.ruling.reason = policy.ReasonBadRequest
		}
		st.x.judged(&m, &st.ruling)
		if p := st.ruling.refused; p != nil {
			st.refuse(p)
			return false
		}
		st.setFlight(st.ruling.inflight(st.s, netip.Addr{}))
		if st.s.box.Policy.Load() == st.ruling.policy {
			placeholder.SwapHeader(st.r.Header, st.ruling.swaps)
			return true
		}
	}
}

func (st *stream) setFlight(f *inflight) {
	st.c.publish(st, st.flight, f)
	st.flight = f
}

func (st *stream) message() message {
	scheme := "https"
	if st.r.TLS == nil { // :scheme was not https
		scheme = "http"
	}
	return message{
		method: st.r.Method, authority: st.r.Host, scheme: scheme, path: st.r.RequestURI, websocket: st.isWebSocket(),
		tokens: placeholder.InHTTP2Request(st.r),
	}
}

func (st *stream) isWebSocket() bool {
	return st.r.Method == http.MethodConnect && st.r.Header.Get(":protocol") == "websocket"
}

// headSize is about how long a request's head is, written as HTTP/1.1.
func headSize(r *http.Request) int {
	return len(r.Method) + len(r.RequestURI) + len(r.Host) + 32 + fieldsSize(r.Header)
}

// wellFormed holds a request to what the HTTP/1.1 parser demands, so that it means the same on every path.
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
		return false // RFC 9113, 8.1.1: it must be the length of what follows
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
	st.x.refused(p)
	h := st.w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	st.w.WriteHeader(p.Status)
	if st.r.Method != http.MethodHead {
		_, err := st.w.Write(p.Body())
		st.x.failed(err)
	}
}

// refuseUpstream tells the client why the upstream could not be used.
func (st *stream) refuseUpstream(err error) {
	st.x.unserved(err)
	if st.leaked.Load() {
		st.refuse(leakProblem())
		return
	}
	if st.r.Context().Err() != nil {
		panic(http.ErrAbortHandler) // the client has gone, or the connection was cut
	}
	p := upstreamProblem(err)
	if p.Host == "" {
		p.Host = st.ruling.request.Name.String()
	}
	st.refuse(p)
}

// malformedRequest records a request that is refused for its form before the handler could see it. It counts as a request,
// as in refusedByLibrary.
func (c *http2Conn) malformedRequest(method, authority, path string) {
	c.client.Handed(c.client.Refusing()) // which the library resets now
	var x exchange
	x.begin(c.s)
	x.event.Method, x.event.Path, x.event.Reason = method, withoutQuery(path), policy.ReasonBadRequest
	if authority != "" {
		x.event.Name = authority
	}
	if !c.s.usage.Requests.Allow() {
		x.event.Reason = policy.ReasonLimit
		socket.Abort(c.s.client)
	}
	x.end()
}

// refusedByLibrary records a request that the handler was not given. It counts as a request; a client that sends more of
// those than the box may loses the connection, as there is nobody to tell it to wait.
func (c *http2Conn) refusedByLibrary(why string) {
	var x exchange
	x.begin(c.s)
	x.refused(&problem.Problem{Reason: policy.ReasonBadRequest})
	x.event.Error = why
	if !c.s.usage.Requests.Allow() {
		x.event.Reason = policy.ReasonLimit
		socket.Abort(c.s.client)
	}
	x.end()
}

// give notes that the handler was given the stream of w, until the client has ended it.
func (c *http2Conn) give(w http.ResponseWriter, r *http.Request) (done func()) {
	id, ok := h2.StreamID(w)
	if !ok {
		return func() {}
	}
	c.client.Handed(id)
	return func() {
		if r.Context().Err() != nil {
			c.client.Over(id)
		}
	}
}
