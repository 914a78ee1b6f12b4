// Package peerapi connects the admin APIs of the hosts of a fleet. [Client] sends calls for boxes of other hosts to their owners, [Server] accepts
// calls of other hosts, and [Names] keeps the boxes of this host in the directory of the fleet.
package peerapi

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"boxgate/api"
	"boxgate/api/access"
	"boxgate/api/elsewhere"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/audit"
	"boxgate/fleet"
	"boxgate/fleet/directory"
	"boxgate/fleet/node"
	"boxgate/internal/peernet"
)

// Times of connections to other hosts.
const (
	dialTimeout = 3 * time.Second
	// silentTimeout is how long the kernel of a host may leave sent bytes unacknowledged, or not answer the probes of an idle connection. The
	// call then fails; it must not wait for a host that was cut off.
	silentTimeout = 10 * time.Second
	// lookupTimeout bounds a look into the directory.
	lookupTimeout = 2 * time.Second
	idleTimeout   = time.Minute
)

// The calls to one host at a time are bounded, so that one which answers slowly does not hold everything.
const (
	mostStreams = 512
	// othersStreams is the part for callers without an admin key, keylessStreams for calls with the token of a box, which only the owner can check,
	// and holderStreams for one API key, or one address of calls with tokens.
	othersStreams  = mostStreams * 3 / 4
	keylessStreams = mostStreams / 2
	holderStreams  = othersStreams / 2
)

// mostLookups bounds the looks into the directory at a time. Any key can ask for any name, and etcd must go on to renew the leases of the hosts.
const mostLookups = 32

// clientHeader is the request header with the address of the client, for the audit trail of the owner. It is read from other hosts only.
const clientHeader = "Boxgate-Fleet-Client"

// Client sends calls to other hosts. Create it with [NewClient]. Safe for concurrent use. It implements [boxgate/api/server.Elsewhere].
type Client struct {
	fleet     *node.Node
	log       *zap.Logger
	transport *http.Transport
	find      func(ctx context.Context, name string) (directory.Owner, bool, error)
	boxes     func(ctx context.Context, host string) (map[string]directory.Entry, error)
	lookups   chan struct{} // one element for each call of find or boxes

	turns   turns
	silent  silences
	mu      sync.Mutex
	streams map[string]*streams // by host

	calls      outcomes
	turnedAway atomic.Uint64 // calls of other hosts that were refused here
	last       lastState
}

// streams are the calls to one host.
type streams struct {
	all, others, keyless int
	of                   map[holder]int
}

// holder is the caller that calls count for: an API key, or without one an address.
type holder struct {
	key, address string
	admin        bool
}

// holderOf returns the caller of a request, which is that of its context. address is its client; only calls without a key need it.
func holderOf(ctx context.Context, address string) holder {
	switch caller := api.CallerOf(ctx); {
	case caller.Role == api.RoleAdmin:
		return holder{key: caller.Key, admin: true}
	case caller.Key != "":
		return holder{key: caller.Key}
	}
	if ip, err := netip.ParseAddr(address); err == nil {
		address = peernet.Network(ip).String()
	}
	return holder{address: address}
}

// NewClient returns a client without connections.
func NewClient(f *node.Node, log *zap.Logger) *Client {
	c := &Client{
		fleet: f, log: log, streams: map[string]*streams{}, lookups: make(chan struct{}, mostLookups), calls: outcomes{hosts: map[string]experience{}},
		last: lastState{turn: make(chan struct{}, 1)},
	}
	c.find = func(ctx context.Context, name string) (directory.Owner, bool, error) {
		return f.Directory().Find(ctx, name)
	}
	c.boxes = func(ctx context.Context, host string) (map[string]directory.Entry, error) {
		return f.Directory().Boxes(ctx, host)
	}
	c.transport = &http.Transport{
		DialTLSContext: c.dial, DisableCompression: true, IdleConnTimeout: idleTimeout, MaxIdleConns: 1024, MaxIdleConnsPerHost: 64, MaxResponseHeaderBytes: 64 << 10,
	}
	return c
}

// Close closes idle connections.
func (c *Client) Close() { c.transport.CloseIdleConnections() }

// poolName returns the name of a host in URLs. It changes with the key of the host, so that no pooled connection to an earlier member with the
// same ID is used.
func poolName(h fleet.Host) string {
	return h.ID + "." + hex.EncodeToString(h.Key[:min(len(h.Key), 16)]) + ".invalid"
}

// member returns another host that is a member with an address.
func (c *Client) member(id string) (fleet.Host, error) {
	h, ok := c.fleet.Member(id)
	switch {
	case !ok && c.fleet.Fenced():
		return h, problem.Unreachable(id, "is not asked, because this host is cut off from its fleet")
	case !ok:
		return h, problem.Unreachable(id, "is not known: it is no member")
	case h.Address == "":
		return h, problem.Unreachable(id, "accepts no calls: its configuration has no fleet.advertise")
	}
	return h, nil
}

// dial connects to the host that a name of [poolName] stands for, and verifies it.
func (c *Client) dial(ctx context.Context, _, address string) (net.Conn, error) {
	id, _, _ := strings.Cut(address, ".")
	h, err := c.member(id)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*dialTimeout)
	defer cancel()
	dialer := net.Dialer{
		Timeout: dialTimeout, Control: giveUp, KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: silentTimeout / 2, Interval: silentTimeout / 5, Count: 3},
	}
	plain, err := dialer.DialContext(ctx, "tcp", h.Address)
	if err != nil {
		return nil, err
	}
	secured := tls.Client(plain, c.fleet.Peers().Client(c.fleet.Certificate, id))
	if err := secured.HandshakeContext(ctx); err != nil {
		_ = plain.Close()
		return nil, err
	}
	return secured, nil
}

// giveUp makes the kernel end a connection whose other end does not acknowledge.
func giveUp(_, _ string, c syscall.RawConn) error {
	var err error
	failed := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(silentTimeout/time.Millisecond))
	})
	if failed != nil {
		return failed
	}
	return err
}

// Owner implements [boxgate/api/server.Elsewhere].
func (c *Client) Owner(ctx context.Context, idOrName string) (host string, err error) {
	own := c.fleet.Identity.Host
	if access.LooksLikeID(idOrName) {
		if host = idOrName[:len(own)]; host == own {
			return "", nil
		}
		_, err := c.member(host)
		return host, err
	}
	if c.fleet.Fenced() {
		return "", api.Errorf(api.ErrUnavailable, "no box of this host has the name %q, and the boxes of other hosts are not known: this host is cut off from its fleet", problem.Clip(idOrName))
	}
	owner, ok, err := c.lookUp(ctx, idOrName)
	switch {
	case err != nil:
		return "", &api.Error{Kind: api.ErrUnavailable, Cause: err, Message: "no box of this host has the name, and the directory of the fleet does not answer"}
	case !ok || owner.Host == own:
		return "", nil
	}
	_, err = c.member(owner.Host)
	return owner.Host, err
}

// lookUp finds the box with a name in the directory, after earlier look-ups.
func (c *Client) lookUp(ctx context.Context, name string) (directory.Owner, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	if err := c.look(ctx); err != nil {
		return directory.Owner{}, false, err
	}
	defer func() { <-c.lookups }()
	return c.find(ctx, name)
}

// look waits for a place of a look into the directory, which the caller gives back.
func (c *Client) look(ctx context.Context) error {
	select {
	case c.lookups <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// acquire takes one of the streams to a host, until release is called.
func (c *Client) acquire(host string, by holder) (release func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.streams[host]
	if s == nil {
		s = &streams{of: map[holder]int{}}
		c.streams[host] = s
	}
	if !s.admits(by) {
		return nil, api.Errorf(api.ErrUnavailable, "too many calls to host %s of the fleet are open already; try again", host)
	}
	s.add(by, 1)
	return sync.OnceFunc(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if s.add(by, -1); s.all == 0 {
			delete(c.streams, host)
		}
	}), nil
}

// admits reports whether a caller may have another stream.
func (s *streams) admits(by holder) bool {
	switch {
	case s.all >= mostStreams:
		return false
	case by.admin:
		return true
	case by.key == "" && s.keyless >= keylessStreams:
		return false
	}
	return s.others < othersStreams && s.of[by] < holderStreams
}

// add counts n streams of a caller.
func (s *streams) add(by holder, n int) {
	s.all += n
	if by.admin {
		return
	}
	s.others += n
	if by.key == "" {
		s.keyless += n
	}
	if s.of[by] += n; s.of[by] == 0 {
		delete(s.of, by)
	}
}

// whileMember returns a context that ends soon after a host is no longer the member that it was. The caller must call end.
func (c *Client) whileMember(ctx context.Context, h fleet.Host) (_ context.Context, end func()) {
	return access.WhileValid(ctx, func() bool {
		now, ok := c.fleet.Member(h.ID)
		return ok && bytes.Equal(now.Key, h.Key)
	}, problem.Unreachable(h.ID, "is no longer a member of the fleet"))
}

// Forward implements [boxgate/api/server.Elsewhere]. The request is sent with its own key, which the other host checks, and the response as it
// arrives; WebSocket sessions become connections in both directions.
func (c *Client) Forward(w http.ResponseWriter, r *http.Request, host string, fail func(error)) {
	h, err := c.member(host)
	if err != nil {
		fail(err)
		return
	}
	release, err := c.acquire(host, holderOf(r.Context(), source(r)))
	if err != nil {
		c.calls.add(host, refused)
		fail(err)
		return
	}
	defer release()
	ctx, end := c.whileMember(r.Context(), h)
	defer end()
	proxy := &httputil.ReverseProxy{
		Transport: c.transport, FlushInterval: -1, ErrorLog: audit.ServerLog(c.log, nil),
		Rewrite: func(p *httputil.ProxyRequest) { c.address(p.Out, p.In, h) },
		ModifyResponse: func(resp *http.Response) error {
			if why := resp.Header.Get(refusedHeader); why != "" {
				return &refusedError{why}
			}
			c.calls.add(host, answered)
			for name := range w.Header() { // set for every response of an admin API
				resp.Header.Del(name)
			}
			return nil
		},
		ErrorHandler: func(_ http.ResponseWriter, _ *http.Request, err error) {
			if ctx.Err() == nil {
				c.calls.add(host, resultOf(err))
			}
			if r.Context().Err() == nil {
				c.log.Warn("a call for a box of another host failed", zap.String("host", host), zap.Error(err))
			}
			fail(unanswered(r.Context(), host, err))
		},
	}
	proxy.ServeHTTP(steady{w}, r.WithContext(ctx))
}

// unanswered returns the error for the caller of a call that failed.
func unanswered(ctx context.Context, host string, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if known, ok := err.(*problem.Refusal); ok { // of a dial
		return known
	}
	return problem.Unreachable(host, "does not answer")
}

// address sends a request to a host. Host and Origin were checked where the request arrived. Cookies are for this host alone.
func (c *Client) address(out, in *http.Request, h fleet.Host) {
	out.URL.Scheme, out.URL.Host, out.Host, out.URL.RawQuery = "https", poolName(h), "localhost", in.URL.RawQuery
	for name := range out.Header {
		if name == "Origin" || name == "Cookie" || strings.HasPrefix(name, "Sec-Fetch-") {
			out.Header.Del(name)
		}
	}
	if _, ok := access.Dashboard(in.Context()); ok { // a request inside this process, whose headers are not a caller's
		key, _ := access.ShownKey(in.Context())
		out.Header.Del(api.KeyHeader)
		out.Header.Del("Authorization")
		for name, values := range key {
			out.Header[name] = values
		}
	}
	out.Header.Set(access.PeerHeader, c.fleet.Identity.Host)
	out.Header.Set(clientHeader, source(in))
}

// source returns the address of a client.
func source(r *http.Request) string {
	if host, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		return host
	}
	return "unix"
}

// steady is a response whose client may not pause for too long.
type steady struct{ http.ResponseWriter }

// Write implements [http.ResponseWriter].
func (s steady) Write(b []byte) (int, error) { return rest.SteadyWriter(s.ResponseWriter).Write(b) }

// Unwrap lets [http.ResponseController] reach the connection.
func (s steady) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// send sends a request of this gateway with a caller's key.
func (c *Client) send(ctx context.Context, h fleet.Host, call elsewhere.Call, key http.Header) (*http.Response, error) {
	release, err := c.acquire(h.ID, holderOf(ctx, ""))
	if err != nil {
		c.calls.add(h.ID, refused)
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, call.Method, "https://"+poolName(h)+call.Path, bytes.NewReader(call.Bodies[h.ID]))
	if err != nil {
		release()
		return nil, err
	}
	r.URL.RawQuery, r.Header, r.Host = call.Query, key.Clone(), "localhost"
	r.Header.Set(access.PeerHeader, c.fleet.Identity.Host)
	if len(call.Bodies[h.ID]) > 0 {
		r.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.transport.RoundTrip(r)
	if err == nil && resp.Header.Get(refusedHeader) != "" {
		_ = resp.Body.Close()
		err = &refusedError{resp.Header.Get(refusedHeader)}
	}
	if err != nil {
		if !errors.Is(err, context.Canceled) { // by the client, which left
			c.calls.add(h.ID, resultOf(err))
		}
		release()
		return nil, err
	}
	c.calls.add(h.ID, answered)
	resp.Body = releasing{resp.Body, release}
	return resp, nil
}
