package http2

import (
	"errors"
	"io"
	"maps"
	"net/http"
	"time"

	"boxgate/internal/h2/upstream"
	"boxgate/proxy/contain"
	"boxgate/proxy/exchange"
	"boxgate/proxy/header"
	"boxgate/proxy/origin"
)

// upload sends the body of a request on a stream to the upstream, in a goroutine.
type upload struct {
	st      *stream
	to      *upstream.Stream
	body    *uploadBody
	proceed chan bool     // tells an upload that waits for 100 whether to begin; nil if none waits
	done    chan struct{} // closed when it has ended
}

func (st *stream) upload(to *upstream.Stream, body *uploadBody) *upload {
	u := &upload{st: st, to: to, body: body, done: make(chan struct{})}
	if st.expects {
		u.proceed = make(chan bool, 1)
	}
	go u.run()
	return u
}

func (u *upload) run() {
	defer close(u.done)
	err := contain.ErrFault
	defer func() {
		if err != nil { // the upstream must not take the partial body for the whole
			u.to.Fail(err)
		}
	}()
	defer contain.Panic(u.st.s.Core.Log, u.st.s.Box.ID, func() {})
	if !u.wanted() {
		err = nil
		return
	}
	err = u.send()
}

// wanted waits, for a client that waits for 100, until the server asks for the body or has had time to.
func (u *upload) wanted() bool {
	if u.proceed == nil {
		return true
	}
	limit := time.NewTimer(origin.ExpectWait)
	defer limit.Stop()
	select {
	case wanted := <-u.proceed:
		return wanted
	case <-limit.C:
		return true
	case <-u.body.closed:
		return false
	}
}

// told signals an upload that waits for the server's response.
func (u *upload) told(wanted bool) {
	if u == nil {
		return
	}
	select {
	case u.proceed <- wanted: // the first one counts
	default:
	}
}

// send sends the body with its trailers. It returns no error if the stream takes no more: whoever reads the response learns
// why.
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
		case errors.Is(err, http.ErrBodyReadAfterClose):
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
		_ = u.body.Close()
	}
}

// responseBody is the body of a response over HTTP/2.
type responseBody struct {
	*upstream.Stream
	upload  *upload     // nil if the request has no body
	trailer http.Header // of the response: filled in at the end
}

// Read implements io.Reader.
func (b *responseBody) Read(p []byte) (int, error) {
	n, err := b.Stream.Read(p)
	if errors.Is(err, io.EOF) {
		maps.Copy(b.trailer, headerOf(b.Trailers()))
	}
	return n, err
}

// Close ends the exchange, and waits for the end of the upload.
func (b *responseBody) Close() error {
	b.Stream.Close()
	if b.upload != nil {
		b.upload.stop()
		<-b.upload.done
	}
	return nil
}

// response waits for the final head of a response, and passes interim ones on.
func (st *stream) response(body *responseBody) (*http.Response, error) {
	for {
		h, err := body.Head()
		if err != nil {
			return nil, err
		}
		if h.Interim() {
			st.interim(&h, body.upload)
			continue
		}
		return st.final(&h, body), nil
	}
}

// interim passes a 1xx response on, but for a 100: the client was sent one when its body was first read.
func (st *stream) interim(head *upstream.Head, u *upload) {
	if head.Status == http.StatusContinue {
		u.told(true)
		return
	}
	h := st.w.Header()
	header.Copy(h, headerOf(head.Fields))
	exchange.MaskHeader(st.ruling.Scrub, h)
	st.w.WriteHeader(head.Status)
	clear(h)
	h["Date"] = nil
}

// final returns the response with its final head. A server that answers with an error or a redirect is taken to need no
// more of the request.
func (st *stream) final(h *upstream.Head, body *responseBody) *http.Response {
	if u := body.upload; u != nil {
		u.body.source.forget()
		u.told(h.Status <= 299)
		if h.Status > 299 {
			u.stop()
		}
	}
	res := &http.Response{StatusCode: h.Status, Header: headerOf(h.Fields), ContentLength: h.Length, Body: body}
	if length := res.Header["Content-Length"]; len(length) > 1 { // of equal ones
		res.Header["Content-Length"] = length[:1]
	}
	if res.Trailer = announced(res.Header["Trailer"]); res.Trailer == nil {
		res.Trailer = http.Header{}
	}
	body.trailer = res.Trailer
	if h.Length < 0 && h.End && st.r.Method != http.MethodHead {
		res.ContentLength = 0
	}
	return res
}
