package session

import (
	"context"
	"encoding/base64"
	"errors"
	"net/http"

	"github.com/coder/websocket"

	"boxgate/api/problem"
)

// converse moves frames both ways until the session or its connection ends, and decides what becomes of the session.
func (l *line) converse(s *session, hello string, offset int64) {
	s.attach(l)
	told := make(chan bool, 1)
	first := toClient{Type: hello, Pid: s.proc.Pid(), ExecID: s.id, Offset: s.in.count()}
	go func() { told <- l.send(first) == nil && l.tell(s, offset) }()
	err := l.listen(s)
	l.end(err)
	close(l.left)
	complete, cause := <-told, context.Cause(l.ctx)
	switch {
	case complete:
		s.forget()
	case errors.Is(cause, errTaken):
	case s.reattach && !hungUp(err) && !errors.Is(err, errRefused) && !errors.Is(cause, errStopping) && !keyEnded(cause):
		s.await(l)
	default:
		s.kill(errHungUp)
		s.forget()
	}
}

// errRefused ends a session whose client has sent what is no frame.
var errRefused = errors.New("a frame was refused")

// hungUp reports whether the client closed the connection, in contrast to one that broke.
func hungUp(err error) bool { return websocket.CloseStatus(err) != -1 }

// keyEnded reports whether a connection ended because its API key stopped working.
func keyEnded(cause error) bool {
	status, _ := problem.StatusOf(cause)
	return status == http.StatusUnauthorized
}

// tell sends the output of a session from an offset on, and at last how it ended. It reports whether the client got all.
func (l *line) tell(s *session, offset int64) (complete bool) {
	for {
		c, more, err := s.out.next(l.ctx, offset)
		if err != nil {
			return false
		}
		if !more {
			break
		}
		if err := l.send(toClient{Type: c.stream, Data: c.data}); err != nil {
			l.end(err)
			return false
		}
		offset = c.end
		if !s.reattach {
			s.out.free(offset)
		}
	}
	select {
	case <-s.over:
	case <-l.ctx.Done():
		return false
	}
	if err := l.send(s.last()); err != nil {
		l.end(err)
		return false
	}
	err := l.conn.Close(websocket.StatusNormalClosure, "")
	l.end(nil)
	return err == nil || !s.reattach
}

// listen obeys the frames of the client until the connection ends, and returns why it did.
func (l *line) listen(s *session) error {
	for {
		_, data, err := l.conn.Read(l.ctx)
		if err != nil {
			return err
		}
		f, err := parseFrame(data)
		if err == nil {
			err = l.obey(s, &f)
		}
		switch status, body := problem.StatusOf(err); {
		case err == nil:
		case status >= http.StatusInternalServerError:
			return err // the connection broke
		default:
			_ = l.send(toClient{Type: "error", Message: body.Error})
			return errRefused
		}
	}
}

// obey does what a frame asks for.
func (l *line) obey(s *session, f *fromClient) error {
	switch f.Type {
	case "stdin":
		data, err := base64.StdEncoding.DecodeString(f.Data)
		if err != nil {
			return problem.Invalid("/data", "must be base64")
		}
		l.waiting.Store(true)
		taken := s.in.put(l.ctx, data)
		l.waiting.Store(false)
		if s.reattach {
			return l.send(toClient{Type: "ack", Offset: taken})
		}
	case "stdin_close":
		s.in.end()
	case "ack":
		if !s.reattach || !s.out.free(f.Offset) {
			return problem.Invalid("/offset", "is more than there was")
		}
	case "resize":
		return s.resize(f)
	case "signal":
		if err := s.proc.Signal(f.Signal); err != nil {
			return problem.Invalid("/signal", "must be TERM, KILL, INT, HUP, TSTP, QUIT, USR1 or USR2")
		}
	case "terminate":
		s.terminate(f.grace())
	default:
		return problem.Invalid("/type", "must be stdin, stdin_close, resize, signal, terminate or ack")
	}
	return nil
}
