package ingress

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"boxgate/internal/buffers"
	"boxgate/relay"
	"boxgate/relay/h1"
	"boxgate/relay/h2"
	"boxgate/relay/h2/downstream"
)

// session is one HTTP/2 connection of a client.
type session struct {
	g       *core
	visitor *visitor
	conn    net.Conn
	held    *held
}

// run serves the connection until it ends.
func (s *session) run() {
	drain, release := s.held.drained(s.g.draining)
	defer release()
	downstream.Serve(context.Background(), s.conn, downstream.Config{
		Start: s.start, Handler: s.serve, Refused: s.refused, Panicked: s.panicked, Memory: s.g.heads, Idle: s.g.IdleTimeout, Drain: drain,
	})
}

// refused records a refusal by the HTTP/2 connection.
func (s *session) refused(r downstream.Refusal) { s.g.refusedUnread(time.Now(), "HTTP/2: "+r.Why) }

func (s *session) panicked(any) {
	s.g.Log.Error("panic in an HTTP/2 connection to a public URL", zap.Stack("stack"))
}

// stream is one request over HTTP/2. Its memory is reused for other requests, of any connection to the same gateway.
type stream struct {
	relay.Stream
	exchange
	output   relay.Output
	body     relay.StreamBody
	text     []byte        // the request in the form of HTTP/1.1, which Req points into
	cut      func()        // cutNow, bound once
	answered bool          // a final response has begun
	shared   bool          // a goroutine may still refer to it after the request's end
	next     func(*stream) // continues a request that began without a goroutine
	early    early
}

// open begins a request.
func (c *session) open(in *downstream.Stream) *stream {
	s, ok := c.g.streams.Get().(*stream)
	if !ok {
		s = &stream{}
		s.g, s.client, s.cut, s.out = c.g, s, s.cutNow, &s.output
	}
	c.held.arrive()
	s.In, s.visitor, s.ctx = in, c.visitor, in.Context()
	s.texts.host, s.texts.target = in.Authority, in.Path
	return s
}

// recycle keeps the memory of an ended request for another one.
func (s *stream) recycle() {
	if s.shared || s.wasCut() || s.http2 { // over HTTP/2, shared connection attempts may still call gone
		return
	}
	s.Req.Reset()
	s.Res.Reset()
	clear(s.Req.Fields[:cap(s.Req.Fields)])
	clear(s.Res.Fields[:cap(s.Res.Fields)])
	s.Upload.Reset()
	s.begun.Store(false)
	s.Clear()
	s.visitor, s.ctx, s.texts, s.answered, s.visit = nil, nil, texts{}, false, visit{}
	s.Source, s.To, s.From, s.Body = nil, nil, nil, relay.Incoming{}
	s.next, s.early = nil, early{}
	s.g.streams.Put(s)
}

// serve handles one request that [session.start] has not begun.
func (c *session) serve(in *downstream.Stream) {
	s := c.open(in)
	s.next = (*stream).handle
	s.Serve()
}

// Serve implements [downstream.Task]: it continues a request in a goroutine. If it returns before the response is complete,
// the stream is reset.
func (s *stream) Serve() {
	defer s.recycle()
	defer s.ended()
	s.In.Limit(s.g.BodyTimeout, s.g.BodyTimeout)
	s.next(s)
}

// handle handles a request.
func (s *stream) handle() {
	if err := s.parse(); err != nil {
		s.unreadable(err)
		return
	}
	s.decide()
}

// decide checks a parsed request, and forwards it.
func (s *stream) decide() {
	if s.g.admit(s.ctx, &s.visit, s.visitor.permits) && !s.leavesLogin() {
		s.forward()
	}
}

// parse parses the request and begins its visit.
func (s *stream) parse() error {
	var err error
	if s.text, err = relay.AppendStreamHead(buffers.BorrowOut(), &s.In.Head); err == nil {
		err = s.read(s.text)
	}
	if err == nil {
		s.visit.begin(time.Now(), s.asked(), s, s.cut, &s.opening, &s.entry)
	}
	return err
}

// ended records the request. A panic ends only its stream.
func (s *stream) ended() { s.conclude(recover()) }

func (s *stream) conclude(panicked any) {
	if panicked != nil {
		s.shared = true
		s.g.panicked(&s.visit)
	}
	s.Upload.Stop()
	s.Drop()
	s.out.Give()
	buffers.ReturnOut(s.text)
	s.text = nil
	if s.visit.entry != nil { // the request could be parsed
		s.g.record(&s.visit)
	}
}

// asked is [exchange.asked] with the method that the client sent: an extended CONNECT was changed to a GET.
func (s *stream) asked() asked {
	q := s.exchange.asked()
	q.method = relay.Method([]byte(s.In.Method))
	return q
}

// cutNow ends the request, whatever it waits for. It never blocks.
func (s *stream) cutNow() {
	in := s.In
	in.Cancel(errCut) // interrupts a wait for the box
	in.CloseRead()
	if s.begun.Load() {
		in.Reset(resetCut)
		return
	}
	time.AfterFunc(s.g.grace, func() { in.Reset(resetCut) })
}

// Unwatch implements [downstream.Pending]: it ends a wait for the box.
func (s *stream) Unwatch() bool {
	up := s.abortUpstream()
	return up != nil && up.watch != nil && up.watch.End()
}

// gone implements [side].
func (s *stream) gone() bool { return s.ctx.Err() != nil }

// reset implements [side].
func (s *stream) reset(code http2.ErrCode) bool {
	s.In.Reset(code)
	return true
}

// read parses the request in the form of HTTP/1.1.
func (s *stream) read(text []byte) error {
	if len(text) > s.g.MaxHeaderBytes {
		return &h1.Error{Status: http.StatusRequestHeaderFieldsTooLarge, What: "its head is too large"}
	}
	n, err := s.Req.Parse(text)
	if err != nil {
		return err
	}
	if string(s.Req.Host) != s.In.Authority {
		return &h1.Error{Status: http.StatusBadRequest, What: "the authority is not a host"}
	}
	if s.In.Protocol != "" && !s.Req.Body.Empty() {
		return &h1.Error{Status: http.StatusBadRequest, What: "a CONNECT with a body"}
	}
	if n != len(text) || !s.Req.Body.Chunked && s.In.Protocol == "" && s.Req.Body.Length != s.In.Length {
		return &h1.Error{Status: http.StatusBadRequest, What: "Content-Length is not the length of the body"}
	}
	return nil
}

// unreadable refuses a request that could not be read.
func (s *stream) unreadable(err error) {
	var malformed *h1.Error
	if !errors.As(err, &malformed) {
		malformed = &h1.Error{Status: http.StatusBadRequest, What: "no request could be read"}
	}
	s.g.refusedUnread(time.Now(), malformed.What)
	s.reply(malformed.Status, [][2]string{{"Content-Type", "text/plain; charset=utf-8"}}, []byte(http.StatusText(malformed.Status)+": "+malformed.What+"\n"))
}

// reply implements [replier].
func (s *stream) reply(status int, fields [][2]string, body []byte) {
	if s.answered {
		return
	}
	s.answered = true
	s.visit.event.Status = status
	if s.early.reading {
		s.early.status, s.early.fields, s.early.body = status, fields, body
		return
	}
	s.sendReply(status, fields, body)
}

func (s *stream) sendReply(status int, fields [][2]string, body []byte) {
	list := make([]hpack.HeaderField, 0, len(fields)+2)
	for _, f := range fields {
		list = append(list, hpack.HeaderField{Name: strings.ToLower(f[0]), Value: f[1]})
	}
	list = s.appendHSTS(list)
	list = append(list, hpack.HeaderField{Name: "content-length", Value: strconv.Itoa(len(body))})
	empty := s.In.Method == http.MethodHead || len(body) == 0
	if s.In.WriteHeader(status, list, empty) == nil && !empty { // else the client has gone
		_, _ = s.In.Write(body)
		_ = s.In.CloseWrite(nil)
		s.visit.event.BytesOut += int64(len(body))
	}
	s.In.CloseRead()
}

// forward sends an admitted request to the box and relays its response.
func (s *stream) forward() {
	upgrade := s.prepare()
	s.In.Await(s) // fails if the context has ended: then no connection is taken
	defer s.In.Await(nil)
	_ = s.Forward(&s.Exchange, s.out, s, upgrade)
}

// prepare writes the request's head for the box, and reports whether it asks for a WebSocket.
func (s *stream) prepare() (upgrade bool) {
	upgrade = relay.OpensWebSocket(&s.Req)
	s.head(upgrade)
	if s.Source = nil; !s.Req.Body.Empty() {
		s.body = relay.NewStreamBody(s, s.In.Length)
		s.Source = &s.body
	}
	return upgrade
}

// BadBody implements [relay.Side].
func (s *stream) BadBody(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return s.stalledBody(err)
	}
	return s.unserved(relay.ErrClientGone)
}

// This part serves requests over HTTP/2 without a goroutine for each: the goroutine that reads the visitor's connection checks
// a request and sends it to the box over an idle connection, and a goroutine of the poller passes the response on. Neither may
// block. A request that would have to wait, or is out of the ordinary, continues in its own goroutine.

// early is the state of a request that has no goroutine yet.
type early struct {
	reading bool // the goroutine that reads the connection serves it: a reply is stored

	// The stored reply.
	status int
	fields [][2]string
	body   []byte

	waking *waking // for a sleeping box; nil: the box is awake

	sent int   // bytes of the request sent
	err  error // the error that followed
}

// start begins a request in the goroutine that reads the client's connection.
func (c *session) start(in *downstream.Stream, _ *h2.Batch) {
	s := c.open(in)
	in.Take(s)
	defer s.contain(in)
	s.early.reading = true
	if s.begin() {
		return // it may have ended already
	}
	s.early.reading = false
	in.Resume()
}

// contain ends a request after a panic. It must be deferred directly.
func (s *stream) contain(in *downstream.Stream) {
	if v := recover(); v != nil {
		s.over(in, v)
	}
}

// over ends a request that has no goroutine. A panic that comes of that ends only the request: the goroutine serves others too.
func (s *stream) over(in *downstream.Stream, panicked any) {
	defer in.Done()
	defer s.containEnd()
	s.conclude(panicked)
	s.recycle()
}

// containEnd must be deferred directly.
func (s *stream) containEnd() {
	if recover() != nil {
		s.g.panicked(&s.visit)
	}
}

// begin checks and sends a request that has arrived whole, if it can do so without waiting, and reports whether it was sent.
// Otherwise it sets next to the function that continues the request.
func (s *stream) begin() bool {
	s.next = (*stream).handle
	if n, whole := s.In.Arrived(); !whole || n > buffers.OutFlush || s.In.Protocol != "" {
		return false
	}
	if s.early.err = s.parse(); s.early.err != nil {
		s.next = (*stream).refuse
		return false
	}
	if s.next = (*stream).decide; s.g.mayWait(&s.visit) {
		return false
	}
	if s.next = (*stream).answerKept; !s.g.check(s.ctx, &s.visit, s.visitor.permits) {
		return false
	}
	if s.next, s.early.waking = (*stream).wakeBox, s.g.enter(&s.visit); s.early.waking != nil {
		return false
	}
	s.next = (*stream).pass
	return s.g.allow(&s.visit) && s.depart()
}

// depart sends an admitted request over an idle connection, if there is one.
func (s *stream) depart() bool {
	if h1.LogsIn(s.Req.Fields) || s.prepare() || s.http2 {
		return false
	}
	up := s.g.upstreams.get(s.visit.target)
	if up == nil {
		return false
	}
	watch := up.watched(&s.g.poller)
	if watch == nil {
		up.putIdle()
		return false
	}
	whole, err := s.Gather(s.out)
	if err != nil || !whole {
		up.putIdle()
		s.early.err, s.next = err, (*stream).sendRest
		return false
	}
	s.Res.Reset()
	s.next = (*stream).await
	watch.Arm(s)
	if s.early.err = s.attach(up); s.early.err != nil || !s.In.Await(s) {
		return false
	}
	if s.early.sent, s.early.err = up.direct.AskNow(s.out.Buf); s.early.err != nil || s.early.sent < len(s.out.Buf) {
		return false
	}
	s.early.reading = false
	return watch.Wait()
}

// refuse answers a request that could not be read.
func (s *stream) refuse() { s.unreadable(s.early.err) }

// answerKept sends the stored reply.
func (s *stream) answerKept() { s.sendReply(s.early.status, s.early.fields, s.early.body) }

// wakeBox waits until the box of a checked request has woken, and forwards the request.
func (s *stream) wakeBox() {
	if s.g.wake(s.ctx, &s.visit, s.early.waking) && s.g.allow(&s.visit) {
		s.pass()
	}
}

// pass forwards an admitted request.
func (s *stream) pass() {
	if !s.leavesLogin() {
		s.forward()
	}
}

// sendRest sends a request whose body has not arrived whole or could not be read.
func (s *stream) sendRest() {
	s.In.Await(s)
	defer s.In.Await(nil)
	err := s.early.err
	if err != nil {
		_ = s.BadBody(err)
	} else if err = s.Send(s, false, false); err != nil {
		_ = s.Unsent(err)
	} else {
		_ = s.Respond(&s.Exchange, s, false)
	}
}

// await continues a request that was sent at least partly, or failed to be.
func (s *stream) await() {
	if !s.In.Await(s) { // its context has ended
		s.abortUpstream()
	}
	defer s.In.Await(nil)
	err := s.early.err
	if rest := s.out.Buf[s.early.sent:]; err == nil && len(rest) > 0 {
		err = s.up.Write(rest)
	}
	if err == nil && len(s.From.Bytes()) == 0 {
		err = s.From.Fill()
	}
	if err != nil {
		err = s.SendAgain(s, err)
	}
	if err != nil {
		_ = s.Unsent(err)
		return
	}
	_ = s.Respond(&s.Exchange, s, false)
}

// Overdue implements [relay.Waiter].
func (s *stream) Overdue() { s.In.Resume() }

// Answered implements [relay.Waiter]: it passes on a response that has arrived whole.
func (s *stream) Answered(b *h2.Batch) {
	in := s.In
	defer s.contain(in)
	if s.early.err = s.up.fillNow(); s.early.err == nil {
		in.Delay(b)
	}
	switch {
	case errors.Is(s.early.err, os.ErrDeadlineExceeded):
		s.waitAgain(in)
	case s.early.err == nil && s.respondNow():
		s.over(in, nil)
	default:
		in.Resume()
	}
}

// waitAgain continues to wait for a box that has not sent anything.
func (s *stream) waitAgain(in *downstream.Stream) {
	s.early.err = nil
	if !s.up.watch.Again() {
		in.Resume()
	}
}

// respondNow passes on a response that has arrived whole, if it can do so without waiting. Otherwise it changes no state and
// reports false.
func (s *stream) respondNow() bool {
	arrived := s.From.Bytes()
	n, err := s.Res.Parse(arrived, s.Method)
	if err != nil || s.Res.Status < http.StatusOK {
		s.Res.Reset()
		return false
	}
	content, m, whole := wholeBody(&s.Res, arrived[n:])
	if !whole || !s.answerNow(content) {
		s.Res.Reset()
		return false
	}
	s.answered = true
	s.begun.Store(true)
	s.visit.event.Status = s.Res.Status
	s.visit.event.BytesOut += int64(len(content))
	s.received()
	reuse := !s.Res.Close && !h1.LogsIn(s.Res.Fields)
	s.From.Take(n + m)
	if s.In.Await(nil) && reuse && len(s.From.Bytes()) == 0 {
		s.keepUpstream()
	}
	return true
}

// answerNow sends the response with its content. If the client's buffer is full, it lets the goroutine that writes to the
// client run, and tries once more.
func (s *stream) answerNow(content []byte) bool {
	fields := s.headFields(&s.Res)
	if s.In.AnswerNow(s.Res.Status, fields, content) {
		return true
	}
	runtime.Gosched()
	return s.In.AnswerNow(s.Res.Status, fields, content)
}

// wholeBody returns the content of a body that has arrived in one piece, without trailers, and the body's length.
func wholeBody(r *h1.Response, arrived []byte) (content []byte, n int, whole bool) {
	if r.Body.Empty() {
		return nil, 0, true
	}
	var b h1.Body
	b.Begin(r.Body, true)
	for !whole {
		part, m, done, err := b.Next(arrived[n:])
		if err != nil || !done && m == 0 || len(content) > 0 && len(part) > 0 || r.Body.UntilClose {
			return nil, 0, false
		}
		if n, whole = n+m, done; len(part) > 0 {
			content = part
		}
	}
	return content, n, len(b.Trailers) == 0
}

// resetCut is the code with which a cut resets a request.
const resetCut = http2.ErrCodeCancel

// Arrived implements [relay.StreamInput].
func (s *stream) Arrived() (n int, whole bool) { return s.In.Arrived() }

// Read implements [relay.StreamInput].
func (s *stream) Read(p []byte) (int, error) {
	n, err := s.In.Read(p)
	switch {
	case errors.Is(err, downstream.ErrLate):
		err = errors.Join(err, os.ErrDeadlineExceeded)
	case n > 0:
		s.g.moved(&s.visit, true)
	}
	return n, err
}

// AppendLast implements [relay.StreamInput]. Trailers are dropped, as over HTTP/1.x.
func (s *stream) AppendLast(out []byte) []byte { return h1.AppendLastChunk(out, nil, nil) }

// Panicked implements [relay.StreamInput].
func (s *stream) Panicked(any) { s.g.panickedIn(s.visit.target.Box) }

// Interrupt implements [relay.StreamInput].
func (s *stream) Interrupt() { s.In.CloseRead() }

// Inspect implements [relay.Side].
func (s *stream) Inspect(*h1.Response) error { return nil }

// WriteHead implements [relay.StreamWriter].
func (s *stream) WriteHead(r *h1.Response, end bool) error {
	s.answered = true
	s.begun.Store(true)
	s.In.Limit(0, s.g.BodyTimeout) // the box has answered: the two may hold a conversation
	s.visit.event.Status = r.Status
	return s.In.WriteHeader(r.Status, s.headFields(r), end)
}

// Relay implements [relay.Side].
func (s *stream) Relay() error { return s.Body.Copy(s) }

// WriteEnd implements [relay.StreamWriter].
func (s *stream) WriteEnd(trailers []h1.Field) error { return s.In.CloseWrite(s.trailers(trailers)) }

// Unsent implements [relay.Side].
func (s *stream) Unsent(err error) error { return s.unserved(err) }

// NoResponse implements [relay.Side].
func (s *stream) NoResponse(err error) error { return s.noResponse(err) }

// Broken implements [relay.Side]: the stream is reset when its request has ended.
func (s *stream) Broken(err error) error {
	s.received()
	switch {
	case s.wasCut():
		err = errCut
	case s.ctx.Err() != nil:
		err = relay.ErrClientGone
	}
	s.visit.event.Error = err.Error()
	return err
}

// Settle implements [relay.Side].
func (s *stream) Settle(reuse bool) (end bool) {
	s.received()
	// If the client has just gone, a cut may close the connection at any moment, so it must not be reused.
	if reuse && !h1.LogsIn(s.Res.Fields) && len(s.From.Bytes()) == 0 && s.In.Await(nil) {
		s.keepUpstream()
	}
	return false
}

// Interim implements [relay.Receiver].
func (s *stream) Interim(r *h1.Response) error {
	if !s.TakesInterim() {
		return nil
	}
	if s.In.WriteHeader(r.Status, s.headFields(r), false) != nil || s.In.Flush() != nil {
		return relay.ErrClientGone
	}
	return nil
}

// Put implements [relay.Sink].
func (s *stream) Put(content []byte) error {
	sent, err := s.In.Write(content)
	s.visit.event.BytesOut += int64(sent)
	return err
}

// Flush implements [relay.Sink].
func (s *stream) Flush() error { return s.In.Flush() }

// headFields returns the fields of a response for the client. They are valid until the next call.
func (s *stream) headFields(r *h1.Response) []hpack.HeaderField {
	passes := shown
	if s.visit.target.remote != nil {
		passes = shownElsewhere
	}
	list := s.Head(r, passes)
	if !r.Interim() {
		list = s.appendHSTS(list)
	}
	return list
}

// appendHSTS appends Strict-Transport-Security, if configured.
func (s *stream) appendHSTS(list []hpack.HeaderField) []hpack.HeaderField {
	if value := s.hsts(); value != "" {
		list = append(list, hpack.HeaderField{Name: hstsName, Value: value})
	}
	return list
}

// trailers returns trailer fields of a response for the client.
func (s *stream) trailers(fields []h1.Field) (list []hpack.HeaderField) {
	for i := range fields {
		if f := &fields[i]; !f.Forbidden() && !s.withheld(f.Name) {
			list = append(list, relay.StreamField(f.Name, f.Value))
		}
	}
	return list
}

// Tunnel implements [relay.Side]: it accepts a WebSocket and relays bytes both ways, like [client.Tunnel].
func (s *stream) Tunnel(n int) error {
	s.answered, s.shared = true, true
	s.begun.Store(true)
	s.In.Limit(0, 0)
	s.visit.event.Status = http.StatusOK
	fields := s.headFields(&s.Res)
	kept := fields[:0]
	for _, f := range fields {
		if f.Name != "sec-websocket-accept" {
			kept = append(kept, f)
		}
	}
	err := s.In.WriteHeader(http.StatusOK, kept, false)
	s.up.in.Take(n)
	s.out.Give()
	if err == nil {
		err = s.In.Flush()
	}
	if err == nil {
		err = s.pump()
	}
	switch {
	case s.wasCut():
		s.visit.event.Error = errCut.Error()
	case err != nil:
		s.visit.event.Error = err.Error()
	}
	return err
}

// pump relays bytes both ways.
func (s *stream) pump() error {
	s.g.releaseBox(&s.visit)
	var received, sent atomic.Int64
	up := s.up
	t := relay.StreamTunnel{
		Client: s.In, To: relay.Through{Writer: s.In, Flush: s.In.Flush}, End: func() { _ = s.In.CloseWrite(nil) }, // the client may have gone
		Read: &received, Moved: func() { s.g.moved(&s.visit, true) }, Abort: up.Abort,
		Server:   relay.End{Conn: up.conn, To: up.conn, In: &up.in, Read: &sent, Moved: func() { s.g.moved(&s.visit, false) }},
		Panicked: func(any) { s.g.panickedIn(s.visit.target.Box) },
	}
	err := t.Run()
	s.visit.event.BytesIn, s.visit.event.BytesOut = received.Load(), sent.Load()
	return err
}
