package ingress

import (
	"errors"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"boxgate/internal/buffers"
	"boxgate/relay"
	"boxgate/relay/h1"
	"boxgate/relay/h2/downstream"
)

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
		s.visit = newVisit(s.asked(), s, s.cut, &s.opening, &s.entry)
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
