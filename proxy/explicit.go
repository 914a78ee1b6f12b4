package proxy

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/elazarl/goproxy"

	"boxgate/audit"
	"boxgate/boundary"
	"boxgate/internal/memory"
	"boxgate/internal/socket"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy/exchange"
	"boxgate/proxy/header"
	"boxgate/proxy/peek"
	"boxgate/proxy/problem"
)

// This file implements the explicit proxy, for clients that only support HTTPS_PROXY. goproxy parses CONNECT; tunnelled
// connections and requests in absolute form are handled like any other connection.

// ServeExplicit serves connections of explicit proxy clients. It returns nil when ctx ends or the proxy is shut down,
// and closes ln; connections already accepted continue.
func (p *Proxy) ServeExplicit(ctx context.Context, ln net.Listener) error {
	return p.accept(ctx, ln, func(tcp *net.TCPConn, own *socket.Owned) {
		own.Run(p.newConn(tcp, netip.AddrPort{}, own).serveExplicit)
	})
}

// ServeFor serves one connection that the gateway itself made on behalf of a box, as if that box had connected to the
// explicit proxy: its policy, header rules and limits apply, and its events are the box's. The caller must be sure that the
// peer is the gateway's own. If the box has been removed, the connection is refused, even if its address belongs to another
// box.
func (p *Proxy) ServeFor(box *policy.Box, tcp *net.TCPConn) { p.ServeRelayed(box, tcp, 0) }

// ServeRelayed is ServeFor for a connection whose other end the gateway relays to a client. more is the memory of the relay in
// bytes, which counts against the box's limit as long as the connection is open.
func (p *Proxy) ServeRelayed(box *policy.Box, tcp *net.TCPConn, more int) {
	p.startHandler(tcp, nil, func(tcp *net.TCPConn, own *socket.Owned) {
		c := p.newConn(tcp, netip.AddrPort{}, own)
		c.from, c.onlyBox, c.cost = box.V4, box, connCost+more
		own.Run(c.serveExplicit)
	})
}

// NoteRefusal records that a relayed connection was refused before it reached the proxy: one of a box, or of a client without a box
// if box is nil. Such refusals are coalesced. text must contain no secret.
func (p *Proxy) NoteRefusal(box *policy.Box, why name.Reason, text string) {
	e := audit.Event{
		Time: time.Now(), Stage: policy.StageConn, Protocol: policy.TCP, Verdict: policy.Deny, Action: audit.ActionRefuse,
		Reason: why, Error: text,
	}
	if box != nil && p.cfg.Boxes.BoxByAddr(box.V4) != box { // it is gone, and so are its counters
		box = nil
	}
	if box != nil {
		e.Box = box.ID
	}
	p.usages.Of(box).Refusals.Add(e)
}

// serveExplicit handles one connection to the explicit proxy: event, box and limits, then CONNECT or requests.
func (c *conn) serveExplicit() {
	c.explicit = true
	if !c.admit() {
		return
	}
	f, err := peek.Read(c.tcp, &c.firstClaim, nil, c.firstBytesBy(c.p.cfg.PeekTimeout), time.Time{})
	switch {
	case err != nil || f.Kind == peek.Oversize:
		c.refusePeek(f, err)
	case f.Kind == peek.Silent:
		c.refuse(peek.Other, name.ReasonNoName)
	case f.Kind != peek.HTTP:
		c.refuse(peek.Other, name.ReasonProtocol)
	case bytes.HasPrefix(f.Data, []byte("CONNECT ")):
		c.connect(f)
	default:
		c.forward(f)
	}
}

// connKey is the context key for the connection of a request passed to goproxy.
type connKey struct{}

// connect reads the head of a CONNECT and lets goproxy answer it.
func (c *conn) connect(f peek.First) {
	_ = c.tcp.SetReadDeadline(c.firstBytesBy(c.p.cfg.PeekTimeout))
	rest := bytes.NewReader(f.Data)
	in := bufio.NewReader(io.LimitReader(chargedReader{io.MultiReader(rest, c.tcp), &c.firstClaim}, peek.Cap))
	r, err := http.ReadRequest(in)
	if err != nil {
		c.event.Error = err.Error()
		answer := exchange.BadRequest("The head of the CONNECT is malformed.")
		if errors.Is(err, memory.ErrFull) {
			answer = exchange.NoMemory()
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			answer = &problem.Problem{Status: http.StatusRequestTimeout, Reason: name.ReasonPeekTimeout,
				Detail: "The head of the CONNECT was not complete in time."}
		}
		c.refuseConnect(answer)
		return
	}
	if r.RequestURI != r.URL.Host { // user information or a path, which net/http drops silently
		c.event.Name = r.RequestURI
		c.refuseConnect(exchange.BadRequest("The target of the CONNECT is more than a host and a port."))
		return
	}
	_ = c.tcp.SetReadDeadline(time.Time{})
	early, _ := in.Peek(in.Buffered()) // peeking at buffered bytes cannot fail
	c.head = append(bytes.Clone(early), f.Data[len(f.Data)-rest.Len():]...)
	w := &connectWriter{c: c, header: http.Header{}}
	c.p.front.ServeHTTP(w, r.WithContext(context.WithValue(c.ctx, connKey{}, c)))
	if !w.hijacked { // goproxy answered itself, although no handler asks it to
		c.refuse(peek.Other, name.ReasonProtocol)
	}
}

// chargedReader reads a head and reserves memory for its parsed form, which is estimated as a multiple of its length.
type chargedReader struct {
	io.Reader
	claim *memory.Claim
}

// Read implements io.Reader.
func (w chargedReader) Read(p []byte) (int, error) {
	n, err := w.Reader.Read(p)
	if n > 0 && !w.claim.Grow(header.SizeFactor*n) {
		return 0, memory.ErrFull
	}
	return n, err
}

// refuseConnect answers a CONNECT with a problem and ends the connection.
func (c *conn) refuseConnect(answer *problem.Problem) {
	c.event.Verdict, c.event.Action = policy.Deny, audit.ActionRefuse
	c.event.Reason, c.event.Status = answer.Reason, answer.Status
	_ = c.tcp.SetWriteDeadline(time.Now().Add(socket.LingerTime))
	c.p.core.Advise(c.box, answer, boundary.Denial{Host: answer.Host, Port: c.port})
	_ = problem.Write(c.tcp, *answer) // the client may have disconnected
	c.linger = true
}

// newFront returns goproxy without its defaults: no certificate authority, no transport, no proxy from the environment.
// Any dial that it still attempts fails.
func newFront() *goproxy.ProxyHttpServer {
	front := goproxy.NewProxyHttpServer()
	front.Logger = noLog{}
	front.Tr = &http.Transport{DialContext: refuseDial, DialTLSContext: refuseDial}
	front.ConnectDial = func(network, addr string) (net.Conn, error) {
		return refuseDial(context.Background(), network, addr)
	}
	front.ConnectDialWithReq = func(r *http.Request, network, addr string) (net.Conn, error) {
		return refuseDial(r.Context(), network, addr)
	}
	front.NonproxyHandler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
	})
	front.OnRequest().DoFunc(func(r *http.Request, _ *goproxy.ProxyCtx) (*http.Request, *http.Response) {
		return r, goproxy.NewResponse(r, goproxy.ContentTypeText, http.StatusForbidden, "")
	})
	front.OnRequest().HandleConnectFunc(handleConnect)
	return front
}

var errFrontDials = errors.New("goproxy must not dial")

func refuseDial(context.Context, string, string) (net.Conn, error) { return nil, errFrontDials }

// handleConnect decides a CONNECT by its authority. If allowed, it becomes a tunnel whose first bytes are read and routed
// like those of any other connection.
func handleConnect(host string, ctx *goproxy.ProxyCtx) (*goproxy.ConnectAction, string) {
	c, ok := ctx.Req.Context().Value(connKey{}).(*conn)
	if !ok {
		return &goproxy.ConnectAction{Action: goproxy.ConnectReject}, host
	}
	refused := c.judgeConnect(host)
	return &goproxy.ConnectAction{
		Action: goproxy.ConnectHijack,
		Hijack: func(*http.Request, net.Conn, *goproxy.ProxyCtx) {
			if refused != nil {
				c.refuseConnect(refused)
				return
			}
			c.acceptConnect()
		},
	}, host
}

// judgeConnect parses the authority and asks the policy about it: about a name as a name, about an address as an address
// only.
func (c *conn) judgeConnect(authority string) *problem.Problem {
	host, port, ok := exchange.SplitAuthority(authority, 0)
	c.event.Name, c.event.Port = authority, port
	if !ok || port == 0 {
		return exchange.BadRequest("CONNECT needs a host and a port.")
	}
	c.port, c.orig = port, netip.AddrPortFrom(netip.Addr{}, port)
	if addr, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		addr = addr.Unmap()
		c.event.Name, c.event.Addr = "", addr
		c.orig, c.literal = netip.AddrPortFrom(addr, port), true
		if addr.Zone() != "" {
			return exchange.BadRequest("CONNECT to an address with a zone.")
		}
	} else if c.bound, err = name.Parse(host); err != nil {
		return exchange.BadRequest("CONNECT needs a host name or an address.")
	}
	if c.p.core.IsInside(c.box, c.bound) {
		return exchange.BadRequest("The endpoint of the gateway is served over plain HTTP: send the request itself to the proxy, in absolute form.")
	}
	asked, known := c.connRequest(c.bound), policy.Evidence{Opening: policy.OpeningConnect}
	rt := c.p.core.Router.Route(c.ctx, c.box.Policy.Load(), c.box, asked, known)
	c.event.Seen = seen(asked, known, true)
	c.orig = netip.AddrPortFrom(rt.Asked.Addr, port)
	if addr := c.orig.Addr(); c.p.core.Router.IsOwn(addr) || c.p.core.Router.IsSink(addr) {
		rt.Route = refusedRoute(rt.Route, name.ReasonHostPort)
	}
	c.noteDecision(peek.First{}, rt.Route)
	if err := rt.Err(); err != nil {
		refused := problem.Of(err)
		return &refused
	}
	return nil
}

// acceptConnect accepts the CONNECT and continues as if the connection had been made to its authority.
func (c *conn) acceptConnect() {
	if _, err := io.WriteString(c.tcp, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		c.event.Error = err.Error()
		c.refuse(peek.Other, name.ReasonClientTLS)
		return
	}
	c.explicit = false
	c.restartWait()
	c.serve()
}

// connectWriter is goproxy's [http.ResponseWriter]: it only allows hijacking the connection.
type connectWriter struct {
	c        *conn
	header   http.Header
	hijacked bool
}

// Header returns a header that is never sent.
func (w *connectWriter) Header() http.Header { return w.header }

// WriteHeader is a no-op: the connection is reset if goproxy returns without hijacking it.
func (w *connectWriter) WriteHeader(int) {}

// Write always fails.
func (w *connectWriter) Write([]byte) (int, error) { return 0, http.ErrNotSupported }

// Hijack hands over the connection. Bytes that the client sent early are kept in conn.
func (w *connectWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	w.hijacked = true
	return w.c.tcp, bufio.NewReadWriter(bufio.NewReader(w.c.tcp), bufio.NewWriter(w.c.tcp)), nil
}

// noLog discards goproxy's log output, which quotes what clients send.
type noLog struct{}

// Printf discards the text.
func (noLog) Printf(string, ...any) {}
