package origin

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/netip"
	"strconv"
	"time"

	"boxgate/internal/fault"
	"boxgate/internal/socket"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy/problem"
	"boxgate/proxy/proxydial"
)

// This file connects to servers through upstream proxies. There is no fallback: if a proxy fails, the server is not dialled
// directly.

// passage is a connection to a server through a proxy.
type passage struct {
	net.Conn                // to the proxy, which forwards the server's bytes
	to       netip.AddrPort // the server; without an address if only the proxy knows it
}

// NetConn returns the connection to the proxy.
func (c *passage) NetConn() net.Conn { return c.Conn }

// RemoteAddr returns the address of the server, which is invalid if only the proxy knows it.
func (c *passage) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(c.to) }

// CloseWrite closes the sending side.
func (c *passage) CloseWrite() error {
	socket.CloseWrite(c.Conn)
	return nil
}

// Plain returns the TCP connection that carries exactly the bytes of c: c itself, or the connection to a proxy. It returns
// false if a layer in between changes them, such as TLS to a proxy.
func Plain(c net.Conn) (*net.TCPConn, bool) {
	if p, ok := c.(*passage); ok {
		c = p.Conn
	}
	tcp, ok := c.(*net.TCPConn)
	return tcp, ok
}

// judgeLookup limits the lookup of a name that a proxy resolves.
const judgeLookup = time.Second

// judgeName judges a name that the proxy will resolve. If the gateway can resolve it as well, all of its addresses must be
// allowed: a proxy must not give access to protected addresses.
func (p *Origins) judgeName(ctx context.Context, box *policy.Box, d Target) error {
	ctx, cancel := context.WithTimeout(ctx, judgeLookup)
	defer cancel()
	addrs, err := p.cfg.Resolver.LookupBoth(ctx, box, d.name)
	if err != nil && len(addrs) == 0 {
		return p.judgeDial(ctx, box, d, netip.Addr{}) // cannot be resolved here, as in a network where only the proxy is reachable
	}
	for _, a := range addrs {
		if err := p.judgeDial(ctx, box, d, a); err != nil {
			return err
		}
	}
	return p.judgeDial(ctx, box, d, netip.Addr{})
}

// dialBy connects box to one address of d through the proxy of its route, or to its name if the proxy resolves it. Errors
// about the proxy are hidden from the box.
func (p *Origins) dialBy(ctx context.Context, box *policy.Box, d Target, a netip.Addr) (net.Conn, error) {
	if err := p.judgeDial(ctx, box, d, a); err != nil {
		return nil, err
	}
	port := strconv.Itoa(int(d.Asked.Port))
	to := net.JoinHostPort(a.Unmap().String(), port)
	if !a.IsValid() {
		to = net.JoinHostPort(d.name.String(), port)
	}
	as, revoked, err := p.credentials(ctx, d.Upstream)
	if err != nil {
		return nil, &problem.Upstream{Reason: name.ReasonSecretUnavailable, Name: d.shown, Err: errors.New("the password for the upstream proxy: " + err.Error())}
	}
	conn, err := p.reach(ctx, box, d.Upstream)
	if err == nil {
		err = proxydial.Connect(ctx, conn, d.Upstream.Scheme, to, as)
		if err == nil && revoked() {
			err = errRevoked
		}
		if err == nil {
			return &passage{conn, netip.AddrPortFrom(a.Unmap(), d.Asked.Port)}, nil
		}
		socket.Abort(conn)
	}
	return nil, &problem.Upstream{Reason: name.ReasonUpstreamProxy, Name: d.shown, Err: errors.New(d.Upstream.URL() + ": " + err.Error())}
}

// errFenced refuses a login by a rule of the fleet.
var errFenced = errors.New("the rule with the login is one of the fleet, and this host is cut off from the fleet")

// errRevoked refuses a connection whose password was revoked during the login.
var errRevoked = errors.New("the password was revoked")

// credentials returns the gateway's credentials for a proxy, which may be nil, and a function that reports whether they have been
// revoked since.
func (p *Origins) credentials(ctx context.Context, by *policy.UpstreamProxy) (as *proxydial.Credentials, revoked func() bool, err error) {
	never, l := func() bool { return false }, by.Login
	if l == nil {
		return nil, never, nil
	}
	password := l.Password()
	switch {
	case by.Fenced():
		return nil, never, errFenced
	case password.Source == "":
		return &proxydial.Credentials{User: l.Username(), Password: password.Literal}, never, nil
	case p.cfg.Credential == nil:
		return nil, never, errors.New("the gateway has no secrets")
	}
	value, revoked, err := p.cfg.Credential(ctx, password.Source, by.Name, by.Port)
	if err == nil && by.Fenced() { // fetching it may have taken long
		return nil, never, errFenced
	}
	return &proxydial.Credentials{User: l.Username(), Password: value}, revoked, err
}

// reach connects to a proxy as the policy for it allows, through another proxy if that is the only way. The certificate of
// a TLS proxy is verified.
func (p *Origins) reach(ctx context.Context, box *policy.Box, by *policy.UpstreamProxy) (net.Conn, error) {
	own, decides := &policy.Box{ID: box.ID}, box.Policy.Load().Reach(by)
	own.Policy.Store(decides)
	asked := policy.Request{Stage: policy.StageConn, Box: box.ID, Name: by.Name, Addr: by.Addr, Port: by.Port, Protocol: policy.TCP}
	known := policy.Evidence{Opening: policy.OpeningOther}
	if !by.Name.IsZero() {
		known.Opening = policy.OpeningSecure // its name is the destination, not a claim
	}
	rt := p.cfg.Router.Route(ctx, decides, own, asked, known)
	if err := rt.Err(); err != nil {
		return nil, err
	}
	conn, err := p.Dial(ctx, own, To(rt, false))
	if err != nil || by.Scheme != policy.ProxyHTTPS {
		return conn, err
	}
	var secure *socket.Terminated
	secure = socket.Initiate(direct(conn), &tls.Config{
		ServerName: by.Host(), RootCAs: p.cfg.Roots, NextProtos: alpnHTTP1, MinVersion: tls.VersionTLS12, Time: fault.Now,
		VerifyConnection: func(cs tls.ConnectionState) error { return verify(cs, secure.Start()) },
	})
	if err := secure.HandshakeContext(ctx); err != nil {
		socket.Abort(conn)
		return nil, err
	}
	secure.Established()
	return secure, nil
}
