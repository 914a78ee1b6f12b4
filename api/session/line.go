package session

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/net/http/httpguts"

	"boxgate/api"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/policy"
)

// How long things may take on a connection.
const (
	startMost = 30 * time.Second // from the handshake to the first frame
	pingEvery = 20 * time.Second
	pingMost  = 30 * time.Second
	writeMost = 5 * time.Minute // a client that reads nothing for that long has gone
)

// serve is GET exec-session: a new session, or another connection to one.
func (e *Endpoints) serve(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.host)
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
	leave, err := e.open.enter(box.ID)
	if err != nil {
		return rest.Reply{}, err
	}
	l, err := e.accept(w, r)
	if err != nil {
		leave()
		return rest.Reply{Written: true}, nil
	}
	defer l.close()
	s, err := e.first(l, box.ID)
	if err != nil {
		leave()
		l.refuse(err)
		return rest.Reply{Written: true}, nil
	}
	e.open.add(s, leave)
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

// first reads the start frame and starts its command.
func (e *Endpoints) first(l *line, box policy.BoxID) (*session, error) {
	ctx, cancel := context.WithTimeout(l.ctx, startMost)
	defer cancel()
	_, data, err := l.conn.Read(ctx)
	if err != nil {
		return nil, err
	}
	f, err := parseFrame(data)
	if err != nil {
		return nil, err
	}
	return e.begin(l.ctx, box, &f)
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
	ctx     context.Context
	end     context.CancelCauseFunc
	conn    *websocket.Conn
	left    chan struct{} // closed when no frame of it is obeyed any more
	waiting atomic.Bool   // the reader waits for the command to take input, and sees no pong
}

// errStopping ends the connections of a server that shuts down.
var errStopping = errors.New("the gateway is stopping")

// accept answers the handshake of a request that was admitted. The connection ends when the API key stops working.
func (e *Endpoints) accept(w http.ResponseWriter, r *http.Request) (*line, error) {
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{CompressionMode: websocket.CompressionDisabled})
	if err != nil {
		return nil, err
	}
	conn.SetReadLimit(e.bodies.Most)
	ctx, end := context.WithCancelCause(context.WithoutCancel(r.Context()))
	l := &line{ctx: ctx, end: end, conn: conn, left: make(chan struct{})}
	go l.ping()
	go l.watch(r.Context(), e.stopping)
	return l, nil
}

// watch ends the connection, and says why, when its request may not be served any longer or the server shuts down.
func (l *line) watch(request context.Context, stopping <-chan struct{}) {
	var cause error
	select {
	case <-l.ctx.Done():
		return
	case <-stopping:
		cause = errStopping
	case <-request.Done():
		cause = context.Cause(request)
	}
	message := errStopping.Error()
	if keyEnded(cause) {
		_, body := problem.StatusOf(cause)
		message = body.Error
	}
	end := time.AfterFunc(farewellMost, func() { l.end(cause) })
	_ = l.send(toClient{Type: "error", Message: message})
	end.Reset(farewell)
}

// How long a connection that ends stays, for its client to learn why.
const (
	farewellMost = time.Second            // until the reason is sent
	farewell     = 100 * time.Millisecond // from then on
)

func (l *line) close() {
	l.end(nil)
	_ = l.conn.CloseNow()
}

// ping ends a connection whose other end has gone without a word.
func (l *line) ping() {
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	for {
		select {
		case <-l.ctx.Done():
			return
		case <-tick.C:
		}
		if l.waiting.Load() {
			continue
		}
		ctx, cancel := context.WithTimeout(l.ctx, pingMost)
		err := l.conn.Ping(ctx)
		cancel()
		if err != nil && !l.waiting.Load() {
			l.end(errLost)
			return
		}
	}
}

func (l *line) send(f toClient) error {
	data, err := json.Marshal(f)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(l.ctx, writeMost)
	defer cancel()
	return l.conn.Write(ctx, websocket.MessageText, data)
}

// refuse says why there is no session, and ends the connection.
func (l *line) refuse(err error) {
	if l.ctx.Err() != nil || websocket.CloseStatus(err) != -1 {
		return
	}
	_, body := problem.StatusOf(err)
	_ = l.send(toClient{Type: "error", Message: body.Error})
	_ = l.conn.Close(websocket.StatusNormalClosure, "")
}
