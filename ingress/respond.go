package ingress

import (
	"boxgate/relay/h1"
)

// This file implements [relay.Side] for responses to HTTP/1.x clients of public URLs.

// Interim implements [relay.Receiver].
func (c *client) Interim(*h1.Response) error { return c.Client.Interim(&c.Exchange, c) }

// Inspect implements [relay.Side].
func (c *client) Inspect(*h1.Response) error { return nil }

// Begin implements [relay.Side].
func (c *client) Begin() (end bool) {
	c.bound = c.bound || h1.LogsIn(c.Res.Fields)
	c.answered = true
	c.begun.Store(true)
	if c.Upload.Running() {
		c.body.answered()
	}
	c.visit.event.Status = c.Res.Status
	return c.bound && (c.Res.Close || c.up.raw == nil) || c.g.draining.Err() != nil
}

// Relay implements [relay.Side].
func (c *client) Relay() error { return c.Body.Copy(c) }

// Fill implements [relay.Sink].
func (e *exchange) Fill(in *h1.Reader) error {
	e.g.releaseBox(&e.visit)
	err := in.Fill()
	e.g.moved(&e.visit, false)
	return err
}

// AppendEnd implements [relay.Side].
func (c *client) AppendEnd(dst []byte, trailers []h1.Field) []byte {
	return h1.AppendLastChunk(dst, trailers, withheld)
}

// BadBody implements [relay.Side].
func (c *client) BadBody(err error) error { return c.badBody(err) }

// Unsent implements [relay.Side].
func (c *client) Unsent(err error) error { return c.unserved(err) }

// NoResponse implements [relay.Side].
func (c *client) NoResponse(err error) error { return c.noResponse(err) }

// Broken implements [relay.Side].
func (c *client) Broken(err error) error {
	c.received()
	c.visit.event.BytesOut, c.visit.event.Error = c.Passed, err.Error()
	if c.wasCut() {
		c.visit.event.Error = errCut.Error()
	}
	return errAbort
}

// Settle implements [relay.Side].
func (c *client) Settle(reuse bool) (end bool) {
	c.received()
	c.visit.event.BytesOut = c.Passed
	if reuse && len(c.up.in.Bytes()) == 0 && c.ctx.Err() == nil {
		c.keepUpstream()
	}
	return c.bound && c.own == nil
}
