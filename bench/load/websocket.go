package load

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// The WebSocket message, as the client's frame and as the server's echo.
var (
	echoed   = bytes.Repeat([]byte("m"), 100)
	outgoing = maskedFrame(echoed)
	incoming = append([]byte{0x82, byte(len(echoed))}, echoed...)
)

// maskedFrame returns a client's frame with a short binary message.
func maskedFrame(message []byte) []byte {
	mask := [4]byte{1, 2, 3, 4}
	frame := append([]byte{0x82, 0x80 | byte(len(message))}, mask[:]...)
	for i, b := range message {
		frame = append(frame, b^mask[i%4])
	}
	return frame
}

// webSocket sends consecutive messages over one WebSocket, each after the echo of the previous one.
func (g *generator) webSocket(w *worker) error {
	t := g.next()
	c, err := g.open(t)
	if err != nil {
		return err
	}
	defer c.Close()
	defer g.interrupt(c)()
	r := bufio.NewReader(c)
	if err := g.upgrade(c, r, t.host); err != nil {
		return err
	}
	answer := make([]byte, len(incoming))
	for g.claimUnit() {
		begun := time.Now()
		if _, err := c.Write(outgoing); err != nil {
			return err
		}
		if _, err := io.ReadFull(r, answer); err != nil {
			return err
		}
		if !bytes.Equal(answer, incoming) {
			return errors.New("another message came back")
		}
		g.recordUnit(w, begun)
	}
	return nil
}

// upgrade opens the WebSocket. The key is the example of RFC 6455, section 1.3, so the digest is known.
func (g *generator) upgrade(c io.Writer, r *bufio.Reader, host string) error {
	fields := append([]string{
		"Host: " + host, "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
	}, g.Header...)
	if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\n%s\r\n\r\n", g.Path, strings.Join(fields, "\r\n")); err != nil {
		return err
	}
	resp, err := http.ReadResponse(r, nil) //nolint:bodyclose // has no body
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusSwitchingProtocols || resp.Header.Get("Sec-WebSocket-Accept") != "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" {
		return fmt.Errorf("no WebSocket: %s", resp.Status)
	}
	return nil
}
