package harness

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"boxgate/certs"
	"boxgate/config"
)

// Origin is a web server of a test. It speaks only HTTP/1.1, keeps every byte it receives, and answers every request
// with 200.
type Origin struct {
	mu     sync.Mutex
	conns  []*originConn
	answer string // replaces the default response
}

// originConn holds the data received on one connection. taken counts the bytes already inspected.
type originConn struct {
	data      strings.Builder
	inspected int
}

// OriginName is the host name of an origin.
const OriginName = "origin.example.com"

// WithOrigin creates a CA for an origin. change makes the gateway's configuration trust it, and start starts the server
// in the world with that configuration.
func WithOrigin(t *testing.T) (change func(*config.Config), start func(*World) *Origin) {
	t.Helper()
	ca, err := certs.NewCA("origin")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "origin-ca.pem")
	if err := os.WriteFile(file, ca.CertificatePEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	issued, err := certs.NewIssued(ca, OriginName)
	if err != nil {
		t.Fatal(err)
	}
	change = func(c *config.Config) { c.Proxy.UpstreamCAFiles = append(c.Proxy.UpstreamCAFiles, file) }
	return change, func(w *World) *Origin {
		o := &Origin{}
		if err := w.Net.AddHost(OriginName, "198.51.100.77", "2001:db8:1::77"); err != nil {
			t.Fatal(err)
		}
		cfg := &tls.Config{GetCertificate: issued.GetCertificate, NextProtos: []string{"http/1.1"}}
		o.listen(t, w, "198.51.100.77:443", cfg)
		o.listen(t, w, "198.51.100.77:80", nil)
		return o
	}
}

// listen serves on an address of the internet, sharing the port with the servers that listen on every address.
func (o *Origin) listen(t *testing.T, w *World, at string, cfg *tls.Config) {
	t.Helper()
	var ln net.Listener
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		return errors.Join(c.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
		}), err)
	}}
	err := w.Net.Internet().Do(func() (err error) {
		ln, err = lc.Listen(context.Background(), "tcp", at)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	if cfg != nil {
		ln = tls.NewListener(ln, cfg)
	}
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go o.serve(c)
		}
	}()
}

// serve answers every request on a connection.
func (o *Origin) serve(c net.Conn) {
	defer c.Close()
	kept := &originConn{}
	o.mu.Lock()
	o.conns = append(o.conns, kept)
	o.mu.Unlock()
	buf, answered := make([]byte, 64<<10), 0
	for {
		n, err := c.Read(buf)
		o.mu.Lock()
		kept.data.Write(buf[:n])
		whole, answer := wholeRequests(kept.data.String()), o.answer
		o.mu.Unlock()
		if answer == "" {
			answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
		}
		for ; answered < whole; answered++ {
			_, _ = io.WriteString(c, answer) // the next read notices a disconnected client
		}
		if err != nil {
			return
		}
	}
}

// Answers makes the origin answer every following request with these bytes.
func (o *Origin) Answers(with string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.answer = with
}

// wholeRequests counts the complete requests, as a server would that trusts the first framing it finds.
func wholeRequests(data string) (n int) {
	for {
		head, rest, ok := strings.Cut(data, "\r\n\r\n")
		if !ok {
			return n
		}
		if strings.Contains(head, "\r\nTransfer-Encoding: chunked") {
			_, last, ended := strings.Cut("\r\n"+rest, "\r\n0\r\n")
			if _, rest, ok = strings.Cut("\r\n"+last, "\r\n\r\n"); !ended || !ok {
				return n
			}
		} else if _, length, found := strings.Cut(head, "\r\nContent-Length: "); found {
			size := 0
			if _, err := fmt.Sscanf(length, "%d", &size); err != nil || size > len(rest) {
				return n
			}
			rest = rest[size:]
		}
		data = rest
		n++
	}
}

// Received returns all bytes received since the last call, connection by connection.
func (o *Origin) Received() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var all string
	for _, c := range o.conns {
		all += c.data.String()[c.inspected:]
		c.inspected = c.data.Len()
	}
	return all
}
