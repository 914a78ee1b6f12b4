package selftest

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"time"
)

// httpRequest returns a request that contains the token.
func httpRequest(method, target, host string, token []byte) []byte {
	return fmt.Appendf(nil, "%s %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: boxgate-selftest/%s\r\nConnection: close\r\n\r\n",
		method, target, host, token)
}

// clientHello returns the first message of a TLS client, with name as its server name unless it is "". The token is
// among the offered protocols, which are not encrypted.
func clientHello(name string, token []byte) []byte {
	var hello recording
	// The handshake fails after writing the first message, which is enough.
	_ = tls.Client(&hello, &tls.Config{
		ServerName: name, InsecureSkipVerify: true, NextProtos: []string{string(token), "http/1.1"},
		CurvePreferences: []tls.CurveID{tls.X25519}, // a post-quantum share would fill a second segment
	}).Handshake()
	return hello.Bytes()
}

// recording is a connection that keeps the written bytes and never answers.
type recording struct{ bytes.Buffer }

func (*recording) Read([]byte) (int, error)         { return 0, io.EOF }
func (*recording) Close() error                     { return nil }
func (*recording) LocalAddr() net.Addr              { return nil }
func (*recording) RemoteAddr() net.Addr             { return nil }
func (*recording) SetDeadline(time.Time) error      { return nil }
func (*recording) SetReadDeadline(time.Time) error  { return nil }
func (*recording) SetWriteDeadline(time.Time) error { return nil }

// slowly splits a message into single bytes.
func slowly(message []byte) [][]byte {
	var pieces [][]byte
	for i := range message {
		pieces = append(pieces, message[i:i+1])
	}
	return pieces
}
