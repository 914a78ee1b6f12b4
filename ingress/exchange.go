package ingress

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/net/http2"

	"boxgate/audit"
	"boxgate/ingress/h2c"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/relay"
	"boxgate/relay/h1"
)

var (
	// errLate reports a box that takes too long to answer.
	errLate = errors.New("the box did not answer in time")
	// errEnd ends a connection gracefully.
	errEnd = errors.New("connection ends")
	// errAbort resets the connection: a truncated response must not look complete to the client.
	errAbort = errors.New("connection is reset")
)

// cutTime is how long a request that is cut may still be refused with a response, if it has none yet.
const cutTime = 50 * time.Millisecond

// visitor describes the other end of a client's connection.
type visitor struct {
	peer     string       // address
	addr     netip.Addr   // the same; zero: unknown
	network  netip.Prefix // its requests are counted by this; zero: they are not counted
	inside   bool         // it is a box
	secure   bool         // it speaks TLS
	sni      string
	sender   *sender // the host of the fleet that vouches for it; nil: it has connected to this host
	accepted atomic.Pointer[credential]
}

// credential is the Authorization of an earlier request, kept so that it need not be hashed again.
type credential struct {
	value string
	auth  Auth
	kind  audit.Credential
}

// permits reports whether a request carries a credential of its URL. A credential that the connection's requests repeat is
// hashed once.
func (w *visitor) permits(v *visit) bool {
	values := v.values("authorization")
	have := w.accepted.Load()
	if have != nil && len(values) == 1 && values[0] == have.value && v.target.Auth.same(have.auth) {
		v.event.Credential = have.kind
		return true
	}
	if !v.target.Auth.permits(values) {
		return false
	}
	v.event.Credential = v.target.Auth.kind(values)
	if len(values) == 1 {
		w.accepted.Store(&credential{values[0], v.target.Auth, v.event.Credential})
	}
	return true
}

// exchange is one request to a box and its response, for clients of HTTP/1.x and HTTP/2.
type exchange struct {
	relay.Exchange
	g       *core
	visitor *visitor
	client  side
	// ctx ends when the client ends the request, and with errCut when the request is cut.
	ctx context.Context

	out     *relay.Output // the head for the box
	visit   visit
	opening audit.Opening // of the visit
	entry   request       // likewise
	texts   texts
	find    func(name string) []string // values, bound once
	up      *upstream                  // of the current request
	cuts    atomic.Pointer[upstream]   // the same, read by cuts
	own     *upstream                  // of a bound client between its requests
	since   time.Time                  // since then it waits for the box's answer
	begun   atomic.Bool                // the box's response has begun: the gateway can no longer send its own
	bound   bool                       // its connections to the box serve this client only, for good: see client.go
	http2   bool                       // the request is sent over HTTP/2 if the application speaks it
	tries   uint8                      // how often an application that speaks HTTP/2 has refused to process the request
}

// texts are strings of the latest request, which the next one often repeats.
type texts struct {
	host, target  string
	authorization [1]string
}

// side is the client's side of an exchange.
type side interface {
	replier
	// gone reports whether the client no longer wants the response.
	gone() bool
	// reset resets the request without its connection, and reports whether that is possible.
	reset(code http2.ErrCode) bool
}

// cutBy returns the time when a request that is cut now must end, as its client may not read: immediately if the box's
// response has begun.
func (e *exchange) cutBy() time.Time {
	if e.begun.Load() {
		return time.Now()
	}
	return time.Now().Add(e.g.grace)
}

// Cut implements [relay.Cuts].
func (e *exchange) Cut() (by time.Time, err error) {
	if err = e.ctx.Err(); err != nil {
		by = e.cutBy()
	}
	return by, err
}

// wasCut reports whether the request was cut because its URL, credential or box has gone.
func (e *exchange) wasCut() bool {
	return e.ctx.Err() != nil && errors.Is(context.Cause(e.ctx), errCut)
}

// asked returns the head of the request for the checks.
func (e *exchange) asked() asked {
	r := &e.Req
	if e.find == nil {
		e.find = e.values
	}
	path, query, _ := strings.Cut(relay.Recall(&e.texts.target, r.Target), "?")
	return asked{
		method: relay.Method(r.Method), host: relay.Recall(&e.texts.host, r.Host), path: path, query: query, html: takesHTML(r.Fields), sni: e.visitor.sni, secure: e.visitor.secure,
		direct: r.Form == h1.Origin || r.Form == h1.Asterisk, values: e.find, peer: e.visitor.addr, network: e.visitor.network, inside: e.visitor.inside, sender: e.visitor.sender,
	}
}

// takesHTML reports whether a request accepts HTML explicitly, as browsers do when they navigate.
func takesHTML(fields []h1.Field) bool {
	for i := range fields {
		if f := &fields[i]; h1.EqualFold(f.Name, "accept") && h1.Lists(f.Value, "text/html") {
			return true
		}
	}
	return false
}

// values returns the values of a field of the request.
func (e *exchange) values(name string) []string {
	if name == "authorization" {
		return e.authorization()
	}
	return relay.Values(e.Req.Fields, name)
}

// authorization is values for Authorization. It reuses the previous request's string if it is the same.
func (e *exchange) authorization() []string {
	var only []byte
	for i := range e.Req.Fields {
		f := &e.Req.Fields[i]
		switch {
		case !h1.EqualFold(f.Name, "authorization"):
		case only != nil || len(f.Value) == 0 || len(f.Value) > relay.KeepText:
			return relay.Values(e.Req.Fields, "authorization")
		default:
			only = f.Value
		}
	}
	if only == nil {
		return nil
	}
	if known := e.visitor.accepted.Load(); known != nil && e.texts.authorization[0] == "" {
		e.texts.authorization[0] = known.value
	}
	e.texts.authorization[0] = relay.Recall(&e.texts.authorization[0], only)
	return e.texts.authorization[:]
}

// hsts returns the value of Strict-Transport-Security for the visitor, or "": browsers ignore it over plain HTTP, and another host sets its own.
func (e *exchange) hsts() string {
	if !e.visitor.secure || e.visit.target.remote != nil {
		return ""
	}
	return e.g.transport
}

// head writes the request's head for the box to the output.
func (e *exchange) head(upgrade bool) {
	e.Method, e.tries = relay.Method(e.Req.Method), 0
	e.http2 = e.prefersHTTP2(upgrade)
	if e.visit.target.remote == nil && bytes.IndexByte(e.Req.Path, '?') >= 0 {
		e.Req.Path = withoutOwnParameters(e.Req.Path)
	}
	if host := e.visit.target.Host; host != "" {
		replaceHost(e.Req.Fields, []byte(host))
	}
	e.out.Buf = relay.AppendRequest(e.out.Take(), &e.Req, upgrade, forwarding{e})
}

// replaceHost replaces the value of the Host field.
func replaceHost(fields []h1.Field, host []byte) {
	for i := range fields {
		if fields[i].Kind == h1.Host {
			fields[i].Value = host
		}
	}
}

// Ask implements [relay.Sender].
func (e *exchange) Ask(whole bool) (used bool, err error) {
	if err = e.up.ask(e.out.Buf, whole); err == nil && whole && len(e.up.in.Bytes()) == 0 {
		err = e.up.in.Fill()
	}
	return e.up.used, err
}

// Final implements [relay.Sender].
func (e *exchange) Final(err error) bool {
	return errors.Is(err, relay.ErrClientGone) || errors.Is(err, errLate) || e.ctx.Err() != nil
}

// Again implements [relay.Sender].
func (e *exchange) Again(err error, whole, used bool) (again, fresh bool) {
	if e.tries < 2 && h2c.Unprocessed(err) {
		e.tries++
		return true, false
	}
	return used && whole && e.Req.Body.Empty() && relay.Idempotent(e.Method), true
}

// Connect implements [relay.Sender]: it takes a connection to the box's port.
func (e *exchange) Connect(fresh bool) error {
	up, err := e.connection(!fresh)
	if err != nil {
		return err
	}
	up.unwatch()
	return e.attach(up)
}

// attach gives the request its connection, and fails if the request was cut.
func (e *exchange) attach(up *upstream) error {
	e.since = up.reader.Begin(e, goneCheck)
	e.up, e.To, e.From = up, up, &up.in
	if e.cuts.Store(up); e.ctx.Err() != nil { // a cut may have looked before up was stored
		return context.Cause(e.ctx)
	}
	return nil
}

// connection returns an idle connection, if kept is set and there is one, or a new one.
func (e *exchange) connection(kept bool) (*upstream, error) {
	if e.own != nil {
		return e.tied()
	}
	if e.http2 && !e.bound {
		if up, err := e.overHTTP2(); up != nil || err != nil {
			return up, err
		}
	}
	if kept && !e.bound {
		if up := e.g.upstreams.get(e.visit.target); up != nil {
			return up, nil
		}
	}
	conn, err := e.g.dial(e.ctx, e.visit.target) // ended by a cut
	if err != nil {
		return nil, err
	}
	return e.g.upstreams.dialled(e.visit.target, conn)
}

// Interrupted implements [relay.Expecter]. A cut aborts the connection.
func (e *exchange) Interrupted() error { return nil }

// Expected implements [relay.Expecter].
func (e *exchange) Expected(time.Duration) (next time.Duration, err error) {
	return goneCheck, e.expected()
}

// expected returns an error if the response is no longer awaited: the client has gone, or the box takes too long. Each part of
// the body that the box accepts restarts the time.
func (e *exchange) expected() error {
	if err := e.left(); err != nil {
		return err
	}
	if last := e.Upload.Progress(); last.After(e.since) {
		e.since = last
	}
	if e.Res.Status < 200 && time.Since(e.since) > e.g.responseTime(&e.visit) {
		return errLate
	}
	return nil
}

// dial connects to a port of a box.
func (g *core) dial(ctx context.Context, t Target) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, g.DialTimeout)
	defer cancel()
	if t.Handler != nil {
		return g.local.Dial(served{t.Handler})
	}
	if t.remote != nil {
		return g.connect(ctx, t.remote, "http/1.1")
	}
	conn, err := g.Dial(ctx, t)
	if errors.Is(err, syscall.ECONNREFUSED) {
		g.http2.Refused(t.incarnation())
	}
	if err == nil && t.TLS {
		return encrypt(ctx, conn, t)
	}
	return conn, err
}

// encrypt begins TLS on a connection to a port of a box.
func encrypt(ctx context.Context, conn net.Conn, t Target) (net.Conn, error) {
	host, _ := splitHost(t.Host)
	secure := tls.Client(conn, &tls.Config{ServerName: host, NextProtos: []string{"http/1.1"}, InsecureSkipVerify: true}) //nolint:gosec // see Target.TLS: the kernel leads to the box and nowhere else
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return secure, nil
}

// abortUpstream aborts the connection to the box, which interrupts waits for the box. It returns the connection, or nil. It
// never blocks.
func (e *exchange) abortUpstream() *upstream {
	up := e.cuts.Swap(nil)
	if up != nil {
		up.Abort()
	}
	return up
}

// Drop implements [relay.Sender]: it closes the connection to the box, unless it was kept.
func (e *exchange) Drop() {
	if e.up != nil {
		e.cuts.Store(nil)
		e.up.close()
		e.up = nil
	}
}

// keepUpstream keeps the connection, whose exchange has ended, for other requests, unless a cut has taken it.
func (e *exchange) keepUpstream() {
	if !e.cuts.CompareAndSwap(e.up, nil) {
		e.Drop()
		return
	}
	switch {
	case e.bound && e.up.raw == nil: // over HTTP/2
		e.up.close()
	case e.bound:
		e.own = e.up
	default:
		e.up.putIdle()
	}
	e.up = nil
}

// Received implements [relay.Receiver].
func (e *exchange) Received(*h1.Response) {}

// Passes implements [relay.ResponseFields].
func (e *exchange) Passes(f *h1.Field) (value []byte, ok bool) {
	if e.visit.target.remote != nil {
		return shownElsewhere(f)
	}
	return shown(f)
}

// AppendExtra implements [relay.ResponseFields].
func (e *exchange) AppendExtra(dst []byte) []byte {
	if hsts := e.hsts(); hsts != "" {
		dst = h1.AppendPair(dst, "Strict-Transport-Security", hsts)
	}
	return dst
}

// received records how much of the request's body has arrived.
func (e *exchange) received() { e.visit.event.BytesIn = e.Upload.Content }

// noResponse ends an exchange without a final response, after its upload has stopped.
func (e *exchange) noResponse(err error) error {
	e.received()
	fault := e.Upload.Fault()
	var malformed *h1.Error
	switch {
	case e.ctx.Err() != nil:
	case errors.As(fault, &malformed):
		return e.badBody(malformed)
	case errors.Is(fault, os.ErrDeadlineExceeded):
		return e.stalledBody(fault)
	case fault != nil:
		err = relay.ErrClientGone
	}
	return e.unserved(err)
}

// unserved answers a request that the box could not be sent, or did not answer.
func (e *exchange) unserved(err error) error {
	v := &e.visit
	switch {
	case e.wasCut():
		v.revoked()
	case errors.Is(err, relay.ErrClientGone), e.ctx.Err() != nil:
		v.event.Error = relay.ErrClientGone.Error()
		return errEnd
	case errors.Is(err, errFull):
		v.tooMany()
	case errors.Is(err, errLate):
		v.event.Error = err.Error()
		v.refuse(http.StatusGatewayTimeout, name.ReasonURLUnavailable, "The box has not answered in time.")
	case errors.Is(err, relay.ErrUnbound):
		v.event.Error = err.Error()
		return errEnd
	case e.passReset(err):
		return errEnd
	case v.target.remote != nil:
		v.away(err)
	default:
		v.unavailable(err)
	}
	return relay.ErrLinger
}

// badBody refuses a request with a malformed body. The rest of the body is not read.
func (e *exchange) badBody(err error) error {
	e.visit.event.Error = err.Error()
	e.visit.refuse(http.StatusBadRequest, name.ReasonBadRequest, "The body of the request is malformed.")
	return relay.ErrLinger
}

// stalledBody refuses a request whose body has stopped arriving.
func (e *exchange) stalledBody(err error) error {
	e.visit.event.Error = err.Error()
	e.visit.refuse(http.StatusRequestTimeout, name.ReasonBadRequest, "The body of the request has not come in time.")
	return relay.ErrLinger
}

// Protocol is the protocol of an application in a box.
type Protocol uint8

// The protocols.
const (
	// Auto is HTTP/1.1, and HTTP/2 without TLS for gRPC if a probe shows that the application speaks it.
	Auto Protocol = iota
	HTTP1
	// H2C is HTTP/2 without TLS. WebSockets still use an upgrade over HTTP/1.1.
	H2C
	// TCP is any protocol: visitors speak TLS to the gateway, which relays the decrypted bytes.
	TCP
)

var protocols = [...]string{"auto", "http1", "h2c", "tcp"}

// String returns the name of a protocol in the configuration and the API.
func (p Protocol) String() string { return protocols[p] }

// ParseProtocol parses the name of a protocol; "" is auto.
func ParseProtocol(name string) (Protocol, bool) {
	i := slices.Index(protocols[:], cmp.Or(name, "auto"))
	return Protocol(max(i, 0)), i >= 0
}

// http2Streams is the limit of requests over HTTP/2 at a time. Each may buffer [h2c.Window] bytes of a response.
const http2Streams = 2048

// errFull refuses a request because all memory for responses is reserved.
var errFull = errors.New("too much of responses is waiting to be read")

// prefersHTTP2 reports whether a request is sent over HTTP/2 if the application speaks it.
func (e *exchange) prefersHTTP2(upgrade bool) bool {
	if e.visit.target.Handler != nil {
		return false
	}
	switch e.visit.target.Protocol {
	case H2C:
		return !upgrade
	case Auto:
		return e.Method == http.MethodPost && isGRPC(e.Req.Fields)
	default:
		return false
	}
}

// isGRPC reports whether a request is gRPC, which needs HTTP/2. gRPC-Web does not.
func isGRPC(fields []h1.Field) bool {
	for i := range fields {
		if f := &fields[i]; h1.EqualFold(f.Name, "content-type") {
			kind, _, _ := bytes.Cut(f.Value, []byte(";"))
			kind, _, _ = bytes.Cut(bytes.TrimSpace(kind), []byte("+"))
			return h1.EqualFold(kind, "application/grpc")
		}
	}
	return false
}

// overHTTP2 returns a connection for the request to an application that speaks HTTP/2, or nil if the request must use
// HTTP/1.1. The request's place is counted for the box, which may have any number of public URLs.
func (e *exchange) overHTTP2() (*upstream, error) {
	t, network := e.visit.target, e.visitor.network
	holder := boxOf(t.incarnation())
	if !e.g.http2Places.acquire(holder, network) {
		return nil, errFull
	}
	leave := func() { e.g.http2Places.release(holder, network) }
	dial := func(ctx context.Context) (net.Conn, error) { return e.g.dialHTTP2(ctx, t) }
	conn, err := e.g.http2.Open(e.ctx, t.incarnation(), t.Protocol == Auto, dial, e.left)
	if err != nil {
		leave()
		if errors.Is(err, h2c.ErrOther) {
			return nil, nil
		}
		return nil, err
	}
	up := newUpstream(t, conn)
	up.leave = leave
	return up, nil
}

// left returns relay.ErrClientGone if the client no longer waits.
func (e *exchange) left() error {
	if e.client.gone() {
		return relay.ErrClientGone
	}
	return nil
}

// passReset resets the visitor's request with the code of the application's reset (RFC 9113, 5.4.2), as gRPC clients interpret
// it. It reports false if there was no such reset, or if the visitor's request cannot be reset.
func (e *exchange) passReset(err error) bool {
	code, ok := h2c.ResetCode(err)
	if !ok || !e.client.reset(code) {
		return false
	}
	v := &e.visit.event
	v.Error, v.Verdict, v.Reason, v.Action = err.Error(), policy.Deny, name.ReasonURLUnavailable, audit.ActionRefuse
	return true
}
