package relay

import (
	"errors"
	"io"
	"sync/atomic"
	"time"

	"boxgate/internal/buffers"
	"boxgate/internal/socket"
	"boxgate/relay/h2/downstream"
)

// StreamTunnel passes bytes both ways between the stream of a client, as after an extended CONNECT (RFC 8441), and a server.
type StreamTunnel struct {
	Client   *downstream.Stream
	To       io.Writer     // the destination of bytes for Client; it flushes
	End      func()        // ends the direction to Client
	Read     *atomic.Int64 // bytes received from the client
	Moved    func()        // called before each part from the client is passed on; may be nil
	Server   End
	Abort    func()      // ends the connection to the server; never blocks
	Panicked func(v any) // called with the value of a panic
}

// Through writes to a client and flushes.
type Through struct {
	io.Writer
	Flush func() error
}

func (w Through) Write(b []byte) (int, error) {
	n, err := w.Writer.Write(b)
	if err == nil {
		err = w.Flush()
	}
	return n, err
}

// Run passes bytes until both directions have ended, or one has failed. When one has ended gracefully, the other has [Rest] to end. It returns
// the error of the direction that has ended first. Both goroutines have ended then.
func (t *StreamTunnel) Run() error {
	t.Server.In.Source = t.Server.Conn
	_ = t.Server.Conn.SetReadDeadline(time.Time{})
	ended := make(chan error, 1)
	go t.fromClient(ended)
	err := Pump(t.To, t.Server)
	if err == nil {
		t.End()
	}
	select {
	case first := <-ended:
		return first
	default:
	}
	if err == nil {
		defer time.AfterFunc(Rest, t.interrupt).Stop()
	} else {
		t.interrupt()
	}
	<-ended
	return err
}

// interrupt ends fromClient, whether it waits for the client or for a server that does not read.
func (t *StreamTunnel) interrupt() {
	t.Client.CloseRead()
	t.Abort()
}

// fromClient passes on bytes of the client.
func (t *StreamTunnel) fromClient(ended chan<- error) {
	err := ErrFault
	defer func() {
		if v := recover(); v != nil {
			t.Panicked(v)
		}
		if ended <- err; err != nil {
			t.Abort()
			return
		}
		socket.CloseWrite(t.Server.Conn)
		time.AfterFunc(Rest, t.Abort)
	}()
	err = t.copy()
}

func (t *StreamTunnel) copy() error {
	buf := buffers.BorrowOut()
	defer func() { buffers.ReturnOut(buf) }()
	for {
		n, err := t.Client.Read(buf[:cap(buf)])
		t.Read.Add(int64(n))
		if n > 0 {
			if t.Moved != nil {
				t.Moved()
			}
			if _, err := t.Server.To.Write(buf[:n]); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}
