package http2

import (
	"errors"
	"io"
	"net/http"
	"time"

	"boxgate/proxy/header"
	"boxgate/proxy/origin"
	"boxgate/proxy/recovery"
	"boxgate/relay/h2/upstream"
)

// upload sends the body of a request on a stream to the upstream, in a goroutine.
type upload struct {
	st      *stream
	to      *upstream.Stream
	body    *uploadBody
	proceed expectation   // of the client; may be nil
	done    chan struct{} // closed when it has ended
}

func (st *stream) upload(to *upstream.Stream, body *uploadBody) *upload {
	u := &upload{st: st, to: to, body: body, done: make(chan struct{})}
	if st.expects {
		u.proceed = make(expectation, 1)
	}
	go u.run()
	return u
}

func (u *upload) run() {
	defer close(u.done)
	err := recovery.ErrFault
	defer func() {
		if err != nil { // the upstream must not mistake the partial body for a complete one
			u.to.Fail(err)
		}
	}()
	defer recovery.Panic(u.st.s.Core.Log, u.st.s.Box.ID, func() {})
	if !u.proceed.await(u.body.closed) {
		err = nil
		return
	}
	err = u.send()
}

// expectation delays the upload of a client that waits for 100. It receives whether the upload begins. The nil expectation has no effect.
type expectation chan bool

// await waits until the server asks for the body or responds, or ExpectWait has passed. It reports whether the upload begins.
func (e expectation) await(ended <-chan struct{}) bool {
	if e == nil {
		return true
	}
	limit := time.NewTimer(origin.ExpectWait)
	defer limit.Stop()
	select {
	case wanted := <-e:
		return wanted
	case <-limit.C:
		return true
	case <-ended:
		return false
	}
}

// signal reports the server's response to the upload.
func (e expectation) signal(wanted bool) {
	select {
	case e <- wanted: // the first one counts
	default:
	}
}

// send sends the body with its trailers. It returns no error if the stream accepts no more: the reader of the response gets
// the reason.
func (u *upload) send() error {
	buf := bodyBuffers.Get()
	defer bodyBuffers.Put(buf)
	for {
		n, err := u.body.Read(*buf)
		if n > 0 {
			if _, failed := u.to.Write((*buf)[:n]); failed != nil {
				return nil
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return u.to.CloseWrite(u.body.source.trailers())
		case errors.Is(err, errUnread):
			return nil
		case err != nil:
			return err
		}
	}
}

// stop ends the upload: the server needs no more of it.
func (u *upload) stop() {
	if u != nil {
		u.to.StopWrite()
		u.body.close()
	}
}

// result is the response to an attempt: its final head, and its content.
type result struct {
	*upstream.Stream
	upstream.Head
	source *uploadSource // may be nil
	upload *upload       // nil without a body, or if all of it was sent immediately
}

// close ends the exchange, and waits for the end of the upload.
func (r *result) close() {
	r.Close()
	if r.upload != nil {
		r.upload.stop()
		<-r.upload.done
	}
}

// receive waits for the final head of a response, and forwards interim ones. A server that answers with an error or a
// redirect is assumed to need no more of the request.
func (st *stream) receive(r *result) (err error) {
	for {
		if r.Head, err = r.Stream.Head(); err != nil {
			return err
		}
		if !r.Interim() {
			break
		}
		st.passInterim(&r.Head, r.upload)
	}
	if r.source != nil {
		r.source.forget()
	}
	if r.upload != nil {
		r.upload.proceed.signal(r.Status <= 299)
		if r.Status > 299 {
			r.upload.stop()
		}
	}
	return nil
}

// passInterim forwards a 1xx response, except for 100: the gateway has sent one when the body was first read.
func (st *stream) passInterim(h *upstream.Head, u *upload) {
	if h.Status == http.StatusContinue {
		if u != nil {
			u.proceed.signal(true)
		}
		return
	}
	st.interim(h.Status, header.PassResponse(h.Fields, true))
}
