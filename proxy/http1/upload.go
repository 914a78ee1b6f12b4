package http1

import (
	"errors"
	"time"

	"boxgate/internal/buffers"
	"boxgate/internal/h1"
	"boxgate/policy"
	"boxgate/proxy/contain"
	"boxgate/proxy/exchange"
	"boxgate/proxy/header"
	"boxgate/proxy/origin"
	"boxgate/proxy/placeholder"
)

// upload sends one request body to the upstream.
type upload struct {
	body  h1.Body
	set   []policy.Header // trailers that repeat one of these are dropped
	watch placeholder.Watch
	sent  int64
	dry   bool // all that arrived is sent

	rewriting *exchange.Rewriting // nil unless the request was changed
	kept      []byte              // of what was read of the body then: the part that is not sent yet
	chunks    bool                // it is sent in chunks

	done chan struct{} // nil when everything was sent with the head
	err  error         // valid once done is closed
}

// gather appends received body content to out, up to a limit, and reports whether that is the whole body.
func (u *upload) gather(in *h1.Reader, out []byte) ([]byte, bool, error) {
	for first := true; first || len(out) < buffers.OutFlush; first = false { // a head may be as large as that
		content, n, done, err := u.body.Next(in.Bytes())
		if err != nil {
			return out, false, err
		}
		if err := u.watch.Look(content); err != nil {
			return out, false, err
		}
		out = u.append(out, content)
		if done {
			if err := u.checkEnd(); err != nil {
				return out, false, err
			}
			out = u.last(out)
		}
		in.Take(n)
		u.dry = n == 0 || len(in.Bytes()) == 0
		if done || u.dry {
			return out, done, nil
		}
	}
	return out, false, nil
}

// checkEnd searches the end of the body and its trailers.
func (u *upload) checkEnd() error {
	if err := u.watch.End(); err != nil {
		return err
	}
	return placeholder.InTrailer(u.body.Trailers)
}

// end gives up what an upload used. It must have stopped.
func (u *upload) end() {
	u.watch.Close()
	u.rewriting.Close()
}

func (u *upload) append(out, content []byte) []byte {
	u.sent += int64(len(content))
	if u.body.Chunked() {
		return h1.AppendChunk(out, content)
	}
	return append(out, content...)
}

func (u *upload) last(out []byte) []byte {
	if u.body.Chunked() {
		return header.AppendLastChunk(out, u.body.Trailers, u.set)
	}
	return out
}

// start sends the rest of the body in a new goroutine, so that a response can be relayed before the body has ended.
func (u *upload) start(h *conn) {
	u.done = make(chan struct{})
	up := h.up
	h.deadline = time.Time{}
	_ = h.s.Client.SetReadDeadline(time.Time{}) // a body may take its time; the box's connection limit bounds what waits
	go func() {
		defer close(u.done)
		defer contain.Panic(h.s.Core.Log, h.s.Box.ID, up.Abort)
		u.err = contain.ErrFault
		u.err = u.run(&h.in, up)
		var write *origin.WriteError
		if u.err != nil && !errors.As(u.err, &write) {
			up.Abort() // the client aborted: the upstream must not take the partial body for the whole
		}
	}()
}

func (u *upload) run(in *h1.Reader, up *origin.Conn) error {
	out := buffers.BorrowOut()
	defer func() { buffers.ReturnOut(out) }()
	for len(u.kept) > 0 {
		whole := false
		out, whole = u.unload(out[:0])
		if err := up.Write(out); err != nil || whole {
			return err
		}
	}
	for {
		if u.dry {
			if err := in.Fill(); err != nil {
				return h1.NoEOF(err)
			}
		}
		whole, err := false, error(nil)
		if u.body.Chunked() {
			out, whole, err = u.gather(in, out[:0])
			if err == nil {
				err = up.Write(out)
			}
		} else {
			whole, err = u.pass(in, up)
		}
		if err != nil || whole {
			return err
		}
	}
}

// pass writes content directly, without copying.
func (u *upload) pass(in *h1.Reader, up *origin.Conn) (bool, error) {
	content, n, done, err := u.body.Next(in.Bytes())
	if err != nil {
		return false, err
	}
	if err := u.watch.Look(content); err != nil {
		return false, err
	}
	if done {
		if err := u.watch.End(); err != nil {
			return false, err
		}
	}
	err = up.Write(content)
	u.sent += int64(len(content))
	in.Take(n)
	u.dry = true
	return done, err
}

// stop ends an upload whose outcome no longer matters, and waits until it has released the client's reader.
func (u *upload) stop(h *conn) {
	if u.done == nil {
		return
	}
	select {
	case <-u.done:
	default:
		if h.up != nil {
			h.up.Abort()
		}
		_ = h.s.Client.SetReadDeadline(time.Unix(1, 0))
		<-u.done
	}
	u.done = nil
}

// finished reports whether the whole body was sent. It waits briefly: an upstream may respond to the last byte before
// the goroutine that sent it is done.
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
