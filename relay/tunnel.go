package relay

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"time"

	"boxgate/internal/socket"
	"boxgate/relay/h1"
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
