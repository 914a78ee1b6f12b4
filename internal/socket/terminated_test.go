package socket_test

import (
	"bytes"
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

	"boxgate/internal/socket"
)

// identity returns a certificate of server.test and a pool that trusts it.
func identity(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{"server.test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(parsed)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

// accepted returns both ends of a TCP connection. The second is a Direct, as returned by the Listener of this package.
func accepted(t *testing.T) (client net.Conn, server net.Conn) {
	t.Helper()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := socket.Listener{Listener: inner}
	defer l.Close()
	client, err = net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	if server, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	for _, c := range []net.Conn{client, server} {
		if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	return client, server
}

// wrapped hides a Direct.
type wrapped struct{ net.Conn }

func (w wrapped) NetConn() net.Conn { return w.Conn }

// TestTerminatedCarriesContent in both directions and roles, over TLS 1.2 and 1.3 and every kind of connection below.
// Start returns the first bytes of the server until the handshake is complete.
func TestTerminatedCarriesContent(t *testing.T) {
	t.Parallel()
	certificate, roots := identity(t)
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		for name, over := range map[string]func(net.Conn) net.Conn{
			"directly": func(c net.Conn) net.Conn { return c },
			"wrapped":  func(c net.Conn) net.Conn { return wrapped{c} },
		} {
			t.Run(tls.VersionName(version)+" "+name, func(t *testing.T) {
				t.Parallel()
				a, b := accepted(t)
				var start []byte
				var client *socket.Terminated
				client = socket.Initiate(over(a), &tls.Config{ServerName: "server.test", RootCAs: roots, MaxVersion: version, VerifyConnection: func(tls.ConnectionState) error {
					start = bytes.Clone(client.Start())
					return nil
				}})
				if client.HasReceived() {
					t.Error("a server was heard that has said nothing")
				}
				server := socket.Terminate(over(b), 4<<10, &tls.Config{Certificates: []tls.Certificate{certificate}})
				failed := make(chan error, 1)
				go func() {
					err := server.Handshake()
					server.Established()
					if err == nil {
						_, err = io.Copy(server, server)
					}
					failed <- errors.Join(err, server.CloseWrite())
				}()
				if err := client.Handshake(); err != nil {
					t.Fatal(err)
				}
				client.Established()
				if len(start) < 50 || start[0] != 22 || start[5] != 2 || client.Start() != nil || !client.HasReceived() {
					t.Errorf("the server began with %d bytes: %x, afterwards %d", len(start), start[:min(6, len(start))], len(client.Start()))
				}
				if took := client.HandshakeBytes(); took < 300 || took > 4<<10 {
					t.Errorf("the handshake took %d bytes of the server's", took)
				}
				sent := make([]byte, 1<<20)
				_, _ = rand.Read(sent)
				go func() {
					_, err := client.Write(sent)
					failed <- errors.Join(err, client.CloseWrite())
				}()
				got, err := io.ReadAll(client)
				if err != nil || !bytes.Equal(got, sent) {
					t.Errorf("%d bytes came back of %d: %v", len(got), len(sent), err)
				}
				for range 2 {
					if err := <-failed; err != nil {
						t.Error(err)
					}
				}
				if cost := client.IdleCost(); cost < 16<<10 || cost > socket.ServerCost {
					t.Errorf("an idle connection is said to use %d bytes", cost)
				}
			})
		}
	}
}

// message returns a TLS record with part of a handshake message that declares a large length.
func message(kind byte, n int) []byte {
	record := []byte{22, 3, 3, 0x40, 0}
	body := make([]byte, 0x4000)
	body[0], body[1], body[2], body[3] = kind, byte(n>>16), byte(n>>8), byte(n)
	return append(record, body...)
}

// TestLongHandshakesEnd: neither a client nor a server can make the gateway buffer more than a handshake needs.
func TestLongHandshakesEnd(t *testing.T) {
	t.Parallel()
	certificate, roots := identity(t)
	flood := func(c net.Conn) int {
		n := 0
		for range 16 {
			m, err := c.Write(message(11, 255<<10))
			if n += m; err != nil {
				break
			}
		}
		return n
	}
	t.Run("client", func(t *testing.T) {
		t.Parallel()
		a, b := accepted(t)
		go func() { _, _ = a.Write(message(1, 200<<10)); flood(a) }()
		server := socket.Terminate(b, 4<<10, &tls.Config{Certificates: []tls.Certificate{certificate}})
		if err := server.Handshake(); err == nil {
			t.Error("the handshake succeeded")
		}
	})
	t.Run("server", func(t *testing.T) {
		t.Parallel()
		a, b := accepted(t)
		go func() { _, _ = io.ReadAtLeast(a, make([]byte, 1<<10), 100); flood(a) }()
		client := socket.Initiate(b, &tls.Config{ServerName: "server.test", RootCAs: roots})
		if err := client.Handshake(); err == nil {
			t.Error("the handshake succeeded")
		}
		if len(client.Start()) > 2<<10 {
			t.Errorf("%d bytes are kept", len(client.Start()))
		}
	})
	t.Run("server of something else that speaks TLS", func(t *testing.T) {
		t.Parallel()
		a, b := accepted(t)
		go flood(a)
		wire, got := socket.NewToServer(b), 0
		var err error
		for buf := make([]byte, 64<<10); err == nil; {
			var n int
			n, err = wire.Read(buf)
			got += n
		}
		if errors.Is(err, io.EOF) || got > socket.ServerHandshake+1 {
			t.Errorf("%d bytes were read: %v", got, err)
		}
	})
}

// TestContentAllowsMore: after content was read, the limit starts again.
func TestContentAllowsMore(t *testing.T) {
	t.Parallel()
	a, b := accepted(t)
	go func() {
		for range 64 {
			if _, err := a.Write(make([]byte, 16<<10)); err != nil {
				return
			}
		}
	}()
	wire := socket.NewToServer(b)
	wire.Established()
	for got := 0; got < 1<<20; {
		n, err := wire.Read(make([]byte, 16<<10))
		if err != nil {
			t.Fatalf("after %d bytes: %v", got, err)
		}
		got += n
		wire.Content()
	}
}

// TestContentDuringARead reports content while another goroutine reads, as pgconn does while it writes slowly. Under the race detector,
// it fails if they share a plain counter.
func TestContentDuringARead(t *testing.T) {
	t.Parallel()
	a, b := accepted(t)
	go func() {
		for range 64 {
			if _, err := a.Write(make([]byte, 16<<10)); err != nil {
				return
			}
		}
	}()
	wire := socket.NewToServer(b)
	wire.Established()
	read := make(chan error)
	go func() {
		defer close(read)
		for got := 0; got < 1<<20; {
			n, err := wire.Read(make([]byte, 1<<10))
			if read <- err; err != nil {
				return
			}
			got += n
		}
	}()
	for err := range read {
		if err != nil {
			t.Fatal(err)
		}
		wire.Content() // while the next read runs
	}
}

// TestDirectIsFound: DirectOf finds a Direct below wrappers, and reports false without a TCP connection.
func TestDirectIsFound(t *testing.T) {
	t.Parallel()
	a, b := accepted(t)
	if d, ok := socket.DirectOf(wrapped{b}); !ok || d.NetConn() == nil {
		t.Error("a direct connection was not found")
	}
	if _, ok := socket.DirectOf(wrapped{a}); ok {
		t.Error("a connection of package net is said to be direct")
	}
	if _, ok := socket.TCP(wrapped{b}); !ok {
		t.Error("no connection of TCP was found")
	}
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	if _, ok := socket.TCP(near); ok {
		t.Error("a pipe is said to be one of TCP")
	}
	socket.Reset(near)
	if _, err := near.Write([]byte("x")); err == nil {
		t.Error("a reset left a pipe open")
	}
}

// TestDirectSaysWhatIsLeft: Filled, Quiet and Ended report unread data and the end of the stream.
func TestDirectSaysWhatIsLeft(t *testing.T) {
	t.Parallel()
	a, b := accepted(t)
	d, ok := socket.DirectOf(b)
	if !ok {
		t.Fatal("not direct")
	}
	if !d.Quiet() {
		t.Error("something has arrived that was not sent")
	}
	_, _ = a.Write([]byte("hello"))
	if err := d.Await(); err != nil {
		t.Fatal(err)
	}
	if d.Quiet() {
		t.Error("what has arrived is not seen")
	}
	d.PauseReads(true)
	if n, err := d.Read(make([]byte, 2)); n != 0 || err == nil {
		t.Errorf("a held connection returned %d bytes", n)
	}
	d.PauseReads(false)
	for _, c := range []struct {
		room int
		more bool
	}{{2, true}, {16, false}} {
		if _, err := d.Read(make([]byte, c.room)); err != nil || d.Filled() != c.more || d.Ended() {
			t.Errorf("a read of %d: %v, more %v, ended %v", c.room, err, d.Filled(), d.Ended())
		}
	}
	d.SetNonBlocking(true)
	if n, err := d.Read(make([]byte, 2)); n != 0 || err == nil {
		t.Errorf("a read that may not wait returned %d bytes: %v", n, err)
	}
	d.SetNonBlocking(false)
	socket.CloseWrite(wrapped{a})
	if n, err := d.Read(make([]byte, 2)); n != 0 || !errors.Is(err, io.EOF) || !d.Ended() {
		t.Errorf("at the end: %d bytes, %v, ended %v", n, err, d.Ended())
	}
}

// TestLingeringCloseLetsThePeerRead: a peer whose data was left unread still receives the last message.
func TestLingeringCloseLetsThePeerRead(t *testing.T) {
	t.Parallel()
	a, b := accepted(t)
	_, _ = a.Write(make([]byte, 32<<10))
	tcp, ok := socket.TCP(b)
	if !ok {
		t.Fatal("not TCP")
	}
	_, _ = b.Write([]byte("refused"))
	go socket.LingeringClose(tcp)
	got, _ := io.ReadAll(io.LimitReader(a, 7))
	if string(got) != "refused" {
		t.Errorf("the peer read %q", got)
	}
}
