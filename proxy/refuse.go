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
	"boxgate/policy"
	"boxgate/proxy/peek"
	"boxgate/proxy/problem"
	"boxgate/proxy/socket"
)

const (
	pageBytes   = 64 << 10
	pageTimeout = 5 * time.Second // for the request that a denial page answers
)

// refuse ends the connection in the words of its protocol and notes why. Whatever was decided before, it was refused.
func (c *conn) refuse(k peek.Kind, why policy.Reason) {
	c.event.Verdict, c.event.Action, c.event.Reason = policy.Deny, audit.ActionRefuse, why
	if k == peek.TLS || k == peek.BadTLS {
		_ = c.tcp.SetWriteDeadline(time.Now().Add(socket.LingerTime))
		_, _ = c.tcp.Write(accessDenied) // a client that is gone needs no alert
		c.last = true
		return
	}
	socket.Reset(c.tcp)
}

// deny refuses what the policy denied: with an alert, or with a page where one was asked for, the name can be that of a
// server on the internet, and the box may have one more interception. The page is under a leaf of the box's CA, which
// others may trust as well: there is none for names that mean another machine to each of them.
func (c *conn) deny(f peek.First, rt policy.Route) {
	if c.p.cfg.DenyPage && f.Kind == peek.TLS && f.Name.IsPublic() && !c.p.isHosts(f.Name) && c.live.Denied() == nil {
		if c.usage.Intercept(c.p.cfg.MaxInterceptions) {
			defer c.usage.EndIntercept()
			c.denyPage(f, rt)
			return
		}
	}
	c.refuse(f.Kind, rt.Decision.Reason)
}

// refusePeek refuses a connection whose first message could not be read.
func (c *conn) refusePeek(f peek.First, err error) {
	c.event.Name = f.SNI
	switch {
	case errors.Is(err, memory.ErrFull):
		c.refuse(peek.Other, policy.ReasonLimit)
	case f.Kind == peek.Oversize:
		c.refuse(peek.Other, policy.ReasonPeekSize)
	case errors.Is(err, os.ErrDeadlineExceeded):
		c.refuse(peek.Other, policy.ReasonPeekTimeout)
	case c.live.Stopped() != nil:
		c.refuse(peek.Other, policy.ReasonPeekTimeout) // its time was over early
	case c.live.Denied() != nil: // cut while it was peeked
		c.refuse(peek.Other, policy.ReasonPolicyChanged)
	default:
		c.event.Error = err.Error()
		c.refuse(peek.Other, policy.ReasonNoName)
	}
}

// denyPage terminates TLS under a leaf, reads one request and answers it with 403. Nothing is forwarded, whatever it
// asks; the decision was made for the connection.
func (c *conn) denyPage(f peek.First, rt policy.Route) {
	c.event.Verdict, c.event.Action, c.event.Reason = policy.Deny, audit.ActionRefuse, rt.Decision.Reason
	client, err := c.p.terminate(c.ctx, c.box, newReplay(c, f.Data), f.Name, []string{"http/1.1"})
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
	_ = problem.Write(client, answer) // a client that is gone needs no page
	_ = client.CloseWrite()
	c.last = true
}

// accessDenied is a TLS record holding the fatal alert access_denied (RFC 8446, 6.2): the answer to a ClientHello whose
// name is refused, sent before any certificate, so the client learns that it was refused and by no impostor.
var accessDenied = []byte{21, 3, 3, 0, 2, 2, 49}
