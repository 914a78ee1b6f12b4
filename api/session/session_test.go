package session

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"boxgate/api"
	"boxgate/api/access"
	"boxgate/api/history"
	"boxgate/api/strict"
	"boxgate/policy"
)

// program is a command of a box. It runs until it returns; ctx ends when it is killed.
type program func(ctx context.Context, stdin io.Reader, stdout io.Writer, signals <-chan string) int

// host runs the same program for all commands.
type host struct {
	start   func(ctx context.Context) error // runs before a command starts; may be nil
	program program
}

func (h *host) Box(context.Context, string) (api.Box, error) { return api.Box{ID: "b"}, nil }

func (h *host) StartSession(ctx context.Context, _ policy.BoxID, _ api.SessionRequest, stdin io.Reader, stdout, _ io.Writer) (api.Session, error) {
	if h.start != nil {
		if err := h.start(ctx); err != nil {
			return nil, err
		}
	}
	c := &command{signals: make(chan string, 100), code: make(chan int, 1)}
	c.ctx, c.kill = context.WithCancel(context.Background())
	go func() { c.code <- h.program(c.ctx, stdin, stdout, c.signals) }()
	return c, nil
}

type command struct {
	ctx     context.Context
	kill    func()
	signals chan string
	code    chan int
}

func (c *command) Pid() int                           { return 1 }
func (c *command) Resize(size api.TerminalSize) error { return nil }
func (c *command) Signal(name string) error           { c.signals <- name; return nil }
func (c *command) Wait(ctx context.Context) (api.ExecResult, error) {
	defer c.kill()
	select {
	case code := <-c.code:
		return api.ExecResult{ExitCode: code}, nil
	case <-ctx.Done():
		return api.ExecResult{}, context.Cause(ctx)
	}
}

// pipes is a listener with unbuffered connections: a write completes when the peer has read the bytes.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}
func (p *pipes) Close() error   { close(p.done); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// client is a client of sessions.
type client struct {
	t    *testing.T
	e    *Endpoints
	dial func(query string) *websocket.Conn
	conn *websocket.Conn
}

// withServer runs a test with a session server in a synctest bubble, which has a fake clock.
func withServer(t *testing.T, h *host, test func(c *client)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		e := New(h, h, history.New(nil), strict.Bodies{Most: 1 << 20})
		p := &pipes{make(chan net.Conn), make(chan struct{})}
		server := &http.Server{Handler: mux(e), BaseContext: func(net.Listener) context.Context {
			return access.WithCredential(api.WithCaller(context.Background(), api.Caller{Role: api.RoleAdmin}), func() bool { return true })
		}}
		served := make(chan struct{})
		go func() { defer close(served); _ = server.Serve(p) }()
		transport := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
			near, far := net.Pipe()
			p.conns <- far
			return near, nil
		}}
		c := &client{t: t, e: e}
		c.dial = func(query string) *websocket.Conn {
			conn, _, err := websocket.Dial(t.Context(), "http://gateway/b"+query, &websocket.DialOptions{HTTPClient: &http.Client{Transport: transport}})
			if err != nil {
				t.Fatal(err)
			}
			conn.SetReadLimit(1 << 20)
			return conn
		}
		c.conn = c.dial("")
		defer func() { // also if the test has failed
			_ = c.conn.CloseNow()
			_ = server.Close()
			<-served
			transport.CloseIdleConnections()
			time.Sleep(100 * time.Hour) // longer than anything waits for a client
		}()
		test(c)
	})
}

func mux(e *Endpoints) *http.ServeMux {
	m := http.NewServeMux()
	m.HandleFunc("GET /{id}", func(w http.ResponseWriter, r *http.Request) {
		if _, err := e.serve(w, r); err != nil {
			http.Error(w, err.Error(), http.StatusTeapot)
		}
	})
	return m
}

func (c *client) send(frame map[string]any) {
	c.t.Helper()
	data, err := json.Marshal(frame)
	if err == nil {
		err = c.conn.Write(c.t.Context(), websocket.MessageText, data)
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *client) read() (f toClient) {
	c.t.Helper()
	_, data, err := c.conn.Read(c.t.Context())
	if err == nil {
		err = json.Unmarshal(data, &f)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	return f
}

// expectFrame reads the next frame, which must be of the given type.
func (c *client) expectFrame(kind string) toClient {
	c.t.Helper()
	f := c.read()
	if f.Type != kind {
		c.t.Fatalf("%+v instead of %s", f, kind)
	}
	return f
}

// exit reads frames up to the last one and returns the amount of output before it.
func (c *client) exit(code int) (output int) {
	c.t.Helper()
	for {
		switch f := c.read(); f.Type {
		case "stdout":
			output += len(f.Data)
		case "ack":
		case "exit":
			if *f.Code != code {
				c.t.Errorf("exit %d", *f.Code)
			}
			return output
		default:
			c.t.Fatalf("%+v", f)
		}
	}
}

type m = map[string]any

func start(more m) m {
	f := m{"type": "start", "argv": []string{"x"}}
	for k, v := range more {
		f[k] = v
	}
	return f
}

// TestClientPauses: a client that reads nothing for a day, because of a pager or ^Z, finds its session unchanged, with or
// without pending output.
func TestClientPauses(t *testing.T) {
	t.Parallel()
	const flood = 1 << 20
	withServer(t, &host{program: func(ctx context.Context, _ io.Reader, out io.Writer, signals <-chan string) int {
		select {
		case <-signals:
		case <-ctx.Done():
			return 137
		}
		for range flood / (1 << 10) {
			_, _ = out.Write(make([]byte, 1<<10))
		}
		return 3
	}}, func(c *client) {
		c.send(start(nil))
		c.expectFrame("started")
		time.Sleep(24 * time.Hour)
		c.send(m{"type": "signal", "signal": "USR1"})
		time.Sleep(24 * time.Hour)
		if n := c.exit(3); n != flood {
			t.Errorf("%d of %d bytes", n, flood)
		}
	})
}

// TestSignalsOvertakeInput: signals, sizes and the end of a session arrive although the command reads none of the earlier
// input.
func TestSignalsOvertakeInput(t *testing.T) {
	t.Parallel()
	deaf := func(ctx context.Context, _ io.Reader, _ io.Writer, signals <-chan string) int {
		select {
		case <-signals:
			return 5
		case <-ctx.Done():
			return 137
		}
	}
	withServer(t, &host{program: deaf}, func(c *client) {
		c.send(start(nil))
		c.expectFrame("started")
		for range 16 {
			c.send(m{"type": "stdin", "data": make([]byte, 256<<10)})
		}
		c.send(m{"type": "signal", "signal": "INT"})
		c.exit(5)
	})
	var killed atomic.Bool
	withServer(t, &host{program: func(ctx context.Context, in io.Reader, out io.Writer, signals <-chan string) int {
		code := deaf(ctx, in, out, signals)
		killed.Store(true)
		return code
	}}, func(c *client) {
		c.send(start(nil))
		c.expectFrame("started")
		for range 16 {
			c.send(m{"type": "stdin", "data": make([]byte, 256<<10)})
		}
		_ = c.conn.Close(websocket.StatusNormalClosure, "")
		synctest.Wait()
		if !killed.Load() {
			t.Error("the command goes on although its client closed the session")
		}
	})
}

// echo copies its input to its output.
func echo(_ context.Context, stdin io.Reader, stdout io.Writer, _ <-chan string) int {
	_, _ = io.Copy(stdout, stdin)
	return 0
}

// TestBulkBothWays: a client with reattach can send and receive more than the buffers hold, if it follows the
// acknowledgements. A client that ignores them is refused instead of blocking forever.
func TestBulkBothWays(t *testing.T) {
	t.Parallel()
	const size, piece = 4 << 20, 64 << 10
	withServer(t, &host{program: echo}, func(c *client) {
		c.send(start(m{"reattach": true}))
		c.expectFrame("started")
		acked := make(chan int64, 1000)
		go func() {
			known := int64(0)
			for sent := int64(0); sent < size; sent += piece {
				for sent+piece-known > maxUnacked {
					known = <-acked
				}
				c.send(m{"type": "stdin", "data": make([]byte, piece)})
			}
			c.send(m{"type": "stdin_close"})
		}()
		for got := int64(0); ; {
			switch f := c.read(); f.Type {
			case "ack":
				acked <- f.Offset
			case "stdout":
				got += int64(len(f.Data))
				c.send(m{"type": "ack", "offset": got})
			case "exit":
				if got != size {
					t.Errorf("%d of %d bytes", got, size)
				}
				return
			}
		}
	})
	withServer(t, &host{program: echo}, func(c *client) {
		c.send(start(m{"reattach": true}))
		c.expectFrame("started")
		refused := make(chan string, 1)
		go func() {
			f := c.read()
			for f.Type != "error" {
				f = c.read()
			}
			refused <- f.Message
		}()
		c.flood(piece)
		if message := <-refused; !strings.Contains(message, "acknowledge") {
			t.Errorf("%q", message)
		}
	})
	withServer(t, &host{program: echo}, func(c *client) {
		c.send(start(m{"reattach": true}))
		c.expectFrame("started")
		if c.flood(piece) == nil { // without reading
			t.Error("a client that neither reads nor waits was not refused")
		}
	})
}

// flood sends more input than a client with acknowledgements may.
func (c *client) flood(piece int) error {
	data, err := json.Marshal(m{"type": "stdin", "data": make([]byte, piece)})
	for range 64 {
		if err == nil {
			err = c.conn.Write(c.t.Context(), websocket.MessageText, data)
		}
	}
	return err
}

// TestBeforeTheStart: while a box is being woken or created, the gateway answers pings of its client and queues its
// requests. A client that disconnects cancels the start.
func TestBeforeTheStart(t *testing.T) {
	t.Parallel()
	h := &host{
		start: func(context.Context) error { time.Sleep(10 * time.Minute); return nil },
		program: func(_ context.Context, _ io.Reader, _ io.Writer, signals <-chan string) int {
			return len(<-signals + <-signals)
		},
	}
	withServer(t, h, func(c *client) {
		c.send(start(nil))
		pinged := make(chan error, 1)
		go func() {
			ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
			defer cancel()
			pinged <- c.conn.Ping(ctx)
		}()
		c.send(m{"type": "signal", "signal": "TERM"})
		c.send(m{"type": "signal", "signal": "INT"})
		c.expectFrame("started")
		if err := <-pinged; err != nil {
			t.Errorf("a ping before the start: %v", err)
		}
		c.exit(7)
	})
	gone := errors.New("not yet")
	withServer(t, &host{start: func(ctx context.Context) error {
		<-ctx.Done()
		gone = context.Cause(ctx)
		return ctx.Err()
	}}, func(c *client) {
		c.send(start(m{"reattach": true}))
		synctest.Wait()
		_ = c.conn.Close(websocket.StatusNormalClosure, "")
		synctest.Wait()
		if !errors.Is(gone, errHungUp) {
			t.Errorf("the start goes on without a client: %v", gone)
		}
	})
	withServer(t, &host{start: func(context.Context) error { return api.Errorf(api.ErrUnavailable, "no such program") }}, func(c *client) {
		c.send(start(nil))
		if f := c.expectFrame("error"); f.Message != "no such program" {
			t.Errorf("%q", f.Message)
		}
	})
}

// TestWaitForTheClient: a command whose connection broke is killed after a minute.
func TestWaitForTheClient(t *testing.T) {
	t.Parallel()
	var ended atomic.Bool
	withServer(t, &host{program: func(ctx context.Context, _ io.Reader, _ io.Writer, _ <-chan string) int {
		<-ctx.Done()
		ended.Store(true)
		return 137
	}}, func(c *client) {
		c.send(start(m{"reattach": true}))
		id := c.expectFrame("started").ExecID
		_ = c.conn.CloseNow()
		time.Sleep(reconnectTimeout - time.Second)
		c.conn = c.dial("?session=" + id)
		c.expectFrame("attached")
		time.Sleep(2 * reconnectTimeout)
		_ = c.conn.CloseNow()
		time.Sleep(reconnectTimeout - time.Second)
		if ended.Load() {
			t.Fatal("the command was killed before its client could come back")
		}
		time.Sleep(2 * time.Second)
		if !ended.Load() {
			t.Error("the command goes on although nobody came back")
		}
	})
}

// TestUnreadOutputIsBounded: a command blocks while its output is not read.
func TestUnreadOutputIsBounded(t *testing.T) {
	t.Parallel()
	var written atomic.Int64
	withServer(t, &host{program: func(ctx context.Context, _ io.Reader, out io.Writer, _ <-chan string) int {
		for written.Load() < 64<<20 && ctx.Err() == nil {
			_, _ = out.Write(make([]byte, 16<<10))
			written.Add(16 << 10)
		}
		return 0
	}}, func(c *client) {
		c.send(start(nil))
		c.expectFrame("started")
		time.Sleep(time.Hour)
		if n := written.Load(); n > maxUnsent+queueLimit {
			t.Errorf("a command that nobody reads wrote %d bytes", n)
		}
	})
}

// TestStop: a gateway that stops ends all sessions, whether their client listens, pauses, has not sent the start frame,
// or might reconnect. Clients that listen receive an error frame and a close status.
func TestStop(t *testing.T) {
	t.Parallel()
	var running atomic.Int64
	withServer(t, &host{program: func(ctx context.Context, _ io.Reader, out io.Writer, _ <-chan string) int {
		running.Add(1)
		defer running.Add(-1)
		for ctx.Err() == nil {
			_, _ = out.Write(make([]byte, 16<<10))
			time.Sleep(time.Millisecond)
		}
		return 137
	}}, func(c *client) {
		broken := c.dial("")
		paused, silent := c.dial(""), c.dial("")
		for _, conn := range []*websocket.Conn{broken, paused} {
			first := c.conn
			c.conn = conn
			c.send(start(m{"reattach": true}))
			c.expectFrame("started")
			c.conn = first
		}
		_ = broken.CloseNow()
		c.send(start(nil))
		c.expectFrame("started")
		synctest.Wait()
		if n := running.Load(); n != 3 {
			t.Fatalf("%d commands", n)
		}
		c.e.Stop()
		for name, conn := range map[string]*websocket.Conn{"with a command": c.conn, "silent": silent} {
			if message, code := last(c, conn); message != "the gateway is stopping" || code != websocket.StatusGoingAway {
				t.Errorf("%s: %q, %d", name, message, code)
			}
		}
		ctx, cancel := context.WithTimeout(c.t.Context(), 3*time.Second)
		defer cancel()
		if err := c.e.Wait(ctx); err != nil || running.Load() != 0 {
			t.Errorf("%d commands go on: %v", running.Load(), err)
		}
		if _, err := c.e.open.acquireSlot(api.Caller{}, "b"); !errors.Is(err, api.ErrUnavailable) {
			t.Errorf("another session: %v", err)
		}
		_ = paused.CloseNow()
	})
}

// last reads a connection to its end and returns the message of the last error frame and the close status.
func last(c *client, conn *websocket.Conn) (message string, code websocket.StatusCode) {
	for {
		_, data, err := conn.Read(c.t.Context())
		if err != nil {
			return message, websocket.CloseStatus(err)
		}
		var f toClient
		if err := json.Unmarshal(data, &f); err != nil {
			c.t.Fatal(err)
		}
		message = f.Message
	}
}

// TestReplacedConnection: the end of a connection, for whatever reason, does not affect the session if the client has
// already reconnected.
func TestReplacedConnection(t *testing.T) {
	t.Parallel()
	var killed, forgotten bool
	s := &session{kill: func(error) { killed = true }, forget: func() { forgotten = true }}
	lines := make([]*connection, 2)
	for i := range lines {
		ctx, end := context.WithCancelCause(t.Context())
		defer end(nil)
		lines[i] = &connection{ctx: ctx, cancel: end, drained: make(chan struct{})}
		close(lines[i].drained)
		s.attach(lines[i])
	}
	s.disconnect(lines[0], false)
	s.disconnect(lines[0], true)
	if killed || forgotten || s.reconnectTimer != nil {
		t.Error("the connection that was replaced ended the session")
	}
	s.disconnect(lines[1], false)
	if !killed || !forgotten {
		t.Error("the session goes on without a connection")
	}
}
