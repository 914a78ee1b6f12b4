package http1

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/url"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/audit"
	"boxgate/boundary"
	"boxgate/internal/memory"
	"boxgate/internal/socket"
	"boxgate/proxy/exchange"
	"boxgate/proxy/problem"
	"boxgate/proxy/recovery"
	"boxgate/relay"
)

// This part answers the requests of boxes to the endpoint of the gateway.

const (
	mostInside = 64 << 10 // bytes of the body of a request
	lookInside = time.Second
)

// serveInside answers a request to the endpoint of the gateway. A nil error means that the connection can carry another request.
func (h *conn) serveInside() error {
	h.x.Event.Action = audit.ActionAnswer
	h.x.Uncaptured()
	body, err := h.insideBody()
	if err != nil || body == nil {
		return err
	}
	target, err := url.ParseRequestURI(string(h.Req.Path))
	if err != nil {
		return h.refuse(exchange.BadRequest("The path of the request is malformed."))
	}
	ctx, cancel := context.WithCancel(h.ctx)
	defer cancel()
	r := (&http.Request{
		Method: h.Method, URL: target, Host: boundary.Host, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, RequestURI: string(h.Req.Path),
		Header: http.Header{}, Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)),
	}).WithContext(ctx)
	for _, v := range relay.Values(h.Req.Fields, "content-type") {
		r.Header.Add("Content-Type", v)
	}
	stop := h.endWithClient(cancel)
	w := insideWriter{header: http.Header{}}
	w.held.Open(h.s.Usage.Memory, memory.Buffers)
	defer w.held.Close()
	served := h.callInside(&w, r)
	stop()
	switch {
	case !served:
		return h.refuse(&problem.Problem{Status: http.StatusInternalServerError, Reason: "internal"})
	case w.full:
		return h.refuse(exchange.NoMemory())
	}
	return h.replyInside(&w)
}

// callInside calls the endpoint. It returns false if that panicked.
func (h *conn) callInside(w *insideWriter, r *http.Request) (served bool) {
	defer recovery.Panic(h.s.Core.Log, h.s.Box.ID, func() { served = false })
	h.s.Core.Inside.ServeBox(h.s.Box, w, r)
	return true
}

// insideBody reads the body of the request; it is empty if there is none. If the body is nil, the client was answered or has
// disconnected, and the error reports whether the connection can carry another request.
func (h *conn) insideBody() ([]byte, error) {
	if h.Req.Body.Empty() {
		return []byte{}, nil
	}
	if h.Req.Body.Length > mostInside {
		h.Head = 0
		return nil, h.refuse(&problem.Problem{Status: http.StatusRequestEntityTooLarge, Reason: "bad_request", Detail: "The body is larger than 64 KiB."})
	}
	if err := h.detach(); err != nil {
		return nil, err
	}
	h.resetBody()
	w := h.s.Buffer()
	h.body.rewriting = w
	defer h.body.close()
	whole, err := h.readBody(&h.body, w)
	switch {
	case err != nil:
		return nil, h.unread(err)
	case !whole || len(w.Body) > mostInside:
		h.Head = 0
		return nil, h.refuse(&problem.Problem{Status: http.StatusRequestEntityTooLarge, Reason: "bad_request", Detail: "The body is larger than 64 KiB."})
	}
	return append([]byte{}, w.Body...), nil
}

// endWithClient calls end when the client has disconnected, until stop is called. A client that has ended its side only is
// assumed to have disconnected: it gets an answer without further waiting.
func (h *conn) endWithClient(end func()) (stop func()) {
	done := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(lookInside)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				if s := socket.State(h.Conn); s == unix.BPF_TCP_CLOSE || s == unix.BPF_TCP_CLOSE_WAIT {
					end()
				}
			}
		}
	}()
	return func() { close(done); <-ended }
}

// replyInside writes the response of the endpoint.
func (h *conn) replyInside(w *insideWriter) error {
	fields := [][2]string{}
	for _, name := range []string{"Content-Type", "Cache-Control", "X-Content-Type-Options", "Retry-After", "Allow", "Location"} {
		if v := w.header.Get(name); v != "" {
			fields = append(fields, [2]string{name, v})
		}
	}
	status := w.status
	if status == 0 {
		status = http.StatusOK
	}
	h.x.Event.Status = status
	keep := !h.Req.Close && w.header.Get("Connection") != "close"
	_, err := h.Reply(&relay.Reply{Status: status, Fields: fields, Body: w.body.Bytes(), Minor: h.Req.Minor, Head: h.Method == http.MethodHead, Keep: keep})
	if err != nil {
		return err
	}
	if !keep {
		return relay.ErrLinger
	}
	h.In.Take(h.Head)
	return nil
}

// insideWriter keeps a response in memory, which is memory of the box until the client has read it.
type insideWriter struct {
	header http.Header
	status int
	body   bytes.Buffer
	held   memory.Claim
	full   bool // the box has reached its limit, so the response is incomplete
}

// Header implements [http.ResponseWriter].
func (w *insideWriter) Header() http.Header { return w.header }

// WriteHeader implements [http.ResponseWriter].
func (w *insideWriter) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
}

// Write implements [http.ResponseWriter].
func (w *insideWriter) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	if w.full || !w.held.Grow(2*len(p)) { // the output has a copy
		w.full = true
		return 0, memory.ErrFull
	}
	return w.body.Write(p)
}
