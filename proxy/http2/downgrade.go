package http2

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"net/textproto"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"golang.org/x/net/http2/hpack"

	"boxgate/internal/buffers"
	"boxgate/policy/name"
	"boxgate/proxy/header"
	"boxgate/proxy/origin"
	"boxgate/proxy/problem"
	"boxgate/proxy/recovery"
	"boxgate/proxy/tunnel"
	"boxgate/relay"
	"boxgate/relay/h1"
)

// downgrade forwards one HTTP/2 request to an upstream that speaks HTTP/1.1. Every field was validated by the rules of the
// HTTP/1.1 parser, so a field cannot end a line or a head. It implements the egress side of the exchange
// ([relay.StreamWriter]) and the input of the body ([relay.StreamInput]).
type downgrade struct {
	relay.Exchange
	relay.Stream
	st      *stream
	up      *origin.Conn
	stop    func() bool // keeps the end of the stream's context from aborting up; reports whether it was called in time
	again   bool        // the request may be sent again, once
	reuse   bool        // the response lets the connection carry another request
	offers  bool        // the server offers a login of the connection
	out     relay.Output
	text    []byte      // the request in the form of HTTP/1.1; Req points into it
	taken   *uploadBody // the request's body, if it was already taken from the client; nil: it is read from the client
	begun   bool        // beginBody was called
	body    relay.StreamBody
	proceed expectation // of the client; may be nil
}

// clientStays never reports the client as gone: when it disconnects, the context of its stream ends.
func clientStays() bool { return false }

// begin assigns a request to a connection and takes ownership of the connection; [downgrade.endResponse] must follow.
func (d *downgrade) begin(st *stream, up *origin.Conn) {
	d.st, d.up, d.stop = st, up, func() bool { return false }
	d.Method, d.In = st.client.Method, st.client
	d.Res.Lenient = st.decision.Lenient()
}

// downgrades holds zero values, to reuse their memory.
var downgrades = sync.Pool{New: func() any { return new(downgrade) }}

// forward1 sends the request over HTTP/1.1 and relays the response.
func (st *stream) forward1(up *origin.Conn, again bool) {
	d, ok := downgrades.Get().(*downgrade)
	if !ok {
		panic("http2: a foreign value in a pool")
	}
	d.forward(st, up, again)
	*d = downgrade{}
	downgrades.Put(d) // not after a panic
}

func (d *downgrade) forward(st *stream, up *origin.Conn, again bool) {
	d.begin(st, up)
	defer d.finishUpload()
	d.again = again
	if err := d.head(false); err != nil {
		st.refuseUpstream(err)
		return
	}
	if st.length != 0 {
		d.body = relay.NewStreamBody(d, st.length)
		d.Source = &d.body
	}
	if st.length != 0 && st.expects {
		d.proceed = make(expectation, 1)
	}
	_ = d.Forward(&d.Exchange, &d.out, d, false)
}

// finishUpload ends the upload, and keeps the connection or closes it.
func (d *downgrade) finishUpload() {
	sent := d.Upload.Idle() && d.Upload.Err() == nil
	d.Upload.Stop()
	d.out.Give()
	buffers.ReturnOut(d.text)
	switch kept := d.stop() && sent && d.reuse; {
	case d.up == nil:
	case kept && d.up.Done(d.Res.Body):
		d.up.Keep()
	default:
		d.up.Close()
	}
}

// Connect implements [relay.Sender].
func (d *downgrade) Connect(bool) (err error) {
	st := d.st
	if d.up == nil {
		if d.up, err = st.s.Core.Origins.Fresh1(st.ctx, st.s.Origin, st.decision.Target(st.s)); err != nil {
			return err
		}
	}
	// A cut, or a reset of the stream by the client, cancels the context, which must interrupt the reads as well.
	d.stop = context.AfterFunc(st.ctx, d.up.Abort)
	if err := st.goesTo(d.up); err != nil {
		return d.failed(err)
	}
	d.up.ReadFor(st.ctx, clientStays)
	d.To, d.From = d.up, &d.up.In
	return nil
}

// Ask implements [relay.Sender].
func (d *downgrade) Ask(whole bool) (used bool, err error) {
	used = d.up.Begin()
	if _, err := d.up.NetConn.Write(d.out.Buf); err != nil {
		return used, d.failed(err)
	}
	if !whole {
		return used, nil
	}
	if d.st.repeatable() {
		d.up.AskAgain()
	}
	defer d.up.Answered()
	if err := d.up.In.Fill(); err != nil {
		return used, d.failed(err)
	}
	return used, nil
}

// failed returns a failure of the upstream.
func (d *downgrade) failed(err error) error {
	return &problem.Upstream{Reason: name.ReasonUpstreamHTTP, Name: d.st.decision.Request.Name, Err: err}
}

// Final implements [relay.Sender].
func (d *downgrade) Final(error) bool { return d.st.ctx.Err() != nil }

// Again implements [relay.Sender].
func (d *downgrade) Again(_ error, _, used bool) (again, fresh bool) {
	again, d.again = used && d.again, false
	return again, true
}

// Drop implements [relay.Sender].
func (d *downgrade) Drop() {
	d.stop()
	d.up.Close()
	d.up = nil
}

// Arrived implements [relay.StreamInput].
func (d *downgrade) Arrived() (n int, whole bool) {
	if d.proceed != nil || d.st.early.source != nil {
		return 0, false // it takes waiting, or is read from elsewhere
	}
	return d.st.client.Arrived()
}

// AppendLast implements [relay.StreamInput]: the trailers follow.
func (d *downgrade) AppendLast(out []byte) []byte {
	return header.AppendLastChunk(out, d.trailers(), d.st.decision.Set)
}

// beginBody waits until the body may be sent and, if the body was already taken from the client, until all of it has been
// searched for placeholders.
func (d *downgrade) beginBody() error {
	if d.begun {
		return nil
	}
	d.begun = true
	if !d.proceed.await(d.st.ctx.Done()) {
		return cmp.Or(d.st.ctx.Err(), relay.ErrUnwanted)
	}
	if s := d.st.early.source; s != nil {
		d.taken = s.attempt()
		return s.inspect()
	}
	return nil
}

// Interrupt implements [relay.StreamInput].
func (d *downgrade) Interrupt() {
	d.proceed.signal(false)
	d.st.client.CloseRead()
}

// Panicked implements [relay.StreamInput].
func (d *downgrade) Panicked(v any) {
	recovery.Log(d.st.s.Core.Log, "panic in an exchange", d.st.s.Box.ID, v)
}

// Read implements [relay.StreamInput]. The returned content has been searched for placeholders, as have the trailers before
// io.EOF.
func (d *downgrade) Read(p []byte) (int, error) {
	if err := d.beginBody(); err != nil {
		return 0, err
	}
	if d.taken != nil {
		return d.taken.Read(p)
	}
	n, err := d.st.Read(p)
	d.st.uploaded.Add(int64(n))
	if leak := d.st.watched(p[:n]); leak != nil {
		return 0, leak
	}
	if errors.Is(err, io.EOF) {
		if leak := d.st.checkEnd(); leak != nil {
			return 0, leak
		}
	}
	return n, err
}

func (d *downgrade) trailers() []h1.Field {
	fields := header.PassTrailers(d.st.client.Trailers(), d.st.decision.Set)
	out := make([]h1.Field, 0, len(fields))
	for _, f := range fields {
		out = append(out, h1.NewField(textproto.CanonicalMIMEHeaderKey(f.Name), f.Value))
	}
	return out
}

// head writes the request's head for the server.
func (d *downgrade) head(upgrade bool) error {
	h := d.st.client.Head
	h.Path, h.Length, h.Fields = d.st.target, d.st.length, d.st.framedFields()
	var err error
	if d.text, err = relay.AppendStreamHead(buffers.BorrowOut(), &h); err != nil {
		return err
	}
	if _, err := d.Req.Parse(d.text); err != nil {
		return err
	}
	if via := d.st.decision.Via; via != nil {
		header.Readdress(&d.Req, via.Authority, via.Target)
	}
	d.out.Buf = header.AppendRequest(d.out.Take(), &d.Req, d.st.decision.Set, upgrade)
	return nil
}

// framedFields returns the fields of the request, with a Content-Length and an Expect that match the body as sent.
func (st *stream) framedFields() []hpack.HeaderField {
	if st.rewriting == nil {
		return st.fields
	}
	measured := st.length > 0
	fields := make([]hpack.HeaderField, 0, len(st.fields)+1)
	for _, f := range st.fields {
		switch {
		case f.Name == "content-length":
			measured = measured || st.length == 0
		case f.Name != "expect" || st.expects:
			fields = append(fields, f)
		}
	}
	if measured {
		fields = append(fields, hpack.HeaderField{Name: "content-length", Value: strconv.FormatInt(st.length, 10)})
	}
	return fields
}

// Inspect implements [relay.Side].
func (d *downgrade) Inspect(r *h1.Response) error {
	return d.st.beginScrub(r.Status, r.Body.Empty(), relay.ValuesIn(r.Fields))
}

// WriteHead implements [relay.StreamWriter].
func (d *downgrade) WriteHead(r *h1.Response, _ bool) error {
	d.st.x.Event.Status = r.Status
	if d.offers = h1.LogsIn(r.Fields); d.offers {
		d.st.leadToHTTP1()
	}
	d.st.answer(r.Status, d.fields(r))
	return nil
}

// fields returns the fields of a response for the client.
func (d *downgrade) fields(r *h1.Response) []hpack.HeaderField {
	return d.Head(r, func(f *h1.Field) ([]byte, bool) { return f.Value, header.PassesResponse(f) })
}

// WriteEnd implements [relay.StreamWriter].
func (d *downgrade) WriteEnd(trailers []h1.Field) error {
	fields := make([]hpack.HeaderField, 0, len(trailers))
	for i := range trailers {
		fields = append(fields, relay.StreamField(trailers[i].Name, trailers[i].Value))
	}
	d.st.setTrailers(fields)
	return nil
}

// BadBody implements [relay.Side].
func (d *downgrade) BadBody(err error) error { return d.Unsent(err) }

// Unsent implements [relay.Side].
func (d *downgrade) Unsent(err error) error {
	d.st.refuseUpstream(err)
	return err
}

// NoResponse implements [relay.Side].
func (d *downgrade) NoResponse(err error) error {
	var known *problem.Upstream
	if !errors.As(err, &known) { // it cannot be scrubbed
		err = d.failed(err)
	}
	return d.Unsent(err)
}

// Broken implements [relay.Side]. It does not return.
func (d *downgrade) Broken(err error) error {
	d.st.abort(err)
	return err
}

// Settle implements [relay.Side].
func (d *downgrade) Settle(reuse bool) (end bool) {
	d.st.x.Repaired(d.Body.Repairs)
	d.reuse = reuse && !d.offers
	return false
}

// Received implements [relay.Receiver]. The head is changed in the form of HTTP/2.
func (d *downgrade) Received(r *h1.Response) {
	d.st.x.Repaired(r.Repairs)
	if !r.Interim() {
		d.proceed.signal(false)
	}
}

// Interim implements [relay.Receiver].
func (d *downgrade) Interim(r *h1.Response) error {
	if r.Status == http.StatusContinue {
		d.proceed.signal(true)
	} else {
		d.st.interim(r.Status, d.fields(r))
	}
	return nil
}

// Relay implements [relay.Side].
func (d *downgrade) Relay() error {
	if d.st.scrub != nil {
		return d.st.relayScrubbed(&d.Body)
	}
	return d.Body.Copy(d)
}

// Put implements [relay.Sink].
func (d *downgrade) Put(content []byte) error {
	d.st.x.Event.BytesIn += int64(len(content))
	d.st.x.Download(content)
	_, err := d.st.w.Write(content)
	return err
}

// Flush implements [relay.Sink].
func (d *downgrade) Flush() error { return d.st.w.Flush() }

// Fill implements [relay.Sink].
func (d *downgrade) Fill(in *h1.Reader) error { return in.Fill() }

// serveWebSocket forwards an extended CONNECT (RFC 8441) to the upstream as an HTTP/1.1 upgrade, which every WebSocket
// server supports, and then relays bytes both ways between the client and that upstream.
func (st *stream) serveWebSocket() {
	up, err := st.s.Core.Origins.HTTP1(st.ctx, st.s.Origin, st.decision.Target(st.s))
	if err != nil {
		st.refuseUpstream(err)
		return
	}
	d := &downgrade{}
	d.begin(st, up)
	defer d.finishUpload()
	if err := d.head(true); err != nil {
		st.refuseUpstream(err)
		return
	}
	_ = d.Forward(&d.Exchange, &d.out, d, true)
}

// Tunnel implements [relay.Side].
func (d *downgrade) Tunnel(n int) error {
	st := d.st
	st.x.Event.Status = http.StatusOK
	fields := slices.DeleteFunc(d.fields(&d.Res), func(f hpack.HeaderField) bool { return f.Name == "sec-websocket-accept" })
	st.answer(http.StatusOK, fields)
	d.up.In.Take(n)
	err := d.tunnel()
	if err != nil {
		st.abort(err) // not a graceful close
	}
	return err
}

// tunnel passes bytes both ways between the client and the upgraded connection.
func (d *downgrade) tunnel() error {
	st, up := d.st, d.up
	st.shared = true
	toServer, end := st.s.Searched(st.ctx, &st.decision, upstreamWriter{up})
	defer end()
	var in atomic.Int64
	var lost atomic.Bool
	defer st.s.Core.Tunnels.WatchLost(up.NetConn, func() { lost.Store(true); up.Abort() })()
	idle := st.s.Core.Tunnels.WatchIdle(up.Abort, &st.uploaded, &in)
	defer idle.Stop()
	if err := st.w.Flush(); err != nil { // the head
		return err
	}
	t := relay.StreamTunnel{
		Client: st.client, To: st.decision.Masking(relay.Through{Writer: &st.w, Flush: st.w.Flush}), End: st.w.endResponse, Read: &st.uploaded, Abort: up.Abort,
		Server:   relay.End{Conn: up.NetConn, To: toServer, In: &up.In, Read: &in},
		Panicked: func(v any) { recovery.Log(st.s.Core.Log, "panic in an exchange", st.s.Box.ID, v) },
	}
	err := st.noted(t.Run())
	st.x.Event.BytesIn = in.Load()
	if lost.Load() {
		return tunnel.ErrLost
	}
	return err
}

// upstreamWriter writes to the server as an [io.Writer].
type upstreamWriter struct{ up *origin.Conn }

func (u upstreamWriter) Write(b []byte) (int, error) {
	if err := u.up.Write(b); err != nil {
		return 0, err
	}
	return len(b), nil
}
