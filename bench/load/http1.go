package load

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// keepAlive sends consecutive requests over one connection.
func (g *generator) keepAlive(w *worker) error {
	t := g.next()
	c, err := g.reach(t)
	if err != nil {
		return err
	}
	defer c.Close()
	defer g.interrupt(c)()
	if g.Kind == Download || g.Kind == Upload {
		w.ready.Do(g.ready.Done)
	}
	r, request := bufio.NewReaderSize(c, 64<<10), g.request(t.host)
	for g.claimUnit() {
		begun := time.Now()
		if err := g.roundTrip(c, r, request); err != nil {
			return err
		}
		g.recordUnit(w, begun)
	}
	return nil
}

// interrupt closes a connection when the measurement is over, without waiting for a large body. stop ends that.
func (g *generator) interrupt(c net.Conn) (stop func()) {
	closed := make(chan struct{})
	go func() {
		select {
		case <-closed:
		case <-g.end:
			_ = c.SetDeadline(time.Now())
		case <-g.ctx.Done():
			_ = c.SetDeadline(time.Now())
		}
	}()
	return func() { close(closed) }
}

// fresh sends each request over a new connection.
func (g *generator) fresh(w *worker) error {
	if !g.claimUnit() {
		return nil
	}
	begun := time.Now()
	t := g.next()
	c, err := g.open(t)
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(begun.Add(patience))
	if err := g.roundTrip(c, bufio.NewReaderSize(c, 4096), g.request(t.host)); err != nil {
		return err
	}
	g.recordUnit(w, begun)
	return nil
}

// request returns the head of a request. The body of an upload follows.
func (g *generator) request(host string) []byte {
	method := "GET"
	header := append([]string{"Host: " + host, "User-Agent: bench", "Accept: */*"}, g.Header...)
	if g.Kind == Upload {
		method = "POST"
		header = append(header, "Content-Length: "+strconv.FormatInt(g.Size, 10))
	}
	return []byte(method + " " + g.Path + " HTTP/1.1\r\n" + strings.Join(header, "\r\n") + "\r\n\r\n")
}

// roundTrip sends a request and reads its answer, which must be a 200 with a body of the right length.
func (g *generator) roundTrip(c io.Writer, r *bufio.Reader, request []byte) error {
	if _, err := c.Write(request); err != nil {
		return err
	}
	want := g.Size
	if g.Kind == Upload {
		want = 1024
		if err := g.send(c); err != nil {
			return err
		}
	}
	head, err := readHead(r)
	if err != nil {
		return err
	}
	if head.status != 200 {
		return fmt.Errorf("status %d", head.status)
	}
	if head.closing && g.Kind != Fresh {
		return errors.New("the connection is not kept alive")
	}
	body := io.Reader(r)
	if g.Kind == Download {
		body = countingReader{r, g}
	}
	n, err := head.discard(r, body)
	if err == nil && n != want {
		err = fmt.Errorf("%d bytes in the place of %d", n, want)
	}
	return err
}

// chunk is the repeated content of an upload.
var chunk = bytes.Repeat([]byte("boxgate "), 32<<10)

func (g *generator) send(c io.Writer) error {
	for left := g.Size; left > 0; {
		n, err := c.Write(chunk[:min(left, int64(len(chunk)))])
		g.recordBytes(n)
		if err != nil {
			return err
		}
		left -= int64(n)
	}
	return nil
}

// head holds the relevant parts of the head of a response.
type head struct {
	status  int
	length  int64 // -1: no Content-Length
	chunked bool
	closing bool
}

// readHead reads a response up to its body.
func readHead(r *bufio.Reader) (h head, err error) {
	h.length = -1
	line, err := r.ReadSlice('\n')
	if err != nil {
		return h, err
	}
	if len(line) < 12 || !bytes.HasPrefix(line, []byte("HTTP/1.")) {
		return h, fmt.Errorf("not a status line: %q", line)
	}
	if h.status, err = strconv.Atoi(string(line[9:12])); err != nil {
		return h, err
	}
	for {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return h, err
		}
		if line = bytes.TrimRight(line, "\r\n"); len(line) == 0 {
			return h, nil
		}
		if err := h.field(line); err != nil {
			return h, err
		}
	}
}

func (h *head) field(line []byte) (err error) {
	name, value, _ := bytes.Cut(line, []byte(":"))
	value = bytes.TrimSpace(value)
	switch {
	case bytes.EqualFold(name, []byte("content-length")):
		h.length, err = strconv.ParseInt(string(value), 10, 64)
		if err == nil && h.length < 0 {
			err = errors.New("a negative Content-Length")
		}
	case bytes.EqualFold(name, []byte("transfer-encoding")):
		h.chunked = bytes.EqualFold(value, []byte("chunked"))
	case bytes.EqualFold(name, []byte("connection")):
		h.closing = bytes.EqualFold(value, []byte("close"))
	}
	return err
}

// discard reads the body and returns its length.
func (h head) discard(r *bufio.Reader, body io.Reader) (n int64, err error) {
	switch {
	case h.chunked:
		return discardChunks(r)
	case h.length >= 0:
		return io.CopyN(io.Discard, body, h.length)
	}
	return 0, errors.New("a body without a length")
}

func discardChunks(r *bufio.Reader) (n int64, err error) {
	for {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return n, err
		}
		size, err := strconv.ParseInt(string(bytes.TrimSpace(line)), 16, 32)
		if err != nil || size < 0 {
			return n, fmt.Errorf("size of a chunk: %q", line)
		}
		if _, err := r.Discard(int(size) + len("\r\n")); err != nil {
			return n, err
		}
		if n += size; size == 0 {
			return n, nil
		}
	}
}

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
