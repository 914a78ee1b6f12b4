// Package http1 serves HTTP/1.x clients: it reads requests one after another, has each judged, forwards it and relays the
// response.
package http1

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/boundary"
	"boxgate/internal/memory"
	"boxgate/internal/socket"
	"boxgate/policy"
	"boxgate/policy/match"
	"boxgate/policy/name"
	"boxgate/proxy/exchange"
	"boxgate/proxy/har"
	"boxgate/proxy/header"
	"boxgate/proxy/origin"
	"boxgate/proxy/problem"
	"boxgate/relay"
	"boxgate/relay/h1"
	"boxgate/rule/placeholder"
)

const clientHead = 30 * time.Second // time from a head's first byte to its last

// conn is the state of one HTTP/1.x client connection. One goroutine handles its requests in turn; a second one exists only
// during the upload of a body that has not fully arrived.
type conn struct {
	relay.Client
	s   *exchange.Session
	ctx context.Context

	holds  memory.Claim   // for In
	up     *origin.Conn   // kept between requests to the same destination
	bound  bool           // the server connection is permanently this client's: see forward.go
	rested bool           // it has been idle for [relay.RestAfter] since the last request
	end    time.Time      // end of an idle connection
	sent   int64          // bytes received from the client when the wait for a request began
	direct *socket.Direct // the client's connection below TLS
	over   ending         // state of the client's side
	flight flight
	*work  // nil while idle
}

// work is the state for serving requests, one after the other.
type work struct {
	relay.Exchange // its Method is "" until the head is known
	body           body
	x              exchange.Exchange
	decision       exchange.Decision
	again          bool                // the request can be repeated
	switches       bool                // the connection may become a WebSocket
	looked         bool                // checked for the end of the client's side
	gone           func() bool         // clientGone as a func, created once
	scrub          *exchange.Scrubbing // of the response; may be nil

	authority, path string // of the latest request, which the next often shares
}

var (
	// errClose ends a connection gracefully.
	errClose = errors.New("connection ends")
	// errRest hands an idle connection over.
	errRest = errors.New("connection rests")
)

// Rest handles further requests of an idle connection. Call it in a goroutine with a small stack: most connections are idle
// most of the time. It returns the same as [Serve].
type Rest func() (Rest, error)

// Serve handles the requests of one connection until it ends or becomes idle; in the latter case it returns the function
// for further requests. Each request is judged by the policy at that time. The error is nil after a graceful end. s.Client
// is not closed.
func Serve(ctx context.Context, s *exchange.Session) (Rest, error) {
	h := &conn{Client: relay.Client{Conn: s.Client, In: h1.Reader{Source: s.Client}}, s: s, ctx: ctx}
	h.holds.Open(s.Usage.Memory, memory.Buffers)
	h.In.Memory = memory.Doubled{Claim: &h.holds}
	s.Live.Watch(h)
	h.direct, _ = socket.DirectOf(s.Client)
	return h.onward(h.run())
}

// onward returns the results of [Serve] after run has returned err.
func (h *conn) onward(err error) (Rest, error) {
	if !errors.Is(err, errRest) {
		return nil, quiet(err)
	}
	return func() (Rest, error) { return h.onward(h.run()) }, nil
}

// run handles requests until the connection ends or becomes idle. It releases all resources at the end.
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
				h.park() // others need not wait until the client has read its response
				h.Linger()
			}
			return err
		}
	}
}

// quiet returns nil for regular ends of a connection, and other errors unchanged.
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

// flight is the request in progress that the policy must keep allowing, if any. Safe for concurrent use.
type flight struct {
	mu   sync.Mutex
	is   *exchange.Inflight // nil while the connection is idle
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

// set publishes the judged request, with its address once known.
func (f *flight) set(s *exchange.Session, r *exchange.Decision, to netip.Addr) {
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

// drop is clear for an idle connection.
func (f *flight) drop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.is, f.some = nil, false
}

// finish releases all resources.
func (h *conn) finish() {
	h.s.Live.Watch(nil)
	if h.work != nil {
		h.Upload.Stop() // it uses In, if the handler panicked
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

// await returns when the beginning of a request has arrived. After relay.RestAfter the connection becomes idle: it releases
// its buffers and upstream connection, and returns errRest.
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

// rest releases resources that an idle connection does not need, and sets its deadline. The next goroutine only waits.
func (h *conn) rest(end time.Time) {
	h.rested, h.end = true, end
	h.Out.Give()
	h.In.Release()
	h.flight.drop()
	h.work = nil
	h.Limit(end)
	if sent := h.s.Live.Out.Load(); h.direct != nil && sent == h.sent { // arrival reserves it again
		h.s.TLS.Rest(sent)
	}
}

// arrival waits for data on an idle connection. It makes so few calls that the goroutine keeps its initial stack.
func (h *conn) arrival() error {
	if !h.rested || h.direct == nil {
		return nil
	}
	if err := h.direct.Await(); err != nil {
		return err
	}
	if !h.s.TLS.Wake() {
		return errClose // a server may close an idle connection; a new one is refused with the reason
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
	// The current time counts: that of the event, the beginning of the head, would set the limiter back.
	if !h.s.Usage.Requests.Allow() {
		m := h.message()
		h.Method = m.Method
		h.x.Named(&m)
		return h.refuse(exchange.TooMany())
	}
	if allowed, err := h.judge(); !allowed {
		h.body.close()
		return err
	}
	if h.decision.Inside {
		return h.serveInside()
	}
	defer h.flight.clear()
	return h.forward()
}

// judge decides the request. If it refuses, it has answered the client, and the error reports whether the connection can
// carry another. An allowed request is published as in flight and then checked again: this catches a policy applied in
// between, and Recheck later ones.
func (h *conn) judge() (allowed bool, err error) {
	m := h.message()
	h.Method = m.Method
	for {
		h.s.Judge(h.ctx, &m, &h.decision)
		h.x.Judged(&m, &h.decision)
		if h.decision.Unread() {
			h.flight.clear()
			if refused, err := h.readMessages(&m); refused {
				return false, err
			}
			continue
		}
		if p := h.decision.Refused; p != nil {
			h.flight.clear()
			return false, h.refuse(p)
		}
		if h.decision.Inside {
			return true, nil
		}
		h.flight.set(h.s, &h.decision, netip.Addr{})
		if h.s.Box.Policy.Load() == h.decision.Policy {
			if !h.decision.Rewrites() && !h.body.rewriting.Buffered() { // Rewrite does that later
				placeholder.SwapFields(h.Req.Fields, h.decision.Swaps)
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
	m.Upgrades = relay.OpensWebSocket(r)
	m.Tokens = placeholder.InRequest(h.In.Bytes()[:h.Head], r)
	if h.x.Captured() {
		h.x.CaptureRequest(&m, h.version(), h.Head, exchange.CapturedFields(r.Fields))
	}
	return m
}

// version returns the version of the request as HTTP archives have it.
func (h *conn) version() string { return "HTTP/1." + strconv.Itoa(int(h.Req.Minor)) }

// Forwarded implements [exchange.Head].
func (h *conn) Forwarded(needs *match.Needs) []match.Field { return header.Wanted(&h.Req, needs) }

// hostOf returns the authority of an HTTP/1.0 request without a Host: that of its target, or the SNI of a TLS client. A
// plain HTTP request without either is refused.
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

// This part forwards the half-close of a client while its request is in progress (RFC 9112, 9.6). Some servers answer only
// at the end of their input, others abandon the request then; both must work as without the gateway.

// ending records the known ways in which a client has ended its side.
type ending struct {
	notified bool // by TLS (close_notify)
	finished bool // by TCP
}

// errEnded ends an exchange whose client has half-closed, after which the server closed the connection without a response.
var errEnded = fmt.Errorf("%w: it had ended its side of the connection, and the server gave no response", relay.ErrClientGone)

// clientGone is called periodically while waiting for the server. It reports whether the client has disconnected; TLS that
// ends without close_notify counts as that. A client that has merely half-closed still reads, so the half-close is
// forwarded. If it has disconnected after all, its host reports that after a minute, or in answer to data.
func (h *conn) clientGone() bool {
	if h.direct == nil {
		return false
	}
	state := socket.State(h.Conn)
	switch {
	case state == unix.BPF_TCP_CLOSE, h.switches && h.s.Secure && state == unix.BPF_TCP_CLOSE_WAIT:
		return true
	case h.over == (ending{}) && h.mayEnd() && h.lookForEnd() != nil:
		return true
	case h.over == (ending{}):
		return false
	}
	h.over.finished = state == unix.BPF_TCP_CLOSE_WAIT
	h.up.End(h.over.notified, h.over.finished)
	return false
}

// mayEnd reports whether to look for the end of the client's side: the client's data is not being read, none is buffered,
// and the request's buffer is not needed any longer.
func (h *conn) mayEnd() bool {
	return h.Upload.Idle() && !h.switches && len(h.In.Bytes()) == 0
}

// lookForEnd reads data that the client has sent since its request: the beginning of another, which is kept, or the end. It
// does not block, and returns an error if neither can follow.
func (h *conn) lookForEnd() error {
	if h.looked && h.direct.Quiet() { // TLS may have buffered data from the request
		return nil
	}
	h.looked = true
	h.Unlimited() // the deadline may have passed
	h.direct.SetNonBlocking(true)
	err := h.In.Fill()
	h.direct.SetNonBlocking(false)
	if err == nil {
		return nil
	}
	h.In.Release()
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil
	case errors.Is(err, io.EOF) && (!h.s.Secure || !h.direct.Ended()):
		h.over.notified, h.over.finished = h.s.Secure, !h.s.Secure
		return nil
	}
	return err
}

// refuse answers the request with a problem. A nil error means that the whole request was read and the connection can carry
// another.
func (h *conn) refuse(p *problem.Problem) error {
	h.x.Refused(p)
	keep := h.Req.Body.Empty() && !h.Req.Close && p.Status != http.StatusBadRequest && h.Head > 0
	if err := h.writeProblem(p, keep); err != nil {
		return err
	}
	if !keep {
		return relay.ErrLinger
	}
	h.In.Take(h.Head)
	return nil
}

// refuseHead ends a connection whose request could not be read.
func (h *conn) refuseHead(err error) error {
	var malformed *h1.Error
	switch {
	case errors.Is(err, memory.ErrFull):
		h.Head = 0
		return h.refuse(exchange.NoMemory())
	case errors.As(err, &malformed):
		h.Head = 0
		return h.refuse(&problem.Problem{Status: malformed.Status, Reason: name.ReasonBadRequest, Detail: "The request is refused: " + malformed.What + "."})
	case errors.Is(err, os.ErrDeadlineExceeded):
		h.Head = 0
		return h.refuse(&problem.Problem{Status: http.StatusRequestTimeout, Reason: name.ReasonPeekTimeout, Detail: "The request head was not complete in time."})
	case errors.Is(err, io.EOF):
		h.x.Refused(&problem.Problem{Reason: name.ReasonBadRequest})
		h.x.Failed(io.ErrUnexpectedEOF)
		return err
	}
	h.x.Refused(&problem.Problem{Reason: name.ReasonBadRequest})
	h.x.Failed(err)
	return err
}

// BadBody implements [relay.Side].
func (h *conn) BadBody(err error) error { return h.refuseBody(err) }

// refuseBody answers a request whose body or trailers are refused. The rest of the body is not read.
func (h *conn) refuseBody(err error) error {
	h.Head = 0
	if errors.Is(err, placeholder.ErrLate) {
		h.x.Failed(err)
		return h.refuse(exchange.LeakProblem())
	}
	return h.refuse(exchange.BadRequest("The request is refused: " + err.Error() + "."))
}

// advise adds the next steps to a problem.
func (h *conn) advise(p *problem.Problem) {
	if h.work == nil {
		return
	}
	host := p.Host
	if host == "" {
		host = h.x.Event.Name
	}
	h.s.Core.Advise(h.s.Box, p, boundary.Denial{Host: host, Port: h.x.Event.Port, Method: h.x.Event.Method, Path: h.x.Event.Path})
}

func (h *conn) writeProblem(p *problem.Problem, keep bool) error {
	fields := append([][2]string{{"Content-Type", p.MediaType()}, {"Cache-Control", "no-store"}}, p.Fields...)
	h.advise(p)
	body := p.Body()
	if h.work != nil && h.x.Captured() {
		list := make([]har.Field, 0, len(fields))
		for _, f := range fields {
			list = append(list, har.Field{Name: f[0], Value: f[1]})
		}
		h.x.CaptureOwn(h.version(), p.Status, list, body)
	}
	_, err := h.Reply(&relay.Reply{Status: p.Status, Fields: fields, Body: body, Minor: h.Req.Minor, Head: h.Method == http.MethodHead, Keep: keep})
	return err
}
