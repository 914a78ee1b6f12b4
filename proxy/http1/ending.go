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

// This file passes on that a client has ended its side while its request is in progress (RFC 9112, 9.6). Some servers answer at the end of
// their input alone, others give a request up then; so they do without the gateway.

// ending is the end of a client's side, as far as it is known.
type ending struct {
	notified bool // by TLS (close_notify)
	finished bool // by TCP
}

// errEnded ends an exchange whose client has ended its side, after which the server has closed the connection without a response.
var errEnded = fmt.Errorf("%w: it had ended its side of the connection, and the server gave no response", relay.ErrClientGone)

// clientGone is called now and then while the server is waited for. It reports whether the client has disconnected, as TLS that ends without
// a notice says too. A client that has merely ended its side still reads: the server is told. Such a client may have left all the same, which
// its host says after a minute, unless something was sent to it before.
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

// mayEnd reports whether the end of the client's side may be looked for: nothing else reads from the client, or has arrived, and what was
// read of the request is not needed any more.
func (h *conn) mayEnd() bool {
	return h.Upload.Idle() && !h.switches && len(h.In.Bytes()) == 0
}

// lookForEnd reads what has come from the client since its request: the beginning of another, which is kept, or the end. Without waiting, it
// returns an error if neither can come any more.
func (h *conn) lookForEnd() error {
	if h.looked && h.direct.Quiet() { // TLS may hold what came with the request
		return nil
	}
	h.looked = true
	h.Unlimited() // the deadline may have passed
	h.direct.DontWait(true)
	err := h.In.Fill()
	h.direct.DontWait(false)
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
