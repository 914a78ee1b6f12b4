package ingress

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/net/http2"

	"boxgate/audit"
	"boxgate/ingress/h2c"
	"boxgate/internal/buffers"
	"boxgate/internal/h1"
	"boxgate/internal/handshake"
	"boxgate/internal/socket"
	"boxgate/policy/name"
)

// interimMax is how many 1xx responses to one request are relayed.
const interimMax = 32

var (
	errProtocol = errors.New("the response is not one to this request")
	// errLate is a box that takes too long to answer.
	errLate = errors.New("the box did not answer in time")
)

var (
	// errEnd ends a connection gracefully.
	errEnd = errors.New("connection ends")
	// errLinger does so after the client has had time to read the last response.
	errLinger = errors.New("connection ends when the client has read the answer")
	// errAbort resets it: what the client has of a response must not look whole.
	errAbort = errors.New("connection is reset")
	// errGone is the client's disconnect.
	errGone = errors.New("the client disconnected")
)

// cutTime is how long a request that is cut has to be refused, if it has no answer yet.
const cutTime = 50 * time.Millisecond

// visitor is who is at the other end of a connection.
type visitor struct {
	peer     string       // address
	addr     netip.Addr   // the same; zero: unknown
	network  netip.Prefix // by which its requests are counted; zero: they are not
	inside   bool         // it is a box
	secure   bool         // it speaks TLS
	sni      string
	accepted atomic.Pointer[credential]
}

// credential is the Authorization of an earlier request, which need not be hashed again.
type credential struct {
	value string
	auth  Auth
	kind  audit.Credential
}

// permits reports whether a request carries a credential of its URL. It hashes one once for all requests of the
// connection that repeat it.
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

// exchange is one request to a box and its response: what is the same for clients of HTTP/1.x and HTTP/2. The request is
// one of HTTP/1.1, as the box gets it.
type exchange struct {
	g       *core
	visitor *visitor
	client  side
	// ctx ends with errCut when the request is cut, and when the client has ended it.
	ctx context.Context

	req     h1.Request
	out     []byte // pending output, to either side
	http2   bool   // the request is sent over HTTP/2 if the application speaks it
	method  string // of the request that the box gets; that of an extended CONNECT is not the client's
	visit   visit
	opening audit.Opening // of the visit
	entry   request       // likewise
	texts   texts
	find    func(name string) []string // values, made once
	res     h1.Response
	resBody h1.Body
	up      *upstream                // of the current request
	cuts    atomic.Pointer[upstream] // the same, for cuts
	bound   bool                     // connections to the box are this client's alone, for good: see login.go
	own     *upstream                // of a bound client that makes no request
	upload  upload
	since   time.Time   // it waits for the box's answer
	begun   atomic.Bool // the box's response is relayed: nothing else can be said
}

// texts are those of the latest request, which the next often repeats.
type texts struct {
	host, target  string
	authorization [1]string
}

// keepText is the length up to which texts are kept.
const keepText = 512

// recall returns b as a string, which is *last if that is the same and becomes *last if it is short.
func recall(last *string, b []byte) string {
	if string(b) == *last {
		return *last
	}
	s := string(b)
	if len(s) <= keepText {
		*last = s
	}
	return s
}

// side is the client's side of an exchange.
type side interface {
	replier
	// interim forwards a 1xx response.
	interim(r *h1.Response) error
	// gone reports whether the client no longer wants the response.
	gone() bool
	// reset resets the request alone, and reports whether that can be done.
	reset(code http2.ErrCode) bool
}

// cutBy returns when a request that is cut now ends at the latest: at once if the box's response has begun. The client may
// be one that does not read.
func (e *exchange) cutBy() time.Time {
	if e.begun.Load() {
		return time.Now()
	}
	return time.Now().Add(e.g.grace)
}

// wasCut reports whether the URL, its credential or its box has gone meanwhile.
func (e *exchange) wasCut() bool {
	return e.ctx.Err() != nil && errors.Is(context.Cause(e.ctx), errCut)
}

// asked returns the head of the request for the checks.
func (e *exchange) asked() asked {
	r := &e.req
	if e.find == nil {
		e.find = e.values
	}
	path, query, _ := strings.Cut(recall(&e.texts.target, r.Target), "?")
	return asked{
		method: method(r.Method), host: recall(&e.texts.host, r.Host), path: path, query: query, html: takesHTML(r.Fields), sni: e.visitor.sni, secure: e.visitor.secure,
		direct: r.Form == h1.Origin, values: e.find, peer: e.visitor.addr, network: e.visitor.network, inside: e.visitor.inside,
	}
}

// takesHTML reports whether a request asks for HTML by name, as browsers do when they navigate.
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
	return valuesOf(e.req.Fields, name)
}

// authorization is values of the field that most requests of a connection repeat.
func (e *exchange) authorization() []string {
	var only []byte
	for i := range e.req.Fields {
		f := &e.req.Fields[i]
		switch {
		case !h1.EqualFold(f.Name, "authorization"):
		case only != nil || len(f.Value) == 0 || len(f.Value) > keepText:
			return valuesOf(e.req.Fields, "authorization")
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
	e.texts.authorization[0] = recall(&e.texts.authorization[0], only)
	return e.texts.authorization[:]
}

// valuesOf returns the values of a field, whose name is given in lower case, one for each of its lines.
func valuesOf(fields []h1.Field, name string) (values []string) {
	for i := range fields {
		if f := &fields[i]; h1.EqualFold(f.Name, name) {
			values = append(values, string(f.Value))
		}
	}
	return values
}

// method converts a method without allocating for the common ones.
func method(m []byte) string {
	switch string(m) {
	case http.MethodGet:
		return http.MethodGet
	case http.MethodPost:
		return http.MethodPost
	case http.MethodHead:
		return http.MethodHead
	}
	return string(m)
}

// upgrades reports whether the request opens a WebSocket.
func (e *exchange) upgrades() bool {
	r := &e.req
	return r.Upgrade != nil && r.Minor > 0 && r.Body.Empty() && h1.EqualFold(r.Upgrade, "websocket")
}

// takeOut returns the output buffer, emptied.
func (e *exchange) takeOut() []byte {
	if e.out == nil {
		e.out = buffers.BorrowOut()
	}
	return e.out[:0]
}

func (e *exchange) giveOut() {
	buffers.ReturnOut(e.out)
	e.out = nil
}

// hsts returns the value of Strict-Transport-Security for the visitor, or "": browsers ignore it over plain HTTP.
func (e *exchange) hsts() string {
	if !e.visitor.secure {
		return ""
	}
	return e.g.transport
}

// head writes the request's head for the box to the output buffer.
func (e *exchange) head(upgrade bool) {
	how := forwarding{client: e.visitor.peer, secure: e.visitor.secure, upgrade: upgrade,
		open: e.visit.keepsAuthorization(), auth: e.visit.target.Auth, link: e.visit.event.Credential == audit.CredentialLink,
		forward: e.g.ForwardFields}
	e.method = method(e.req.Method)
	e.http2 = e.prefersHTTP2(upgrade)
	if bytes.IndexByte(e.req.Target, '?') >= 0 {
		e.req.Target = withoutOwnParameters(e.req.Target)
	}
	e.out = appendRequest(e.takeOut(), &e.req, &how)
}

// send writes the output buffer to the box and, if that is the whole request, waits for the first byte of the response.
// The box may just have closed a connection that was kept: a request that may be repeated is then tried once on a new
// one.
func (e *exchange) send(whole bool) error {
	e.res.Reset()
	again := whole && e.upload.received == 0 && (isSafe(e.method) || e.method == http.MethodPut || e.method == http.MethodDelete)
	tied := e.own != nil
	for kept, tries := true, 0; ; e.dropUpstream() {
		if err := e.connect(kept); err != nil {
			return err
		}
		err := e.up.ask(e.out, whole)
		if errors.Is(err, socket.ErrNotAsked) {
			if tied {
				return errUntied
			}
			continue
		}
		sent := err == nil
		if sent && whole {
			err = e.up.in.Fill()
		}
		if err == nil {
			return nil
		}
		if (whole || !sent) && tries < 2 && h2c.Unprocessed(err) {
			tries++
			continue
		}
		if errors.Is(err, errGone) || errors.Is(err, errLate) || e.ctx.Err() != nil {
			return err
		}
		if !whole && !e.up.used {
			return nil // the upload meets the same error; the box may have answered before it closed
		}
		if tied {
			return errors.Join(errUntied, err)
		}
		if !e.up.used || !again {
			return err
		}
		kept = false
	}
}

// connect takes a connection to the box's port: one that was kept, if it may be one, or a new one.
func (e *exchange) connect(kept bool) error {
	up, err := e.connection(kept)
	if err != nil {
		return err
	}
	e.since, up.by = time.Now(), e
	e.up = up
	if e.cuts.Store(up); e.ctx.Err() != nil { // a cut may have looked before it was there
		return context.Cause(e.ctx)
	}
	return nil
}

// connection returns what [exchange.connect] takes.
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
	conn, err := e.g.dial(e.ctx, e.visit.target) // ends when the request is cut
	if err != nil {
		return nil, err
	}
	return newUpstream(e.visit.target, conn), nil
}

// expected returns what ends the wait for a response: a client that has gone, or a box that takes too long. While the box
// takes more of the request's body, the time does not count.
func (e *exchange) expected() error {
	if err := e.left(); err != nil {
		return err
	}
	if last := e.upload.last.Load(); last > e.since.UnixNano() {
		e.since = time.Unix(0, last)
	}
	if e.res.Status < 200 && time.Since(e.since) > e.g.ResponseTimeout {
		return errLate
	}
	return nil
}

// dial connects to a port of a box.
func (g *core) dial(ctx context.Context, t Target) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, g.DialTimeout)
	defer cancel()
	conn, err := g.Dial(ctx, t)
	if errors.Is(err, syscall.ECONNREFUSED) {
		g.http2.Refused(t.incarnation())
	}
	return conn, err
}

// abortUpstream interrupts what is waited for from the box. It never blocks.
func (e *exchange) abortUpstream() {
	if up := e.cuts.Swap(nil); up != nil {
		up.abort()
	}
}

// dropUpstream closes the connection to the box, unless it was kept.
func (e *exchange) dropUpstream() {
	if e.up != nil {
		e.cuts.Store(nil)
		e.up.close()
		e.up = nil
	}
}

// keepUpstream leaves the connection to the box, whose exchange has ended, for other requests, unless a cut has found it.
func (e *exchange) keepUpstream() {
	if !e.cuts.CompareAndSwap(e.up, nil) {
		e.dropUpstream()
		return
	}
	switch {
	case e.bound && e.up.raw == nil: // over HTTP/2
		e.up.close()
	case e.bound:
		e.own = e.up
	default:
		e.g.upstreams.put(e.up)
	}
	e.up = nil
}

// upgraded checks a 101.
func (e *exchange) upgraded(asked bool) error {
	if !asked || e.res.Minor == 0 || !h1.EqualFold(e.res.Upgrade, "websocket") { // which is nil unless Connection names it
		return errProtocol
	}
	return handshake.Verify(valuesIn(e.req.Fields), valuesIn(e.res.Fields))
}

// valuesIn returns the function that finds the values of a field by its name, in any case.
func valuesIn(fields []h1.Field) handshake.Fields {
	return func(name string) []string { return valuesOf(fields, strings.ToLower(name)) }
}

// finalHead reads response heads up to the final one, whose length it returns, and relays the interim ones.
func (e *exchange) finalHead() (int, error) {
	for range interimMax {
		e.res.Reset()
		n, err := e.responseHead()
		if err != nil || !e.res.Interim() {
			return n, err
		}
		// 100 answers an expectation; HTTP/1.0 has no 1xx (RFC 9110, 15.2).
		if e.req.Minor > 0 && (e.res.Status != http.StatusContinue || e.req.Continue) {
			if err := e.client.interim(&e.res); err != nil {
				return 0, errGone
			}
		}
		e.up.in.Take(n)
	}
	return 0, errProtocol
}

func (e *exchange) responseHead() (int, error) {
	for {
		n, err := e.res.Parse(e.up.in.Bytes(), e.method)
		if !errors.Is(err, h1.ErrShort) {
			return n, err
		}
		if err := e.up.in.Fill(); err != nil {
			return 0, h1.NoEOF(err)
		}
	}
}

// received notes how much of the request's body came.
func (e *exchange) received() { e.visit.event.BytesIn = e.upload.received }

// noResponse ends an exchange without a final response.
func (e *exchange) noResponse(err error) error {
	e.upload.stop(e.up)
	e.received()
	fault := e.upload.clientFault()
	var malformed *h1.Error
	switch {
	case e.ctx.Err() != nil:
	case errors.As(fault, &malformed):
		return e.badBody(malformed)
	case errors.Is(fault, os.ErrDeadlineExceeded):
		return e.stalledBody(fault)
	case fault != nil:
		err = errGone
	}
	return e.unserved(err)
}

// unserved answers when the box could not be reached or closed the connection before its answer.
func (e *exchange) unserved(err error) error {
	v := &e.visit
	switch {
	case e.wasCut():
		v.revoked()
	case errors.Is(err, errGone), e.ctx.Err() != nil:
		v.event.Error = errGone.Error()
		return errEnd
	case errors.Is(err, errFull):
		v.tooMany()
	case errors.Is(err, errLate):
		v.event.Error = err.Error()
		v.refuse(http.StatusGatewayTimeout, name.ReasonURLUnavailable, "The box has not answered in time.")
	case errors.Is(err, errUntied):
		v.event.Error = err.Error()
		return errEnd
	case e.passReset(err):
		return errEnd
	default:
		v.unavailable(err)
	}
	return errLinger
}

// badBody refuses a request whose body makes no sense. The rest of it is not read.
func (e *exchange) badBody(err error) error {
	e.visit.event.Error = err.Error()
	e.visit.refuse(http.StatusBadRequest, name.ReasonBadRequest, "The body of the request is malformed.")
	return errLinger
}

// stalledBody refuses a request whose body has stopped coming.
func (e *exchange) stalledBody(err error) error {
	e.visit.event.Error = err.Error()
	e.visit.refuse(http.StatusRequestTimeout, name.ReasonBadRequest, "The body of the request has not come in time.")
	return errLinger
}
