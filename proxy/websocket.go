package proxy

import (
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"time"

	"boxgate/internal/handshake"
	"boxgate/proxy/h1"
)

const (
	tunnelHold = time.Second     // a quiet direction gives its buffer back after this long
	tunnelRest = 5 * time.Second // when one side has closed, the other may say this much longer what it has to say
)

// upgraded returns why an answer of 101 does not make a WebSocket of the connection on which it was asked for; nil if it
// does. Anything else that the server might mean by it would be a tunnel for the box.
func upgraded(request handshake.Fields, answer *h1.Response) error {
	if answer.Minor == 0 || !h1.EqualFold(answer.Upgrade, "websocket") { // which is nil unless Connection names it
		return errProtocol
	}
	return handshake.Verify(request, valuesOf(answer))
}

// tunnel answers 101 and passes the bytes of an upgraded connection both ways, to that upstream and nowhere else. The
// request stays published: a policy that denies it later cuts the tunnel. n is the length of the response's head.
func (h *http1) tunnel(n int) error {
	h.out = appendResponse(h.takeOut(), &h.res, answer{minor: 1, upgrade: true})
	h.up.in.Take(n)
	if err := h.flush(); err != nil {
		h.drop()
		return err
	}
	h.giveOut()
	defer h.drop()
	h.up.place.release() // the client's connection counts for both, as with every tunnel
	var in, out atomic.Int64
	err := h.s.tunnel(pipeEnd{h.s.client, &h.in, &out}, pipeEnd{h.up.conn, &h.up.in, &in}, h.ruling.masking(h.s.client))
	h.x.event.BytesIn, h.x.event.BytesOut = in.Load(), out.Load()
	h.x.failed(err)
	return errClose
}

// pipeEnd is one end of a tunnel and what was read from it already.
type pipeEnd struct {
	conn net.Conn
	in   *h1.Reader
	read *atomic.Int64 // bytes that came from here
}

// tunnel passes bytes between two ends until both directions have ended, or one has and the other stays silent. On
// return nothing uses either end. What the server sends is written to toClient, which is the client or stands before it.
func (s *session) tunnel(client, server pipeEnd, toClient io.Writer) error {
	client.in.Source, server.in.Source = client.conn, server.conn
	_ = client.conn.SetReadDeadline(time.Time{})
	_ = server.conn.SetReadDeadline(time.Time{})
	type end struct {
		dst net.Conn
		err error
	}
	ended := make(chan end, 2)
	direction := func(dst net.Conn, to io.Writer, src pipeEnd) {
		err := errInterrupted
		defer func() { ended <- end{dst, err} }()
		defer s.p.contain(s, func() {})
		err = pump(to, src)
	}
	idle := s.p.watchIdle(func() { resetAll(client.conn, server.conn) }, client.read, server.read)
	defer idle.stop()
	go direction(server.conn, server.conn, client)
	go direction(client.conn, toClient, server)

	first := <-ended
	if first.err != nil { // neither side may take this for an orderly end
		resetAll(client.conn, server.conn)
	} else {
		closeWrite(first.dst)
		rest := time.AfterFunc(tunnelRest, func() { breakOff(client.conn, server.conn) })
		defer rest.Stop()
	}
	<-ended
	return first.err
}

// resetAll ends them with resets.
func resetAll(conns ...net.Conn) {
	for _, c := range conns {
		reset(c)
	}
}

// breakOff ends every read and write under way on the connections, without a word to their peers.
func breakOff(conns ...net.Conn) {
	for _, c := range conns {
		if tcp, ok := bareTCP(c); ok {
			_ = tcp.Close()
			continue
		}
		_ = c.Close()
	}
}

// pump moves bytes from src to dst until src ends. While src is quiet it holds no buffer.
func pump(dst io.Writer, src pipeEnd) error {
	defer src.in.Release()
	for {
		if b := src.in.Bytes(); len(b) > 0 {
			if _, err := dst.Write(b); err != nil {
				return err
			}
			src.read.Add(int64(len(b)))
			src.in.Take(len(b))
		}
		_ = src.conn.SetReadDeadline(time.Now().Add(tunnelHold))
		err := src.in.Fill()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			_ = src.conn.SetReadDeadline(time.Time{})
			err = src.in.Wait()
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

func closeWrite(c net.Conn) {
	if w, ok := c.(interface{ CloseWrite() error }); ok {
		_ = w.CloseWrite()
	} else if tcp, ok := bareTCP(c); ok {
		_ = tcp.CloseWrite()
	}
}
