package http1

import (
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"time"

	"boxgate/internal/h1"
	"boxgate/internal/memory"
	"boxgate/internal/socket"
	"boxgate/policy/name"
	"boxgate/proxy/exchange"
	"boxgate/proxy/placeholder"
	"boxgate/proxy/problem"
)

// refuse answers the request with a problem. A nil error means that the whole request was read and the connection can
// carry another.
func (h *conn) refuse(p *problem.Problem) error {
	h.x.Refused(p)
	keep := h.req.Body.Empty() && !h.req.Close && p.Status != http.StatusBadRequest && h.head > 0
	if err := h.writeProblem(p, keep); err != nil {
		return err
	}
	if !keep {
		return errLinger
	}
	h.in.Take(h.head)
	return nil
}

// refuseHead ends a connection whose request could not be read.
func (h *conn) refuseHead(err error) error {
	var malformed *h1.Error
	switch {
	case errors.Is(err, memory.ErrFull):
		h.head = 0
		return h.refuse(exchange.NoMemory())
	case errors.As(err, &malformed):
		h.head = 0
		return h.refuse(&problem.Problem{Status: malformed.Status, Reason: name.ReasonBadRequest, Detail: "The request is refused: " + malformed.What + "."})
	case errors.Is(err, os.ErrDeadlineExceeded):
		h.head = 0
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

// refuseBody answers a request whose body or trailers are refused. The rest of the body is not read.
func (h *conn) refuseBody(err error) error {
	h.head = 0
	if errors.Is(err, placeholder.ErrLate) {
		h.x.Failed(err)
		return h.refuse(exchange.LeakProblem())
	}
	return h.refuse(exchange.BadRequest("The request is refused: " + err.Error() + "."))
}

func (h *conn) writeProblem(p *problem.Problem, keep bool) error {
	body := p.Body()
	out := h1.AppendStatus(h.takeOut(), p.Status, []byte(http.StatusText(p.Status)))
	out = h1.AppendPair(out, "Content-Type", "application/problem+json")
	out = h1.AppendPair(out, "Content-Length", strconv.Itoa(len(body)))
	out = h1.AppendPair(out, "Cache-Control", "no-store")
	if p.Status == http.StatusTooManyRequests {
		out = h1.AppendPair(out, "Retry-After", exchange.RetryAfter)
	}
	if !keep {
		out = h1.AppendPair(out, "Connection", "close")
	} else if h.req.Minor == 0 {
		out = h1.AppendPair(out, "Connection", "keep-alive")
	}
	out = append(out, "\r\n"...)
	if h.method != "HEAD" {
		out = append(out, body...)
	}
	h.out = out
	_, err := h.s.Client.Write(out)
	return err
}

const (
	lingerTime  = 2 * time.Second
	lingerBytes = 1 << 20
)

// linger closes the connection after briefly reading what the client still sends: closing a socket with unread data
// resets it, and the client would lose the response (RFC 9112, 9.6). The exchange is already recorded by then.
func (h *conn) linger() {
	if c, ok := h.s.Client.(interface{ CloseWrite() error }); ok {
		_ = c.CloseWrite()
	} else if tcp, ok := socket.TCP(h.s.Client); ok {
		_ = tcp.CloseWrite()
	}
	h.in.Release()
	_ = h.s.Client.SetReadDeadline(time.Now().Add(lingerTime))
	_, _ = io.CopyN(io.Discard, h.s.Client, lingerBytes)
}
