package ssh

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	gossh "golang.org/x/crypto/ssh"

	"boxgate/internal/memory"
	"boxgate/internal/sshflow"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy/recovery"
	sshrule "boxgate/rule/ssh"
)

// Login is one connection of a box that the gateway logs in to a server. All fields are required.
type Login struct {
	Rule *sshrule.Login
	Box  policy.BoxID
	Host name.Name // of the server
	Port uint16
	// Identity is the host key that the gateway presents to the box.
	Identity gossh.Signer
	// Key returns the private key to log in with.
	Key func(context.Context) (name.Secret, error)
	// Dial connects to the server if the current policy allows it.
	Dial func(context.Context) (net.Conn, error)
	// Memory accounts for buffers.
	Memory *memory.Account
	// OnLogin is called when the box is logged in.
	OnLogin func()
	// OnRequest is called for each command and everything else that the box requests and that is judged, with the decision. It
	// returns a function to call when the command has ended, and false if the box exceeds its rate of requests.
	OnRequest func(Request) (ended func(Outcome), ok bool)
	// Log receives panics.
	Log *zap.Logger
	// Handshake limits the duration of each handshake, Idle the time without data from either side.
	Handshake, Idle time.Duration
}

// Request is a request of a box on a connection, with its decision.
type Request struct {
	Verb     string // git service; or exec, shell, the subsystem, or the type of a channel
	What     string // the repository or the program's name; may be empty
	Decision policy.Decision
}

// Outcome is the result of a request that has ended.
type Outcome struct {
	In, Out int64 // bytes of data to and from the box
	Err     error
}

// Failure is the reason why a box was not logged in.
type Failure struct {
	Reason name.Reason
	Shown  string // for the box
	Err    error
}

// Error returns the text for the log.
func (f *Failure) Error() string {
	if f.Err == nil {
		return f.Shown
	}
	return f.Err.Error()
}

// Unwrap returns the cause.
func (f *Failure) Unwrap() error { return f.Err }

// version identifies the gateway to both sides. It begins like OpenSSH's, because OpenSSH sends eow@openssh.com, which
// [session] forwards, only to peers with such a version (SSH_NEW_OPENSSH in its compat.c).
const version = "SSH-2.0-OpenSSH_9.9 boxgate"

// algorithms returns the algorithms offered to both sides: none with SHA-1 or CBC. The last MAC is encrypt-and-MAC:
// libssh2 before 1.11 supports no other with SHA-2, and no AES-GCM.
func algorithms() gossh.Config {
	return gossh.Config{
		KeyExchanges: []string{
			gossh.KeyExchangeMLKEM768X25519, gossh.KeyExchangeCurve25519, gossh.KeyExchangeECDHP256, gossh.KeyExchangeECDHP384, gossh.KeyExchangeECDHP521,
		},
		Ciphers: []string{
			gossh.CipherAES128GCM, gossh.CipherChaCha20Poly1305, gossh.CipherAES256GCM,
			gossh.CipherAES128CTR, gossh.CipherAES192CTR, gossh.CipherAES256CTR,
		},
		MACs: []string{gossh.HMACSHA256ETM, gossh.HMACSHA512ETM, gossh.HMACSHA256},
	}
}

// connCost is the memory that a connection uses without its sessions: a packet of each side, readers and writers, and the
// free backlog of both sides.
const connCost = 640 << 10

// Serve logs a box in and forwards its requests until one side closes the connection or ctx ends, and then returns nil. It
// returns a *[Failure] if the box was not logged in, and another error if the box does not speak SSH. The caller closes
// client; its last message may not have been read yet.
func Serve(ctx context.Context, client net.Conn, l Login) error {
	if !l.Memory.Acquire(memory.Connections, connCost) {
		return &Failure{Reason: name.ReasonLimit, Shown: "the box has reached its memory limit in the gateway"}
	}
	defer l.Memory.Release(memory.Connections, connCost)
	c := &conn{Login: l, ctx: ctx, box: sshflow.New(client, claim(l.Memory)), gone: make(chan struct{})}
	defer c.close()
	opening := c.box.AddStream() // until the login, all data counts as backlog
	defer context.AfterFunc(ctx, c.close)()
	c.box.Limit(time.Now().Add(l.Handshake))
	shown, channels, requests, err := c.handshakeBox()
	opening.Remove()
	switch {
	case c.failure != nil:
		return c.failure
	case err != nil:
		return err
	}
	c.box.Limit(time.Time{})
	l.OnLogin()
	c.forwardAll(shown, channels, requests)
	return nil
}

// claim opens a claim on the memory of the account for the backlog of a connection.
func claim(account *memory.Account) *memory.Claim {
	c := new(memory.Claim)
	c.Open(account, memory.Buffers)
	return c
}

// handshakeBox performs the handshake with the box.
func (c *conn) handshakeBox() (shown *gossh.ServerConn, channels <-chan gossh.NewChannel, requests <-chan *gossh.Request, err error) {
	defer c.recoverError(&err)
	return gossh.NewServerConn(c.box, c.config())
}

// recoverError recovers from a panic in a handshake and returns it as an error. A peer can cause one: x/crypto/ssh reads the
// agreed algorithms while a second key exchange, which the peer may start immediately, can reset them to nil.
func (c *conn) recoverError(err *error) {
	if v := recover(); v != nil {
		recovery.Log(c.Log, "panic in a handshake of SSH", c.Box, v)
		*err = recovery.ErrFault
	}
}

// conn is the state of a connection during Serve.
type conn struct {
	Login
	ctx     context.Context
	box     *sshflow.Flow
	pre     gossh.ServerPreAuthConn
	failure *Failure

	mu            sync.Mutex
	closed        bool
	noNewSessions bool // the server is gone: no new sessions
	upstream      *sshflow.Flow
	server        gossh.Conn // nil until the gateway is logged in

	gone     chan struct{}           // closed when the server is gone
	channels <-chan gossh.NewChannel // from the server
	requests <-chan *gossh.Request

	sessions sync.WaitGroup
}

// close closes both sides.
func (c *conn) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	_ = c.box.Close()
	if c.upstream != nil {
		_ = c.upstream.Close()
		_ = c.upstream.Conn.Close()
	}
}

// contained wraps f so that a panic in it closes this connection only.
func (c *conn) contained(f func()) func() {
	return func() {
		defer recovery.Panic(c.Log, c.Box, c.close)
		f()
	}
}

// setUpstream sets the connection to the server. If c is closed already, it closes up and returns false.
func (c *conn) setUpstream(up net.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		_ = up.Close()
		return false
	}
	c.upstream = sshflow.New(up, claim(c.Memory))
	return true
}

// config returns the configuration for the handshake with the box. It accepts any authentication, and drops passwords and
// keys unread: the box is already identified. The gateway logs in to the server before the box is logged in.
func (c *conn) config() *gossh.ServerConfig {
	enter := func(m gossh.ConnMetadata) (*gossh.Permissions, error) { return nil, c.onAuth(m.User()) }
	config := &gossh.ServerConfig{
		Config: algorithms(), ServerVersion: version, MaxAuthTries: 1,
		PreAuthConnCallback:  func(pre gossh.ServerPreAuthConn) { c.pre = pre },
		NoClientAuth:         true,
		NoClientAuthCallback: enter,
		PasswordCallback:     func(m gossh.ConnMetadata, _ []byte) (*gossh.Permissions, error) { return enter(m) },
		PublicKeyCallback:    func(m gossh.ConnMetadata, _ gossh.PublicKey) (*gossh.Permissions, error) { return enter(m) },
		KeyboardInteractiveCallback: func(m gossh.ConnMetadata, _ gossh.KeyboardInteractiveChallenge) (*gossh.Permissions, error) {
			return enter(m)
		},
	}
	config.AddHostKey(sshflow.Paced(c.ctx, c.Identity))
	return config
}

// onAuth logs the gateway in to the server. On failure it sends the reason to the box as a banner, and stops reading from
// it.
func (c *conn) onAuth(user string) error {
	if c.server != nil {
		return nil
	}
	if c.failure == nil {
		c.box.Limit(time.Time{})
		c.failure = c.logIn(user)
		c.box.Limit(time.Now().Add(c.Handshake))
	}
	if c.failure == nil {
		return nil
	}
	_ = c.pre.SendAuthBanner("boxgate: " + c.failure.Shown + "\r\n")
	_ = c.box.Close()
	return c.failure
}

// logIn logs the gateway in to the server.
func (c *conn) logIn(user string) *Failure {
	if user != c.Rule.User {
		return &Failure{Reason: name.ReasonHeaderRule, Shown: fmt.Sprintf("the rule for %s allows only the user %s", c.Host, c.Rule.User)}
	}
	known, err := parseHostKeys(c.Rule.HostKeys)
	if err != nil {
		return &Failure{name.ReasonUpstreamTLS, "the rule for " + c.Host.String() + " has no valid host key", err}
	}
	signer, failed := c.signer()
	if failed != nil {
		return failed
	}
	ctx, cancel := context.WithTimeout(c.ctx, 2*c.Handshake)
	defer cancel()
	up, err := c.Dial(ctx)
	if err != nil {
		return &Failure{name.ReasonUnreachable, c.Host.String() + " could not be reached", err}
	}
	if !c.setUpstream(up) {
		return &Failure{name.ReasonUnreachable, "the connection was closed", net.ErrClosed}
	}
	return c.authenticate(known, signer)
}

// signer returns the key to log in with.
func (c *conn) signer() (gossh.Signer, *Failure) {
	ctx, cancel := context.WithTimeout(c.ctx, c.Handshake)
	defer cancel()
	secret, err := c.Key(ctx)
	if err != nil {
		return nil, &Failure{name.ReasonSecretUnavailable, "the key for " + c.Host.String() + " is not available", err}
	}
	signer, err := ParseKey(secret)
	if err != nil {
		return nil, &Failure{name.ReasonSecretUnavailable, "the key for " + c.Host.String() + " cannot be used", fmt.Errorf("secret %q: %w", c.Rule.Secret, err)}
	}
	return signer, nil
}

// authenticate performs the handshake with the server. The key is offered only after the server's host key was verified.
func (c *conn) authenticate(known hostKeys, signer gossh.Signer) *Failure {
	verified := false
	config := &gossh.ClientConfig{
		Config: algorithms(), ClientVersion: version, User: c.Rule.User, HostKeyAlgorithms: known.algorithms(),
		Auth: []gossh.AuthMethod{gossh.PublicKeys(signer)},
		HostKeyCallback: func(addr string, remote net.Addr, key gossh.PublicKey) error {
			err := known.check(addr, remote, key)
			verified = err == nil
			return err
		},
		BannerCallback: c.banner(),
	}
	c.upstream.Limit(time.Now().Add(c.Handshake))
	opening := c.upstream.AddStream()
	defer opening.Remove()
	if err := c.handshakeServer(config); err != nil {
		return c.loginFailure(err, verified)
	}
	c.upstream.Limit(time.Time{})
	return nil
}

// handshakeServer runs the library's handshake with the server.
func (c *conn) handshakeServer(config *gossh.ClientConfig) (err error) {
	defer c.recoverError(&err)
	server, channels, requests, err := gossh.NewClientConn(c.upstream, fmt.Sprintf("%s:%d", c.Host, c.Port), config)
	if err == nil {
		c.server, c.channels, c.requests = server, channels, requests
	}
	return err
}

// loginFailure maps an error of the handshake with the server to a failure.
func (c *conn) loginFailure(err error, verified bool) *Failure {
	var algorithm *gossh.AlgorithmNegotiationError
	switch host := c.Host.String(); {
	case errors.Is(err, errHostKey):
		return &Failure{name.ReasonUpstreamTLS, "the host key of " + host + " is not in the rule", err}
	case errors.As(err, &algorithm) && algorithm.What == "host key":
		return &Failure{name.ReasonUpstreamTLS, host + " has no host key of a type in the rule", err}
	case verified:
		return &Failure{name.ReasonUpstreamLogin, host + " did not accept the key of the gateway for the user " + c.Rule.User, err}
	default:
		return &Failure{name.ReasonUpstreamLogin, "the handshake with " + host + " failed", err}
	}
}

// maxBanner limits the bytes of banners that a server can send to a box during the login.
const maxBanner = 8 << 10

// banner returns a callback that forwards the server's banners to the box, up to maxBanner.
func (c *conn) banner() gossh.BannerCallback {
	left := maxBanner
	return func(message string) error {
		if left -= len(message); left < 0 {
			return nil
		}
		return c.pre.SendAuthBanner(message)
	}
}

// forwardAll forwards between both sides until one of them closes the connection and running sessions have ended.
func (c *conn) forwardAll(shown *gossh.ServerConn, channels <-chan gossh.NewChannel, requests <-chan *gossh.Request) {
	defer c.closeIdle().Stop()
	var rest sync.WaitGroup
	rest.Go(c.contained(func() { c.refuseRequests(requests) }))
	rest.Go(c.contained(func() { sshflow.ForEach(c.upstream, c.requests, func(r *gossh.Request) { _ = r.Reply(false, nil) }) }))
	rest.Go(c.contained(func() { sshflow.ForEach(c.upstream, c.channels, rejectProhibited) }))
	rest.Go(c.contained(func() { c.accept(channels) }))
	rest.Go(c.contained(func() {
		_ = shown.Wait()
		c.close() // the server's data can no longer reach the box
	}))
	_ = c.server.Wait()
	close(c.gone)
	c.awaitLastData()
	c.close()
	rest.Wait()
}

// awaitLastData waits until the server's last data has reached the box, at most for farewell.
func (c *conn) awaitLastData() {
	defer time.AfterFunc(drainTimeout, c.close).Stop()
	c.mu.Lock()
	c.noNewSessions = true
	c.mu.Unlock()
	c.sessions.Wait()
}

// drainTimeout limits the time for delivering the last data of a closed side.
const drainTimeout = 10 * time.Second

// accept serves the channels that the box opens.
func (c *conn) accept(channels <-chan gossh.NewChannel) {
	slots := make(chan struct{}, maxSessions)
	sshflow.ForEach(c.box, channels, func(channel gossh.NewChannel) {
		if kind := channel.ChannelType(); kind != "session" {
			c.rejectChannel(channel, kind)
			return
		}
		select {
		case slots <- struct{}{}:
			if !c.startSession(channel, func() { <-slots }) {
				rejectProhibited(channel)
			}
		default:
			_ = channel.Reject(gossh.ResourceShortage, fmt.Sprintf("boxgate: at most %d sessions at the same time", maxSessions))
		}
	})
}

// startSession serves a session in a goroutine. It returns false if the server is gone.
func (c *conn) startSession(channel gossh.NewChannel, done func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.noNewSessions {
		return false
	}
	c.sessions.Go(c.contained(func() {
		defer done()
		c.serveSession(channel)
	}))
	return true
}

// knownChannels are the refused channel types that are recorded by name. Other types could be any text.
var knownChannels = []string{"direct-tcpip", "direct-streamlocal@openssh.com", "forwarded-tcpip", "forwarded-streamlocal@openssh.com", "x11", "auth-agent@openssh.com", "tun@openssh.com"}

// rejectChannel rejects a channel that is not a session.
func (c *conn) rejectChannel(channel gossh.NewChannel, kind string) {
	if !slices.Contains(knownChannels, kind) {
		_ = channel.Reject(gossh.UnknownChannelType, "boxgate: unknown type of channel")
		return
	}
	c.recordRefusal(kind)
	rejectProhibited(channel)
}

// rejectProhibited rejects a channel.
func rejectProhibited(channel gossh.NewChannel) {
	_ = channel.Reject(gossh.Prohibited, "boxgate: only sessions are forwarded")
}

// refuseRequests refuses the box's global requests. A failure reply answers a keepalive as well as a success does.
func (c *conn) refuseRequests(requests <-chan *gossh.Request) {
	sshflow.ForEach(c.box, requests, func(r *gossh.Request) {
		if r.Type == "tcpip-forward" || r.Type == "streamlocal-forward@openssh.com" {
			c.recordRefusal(r.Type)
		}
		_ = r.Reply(false, nil)
	})
}

// recordRefusal records a request that is refused under every rule.
func (c *conn) recordRefusal(what string) {
	if onEnd, ok := c.OnRequest(Request{Verb: what, Decision: policy.Decision{Reason: name.ReasonProtocol}}); ok {
		onEnd(Outcome{})
	}
}

// closeIdle closes the connection after c.Idle without data from either side.
func (c *conn) closeIdle() *time.Timer {
	var timer *time.Timer
	started := make(chan struct{})
	timer = time.AfterFunc(c.Idle, func() {
		<-started
		left := c.Idle - min(c.box.Idle(), c.upstream.Idle())
		if left <= 0 {
			c.close()
			return
		}
		timer.Reset(left)
	})
	close(started)
	return timer
}

// pump copies data from one channel to another and counts it, until from ends. After a failed write, or if to is nil (then
// count is nil as well), it discards what it reads: unread data would stay in memory.
func pump(to io.Writer, from io.Reader, of *sshflow.Stream, count *atomic.Int64) {
	buf := make([]byte, pumpBuffer)
	for {
		of.CaughtUp()
		n, err := from.Read(buf)
		of.Consumed(n, n < len(buf))
		if n > 0 && to != nil {
			passed, failed := to.Write(buf[:n])
			count.Add(int64(passed))
			if failed != nil {
				to = nil
			}
		}
		if err != nil {
			return
		}
	}
}
