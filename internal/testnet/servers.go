package testnet

import (
	"crypto/tls"
	"errors"
	"io"
	"net/netip"
	"sync"
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
	changed   bool // servers were added after New
	running   sync.WaitGroup
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
