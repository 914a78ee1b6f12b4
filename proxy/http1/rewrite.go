package http1

import (
	"bytes"
	"errors"
	"io"
	"strconv"

	"boxgate/internal/buffers"
	"boxgate/internal/memory"
	"boxgate/proxy/exchange"
	"boxgate/proxy/header"
	"boxgate/proxy/problem"
	"boxgate/relay"
	"boxgate/relay/h1"
	"boxgate/rule/placeholder"
)

// This part changes parts of a request other than its header fields, where the rule of its host requires it.

// rewrite changes the request. If it returns false, the client was answered or has disconnected, and the error reports
// whether the connection can carry another request.
func (h *conn) rewrite(b *body) (allowed bool, err error) {
	buffered := b.rewriting.Buffered()
	if !buffered {
		if err := h.detach(); err != nil {
			return false, err
		}
	}
	w, read, refused := h.s.Rewrite(b.rewriting, &h.decision, h.outgoing(), b.watch.Decodes())
	b.rewriting = w
	if refused != nil {
		return false, h.reject(refused)
	}
	whole := buffered && w.Whole
	if read {
		if whole, err = h.readBody(b, w); err != nil {
			return false, h.unread(err)
		}
	}
	w.Trailers = whole && h.Req.Body.Chunked && len(b.Trailers) > 0
	if refused := w.End(h.ctx, whole); refused != nil {
		return false, h.reject(refused)
	}
	if err := b.searchRead(w); err != nil {
		return false, h.refuseBody(err)
	}
	h.Req.Path = []byte(w.Target)
	placeholder.SwapFields(h.Req.Fields, h.decision.Swaps) // the head was parsed again
	if w.Whole && !w.Trailers {
		h.reframe(len(w.Body))
	}
	h.x.Rewritten(&h.decision)
	if refused := h.x.Reserve(h.ctx, &h.decision, w); refused != nil {
		return false, h.reject(refused)
	}
	return true, nil
}

// readMessages reads the messages in the body that the decision lacks. If refused is set, the client was answered or has
// disconnected, and the error reports whether the connection can carry another request.
func (h *conn) readMessages(m *exchange.Message) (refused bool, err error) {
	if !h.Req.Body.Empty() && !h.body.rewriting.Buffered() {
		if err := h.detach(); err != nil {
			return true, err
		}
		h.resetBody()
		w := h.s.Buffer()
		h.body.rewriting = w
		if w.Whole, err = h.readBody(&h.body, w); err != nil {
			return true, h.unread(err)
		}
	}
	if p := h.s.ReadMessages(h.ctx, m, &h.decision, h.body.rewriting); p != nil {
		return true, h.refuse(p)
	}
	return false, nil
}

// detach copies the head, so that it survives reading the body.
func (h *conn) detach() error {
	head := bytes.Clone(h.In.Bytes()[:h.Head])
	h.Req.Reset()
	if _, err := h.Req.Parse(head); err != nil { // it was parsed before
		return h.refuseHead(err)
	}
	if h.Req.Hostless {
		h.Req.Host = hostOf(h.s, &h.Req)
	}
	h.narrow()
	return nil
}

// outgoing returns the request in its forwarded form.
func (h *conn) outgoing() exchange.Outgoing {
	r := &h.Req
	out := exchange.Outgoing{Method: h.Method, Authority: string(r.Host), Target: string(r.Path), Length: r.Body.Length, Upgrades: h.switches}
	if r.Body.Chunked {
		out.Length = -1
	}
	for i := range r.Fields {
		if f := &r.Fields[i]; f.Kind == h1.Other && !r.Named(f.Name) && !header.IsSet(f.Name, h.decision.Set) {
			out.Fields = append(out.Fields, exchange.Field{Name: string(f.Name), Value: string(f.Value)})
		}
	}
	return out
}

// reject answers a request that was refused after it was judged.
func (h *conn) reject(p *problem.Problem) error {
	h.x.Rejected(&h.decision)
	return h.refuse(p)
}

// readBody reads the body up to the maximum that is changed, and reports whether it is complete.
func (h *conn) readBody(b *body, w *exchange.Rewriting) (whole bool, err error) {
	h.In.Take(h.Head)
	h.Head = 0
	if err := h.askForBody(); err != nil {
		return false, err
	}
	h.Unlimited() // as for uploads
	for {
		content, n, done, err := b.Next(h.In.Bytes())
		if err != nil {
			return false, err
		}
		h.x.CaptureUpload(content)
		more, err := w.Add(content)
		if err != nil {
			return false, err
		}
		if done {
			err = b.keepTrailers()
		}
		h.In.Take(n)
		if done || err != nil || !more {
			return done && more, err
		}
		if n == 0 || len(h.In.Bytes()) == 0 {
			if err := h.In.Fill(); err != nil {
				return false, h1.NoEOF(err)
			}
		}
	}
}

// askForBody sends 100 Continue to a client that waits for it. The server is not asked: it gets the body immediately.
func (h *conn) askForBody() error {
	if !h.Req.Continue {
		return nil
	}
	h.Req.Continue = false
	kept := h.Req.Fields[:0]
	for _, f := range h.Req.Fields {
		if f.Kind != h1.Expect {
			kept = append(kept, f)
		}
	}
	h.Req.Fields = kept
	if _, err := h.Conn.Write([]byte("HTTP/1.1 100 Continue\r\n\r\n")); err != nil {
		return relay.ErrClientGone
	}
	return nil
}

// keepTrailers copies the trailers of a body that was read. They must not contain placeholders.
func (b *body) keepTrailers() error {
	for i := range b.Trailers {
		f := &b.Trailers[i]
		f.Name, f.Value = bytes.Clone(f.Name), bytes.Clone(f.Value)
	}
	return placeholder.InTrailer(b.Trailers)
}

// unread ends a request whose body could not be read.
func (h *conn) unread(err error) error {
	switch {
	case errors.Is(err, memory.ErrFull):
		return h.refuse(exchange.NoMemory())
	case errors.Is(err, relay.ErrClientGone), errors.Is(err, io.ErrUnexpectedEOF):
		h.x.Failed(relay.ErrClientGone)
		return errClose
	}
	return h.refuseBody(err)
}

// searchRead searches the buffered body for placeholders, unless they were replaced.
func (b *body) searchRead(w *exchange.Rewriting) error {
	if w.Changed || len(w.Body) == 0 {
		return nil
	}
	err := b.watch.Look(w.Body)
	if err == nil && w.Whole {
		err = b.watch.End()
	}
	return err
}

// reframe sets the length of a body that is complete.
func (h *conn) reframe(n int) {
	r := &h.Req
	r.Body = h1.Framing{Length: int64(n)}
	length := []byte(strconv.Itoa(n))
	for i := range r.Fields {
		if f := &r.Fields[i]; f.Kind == h1.ContentLength {
			f.Value = length
			return
		}
	}
	r.Fields = append(r.Fields, h1.NewField("Content-Length", string(length)))
}

// resume appends the buffered body to the head, and then the arrived data of the rest. It leaves to More all data beyond
// that written before the response is read.
func (b *body) resume(head []byte) (grown []byte, content int, whole bool, err error) {
	w := b.rewriting
	if w == nil || len(w.Body) == 0 && !w.Whole {
		return b.Body.Gather(head)
	}
	b.kept = w.Body
	grown, content, whole = b.unload(head)
	if whole || len(b.kept) > 0 {
		return grown, content, whole, nil
	}
	grown, rest, whole, err := b.Body.Gather(grown)
	return grown, content + rest, whole, err
}

// unload appends the part of the buffered body that is written at a time. It reports the part's length, and whether the
// body ends with it.
func (b *body) unload(out []byte) (grown []byte, content int, whole bool) {
	part := b.kept[:min(len(b.kept), max(0, buffers.OutFlush-len(out)))]
	b.kept = b.kept[len(part):]
	if b.chunks {
		out = h1.AppendChunk(out, part)
	} else {
		out = append(out, part...)
	}
	if len(b.kept) > 0 || !b.rewriting.Whole {
		return out, len(part), false
	}
	if b.chunks {
		out = header.AppendLastChunk(out, b.Trailers, b.set)
	}
	return out, len(part), true
}

// sink is the client of a scrubbed response.
type sink struct{ *conn }

func (s sink) Write(p []byte) (int, error) { return len(p), s.Put(p) }

// beginScrub inspects the final head before any part of it is forwarded.
func (h *conn) beginScrub() (err error) {
	h.scrub, err = h.s.NewScrubbing(&h.decision, h.Res.Status, h.Res.Body.Empty(), relay.ValuesIn(h.Res.Fields))
	if err == nil && h.scrub.Resized {
		exchange.WithoutLength(&h.Res)
	}
	return err
}

func (h *conn) endScrub() {
	h.scrub.End()
	h.scrub = nil
}

// relayScrubbed is [conn.Relay] for bodies that are scrubbed.
func (h *conn) relayScrubbed() error {
	if err := h.scrub.Relay(h.ctx, sink{h}, &h.Body); err != nil {
		return err
	}
	exchange.MaskFields(h.scrub.Set, h.Body.Trailers)
	return nil
}
