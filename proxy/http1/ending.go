package http1

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"boxgate/internal/socket"
	"boxgate/relay"
)

// This file forwards the half-close of a client while its request is in progress (RFC 9112, 9.6). Some servers answer only
// at the end of their input, others abandon the request then; both must work as without the gateway.

// ending records the known ways in which a client has ended its side.
type ending struct {
	notified bool // by TLS (close_notify)
	finished bool // by TCP
}

// errEnded ends an exchange whose client has half-closed, after which the server closed the connection without a response.
var errEnded = fmt.Errorf("%w: it had ended its side of the connection, and the server gave no response", relay.ErrClientGone)

// clientGone is called periodically while waiting for the server. It reports whether the client has disconnected; TLS that
// ends without close_notify counts as that. A client that has merely half-closed still reads, so the half-close is
// forwarded. If it has disconnected after all, its host reports that after a minute, or in answer to data.
func (h *conn) clientGone() bool {
	if h.direct == nil {
		return false
	}
	state := socket.State(h.Conn)
	switch {
	case state == unix.BPF_TCP_CLOSE, h.switches && h.s.Secure && state == unix.BPF_TCP_CLOSE_WAIT:
		return true
	case h.over == (ending{}) && h.mayEnd() && h.lookForEnd() != nil:
		return true
	case h.over == (ending{}):
		return false
	}
	h.over.finished = state == unix.BPF_TCP_CLOSE_WAIT
	h.up.End(h.over.notified, h.over.finished)
	return false
}

// mayEnd reports whether to look for the end of the client's side: the client's data is not being read, none is buffered,
// and the request's buffer is not needed any longer.
func (h *conn) mayEnd() bool {
	return h.Upload.Idle() && !h.switches && len(h.In.Bytes()) == 0
}

// lookForEnd reads data that the client has sent since its request: the beginning of another, which is kept, or the end. It
// does not block, and returns an error if neither can follow.
func (h *conn) lookForEnd() error {
	if h.looked && h.direct.Quiet() { // TLS may have buffered data from the request
		return nil
	}
	h.looked = true
	h.Unlimited() // the deadline may have passed
	h.direct.SetNonBlocking(true)
	err := h.In.Fill()
	h.direct.SetNonBlocking(false)
	if err == nil {
		return nil
	}
	h.In.Release()
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil
	case errors.Is(err, io.EOF) && (!h.s.Secure || !h.direct.Ended()):
		h.over.notified, h.over.finished = h.s.Secure, !h.s.Secure
		return nil
	}
	return err
}
