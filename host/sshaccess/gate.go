// Package sshaccess gives clients of SSH access to boxes: it finds the API key of a login, and does the work in the box with the
// permissions, quotas and records of a session of the admin API. [Gate] implements the interfaces of [boxgate/sshd].
package sshaccess

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"sync"

	"go.uber.org/zap"
	gossh "golang.org/x/crypto/ssh"

	"boxgate/api"
	"boxgate/api/server"
	"boxgate/api/session"
	"boxgate/internal/required"
	"boxgate/internal/sshflow"
	"boxgate/policy"
	"boxgate/proxy/recovery"
	"boxgate/quota"
	"boxgate/sshd"
)

// API is the admin API; implemented by [server.API].
type API interface {
	MayUse(ctx context.Context, caller api.Caller, box policy.BoxID) bool
	Perform(ctx context.Context, u server.Use, work func(context.Context) (map[string]any, error)) error
	RecordRefused(u server.Use, err error)
	Sessions() *session.Endpoints
}

// Boxes finds boxes and uses their files and ports.
type Boxes interface {
	// Box finds a box by its ID or name.
	Box(ctx context.Context, idOrName string) (api.Box, error)
	// Hold keeps a box awake until done is called.
	Hold(ctx context.Context, id policy.BoxID) (done func(), err error)
	// ServeSFTP serves SFTP over a stream until it ends.
	ServeSFTP(ctx context.Context, id policy.BoxID, stream io.ReadWriter) error
	// DialLoopback connects to a port of the loopback interface of a box.
	DialLoopback(ctx context.Context, id policy.BoxID, host string, port uint16) (net.Conn, error)
}

// Keys finds API keys.
type Keys interface {
	// Find returns the caller that the API key with this SHA-256 identifies, if it is valid now.
	Find(hash [sha256.Size]byte) (api.Caller, bool)
	// FindSSH returns the SHA-256 of the API key that has a public key, if both are valid now.
	FindSSH(public []byte) (hash [sha256.Size]byte, ok bool)
	// HasSSH reports whether an API key, by its ID, still has a public key.
	HasSSH(id string, public []byte) bool
}

// Config configures a [Gate]. All fields are required.
type Config struct {
	API    API
	Boxes  Boxes
	Keys   Keys
	Quotas *quota.Book
	// Count counts a connection for a key until the connection is closed. It fails if a limit is reached.
	Count func(conn net.Conn, h quota.Holder) error
	Log   *zap.Logger
	// Enter counts work until leave is called. It returns false if another process serves.
	Enter func() (leave func(), ok bool)
}

// Gate implements [sshd.Gate]. Create it with [New].
type Gate struct{ cfg Config }

// New returns a Gate.
func New(c Config) (*Gate, error) {
	if err := required.Fields(c); err != nil {
		return nil, err
	}
	return &Gate{c}, nil
}

// Password implements [sshd.Gate].
func (g *Gate) Password(box, key string) (sshd.Login, bool) {
	return g.open(box, sha256.Sum256([]byte(key)), nil)
}

// PublicKey implements [sshd.Gate].
func (g *Gate) PublicKey(box string, key gossh.PublicKey) (sshd.Login, bool) {
	public := key.Marshal()
	hash, ok := g.cfg.Keys.FindSSH(public)
	if !ok {
		return nil, false
	}
	return g.open(box, hash, public)
}

// Refused implements [sshd.Gate].
func (g *Gate) Refused(remote string) {
	g.cfg.API.RecordRefused(server.Use{Remote: "ssh, " + remote, What: "ssh login"}, errLogin)
}

// errLogin refuses a login.
var errLogin = api.Errorf(api.ErrForbidden, "the login is refused")

// open returns the login of the API key with this SHA-256 to a box, by the box's ID or name.
func (g *Gate) open(idOrName string, hash [sha256.Size]byte, public []byte) (sshd.Login, bool) {
	caller, ok := g.cfg.Keys.Find(hash)
	if !ok {
		return nil, false
	}
	box, err := g.cfg.Boxes.Box(context.Background(), idOrName)
	if err != nil || !g.cfg.API.MayUse(context.Background(), caller, box.ID) {
		return nil, false
	}
	return &login{gate: g, caller: caller, hash: hash, public: public, box: box.ID}, true
}

// login implements [sshd.Login].
type login struct {
	gate   *Gate
	caller api.Caller
	hash   [sha256.Size]byte // of the API key
	public []byte            // nil: logged in with the API key itself
	box    policy.BoxID

	mu     sync.Mutex
	remote string // address of the client
}

// Box implements [sshd.Login].
func (l *login) Box() policy.BoxID { return l.box }

// Key implements [sshd.Login].
func (l *login) Key() string { return l.caller.Key }

// Valid implements [sshd.Login].
func (l *login) Valid() bool {
	caller, ok := l.gate.cfg.Keys.Find(l.hash)
	return ok && caller == l.caller && (l.public == nil || l.gate.cfg.Keys.HasSSH(caller.Key, l.public))
}

// connCost is the memory of a connection without its backlog: packets, buffers and stacks.
const connCost = 256 << 10

// Count implements [sshd.Login].
func (l *login) Count(conn net.Conn) (sshflow.Claim, error) {
	holder := l.caller.Holder()
	if err := l.gate.cfg.Count(conn, holder); err != nil {
		return nil, err
	}
	scope, end := l.gate.cfg.Quotas.Open(holder)
	if err := scope.Acquire(quota.Memory, connCost); err != nil {
		end()
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.remote = "unknown"; conn.RemoteAddr() != nil {
		if host, _, err := net.SplitHostPort(conn.RemoteAddr().String()); err == nil {
			l.remote = host
		}
	}
	return &claim{scope, end}, nil
}

// claim is the memory of one connection, charged to its API key.
type claim struct {
	scope *quota.Scope
	end   func()
}

// Grow implements [sshflow.Claim].
func (c *claim) Grow(n int) bool { return c.scope.Acquire(quota.Memory, int64(n)) == nil }

// Shrink implements [sshflow.Claim].
func (c *claim) Shrink(n int) { c.scope.Release(quota.Memory, int64(n)) }

// Close implements [sshflow.Claim].
func (c *claim) Close() { c.end() }

// errReplaced refuses work in a process that is being replaced.
var errReplaced = api.Errorf(api.ErrUnavailable, "the gateway is being replaced; connect again")

// perform calls work with the permissions, quotas and audit entries of a session of the API. The audit trail names it what.
func (l *login) perform(ctx context.Context, what string, work func(context.Context) (map[string]any, error)) error {
	leave, ok := l.gate.cfg.Enter()
	if !ok {
		return errReplaced
	}
	defer leave()
	l.mu.Lock()
	use := server.Use{Caller: l.caller, Box: l.box, Remote: "ssh, " + l.remote, What: "ssh " + what, Valid: l.Valid}
	l.mu.Unlock()
	return l.gate.cfg.API.Perform(ctx, use, work)
}

// Run implements [sshd.Login].
func (l *login) Run(ctx context.Context, c sshd.Command, streams sshd.Streams, started func(sshd.Process)) (sshd.Exit, error) {
	what, prompt := "command", c.Line
	if c.Line == "" {
		what, prompt = "shell", "login shell over SSH"
	}
	var res api.ExecResult
	err := l.perform(ctx, what, func(ctx context.Context) (forTrail map[string]any, err error) {
		res, err = l.gate.cfg.API.Sessions().Run(ctx, l.box, session.Direct{
			Request: requestOf(c), Prompt: prompt, In: streams.In, Out: streams.Out, Err: streams.Err,
			Started: func(p api.Session, run string) {
				forTrail = map[string]any{"run": run}
				started(process{p})
			},
		})
		if err == nil {
			forTrail["exit_code"] = res.ExitCode
		}
		return forTrail, err
	})
	return sshd.Exit{Status: res.ExitCode, Signal: res.Signal}, err
}

// The shells of a box: bash, or sh if the image has no bash.
const (
	loginShell = `command -v bash >/dev/null && exec bash -l; exec sh -l`
	lineShell  = `command -v bash >/dev/null && exec bash -c "$1"; exec sh -c "$1"`
)

// requestOf returns the request for a command, which starts in the home directory.
func requestOf(c sshd.Command) api.SessionRequest {
	req := api.SessionRequest{Command: []string{"sh", "-c", loginShell}, Env: maps.Clone(c.Env)}
	if c.Line != "" {
		req.Command = []string{"sh", "-c", lineShell, "sh", c.Line}
	}
	if c.Terminal != nil {
		req.Terminal = &api.TerminalSize{Rows: c.Terminal.Rows, Cols: c.Terminal.Cols}
	}
	return req
}

// process implements [sshd.Process].
type process struct{ api.Session }

// Signal implements [sshd.Process].
func (p process) Signal(name string) error {
	if !api.IsSessionSignal(name) {
		return fmt.Errorf("the signal cannot be sent")
	}
	return p.Session.Signal(name)
}

// Resize implements [sshd.Process].
func (p process) Resize(t sshd.Terminal) error {
	return p.Session.Resize(api.TerminalSize{Rows: t.Rows, Cols: t.Cols})
}

// Transfer implements [sshd.Login].
func (l *login) Transfer(ctx context.Context, stream io.ReadWriter) error {
	return l.perform(ctx, "sftp", func(ctx context.Context) (map[string]any, error) {
		ctx, leave, err := l.gate.cfg.API.Sessions().Enter(ctx, l.box)
		if err != nil {
			return nil, err
		}
		defer leave()
		return nil, l.gate.cfg.Boxes.ServeSFTP(ctx, l.box, stream)
	})
}

// Forward implements [sshd.Login]. The use is one session, however many connections it has.
func (l *login) Forward(ctx context.Context, number uint16) (sshd.Port, error) {
	ctx, end := context.WithCancel(ctx)
	p := &port{login: l, number: number, end: end}
	begun, ended := make(chan context.Context, 1), make(chan error, 1)
	go func() {
		defer recovery.Panic(l.gate.cfg.Log, l.box, func() { ended <- recovery.ErrFault })
		ended <- l.perform(ctx, fmt.Sprintf("port %d", number), func(ctx context.Context) (map[string]any, error) {
			ctx, leave, err := l.gate.cfg.API.Sessions().Enter(ctx, l.box)
			if err != nil {
				return nil, err
			}
			defer leave()
			begun <- ctx
			<-ctx.Done()
			return nil, nil
		})
	}()
	select {
	case p.ctx = <-begun:
		return p, nil
	case err := <-ended:
		end()
		if err == nil {
			err = errors.New("the connection was closed")
		}
		return nil, err
	}
}

// port implements [sshd.Port].
type port struct {
	login  *login
	number uint16
	ctx    context.Context // of the use
	end    func()
}

// portCost is the memory of a connection to a port: the buffers of both directions, and stacks.
const portCost = 128 << 10

// charge charges a connection to a port to the API key until release is called: a client may open many by one connection of its own.
func (l *login) charge() (release func(), err error) {
	book, holder := l.gate.cfg.Quotas, l.caller.Holder()
	request, err := book.Acquire(holder, quota.Requests, 1)
	if err != nil {
		return nil, err
	}
	memory, err := book.Acquire(holder, quota.Memory, portCost)
	if err != nil {
		request()
		return nil, err
	}
	return func() { memory(); request() }, nil
}

// Dial implements [sshd.Port]. The box is awake until the connection is closed, or the use has ended, which closes it.
func (p *port) Dial(ctx context.Context, host string) (net.Conn, error) {
	if p.ctx.Err() != nil {
		return nil, context.Cause(p.ctx)
	}
	release, err := p.login.charge()
	if err != nil {
		return nil, err
	}
	boxes := p.login.gate.cfg.Boxes
	leave, err := boxes.Hold(ctx, p.login.box)
	if err != nil {
		release()
		return nil, err
	}
	done := func() { leave(); release() }
	conn, err := boxes.DialLoopback(ctx, p.login.box, host, p.number)
	if err != nil {
		done()
		return nil, err
	}
	held := &heldConn{Conn: conn, done: done}
	held.stop = context.AfterFunc(p.ctx, held.shut)
	return held, nil
}

// Close implements [sshd.Port].
func (p *port) Close() { p.end() }

// heldConn is a connection to a box that it keeps awake.
type heldConn struct {
	net.Conn
	done func()
	stop func() bool
}

// Close implements [net.Conn].
func (h *heldConn) Close() error {
	h.stop()
	h.shut()
	return nil
}

func (h *heldConn) shut() {
	h.done()
	_ = h.Conn.Close()
}

// CloseWrite ends the data to the box.
func (h *heldConn) CloseWrite() error {
	if half, ok := h.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}
