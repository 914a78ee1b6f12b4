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

// startMost bounds the time from the handshake to the client's first frame.
const startMost = 30 * time.Second

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
	leave, err := e.open.enter(api.CallerOf(r.Context()), box.ID)
	if err != nil {
		return rest.Reply{}, err
	}
	l, err := e.accept(w, r)
	if err != nil {
		leave()
		return rest.Reply{Written: true}, nil
	}
	defer l.close()
	s, err := e.first(l, box.ID, leave)
	if err != nil {
		leave()
		l.refuse(err)
		return rest.Reply{Written: true}, nil
	}
	l.converse(s, "started", 0)
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

// first reads the start frame and begins the requested session; leave releases its slot.
func (e *Endpoints) first(l *line, box policy.BoxID, leave func()) (*session, error) {
	ctx, cancel := context.WithTimeout(l.ctx, startMost)
	defer cancel()
	data, release, err := l.read(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	f, err := parseFrame(data)
	if err != nil {
		return nil, err
	}
	return e.begin(l.ctx, box, &f, leave)
}

// read reads a frame. The memory it takes is charged to the quota until release is called.
func (l *line) read(ctx context.Context) (data []byte, release func(), err error) {
	_, r, err := l.conn.Reader(ctx)
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
	if !s.out.has(q.Offset) {
		return rest.Reply{}, problem.Refuse(http.StatusUnprocessableEntity, "query parameter \"offset\" must be what was acknowledged last, or more")
	}
	l, err := e.accept(w, r)
	if err != nil {
		return rest.Reply{Written: true}, nil
	}
	defer l.close()
	s.out.free(q.Offset)
	l.converse(s, "attached", q.Offset)
	return rest.Reply{Written: true}, nil
}

// line is a client's connection.
type line struct {
	ctx  context.Context
	end  context.CancelCauseFunc
	conn *websocket.Conn
	out  *queue        // written to by conn
	left chan struct{} // closed after the last frame was handled

	spoken atomic.Bool // set by the goroutine that sends the reason why the connection ends
}

// errStopping ends all sessions when the server shuts down.
var errStopping = api.Errorf(api.ErrUnavailable, "the gateway is stopping")

// accept completes the handshake of an admitted request. The connection ends when the API key stops working.
func (e *Endpoints) accept(w http.ResponseWriter, r *http.Request) (*line, error) {
	queued := &queuedWriter{ResponseWriter: w}
	conn, err := websocket.Accept(queued, r, &websocket.AcceptOptions{
		CompressionMode: websocket.CompressionDisabled,
		OnPingReceived:  func(context.Context, []byte) bool { return queued.queue.takesControl() },
	})
	if err != nil {
		return nil, err
	}
	conn.SetReadLimit(e.bodies.Most)
	ctx, end := context.WithCancelCause(context.WithoutCancel(r.Context()))
	l := &line{ctx: ctx, end: end, conn: conn, out: queued.queue, left: make(chan struct{})}
	go l.watchPeer()
	go l.watch(r.Context(), e.stopping)
	return l, nil
}

// watch ends the connection, with the reason, when its request loses permission or the server shuts down.
func (l *line) watch(request context.Context, stopping <-chan struct{}) {
	cause := errStopping
	select {
	case <-l.ctx.Done():
		return
	case <-stopping:
	case <-request.Done():
		if keyEnded(context.Cause(request)) {
			cause = context.Cause(request)
		}
	}
	time.AfterFunc(farewellMost, func() { l.end(cause) })
	if !l.takeLastWord() {
		return // another goroutine is sending the command's result
	}
	_, body := problem.StatusOf(cause)
	_ = l.write(toClient{Type: "error", Message: body.Error})
	_ = l.conn.Close(closeCode(cause), "")
	l.end(cause)
}

// farewellMost bounds how long a connection stays open for the client to read why it ends and to answer.
const farewellMost = 2 * time.Second

// takeLastWord reports whether the caller is the first to call it. Only that caller sends the reason why the connection
// ends.
func (l *line) takeLastWord() bool { return !l.spoken.Swap(true) }

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

func (l *line) close() {
	l.end(nil)
	_ = l.conn.CloseNow()
}

// pingEvery is the interval of pings on an idle connection. They keep it open in proxies and reveal whether the peer
// still exists.
const pingEvery = 20 * time.Second

// watchPeer ends the connection once its peer has vanished. A client that does not read, or is suspended and answers no
// pings, is still considered present as long as its kernel acknowledges data.
func (l *line) watchPeer() {
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	for {
		select {
		case <-l.ctx.Done():
			return
		case <-tick.C:
		}
		if l.out.lost() {
			l.end(errLost)
			return
		}
		if l.out.idle() {
			l.ping()
		}
	}
}

// ping waits only briefly for the pong, because no decision depends on it.
func (l *line) ping() {
	ctx, cancel := context.WithTimeout(l.ctx, time.Second)
	defer cancel()
	_ = l.conn.Ping(ctx)
}

// send sends a frame. It waits while the client does not read.
func (l *line) send(f toClient) error {
	if err := l.out.room(l.ctx); err != nil {
		return err
	}
	return l.write(f)
}

// write sends a frame without waiting. It is for the last frame of a connection.
func (l *line) write(f toClient) error {
	data, err := json.Marshal(f)
	if err != nil {
		return err
	}
	return l.conn.Write(l.ctx, websocket.MessageText, data)
}

// refuse sends the reason why there is no session and closes the connection.
func (l *line) refuse(err error) {
	if l.ctx.Err() != nil || websocket.CloseStatus(err) != -1 || !l.takeLastWord() {
		return
	}
	_, body := problem.StatusOf(err)
	_ = l.send(toClient{Type: "error", Message: body.Error})
	_ = l.conn.Close(closeCode(err), "")
}
