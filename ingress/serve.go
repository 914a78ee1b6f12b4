package ingress

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strconv"

	"boxgate/audit"
	"boxgate/policy"
)

// ServeHTTP serves a request to a public URL that net/http has read: those over HTTP/2. The event is opened before the
// first check and recorded when the request is over.
func (g *Ingress) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	w := &answer{ResponseWriter: rw}
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	v := newVisit(ofRequest(r), w, func() { cancel(errCut) }, new(audit.Opening))
	defer g.ended(&v, w)
	if g.admit(ctx, &v, (*visit).permits) {
		g.forward(ctx, &v, w, r)
	}
}

// permits reports whether the request carries a credential of its URL.
func (v *visit) permits() bool { return v.target.Auth.permits(v.values("authorization")) }

// forward passes the request to the box.
func (g *Ingress) forward(ctx context.Context, v *visit, w *answer, r *http.Request) {
	stop := w.abortWith(ctx)
	defer stop()
	r = r.WithContext(context.WithValue(ctx, visitKey{}, v))
	w.body = &countingBody{ReadCloser: r.Body}
	r.Body = w.body
	r.Header.Del("Upgrade") // which HTTP/2 does not have
	g.proxy.ServeHTTP(w, r)
}

// visitKey finds the visit of a request in its context.
type visitKey struct{}

// ended records a request that net/http has read. A panic while serving is contained here: it ends the stream, nothing
// else.
func (g *Ingress) ended(v *visit, w *answer) {
	p := recover()
	if err, _ := p.(error); p != nil && !errors.Is(err, http.ErrAbortHandler) {
		g.panicked(v)
		p = http.ErrAbortHandler
	}
	v.event.Status, v.event.BytesOut = w.status, w.sent.Load()
	if w.body != nil {
		v.event.BytesIn = w.body.n.Load()
	}
	g.record(v)
	if p != nil {
		panic(p)
	}
}

// redirector sends plain HTTP requests of known URLs to HTTPS. It neither checks credentials nor forwards anything.
func (g *Ingress) redirector(httpsPort uint16, challenge func(http.ResponseWriter, *http.Request) bool) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if challenge != nil && challenge(rw, r) {
			return
		}
		w := &answer{ResponseWriter: rw}
		v := newVisit(ofRequest(r), w, func() {}, new(audit.Opening))
		defer g.ended(&v, w)
		host, ok := hostOf(&v.asked)
		if !ok {
			v.refuse(http.StatusMisdirectedRequest, policy.ReasonURLUnknown, "This address is not a public URL.")
			return
		}
		target, ok := g.URLs.Lookup(host)
		if !ok {
			v.refuse(http.StatusNotFound, policy.ReasonURLUnknown, "There is no such public URL.")
			return
		}
		v.event.Name, v.event.Box = host, target.Box
		v.event.Verdict, v.event.Reason, v.event.Action = policy.Allow, policy.ReasonURL, audit.ActionForward
		if httpsPort != 443 {
			host = net.JoinHostPort(host, strconv.Itoa(int(httpsPort)))
		}
		w.Header().Set("Location", "https://"+host+r.RequestURI)
		w.WriteHeader(http.StatusPermanentRedirect)
	})
}

// failed answers when the box could not be reached or closed the connection before its answer.
func (g *Ingress) failed(_ http.ResponseWriter, r *http.Request, err error) {
	v, ok := r.Context().Value(visitKey{}).(*visit)
	if !ok {
		return
	}
	switch {
	case errors.Is(context.Cause(r.Context()), errCut):
		v.revoked()
	case r.Context().Err() != nil:
		v.event.Error = "the client disconnected"
		panic(http.ErrAbortHandler)
	default:
		v.unavailable(err)
	}
}
