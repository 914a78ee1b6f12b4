package http1

import (
	"time"

	"boxgate/proxy/exchange"
	"boxgate/proxy/header"
	"boxgate/proxy/problem"
	"boxgate/proxy/recovery"
	"boxgate/relay"
	"boxgate/relay/h1"
	"boxgate/rule"
	"boxgate/rule/placeholder"
)

// body is the body of a request ([relay.Source]), searched for placeholders.
type body struct {
	relay.Body
	h     *conn
	set   []rule.Field // trailers that repeat one of these are dropped
	watch placeholder.Watch

	rewriting *exchange.Rewriting // nil unless the request was changed
	kept      []byte              // the part of the body that was read for the rewriting and is not sent yet
	chunks    bool                // it is sent in chunks
}

// resetBody begins the body of the request.
func (h *conn) resetBody() {
	h.body = body{Body: h.body.Body, h: h}
	h.body.Begin(&h.In, h.Req.Body, &h.body)
}

// beginBody prepares to read the body, and to search it.
func (h *conn) beginBody() (refused *problem.Problem) {
	if !h.body.rewriting.Buffered() {
		h.resetBody()
	}
	h.Upload.Reset()
	if h.Req.Body.Empty() || !h.decision.Policy.HasPlaceholders() {
		return nil
	}
	h.body.watch, refused = h.s.Watch(&h.decision, relay.Values(h.Req.Fields, "content-encoding"))
	return refused
}

// close releases the resources of the body. Its upload must have stopped.
func (b *body) close() {
	b.watch.Close()
	b.rewriting.Close()
	b.rewriting = nil
}

// Gather implements [relay.Source].
func (b *body) Gather(head []byte) (grown []byte, content int, whole bool, err error) {
	if grown, content, whole, err = b.resume(head); err == nil && !whole {
		b.h.Unlimited() // a body may take its time; the box's connection limit bounds what waits
	}
	return grown, content, whole, err
}

// More implements [relay.Source].
func (b *body) More(out *relay.Output) (framed []byte, content int, last bool, err error) {
	if len(b.kept) == 0 {
		return b.Body.More(out)
	}
	out.Buf, content, last = b.unload(out.Take())
	return out.Buf, content, last, nil
}

// Interrupt implements [relay.Source].
func (b *body) Interrupt() { _ = b.h.Conn.SetReadDeadline(time.Unix(1, 0)) }

// Panicked implements [relay.Source].
func (b *body) Panicked(v any) { recovery.Log(b.h.s.Core.Log, "panic in an exchange", b.h.s.Box.ID, v) }

// Look implements [relay.Inspector].
func (b *body) Look(content []byte) error { return b.watch.Look(content) }

// End implements [relay.Inspector].
func (b *body) End(trailers []h1.Field) error {
	if err := b.watch.End(); err != nil {
		return err
	}
	return placeholder.InTrailer(trailers)
}

// AppendLast implements [relay.Inspector].
func (b *body) AppendLast(out []byte, trailers []h1.Field) []byte {
	return header.AppendLastChunk(out, trailers, b.set)
}

// Await implements [relay.Inspector].
func (b *body) Await() {}
