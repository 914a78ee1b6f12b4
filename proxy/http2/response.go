package http2

import (
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"

	"golang.org/x/net/http2/hpack"

	"boxgate/internal/memory"
	"boxgate/proxy/exchange"
	"boxgate/proxy/header"
	"boxgate/proxy/problem"
	"boxgate/proxy/scrub"
	"boxgate/relay/h2/downstream"
	"boxgate/relay/h2/upstream"
	"boxgate/rule/placeholder"
)

// response writes the response of a stream. Its head is sent with the first content, by Flush or at the end.
type response struct {
	s        *downstream.Stream
	fields   []hpack.HeaderField // of the final head, until it is sent
	trailers []hpack.HeaderField
	status   int   // of the final head; 0: not set
	sent     bool  // the final head
	empty    bool  // no content
	left     int64 // content that may still be written; -1: unlimited
	now      bool  // its end must not be delayed
}

var (
	errTooLong = errors.New("the response is longer than its Content-Length")
	errEmpty   = errors.New("the response has no content")
)

// interim sends a 1xx head, unless there is a final one.
func (w *response) interim(status int, fields []hpack.HeaderField) {
	if w.status == 0 && w.s.WriteHeader(status, fields, false) == nil {
		_ = w.s.Flush()
	}
}

// begin sets the final head. Only the first one counts.
func (w *response) begin(status int, fields []hpack.HeaderField) {
	if w.status != 0 {
		return
	}
	w.status, w.fields, w.left = status, fields, -1
	w.empty = w.s.Method == http.MethodHead || status == http.StatusNoContent || status == http.StatusNotModified
	for i := range fields {
		if fields[i].Name == "content-length" {
			if n, err := strconv.ParseUint(fields[i].Value, 10, 63); err == nil {
				w.left = int64(n)
			}
		}
	}
}

// Write sends content.
func (w *response) Write(p []byte) (int, error) {
	switch {
	case w.s.Method == http.MethodHead:
		return len(p), nil
	case w.empty && len(p) > 0:
		return 0, errEmpty
	case w.left >= 0 && int64(len(p)) > w.left:
		return 0, errTooLong
	case w.left >= 0:
		w.left -= int64(len(p))
	}
	if err := w.sendHead(false); err != nil || len(p) == 0 {
		return 0, err
	}
	return w.s.Write(p)
}

func (w *response) sendHead(end bool) error {
	if w.sent {
		return nil
	}
	w.sent = true
	err := w.s.WriteHeader(w.status, w.fields, end)
	w.fields = nil
	return err
}

// writeNow sends the head, if not yet sent, and content. If that would block or is not allowed, it has no effect and returns
// false.
func (w *response) writeNow(p []byte) bool {
	if w.empty || w.left >= 0 && int64(len(p)) > w.left {
		return false
	}
	status := w.status
	if w.sent {
		status = 0
	}
	if !w.s.WriteNow(status, w.fields, p) {
		return false
	}
	if w.sent, w.fields = true, nil; w.left >= 0 {
		w.left -= int64(len(p))
	}
	return true
}

// Flush sends the buffered data.
func (w *response) Flush() error {
	if err := w.sendHead(w.empty); err != nil {
		return err
	}
	return w.s.Flush()
}

// endResponse ends the response. Without a head, it resets the stream.
func (w *response) endResponse() {
	if w.status == 0 {
		return
	}
	if w.now {
		w.endNow()
		return
	}
	if !w.sent && (w.empty || len(w.trailers) == 0) {
		_ = w.sendHead(true) // the client may have left
		return
	}
	if w.sendHead(false) == nil {
		_ = w.s.CloseWrite(w.trailers) // likewise
	}
}

// closable reports whether the response, with all content written, can be ended without blocking.
func (w *response) closable() bool {
	if !w.sent && !w.empty && len(w.trailers) > 0 && !w.writeNow(nil) {
		return false
	}
	return w.sent && len(w.trailers) == 0 || w.s.Ready()
}

// endNow is end for a response that is closable.
func (w *response) endNow() {
	if w.sent {
		w.s.CloseNow(0, w.trailers)
	} else {
		w.s.CloseNow(w.status, w.fields)
	}
}

// http2Sink is the client of an HTTP/2 response.
type http2Sink struct{ st *stream }

func (s http2Sink) Write(p []byte) (int, error) {
	s.st.x.Event.BytesIn += int64(len(p))
	s.st.x.Download(p)
	return s.st.w.Write(p)
}

func (s http2Sink) Flush() error { return s.st.w.Flush() }

// http2Body is the body of a response on an HTTP/2 connection.
type http2Body struct{ *upstream.Stream }

// Read calls wait before it blocks on the server.
func (b http2Body) Read(p []byte, wait func() error) (int, error) {
	if n, err := b.ReadArrived(p); n > 0 || err != nil {
		return n, err
	}
	if err := wait(); err != nil {
		return 0, err
	}
	return b.Stream.Read(p)
}

// scrubbable inspects the head of a final response to an HTTP/2 client, and reports whether it may be relayed; if not, it has
// answered the client. The scrubbing ends with the stream.
func (st *stream) scrubbable(status int, bodiless bool, field func(string) []string) bool {
	err := st.beginScrub(status, bodiless, field)
	if err != nil {
		st.refuseUpstream(err)
	}
	return err == nil
}

// beginScrub starts scrubbing a response if the decision requires it. An error refuses the response.
func (st *stream) beginScrub(status int, bodiless bool, field func(string) []string) (err error) {
	st.x.Answered(status, bodiless, field)
	if st.decision.Scrub != nil {
		st.scrub, err = st.s.NewScrubbing(&st.decision, status, bodiless, field)
	}
	return err
}

// answer sets the head of the response, masked.
func (st *stream) answer(status int, fields []hpack.HeaderField) {
	if st.scrub != nil {
		exchange.MaskHTTP2(st.scrub.Set, fields)
		if st.scrub.Resized {
			fields = slices.DeleteFunc(fields, func(f hpack.HeaderField) bool { return f.Name == "content-length" })
		}
	}
	fields = st.decision.ResponseHTTP2(fields)
	if st.x.Captured() {
		st.x.CaptureResponse(version, status, exchange.CapturedHTTP2(fields))
	}
	st.w.begin(status, fields)
}

// interim sends a 1xx head, masked.
func (st *stream) interim(status int, fields []hpack.HeaderField) {
	exchange.MaskHTTP2(st.decision.Scrub, fields)
	st.w.interim(status, st.decision.ResponseHTTP2(fields))
}

// setTrailers sets the trailers of the response, masked.
func (st *stream) setTrailers(fields []hpack.HeaderField) {
	fields = header.PassTrailers(fields, nil)
	exchange.MaskHTTP2(st.decision.Scrub, fields)
	st.w.trailers = st.decision.ResponseHTTP2(fields)
	if st.x.Captured() {
		st.x.CaptureTrailers(exchange.CapturedHTTP2(st.w.trailers))
	}
}

// relayScrubbed relays a body that is scrubbed.
func (st *stream) relayScrubbed(src scrub.Source) error {
	return st.scrub.Relay(st.ctx, http2Sink{st}, src)
}

// bodiless reports whether a response has no body.
func (st *stream) bodiless(h *upstream.Head) bool {
	return h.Length == 0 || h.Length < 0 && h.End || st.client.Method == http.MethodHead ||
		h.Status == http.StatusNoContent || h.Status == http.StatusNotModified
}

// This part changes parts of a request other than its header fields, where the rule of its host requires it.

// rewrite changes the request. If it returns false, the client was answered.
func (st *stream) rewrite() bool {
	buffered := st.rewriting.Buffered()
	w, read, refused := st.s.Rewrite(st.rewriting, &st.decision, st.outgoing(), st.watch.Decodes())
	st.rewriting = w
	if refused != nil {
		st.reject(refused)
		return false
	}
	whole := buffered && w.Whole
	if read {
		var err error
		if whole, err = st.readBody(w); err != nil {
			st.unread(err)
			return false
		}
	}
	w.Trailers = whole && st.length < 0 && len(st.client.Trailers()) > 0
	if refused := w.End(st.ctx, whole); refused != nil {
		st.reject(refused)
		return false
	}
	if read || buffered {
		if err := st.keepBody(w); err != nil {
			st.refuseUpstream(err)
			return false
		}
	}
	st.target = w.Target
	if st.decision.Rewrites() { // otherwise they are replaced already
		placeholder.SwapHTTP2(st.fields, st.decision.Swaps)
	}
	st.x.Rewritten(&st.decision)
	if refused := st.x.Reserve(st.ctx, &st.decision, w); refused != nil {
		st.reject(refused)
		return false
	}
	return true
}

// readMessages reads the messages in the body that the decision lacks. If it returns false, the client was answered.
func (st *stream) readMessages(m *exchange.Message) bool {
	if st.length != 0 && !st.isWebSocket() && !st.rewriting.Buffered() {
		w := st.s.Buffer()
		st.rewriting = w
		var err error
		if w.Whole, err = st.readBody(w); err != nil {
			st.unread(err)
			return false
		}
	}
	if refused := st.s.ReadMessages(st.ctx, m, &st.decision, st.rewriting); refused != nil {
		st.refuse(refused)
		return false
	}
	return true
}

// outgoing returns the request in its forwarded form.
func (st *stream) outgoing() exchange.Outgoing {
	h := &st.client.Head
	out := exchange.Outgoing{Method: h.Method, Authority: h.Authority, Target: st.target, Length: st.length}
	if st.isWebSocket() { // the messages are not a body
		out.Method, out.Length, out.Upgrades = "GET", 0, true
	}
	for _, f := range header.PassRequest(nil, st.fields, st.decision.Set, out.Length != 0) {
		out.Fields = append(out.Fields, exchange.Field{Name: f.Name, Value: f.Value})
	}
	return out
}

// reject answers a request that was refused after it was judged.
func (st *stream) reject(p *problem.Problem) {
	st.x.Rejected(&st.decision)
	st.refuse(p)
}

// readBody reads the body up to the maximum that is changed, and reports whether it is complete.
func (st *stream) readBody(w *exchange.Rewriting) (whole bool, err error) {
	buf := bodyBuffers.Get()
	defer bodyBuffers.Put(buf)
	for {
		n, err := st.Read(*buf)
		st.uploaded.Add(int64(n))
		more, full := w.Add((*buf)[:n])
		switch {
		case full != nil:
			return false, full
		case errors.Is(err, io.EOF):
			st.expects = false // the server gets the body immediately
			return more, nil
		case err != nil:
			return false, err
		case !more:
			st.expects = false
			return false, nil
		}
	}
}

// unread ends a request whose body could not be read.
func (st *stream) unread(err error) {
	if st.ctx.Err() != nil || !errors.Is(err, memory.ErrFull) {
		st.x.Failed(err)
		panic(errAbort)
	}
	st.refuse(exchange.NoMemory())
}

// keepBody makes the buffered body the beginning of the forwarded one, after searching it for placeholders.
func (st *stream) keepBody(w *exchange.Rewriting) error {
	if !w.Changed && len(w.Body) > 0 {
		if err := st.watched(w.Body); err != nil {
			return err
		}
	}
	if !w.Whole {
		st.early.source = &uploadSource{st: st, kept: w.Body, gone: true}
		return nil
	}
	if err := st.checkEnd(); err != nil {
		return err
	}
	if !w.Trailers {
		st.length = int64(len(w.Body))
	}
	if st.length != 0 {
		st.early.source = &uploadSource{st: st, kept: w.Body, whole: true, watched: true}
	}
	return nil
}

// watchBody sets the searcher of the body for placeholders.
func (st *stream) watchBody() (refused *problem.Problem) {
	if st.length == 0 || st.isWebSocket() || !st.decision.Policy.HasPlaceholders() {
		return nil
	}
	st.watch, refused = st.s.Watch(&st.decision, exchange.HTTP2Values(st.fields)("content-encoding"))
	return refused
}

// isCoded reports whether the body must be decoded for the search for placeholders, which may block.
func (st *stream) isCoded() bool {
	return st.length != 0 && st.decision.Policy.HasPlaceholders() && len(exchange.HTTP2Values(st.fields)("content-encoding")) > 0
}
