package http1

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"time"

	"boxgate/internal/h1"
	"boxgate/internal/memory"
	"boxgate/internal/socket"
	"boxgate/policy"
	"boxgate/policy/match"
	"boxgate/proxy/exchange"
	"boxgate/proxy/header"
	"boxgate/proxy/origin"
	"boxgate/relay"
	"boxgate/rule/placeholder"
)

const clientHead = 30 * time.Second // time from a head's first byte to its last

// conn is the state of one HTTP/1.x client connection. One goroutine handles its requests in turn; a second one exists
// only while a body is uploaded that had not fully arrived.
type conn struct {
	relay.Client
	s   *exchange.Session
	ctx context.Context

	holds  memory.Claim   // for In
	up     *origin.Conn   // kept between requests to the same destination
	bound  bool           // the connection to the server is this client's alone, for good: see login.go
	rested bool           // it has been idle for [relay.RestAfter] since the last request
	end    time.Time      // of a connection that rests
	sent   int64          // bytes that the client had sent when the wait for a request began
	direct *socket.Direct // below the client's connection
	over   ending         // of the client's side
	flight flight
	*work  // nil while it rests
}

// work is what a connection needs for its requests. It serves one after the other.
type work struct {
	relay.Exchange // its Method is "" while the head is not known
	body           body
	x              exchange.Exchange
	ruling         exchange.Ruling
	again          bool                // the request may be sent again
	switches       bool                // the connection may become a WebSocket's
	looked         bool                // for the end of the client's side
	gone           func() bool         // clientGone, made once
	scrub          *exchange.Scrubbing // of the response; nil if it is not scrubbed

	authority, path string // of the latest request, which the next often has as well
}

var (
	// errClose ends a connection gracefully.
	errClose = errors.New("connection ends")
	// errRest hands an idle connection over.
	errRest = errors.New("connection rests")
)

// Rest handles the further requests of a connection that rests. The caller must call it in a goroutine that has not grown
// its stack: most connections rest most of the time. It returns the same as [Serve].
type Rest func() (Rest, error)

// Serve handles the requests of one connection until it ends or rests: then it returns what handles the further ones. Each
// request is judged under the policy in force at the time. The error is nil when the connection ended gracefully. s.Client
// is not closed.
func Serve(ctx context.Context, s *exchange.Session) (Rest, error) {
	h := &conn{Client: relay.Client{Conn: s.Client, In: h1.Reader{Source: s.Client}}, s: s, ctx: ctx}
	h.holds.Open(s.Usage.Memory, memory.Buffers)
	h.In.Memory = memory.Doubled{Claim: &h.holds}
	s.Live.Watch(h)
	h.direct, _ = socket.DirectOf(s.Client)
	return h.onward(h.run())
}

// onward is what [Serve] returns when run has returned err.
func (h *conn) onward(err error) (Rest, error) {
	if !errors.Is(err, errRest) {
		return nil, quiet(err)
	}
	return func() (Rest, error) { return h.onward(h.run()) }, nil
}

// run handles requests until the connection ends or rests, and releases everything if it has ended.
func (h *conn) run() (err error) {
	defer func() {
		if !errors.Is(err, errRest) {
			h.finish()
		}
	}()
	if err := h.arrival(); err != nil {
		return err
	}
	for {
		if err := h.await(); err != nil {
			return err
		}
		h.rested = false
		if h.work == nil {
			h.work = &work{gone: h.clientGone}
		}
		if err := h.serveOne(); err != nil {
			if errors.Is(err, relay.ErrLinger) {
				h.park() // others need not wait for the client to read its response
				h.Linger()
			}
			return err
		}
	}
}

// quiet returns nil for the ordinary ends of a connection, else err.
func quiet(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, errClose) || errors.Is(err, relay.ErrUnbound) || errors.Is(err, relay.ErrLinger) ||
		errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return err
}

// Recheck implements [boxgate/proxy/live.Requests]: it checks whether the request in progress may continue.
func (h *conn) Recheck(c *policy.Compiled) policy.Decision {
	f, some := h.flight.load()
	if !some {
		return policy.Decision{Verdict: policy.Allow}
	}
	return f.Stands(c)
}

// Revoked implements [boxgate/proxy/live.Requests].
func (h *conn) Revoked() bool {
	is, some := h.flight.load()
	return some && is.Revoked()
}

// InFlight implements [boxgate/proxy/live.Requests].
func (h *conn) InFlight() bool {
	_, some := h.flight.load()
	return some
}

// flight is the request in progress that the policy must keep allowing, if there is one. Safe for concurrent use.
type flight struct {
	mu   sync.Mutex
	is   *exchange.Inflight // nil while the connection rests
	some bool
}

func (f *flight) load() (exchange.Inflight, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.some {
		return exchange.Inflight{}, false
	}
	return *f.is, true
}

// set publishes the request that was ruled on, to an address once that is known.
func (f *flight) set(s *exchange.Session, r *exchange.Ruling, to netip.Addr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.is == nil {
		f.is = &exchange.Inflight{}
	}
	f.is.Set(s, r, to)
	f.some = true
}

func (f *flight) clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.some = false
}

// drop is clear for a connection that rests.
func (f *flight) drop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.is, f.some = nil, false
}

// finish releases everything.
func (h *conn) finish() {
	h.s.Live.Watch(nil)
	if h.work != nil {
		h.Upload.Stop() // which uses In, if the handler panicked
	}
	h.In.Release()
	h.Out.Give()
	h.park()
}

// park returns the upstream connection to the pool.
func (h *conn) park() {
	if h.up == nil {
		return
	}
	h.s.Live.Detach(h.up.TCP)
	if h.ctx.Err() != nil || h.bound {
		h.up.Close()
	} else {
		h.up.Keep()
	}
	h.up = nil
}

// await returns when the beginning of a request has arrived. When it has waited for relay.RestAfter the connection rests: it keeps
// neither buffers nor an upstream connection, and errRest is returned.
func (h *conn) await() error {
	if len(h.In.Bytes()) > 0 {
		return nil // pipelined
	}
	if h.rested {
		return h.ReadUntil(h.end, h.In.Wait)
	}
	if h.bound && h.up != nil {
		return h.AwaitBound(time.Now().Add(exchange.ClientIdle), h.up.Quiet)
	}
	if h.up != nil && h.up.Crowded() {
		h.park()
	}
	since := time.Now()
	h.sent = h.s.Live.Out.Load()
	h.In.Relax()
	err := h.ReadUntil(since.Add(relay.RestAfter), h.In.Fill)
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	h.park()
	h.rest(since.Add(exchange.ClientIdle))
	return errRest
}

// rest gives up what a connection without a request does not need, and sets its end. The next goroutine need only wait.
func (h *conn) rest(end time.Time) {
	h.rested, h.end = true, end
	h.Out.Give()
	h.In.Release()
	h.flight.drop()
	h.work = nil
	h.Limit(end)
	if sent := h.s.Live.Out.Load(); h.direct != nil && sent == h.sent { // arrival takes it back
		h.s.TLS.Rest(sent)
	}
}

// arrival waits until something arrives on a connection that rests. With so few calls the goroutine keeps its first stack.
func (h *conn) arrival() error {
	if !h.rested || h.direct == nil {
		return nil
	}
	if err := h.direct.Await(); err != nil {
		return err
	}
	if !h.s.TLS.Wake() {
		return errClose // as a server may do with an idle connection; a new one is refused with the reason
	}
	return nil
}

// serveOne handles one request. A nil error means that the connection can carry another.
func (h *conn) serveOne() error {
	h.x.Begin(h.s)
	defer h.x.End()
	h.Method = ""
	if err := h.ReadHead(&h.Req, h1.MaxHead, h.x.Event.Time.Add(clientHead)); err != nil {
		return h.refuseHead(err)
	}
	// It counts now: the time of its event, when the head began, would set the limiter back.
	if !h.s.Usage.Requests.Allow() {
		m := h.message()
		h.Method = m.Method
		h.x.Named(&m)
		return h.refuse(exchange.TooMany())
	}
	if allowed, err := h.judge(); !allowed {
		return err
	}
	defer h.flight.clear()
	return h.forward()
}

// judge decides the request; if it is refused, the client has been answered and the error says whether the connection
// can carry another. An allowed request is published as in flight and then checked again: a policy that came into force
// in between is caught here, a later one by watch.
func (h *conn) judge() (allowed bool, err error) {
	m := h.message()
	h.Method = m.Method
	for {
		h.ruling = h.s.Judge(h.ctx, &m)
		h.x.Judged(&m, &h.ruling)
		if p := h.ruling.Refused; p != nil {
			h.flight.clear()
			return false, h.refuse(p)
		}
		h.flight.set(h.s, &h.ruling, netip.Addr{})
		if h.s.Box.Policy.Load() == h.ruling.Policy {
			if !h.ruling.Rewrites() { // which does that later
				placeholder.SwapFields(h.Req.Fields, h.ruling.Swaps)
			}
			return true, nil
		}
	}
}

func (h *conn) message() exchange.Message {
	r := &h.Req
	if r.Hostless {
		r.Host = hostOf(h.s, r)
	}
	m := exchange.Message{
		Method: relay.Method(r.Method), Authority: relay.Recall(&h.authority, r.Host), Path: relay.Recall(&h.path, r.Path), Scheme: string(r.Scheme), Head: h,
	}
	if r.Form == h1.Absolute {
		m.Target = string(r.Authority)
	}
	m.Tokens = placeholder.InRequest(h.In.Bytes()[:h.Head], r)
	return m
}

// Forwarded implements [exchange.Head].
func (h *conn) Forwarded(needs *match.Needs) []match.Field { return header.Wanted(&h.Req, needs) }

// hostOf returns the authority of an HTTP/1.0 request without a Host: that of its target, else the name that a TLS
// client has already sent. A plain HTTP request without either is refused.
func hostOf(s *exchange.Session, r *h1.Request) []byte {
	switch {
	case r.Form == h1.Absolute:
		return r.Authority
	case s.Secure && s.Port == s.DefaultPort():
		return []byte(s.Name.String())
	case s.Secure:
		return []byte(net.JoinHostPort(s.Name.String(), strconv.Itoa(int(s.Port))))
	}
	return nil
}
