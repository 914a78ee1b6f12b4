package testnet

import (
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"time"

	"golang.org/x/net/http2"
)

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
	n.running.Go(func() {
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
		n.running.Go(func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				n.running.Go(func() {
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
	n.changed = true
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

// GitBackend returns the path of the program that serves git repositories over HTTP, looked up where git installs its
// programs.
func GitBackend() (string, error) {
	dir, err := exec.Command("git", "--exec-path").Output()
	if err != nil {
		return "", err
	}
	path := string(dir[:max(len(dir)-1, 0)]) + "/git-http-backend"
	_, err = os.Stat(path)
	return path, err
}
