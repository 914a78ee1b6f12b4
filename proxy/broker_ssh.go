package proxy

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	gossh "golang.org/x/crypto/ssh"

	"boxgate/audit"
	"boxgate/internal/socket"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy/exchange"
	"boxgate/proxy/peek"
	"boxgate/proxy/problem"
	"boxgate/proxy/ssh"
	"boxgate/proxy/tunnel"
	"boxgate/rule"
	sshrule "boxgate/rule/ssh"
)

// This file logs in to SSH servers on behalf of boxes.

// ssh logs in to an SSH server and forwards the sessions.
func (c *conn) ssh(f peek.First, b *brokered, login *sshrule.Login) {
	identity, err := c.sshIdentity()
	if err != nil {
		c.event.Error = err.Error()
		c.refuse(peek.Other, name.ReasonInternal)
		return
	}
	var lost atomic.Bool
	unwatch := func() {}
	defer func() { unwatch() }()
	err = ssh.Serve(c.ctx, newReplay(c, f.Data), ssh.Login{
		Rule: login, Host: b.rt.Request.Name, Port: c.port, Identity: identity, Memory: c.usage.Memory,
		Box: c.box.ID, Log: c.p.cfg.Log, Handshake: c.p.cfg.DialTimeout + c.p.cfg.HandshakeTimeout, Idle: c.p.cfg.IdleTimeout,
		Key: func(ctx context.Context) (name.Secret, error) {
			return b.secret(ctx, rule.Value{Source: login.Secret})
		},
		Dial: func(ctx context.Context) (net.Conn, error) {
			up, err := b.dial(ctx, netip.Addr{})
			if err == nil {
				exchange.Dialled(&c.event, addrPort(up.RemoteAddr()).Addr(), c.orig.Addr())
				unwatch = c.p.core.Tunnels.WatchLost(up, func() { lost.Store(true); socket.Reset(up) })
			}
			return up, err
		},
		OnLogin: func() {
			c.startTraffic()
			b.loggedIn.Store(true)
		},
		OnRequest: c.askSSH,
	})
	c.linger = true
	switch {
	case err != nil:
		c.recordSSHFailure(err)
	case lost.Load() && c.live.Denied() == nil:
		c.event.Error = tunnel.ErrLost.Error()
	}
}

// sshIdentity returns the host key that the gateway presents to the box.
func (c *conn) sshIdentity() (gossh.Signer, error) {
	if c.p.cfg.SSHKeys == nil {
		return nil, errors.New("the gateway has no keys for SSH")
	}
	key, err := c.p.cfg.SSHKeys.SSHKey(c.box.ID)
	if err != nil {
		return nil, err
	}
	return gossh.NewSignerFromSigner(key)
}

// recordSSHFailure records why the box was not logged in. The client has already received the reason, if it spoke SSH.
func (c *conn) recordSSHFailure(err error) {
	var failure *ssh.Failure
	switch {
	case errors.As(err, &failure):
		c.recordLoginFailure(err)
		if c.event.Reason = failure.Reason; failure.Reason == name.ReasonUnreachable {
			c.event.Reason = cmp.Or(reasonOf(failure.Err), failure.Reason)
		}
	case errors.Is(err, os.ErrDeadlineExceeded):
		c.recordLoginFailure(err)
		c.event.Reason = name.ReasonPeekTimeout
	default:
		c.recordLoginFailure(err)
		c.event.Reason = name.ReasonProtocol
	}
	if cut := c.live.Denied(); cut != nil {
		c.event.Reason = exchange.CutReason(cut.Decision)
	}
}

// reasonOf returns the reason why a server could not be dialled, or "" for other errors.
func reasonOf(err error) name.Reason {
	var denied *policy.DeniedError
	var up *problem.Upstream
	if errors.As(err, &denied) || errors.As(err, &up) {
		return problem.Of(err).Reason
	}
	return ""
}

// askSSH records a command, or another request on the connection, as a decision of its own.
func (c *conn) askSSH(a ssh.Request) (ended func(ssh.Outcome), ok bool) {
	e := &audit.Event{
		Time: time.Now(), Box: c.box.ID, Stage: policy.StageConn, Protocol: policy.TCP, Name: c.event.Name, Addr: c.event.Addr, Port: c.port,
		Method: a.Verb, Path: a.What, Verdict: a.Decision.Verdict, Action: audit.ActionBroker, Version: c.event.Version,
		Reason: cmp.Or(a.Decision.Reason, c.event.Reason), Rule: cmp.Or(a.Decision.Rule, c.event.Rule), Login: c.event.Login, Secret: c.event.Secret,
	}
	if !c.usage.Requests.Allow() {
		e.Verdict, e.Action, e.Reason = policy.Deny, audit.ActionRefuse, name.ReasonLimit
		c.usage.Excess.Add(*e)
		return nil, false
	}
	if !a.Decision.Allowed() {
		e.Action = audit.ActionRefuse
		return func(ssh.Outcome) { c.p.cfg.Audit.Record(*e) }, true
	}
	opening := &audit.Opening{}
	opening.Begin(c.p.cfg.Audit, e)
	return func(o ssh.Outcome) {
		e.BytesIn, e.BytesOut, e.Duration = o.In, o.Out, time.Since(e.Time)
		if why := c.live.Stopped(); why != nil {
			e.Error = why.Error()
		} else if d := c.live.Denied(); d != nil {
			e.Verdict, e.Action, e.Reason, e.Rule = policy.Deny, audit.ActionRefuse, exchange.CutReason(d.Decision), d.Decision.Rule
		}
		opening.End(e)
		c.p.cfg.Audit.Record(*e)
	}, true
}
