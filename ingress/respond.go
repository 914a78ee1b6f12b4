package ingress

import (
	"errors"
	"io"
	"net/http"

	"boxgate/internal/buffers"
	"boxgate/internal/h1"
)

// respond relays the response to the client. A nil error means that the connection can carry another request.
func (c *client) respond(upgrade bool) error {
	n, err := c.finalHead()
	if err == nil && c.res.Status == http.StatusSwitchingProtocols {
		if err = c.upgraded(upgrade); err == nil {
			return c.tunnel(n)
		}
	}
	if err != nil {
		return c.noResponse(err)
	}
	c.bound = c.bound || h1.LogsIn(c.res.Fields)
	whole := c.upload.finished()
	a := framed{minor: c.req.Minor, hsts: c.hsts(), close: c.req.Close || !whole || c.bound && (c.res.Close || c.up.raw == nil) || c.g.draining.Err() != nil}
	if c.res.Body.Chunked || c.res.Body.UntilClose {
		a.chunked, a.close = a.minor > 0, a.close || a.minor == 0
	}
	c.answered = true
	c.begun.Store(true)
	if c.upload.done != nil {
		c.body.answered()
	}
	c.visit.event.Status = c.res.Status
	c.out = appendResponse(c.takeOut(), &c.res, a)
	c.up.in.Take(n)
	reuse := whole && !c.res.Close
	if err := c.relay(a.chunked); err != nil {
		c.upload.stop(c.up)
		c.received()
		c.visit.event.Error = err.Error()
		if c.wasCut() {
			c.visit.event.Error = errCut.Error()
		}
		return errAbort // a truncated body must not look complete
	}
	c.upload.stop(c.up)
	c.received()
	if reuse && len(c.up.in.Bytes()) == 0 && c.ctx.Err() == nil {
		c.keepUpstream()
	}
	if a.close || c.bound && c.own == nil {
		return errLinger
	}
	return nil
}

// interim implements [side].
func (c *client) interim(r *h1.Response) error {
	c.out = appendResponse(c.takeOut(), r, framed{minor: 1})
	return c.flush()
}

// relay copies the response's body to the client, after the head in the output buffer. It flushes before it waits for
// more, so that streams pass without delay.
func (c *client) relay(chunked bool) error {
	in := &c.up.in
	c.resBody.Begin(c.res.Body, true)
	for {
		content, n, done, err := c.resBody.Next(in.Bytes())
		if err != nil {
			return err
		}
		if err := c.put(content, chunked); err != nil {
			return err
		}
		if done && chunked {
			c.out = h1.AppendLastChunk(c.out, c.resBody.Trailers, withheld)
		}
		in.Take(n)
		if done {
			return c.flush()
		}
		if n > 0 && len(in.Bytes()) > 0 {
			continue
		}
		if err := c.flush(); err != nil {
			return err
		}
		c.g.leave(&c.visit)
		err = in.Fill()
		c.g.moved(&c.visit, false)
		if err != nil {
			return c.untilClose(err, chunked)
		}
	}
}

// untilClose ends a body at the end of its connection, if that is how it ends.
func (c *client) untilClose(err error, chunked bool) error {
	if !c.res.Body.UntilClose || !errors.Is(err, io.EOF) {
		return h1.NoEOF(err)
	}
	if chunked {
		c.out = h1.AppendLastChunk(c.out, nil, nil)
	}
	return c.flush()
}

// put appends content to the output buffer, or writes large content directly.
func (c *client) put(content []byte, chunked bool) error {
	c.visit.event.BytesOut += int64(len(content))
	switch {
	case chunked:
		c.out = h1.AppendChunk(c.out, content)
	case len(c.out)+len(content) <= 2*buffers.OutSize:
		c.out = append(c.out, content...)
	default:
		if err := c.flush(); err != nil {
			return err
		}
		return c.write(content)
	}
	if len(c.out) >= buffers.OutFlush {
		return c.flush()
	}
	return nil
}
