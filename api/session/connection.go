package session

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/net/http/httpguts"

	"boxgate/api"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/api/spec"
	"boxgate/api/strict"
	"boxgate/policy"
	"boxgate/quota"
)

// startTimeout bounds the time from the handshake to the client's first frame.
const startTimeout = 30 * time.Second

// serve handles GET exec-session: a new session, or a new connection to an existing one.
func (e *Endpoints) serve(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	var q query
	if err := rest.Query(r, &q); err != nil {
		return rest.Reply{}, err
	}
	if err := checkHandshake(r); err != nil {
		w.Header().Set("Upgrade", "websocket")
		return rest.Reply{}, err
	}
	if q.Session != "" {
		return e.resume(w, r, box.ID, q)
	}
	leave, err := e.open.acquireSlot(api.CallerOf(r.Context()), box.ID)
	if err != nil {
		return rest.Reply{}, err
	}
	c, err := e.accept(w, r)
	if err != nil {
		leave()
		return rest.Reply{Written: true}, nil
	}
	defer c.close()
	s, err := e.readStart(c, box, leave)
	if err != nil {
		leave()
		c.refuse(err)
		return rest.Reply{Written: true}, nil
	}
	c.serveSession(s, "started", 0)
	return rest.Reply{Written: true}, nil
}

// checkHandshake refuses a request that does not ask for a WebSocket (RFC 6455, section 4.2.1) with an error of this API.
func checkHandshake(r *http.Request) error {
	key, err := base64.StdEncoding.DecodeString(r.Header.Get("Sec-WebSocket-Key"))
	if err == nil && len(key) == 16 && r.ProtoMajor == 1 && r.Header.Get("Sec-WebSocket-Version") == "13" &&
		httpguts.HeaderValuesContainsToken(r.Header.Values("Connection"), "upgrade") &&
		httpguts.HeaderValuesContainsToken(r.Header.Values("Upgrade"), "websocket") {
		return nil
	}
	return problem.Refuse(http.StatusUpgradeRequired, "this endpoint is a WebSocket of version 13: connect with exec.session of the SDK or another WebSocket client; exec runs a command by a plain request")
}

// readStart reads the start frame and begins the requested session; releaseSlot releases its slot.
func (e *Endpoints) readStart(c *connection, box api.Box, releaseSlot func()) (*session, error) {
	ctx, cancel := context.WithTimeout(c.ctx, startTimeout)
	defer cancel()
	data, release, err := c.read(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	f, err := parseFrame(data)
	if err != nil {
		return nil, err
	}
	return e.newSession(c.ctx, box, &f, releaseSlot)
}

// read reads a frame. The memory it takes is charged to the quota until release is called.
func (c *connection) read(ctx context.Context) (data []byte, release func(), err error) {
	_, r, err := c.conn.Reader(ctx)
	if err != nil {
		return nil, nil, err
	}
	in := strict.NewClaimed(r, quota.ScopeOf(ctx))
	if data, err = io.ReadAll(in); err != nil {
		in.Release()
		return nil, nil, err
	}
	return data, in.Release, nil
}

// resume attaches a new connection to a session whose previous one broke.
func (e *Endpoints) resume(w http.ResponseWriter, r *http.Request, box policy.BoxID, q query) (rest.Reply, error) {
	s := e.open.find(box, q.Session)
	if s == nil || !s.reattach {
		return rest.Reply{}, api.Errorf(api.ErrNotFound, "box %s has no session %q to come back to; it has ended, or was not started with reattach", box, problem.Clip(q.Session))
	}
	if !s.out.retains(q.Offset) {
		return rest.Reply{}, problem.Refuse(http.StatusUnprocessableEntity, "query parameter \"offset\" must be at least the offset that was acknowledged last")
	}
	c, err := e.accept(w, r)
	if err != nil {
		return rest.Reply{Written: true}, nil
	}
	defer c.close()
	s.out.acknowledge(q.Offset)
	c.serveSession(s, "attached", q.Offset)
	return rest.Reply{Written: true}, nil
}

// connection is a client's connection.
type connection struct {
	ctx     context.Context
	cancel  context.CancelCauseFunc
	conn    *websocket.Conn
	out     *queue        // written to by conn
	drained chan struct{} // closed after the last frame was handled

	closing atomic.Bool // set by the goroutine that sends the reason why the connection ends
}

// errStopping ends all sessions when the server shuts down.
var errStopping = api.Errorf(api.ErrUnavailable, "the gateway is stopping")

// accept completes the handshake of an admitted request. The connection ends when the API key stops working.
func (e *Endpoints) accept(w http.ResponseWriter, r *http.Request) (*connection, error) {
	queued := &queuedWriter{ResponseWriter: w}
	conn, err := websocket.Accept(queued, r, &websocket.AcceptOptions{
		CompressionMode: websocket.CompressionDisabled,
		OnPingReceived:  func(context.Context, []byte) bool { return queued.queue.roomForControl() },
	})
	if err != nil {
		return nil, err
	}
	conn.SetReadLimit(e.bodies.Most)
	ctx, end := context.WithCancelCause(context.WithoutCancel(r.Context()))
	c := &connection{ctx: ctx, cancel: end, conn: conn, out: queued.queue, drained: make(chan struct{})}
	go c.watchPeer()
	go c.watch(r.Context(), e.stopping)
	return c, nil
}

// watch ends the connection, with the reason, when its request loses permission or the server shuts down.
func (c *connection) watch(request context.Context, stopping <-chan struct{}) {
	cause := errStopping
	select {
	case <-c.ctx.Done():
		return
	case <-stopping:
	case <-request.Done():
		if keyEnded(context.Cause(request)) {
			cause = context.Cause(request)
		}
	}
	time.AfterFunc(closeTimeout, func() { c.cancel(cause) })
	if !c.startClosing() {
		return // another goroutine is sending the command's result
	}
	_, body := problem.StatusOf(cause)
	_ = c.write(toClient{Type: "error", Message: body.Error})
	_ = c.conn.Close(closeCode(cause), "")
	c.cancel(cause)
}

// closeTimeout bounds how long a connection stays open for the client to read why it ends and to answer.
const closeTimeout = 2 * time.Second

// startClosing reports whether the caller is the first to call it. Only that caller sends the reason why the connection
// ends.
func (c *connection) startClosing() bool { return !c.closing.Swap(true) }

// closeCode returns the close status (RFC 6455, section 7.4.1) for a session that ended with err.
func closeCode(err error) websocket.StatusCode {
	switch {
	case errors.Is(err, errStopping):
		return websocket.StatusGoingAway
	case keyEnded(err):
		return websocket.StatusPolicyViolation
	default:
		return websocket.StatusNormalClosure
	}
}

func (c *connection) close() {
	c.cancel(nil)
	_ = c.conn.CloseNow()
}

// pingInterval is the interval of pings on an idle connection. They keep it open in proxies and reveal whether the peer
// still exists.
const pingInterval = 20 * time.Second

// watchPeer ends the connection once its peer has vanished. A client that does not read, or is suspended and answers no
// pings, is still considered present as long as its kernel acknowledges data.
func (c *connection) watchPeer() {
	tick := time.NewTicker(pingInterval)
	defer tick.Stop()
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-tick.C:
		}
		if c.out.peerLost() {
			c.cancel(errLost)
			return
		}
		if c.out.idle() {
			c.ping()
		}
	}
}

// ping waits only briefly for the pong, because no decision depends on it.
func (c *connection) ping() {
	ctx, cancel := context.WithTimeout(c.ctx, time.Second)
	defer cancel()
	_ = c.conn.Ping(ctx)
}

// send sends a frame. It waits while the client does not read.
func (c *connection) send(f toClient) error {
	if err := c.out.waitForRoom(c.ctx); err != nil {
		return err
	}
	return c.write(f)
}

// write sends a frame without waiting. It is for the last frame of a connection.
func (c *connection) write(f toClient) error {
	data, err := json.Marshal(f)
	if err != nil {
		return err
	}
	return c.conn.Write(c.ctx, websocket.MessageText, data)
}

// refuse sends the reason why there is no session and closes the connection.
func (c *connection) refuse(err error) {
	if c.ctx.Err() != nil || websocket.CloseStatus(err) != -1 || !c.startClosing() {
		return
	}
	_, body := problem.StatusOf(err)
	_ = c.send(toClient{Type: "error", Message: body.Error})
	_ = c.conn.Close(closeCode(err), "")
}

// serveSession moves frames in both directions until the session or its connection ends, then decides whether the session
// survives. Frames are read from the start, even while the box is still being created or woken.
func (c *connection) serveSession(s *session, hello string, offset int64) {
	s.attach(c)
	delivered := make(chan bool, 1)
	go func() { delivered <- c.sendStart(s, hello) && c.sendOutput(s, offset) }()
	err := c.readFrames(s)
	c.cancel(err)
	close(c.drained)
	complete, cause := <-delivered, context.Cause(c.ctx)
	if complete {
		s.forget()
		return
	}
	s.disconnect(c, s.reattach && s.running() && !hungUp(err) && !errors.Is(err, errRefused) && !keyEnded(cause))
}

// sendStart waits until the command runs, then sends the first frame. If the command did not start, it sends the reason. It
// reports whether the command runs.
func (c *connection) sendStart(s *session, hello string) bool {
	select {
	case <-s.started:
	case <-s.done:
	case <-c.ctx.Done():
		return false
	}
	if !s.running() {
		c.refuse(s.err)
		c.cancel(s.err)
		return false
	}
	arrived := s.in.receivedBytes()
	if err := c.send(toClient{Type: hello, Pid: s.proc.Pid(), ExecID: s.id, Offset: arrived}); err != nil {
		c.cancel(err)
		return false
	}
	if s.acks {
		go c.sendAcks(s, arrived)
	}
	return true
}

// sendAcks sends the client an ack for each new amount of accepted input beyond known. It is separate from the reader
// of frames, which would otherwise stop handling frames while the client does not read.
func (c *connection) sendAcks(s *session, known int64) {
	for {
		taken, err := s.in.waitReceived(c.ctx, known)
		if err != nil || c.send(toClient{Type: "ack", Offset: taken}) != nil {
			return
		}
		known = taken
	}
}

// errRefused ends a session whose client sent an invalid frame.
var errRefused = errors.New("a frame was refused")

// hungUp reports whether the client closed the connection; a broken connection does not count.
func hungUp(err error) bool { return websocket.CloseStatus(err) != -1 }

// keyEnded reports whether a connection ended because its API key stopped working.
func keyEnded(cause error) bool {
	status, _ := problem.StatusOf(cause)
	return status == http.StatusUnauthorized
}

// sendOutput sends the session's output from offset on, then its result. It reports whether the client received everything.
func (c *connection) sendOutput(s *session, offset int64) (complete bool) {
	for {
		piece, more, err := s.out.next(c.ctx, offset)
		if err != nil {
			return false
		}
		if !more {
			break
		}
		if err := c.send(toClient{Type: piece.stream, Data: piece.data}); err != nil {
			if !c.closing.Load() { // otherwise the client gets closeTimeout to read why the connection ends
				c.cancel(err)
			}
			return false
		}
		offset = piece.end
		if !s.reattach {
			s.out.acknowledge(offset)
		}
	}
	select {
	case <-s.done:
	case <-c.ctx.Done():
		return false
	}
	if !c.startClosing() {
		return false
	}
	if err := errors.Join(c.send(s.finalFrame()), c.out.waitDelivered(c.ctx)); err != nil {
		c.cancel(err)
		return false
	}
	err := c.conn.Close(closeCode(s.err), "")
	c.cancel(nil)
	return err == nil || !s.reattach
}

// readFrames handles the client's frames until the connection ends, and returns the reason it ended.
func (c *connection) readFrames(s *session) error {
	for {
		data, release, err := c.read(c.ctx)
		if _, exceeded := errors.AsType[*quota.Error](err); exceeded {
			_, body := problem.StatusOf(err)
			_ = c.write(toClient{Type: "error", Message: body.Error})
			return errRefused
		}
		if err != nil {
			return err
		}
		if c.closing.Load() {
			release()
			continue // the session is ending, or the client lost access to it
		}
		f, err := parseFrame(data)
		if err == nil {
			err = c.handleFrame(s, &f)
		}
		release()
		switch status, body := problem.StatusOf(err); {
		case err == nil:
		case status >= http.StatusInternalServerError:
			return err // the connection broke
		default:
			_ = c.write(toClient{Type: "error", Message: body.Error})
			return errRefused
		}
	}
}

// handleFrame executes a frame.
func (c *connection) handleFrame(s *session, f *fromClient) error {
	switch f.Type {
	case "stdin":
		data, err := base64.StdEncoding.DecodeString(f.Data)
		if err != nil {
			return problem.Invalid("/data", "must be base64")
		}
		return s.in.add(c.ctx, data)
	case "stdin_close":
		s.in.closeWrite()
	case "ack":
		if !s.reattach || !s.out.acknowledge(f.Offset) {
			return problem.Invalid("/offset", "exceeds the output so far")
		}
	case "resize":
		return s.resize(f)
	case "signal":
		if !api.IsSessionSignal(f.Signal) {
			return problem.Invalid("/signal", "must be TERM, KILL, INT, HUP, TSTP, QUIT, USR1 or USR2")
		}
		return s.afterStart(func() { _ = s.proc.Signal(f.Signal) })
	case "terminate":
		return s.afterStart(func() { s.terminate(f.grace()) })
	default:
		return problem.Invalid("/type", "must be stdin, stdin_close, resize, signal, terminate or ack")
	}
	return nil
}

// fromClient is a frame from the client. Its type determines which fields are set.
type fromClient struct {
	Type string `json:"type"`

	Argv     []string `json:"argv,omitempty"`     // start: program and arguments
	Cmd      string   `json:"cmd,omitempty"`      // start: a command line for a login shell, if argv is empty
	TTY      bool     `json:"tty,omitempty"`      // start
	Cwd      string   `json:"cwd,omitempty"`      // start
	Env      []string `json:"env,omitempty"`      // start: NAME=value
	User     string   `json:"user,omitempty"`     // start: as in exec; an extension
	Reattach bool     `json:"reattach,omitempty"` // start: the client acknowledges output and may reconnect
	AckInput bool     `json:"ackInput,omitempty"` // start: acknowledge input, as with reattach

	Rows    *int64 `json:"rows,omitempty"`    // start and resize
	Cols    *int64 `json:"cols,omitempty"`    // start and resize
	Data    string `json:"data,omitempty"`    // stdin: base64
	Signal  string `json:"signal,omitempty"`  // signal
	GraceMS *int64 `json:"graceMs,omitempty"` // terminate
	Offset  int64  `json:"offset,omitempty"`  // ack: bytes of output received
}

// toClient is a frame from the gateway.
type toClient struct {
	Type    string `json:"type"`
	Pid     int    `json:"pid,omitempty"`
	ExecID  string `json:"execId,omitempty"`
	Data    []byte `json:"data,omitempty"`
	Code    *int   `json:"code,omitempty"`
	Message string `json:"message,omitempty"`
	// Offset is the number of input bytes accepted, in attached and ack frames, for a client that may reconnect.
	Offset int64 `json:"offset,omitempty"`
}

// parseFrame parses a frame from the client.
func parseFrame(data []byte) (fromClient, error) {
	var f fromClient
	err := strict.Unmarshal(data, &f)
	return f, err
}

// loginShell runs a command line in a login shell: bash, or sh if the image has no bash.
var loginShell = []string{"sh", "-c", `command -v bash >/dev/null && exec bash -lc "$1"; exec sh -lc "$1"`, "sh"}

// request converts a start frame into a request and the prompt for the history.
func (f *fromClient) request(box api.Box) (api.SessionRequest, string, error) {
	var p problem.List
	req := api.SessionRequest{Command: f.Argv, Dir: path.Clean(f.Cwd)}
	prompt := strings.Join(f.Argv, " ")
	if len(f.Argv) == 0 {
		req.Command, prompt = append(slices.Clone(loginShell), f.Cmd), f.Cmd
	}
	if f.Type != "start" {
		p.Add("/type", "must be start in the first frame")
	}
	if len(f.Argv) == 0 && f.Cmd == "" || len(f.Argv) > 0 && f.Argv[0] == "" {
		p.Add("/argv", "must name a program, unless cmd has a line for a shell")
	}
	if !path.IsAbs(req.Dir) {
		req.Dir = path.Join(box.HomeDir(), req.Dir)
	}
	checkStrings(&p, req.Command, f.Cwd)
	req.Env, req.User = f.environment(&p), spec.User(&p, "/user", box.UserName(), f.User)
	if f.TTY {
		req.Terminal = &api.TerminalSize{Rows: f.dimension(&p, "/rows", f.Rows, 24), Cols: f.dimension(&p, "/cols", f.Cols, 80)}
	}
	return req, prompt, p.Err()
}

// checkStrings refuses arguments and directories that execve would reject.
func checkStrings(p *problem.List, argv []string, dir string) {
	sum := 0
	for _, arg := range argv {
		if strings.ContainsRune(arg, 0) || len(arg) > api.MaxArgument {
			p.Add("/argv", "has an argument with NUL or of more than %d bytes", api.MaxArgument)
			return
		}
		sum += len(arg) + api.ArgumentCost
	}
	if sum > api.MaxArguments {
		p.Add("/argv", "needs %d bytes; the limit is %d", sum, api.MaxArguments)
	}
	if strings.ContainsRune(dir, 0) || len(dir) > 4095 {
		p.Add("/cwd", "is not a path")
	}
}

// environment returns the variables of a start frame. As in the dialect, variables of the dynamic linker are dropped.
func (f *fromClient) environment(p *problem.List) map[string]string {
	env, sum := map[string]string{}, 0
	for _, entry := range f.Env {
		name, value, ok := strings.Cut(entry, "=")
		if !ok || name == "" || strings.ContainsRune(entry, 0) || len(entry) > api.MaxArgument {
			p.Add("/env", "must have entries of the form NAME=value")
			return nil
		}
		if sum += len(entry) + api.ArgumentCost; sum > api.MaxEnvironment/4 {
			p.Add("/env", "is larger than %d bytes", api.MaxEnvironment/4)
			return nil
		}
		env[name] = value
	}
	maps.DeleteFunc(env, func(name, _ string) bool { return strings.HasPrefix(name, "LD_") })
	return env
}

func (f *fromClient) dimension(p *problem.List, pointer string, n *int64, absent uint16) uint16 {
	switch {
	case n == nil:
		return absent
	case *n < 1 || *n > api.MaxDimension:
		p.Add(pointer, "must be between 1 and %d", api.MaxDimension)
		return absent
	}
	return uint16(*n)
}

// The grace between SIGTERM and SIGKILL.
const (
	defaultGrace = 10 * time.Second
	maxGrace     = 10 * time.Minute
)

func (f *fromClient) grace() time.Duration {
	if f.GraceMS == nil || *f.GraceMS <= 0 {
		return defaultGrace
	}
	if *f.GraceMS > maxGrace.Milliseconds() {
		return maxGrace
	}
	return time.Duration(*f.GraceMS) * time.Millisecond
}
