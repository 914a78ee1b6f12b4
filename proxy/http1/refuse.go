package http1

import (
	"errors"
	"io"
	"net/http"
	"os"

	"boxgate/internal/memory"
	"boxgate/policy/name"
	"boxgate/proxy/exchange"
	"boxgate/proxy/problem"
	"boxgate/relay"
	"boxgate/relay/h1"
	"boxgate/rule/placeholder"
)

// refuse answers the request with a problem. A nil error means that the whole request was read and the connection can carry
// another.
func (h *conn) refuse(p *problem.Problem) error {
	h.x.Refused(p)
	keep := h.Req.Body.Empty() && !h.Req.Close && p.Status != http.StatusBadRequest && h.Head > 0
	if err := h.writeProblem(p, keep); err != nil {
		return err
	}
	if !keep {
		return relay.ErrLinger
	}
	h.In.Take(h.Head)
	return nil
}

// refuseHead ends a connection whose request could not be read.
func (h *conn) refuseHead(err error) error {
	var malformed *h1.Error
	switch {
	case errors.Is(err, memory.ErrFull):
		h.Head = 0
		return h.refuse(exchange.NoMemory())
	case errors.As(err, &malformed):
		h.Head = 0
		return h.refuse(&problem.Problem{Status: malformed.Status, Reason: name.ReasonBadRequest, Detail: "The request is refused: " + malformed.What + "."})
	case errors.Is(err, os.ErrDeadlineExceeded):
		h.Head = 0
		return h.refuse(&problem.Problem{Status: http.StatusRequestTimeout, Reason: name.ReasonPeekTimeout, Detail: "The request head was not complete in time."})
	case errors.Is(err, io.EOF):
		h.x.Refused(&problem.Problem{Reason: name.ReasonBadRequest})
		h.x.Failed(io.ErrUnexpectedEOF)
		return err
	}
	h.x.Refused(&problem.Problem{Reason: name.ReasonBadRequest})
	h.x.Failed(err)
	return err
}

// BadBody implements [relay.Side].
func (h *conn) BadBody(err error) error { return h.refuseBody(err) }

// refuseBody answers a request whose body or trailers are refused. The rest of the body is not read.
func (h *conn) refuseBody(err error) error {
	h.Head = 0
	if errors.Is(err, placeholder.ErrLate) {
		h.x.Failed(err)
		return h.refuse(exchange.LeakProblem())
	}
	return h.refuse(exchange.BadRequest("The request is refused: " + err.Error() + "."))
}

func (h *conn) writeProblem(p *problem.Problem, keep bool) error {
	fields := [][2]string{{"Content-Type", "application/problem+json"}, {"Cache-Control", "no-store"}}
	if p.Status == http.StatusTooManyRequests {
		fields = append(fields, [2]string{"Retry-After", exchange.RetryAfter})
	}
	_, err := h.Reply(&relay.Reply{Status: p.Status, Fields: fields, Body: p.Body(), Minor: h.Req.Minor, Head: h.Method == http.MethodHead, Keep: keep})
	return err
}
