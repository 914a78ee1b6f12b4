package http2

import (
	"errors"
	"io"

	"boxgate/internal/memory"
	"boxgate/proxy/exchange"
	"boxgate/proxy/header"
	"boxgate/proxy/problem"
	"boxgate/rule/placeholder"
)

// This file changes parts of a request other than its header fields, where the rule of its host requires it.

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
		out.Method, out.Length = "GET", 0
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
