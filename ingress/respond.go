package ingress

import (
	"errors"
	"io"
	"net/http"
	"strings"

	"boxgate/internal/buffers"
	"boxgate/internal/h1"
	"boxgate/internal/handshake"
)

// interimMax is how many 1xx responses to one request are relayed.
const interimMax = 32

var errProtocol = errors.New("the response is not one to this request")

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
	whole := c.upload.finished()
	a := framed{minor: c.req.Minor, close: c.req.Close || !whole || c.g.stopping.Load()}
	if c.res.Body.Chunked || c.res.Body.UntilClose {
		a.chunked, a.close = a.minor > 0, a.close || a.minor == 0
	}
	c.answered = true
	c.visit.event.Status = c.res.Status
	c.out = appendResponse(c.takeOut(), &c.res, a)
	c.up.in.Take(n)
	reuse := whole && !c.res.Close
	if err := c.relay(a.chunked); err != nil {
		c.upload.stop(c)
		c.received()
		c.visit.event.Error = err.Error()
		if c.ctx.Err() != nil {
			c.visit.event.Error = errCut.Error()
		}
		return errAbort // a truncated body must not look complete
	}
	c.upload.stop(c)
	c.received()
	if reuse && len(c.up.in.Bytes()) == 0 && c.ctx.Err() == nil {
		c.keepUpstream()
	}
	if a.close {
		return errLinger
	}
	return nil
}

// received notes how much of the request's body came.
func (c *client) received() { c.visit.event.BytesIn = c.upload.received }

// upgraded checks a 101.
func (c *client) upgraded(asked bool) error {
	if !asked || c.res.Minor == 0 || !h1.EqualFold(c.res.Upgrade, "websocket") { // which is nil unless Connection names it
		return errProtocol
	}
	return handshake.Verify(valuesIn(c.req.Fields), valuesIn(c.res.Fields))
}

// valuesIn returns the function that finds the values of a field by its name, in any case.
func valuesIn(fields []h1.Field) handshake.Fields {
	return func(name string) []string { return valuesOf(fields, strings.ToLower(name)) }
}

// finalHead reads response heads up to the final one, whose length it returns, and relays the interim ones.
func (c *client) finalHead() (int, error) {
	for range interimMax {
		c.res.Reset()
		n, err := c.responseHead()
		if err != nil || !c.res.Interim() {
			return n, err
		}
		// 100 answers an expectation; HTTP/1.0 has no 1xx (RFC 9110, 15.2).
		if c.req.Minor > 0 && (c.res.Status != http.StatusContinue || c.req.Continue) {
			c.out = appendResponse(c.takeOut(), &c.res, framed{minor: 1})
			if err := c.flush(); err != nil {
				return 0, errGone
			}
		}
		c.up.in.Take(n)
	}
	return 0, errProtocol
}

func (c *client) responseHead() (int, error) {
	for {
		n, err := c.res.Parse(c.up.in.Bytes(), c.visit.method)
		if !errors.Is(err, h1.ErrShort) {
			return n, err
		}
		if err := c.up.in.Fill(); err != nil {
			return 0, h1.NoEOF(err)
		}
	}
}

// noResponse ends an exchange without a final response.
func (c *client) noResponse(err error) error {
	c.upload.stop(c)
	c.received()
	fault := c.upload.clientFault()
	var malformed *h1.Error
	switch {
	case c.ctx.Err() != nil:
	case errors.As(fault, &malformed):
		return c.badBody(malformed)
	case fault != nil:
		err = errGone
	}
	return c.unserved(err)
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
		if err := in.Fill(); err != nil {
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
		_, err := c.conn.Write(content)
		return err
	}
	if len(c.out) >= buffers.OutFlush {
		return c.flush()
	}
	return nil
}
