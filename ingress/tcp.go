package ingress

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"boxgate/audit"
	"boxgate/internal/socket"
	"boxgate/relay"
	"boxgate/relay/h1"
)

// halfOpenTime is how long a connection of raw TCP may be silent after one side has ended its direction. A connection that is
// open both ways may be silent for any time.
const halfOpenTime = 5 * time.Minute

// noProtocol is offered to visitors that offer HTTP, so that the handshake fails with the alert no_application_protocol.
const noProtocol = "boxgate-raw"

// configOf returns the TLS settings for a ClientHello: settings, except for public URLs of raw TCP.
func (g *Ingress) configOf(settings *tls.Config) func(*tls.ClientHelloInfo) (*tls.Config, error) {
	return func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		if err := decided(hello); err != nil {
			return nil, err
		}
		t, ok := g.URLs.Lookup(bareHost(hello.ServerName))
		if !ok || t.Protocol != TCP || g.Validation != "" && slices.Contains(hello.SupportedProtos, g.Validation) {
			return nil, nil
		}
		raw := settings.Clone()
		raw.NextProtos = rawProtocol(hello.SupportedProtos)
		return raw, nil
	}
}

// rawProtocol chooses the application protocol of a raw TCP connection: the first that the visitor offers, if any. A visitor
// that offers HTTP, as browsers do, is refused, whatever it also offers (RFC 8701 clients add reserved values): a page could
// otherwise make a browser send requests to a service that interprets them differently.
func rawProtocol(offered []string) []string {
	if slices.ContainsFunc(offered, isHTTP) {
		return []string{noProtocol}
	}
	return offered[:min(1, len(offered))]
}

// isHTTP reports whether an application protocol is a version of HTTP.
func isHTTP(protocol string) bool {
	return strings.HasPrefix(protocol, "http/") || strings.HasPrefix(protocol, "h2") || strings.HasPrefix(protocol, "h3") ||
		strings.HasPrefix(protocol, "spdy/")
}

// isRaw reports whether a connection with this negotiated protocol is for a public URL of raw TCP.
func (g *core) isRaw(sni, agreed string) bool {
	if isHTTP(agreed) {
		return false
	}
	t, ok := g.URLs.Lookup(bareHost(sni))
	return ok && t.Protocol == TCP
}

// passage is one connection to a public URL of raw TCP.
type passage struct {
	g       *core
	visitor *visitor
	conn    net.Conn // TLS
	ctx     context.Context
	cancel  context.CancelCauseFunc
	box     atomic.Pointer[net.Conn] // nil until it is connected
	visit   visit
	opening audit.Opening
	entry   request
}

func newPassage(g *core, who *visitor, conn net.Conn) *passage {
	p := &passage{g: g, visitor: who, conn: conn}
	p.ctx, p.cancel = context.WithCancelCause(context.Background())
	return p
}

// run serves the connection until it ends. It passes the same checks as a request, and is recorded like one.
func (p *passage) run() {
	p.visit.begin(time.Now(), asked{
		host: p.visitor.sni, peer: p.visitor.addr, sni: p.visitor.sni, secure: true, inside: p.visitor.inside, network: p.visitor.network, raw: true, direct: true,
		values: func(string) []string { return nil },
	}, p, p.cutNow, &p.opening, &p.entry)
	defer p.ended()
	if !p.g.admit(p.ctx, &p.visit, p.visitor.permits) {
		return
	}
	ctx, cancel := context.WithTimeout(p.ctx, p.g.DialTimeout)
	defer cancel()
	box, err := p.g.Dial(ctx, p.visit.target)
	switch {
	case p.ctx.Err() != nil && box == nil:
		p.visit.revoked()
	case err != nil:
		p.visit.unavailable(err)
	default:
		p.pass(box)
	}
}

// pass relays bytes between the visitor and the box.
func (p *passage) pass(box net.Conn) {
	p.box.Store(&box)
	p.g.releaseBox(&p.visit)
	var received, sent atomic.Int64
	t := p.g.tunnel(&p.visit, p.conn, box, &received, &sent)
	t.Client.In, t.Server.In, t.Kill = &h1.Reader{}, &h1.Reader{}, socket.Reset
	t.Half = func() func() bool { return watch(t, p.g.halfOpen) }
	if p.ctx.Err() != nil { // a cut may have looked before box was stored
		t.Abort()
	}
	err := t.Run(p.ctx)
	p.visit.event.BytesIn, p.visit.event.BytesOut = received.Load(), sent.Load()
	switch {
	case p.ctx.Err() != nil:
		p.visit.event.Error = errCut.Error()
	case err != nil:
		p.visit.event.Error = err.Error()
	default: // a graceful close, so that the last bytes arrive
		_ = box.Close()
		_ = p.conn.Close()
	}
}

// watch aborts a tunnel that has passed no bytes for limit. stop ends the watch.
func watch(t *relay.Tunnel, limit time.Duration) (stop func() bool) {
	var timer *time.Timer
	var passed int64
	ready := make(chan struct{})
	timer = time.AfterFunc(limit, func() {
		<-ready
		if now := t.Client.Read.Load() + t.Server.Read.Load(); now != passed {
			passed = now
			timer.Reset(limit)
			return
		}
		t.Abort()
	})
	passed = t.Client.Read.Load() + t.Server.Read.Load()
	close(ready)
	return timer.Stop
}

// ended closes both connections, with a reset unless both sides have ended gracefully.
func (p *passage) ended() {
	if recover() != nil {
		p.g.panicked(&p.visit)
	}
	p.cancel(nil)
	if box := p.box.Load(); box != nil {
		socket.Reset(*box)
	}
	socket.Reset(p.conn)
	p.g.record(&p.visit)
}

// cutNow ends the connection. It never blocks.
func (p *passage) cutNow() {
	p.cancel(errCut)
	socket.Reset(p.conn)
	if box := p.box.Load(); box != nil {
		socket.Reset(*box)
	}
}

// reply implements [replier]. The protocol is unknown, so it sends no bytes: the visitor sees the connection end.
func (p *passage) reply(int, [][2]string, []byte) {}

// form implements [replier].
func (p *passage) form(int, time.Time) ([]byte, error) { return nil, errRaw }

// errRaw reports a request for a form on a connection of raw TCP.
var errRaw = errors.New("raw TCP has no forms")
