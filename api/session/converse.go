package session

import (
	"context"
	"encoding/base64"
	"errors"
	"net/http"

	"github.com/coder/websocket"

	"boxgate/api"
	"boxgate/api/problem"
	"boxgate/quota"
)

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
