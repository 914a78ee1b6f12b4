package tunnel

import (
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"time"

	"boxgate/internal/h1"
	"boxgate/internal/socket"
	"boxgate/policy"
	"boxgate/proxy/contain"
)

const (
	quietHold = time.Second // time after which an idle direction releases its buffer
	// Rest is how long one side may continue after the other has closed.
	Rest = 5 * time.Second
)

// End is one end of a tunnel, with what was already read from it.
type End struct {
	Conn net.Conn
	To   io.Writer     // takes what is written to Conn: Conn, or what wraps it
	In   *h1.Reader    // data read from Conn and not forwarded yet
	Read *atomic.Int64 // bytes received from this end
}

// Relay copies bytes between two ends until both directions have ended, or one has and the other stays silent. When it
// returns, nothing uses either end.
func (p *Pool) Relay(client, server End, box policy.BoxID) error {
	client.In.Source, server.In.Source = client.Conn, server.Conn
	_ = client.Conn.SetReadDeadline(time.Time{})
	_ = server.Conn.SetReadDeadline(time.Time{})
	type end struct {
		dst net.Conn
		err error
	}
	ended := make(chan end, 2)
	direction := func(dst net.Conn, to io.Writer, src End) {
		err := contain.ErrFault
		defer func() { ended <- end{dst, err} }()
		defer contain.Panic(p.log, box, func() {})
		err = Pump(to, src)
	}
	idle := p.WatchIdle(func() { socket.Reset(client.Conn, server.Conn) }, client.Read, server.Read)
	defer idle.Stop()
	var lost atomic.Bool
	defer p.WatchLost(server.Conn, func() { lost.Store(true); socket.Reset(client.Conn, server.Conn) })()
	go direction(server.Conn, server.To, client)
	go direction(client.Conn, client.To, server)

	first := <-ended
	if first.err != nil { // neither side may take this for a graceful close
		socket.Reset(client.Conn, server.Conn)
	} else {
		socket.CloseWrite(first.dst)
		rest := time.AfterFunc(Rest, func() { socket.Abort(client.Conn, server.Conn) })
		defer rest.Stop()
	}
	<-ended
	if lost.Load() {
		return ErrLost
	}
	return first.err
}

// Pump copies from src to dst until EOF. While src is idle it keeps no buffer.
func Pump(dst io.Writer, src End) error {
	defer src.In.Release()
	for {
		if b := src.In.Bytes(); len(b) > 0 {
			if _, err := dst.Write(b); err != nil {
				return err
			}
			src.Read.Add(int64(len(b)))
			src.In.Take(len(b))
		}
		_ = src.Conn.SetReadDeadline(time.Now().Add(quietHold))
		err := src.In.Fill()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			_ = src.Conn.SetReadDeadline(time.Time{})
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
