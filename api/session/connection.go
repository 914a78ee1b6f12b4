package session

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/net/http/httpguts"

	"boxgate/api"
	"boxgate/api/problem"
	"boxgate/api/rest"
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
	s, err := e.readStart(c, box.ID, leave)
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
func (e *Endpoints) readStart(c *connection, box policy.BoxID, releaseSlot func()) (*session, error) {
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
