package selftest

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"time"
)

// httpRequest is a request with the token in it.
func httpRequest(method, target, host string, token []byte) []byte {
	return fmt.Appendf(nil, "%s %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: boxgate-selftest/%s\r\nConnection: close\r\n\r\n",
		method, target, host, token)
}

// clientHello is the first message of a TLS client that asks for name ("": none), with the token among the protocols it
// offers, where it can be seen on the wire.
func clientHello(name string, token []byte) []byte {
	var hello recording
	// The handshake fails as soon as the first message is written, which is all that is needed.
	_ = tls.Client(&hello, &tls.Config{
		ServerName: name, InsecureSkipVerify: true, NextProtos: []string{string(token), "http/1.1"},
		CurvePreferences: []tls.CurveID{tls.X25519}, // a post-quantum share would fill a second segment
	}).Handshake()
	return hello.Bytes()
}

// recording is a connection that keeps what is written and never answers.
type recording struct{ bytes.Buffer }

func (*recording) Read([]byte) (int, error)         { return 0, io.EOF }
func (*recording) Close() error                     { return nil }
func (*recording) LocalAddr() net.Addr              { return nil }
func (*recording) RemoteAddr() net.Addr             { return nil }
func (*recording) SetDeadline(time.Time) error      { return nil }
func (*recording) SetReadDeadline(time.Time) error  { return nil }
func (*recording) SetWriteDeadline(time.Time) error { return nil }

// slowly cuts a message into pieces of a byte.
func slowly(message []byte) [][]byte {
	var pieces [][]byte
	for i := range message {
		pieces = append(pieces, message[i:i+1])
	}
	return pieces
}
