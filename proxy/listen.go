package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/internal/socket"
)

// ListenTransparent listens on addr (an address literal and port) for connections that TPROXY rules redirect to it. Their
// local address is the destination that the box dialled. Needs CAP_NET_ADMIN.
func ListenTransparent(ctx context.Context, addr string) (net.Listener, error) {
	to, err := netip.ParseAddrPort(addr)
	if err != nil {
		return nil, fmt.Errorf("transparent listener: %w", err)
	}
	network, level, option := "tcp6", unix.SOL_IPV6, unix.IPV6_TRANSPARENT
	if to.Addr().Is4() {
		network, level, option = "tcp4", unix.SOL_IP, unix.IP_TRANSPARENT
	}
	lc := net.ListenConfig{
		KeepAlive: -1, // connections inherit the listener's keepalive options, which saves system calls for each
		Control: func(_, _ string, raw syscall.RawConn) error {
			var set error
			err := raw.Control(func(fd uintptr) {
				set = errors.Join(unix.SetsockoptInt(int(fd), level, option, 1), keepAlive(int(fd)))
			})
			return errors.Join(err, set)
		},
	}
	ln, err := lc.Listen(ctx, network, addr)
	if err != nil {
		return nil, fmt.Errorf("transparent listener: %w", err)
	}
	return ln, nil
}

// keepAlive makes the kernel probe whether silent clients are still there, as the net package does by default.
func keepAlive(fd int) error {
	return errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1),
		unix.SetsockoptInt(fd, unix.SOL_TCP, unix.TCP_KEEPIDLE, 15),
		unix.SetsockoptInt(fd, unix.SOL_TCP, unix.TCP_KEEPINTVL, 15),
		unix.SetsockoptInt(fd, unix.SOL_TCP, unix.TCP_KEEPCNT, 9),
	)
}

// ServeTransparent serves connections whose local address is the original destination. It returns nil when ctx ends or
// the proxy is shut down, and closes ln; connections already accepted continue.
func (p *Proxy) ServeTransparent(ctx context.Context, ln net.Listener) error {
	listener := addrPort(ln.Addr())
	return p.accept(ctx, ln, func(tcp *net.TCPConn, own *socket.Owned) {
		c := p.newConn(tcp, p.cfg.OriginalDst(tcp), own)
		own.Run(func() { c.handleTransparent(listener) })
	})
}

// accept calls handle for each connection of ln, in a goroutine. When the process is out of file descriptors it waits and
// retries: neither the listener nor the connections in the backlog are lost.
func (p *Proxy) accept(ctx context.Context, ln net.Listener, handle func(*net.TCPConn, *socket.Owned)) error {
	count := p.addListener(ln)
	if count == nil {
		return nil
	}
	defer p.dropListener(ln)
	defer context.AfterFunc(ctx, func() { _ = ln.Close() })()
	pause := acceptPause
	for {
		c, err := ln.Accept()
		switch {
		case err == nil:
			pause = acceptPause
			p.startHandler(c, count, handle)
		case errors.Is(err, net.ErrClosed):
			return nil
		case exhausted(err):
			p.cfg.Log.Sugar().Warnf("accept on %s: %v; trying again in %s", ln.Addr(), err, pause)
			if !sleep(ctx, pause) {
				return nil
			}
			pause = min(2*pause, time.Second)
		default:
			return fmt.Errorf("accept on %s: %w", ln.Addr(), err)
		}
	}
}

const acceptPause = 5 * time.Millisecond

// exhausted reports whether accepting failed for a temporary lack of resources.
func exhausted(err error) bool {
	for _, e := range []error{unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM, unix.ECONNABORTED, unix.EINTR, unix.EPERM} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// sleep waits for d and returns true, or returns false when ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// startHandler runs handle for one connection in a goroutine. During shutdown it resets the connection instead. Shutdown waits for
// the handler.
func (p *Proxy) startHandler(c net.Conn, count *atomic.Int64, handle func(*net.TCPConn, *socket.Owned)) {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		socket.Reset(c)
		return
	}
	own := p.handlers.Track(count)
	if own == nil {
		socket.Reset(c)
		return
	}
	p.workers.run(func() { handle(tcp, own) })
}

// addListener registers a listener and returns its counter of open connections. After Retire or Shutdown it closes the
// listener and returns nil.
func (p *Proxy) addListener(ln net.Listener) *atomic.Int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closing || p.retired {
		_ = ln.Close()
		return nil
	}
	p.accepting.Add(1)
	p.listeners[ln] = &atomic.Int64{}
	return p.listeners[ln]
}

// Held returns the number of open connections that a listener accepted; 0 after the listener has stopped.
func (p *Proxy) Held(ln net.Listener) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if count := p.listeners[ln]; count != nil {
		return int(count.Load())
	}
	return 0
}

func (p *Proxy) dropListener(ln net.Listener) {
	_ = ln.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, open := p.listeners[ln]; open {
		p.accepting.Done()
	}
	delete(p.listeners, ln)
}

// localAddr returns the original destination of a transparently accepted connection, which TPROXY makes the socket's local
// address.
func localAddr(c net.Conn) netip.AddrPort { return addrPort(c.LocalAddr()) }

// addrPort normalizes a TCP address for comparison: no IPv4-mapped IPv6, no zone.
func addrPort(a net.Addr) netip.AddrPort {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	to := t.AddrPort()
	return netip.AddrPortFrom(to.Addr().Unmap().WithZone(""), to.Port())
}
