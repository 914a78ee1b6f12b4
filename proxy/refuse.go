package proxy

import (
	"bufio"
	"errors"
	"io"
	"net/http"
	"os"
	"time"

	"boxgate/audit"
	"boxgate/internal/memory"
	"boxgate/internal/socket"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy/peek"
	"boxgate/proxy/problem"
)

const (
	pageBytes   = 64 << 10
	pageTimeout = 5 * time.Second // for reading the request that the denial page answers
)

// refuse refuses the connection in its own protocol and records the reason, replacing any earlier decision.
func (c *conn) refuse(k peek.Kind, why name.Reason) {
	c.event.Verdict, c.event.Action, c.event.Reason = policy.Deny, audit.ActionRefuse, why
	if k == peek.TLS || k == peek.BadTLS {
		_ = c.tcp.SetWriteDeadline(time.Now().Add(socket.LingerTime))
		_, _ = c.tcp.Write(accessDenied) // the client may have disconnected
		c.linger = true
		return
	}
	socket.Reset(c.tcp)
}

// deny refuses a connection that the policy denied: with an alert, or with a denial page if pages are enabled, the name is
// a public one, and the box is within its limit of interceptions. The page's leaf is issued by the box's CA, which other
// machines may trust as well, so names that mean a different host on each machine get no leaf.
func (c *conn) deny(f peek.First, rt policy.Route) {
	if c.p.cfg.DenyPage && f.Kind == peek.TLS && !f.NamesRoot() && f.Name.IsPublic() && !c.p.belongsToHost(f.Name) && c.live.Denied() == nil {
		if page := c.usage.Intercept(c.p.cfg.MaxInterceptions, len(f.Data)); page != nil {
			defer page.End()
			c.denyPage(f, rt)
			return
		}
	}
	c.refuse(f.Kind, rt.Decision.Reason)
}

// refusePeek refuses a connection whose first message could not be read.
func (c *conn) refusePeek(f peek.First, err error) {
	c.event.Name = f.SNI
	c.nameByDNS()
	switch {
	case errors.Is(err, memory.ErrFull):
		c.refuse(peek.Other, name.ReasonLimit)
	case f.Kind == peek.Oversize:
		c.refuse(peek.Other, name.ReasonPeekSize)
	case errors.Is(err, os.ErrDeadlineExceeded):
		c.refuse(peek.Other, name.ReasonPeekTimeout)
	case c.live.Stopped() != nil:
		c.refuse(peek.Other, name.ReasonPeekTimeout) // its deadline was shortened
	case c.live.Denied() != nil: // cut while peeking
		c.refuse(peek.Other, name.ReasonPolicyChanged)
	default:
		c.event.Error = err.Error()
		c.refuse(peek.Other, name.ReasonNoName)
	}
}

// denyPage terminates TLS with a leaf, reads one request and answers it with 403. The request is not forwarded: the decision
// applies to the whole connection.
func (c *conn) denyPage(f peek.First, rt policy.Route) {
	c.event.Verdict, c.event.Action, c.event.Reason = policy.Deny, audit.ActionRefuse, rt.Decision.Reason
	client, err := c.p.terminate(c.box, newReplay(c, f.Data), len(f.Data), f.Name, []string{"http/1.1"}, false)
	if err != nil {
		c.event.Error = err.Error()
		socket.Reset(c.tcp)
		return
	}
	_ = client.SetDeadline(time.Now().Add(pageTimeout))
	_, err = http.ReadRequest(bufio.NewReader(io.LimitReader(client, pageBytes)))
	if err != nil {
		c.event.Error = err.Error()
		socket.Reset(c.tcp)
		return
	}
	answer := problem.Of(rt.Err())
	c.event.Status = answer.Status
	_ = problem.Write(client, answer) // the client may have disconnected
	_ = client.CloseWrite()
	c.linger = true
}

// accessDenied is a TLS record with the fatal alert access_denied (RFC 8446, 6.2): the answer to a ClientHello with a
// refused name. It is sent before any certificate, so the client sees a refusal and not an untrusted server.
var accessDenied = []byte{21, 3, 3, 0, 2, 2, 49}
