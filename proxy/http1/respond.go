package http1

import (
	"errors"
	"io"

	"boxgate/internal/buffers"
	"boxgate/internal/h1"
	"boxgate/internal/memory"
	"boxgate/internal/socket"
	"boxgate/policy/name"
	"boxgate/proxy/exchange"
	"boxgate/proxy/header"
	"boxgate/proxy/origin"
	"boxgate/proxy/placeholder"
	"boxgate/proxy/problem"
)

// respond relays the response to the client. A nil error means that the connection can carry another request.
func (h *conn) respond(u *upload, upgrade bool) error {
	n, err := h.finalHead()
	if err != nil {
		return h.noResponse(u, err)
	}
	h.x.Event.Status = h.res.Status
	if h.ruling.Scrub != nil {
		if err := h.beginScrub(); err != nil {
			return h.unscrubbable(u, err)
		}
		defer h.endScrub()
	}
	if h.res.Status == 101 {
		if !upgrade {
			return h.noResponse(u, exchange.ErrProtocol)
		}
		if err := exchange.Upgraded(exchange.FieldValues(h.req.Fields), &h.res); err != nil {
			return h.noResponse(u, err)
		}
		return h.tunnel(n)
	}
	if h1.LogsIn(h.res.Fields) {
		h.bound = true
		h.s.Core.Origins.NoteLogin(h.s.Box.ID, h.s.Name, h.s.Port)
	}
	whole := u.finished()
	a := header.Answer{Minor: h.req.Minor, Close: h.req.Close || !whole || h.bound && h.res.Close}
	if h.res.Body.Chunked || h.res.Body.UntilClose || h.scrub.Recodes() {
		a.Chunked, a.Close = a.Minor > 0, a.Close || a.Minor == 0
	}
	h.out = header.AppendResponse(h.takeOut(), &h.res, a)
	h.up.In.Take(n)
	reuse := !h.res.Close
	err = h.relay(a.Chunked)
	if err != nil {
		u.stop(h)
		h.uploaded(u)
		h.drop()
		socket.Reset(h.s.Client) // a truncated body must not look complete
		h.x.Failed(err)
		return err
	}
	return h.settle(u, a, reuse && whole)
}

// uploaded notes the outcome of a stopped upload.
func (h *conn) uploaded(u *upload) {
	h.x.Event.BytesOut = u.sent
	if errors.Is(u.err, placeholder.ErrLate) {
		h.x.Leaked()
	}
}

// settle ends an exchange whose response is complete.
func (h *conn) settle(u *upload, a header.Answer, reuse bool) error {
	u.stop(h)
	h.uploaded(u)
	if !reuse || !h.up.Done(h.res.Body) {
		h.drop()
	}
	if a.Close || h.bound && h.up == nil {
		return errLinger
	}
	return nil
}

// finalHead reads response heads up to the final one, whose length it returns, and forwards the interim ones.
func (h *conn) finalHead() (int, error) {
	for range exchange.InterimMax {
		h.res.Reset()
		n, err := h.responseHead()
		if err != nil || !h.res.Interim() {
			return n, err
		}
		// 100 answers an expectation; HTTP/1.0 has no 1xx (RFC 9110, 15.2).
		if h.req.Minor > 0 && (h.res.Status != 100 || h.req.Continue) {
			h.out = header.AppendResponse(h.takeOut(), &h.res, header.Answer{Minor: 1})
			if _, err := h.s.Client.Write(h.out); err != nil {
				return 0, origin.ErrClientGone
			}
		}
		h.up.In.Take(n)
	}
	return 0, exchange.ErrProtocol
}

func (h *conn) responseHead() (int, error) {
	for {
		n, err := h.res.Parse(h.up.In.Bytes(), h.method)
		if err == nil {
			exchange.MaskHead(h.ruling.Scrub, &h.res)
			h.res.Fields = h.ruling.ResponseFields(h.res.Fields)
		}
		if !errors.Is(err, h1.ErrShort) {
			return n, err
		}
		if err := h.up.In.Fill(); err != nil {
			return 0, h1.NoEOF(err)
		}
	}
}

// noResponse ends an exchange without a final response.
func (h *conn) noResponse(u *upload, err error) error {
	running := u.done != nil
	u.stop(h)
	if h.up.Ended() && errors.Is(err, io.ErrUnexpectedEOF) {
		err = errEnded
	}
	h.drop()
	h.x.Event.BytesOut = u.sent
	var malformed *h1.Error
	var write *origin.WriteError
	switch {
	case running && errors.As(u.err, &malformed):
		return h.refuseBody(errors.New(malformed.What))
	case running && (errors.Is(u.err, placeholder.ErrLate) || errors.Is(u.err, placeholder.ErrCoded)):
		return h.refuseBody(u.err)
	case running && errors.Is(u.err, io.ErrUnexpectedEOF):
		h.x.Failed(origin.ErrClientGone)
		return errClose
	case running && u.err != nil && !errors.As(u.err, &write):
		h.x.Failed(u.err)
	}
	if errors.Is(err, errEnded) {
		return h.refuseUpstream(err)
	}
	reason := name.ReasonUpstreamHTTP
	if errors.Is(err, memory.ErrFull) {
		reason = name.ReasonLimit
	}
	return h.refuseUpstream(&problem.Upstream{Reason: reason, Name: h.ruling.Request.Name, Err: err})
}

// relay copies the response's body to the client, after the head in the output buffer. It flushes before it waits for
// more, so that streams pass without delay.
func (h *conn) relay(chunked bool) error {
	if h.scrub != nil {
		return h.relayScrubbed(chunked)
	}
	in := &h.up.In
	h.resBody.Begin(h.res.Body, true)
	untilClose := h.res.Body.UntilClose
	for {
		content, n, done, err := h.resBody.Next(in.Bytes())
		if err != nil {
			return err
		}
		if err := h.put(content, chunked); err != nil {
			return err
		}
		if done {
			if chunked {
				h.out = header.AppendLastChunk(h.out, h.ruling.ResponseFields(h.resBody.Trailers), nil)
			}
			in.Take(n)
			return h.flush()
		}
		in.Take(n)
		if n > 0 && len(in.Bytes()) > 0 {
			continue
		}
		if err := h.flush(); err != nil {
			return err
		}
		if err := in.Fill(); err != nil {
			if untilClose && errors.Is(err, io.EOF) {
				if chunked {
					h.out = header.AppendLastChunk(h.out, nil, nil)
				}
				return h.flush()
			}
			return h1.NoEOF(err)
		}
	}
}

// put appends content to the output buffer, or writes large content directly.
func (h *conn) put(content []byte, chunked bool) error {
	h.x.Event.BytesIn += int64(len(content))
	switch {
	case chunked:
		h.out = h1.AppendChunk(h.out, content)
	case len(h.out)+len(content) <= 2*buffers.OutSize:
		h.out = append(h.out, content...)
	default:
		if err := h.flush(); err != nil {
			return err
		}
		return h.write(content)
	}
	if len(h.out) >= buffers.OutFlush {
		return h.flush()
	}
	return nil
}

func (h *conn) flush() error {
	if len(h.out) == 0 {
		return nil
	}
	err := h.write(h.out)
	h.out = h.out[:0]
	return err
}

func (h *conn) write(b []byte) error {
	_, err := h.s.Client.Write(b)
	return err
}
