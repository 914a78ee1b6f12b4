package http2

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/textproto"
	"strings"
	"time"

	"golang.org/x/net/http2/hpack"

	"boxgate/internal/buffers"
	"boxgate/internal/h1"
	"boxgate/policy/name"
	"boxgate/proxy/contain"
	"boxgate/proxy/exchange"
	"boxgate/proxy/header"
	"boxgate/proxy/origin"
	"boxgate/proxy/problem"
	"boxgate/relay"
)

// downgrade forwards one HTTP/2 request to an upstream that speaks HTTP/1.1. Every field was validated by the rules of
// the HTTP/1.1 parser, so none can end a line or a head.
type downgrade struct {
	st      *stream
	up      *origin.Conn
	taken   *uploadBody // the request's body, if it was taken from the client before; nil: it is read from there
	res     h1.Response
	body    relay.Incoming
	sent    chan struct{} // closed when the upload has ended; nil if there is no body
	outcome error         // of the upload; read it after sent is closed
	proceed chan bool     // tells an upload that waits for 100 whether to begin; nil if none waits
}

// clientStays never reports the client as gone: when it disconnects, the context of its stream ends.
func clientStays() bool { return false }

// forward1 sends the request over HTTP/1.1 and relays the response.
func (st *stream) forward1(up *origin.Conn, again bool) {
	ctx, d := st.ctx, &downgrade{st: st}
	head := st.head(false)
	kept := false
	defer func() { // a closure: a second attempt replaces up
		if !kept {
			up.Close()
		}
	}()
	var stop func() bool
	for ; ; again = false {
		used := up.Again()
		// A cut, or a reset of the stream by the client, cancels the context, which must interrupt the reads as well.
		stop = context.AfterFunc(ctx, up.Abort)
		err := d.send(up, head)
		if err == nil {
			break
		}
		stop()
		if !used || !again || ctx.Err() != nil {
			st.refuseUpstream(&problem.Upstream{Reason: name.ReasonUpstreamHTTP, Name: st.ruling.Request.Name, Err: err})
			return
		}
		up.Close()
		next, err := st.s.Core.Origins.Fresh1(ctx, st.s.Origin, st.ruling.Target(st.s))
		if err != nil {
			st.refuseUpstream(err)
			return
		}
		up = next
	}
	reuse := false
	defer func() {
		if !d.sentAll() {
			up.Abort()
			st.client.CloseRead() // interrupts a read in progress
			<-d.sent
			reuse = false
		}
		if stop() && reuse && up.Done(d.res.Body) {
			up.Keep()
			kept = true
		}
	}()
	reuse = d.respond()
}

// send writes the head, starts the upload and, for a request without a body, waits for the first byte of the response.
func (d *downgrade) send(up *origin.Conn, head []byte) error {
	d.up = up
	if err := d.st.goesTo(up); err != nil {
		return err
	}
	up.Begin()
	up.ReadFor(d.st.ctx, clientStays)
	if _, err := up.NetConn.Write(head); err != nil {
		return err
	}
	if d.st.length == 0 {
		if d.st.repeatable() {
			up.AskAgain()
		}
		defer up.Answered()
		return up.In.Fill()
	}
	d.sent, d.outcome = make(chan struct{}), contain.ErrFault
	if d.st.expects {
		d.proceed = make(chan bool, 1)
	}
	go func() {
		defer close(d.sent)
		defer contain.Panic(d.st.s.Core.Log, d.st.s.Box.ID, up.Abort)
		if d.outcome = d.awaitContinue(); d.outcome == nil {
			d.outcome = d.upload()
		}
		var write *origin.WriteError
		if d.outcome != nil && !errors.As(d.outcome, &write) && !errors.Is(d.outcome, errUnwanted) {
			up.Abort() // the client aborted: the upstream must not take the partial body for the whole
		}
	}()
	return nil
}

// errUnwanted ends an upload because the server responded before it began.
var errUnwanted = errors.New("the server did not ask for the body")

// awaitContinue delays the upload of a client that waits for 100 until the server responds.
func (d *downgrade) awaitContinue() error {
	if d.proceed == nil {
		return nil
	}
	limit := time.NewTimer(origin.ExpectWait)
	defer limit.Stop()
	select {
	case wanted := <-d.proceed:
		if !wanted {
			return errUnwanted
		}
	case <-limit.C:
	case <-d.st.ctx.Done():
		return d.st.ctx.Err()
	}
	return nil
}

// told signals an upload that waits for the server's response.
func (d *downgrade) told(wanted bool) {
	select {
	case d.proceed <- wanted: // the first one counts
	default:
	}
}

// sentAll reports whether the whole body was sent.
func (d *downgrade) sentAll() bool {
	if d.sent == nil {
		return true
	}
	select {
	case <-d.sent:
		return d.outcome == nil
	default:
		return false
	}
}

// errShort is a body that ends before its length. The server would take what is sent next for the rest of it.
var errShort = errors.New("the body is shorter than its length")

// upload sends the request's body: unchanged if its length is known, else in chunks with its trailers.
func (d *downgrade) upload() error {
	if err := d.takeUp(); err != nil {
		return err
	}
	chunked, left := d.st.length < 0, d.st.length
	buf := bodyBuffers.Get()
	defer bodyBuffers.Put(buf)
	out := buffers.BorrowOut()
	defer func() { buffers.ReturnOut(out) }()
	for {
		n, err := d.next(*buf)
		content := (*buf)[:n]
		if left -= int64(n); errors.Is(err, io.EOF) && !chunked && left != 0 {
			return errShort
		}
		if chunked {
			out = h1.AppendChunk(out[:0], content)
			if errors.Is(err, io.EOF) {
				out = header.AppendLastChunk(out, d.trailers(), d.st.ruling.Set)
			}
			content = out
		}
		if failed := d.up.Write(content); failed != nil {
			return failed
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// takeUp goes on with a body that was taken from the client before, once all of it has been searched for placeholders.
func (d *downgrade) takeUp() error {
	s := d.st.early.source
	if s == nil {
		return nil
	}
	d.taken = s.attempt()
	return s.inspect()
}

// next reads what comes next of the body, which has been searched for placeholders. At the end, so have the trailers.
func (d *downgrade) next(p []byte) (int, error) {
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
	fields := header.PassTrailers(d.st.client.Trailers(), d.st.ruling.Set)
	out := make([]h1.Field, 0, len(fields))
	for _, f := range fields {
		out = append(out, h1.NewField(textproto.CanonicalMIMEHeaderKey(f.Name), f.Value))
	}
	return out
}

// head returns the request's head as HTTP/1.1.
func (st *stream) head(upgrade bool) []byte {
	h := &st.client.Head
	authority, target := st.sentTo()
	r := (&header.HTTP2Request{
		Method: h.Method, Path: target, Authority: authority, Fields: st.fields, Length: st.length, Expects: st.expects, Upgrade: upgrade,
	}).HTTP1()
	return header.AppendRequest(nil, &r, st.ruling.Set, upgrade)
}

// respond relays the response to the client, and reports whether the connection can carry another request.
func (d *downgrade) respond() bool {
	st := d.st
	n, err := relay.FinalHead(&d.up.In, &d.res, d.st.client.Method, d)
	if d.told(false); err == nil && d.res.Status == http.StatusSwitchingProtocols {
		err = relay.ErrProtocol
	}
	if err != nil {
		st.refuseUpstream(&problem.Upstream{Reason: name.ReasonUpstreamHTTP, Name: st.ruling.Request.Name, Err: err})
		return false
	}
	if !st.scrubbable(d.res.Status, d.res.Body.Empty(), exchange.ResponseValues(&d.res)) {
		return false
	}
	st.x.Event.Status = d.res.Status
	offers := h1.LogsIn(d.res.Fields)
	if offers {
		st.leadToHTTP1()
	}
	st.answer(d.res.Status, header.ToHTTP2(&d.res))
	reuse := !d.res.Close && !offers
	d.up.In.Take(n)
	d.relay()
	fields := make([]hpack.HeaderField, 0, len(d.body.Trailers))
	for i := range d.body.Trailers {
		f := &d.body.Trailers[i]
		fields = append(fields, hpack.HeaderField{Name: strings.ToLower(string(f.Name)), Value: string(f.Value)})
	}
	st.setTrailers(fields)
	return reuse
}

// Received implements [relay.Receiver]. The head is changed in the form of HTTP/2.
func (d *downgrade) Received(*h1.Response) {}

// Interim implements [relay.Receiver].
func (d *downgrade) Interim(r *h1.Response) error {
	if r.Status == http.StatusContinue {
		d.told(true)
	} else {
		d.st.interim(r.Status, header.ToHTTP2(r))
	}
	return nil
}

// relay copies the body to the client; if that fails, the stream is aborted.
func (d *downgrade) relay() {
	d.body.Begin(&d.up.In, &d.res)
	err := error(nil)
	if d.st.scrub != nil {
		err = d.st.relayScrubbed(&d.body)
	} else {
		err = d.body.Copy(d)
	}
	if err != nil {
		d.st.abort(err)
	}
}

// Put implements [relay.Sink].
func (d *downgrade) Put(content []byte) error {
	d.st.x.Event.BytesIn += int64(len(content))
	_, err := d.st.w.Write(content)
	return err
}

// Flush implements [relay.Sink].
func (d *downgrade) Flush() error { return d.st.w.Flush() }

// Fill implements [relay.Sink].
func (d *downgrade) Fill(in *h1.Reader) error { return in.Fill() }
