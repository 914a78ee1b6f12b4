package proxy

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	gossh "golang.org/x/crypto/ssh"

	"boxgate/audit"
	"boxgate/internal/fault"
	"boxgate/internal/memory"
	"boxgate/internal/socket"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy/exchange"
	"boxgate/proxy/origin"
	"boxgate/proxy/peek"
	"boxgate/proxy/postgres"
	"boxgate/proxy/problem"
	"boxgate/proxy/route"
	"boxgate/proxy/ssh"
	"boxgate/proxy/tunnel"
	"boxgate/relay"
	"boxgate/relay/h1"
	"boxgate/rule"
	postgresrule "boxgate/rule/postgres"
	sshrule "boxgate/rule/ssh"
)

// This part logs in to servers that do not speak HTTP, on behalf of boxes.

// brokered is a connection on which the gateway logs in to a server. It remains allowed while the policy has the same login
// for its host and port, and the secret is not revoked.
type brokered struct {
	c          *conn
	rt         route.Routed
	login      rule.Login
	credential atomic.Pointer[exchange.Credential] // nil until a secret of the configuration is used
	loggedIn   atomic.Bool                         // the login is complete and data passes
}

// Recheck implements [live.Requests].
func (b *brokered) Recheck(c *policy.Compiled) policy.Decision {
	switch {
	case !sameLogin(b.login, c.Login(b.rt.Request.Name, b.c.port)):
		return policy.Decision{Reason: name.ReasonPolicyChanged, Version: route.Version(c)}
	case b.Revoked():
		return policy.Decision{Reason: name.ReasonSecretUnavailable, Rule: b.authority(), Version: route.Version(c)}
	}
	return policy.Decision{Verdict: policy.Allow}
}

// sameLogin reports whether a connection that was logged in with one login may continue under another.
func sameLogin(a, b rule.Login) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Key() == b.Key() && a.Equal(b)
}

// Revoked implements [live.Requests].
func (b *brokered) Revoked() bool {
	used := b.credential.Load()
	return used != nil && used.Revoked()
}

// InFlight implements [live.Requests].
func (b *brokered) InFlight() bool { return b.loggedIn.Load() }

// authority is the pattern of the login's rule: one host on one port.
func (b *brokered) authority() string {
	return net.JoinHostPort(b.rt.Request.Name.String(), strconv.Itoa(int(b.c.port)))
}

// secret returns the value to log in with: a literal of the rule, or the value of the secret that it names.
func (b *brokered) secret(ctx context.Context, of rule.Value) (name.Secret, error) {
	if b.c.box.Policy.Load().LoginFenced(b.rt.Request.Name, b.c.port) {
		return name.Secret{}, errFenced
	}
	if of.Source == "" {
		return of.Literal, nil
	}
	value, used, err := b.c.p.core.Credential(ctx, of.Source, b.rt.Request.Name, b.c.port)
	if err != nil {
		return name.Secret{}, err
	}
	b.credential.Store(&used)
	if b.c.box.Policy.Load().LoginFenced(b.rt.Request.Name, b.c.port) { // fetching it may have taken long
		return name.Secret{}, errFenced
	}
	if used.Revoked() { // the revocation may have missed b.used
		return name.Secret{}, errRevoked
	}
	return value, nil
}

// errFenced refuses a login by a rule of the fleet.
var errFenced = errors.New("the rule is one of the fleet, and this host is cut off from the fleet")

// errRevoked refuses a secret that was revoked while it was fetched.
var errRevoked = errors.New("the secret was revoked")

// dial connects to the server, at the given address if it is valid. From then on a cut closes the connection, and the route
// is bound to the address that was dialled.
func (b *brokered) dial(ctx context.Context, at netip.Addr) (net.Conn, error) {
	to, origins := origin.To(b.rt, true), b.c.p.core.Origins
	dial := func() (net.Conn, error) { return origins.Dial(ctx, b.c.box, to) }
	if at.IsValid() {
		dial = func() (net.Conn, error) { return origins.DialAddr(ctx, b.c.box, to, at, false) }
	}
	up, err := dial()
	if err != nil {
		return nil, err
	}
	upstream, ok := socket.TCP(up)
	if !ok || !b.c.live.Attach(upstream) {
		_ = up.Close()
		return nil, net.ErrClosed
	}
	rt := b.rt
	rt.Bind(addrPort(up.RemoteAddr()).Addr())
	if b.c.live.SetRoute(rt); b.c.p.recheck(b.c.live) {
		return nil, net.ErrClosed // recheck has closed it
	}
	return up, nil
}

// broker logs in to the server on behalf of the box, and then forwards between the two.
func (c *conn) broker(f peek.First, rt route.Routed) {
	if c.interception = c.usage.Intercept(c.p.cfg.MaxInterceptions, helloOf(f)); c.interception == nil {
		c.refuse(peek.Other, name.ReasonLimit)
		return
	}
	b := &brokered{c: c, rt: rt, login: c.box.Policy.Load().Login(rt.Request.Name, c.port)}
	c.live.Watch(b)
	if b.login == nil || c.p.recheck(c.live) { // the policy changed after the decision
		c.refuse(peek.Other, name.ReasonPolicyChanged)
		return
	}
	if c.box.Policy.Load().LoginFenced(rt.Request.Name, c.port) {
		c.refuse(peek.Other, name.ReasonFleetFenced)
		return
	}
	if !c.awaitLoginQuota() {
		c.refuse(peek.Other, name.ReasonLimit)
		return
	}
	c.event.Via, c.event.Secrets = rt.Upstream.URL(), slices.Concat(b.login.Sources(), rt.Upstream.Secrets())
	c.event.Rule, c.event.Login, c.event.Secret = b.authority(), b.login.URL(b.authority()), rule.LoginSource(b.login)
	switch login := b.login.(type) {
	case *postgresrule.Login:
		c.postgres(f, b, login)
	case *sshrule.Login:
		c.ssh(f, b, login)
	default: // unknown protocol: do not even dial
		c.refuse(peek.Other, name.ReasonInternal)
	}
}

// helloOf returns the length of the ClientHello in the first bytes, or 0 if they are not TLS.
func helloOf(f peek.First) int {
	if f.Kind != peek.TLS {
		return 0
	}
	return len(f.Data)
}

// awaitLoginQuota waits, at most for DialTimeout, until the box's rate of logins allows another one.
func (c *conn) awaitLoginQuota() bool {
	ctx, cancel := context.WithTimeout(c.ctx, c.p.cfg.DialTimeout)
	defer cancel()
	return c.usage.Logins.Wait(ctx) == nil
}

// postgres logs in to a PostgreSQL server and forwards the session.
func (c *conn) postgres(f peek.First, b *brokered, login *postgresrule.Login) {
	var server memory.Claim
	server.Open(c.usage.Memory, memory.Upstreams)
	defer server.Close()
	if !server.Grow(postgres.LoginCost) {
		c.refuse(peek.Other, name.ReasonLimit)
		return
	}
	s := &postgres.Session{
		Client: newReplay(c, f.Data), Direct: f.Kind == peek.TLS, Box: c.box.ID, Name: b.rt.Request.Name, Authority: b.authority(),
		Login: login, Keys: &c.p.keys, Roots: c.p.cfg.Roots, Clock: fault.Now, Dial: b.dial,
		Terminate: func(client net.Conn) (postgres.Secured, error) {
			return c.p.terminateAs(c.ctx, c.box, client, helloOf(f), b.rt.Request.Name, postgres.ProtocolName)
		},
		Password: func(ctx context.Context) (name.Secret, error) {
			return b.secret(ctx, login.Password)
		},
		HelloTimeout: c.p.cfg.PeekTimeout, LoginTimeout: c.p.cfg.DialTimeout + c.p.cfg.HandshakeTimeout,
	}
	link, err := s.Open(c.ctx)
	if err != nil {
		c.recordLoginFailure(err)
		return
	}
	defer link.Close()
	server.Shrink(postgres.LoginCost - postgres.LinkCost)
	exchange.Dialled(&c.event, link.Addr, c.orig.Addr())
	c.relayBrokered(b, link.Client, link.Server)
}

// relayBrokered forwards between client and server after the login.
func (c *conn) relayBrokered(b *brokered, client, server net.Conn) {
	c.startTraffic()
	b.loggedIn.Store(true)
	var read [2]atomic.Int64
	c.relayBytes(client, server, &read[0], &read[1])
}

// relayBytes forwards between client and server until both directions have ended, and counts the bytes read from each.
func (c *conn) relayBytes(client, server net.Conn, out, in *atomic.Int64) {
	var claims [2]memory.Claim
	for i := range claims {
		claims[i].Open(c.usage.Memory, memory.Buffers)
		defer claims[i].Close()
	}
	end := func(i int, conn net.Conn, read *atomic.Int64) relay.End {
		return relay.End{Conn: conn, To: conn, In: &h1.Reader{Memory: &claims[i]}, Read: read}
	}
	err := c.p.core.Tunnels.Relay(end(0, client, out), end(1, server, in), c.box.ID)
	if err != nil && c.live.Denied() == nil {
		c.event.Error = err.Error()
	}
}

// recordLoginFailure records why the login failed. The client has already received the error.
func (c *conn) recordLoginFailure(err error) {
	if errors.Is(err, postgres.ErrCancelled) {
		c.linger = true
		return
	}
	c.event.Verdict, c.event.Action, c.event.Error = policy.Deny, audit.ActionRefuse, err.Error()
	c.event.Reason = problem.Of(err).Reason
	var refused *postgres.Refusal
	if errors.As(err, &refused) {
		c.event.Reason = refused.Reason
	}
	if cut := c.live.Denied(); cut != nil {
		c.event.Reason = exchange.CutReason(cut.Decision)
	}
	var denied *policy.DeniedError
	if errors.As(err, &denied) {
		c.event.Addr, c.event.Rule, c.event.Version = denied.Request.Addr, denied.Decision.Rule, denied.Decision.Version
	}
	c.linger = true
}

// This part logs in to SSH servers on behalf of boxes.

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
		Reason: cmp.Or(a.Decision.Reason, c.event.Reason), Rule: cmp.Or(a.Decision.Rule, c.event.Rule), Login: c.event.Login, Secret: c.event.Secret, Secrets: c.event.Secrets,
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
