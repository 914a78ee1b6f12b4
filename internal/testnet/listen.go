package testnet

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// shared lets the DNS server bind its addresses on a port where another server is bound to the wildcard address.
var shared = net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
	var err error
	if e := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
	}); e != nil {
		return e
	}
	return err
}}

// network returns "tcp4", "udp6" and so on: each socket is for one family.
func network(protocol string, a netip.Addr) string {
	if a.Is4() {
		return protocol + "4"
	}
	return protocol + "6"
}

func (n *servers) listen(at netip.AddrPort) (ln net.Listener, err error) {
	err = n.internet.Do(func() (err error) {
		ln, err = shared.Listen(context.Background(), network("tcp", at.Addr()), at.String())
		return err
	})
	return ln, err
}

func (n *servers) listenPacket(at netip.AddrPort) (pc net.PacketConn, err error) {
	err = n.internet.Do(func() (err error) {
		pc, err = shared.ListenPacket(context.Background(), network("udp", at.Addr()), at.String())
		return err
	})
	return pc, err
}

// recorded is a listener that records its connections and closes them in Close: net/http does not track hijacked ones
// such as WebSockets.
type recorded struct {
	net.Listener
	records *recorder
	conns   *open
}

func (l recorded) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	entry := l.records.add(Received{Kind: Connection, Addr: addrPort(c.LocalAddr()), Remote: addrPort(c.RemoteAddr())})
	r := &recordedConn{Conn: c, records: l.records, conns: l.conns, entry: entry}
	if !l.conns.add(r) {
		_ = c.Close()
		return nil, net.ErrClosed
	}
	return r, nil
}

// recordedConn records the first bytes received.
type recordedConn struct {
	net.Conn
	records  *recorder
	conns    *open
	entry    *Received
	recorded int // bytes noted; only the reader touches it
}

const maxFirst = 1024

func (c *recordedConn) Read(p []byte) (int, error) {
	got, err := c.Conn.Read(p)
	if room := maxFirst - c.recorded; got > 0 && room > 0 {
		noted := append([]byte(nil), p[:min(got, room)]...)
		c.recorded += len(noted)
		c.records.change(c.entry, func(e *Received) { e.First = append(e.First[:len(e.First):len(e.First)], noted...) })
	}
	return got, err
}

// Close ends the connection.
func (c *recordedConn) Close() error {
	c.conns.remove(c)
	return c.Conn.Close()
}

// CloseWrite closes the sending side.
func (c *recordedConn) CloseWrite() error {
	if t, ok := c.Conn.(*net.TCPConn); ok {
		return t.CloseWrite()
	}
	return nil
}

// serveWeb answers HTTP, or HTTPS with HTTP/2 if the client offers it.
func (n *servers) serveWeb(at netip.AddrPort, secure bool) error {
	ln, err := n.listen(at)
	if err != nil {
		return err
	}
	s := &http.Server{
		Handler: http.HandlerFunc(n.web), ReadHeaderTimeout: time.Minute, ErrorLog: n.serverLog(),
		TLSConfig: &tls.Config{GetConfigForClient: n.noteHello, GetCertificate: n.chooseCertificate},
	}
	n.closers = append(n.closers, s)
	ln = recorded{ln, n.records, n.conns}
	n.running.Go(func() {
		if secure {
			err = s.ServeTLS(ln, "", "")
		} else {
			err = s.Serve(ln)
		}
		if !errors.Is(err, http.ErrServerClosed) {
			n.logf("test internet: %v: %v", at, err)
		}
	})
	return nil
}

// noteHello adds the server name and protocols of the ClientHello to the record of its connection.
func (n *servers) noteHello(hello *tls.ClientHelloInfo) (*tls.Config, error) {
	if c, ok := hello.Conn.(*recordedConn); ok {
		n.records.change(c.entry, func(e *Received) {
			e.SNI, e.ALPN = hello.ServerName, append([]string(nil), hello.SupportedProtos...)
		})
	}
	return nil, nil
}

// open is a set of open connections that Close closes.
type open struct {
	mu     sync.Mutex
	conns  map[*recordedConn]struct{}
	closed bool
}

// add registers a connection. It returns false if the set is closed.
func (o *open) add(c *recordedConn) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return false
	}
	if o.conns == nil {
		o.conns = map[*recordedConn]struct{}{}
	}
	o.conns[c] = struct{}{}
	return true
}

func (o *open) remove(c *recordedConn) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.conns, c)
}

// reset ends the selected connections with a reset.
func (o *open) reset(selected func(*recordedConn) bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for c := range o.conns {
		if selected(c) {
			Reset(c.Conn)
		}
	}
}

// Close closes every connection, and those added later.
func (o *open) Close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	for c := range o.conns {
		_ = c.Conn.Close()
	}
	return nil
}

// addrPort returns the address of a socket, with IPv4-mapped addresses unmapped.
func addrPort(a net.Addr) netip.AddrPort {
	switch a := a.(type) {
	case *net.TCPAddr:
		return netip.AddrPortFrom(a.AddrPort().Addr().Unmap().WithZone(""), a.AddrPort().Port())
	case *net.UDPAddr:
		return netip.AddrPortFrom(a.AddrPort().Addr().Unmap().WithZone(""), a.AddrPort().Port())
	}
	return netip.AddrPort{}
}
