package ingress

import (
	"errors"
	"net/http"
	"os"
	"runtime"

	"boxgate/internal/buffers"
	"boxgate/relay/h1"
	"boxgate/relay/h2/downstream"
)

// This file serves requests over HTTP/2 without a goroutine for each: the goroutine that reads the visitor's connection checks
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
func (c *session) start(in *downstream.Stream) {
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
func (s *stream) Answered() {
	in := s.In
	defer s.contain(in)
	s.early.err = s.up.fillNow()
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
