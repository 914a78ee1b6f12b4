package ingress

import (
	"errors"
	"net/http"
	"os"
	"sync/atomic"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"boxgate/relay"
	"boxgate/relay/h1"
	"boxgate/relay/h2/downstream"
)

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
	list := s.Head(r, shown)
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
		if f := &fields[i]; !f.Forbidden() && !withheld(f.Name) {
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
