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
)

// resetCut is the code with which a request ends that is cut.
const resetCut = http2.ErrCodeCancel

// streamBody is the body of a request over HTTP/2.
type streamBody struct {
	in      *downstream.Stream
	chunked bool
}

// gather appends the body if all of it has arrived and it is small.
func (b *streamBody) gather(out []byte) (grown []byte, n int, last bool, err error) {
	if n, whole := b.in.Arrived(); !whole || n > buffers.OutFlush {
		return out, 0, false, nil
	}
	for !last && err == nil {
		taken := 0
		out, taken, last, err = b.more(out)
		n += taken
	}
	return out, n, last, err
}

// more implements [source].
func (b *streamBody) more(out []byte) (grown []byte, n int, last bool, err error) {
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

// interrupt implements [source].
func (b *streamBody) interrupt() { b.in.CloseRead() }

var bodyBuffers = buffers.NewPool(16 << 10)

// respond relays the response to the client.
func (s *stream) respond(upgrade bool) {
	n, err := s.finalHead()
	if err == nil && s.res.Status == http.StatusSwitchingProtocols {
		if err = s.upgraded(upgrade); err == nil {
			s.tunnel(n)
			return
		}
	}
	if err == nil && s.in.Protocol != "" && s.res.Status < 300 {
		err = errProtocol // the client would take it for the handshake's success
	}
	if err != nil {
		_ = s.noResponse(err)
		return
	}
	s.answered = true
	s.begun.Store(true)
	s.in.Limit(0, s.g.BodyTimeout) // the box has answered: the two may talk to each other
	s.visit.event.Status = s.res.Status
	err = s.in.WriteHeader(s.res.Status, s.headFields(&s.res), s.res.Body.Empty())
	s.up.in.Take(n)
	if err == nil && !s.res.Body.Empty() {
		err = s.relay()
	}
	if err != nil {
		s.failed(err)
		return
	}
	reuse := s.upload.finished() && !s.res.Close && !h1.LogsIn(s.res.Fields)
	s.upload.stop(s.up)
	s.received()
	// Where the client has gone just now, the connection is perhaps ended any moment: nobody else may get it.
	if reuse && len(s.up.in.Bytes()) == 0 && s.in.Await(nil) {
		s.keepUpstream()
	}
}

// failed ends a response that is not whole: the stream is reset.
func (s *stream) failed(err error) {
	s.upload.stop(s.up)
	s.received()
	switch {
	case s.wasCut():
		err = errCut
	case s.ctx.Err() != nil:
		err = errGone
	}
	s.visit.event.Error = err.Error()
}

// interim implements [side].
func (s *stream) interim(r *h1.Response) error {
	if err := s.in.WriteHeader(r.Status, s.headFields(r), false); err != nil {
		return err
	}
	return s.in.Flush()
}

// relay copies the response's body to the client. It flushes before it waits for more.
func (s *stream) relay() error {
	in := &s.up.in
	s.resBody.Begin(s.res.Body, true)
	for {
		content, n, done, err := s.resBody.Next(in.Bytes())
		if err != nil {
			return err
		}
		if len(content) > 0 {
			sent, err := s.in.Write(content)
			s.visit.event.BytesOut += int64(sent)
			if err != nil {
				return err
			}
		}
		if done {
			err = s.in.CloseWrite(s.trailers())
			in.Take(n)
			return err
		}
		in.Take(n)
		if n > 0 && len(in.Bytes()) > 0 {
			continue
		}
		if err := s.in.Flush(); err != nil {
			return err
		}
		s.g.leave(&s.visit)
		err = in.Fill()
		s.g.moved(&s.visit, false)
		if err != nil {
			if s.res.Body.UntilClose && errors.Is(err, io.EOF) {
				return s.in.CloseWrite(nil)
			}
			return h1.NoEOF(err)
		}
	}
}

// headFields returns the fields of a response for the client, until the next call: without the length of the content that a 304 does
// not have, for which Go's client waits over HTTP/2 (net/http: missingBody).
func (s *stream) headFields(r *h1.Response) []hpack.HeaderField {
	list := s.answer[:0]
	for i := range r.Fields {
		f := &r.Fields[i]
		if value, ok := shown(r, f, r.Body.Chunked); ok && (f.Kind != h1.ContentLength || r.Status != http.StatusNotModified) {
			list = append(list, field(f.Name, value))
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
	for i := range s.resBody.Trailers {
		if f := &s.resBody.Trailers[i]; !f.Forbidden() && !withheld(f.Name) {
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

// tunnel accepts a WebSocket and relays bytes both ways, as [client.tunnel] does.
func (s *stream) tunnel(n int) {
	s.answered, s.shared = true, true
	s.begun.Store(true)
	s.in.Limit(0, 0)
	s.visit.event.Status = http.StatusOK
	fields := s.headFields(&s.res)
	kept := fields[:0]
	for _, f := range fields {
		if f.Name != "sec-websocket-accept" {
			kept = append(kept, f)
		}
	}
	err := s.in.WriteHeader(http.StatusOK, kept, false)
	s.up.in.Take(n)
	s.giveOut()
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
		err := errGone
		defer func() {
			if recover() != nil || err != nil {
				up.abort()
			}
			ended <- err
		}()
		err = s.fromClient(up, &received)
	}()
	err := pass(flushing{s.in}, s.up.conn, &s.up.in, &sent, func() { s.g.moved(&s.visit, false) })
	if err == nil {
		_ = s.in.CloseWrite(nil) // the client may have gone
		limit := time.AfterFunc(rest, s.in.CloseRead)
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
			time.AfterFunc(rest, up.abort)
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
