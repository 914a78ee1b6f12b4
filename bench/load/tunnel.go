package load

import (
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"time"
)

// tunnel opens a connection that is passed through unread: it sends a ClientHello, reads an answer of 1 KiB and closes.
// No party does cryptography, so that only the tunnel is measured.
func (g *generator) tunnel(w *worker) error {
	hello, err := clientHello(g.Name)
	if err != nil {
		return err
	}
	answer := make([]byte, 1024)
	for g.claimUnit() {
		begun := time.Now()
		if err := g.exchange(hello, answer); err != nil {
			return err
		}
		g.recordUnit(w, begun)
	}
	return nil
}

func (g *generator) exchange(hello, answer []byte) error {
	c, err := g.dial(g.Name)
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := c.Write(hello); err != nil {
		return err
	}
	_, err = io.ReadFull(c, answer)
	return err
}

// clientHello returns the first message of a TLS client for a server.
func clientHello(host string) ([]byte, error) {
	client, server := net.Pipe()
	defer server.Close()
	go func() {
		_ = tls.Client(client, &tls.Config{ServerName: host, NextProtos: []string{"h2", "http/1.1"}}).Handshake() // fails when the pipe is closed
		_ = client.Close()
	}()
	return ReadRecord(server)
}

// ReadRecord reads one TLS record, with its header.
func ReadRecord(r io.Reader) ([]byte, error) {
	header := make([]byte, 5)
	if _, err := io.ReadFull(r, header); err != nil {
		return nil, err
	}
	record := append(header, make([]byte, binary.BigEndian.Uint16(header[3:]))...)
	_, err := io.ReadFull(r, record[5:])
	return record, err
}
