package ingress

import (
	"context"
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

// pipe passes bytes both ways between a client and a box.
type pipe struct {
	client, box         net.Conn
	fromClient, fromBox *h1.Reader // what has arrived already comes first
	received, sent      atomic.Int64
	moved               func(byVisitor bool)
	kill                func(...net.Conn) // how both are ended when they must; never blocks
}

func (p *pipe) abort() { p.kill(p.client, p.box) }

// run passes bytes until both directions have ended, or one has failed or ctx has ended: then both are aborted. half is
// called when one direction has ended; it bounds what the other may still do, until stop.
func (p *pipe) run(ctx context.Context, half func() (stop func() bool)) error {
	ended := make(chan end, 2)
	_ = p.client.SetWriteDeadline(time.Time{})
	if ctx.Err() != nil {
		p.kill(p.client)
	}
	go copyTo(ended, p.box, p.client, p.fromClient, &p.received, func() { p.moved(true) })
	go copyTo(ended, p.client, p.box, p.fromBox, &p.sent, func() { p.moved(false) })
	first := <-ended
	if first.err != nil || ctx.Err() != nil {
		p.abort()
	} else {
		socket.CloseWrite(first.dst)
		defer half()()
	}
	<-ended
	return first.err
}

// end is how one direction has ended.
type end struct {
	dst net.Conn
	err error
}

// copyTo is [pass]; it tells ended of the end, and of a panic.
func copyTo(ended chan<- end, dst, src net.Conn, in *h1.Reader, n *atomic.Int64, moved func()) {
	err := error(nil)
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic in passing bytes: %T", p)
		}
		ended <- end{dst, err}
	}()
	err = pass(dst, src, in, n, moved)
}

// pass copies from src to dst until EOF, and calls moved for each part. While src is idle it keeps no buffer.
func pass(dst io.Writer, src net.Conn, in *h1.Reader, n *atomic.Int64, moved func()) error {
	defer in.Release()
	hold := time.Time{} // the read deadline
	for {
		if b := in.Bytes(); len(b) > 0 {
			moved()
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
