// Package peektest builds ClientHellos for tests.
package peektest

import (
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"strings"
	"testing"
)

// Lengths of the headers of a TLS record and of a handshake message (RFC 8446, 5.1 and 4).
const recordHeader, handshakeHeader = 5, 4

// Hello returns the first flight of crypto/tls under cfg: whole records that contain one ClientHello.
func Hello(t testing.TB, cfg *tls.Config) []byte {
	t.Helper()
	client, server := net.Pipe()
	go func() {
		_ = tls.Client(client, cfg).Handshake()
		client.Close()
	}()
	defer server.Close()
	var out, message []byte
	for {
		head := make([]byte, recordHeader)
		if _, err := io.ReadFull(server, head); err != nil {
			t.Fatal(err)
		}
		body := make([]byte, int(head[3])<<8|int(head[4]))
		if _, err := io.ReadFull(server, body); err != nil {
			t.Fatal(err)
		}
		out, message = append(append(out, head...), body...), append(message, body...)
		if len(message) >= handshakeHeader && len(message) >= handshakeHeader+(int(message[1])<<16|int(message[2])<<8|int(message[3])) {
			return out
		}
	}
}

// Named is [Hello] with a server name.
func Named(t testing.TB, name string) []byte {
	t.Helper()
	return Hello(t, &tls.Config{ServerName: name, InsecureSkipVerify: true})
}

// LongProtocols returns ALPN protocols of about n bytes, for a ClientHello of more than one record.
func LongProtocols(n int) (protos []string) {
	for range n / 200 {
		protos = append(protos, strings.Repeat("x", 199))
	}
	return protos
}

// WithExtension appends an extension to a ClientHello of one record.
func WithExtension(t *testing.T, hello, ext []byte) []byte {
	t.Helper()
	out := append(bytes.Clone(hello), ext...)
	at := recordHeader + handshakeHeader + 2 + 32 // version and random
	at += 1 + int(out[at])
	at += 2 + int(out[at])<<8 + int(out[at+1])
	at += 1 + int(out[at])
	add := func(at, width int) {
		n := 0
		for i := range width {
			n = n<<8 | int(out[at+i])
		}
		n += len(ext)
		for i := width - 1; i >= 0; i-- {
			out[at+i] = byte(n)
			n >>= 8
		}
	}
	add(at, 2)
	add(recordHeader+1, 3)
	add(3, 2)
	return out
}
