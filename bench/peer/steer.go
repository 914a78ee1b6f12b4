package peer

import (
	"context"
	"fmt"
	"io"
	"net"
	"syscall"

	"golang.org/x/sys/unix"

	"boxgate/bench/field"
	"boxgate/bench/origin"
)

// StartTransparent runs the transparent listener that gets its connections from nftables, in its namespace.
func (r Root) StartTransparent(ctx context.Context, f *field.Field) (*Process, error) {
	e, err := r.environment(f, "steer", nil)
	if err != nil {
		return nil, err
	}
	return r.startOwn(ctx, f.TransparentHost, e, fmt.Sprintf("127.0.0.1:%d", field.TransparentPort), "peer", "steer", fmt.Sprintf("0.0.0.0:%d", field.TransparentPort))
}

// ServeTransparent accepts connections to foreign addresses, and joins each to its original destination.
func ServeTransparent(ctx context.Context, address string) error {
	transparent := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		failed := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_TRANSPARENT, 1) })
		if failed != nil {
			return failed
		}
		return err
	}}
	ln, err := transparent.Listen(ctx, "tcp4", address)
	if err != nil {
		return err
	}
	for {
		c, err := ln.Accept()
		if err != nil {
			return err
		}
		go join(c)
	}
}

// join copies data between a connection and its original destination, which must be among the origins.
func join(c net.Conn) {
	defer c.Close()
	if !origins.Contains(c.LocalAddr().(*net.TCPAddr).IP) {
		return
	}
	up, err := net.Dial("tcp", c.LocalAddr().String())
	if err != nil {
		return
	}
	defer up.Close()
	go func() {
		_, _ = io.Copy(up, c)
		_ = up.(*net.TCPConn).CloseWrite()
	}()
	_, _ = io.Copy(c, up)
}

var _, origins, _ = net.ParseCIDR(origin.Network) // is valid
