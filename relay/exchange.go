package relay

import (
	"errors"
	"net/http"

	"boxgate/internal/socket"
	"boxgate/relay/h1"
)

// Exchange is one request that is sent to a server over HTTP/1.1, and its response. The client may speak any version: then Req is
// the request in the form of HTTP/1.1.
type Exchange struct {
	Req     h1.Request
	Method  string // as the server gets it
	Source  Source // of the request body; nil: no body
	Upload  Upload
	To      Server     // of the current attempt
	From    *h1.Reader // buffers the bytes received from To
	Res     h1.Response
	Recoded bool     // the side changes the length of the response body
	Body    Incoming // of the response
}

// Sender takes connections to a server and asks on them.
type Sender interface {
	// Connect takes a connection for the request: one that was kept unless fresh is set, or a new one. It sets To and From.
	Connect(fresh bool) error
	// Ask sends the output: the head and the gathered beginning of the body. If that is the whole request, it waits for the first byte of
	// the response. used reports whether the connection had carried an earlier request. It returns [socket.ErrNotAsked] without sending
	// if the server of a kept connection has already sent data or EOF.
	Ask(whole bool) (used bool, err error)
	// Final reports whether an error of Ask ends the exchange whatever the connection: the client has gone, or a deadline has passed.
	Final(err error) bool
	// Again reports whether the request may be sent again after an error of Ask, whose arguments and result it gets, and whether only
	// over a fresh connection.
	Again(err error, whole, used bool) (again, fresh bool)
	// Drop closes the connection.
	Drop()
}

// Open sends a request whose head is in out, with the beginning of its body that has arrived, and starts the upload of the rest. tied
// means that the connection is bound to the client and cannot be replaced. refused reports that the body was refused before anything
// was sent.
func (x *Exchange) Open(out *Output, s Sender, tied bool) (refused bool, err error) {
	whole, err := x.Gather(out)
	if err != nil {
		return true, err
	}
	return false, x.Send(s, whole, tied)
}

// Gather appends the beginning of the body that has arrived to a head in out, and reports whether that is the whole request. An error refuses
// the body.
func (x *Exchange) Gather(out *Output) (whole bool, err error) {
	whole, n := x.Source == nil, 0
	if !whole {
		out.Buf, n, whole, err = x.Source.Gather(out.Buf)
	}
	x.Upload.Content = int64(n)
	return whole, err
}

// Send sends a request that was gathered, and starts the upload of the rest.
func (x *Exchange) Send(s Sender, whole, tied bool) error {
	x.Res.Reset()
	err := x.send(s, nil, whole, tied)
	if err == nil && !whole {
		x.Upload.Start(x.Source, x.To)
	}
	return err
}

// SendAgain goes on after a whole request has failed with an error on a connection that had carried an earlier one.
func (x *Exchange) SendAgain(s Sender, failed error) error { return x.send(s, failed, true, false) }

// send sends the output. A server may just have closed a connection that was kept: a request that allows it is then sent again on
// another one (RFC 9110, 9.2.2), before anything is sent to the client. A first attempt, on a kept connection, may have failed.
func (x *Exchange) send(s Sender, failed error, whole, tied bool) error {
	for fresh, used := false, true; ; {
		err := failed
		if failed = nil; err == nil {
			if err := s.Connect(fresh); err != nil {
				return err
			}
			used, err = s.Ask(whole)
		}
		if err == nil || s.Final(err) {
			return err
		}
		unasked := errors.Is(err, socket.ErrNotAsked)
		again := unasked
		if !unasked {
			again, fresh = s.Again(err, whole, used)
		}
		if !again && !whole && !used {
			return nil // the upload meets the same error; the server may have answered before it closed
		}
		if s.Drop(); tied {
			return errors.Join(ErrUnbound, err)
		}
		if !again {
			return err
		}
	}
}

// Side is one direction, egress or public URLs, for an admitted request of a client that speaks any version: the decisions that
// differ. A client of HTTP/1.x also needs [Writer], one of HTTP/2 [StreamWriter].
type Side interface {
	Sender
	Receiver
	// Inspect sees the final head. An error refuses the response.
	Inspect(*h1.Response) error
	// Relay copies the body of the response to the client.
	Relay() error
	// Tunnel passes on a 101, whose head has that length, and then bytes.
	Tunnel(head int) error

	// The other methods end an exchange whose upload has stopped. All but Settle return the result of Forward.

	// BadBody answers a request whose body was refused before anything was sent.
	BadBody(err error) error
	// Unsent answers a request that could not be sent.
	Unsent(err error) error
	// NoResponse answers a request that got no final head, or one that cannot be forwarded.
	NoResponse(err error) error
	// Broken ends a response that was cut short: it must not look complete.
	Broken(err error) error
	// Settle ends a complete exchange. reuse reports whether the framing lets the server's connection carry another request; end,
	// whether the client's must close.
	Settle(reuse bool) (end bool)
}

// Writer is a [Side] for a client of HTTP/1.x.
type Writer interface {
	Side
	ResponseFields
	// Begin is called before the response begins. It reports whether the connection must end after it.
	Begin() (end bool)
	// AppendEnd appends the last chunk for the client.
	AppendEnd(dst []byte, trailers []h1.Field) []byte
}

// version writes responses in the form of a version of HTTP.
type version interface {
	// check refuses a response that the client would take for another one.
	check(x *Exchange) error
	// begin writes the head of the response.
	begin(x *Exchange) error
	// finish ends the response after its body, and reports whether the whole request was sent.
	finish(x *Exchange) (whole bool, err error)
}

// Forward sends a request, whose head for the server is in the output, and relays its response. A nil error means that the
// connection can carry another request. upgrade and tied are those of [OpensWebSocket] and [Exchange.Open].
func (c *Client) Forward(x *Exchange, s Writer, upgrade, tied bool) error {
	c.In.Take(c.Head)
	c.Head = 0
	c.side, c.answer = s, Answer{Minor: x.Req.Minor}
	switch refused, err := x.Open(&c.Out, s, tied); {
	case refused:
		return s.BadBody(err)
	case err != nil:
		return s.Unsent(err)
	}
	if err := x.respond(c, s, upgrade); err != nil || !c.answer.Close {
		return err
	}
	return ErrLinger
}

// respond relays the response to the client.
func (x *Exchange) respond(to version, s Side, upgrade bool) error {
	n, err := FinalHead(x.From, &x.Res, x.Method, s)
	if err == nil {
		err = s.Inspect(&x.Res)
	}
	if err == nil && x.Res.Status == http.StatusSwitchingProtocols {
		if err = x.Upgraded(upgrade); err == nil {
			return s.Tunnel(n)
		}
	}
	if err == nil {
		err = to.check(x)
	}
	if err != nil {
		x.Upload.Stop()
		return s.NoResponse(err)
	}
	if err = to.begin(x); err == nil {
		x.From.Take(n)
		x.Body.Begin(x.From, &x.Res)
		err = s.Relay()
	}
	whole := false
	if err == nil {
		whole, err = to.finish(x)
	}
	x.Upload.Stop()
	if err != nil {
		return s.Broken(err)
	}
	if s.Settle(whole && !x.Res.Close) {
		return ErrLinger
	}
	return nil
}

func (c *Client) check(*Exchange) error { return nil }

func (c *Client) begin(x *Exchange) error {
	a := &c.answer
	c.whole = x.Upload.Finished()
	a.Close = c.side.Begin() || x.Req.Close || !c.whole
	if x.Res.Body.Chunked || x.Res.Body.UntilClose || x.Recoded {
		a.Chunked, a.Close = a.Minor > 0, a.Close || a.Minor == 0
	}
	c.Passed = 0
	c.Out.Buf = AppendResponse(c.Out.Take(), &x.Res, *a, ResponseFields(c.side))
	return nil
}

func (c *Client) finish(x *Exchange) (whole bool, err error) {
	if c.answer.Chunked {
		c.Out.Buf = c.side.AppendEnd(c.Out.Buf, x.Body.Trailers)
	}
	return c.whole, c.Flush()
}

// Upgraded checks a 101.
func (x *Exchange) Upgraded(asked bool) error {
	if !asked {
		return ErrProtocol
	}
	return Upgraded(ValuesIn(x.Req.Fields), &x.Res)
}

// TakesInterim reports whether the client takes the 1xx response: HTTP/1.0 has none (RFC 9110, 15.2), and a 100 is for a client that
// expects it.
func (x *Exchange) TakesInterim() bool {
	return x.Req.Minor > 0 && (x.Res.Status != http.StatusContinue || x.Req.Continue)
}

// Interim passes a 1xx response on.
func (c *Client) Interim(x *Exchange, by ResponseFields) error {
	if !x.TakesInterim() {
		return nil
	}
	c.Out.Buf = AppendResponse(c.Out.Take(), &x.Res, Answer{Minor: 1}, by)
	if c.Flush() != nil {
		return ErrClientGone
	}
	return nil
}
