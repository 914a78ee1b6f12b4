package proxy

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	"net"
	"testing"
	"time"
)

// TestUntrustedCertificates ends handshakes in all known ways of clients that do not trust the gateway's certificate, and
// in other ways.
func TestUntrustedCertificates(t *testing.T) {
	t.Parallel()
	server := &tls.Config{Certificates: []tls.Certificate{selfSigned(t)}}
	alert := func(version uint16) func(net.Conn) {
		return func(c net.Conn) {
			_ = tls.Client(c, &tls.Config{ServerName: "a.example", RootCAs: x509.NewCertPool(), MaxVersion: version}).Handshake()
		}
	}
	// after sends a ClientHello, reads the whole answer, and then sends rest.
	after := func(rest []byte) func(net.Conn) {
		return func(c net.Conn) {
			_ = tls.Client(cutOff{c, rest}, &tls.Config{ServerName: "a.example", InsecureSkipVerify: true}).Handshake()
		}
	}
	for name, try := range map[string]struct {
		client    func(net.Conn)
		untrusted bool
	}{
		"alert, TLS 1.3":      {alert(tls.VersionTLS13), true},
		"alert, TLS 1.2":      {alert(tls.VersionTLS12), true},
		"closed":              {after(nil), true},
		"alert in clear text": {after([]byte{21, 3, 3, 0, 2, 2, 48}), true},
		"records of nonsense": {after(append([]byte{23, 3, 3, 0, 32}, make([]byte, 32)...)), true},
		"closed at once":      {func(net.Conn) {}, false},
		"no version in common": {func(c net.Conn) {
			_ = tls.Client(c, &tls.Config{ServerName: "a.example", MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10}).Handshake()
		}, false},
		"another protocol": {func(c net.Conn) { _, _ = io.WriteString(c, "GET / HTTP/1.1\r\n\r\n") }, false},
	} {
		near, far := net.Pipe()
		go func() {
			defer far.Close()
			try.client(far)
		}()
		_ = near.SetDeadline(time.Now().Add(time.Minute))
		counted := &countedConn{Conn: near}
		err := tls.Server(counted, server).Handshake()
		near.Close()
		if err == nil {
			t.Errorf("%s: the handshake succeeds", name)
			continue
		}
		var untrusted *errUntrusted
		if fault := handshakeFault(err, counted.sent); errors.As(fault, &untrusted) != try.untrusted || !errors.Is(fault, err) {
			t.Errorf("%s: %v", name, fault)
		}
	}
}

// cutOff is a client's connection that sends rest instead of the client's answer to the server's first flight.
type cutOff struct {
	net.Conn
	rest []byte
}

func (c cutOff) Write(b []byte) (int, error) {
	if b[0] == 22 { // the hello
		return c.Conn.Write(b)
	}
	_, _ = c.Conn.Write(c.rest)
	return 0, io.ErrClosedPipe
}

type countedConn struct {
	net.Conn
	sent int64
}

func (c *countedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.sent += int64(n)
	return n, err
}

func selfSigned(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"a.example"}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der, der}, PrivateKey: key}
}
