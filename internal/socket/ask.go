package socket

import (
	"errors"
	"os"
	"syscall"
)

// ErrNotAsked is a request that [Direct.Ask] has not sent.
var ErrNotAsked = errors.New("the peer is not waiting for a request")

// ask is a call of [Direct.Ask].
type ask struct {
	ready func(fd uintptr) bool // step, made once
	b     []byte                // what is left to send
	begun bool
	errno syscall.Errno
	spare [1]byte
}

// Ask sends a request to a peer that has been silent since its last answer, and waits until it answers or the read deadline
// has come, which is no error: reads then tell. If the peer has not been silent, Ask returns [ErrNotAsked] and has sent
// nothing: what has arrived, such as the end, would be taken for the answer. The look costs no system call of its own, as
// a read would otherwise find out that there is no answer yet.
func (d *Direct) Ask(b []byte) error {
	a := d.asking
	if a == nil {
		a = &ask{}
		a.ready, d.asking = a.step, a
	}
	a.b, a.begun, a.errno = b, false, 0
	err := d.raw.Read(a.ready)
	rest := a.b
	a.b = nil
	switch {
	case !a.begun:
		return ErrNotAsked
	case a.errno != 0:
		return d.failed("write", a.errno)
	case err != nil && !errors.Is(err, os.ErrDeadlineExceeded):
		return d.failed("read", err)
	}
	_, err = d.Write(rest)
	return err
}

// step looks at the socket and sends, when it is called first. It reports whether there is nothing to wait for.
func (a *ask) step(fd uintptr) bool {
	if a.begun {
		return true
	}
	if _, errno := transmit(syscall.SYS_RECVFROM, fd, a.spare[:], syscall.MSG_PEEK); errno != syscall.EAGAIN {
		return true
	}
	a.begun = true
	n, errno := transmit(syscall.SYS_SENDTO, fd, a.b, syscall.MSG_NOSIGNAL)
	a.b = a.b[n:]
	if errno != syscall.EAGAIN {
		a.errno = errno
	}
	return errno != 0 || len(a.b) > 0
}
