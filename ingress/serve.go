package ingress

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"boxgate/audit"
	"boxgate/policy"

	"go.uber.org/zap"
)

// ServeHTTP serves a request to a public URL: name, lookup, credential, origin, wake, proxy. The event is opened before
// the first check and recorded when the request or WebSocket is over.
func (g *Ingress) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	w := &answer{ResponseWriter: rw}
	v := &visit{w: w, r: r, began: time.Now()}
	v.event = audit.Event{
		Time: v.began, Stage: policy.StageURL, Protocol: policy.TCP, Name: r.Host, Method: r.Method,
		Path: r.URL.EscapedPath(), Action: audit.ActionRefuse, Reason: policy.ReasonInternal,
	}
	defer g.record(v)
	g.pass(v)
}

// visit is one request being served.
type visit struct {
	w       *answer
	r       *http.Request
	began   time.Time
	event   audit.Event
	opening audit.Opening
	target  Target
	body    *countingBody
}

// pass runs the checks in order. Each refusal ends it.
func (g *Ingress) pass(v *visit) {
	host, ok := hostOf(v.r)
	if !ok {
		v.refuse(http.StatusMisdirectedRequest, policy.ReasonURLUnknown, "This address is not a public URL.")
		return
	}
	v.event.Name = host
	target, ok := g.URLs.Lookup(host)
	if !ok {
		v.refuse(http.StatusNotFound, policy.ReasonURLUnknown, "There is no such public URL.")
		return
	}
	v.target = target
	v.event.Box, v.event.Addr, v.event.Port = target.Box, target.Addr.Addr(), target.Addr.Port()
	if !g.authentic(v) {
		return
	}
	if target.Auth.ambient(v.r) && foreign(v.r) {
		v.refuse(http.StatusForbidden, policy.ReasonURLOrigin, "Another site made this request with the password that your browser keeps for this URL.")
		return
	}
	ctx, end := g.active.begin(v.r.Context(), target)
	defer end()
	// A request that was looked up before the URL was revoked, and registered after open requests were cut, would
	// outlive it: look again.
	if again, ok := g.URLs.Lookup(host); !ok || !again.same(target) {
		v.refuse(http.StatusUnauthorized, policy.ReasonURLAuth, "The public URL has just changed.")
		return
	}
	if g.Wake != nil {
		if err := g.Wake(ctx, target.Box); err != nil {
			v.unavailable(err)
			return
		}
	}
	g.forward(ctx, v)
}

func (g *Ingress) authentic(v *visit) bool {
	if v.target.Auth.permits(v.r) {
		return true
	}
	v.w.Header()["Www-Authenticate"] = v.target.Auth.challenges()
	v.refuse(http.StatusUnauthorized, policy.ReasonURLAuth, "This public URL needs a credential.")
	return false
}

// forward passes the request to the box. From here on the decision is to allow; a 502 reverses it.
func (g *Ingress) forward(ctx context.Context, v *visit) {
	v.event.Verdict, v.event.Reason, v.event.Action = policy.Allow, policy.ReasonURL, audit.ActionForward
	if g.Audit != nil {
		v.opening.Begin(g.Audit, v.event)
	}
	stop := v.w.abortWith(ctx)
	defer stop()
	// HTTP/1.1 too may answer before the whole request has arrived; HTTP/2 always may, and returns an error here.
	_ = http.NewResponseController(v.w).EnableFullDuplex()
	r := v.r.WithContext(context.WithValue(ctx, visitKey{}, v))
	v.body = &countingBody{ReadCloser: r.Body}
	r.Body = v.body
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") || r.ProtoMajor != 1 {
		r.Header.Del("Upgrade") // such as h2c: what follows could no longer be judged
	}
	g.proxy.ServeHTTP(v.w, r)
}

// visitKey finds the visit of a request in its context.
type visitKey struct{}

// record ends a visit. A panic while serving is logged here and ends the connection, nothing else.
func (g *Ingress) record(v *visit) {
	p := recover()
	if err, _ := p.(error); p != nil && !errors.Is(err, http.ErrAbortHandler) {
		v.event.Verdict, v.event.Reason, v.event.Action = policy.Deny, policy.ReasonInternal, audit.ActionRefuse
		g.Log.Error("panic while serving a public URL", zap.String("box", string(v.target.Box)), zap.ByteString("stack", debug.Stack()))
		p = http.ErrAbortHandler
	}
	v.event.Duration = time.Since(v.began)
	v.event.Status = v.w.status
	v.event.BytesIn, v.event.BytesOut = v.w.received.Load(), v.w.sent.Load()
	if v.body != nil {
		v.event.BytesIn += v.body.n.Load()
	}
	v.opening.End(&v.event)
	if g.Audit != nil {
		g.Audit.Record(v.event)
	}
	if p != nil {
		panic(p)
	}
}

// refuse answers with problem details (RFC 9457).
func (v *visit) refuse(status int, reason policy.Reason, detail string) {
	v.event.Verdict, v.event.Action, v.event.Reason = policy.Deny, audit.ActionRefuse, reason
	if v.w.status != 0 {
		return
	}
	body, err := json.Marshal(problem{Title: http.StatusText(status), Status: status, Detail: detail, Reason: reason})
	if err != nil {
		body = []byte("{}")
	}
	h := v.w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	v.w.WriteHeader(status)
	_, _ = v.w.Write(body)
}

// unavailable answers that the box cannot be reached. The cause is only logged: the client may be anybody.
func (v *visit) unavailable(err error) {
	v.event.Error = err.Error()
	v.refuse(http.StatusBadGateway, policy.ReasonURLUnavailable, "The box does not answer on this port.")
}

// problem is the body of a refusal.
type problem struct {
	Title  string        `json:"title"`
	Status int           `json:"status"`
	Detail string        `json:"detail"`
	Reason policy.Reason `json:"reason"`
}

// hostOf returns the host a request is for, in lower case without port and trailing dot. It refuses what others could
// read as another host: an IP address, an absolute-form target (it overrides the Host header), CONNECT, and a Host that
// differs from the server name of the TLS connection.
func hostOf(r *http.Request) (string, bool) {
	if r.ProtoMajor == 1 && !strings.HasPrefix(r.RequestURI, "/") || r.Method == http.MethodConnect {
		return "", false
	}
	host := bareHost(r.Host)
	if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil || host == "" {
		return "", false
	}
	if r.TLS != nil && r.TLS.ServerName != "" && bareHost(r.TLS.ServerName) != host {
		return "", false
	}
	return host, true
}

func bareHost(hostport string) string {
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		hostport = h
	}
	return strings.ToLower(strings.TrimSuffix(hostport, "."))
}

// redirector sends plain HTTP requests of known URLs to HTTPS. It neither checks credentials nor forwards anything.
func (g *Ingress) redirector(httpsPort uint16, challenge func(http.ResponseWriter, *http.Request) bool) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if challenge != nil && challenge(rw, r) {
			return
		}
		v := &visit{w: &answer{ResponseWriter: rw}, r: r, began: time.Now()}
		v.event = audit.Event{
			Time: v.began, Stage: policy.StageURL, Protocol: policy.TCP, Name: r.Host, Method: r.Method,
			Path: r.URL.EscapedPath(), Action: audit.ActionRefuse, Reason: policy.ReasonURLUnknown,
		}
		defer g.record(v)
		host, ok := hostOf(r)
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
		v.w.Header().Set("Location", "https://"+host+r.RequestURI)
		v.w.WriteHeader(http.StatusPermanentRedirect)
	})
}
