package h2

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http/httptest"
	"testing"
	"time"
)

// TestClosingWaitsForNoPeer closes an HTTP/2 connection whose peer reads nothing: not even an announcement fits in.
func TestClosingWaitsForNoPeer(t *testing.T) {
	t.Parallel()
	near, conn := tlsPair(t)
	for _, size := range []int{64 << 10, 1} { // the second fills what the first left
		for err := error(nil); err == nil; {
			_ = near.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
			_, err = near.Write(make([]byte, size))
		}
	}
	_ = near.SetWriteDeadline(time.Time{})
	closed := false
	start := time.Now()
	_ = NewServerConn(conn, func() { closed = true }).Close()
	if d := time.Since(start); d > 2*time.Second || !closed {
		t.Errorf("closed after %v, told %v", d, closed)
	}
}

// tlsPair returns a TLS connection, and the TCP connection under it, to a peer that reads nothing after the handshake.
func tlsPair(t *testing.T) (*net.TCPConn, *tls.Conn) {
	t.Helper()
	srv := httptest.NewUnstartedServer(nil) // for its certificate
	srv.StartTLS()
	defer srv.Close()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	near, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	far, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { near.Close(); far.Close() })
	go func() { _ = tls.Server(far, &tls.Config{Certificates: srv.TLS.Certificates}).Handshake() }()
	trusted := x509.NewCertPool()
	trusted.AddCert(srv.Certificate())
	conn := tls.Client(near, &tls.Config{ServerName: "example.com", RootCAs: trusted})
	if err := conn.Handshake(); err != nil {
		t.Fatal(err)
	}
	return near.(*net.TCPConn), conn
}
