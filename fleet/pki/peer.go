package pki

import (
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Peers verifies other hosts of the fleet, by the authority and by the directory. The authority alone is not enough: a host that left
// has a certificate until it expires, and has known the authority's key.
type Peers struct {
	Authority *x509.Certificate
	// Known returns the fingerprint of the key of a member, see [Fingerprint]; false: the host is not a member.
	Known func(host string) (fingerprint []byte, ok bool)
}

// errNoPeer is the error of a connection without a usable certificate.
var errNoPeer = errors.New("the peer has no certificate of a host of this fleet")

// Verify returns the ID of the host at the other end of a TLS connection.
func (p Peers) Verify(state tls.ConnectionState) (host string, err error) {
	if len(state.PeerCertificates) == 0 || state.Version < tls.VersionTLS13 {
		return "", errNoPeer
	}
	leaf := state.PeerCertificates[0]
	roots := x509.NewCertPool()
	roots.AddCert(p.Authority)
	usage := []x509.ExtKeyUsage{x509.ExtKeyUsageAny}
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: usage}); err != nil {
		return "", fmt.Errorf("%w: %w", errNoPeer, err)
	}
	return p.member(leaf)
}

// Still returns the ID of the host at the other end of a connection that [Peers.Verify] accepted in its handshake, if it is a member with a
// valid certificate now. It is for each use of the connection: a host may leave, and its certificate expire, meanwhile.
func (p Peers) Still(state tls.ConnectionState) (host string, err error) {
	if len(state.PeerCertificates) == 0 || !state.HandshakeComplete {
		return "", errNoPeer
	}
	leaf := state.PeerCertificates[0]
	if now := time.Now(); now.After(leaf.NotAfter) || now.Before(leaf.NotBefore) {
		return "", errNoPeer
	}
	return p.member(leaf)
}

// member returns the host of a certificate, if it is a member with this key.
func (p Peers) member(leaf *x509.Certificate) (host string, err error) {
	if host, err = HostOf(leaf); err != nil {
		return "", err
	}
	known, ok := p.Known(host)
	if !ok {
		return "", fmt.Errorf("host %s is not a member of the fleet", host)
	}
	if subtle.ConstantTimeCompare(known, Fingerprint(leaf)) != 1 {
		return "", fmt.Errorf("host %s has another key than in the directory of the fleet", host)
	}
	return host, nil
}

// HostOf returns the ID of the host in the only subject alternative name of a certificate.
func HostOf(cert *x509.Certificate) (string, error) {
	if len(cert.URIs) != 1 || len(cert.DNSNames)+len(cert.IPAddresses)+len(cert.EmailAddresses) > 0 || cert.IsCA {
		return "", errNoPeer
	}
	host, ok := strings.CutPrefix(cert.URIs[0].Opaque, urnPrefix)
	if !ok || cert.URIs[0].Scheme != "urn" || host == "" {
		return "", errNoPeer
	}
	return host, nil
}

// Server returns the TLS configuration of a listener for other hosts: TLS 1.3, with a certificate of both sides, verified in each
// handshake. There is no resumption, which would skip the directory.
func (p Peers) Server(own func() (*tls.Certificate, error)) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, ClientAuth: tls.RequireAnyClientCert, SessionTicketsDisabled: true,
		GetCertificate:   func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return own() },
		VerifyConnection: func(state tls.ConnectionState) error { _, err := p.Verify(state); return err },
	}
}

// Client returns the TLS configuration of a connection to a host, like [Peers.Server]. Host names play no part.
func (p Peers) Client(own func() (*tls.Certificate, error), host string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, InsecureSkipVerify: true, SessionTicketsDisabled: true, // VerifyConnection verifies more
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return own() },
		VerifyConnection: func(state tls.ConnectionState) error {
			found, err := p.Verify(state)
			if err == nil && found != host {
				err = fmt.Errorf("host %s answers instead of host %s", found, host)
			}
			return err
		},
	}
}
