package http1

import (
	"errors"
	"io"

	"boxgate/internal/memory"
	"boxgate/internal/socket"
	"boxgate/policy/name"
	"boxgate/proxy/exchange"
	"boxgate/proxy/header"
	"boxgate/proxy/problem"
	"boxgate/relay"
	"boxgate/relay/h1"
	"boxgate/rule/placeholder"
)

// This file is the egress side ([relay.Side]) of a response.

// Received implements [relay.Receiver].
func (h *conn) Received(r *h1.Response) {
	h.x.Repaired(r.Repairs)
	exchange.MaskHead(h.decision.Scrub, r)
	r.Fields = h.decision.ResponseFields(r.Fields)
}

// Interim implements [relay.Receiver].
func (h *conn) Interim(*h1.Response) error { return h.Client.Interim(&h.Exchange, h) }

// Passes implements [relay.ResponseFields].
func (h *conn) Passes(f *h1.Field) (value []byte, ok bool) { return f.Value, header.PassesResponse(f) }

// AppendExtra implements [relay.ResponseFields].
func (h *conn) AppendExtra(dst []byte) []byte { return dst }

// Inspect implements [relay.Side]: it begins to scrub before any part of the response is forwarded.
func (h *conn) Inspect(r *h1.Response) (err error) {
	h.x.Event.Status = r.Status
	if h.decision.Scrub != nil {
		err = h.beginScrub()
	}
	h.Recoded = h.scrub.Recodes()
	return err
}

// Begin implements [relay.Side].
func (h *conn) Begin() (end bool) {
	if h1.LogsIn(h.Res.Fields) {
		h.bound = true
		h.s.Core.Origins.NoteLogin(h.s.Box.ID, h.s.Name, h.s.Port)
	}
	return h.bound && h.Res.Close
}

// Relay implements [relay.Side].
func (h *conn) Relay() error {
	if h.scrub != nil {
		return h.relayScrubbed()
	}
	return h.Body.Copy(h)
}

// Fill implements [relay.Sink].
func (h *conn) Fill(in *h1.Reader) error { return in.Fill() }

// AppendEnd implements [relay.Side].
func (h *conn) AppendEnd(dst []byte, trailers []h1.Field) []byte {
	return header.AppendLastChunk(dst, h.decision.ResponseFields(trailers), nil)
}

// Broken implements [relay.Side].
func (h *conn) Broken(err error) error {
	h.passed()
	h.Drop()
	socket.Reset(h.Conn)
	h.x.Failed(err)
	return err
}

// Settle implements [relay.Side].
func (h *conn) Settle(reuse bool) (end bool) {
	h.passed()
	if !reuse || !h.up.Done(h.Res.Body) {
		h.Drop()
	}
	return h.bound && h.up == nil
}

// passed records the forwarded bytes.
func (h *conn) passed() {
	h.x.Repaired(h.Body.Repairs)
	h.x.Event.BytesOut, h.x.Event.BytesIn = h.Upload.Content, h.Client.Passed
	if errors.Is(h.Upload.Err(), placeholder.ErrLate) {
		h.x.Leaked()
	}
}

// NoResponse implements [relay.Side].
func (h *conn) NoResponse(err error) error {
	if h.up.Ended() && errors.Is(err, io.ErrUnexpectedEOF) {
		err = errEnded
	}
	h.Drop()
	h.x.Event.BytesOut = h.Upload.Content
	fault := h.Upload.Fault()
	if leak := h.Upload.Err(); errors.Is(leak, placeholder.ErrLate) || errors.Is(leak, placeholder.ErrCoded) {
		fault = leak // even if the server just closed the connection, which stopped the upload
	}
	var malformed *h1.Error
	var known *problem.Upstream
	switch {
	case errors.As(fault, &malformed), errors.Is(fault, placeholder.ErrLate), errors.Is(fault, placeholder.ErrCoded):
		return h.refuseBody(fault)
	case errors.Is(fault, relay.ErrClientGone):
		h.x.Failed(fault)
		return errClose
	case fault != nil:
		h.x.Failed(fault)
	}
	if errors.Is(err, errEnded) || errors.As(err, &known) { // known: it cannot be scrubbed
		return h.refuseUpstream(err)
	}
	reason := name.ReasonUpstreamHTTP
	if errors.Is(err, memory.ErrFull) {
		reason = name.ReasonLimit
	}
	return h.refuseUpstream(&problem.Upstream{Reason: reason, Name: h.decision.Request.Name, Err: err})
}
