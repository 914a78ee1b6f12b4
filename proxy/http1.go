package proxy

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"boxgate/internal/memory"
	"boxgate/policy"
	"boxgate/proxy/h1"
	"boxgate/proxy/origin"
	"boxgate/proxy/placeholder"
	"boxgate/proxy/problem"
)

const (
	clientIdle = 5 * time.Minute        // a connection without a request is closed
	clientHead = 30 * time.Second       // a head must be complete this long after its first part
	parkAfter  = 250 * time.Millisecond // a connection idle for longer lets others use its upstream connection
)

// http1 is the state of one HTTP/1.x client connection. One goroutine handles it, request after request; a second one
// lives only while a body that was not there at once is uploaded.
type http1 struct {
	s   *session
	ctx context.Context

	in    h1.Reader
	holds memory.Claim // for in
	req   h1.Request
	out   []byte // what goes out next, to either side; lent by outBuffers

	res     h1.Response
	resBody h1.Body
	scrub   *scrubbing   // of the response; nil if it is not scrubbed
	up      *origin.Conn // kept from one request to the next while they go to the same place
	gone    func() bool  // reports whether the client has gone

	flight atomic.Pointer[inflight]
	x      exchange
	ruling ruling
	method string // of the current request; "" while its head is not known
	head   int    // length of the head of the current request in the client's buffer
}

var (
	errProtocol = error(problem.Fixed("the upstream broke the protocol"))
	// errClose ends a connection in good order.
	errClose = errors.New("connection ends")
	// errLinger does so once the client has had time to read what was said last.
	errLinger = errors.New("connection ends when the client has read the answer")
)

// serveHTTP1 handles the requests of one connection until it ends. Each is judged by itself, by the policy then in force.
// It returns nil when the connection ended in good order. It does not close s.client.
func (p *Proxy) serveHTTP1(ctx context.Context, s *session) error {
	h := &http1{s: s, ctx: ctx, in: h1.Reader{Source: s.client}, gone: clientGone(s)}
	h.holds.Open(s.usage.Memory, memory.Buffers)
	h.in.Memory = memory.Doubled{Claim: &h.holds}
	defer h.finish()
	s.live.watch(h.watch)
	for {
		if err := h.await(); err != nil {
			return quiet(err)
		}
		if err := h.serveOne(); err != nil {
			if errors.Is(err, errLinger) {
				h.park() // others need not wait for the client to read its answer
				h.linger()
			}
			return quiet(err)
		}
	}
}

// quiet turns the ordinary ends of a connection into nil.
func quiet(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, errClose) || errors.Is(err, errLinger) ||
		errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return err
}

// watch is asked on every change of the policy whether the request under way may go on.
func (h *http1) watch(c *policy.Compiled) policy.Decision {
	f := h.flight.Load()
	if f == nil {
		return policy.Decision{Verdict: policy.Allow}
	}
	return f.stands(c)
}

// finish gives everything back.
func (h *http1) finish() {
	h.s.live.watch(nil)
	h.in.Release()
	h.giveOut()
	h.park()
}

// park lets other connections of the box use the upstream connection.
func (h *http1) park() {
	if h.up == nil {
		return
	}
	h.s.live.detach(h.up.TCP)
	if h.ctx.Err() != nil {
		h.up.Close()
	} else {
		h.up.Keep()
	}
	h.up = nil
}

// drop closes the upstream connection: its last exchange did not end cleanly.
func (h *http1) drop() {
	if h.up == nil {
		return
	}
	h.s.live.detach(h.up.TCP)
	h.up.Close()
	h.up = nil
}

// await returns when the first byte of a request is there. Meanwhile the connection holds no buffer, and after a moment
// no upstream connection either.
func (h *http1) await() error {
	if len(h.in.Bytes()) > 0 {
		return nil // pipelined
	}
	h.giveOut()
	if h.up != nil && h.up.Crowded() {
		h.park()
	}
	if h.up != nil {
		_ = h.s.client.SetReadDeadline(time.Now().Add(parkAfter))
		err := h.in.Wait()
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
		h.park()
	}
	_ = h.s.client.SetReadDeadline(time.Now().Add(clientIdle))
	return h.in.Wait()
}

// readHead reads the rest of a request head. Nothing is taken from the buffer: the head stays there until it was
// forwarded.
func (h *http1) readHead() error {
	h.req.Reset()
	h.method, h.head = "", 0
	for tries := 0; ; tries++ {
		n, err := h.req.Parse(h.in.Bytes())
		if !errors.Is(err, h1.ErrShort) {
			h.head = n
			return err
		}
		if tries == 0 {
			_ = h.s.client.SetReadDeadline(time.Now().Add(clientHead))
		}
		if err := h.in.Fill(); err != nil {
			return err
		}
	}
}

// serveOne handles one request. A nil error means that the connection can carry another.
func (h *http1) serveOne() error {
	h.x.begin(h.s)
	defer h.x.end()
	if err := h.readHead(); err != nil {
		return h.refuseHead(err)
	}
	if !h.s.usage.Requests.Allow() {
		m := h.message()
		h.method = m.method
		h.x.named(&m)
		return h.refuse(tooMany())
	}
	if allowed, err := h.judge(); !allowed {
		return err
	}
	defer h.flight.Store(nil)
	if h.up != nil && !h.up.Serves(h.ruling.target(h.s)) {
		h.park()
	}
	return h.forward()
}

// judge decides the request; one that is not allowed was answered, and the error says whether the connection can carry
// another. An allowed one is published as being under way, and then looked at again: a policy that came into force in
// between is seen here, a later one by watch.
func (h *http1) judge() (allowed bool, err error) {
	m := h.message()
	h.method = m.method
	for {
		h.ruling = h.s.judge(h.ctx, &m)
		h.x.judged(&m, &h.ruling)
		if p := h.ruling.refused; p != nil {
			h.flight.Store(nil)
			return false, h.refuse(p)
		}
		h.flight.Store(h.ruling.inflight(h.s, netip.Addr{}))
		if h.s.box.Policy.Load() == h.ruling.policy {
			placeholder.SwapFields(h.req.Fields, h.ruling.swaps)
			return true, nil
		}
	}
}

func (h *http1) message() message {
	r := &h.req
	if r.Hostless {
		r.Host = h.s.hostOf(r)
	}
	m := message{method: methodString(r.Method), authority: string(r.Host), path: string(r.Path), scheme: string(r.Scheme)}
	if r.Form == h1.Absolute {
		m.target = string(r.Authority)
	}
	m.tokens = placeholder.InRequest(h.in.Bytes()[:h.head], r)
	return m
}

// hostOf is the authority of an HTTP/1.0 request without a Host: that of its target, else the name of the connection, which
// a client that speaks TLS has given already. On plain HTTP nothing says it, and the request is refused.
func (s *session) hostOf(r *h1.Request) []byte {
	switch {
	case r.Form == h1.Absolute:
		return r.Authority
	case s.secure && s.port == s.defaultPort():
		return []byte(s.name.String())
	case s.secure:
		return []byte(net.JoinHostPort(s.name.String(), strconv.Itoa(int(s.port))))
	}
	return nil
}

// methodString spares the common methods an allocation.
func methodString(m []byte) string {
	switch string(m) {
	case "GET":
		return "GET"
	case "POST":
		return "POST"
	case "HEAD":
		return "HEAD"
	case "PUT":
		return "PUT"
	}
	return string(m)
}
