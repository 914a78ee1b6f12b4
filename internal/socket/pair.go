package socket

import (
	"context"
	"errors"
	"net"
	"time"
)

// pairTime bounds how long connecting a pair may take.
const pairTime = 10 * time.Second

// Pair returns both ends of a new TCP connection over loopback. It makes sure that both belong to this process, since other
// programs may connect to the listener too.
func Pair(ctx context.Context) (ours, theirs *net.TCPConn, err error) {
	ln, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return nil, nil, err
	}
	defer ln.Close()
	ctx, cancel := context.WithTimeout(ctx, pairTime)
	defer cancel()
	dialled, err := new(net.Dialer).DialContext(ctx, "tcp4", ln.Addr().String())
	if err != nil {
		return nil, nil, err
	}
	deadline, _ := ctx.Deadline()
	theirs, err = acceptFrom(ln, dialled.LocalAddr(), deadline)
	if err != nil {
		return nil, nil, errors.Join(err, dialled.Close())
	}
	ours, ok := dialled.(*net.TCPConn)
	if !ok {
		return nil, nil, errors.Join(net.ErrClosed, dialled.Close(), theirs.Close())
	}
	return ours, theirs, nil
}

// acceptFrom accepts the connection from an address, and closes all others.
func acceptFrom(ln *net.TCPListener, from net.Addr, deadline time.Time) (*net.TCPConn, error) {
	if err := ln.SetDeadline(deadline); err != nil {
		return nil, err
	}
	for {
		c, err := ln.AcceptTCP()
		if err != nil {
			return nil, err
		}
		if c.RemoteAddr().String() == from.String() {
			return c, nil
		}
		_ = c.Close()
	}
}
