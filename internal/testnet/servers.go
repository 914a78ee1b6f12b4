package testnet

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

// The ports on which every host of the internet listens.
var (
	portsHTTP   = []uint16{80, 8080}
	portsHTTPS  = []uint16{443, 8443}
	portsEcho   = []uint16{7, 53, 853, 3128, 4444} // TCP: echoes
	portsBanner = map[uint16]string{22: "SSH-2.0-testnet\r\n", 25: "220 mail.example.com ESMTP\r\n"}
	portsUDP    = []uint16{7, 53, 123, 443, 4444} // echoes
)

// servers are the servers in the internet namespace. Safe for concurrent use.
type servers struct {
	logf     func(format string, args ...any)
	internet *NS
	zone     *zone
	records  *recorder
	conns    *open
	honest   *authority // CA trusted by the tests
	evil     *authority // the attacker's CA

	closersMu sync.Mutex
	closers   []io.Closer
	lasting   int // number of closers after New: those of predefined servers
	running   sync.WaitGroup
	added     sync.WaitGroup // goroutines of other servers
}

// newServers returns servers that are not listening yet.
func newServers(internet *NS, z *zone, records *recorder, logf func(format string, args ...any)) (s *servers, err error) {
	s = &servers{logf: logf, internet: internet, zone: z, records: records, conns: &open{}}
	if s.honest, err = newAuthority("Test Internet CA"); err != nil {
		return nil, err
	}
	s.evil, err = newAuthority("Nobody Trusts This CA")
	return s, err
}

// Close stops the servers and closes every connection.
func (n *servers) Close() error {
	err := n.conns.Close()
	n.closersMu.Lock()
	defer n.closersMu.Unlock()
	for i := len(n.closers) - 1; i >= 0; i-- {
		err = errors.Join(err, n.closers[i].Close())
	}
	n.running.Wait()
	n.added.Wait()
	return err
}

// closeAdded closes the servers added after New, resets all connections and waits for the handlers of those servers.
func (n *servers) closeAdded() (err error) {
	n.closersMu.Lock()
	defer n.closersMu.Unlock()
	for _, c := range n.closers[n.lasting:] {
		if e := c.Close(); !errors.Is(e, net.ErrClosed) { // by the test
			err = errors.Join(err, e)
		}
	}
	n.closers = n.closers[:n.lasting]
	n.conns.reset(func(*recordedConn) bool { return true })
	n.added.Wait()
	return err
}

// serve starts every server.
func (n *servers) serve() error {
	if err := n.serveDNS(); err != nil {
		return err
	}
	for _, any := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		if err := n.serveAt(any); err != nil {
			return err
		}
	}
	return nil
}

// serveAt starts the servers that listen on every address of a family.
func (n *servers) serveAt(any netip.Addr) error {
	for _, port := range portsHTTP {
		if err := n.serveWeb(netip.AddrPortFrom(any, port), false); err != nil {
			return err
		}
	}
	for _, port := range portsHTTPS {
		if err := n.serveWeb(netip.AddrPortFrom(any, port), true); err != nil {
			return err
		}
	}
	for _, port := range portsEcho {
		if err := n.serveEcho(netip.AddrPortFrom(any, port), ""); err != nil {
			return err
		}
	}
	for port, banner := range portsBanner {
		if err := n.serveEcho(netip.AddrPortFrom(any, port), banner); err != nil {
			return err
		}
	}
	for _, port := range portsUDP {
		if err := n.serveUDP(netip.AddrPortFrom(any, port)); err != nil {
			return err
		}
	}
	return nil
}

// chooseCertificate implements [tls.Config.GetCertificate] for the TLS servers.
func (n *servers) chooseCertificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	return n.certificate(hello.ServerName, addrPort(hello.Conn.LocalAddr()).Addr())
}

// Certificate returns a certificate of the test CA for a host, with its key, for programs that serve TLS themselves. Call it after
// [Net.AddHost].
func (n *servers) Certificate(host string) (*tls.Certificate, error) {
	return n.honest.leaf(host, n.zone.addrsOf(host)...)
}

// certificate returns the certificate that the host at an address presents for a server name. An honest host has
// certificates for its names and addresses and presents its own for any other name. The attacker makes one up for any
// name.
func (n *servers) certificate(sni string, at netip.Addr) (*tls.Certificate, error) {
	if isAttacker(at) {
		return n.evil.leaf(sni, at)
	}
	name := n.zone.nameOf(at)
	if n.zone.owns(sni, at) {
		name = canonical(sni)
	}
	if !isTrusted(at) {
		return n.evil.leaf(name, at)
	}
	return n.honest.leaf(name, at)
}

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

// ServeHTTP replaces the usual web server of a host, on ports 80 and 443, with handler. Over TLS it offers the given
// protocols, best first ("h2", "http/1.1"), or both if none is given. Its connections are recorded, its requests are
// not. Call it after [Net.AddHost].
func (n *servers) ServeHTTP(host string, handler http.Handler, protocols ...string) error {
	for _, addr := range n.zone.addrsOf(host) {
		err := n.serveHandler(netip.AddrPortFrom(addr, 80), false, handler, &tls.Config{NextProtos: protocols})
		if err != nil {
			return err
		}
	}
	return n.ServeHTTPSAt(host, 443, handler, protocols...)
}

// ServeHTTPSAt is [servers.ServeHTTP] over TLS on one port only.
func (n *servers) ServeHTTPSAt(host string, port uint16, handler http.Handler, protocols ...string) error {
	return n.ServeTLS(host, port, handler, &tls.Config{NextProtos: protocols})
}

// ServeTLS is [servers.ServeHTTPSAt] with a TLS configuration, to which the host's certificate is added.
func (n *servers) ServeTLS(host string, port uint16, handler http.Handler, config *tls.Config) error {
	for _, addr := range n.zone.addrsOf(host) {
		if err := n.serveHandler(netip.AddrPortFrom(addr, port), true, handler, config); err != nil {
			return err
		}
	}
	return nil
}

func (n *servers) serveHandler(at netip.AddrPort, secure bool, handler http.Handler, config *tls.Config) error {
	config = config.Clone()
	config.GetCertificate = n.chooseCertificate
	if len(config.NextProtos) == 0 {
		config.NextProtos = []string{"h2", "http/1.1"}
	}
	ln, err := n.listen(at)
	if err != nil {
		return err
	}
	s := &http.Server{
		Handler: handler, ReadHeaderTimeout: time.Minute, MaxHeaderBytes: 1 << 20, ErrorLog: n.serverLog(),
		TLSConfig: config, Protocols: new(http.Protocols),
	}
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetHTTP2(slices.Contains(config.NextProtos, http2.NextProtoTLS))
	n.addCloser(s)
	ln = recorded{ln, n.records, n.conns}
	n.added.Go(func() {
		if secure {
			err = s.ServeTLS(ln, "", "")
		} else {
			err = s.Serve(ln)
		}
		if !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
			n.logf("test internet: %v: %v", ln.Addr(), err)
		}
	})
	return nil
}

// ServeConns passes each connection to a port of a host to handle, which must close it. If protocols are given, the
// connection is TLS with these protocols, otherwise plain TCP. [Reset] closes one with a reset. Call it after
// [Net.AddHost].
func (n *servers) ServeConns(host string, port uint16, handle func(net.Conn), protocols ...string) error {
	for _, addr := range n.zone.addrsOf(host) {
		bare, err := n.listen(netip.AddrPortFrom(addr, port))
		if err != nil {
			return err
		}
		n.addCloser(bare)
		var ln net.Listener = recorded{bare, n.records, n.conns}
		if len(protocols) > 0 {
			ln = tls.NewListener(ln, &tls.Config{GetCertificate: n.chooseCertificate, NextProtos: protocols})
		}
		n.added.Go(func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				n.added.Go(func() {
					if t, ok := c.(*tls.Conn); ok && t.Handshake() != nil {
						_ = c.Close()
						return
					}
					handle(c)
				})
			}
		})
	}
	return nil
}

// ResetConns closes every connection to a host with a reset.
func (n *servers) ResetConns(host string) {
	addrs := n.zone.everOf(host)
	n.conns.reset(func(c *recordedConn) bool { return addrs[addrPort(c.LocalAddr()).Addr()] })
}

// addCloser registers c to be closed by Close.
func (n *servers) addCloser(c interface{ Close() error }) {
	n.closersMu.Lock()
	defer n.closersMu.Unlock()
	n.closers = append(n.closers, c)
}

// Reset closes a connection accepted by a server of the internet with a TCP reset, below any TLS.
func Reset(c net.Conn) {
	for {
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
			_ = tcp.Close()
			return
		}
		below, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			_ = c.Close()
			return
		}
		c = below.NetConn()
	}
}

// NetConn returns the underlying connection.
func (c *recordedConn) NetConn() net.Conn { return c.Conn }

// authority signs certificates. Safe for concurrent use.
type authority struct {
	cert    *x509.Certificate
	key     *ecdsa.PrivateKey
	leafKey *ecdsa.PrivateKey // the key of every leaf
	pem     []byte

	mu     sync.Mutex
	leaves map[string]*tls.Certificate
}

func newAuthority(name string) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	leafKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &authority{
		cert: cert, key: key, leafKey: leafKey, leaves: map[string]*tls.Certificate{},
		pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
	}, nil
}

// leaf returns a certificate for a name and addresses.
func (a *authority) leaf(name string, addrs ...netip.Addr) (*tls.Certificate, error) {
	id := name
	var ips []net.IP
	for _, addr := range addrs {
		id += " " + addr.String()
		ips = append(ips, addr.AsSlice())
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if c := a.leaves[id]; c != nil {
		return c, nil
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "test host"}, IPAddresses: ips,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		NotBefore: a.cert.NotBefore, NotAfter: a.cert.NotAfter,
	}
	if name != "" {
		template.DNSNames = []string{name}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, a.leafKey.Public(), a.key)
	if err != nil {
		return nil, err
	}
	c := &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: a.leafKey}
	if len(a.leaves) < 1000 { // clients choose the names
		a.leaves[id] = c
	}
	return c, nil
}

// serveEcho accepts TCP connections, sends the banner if it is not empty, and echoes the bytes it receives.
func (n *servers) serveEcho(at netip.AddrPort, banner string) error {
	ln, err := n.listen(at)
	if err != nil {
		return err
	}
	n.closers = append(n.closers, ln)
	n.running.Go(func() {
		for {
			c, err := recorded{ln, n.records, n.conns}.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				n.logf("test internet: %v: %v", at, err)
				continue
			}
			n.running.Go(func() {
				defer c.Close()
				if _, err := io.WriteString(c, banner); err == nil {
					_, _ = io.Copy(c, c)
				}
			})
		}
	})
	return nil
}

// serveUDP echoes every datagram from the address that it was sent to.
func (n *servers) serveUDP(at netip.AddrPort) error {
	pc, err := n.listenPacket(at)
	if err != nil {
		return err
	}
	n.closers = append(n.closers, pc)
	echo, err := newDatagrams(pc, at.Addr().Is4())
	if err != nil {
		return err
	}
	n.running.Go(func() {
		buf := make([]byte, 1<<16)
		for {
			size, dst, from, err := echo.read(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				n.logf("test internet: %v: %v", at, err)
				continue
			}
			n.records.add(Received{
				Kind: Datagram, Addr: netip.AddrPortFrom(dst, at.Port()), Remote: addrPort(from),
				First: append([]byte(nil), buf[:min(size, maxFirst)]...),
			})
			if err := echo.write(buf[:size], dst, from); err != nil {
				n.logf("test internet: %v: %v", at, err)
			}
		}
	})
	return nil
}

// datagrams reads and writes UDP on a socket bound to every address, with the local address of each datagram.
type datagrams struct {
	read  func(p []byte) (n int, dst netip.Addr, from net.Addr, err error)
	write func(p []byte, src netip.Addr, to net.Addr) error
}

func newDatagrams(pc net.PacketConn, v4 bool) (datagrams, error) {
	if v4 {
		c := ipv4.NewPacketConn(pc)
		return datagrams{
			read: func(p []byte) (int, netip.Addr, net.Addr, error) {
				n, cm, from, err := c.ReadFrom(p)
				if err != nil || cm == nil {
					return n, netip.Addr{}, from, err
				}
				dst, _ := netip.AddrFromSlice(cm.Dst.To4())
				return n, dst, from, nil
			},
			write: func(p []byte, src netip.Addr, to net.Addr) error {
				_, err := c.WriteTo(p, &ipv4.ControlMessage{Src: src.AsSlice()}, to)
				return err
			},
		}, c.SetControlMessage(ipv4.FlagDst, true)
	}
	c := ipv6.NewPacketConn(pc)
	return datagrams{
		read: func(p []byte) (int, netip.Addr, net.Addr, error) {
			n, cm, from, err := c.ReadFrom(p)
			if err != nil || cm == nil {
				return n, netip.Addr{}, from, err
			}
			dst, _ := netip.AddrFromSlice(cm.Dst)
			return n, dst, from, nil
		},
		write: func(p []byte, src netip.Addr, to net.Addr) error {
			_, err := c.WriteTo(p, &ipv6.ControlMessage{Src: src.AsSlice()}, to)
			return err
		},
	}, c.SetControlMessage(ipv6.FlagDst, true)
}
