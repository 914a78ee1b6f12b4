package ingress

import (
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"boxgate/internal/buffers"
	"boxgate/internal/h1"
	"boxgate/internal/h2/downstream"
	"boxgate/internal/socket"
	"boxgate/relay"
)

// resetCut is the code with which a request ends that is cut.
const resetCut = http2.ErrCodeCancel

// streamBody is the body of a request over HTTP/2 ([relay.Source]).
type streamBody struct {
	s       *stream
	in      *downstream.Stream
	chunked bool
}

// Gather implements [relay.Source]: it appends the body if all of it has arrived and it is small.
func (b *streamBody) Gather(head []byte) (grown []byte, content int, whole bool, err error) {
	if n, all := b.in.Arrived(); !all || n > buffers.OutFlush {
		return head, 0, false, nil
	}
	for n := 0; !whole && err == nil; content += n {
		head, n, whole, err = b.read(head)
	}
	return head, content, whole, err
}

// More implements [relay.Source].
func (b *streamBody) More(out *relay.Output) (framed []byte, content int, last bool, err error) {
	if out.Buf, content, last, err = b.read(out.Take()); err == nil {
		b.s.g.moved(&b.s.visit, true)
	}
	return out.Buf, content, last, err
}

// read appends what comes next of the body.
func (b *streamBody) read(out []byte) (grown []byte, n int, last bool, err error) {
	buf := bodyBuffers.Get()
	defer bodyBuffers.Put(buf)
	n, err = b.in.Read(*buf)
	if b.chunked {
		out = h1.AppendChunk(out, (*buf)[:n])
	} else {
		out = append(out, (*buf)[:n]...)
	}
	switch {
	case errors.Is(err, io.EOF):
		if b.chunked {
			out = h1.AppendLastChunk(out, nil, nil)
		}
		return out, n, true, nil
	case errors.Is(err, downstream.ErrLate):
		err = errors.Join(err, os.ErrDeadlineExceeded)
	}
	return out, n, false, err
}

// Panicked implements [relay.Source].
func (b *streamBody) Panicked(any) { b.s.g.panickedIn(b.s.visit.target.Box) }

// Interrupt implements [relay.Source].
func (b *streamBody) Interrupt() { b.in.CloseRead() }

var bodyBuffers = buffers.NewPool(16 << 10)

// respond relays the response to the client.
func (s *stream) respond(upgrade bool) {
	n, err := relay.FinalHead(s.From, &s.Res, s.Method, s)
	if err == nil && s.Res.Status == http.StatusSwitchingProtocols {
		if err = s.Upgraded(upgrade); err == nil {
			s.tunnel(n)
			return
		}
	}
	if err == nil && s.in.Protocol != "" && s.Res.Status < 300 {
		err = relay.ErrProtocol // the client would take it for the handshake's success
	}
	if err != nil {
		s.Upload.Stop()
		_ = s.noResponse(err)
		return
	}
	s.answered = true
	s.begun.Store(true)
	s.in.Limit(0, s.g.BodyTimeout) // the box has answered: the two may talk to each other
	s.visit.event.Status = s.Res.Status
	err = s.in.WriteHeader(s.Res.Status, s.headFields(&s.Res), s.Res.Body.Empty())
	s.up.in.Take(n)
	if err == nil && !s.Res.Body.Empty() {
		err = s.relay()
	}
	if err != nil {
		s.failed(err)
		return
	}
	reuse := s.Upload.Finished() && !s.Res.Close && !h1.LogsIn(s.Res.Fields)
	s.Upload.Stop()
	s.received()
	// Where the client has gone just now, the connection is perhaps ended any moment: nobody else may get it.
	if reuse && len(s.up.in.Bytes()) == 0 && s.in.Await(nil) {
		s.keepUpstream()
	}
}

// failed ends a response that is not whole: the stream is reset.
func (s *stream) failed(err error) {
	s.Upload.Stop()
	s.received()
	switch {
	case s.wasCut():
		err = errCut
	case s.ctx.Err() != nil:
		err = relay.ErrClientGone
	}
	s.visit.event.Error = err.Error()
}

// Interim implements [relay.Receiver].
func (s *stream) Interim(r *h1.Response) error {
	if !s.TakesInterim() {
		return nil
	}
	if s.in.WriteHeader(r.Status, s.headFields(r), false) != nil || s.in.Flush() != nil {
		return relay.ErrClientGone
	}
	return nil
}

// relay copies the response's body to the client.
func (s *stream) relay() error {
	s.Body.Begin(s.From, &s.Res)
	if err := s.Body.Copy(s); err != nil {
		return err
	}
	return s.in.CloseWrite(s.trailers())
}

// Put implements [relay.Sink].
func (s *stream) Put(content []byte) error {
	sent, err := s.in.Write(content)
	s.visit.event.BytesOut += int64(sent)
	return err
}

// Flush implements [relay.Sink].
func (s *stream) Flush() error { return s.in.Flush() }

// headFields returns the fields of a response for the client, until the next call: without the length of the content that a 304 does
// not have, for which Go's client waits over HTTP/2 (net/http: missingBody).
func (s *stream) headFields(r *h1.Response) []hpack.HeaderField {
	list := s.answer[:0]
	for i := range r.Fields {
		f := &r.Fields[i]
		switch {
		case f.Kind == h1.ContentLength && r.Status == http.StatusNotModified:
		case relay.PassesFrame(r, f, r.Body.Chunked):
			list = append(list, field(f.Name, f.Value))
		case !r.Named(f.Name):
			if value, ok := shown(f); ok {
				list = append(list, field(f.Name, value))
			}
		}
	}
	if !r.Interim() {
		list = s.appendHSTS(list)
	}
	s.answer = list
	return list
}

// appendHSTS appends Strict-Transport-Security, if it is sent.
func (s *stream) appendHSTS(list []hpack.HeaderField) []hpack.HeaderField {
	if value := s.hsts(); value != "" {
		list = append(list, hpack.HeaderField{Name: hstsName, Value: value})
	}
	return list
}

// trailers returns the trailer fields of the response for the client.
func (s *stream) trailers() []hpack.HeaderField {
	var list []hpack.HeaderField
	for i := range s.Body.Trailers {
		if f := &s.Body.Trailers[i]; !f.Forbidden() && !withheld(f.Name) {
			list = append(list, field(f.Name, f.Value))
		}
	}
	return list
}

func field(name, value []byte) hpack.HeaderField {
	lower, ok := common[string(name)]
	if !ok {
		lower = strings.ToLower(string(name))
	}
	return hpack.HeaderField{Name: lower, Value: string(value)}
}

// common are the names that most responses have, as they are written, and as HTTP/2 has them.
var common = func() map[string]string {
	names := map[string]string{}
	for _, name := range []string{
		"Accept-Ranges", "Age", "Cache-Control", "Content-Disposition", "Content-Encoding", "Content-Length", "Content-Security-Policy", "Content-Type", "Date",
		"Etag", "Expires", "Last-Modified", "Location", "Server", "Set-Cookie", "Vary", "X-Content-Type-Options", "X-Frame-Options", "X-Powered-By",
	} {
		lower := strings.ToLower(name)
		names[name], names[lower] = lower, lower
	}
	names["ETag"] = "etag"
	return names
}()

// tunnel accepts a WebSocket and relays bytes both ways, as [client.Tunnel] does.
func (s *stream) tunnel(n int) {
	s.answered, s.shared = true, true
	s.begun.Store(true)
	s.in.Limit(0, 0)
	s.visit.event.Status = http.StatusOK
	fields := s.headFields(&s.Res)
	kept := fields[:0]
	for _, f := range fields {
		if f.Name != "sec-websocket-accept" {
			kept = append(kept, f)
		}
	}
	err := s.in.WriteHeader(http.StatusOK, kept, false)
	s.up.in.Take(n)
	s.out.Give()
	if err == nil {
		err = s.in.Flush()
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
}

// pump copies both ways until both directions have ended, or one has and the other stays silent.
func (s *stream) pump() error {
	s.g.leave(&s.visit)
	var received, sent atomic.Int64
	ended := make(chan error, 1)
	up := s.up
	s.up.in.Source = s.up.conn
	go func() {
		err := relay.ErrClientGone
		defer func() {
			if recover() != nil || err != nil {
				up.Abort()
			}
			ended <- err
		}()
		err = s.fromClient(up, &received)
	}()
	err := relay.Pump(flushing{s.in}, relay.End{Conn: s.up.conn, In: &s.up.in, Read: &sent, Moved: func() { s.g.moved(&s.visit, false) }})
	if err == nil {
		_ = s.in.CloseWrite(nil) // the client may have gone
		limit := time.AfterFunc(relay.Rest, s.in.CloseRead)
		defer limit.Stop()
	} else {
		s.in.CloseRead()
	}
	other := <-ended
	s.visit.event.BytesIn, s.visit.event.BytesOut = received.Load(), sent.Load()
	if err != nil && other != nil && !errors.Is(other, downstream.ErrUnread) {
		return other
	}
	return err
}

// fromClient passes on what the client sends.
func (s *stream) fromClient(up *upstream, n *atomic.Int64) error {
	buf := buffers.BorrowOut()
	defer func() { buffers.ReturnOut(buf) }()
	for {
		m, err := s.in.Read(buf[:cap(buf)])
		n.Add(int64(m))
		if m > 0 {
			s.g.moved(&s.visit, true)
			if _, err := up.conn.Write(buf[:m]); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			socket.CloseWrite(up.conn)
			time.AfterFunc(relay.Rest, up.Abort)
			return nil
		case err != nil:
			return err
		}
	}
}

// flushing flushes after every write.
type flushing struct{ in *downstream.Stream }

func (f flushing) Write(b []byte) (int, error) {
	n, err := f.in.Write(b)
	if err != nil {
		return n, err
	}
	return n, f.in.Flush()
}
