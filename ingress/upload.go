package ingress

import (
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"boxgate/internal/buffers"
	"boxgate/internal/h1"
)

// upload sends the body of one request to the box. Its trailers are dropped: they could repeat any field that was removed
// from the head.
type upload struct {
	from     source
	moved    func() // called for each part
	received int64
	last     atomic.Int64  // when the box took a part of it, in Unix nanoseconds
	failing  atomic.Bool   // it has failed, and the connection to the box is aborted for it
	stopped  bool          // it was interrupted here, not by the client
	done     chan struct{} // nil when everything was sent with the head
	err      error         // valid once done is closed
}

// source is a body that a client sends.
type source interface {
	// more appends what comes next of the body to out, framed for the box, and reports whether that is the end, and how much
	// content it is.
	more(out []byte) (grown []byte, n int, last bool, err error)
	// interrupt ends a call of more in progress, and every later one.
	interrupt()
}

// errUpstream is a failure of the box during an upload. Its response may still be readable.
var errUpstream = errors.New("the box takes no more of the body")

// reset prepares for another request.
func (u *upload) reset() {
	u.from, u.moved, u.received, u.stopped, u.done, u.err = nil, nil, 0, false, nil, nil
	u.last.Store(0)
	u.failing.Store(false)
}

// start sends the rest of the body in a goroutine, so that a response can be relayed before the body has ended.
func (u *upload) start(from source, up *upstream, moved func()) {
	u.from, u.moved, u.done = from, moved, make(chan struct{})
	go func() {
		defer close(u.done)
		defer func() {
			if p := recover(); p != nil {
				u.err = fmt.Errorf("panic in an upload: %T", p)
				up.abort()
			}
		}()
		if u.err = u.run(up); u.err != nil && !errors.Is(u.err, errUpstream) {
			u.failing.Store(true)
			up.abort() // the client has gone or stopped: the box must not take a part of the body for the whole
		}
	}()
}

func (u *upload) run(up *upstream) error {
	out := buffers.BorrowOut()
	defer func() { buffers.ReturnOut(out) }()
	for last := false; !last; {
		n, err := 0, error(nil)
		if out, n, last, err = u.from.more(out[:0]); err != nil {
			return err
		}
		u.received += int64(n)
		u.moved()
		if _, err := up.conn.Write(out); err != nil {
			return errors.Join(errUpstream, err)
		}
		u.last.Store(time.Now().UnixNano())
	}
	return nil
}

// finished reports whether the whole body was sent. It waits briefly: the box may respond to the last byte before the
// goroutine that sent it is done.
func (u *upload) finished() bool {
	if u.done == nil {
		return true
	}
	moment := time.NewTimer(10 * time.Millisecond)
	defer moment.Stop()
	select {
	case <-u.done:
		return u.err == nil
	case <-moment.C:
		return false
	}
}

// stop ends an upload whose outcome no longer matters, and waits until it has released its source.
func (u *upload) stop(up *upstream) {
	if u.done == nil {
		return
	}
	select {
	case <-u.done:
	default:
		u.stopped = !u.failing.Load()
		if up != nil {
			up.abort()
		}
		u.from.interrupt()
		<-u.done
	}
	u.done = nil
}

// clientFault returns why an upload failed for a reason of the client, or nil.
func (u *upload) clientFault() error {
	var malformed *h1.Error
	switch {
	case u.err == nil || u.stopped || errors.Is(u.err, errUpstream):
		return nil
	case errors.As(u.err, &malformed):
		return malformed
	case errors.Is(u.err, io.ErrUnexpectedEOF):
		return errGone
	}
	return u.err
}
