package socket

import (
	"errors"
	"os"
	"syscall"
)

// ErrNotAsked reports that [Direct.SendRequest] sent no request because the peer had already sent data or closed.
var ErrNotAsked = errors.New("the peer is not waiting for a request")

// ask is the state of one [Direct.SendRequest] call. It is reused by later calls.
type ask struct {
	ready func(fd uintptr) bool // step as a method value, allocated once
	now   func(fd uintptr)      // the same, for AskNow
	b     []byte                // bytes still to send
	sent  bool
	errno syscall.Errno
	spare [1]byte
}

// SendRequest sends a request to a peer that has been silent since its last answer and waits for the first bytes of the answer.
// It returns nil if the read deadline passes first; the next read reports the timeout. If the peer has sent data or
// closed the connection, SendRequest sends no byte and returns [ErrNotAsked], because the caller would take that data for the
// answer. The check costs no extra system call: it replaces the read that would return EAGAIN.
func (d *Direct) SendRequest(b []byte) error {
	a := d.newAsk(b)
	err := d.raw.Read(a.ready)
	rest := a.b
	a.b = nil
	switch {
	case !a.sent:
		return ErrNotAsked
	case a.errno != 0:
		return d.failed("write", a.errno)
	case err != nil && !errors.Is(err, os.ErrDeadlineExceeded):
		return d.failed("read", err)
	}
	_, err = d.Write(rest)
	return err
}

// AskNow is [Direct.SendRequest] without waiting. It returns how much of the request was sent: not all if the kernel has no room for more.
func (d *Direct) AskNow(b []byte) (sent int, err error) {
	a := d.newAsk(b)
	err = d.raw.Control(a.now)
	rest := len(a.b)
	a.b = nil
	switch {
	case err != nil:
		return 0, d.failed("write", err)
	case !a.sent:
		return 0, ErrNotAsked
	case a.errno != 0:
		return 0, d.failed("write", a.errno)
	}
	return len(b) - rest, nil
}

func (d *Direct) newAsk(b []byte) *ask {
	a := d.asking
	if a == nil {
		a = &ask{}
		a.ready, a.now, d.asking = a.step, func(fd uintptr) { a.step(fd) }, a
	}
	a.b, a.sent, a.errno = b, false, 0
	return a
}

// step peeks at the socket and sends the request when called first. It returns false to wait for the peer.
func (a *ask) step(fd uintptr) bool {
	if a.sent {
		return true
	}
	if _, errno := transmit(syscall.SYS_RECVFROM, fd, a.spare[:], syscall.MSG_PEEK); errno != syscall.EAGAIN {
		return true
	}
	a.sent = true
	n, errno := transmit(syscall.SYS_SENDTO, fd, a.b, syscall.MSG_NOSIGNAL)
	a.b = a.b[n:]
	if errno != syscall.EAGAIN {
		a.errno = errno
	}
	return errno != 0 || len(a.b) > 0
}
