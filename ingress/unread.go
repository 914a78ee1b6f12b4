package ingress

import (
	"context"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"boxgate/audit"
	"boxgate/policy"
)

// unread is one connection of a client. It detects what net/http refuses by itself: a request header that it cannot
// read is answered with 400 or 431 without calling the handler. Then a request has begun, and the connection ends
// without the handler having received one.
type unread struct {
	began atomic.Int64 // when a request began that has not reached the handler yet, in Unix nanoseconds; 0: none
}

// unreadKey finds the connection of a request in its context.
type unreadKey struct{}

// tellUnread makes a server record what it refuses before the handler sees it.
func (g *Ingress) tellUnread(srv *http.Server) {
	var conns sync.Map // net.Conn → *unread, of those that are open
	srv.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		u := &unread{}
		conns.Store(c, u)
		return context.WithValue(ctx, unreadKey{}, u)
	}
	srv.ConnState = func(c net.Conn, state http.ConnState) {
		v, ok := conns.Load(c)
		if !ok {
			return
		}
		u, ok := v.(*unread)
		switch {
		case !ok:
		case state == http.StateActive:
			u.began.Store(time.Now().UnixNano())
		case state == http.StateHijacked, state == http.StateClosed:
			conns.Delete(c)
			if began := u.began.Load(); began != 0 && state == http.StateClosed {
				g.refusedUnread(time.Unix(0, began), "no request could be read")
			}
		}
	}
	handler := srv.Handler
	srv.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if u, ok := r.Context().Value(unreadKey{}).(*unread); ok {
			u.began.Store(0)
		}
		handler.ServeHTTP(w, r)
	})
	srv.HTTP2 = &http.HTTP2Config{CountError: func(what string) {
		if !strings.HasSuffix(what, "_closed") { // a body that continues after its answer
			g.refusedUnread(time.Now(), "HTTP/2: "+what)
		}
	}}
}

// refusedUnread records a refusal about which nothing else is known.
func (g *Ingress) refusedUnread(began time.Time, why string) {
	if g.Audit == nil {
		return
	}
	g.Audit.Record(audit.Event{
		Time: began, Stage: policy.StageURL, Protocol: policy.TCP, Verdict: policy.Deny, Action: audit.ActionRefuse,
		Reason: policy.ReasonBadRequest, Duration: time.Since(began), Error: why,
	})
}
