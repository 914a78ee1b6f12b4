// Package client runs commands in boxes through the session endpoint, for the command line.
package client

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/coder/websocket"

	"boxgate/api"
)

// Request is the command to start.
type Request struct {
	Command  []string          // argv
	Dir      string            // absolute, or below /workspace/home
	Env      []string          // NAME=value, added to that of the box
	User     string            // the box's ordinary user by its name or as boxuser, root, UID or UID:GID; empty: the ordinary user
	Terminal *api.TerminalSize // nil: three streams
}

// Session is a running command in a box. It is killed when the connection ends. Wait must be called once; all other
// methods are safe for concurrent use.
type Session struct {
	ctx    context.Context
	conn   *websocket.Conn
	client *api.Client
	cancel string      // API path that cancels the run
	frames chan answer // frames read before Wait takes them; closed at the end, with the reason in err
	err    error
	window window
}

// frame is a frame from the client, of any type.
type frame struct {
	Type   string   `json:"type"`
	Argv   []string `json:"argv,omitempty"`
	Cwd    string   `json:"cwd,omitempty"`
	Env    []string `json:"env,omitempty"`
	User   string   `json:"user,omitempty"`
	TTY    bool     `json:"tty,omitempty"`
	Acks   bool     `json:"ackInput,omitempty"`
	Rows   uint16   `json:"rows,omitempty"` // start and resize
	Cols   uint16   `json:"cols,omitempty"`
	Data   []byte   `json:"data,omitempty"`
	Signal string   `json:"signal,omitempty"`
}

// answer is a frame from the gateway, of any type.
type answer struct {
	Type    string `json:"type"`
	ExecID  string `json:"execId"`
	Data    []byte `json:"data"`
	Code    *int   `json:"code"`
	Message string `json:"message"`
	Offset  int64  `json:"offset"`
}

// maxAnswer bounds a frame from the gateway, which sends output in smaller pieces.
const maxAnswer = 4 << 20

// Open starts a command. The session ends when ctx ends.
func Open(ctx context.Context, c *api.Client, box string, req Request) (*Session, error) {
	conn, err := c.WebSocket(ctx, api.BoxPath(box, "exec-session"))
	if err != nil {
		return nil, cmp.Or(context.Cause(ctx), err)
	}
	conn.SetReadLimit(maxAnswer)
	s := &Session{ctx: ctx, conn: conn, client: c, frames: make(chan answer, readAhead)}
	if err := s.start(box, req); err != nil {
		_ = conn.CloseNow()
		return nil, err
	}
	go s.read()
	return s, nil
}

func (s *Session) start(box string, req Request) error {
	f := frame{Type: "start", Argv: req.Command, Cwd: req.Dir, Env: req.Env, User: req.User, Acks: true}
	if req.Terminal != nil {
		f.TTY, f.Rows, f.Cols = true, req.Terminal.Rows, req.Terminal.Cols
	}
	if err := s.send(f); err != nil {
		return err
	}
	first, err := s.receive()
	if err == nil && first.Type != "started" {
		err = fmt.Errorf("the gateway sent %q where the command should have started", first.Type)
	}
	s.cancel = api.BoxPath(box, "runs", first.ExecID, "cancel")
	return err
}

func (s *Session) send(f frame) error {
	data, err := json.Marshal(f)
	if err != nil {
		return err
	}
	return s.conn.Write(s.ctx, websocket.MessageText, data)
}

// receive returns the next frame. An error frame is returned as an error.
func (s *Session) receive() (answer, error) {
	var a answer
	_, data, err := s.conn.Read(s.ctx)
	if err != nil {
		return a, cmp.Or(context.Cause(s.ctx), fmt.Errorf("the session broke before the command ended: %w", err))
	}
	if err := json.Unmarshal(data, &a); err != nil {
		return a, fmt.Errorf("cannot parse what the gateway sent: %w", err)
	}
	if a.Type == "error" {
		return a, errors.New(a.Message)
	}
	return a, nil
}

// readAhead is the number of frames read before [Session.Wait] takes them, so that acknowledgements still arrive while
// the reader of the output pauses.
const readAhead = 64

// read reads frames until the session ends.
func (s *Session) read() {
	defer close(s.frames)
	defer s.window.close()
	for {
		a, err := s.receive()
		if err != nil {
			s.err = err
			return
		}
		if a.Type == "ack" {
			s.window.acknowledge(a.Offset)
			continue
		}
		select {
		case s.frames <- a:
		case <-s.ctx.Done():
			s.err = context.Cause(s.ctx)
			return
		}
	}
}

// inputChunk is the maximum number of input bytes in a frame.
const inputChunk = 32 << 10

// Write implements [io.Writer]: it sends input. It blocks while the command does not read; Signal and Resize do not wait
// for it.
func (s *Session) Write(p []byte) (n int, err error) {
	for n < len(p) {
		part := p[n:min(len(p), n+inputChunk)]
		if err := s.window.reserve(s.ctx, int64(len(part))); err != nil {
			return n, err
		}
		if err := s.send(frame{Type: "stdin", Data: part}); err != nil {
			return n, err
		}
		n += len(part)
	}
	return n, nil
}

// CloseWrite ends the input.
func (s *Session) CloseWrite() error { return s.send(frame{Type: "stdin_close"}) }

// Signal sends one of [api.SessionSignals] to the command and all its descendants. It does not wait for the command to
// read pending input.
func (s *Session) Signal(name string) error { return s.send(frame{Type: "signal", Signal: name}) }

// Resize sets the size of the terminal.
func (s *Session) Resize(size api.TerminalSize) error {
	return s.send(frame{Type: "resize", Rows: size.Rows, Cols: size.Cols})
}

// killMost bounds the time to kill a command whose session failed.
const killMost = 10 * time.Second

// Wait copies the output as it arrives and returns the command's exit code. If it fails, the command is killed.
func (s *Session) Wait(stdout, stderr io.Writer) (int, error) {
	code, err := s.copyOutput(stdout, stderr)
	if err == nil {
		_ = s.conn.Close(websocket.StatusNormalClosure, "")
		return code, nil
	}
	// The gateway kills the command when the connection ends, but notices that late while the command takes no input.
	ctx, done := context.WithTimeout(context.WithoutCancel(s.ctx), killMost)
	defer done()
	_ = s.conn.CloseNow()
	_ = s.client.Do(ctx, http.MethodPost, s.cancel, nil, nil)
	return 0, err
}

func (s *Session) copyOutput(stdout, stderr io.Writer) (int, error) {
	for a := range s.frames {
		var err error
		switch a.Type {
		case "stdout":
			_, err = stdout.Write(a.Data)
		case "stderr":
			_, err = stderr.Write(a.Data)
		case "exit":
			if a.Code == nil {
				return 0, errors.New("the gateway sent no exit code")
			}
			return *a.Code, nil
		}
		if err != nil {
			return 0, err
		}
	}
	return 0, s.err
}

// windowSize bounds the unacknowledged input. The gateway buffers more than that, so it reads every frame without delay.
const windowSize = 512 << 10

// window counts the input that the gateway has not acknowledged yet.
type window struct {
	mu      sync.Mutex
	sent    int64
	acked   int64
	closed  bool
	changed chan struct{} // closed on each change; nil: no waiters
}

var errSessionEnded = errors.New("the session has ended")

// reserve waits until n more bytes may be sent.
func (w *window) reserve(ctx context.Context, n int64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.sent+n-w.acked > windowSize && !w.closed {
		if w.changed == nil {
			w.changed = make(chan struct{})
		}
		wait := w.changed
		w.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
		}
		w.mu.Lock()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	if w.closed {
		return errSessionEnded
	}
	w.sent += n
	return nil
}

// acknowledge records that the gateway has accepted the input up to the offset.
func (w *window) acknowledge(upTo int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.acked = max(w.acked, upTo)
	w.wakeLocked()
}

// close wakes all waiters with an error.
func (w *window) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.wakeLocked()
}

func (w *window) wakeLocked() {
	if w.changed != nil {
		close(w.changed)
		w.changed = nil
	}
}
