package relay

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"time"

	"boxgate/internal/buffers"
	"boxgate/internal/socket"
	"boxgate/relay/h1"
	"boxgate/relay/h2/downstream"
)

const (
	quietHold = time.Second // time after which an idle direction gives its buffer back
	// Rest is how long one side of a WebSocket may go on after the other has closed.
	Rest = 5 * time.Second
)

// End is one end of a tunnel, with the bytes already read from it.
type End struct {
	Conn  net.Conn
	To    io.Writer     // the destination of bytes for Conn: Conn itself or a wrapper
	In    *h1.Reader    // data read from Conn and not passed on yet
	Read  *atomic.Int64 // bytes received from this end and passed on
	Moved func()        // called before each part is passed on; may be nil
}

// Tunnel passes bytes both ways between a client and a server.
type Tunnel struct {
	Client, Server End
	Kill           func(...net.Conn)         // ends both connections when they must; never blocks
	Half           func() (stop func() bool) // called when one direction has ended gracefully: limits the time of the other, until stop
	Panicked       func(v any)               // called with the value of a panic
}

// Abort ends the tunnel. It never blocks.
func (t *Tunnel) Abort() { t.Kill(t.Client.Conn, t.Server.Conn) }

// ending is how one direction has ended.
type ending struct {
	dst net.Conn
	err error
}

// Run passes bytes until both directions have ended, or one has failed or ctx has ended: then both connections are killed, as neither
// side may take that for a graceful close. Both goroutines have ended when it returns.
func (t *Tunnel) Run(ctx context.Context) error {
	t.Client.In.Source, t.Server.In.Source = t.Client.Conn, t.Server.Conn
	_ = t.Client.Conn.SetWriteDeadline(time.Time{})
	if ctx.Err() != nil { // a cut may have set an earlier deadline
		t.Kill(t.Client.Conn)
	}
	ended := make(chan ending, 2)
	go t.pass(ended, t.Server, t.Client)
	go t.pass(ended, t.Client, t.Server)
	first := <-ended
	if first.err != nil || ctx.Err() != nil {
		t.Abort()
	} else {
		socket.CloseWrite(first.dst)
		defer t.Half()()
	}
	<-ended
	return first.err
}

// pass is one direction.
func (t *Tunnel) pass(ended chan<- ending, dst, src End) {
	err := ErrFault
	defer func() {
		if v := recover(); v != nil {
			t.Panicked(v)
		}
		ended <- ending{dst.Conn, err}
	}()
	err = Pump(dst.To, src)
}

// Pump copies from src to dst until EOF. While src is idle it keeps no buffer.
func Pump(dst io.Writer, src End) error {
	defer src.In.Release()
	hold := time.Time{} // the read deadline
	for {
		if b := src.In.Bytes(); len(b) > 0 {
			if src.Moved != nil {
				src.Moved()
			}
			if _, err := dst.Write(b); err != nil {
				return err
			}
			src.Read.Add(int64(len(b)))
			src.In.Take(len(b))
		}
		if now := time.Now(); hold.Sub(now) < quietHold/4 { // setting a deadline costs more than reading the clock
			hold = now.Add(quietHold)
			_ = src.Conn.SetReadDeadline(hold)
		}
		err := src.In.Fill()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			hold = time.Time{}
			_ = src.Conn.SetReadDeadline(hold)
			err = src.In.Wait()
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

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
