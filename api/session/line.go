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

// startMost is how long a client may take from the handshake to its first frame.
const startMost = 30 * time.Second

// serve is GET exec-session: a new session, or another connection to one.
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

// checkHandshake refuses a request that does not ask for a WebSocket (RFC 6455, 4.2.1), in the words of this API.
func checkHandshake(r *http.Request) error {
	key, err := base64.StdEncoding.DecodeString(r.Header.Get("Sec-WebSocket-Key"))
	if err == nil && len(key) == 16 && r.ProtoMajor == 1 && r.Header.Get("Sec-WebSocket-Version") == "13" &&
		httpguts.HeaderValuesContainsToken(r.Header.Values("Connection"), "upgrade") &&
		httpguts.HeaderValuesContainsToken(r.Header.Values("Upgrade"), "websocket") {
		return nil
	}
	return problem.Refuse(http.StatusUpgradeRequired, "this endpoint is a WebSocket of version 13: connect with exec.session of the SDK or another WebSocket client; exec runs a command by a plain request")
}

// first reads the start frame and begins a session as it asks for; leave gives its room back.
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

// read reads a frame. The memory that it takes is claimed until release is called.
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

// resume attaches a connection to a session whose own broke.
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

// line is the connection of a client.
type line struct {
	ctx  context.Context
	end  context.CancelCauseFunc
	conn *websocket.Conn
	out  *queue        // what conn writes to
	left chan struct{} // closed when no frame of it is obeyed any more

	spoken atomic.Bool // somebody says, or has said, why the connection ends
}

// errStopping ends the sessions of a server that shuts down.
var errStopping = api.Errorf(api.ErrUnavailable, "the gateway is stopping")

// accept answers the handshake of a request that was admitted. The connection ends when the API key stops working.
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

// watch ends the connection, and says why, when its request may not be served any longer or the server shuts down.
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
		return // the client is being told how its command ended
	}
	_, body := problem.StatusOf(cause)
	_ = l.write(toClient{Type: "error", Message: body.Error})
	_ = l.conn.Close(closeCode(cause), "")
	l.end(cause)
}

// farewellMost bounds how long a connection that ends stays, for its client to learn why and to answer that.
const farewellMost = 2 * time.Second

// takeLastWord reports whether the caller is the one to say why the connection ends: the first is.
func (l *line) takeLastWord() bool { return !l.spoken.Swap(true) }

// closeCode is the status with which a connection is closed (RFC 6455, 7.4.1) whose session has ended with err.
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

// pingEvery is how often a connection without traffic is pinged, which keeps it open in proxies and shows whether its other end is there.
const pingEvery = 20 * time.Second

// watchPeer ends a connection whose other end has vanished. A client that merely does not read, or that is suspended and answers no
// ping, is there as long as its kernel acknowledges what it is sent.
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

// ping does not wait for the answer for long: nothing depends on it.
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

// write sends a frame without waiting, for one that is the last.
func (l *line) write(f toClient) error {
	data, err := json.Marshal(f)
	if err != nil {
		return err
	}
	return l.conn.Write(l.ctx, websocket.MessageText, data)
}

// refuse says why there is no session, and ends the connection.
func (l *line) refuse(err error) {
	if l.ctx.Err() != nil || websocket.CloseStatus(err) != -1 || !l.takeLastWord() {
		return
	}
	_, body := problem.StatusOf(err)
	_ = l.send(toClient{Type: "error", Message: body.Error})
	_ = l.conn.Close(closeCode(err), "")
}
