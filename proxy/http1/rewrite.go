package http1

import (
	"bytes"
	"errors"
	"io"
	"strconv"
	"time"

	"boxgate/internal/buffers"
	"boxgate/internal/h1"
	"boxgate/internal/memory"
	"boxgate/proxy/exchange"
	"boxgate/proxy/header"
	"boxgate/proxy/origin"
	"boxgate/proxy/placeholder"
	"boxgate/proxy/problem"
)

// This file changes more of a request than its header fields, where the rule of its host asks for that.

// rewrite changes the request. If it reports false the client has been answered, or has left, and the error says whether
// the connection can carry another request.
func (h *conn) rewrite(u *upload) (allowed bool, err error) {
	if err := h.detach(); err != nil {
		return false, err
	}
	w, read, refused := h.s.Rewrite(&h.ruling, h.outgoing(), u.watch.Decodes())
	u.rewriting = w
	if refused != nil {
		return false, h.reject(refused)
	}
	whole := false
	if read {
		if whole, err = h.readBody(u, w); err != nil {
			return false, h.unread(err)
		}
		w.Trailers = whole && h.req.Body.Chunked && len(u.body.Trailers) > 0
	}
	if refused := w.End(h.ctx, whole); refused != nil {
		return false, h.reject(refused)
	}
	if err := u.searchRead(w); err != nil {
		return false, h.refuseBody(err)
	}
	h.req.Path = []byte(w.Target)
	placeholder.SwapFields(h.req.Fields, h.ruling.Swaps) // the head was parsed again
	if w.Whole && !w.Trailers {
		h.reframe(len(w.Body))
	}
	h.x.Rewritten(&h.ruling)
	return true, nil
}

// detach copies the head, so that it stays while the body is read.
func (h *conn) detach() error {
	head := bytes.Clone(h.in.Bytes()[:h.head])
	h.req.Reset()
	if _, err := h.req.Parse(head); err != nil { // it was parsed before
		return h.refuseHead(err)
	}
	if h.req.Hostless {
		h.req.Host = hostOf(h.s, &h.req)
	}
	h.narrow()
	return nil
}

// outgoing returns the request as it is going to be forwarded.
func (h *conn) outgoing() exchange.Outgoing {
	r := &h.req
	out := exchange.Outgoing{Method: h.method, Authority: string(r.Host), Target: string(r.Path), Length: r.Body.Length}
	if r.Body.Chunked {
		out.Length = -1
	}
	for i := range r.Fields {
		if f := &r.Fields[i]; f.Kind == h1.Other && !r.Named(f.Name) && !header.IsSet(f.Name, h.ruling.Set) {
			out.Fields = append(out.Fields, exchange.Field{Name: string(f.Name), Value: string(f.Value)})
		}
	}
	return out
}

// reject answers a request that was refused after it was judged.
func (h *conn) reject(p *problem.Problem) error {
	h.x.Rejected(&h.ruling)
	return h.refuse(p)
}

// readBody reads the body, and reports whether all of it: it ends once there is more than is changed.
func (h *conn) readBody(u *upload, w *exchange.Rewriting) (whole bool, err error) {
	h.in.Take(h.head)
	h.head = 0
	if err := h.askForBody(); err != nil {
		return false, err
	}
	h.deadline = time.Time{}
	_ = h.s.Client.SetReadDeadline(time.Time{}) // as for uploads
	for {
		content, n, done, err := u.body.Next(h.in.Bytes())
		if err != nil {
			return false, err
		}
		more, err := w.Add(content)
		if err != nil {
			return false, err
		}
		if done {
			err = u.keepTrailers()
		}
		h.in.Take(n)
		if done || err != nil || !more {
			return done && more, err
		}
		if n == 0 || len(h.in.Bytes()) == 0 {
			if err := h.in.Fill(); err != nil {
				return false, h1.NoEOF(err)
			}
		}
	}
}

// askForBody tells a client that waits for a 100 to send the body. The server is not asked: it gets the body at once.
func (h *conn) askForBody() error {
	if !h.req.Continue {
		return nil
	}
	h.req.Continue = false
	kept := h.req.Fields[:0]
	for _, f := range h.req.Fields {
		if f.Kind != h1.Expect {
			kept = append(kept, f)
		}
	}
	h.req.Fields = kept
	if _, err := h.s.Client.Write([]byte("HTTP/1.1 100 Continue\r\n\r\n")); err != nil {
		return origin.ErrClientGone
	}
	return nil
}

// keepTrailers copies the trailers of a body that was read, which must have no placeholders.
func (u *upload) keepTrailers() error {
	for i := range u.body.Trailers {
		f := &u.body.Trailers[i]
		f.Name, f.Value = bytes.Clone(f.Name), bytes.Clone(f.Value)
	}
	return placeholder.InTrailer(u.body.Trailers)
}

// unread ends a request whose body could not be read.
func (h *conn) unread(err error) error {
	switch {
	case errors.Is(err, memory.ErrFull):
		return h.refuse(exchange.NoMemory())
	case errors.Is(err, origin.ErrClientGone), errors.Is(err, io.ErrUnexpectedEOF):
		h.x.Failed(origin.ErrClientGone)
		return errClose
	}
	return h.refuseBody(err)
}

// searchRead searches what was read of a body for placeholders, unless they were replaced.
func (u *upload) searchRead(w *exchange.Rewriting) error {
	if w.Changed || len(w.Body) == 0 {
		return nil
	}
	err := u.watch.Look(w.Body)
	if err == nil && w.Whole {
		err = u.watch.End()
	}
	return err
}

// reframe gives a body that is known as a whole its length.
func (h *conn) reframe(n int) {
	r := &h.req
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

// resume appends what was read of a body to the head, and then what has arrived of the rest; it leaves to run what is more than
// is written before the response is read.
func (u *upload) resume(in *h1.Reader, out []byte, chunked bool) ([]byte, bool, error) {
	w := u.rewriting
	if w == nil || len(w.Body) == 0 && !w.Whole {
		return u.gather(in, out)
	}
	u.kept, u.chunks = w.Body, chunked
	out, whole := u.unload(out)
	if whole || len(u.kept) > 0 {
		return out, whole, nil
	}
	return u.gather(in, out)
}

// unload appends of what was read of a body as much as is written at a time, and reports whether the body ends there.
func (u *upload) unload(out []byte) ([]byte, bool) {
	part := u.kept[:min(len(u.kept), max(0, buffers.OutFlush-len(out)))]
	u.kept = u.kept[len(part):]
	u.sent += int64(len(part))
	if u.chunks {
		out = h1.AppendChunk(out, part)
	} else {
		out = append(out, part...)
	}
	if len(u.kept) > 0 || !u.rewriting.Whole {
		return out, false
	}
	if u.chunks {
		out = header.AppendLastChunk(out, u.body.Trailers, u.set)
	}
	return out, true
}
