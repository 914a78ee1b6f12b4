package ingress

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync/atomic"
	"time"

	"boxgate/internal/h1"
	"boxgate/internal/socket"
)

const (
	quietHold = time.Second     // time after which an idle direction gives its buffer back
	rest      = 5 * time.Second // how long one side of a WebSocket may go on after the other has closed
)

// tunnel forwards the 101 and then relays bytes both ways until both directions have ended, or one has and the other stays
// silent. n is the length of the response's head.
func (c *client) tunnel(n int) error {
	c.answered = true
	c.begun.Store(true)
	c.visit.event.Status = c.res.Status
	c.out = appendResponse(c.takeOut(), &c.res, framed{minor: 1, hsts: c.hsts(), upgrade: true})
	c.up.in.Take(n)
	err := c.flush()
	c.giveOut()
	if err == nil {
		err = c.pump()
	}
	switch {
	case c.wasCut():
		c.visit.event.Error = errCut.Error()
	case err != nil:
		c.visit.event.Error = err.Error()
	default:
		return errEnd
	}
	return errAbort
}

func (c *client) pump() error {
	var received, sent atomic.Int64
	type end struct {
		dst net.Conn
		err error
	}
	ended := make(chan end, 2)
	copyTo := func(dst net.Conn, src net.Conn, in *h1.Reader, n *atomic.Int64) {
		err := error(nil)
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("panic in a WebSocket: %T", p)
			}
			ended <- end{dst, err}
		}()
		err = pass(dst, src, in, n)
	}
	c.up.in.Source = c.up.conn
	_ = c.conn.SetWriteDeadline(time.Time{})
	if c.ctx.Err() != nil {
		socket.Abort(c.conn)
	}
	go copyTo(c.up.conn, c.conn, &c.in, &received)
	go copyTo(c.conn, c.up.conn, &c.up.in, &sent)
	first := <-ended
	if first.err != nil || c.ctx.Err() != nil {
		socket.Abort(c.conn, c.up.conn)
	} else {
		socket.CloseWrite(first.dst)
		limit := time.AfterFunc(rest, func() { socket.Abort(c.conn, c.up.conn) })
		defer limit.Stop()
	}
	<-ended
	c.visit.event.BytesIn, c.visit.event.BytesOut = received.Load(), sent.Load()
	return first.err
}

// pass copies from src to dst until EOF. While src is idle it keeps no buffer.
func pass(dst io.Writer, src net.Conn, in *h1.Reader, n *atomic.Int64) error {
	defer in.Release()
	hold := time.Time{} // the read deadline
	for {
		if b := in.Bytes(); len(b) > 0 {
			if _, err := dst.Write(b); err != nil {
				return err
			}
			n.Add(int64(len(b)))
			in.Take(len(b))
		}
		if now := time.Now(); hold.Sub(now) < quietHold/4 {
			hold = now.Add(quietHold)
			_ = src.SetReadDeadline(hold)
		}
		err := in.Fill()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			hold = time.Time{}
			_ = src.SetReadDeadline(hold)
			err = in.Wait()
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}
