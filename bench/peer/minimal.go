package peer

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"boxgate/bench/origin"
)

// Minimal serves the fastest possible proxy in Go: it intercepts, verifies the upstream and sets one header, and does
// none of the other work of a proxy. Its endpoints have the form of [NetHTTP]'s.
func Minimal(certificate, key, roots string, endpoints []string) error {
	pair, err := tls.LoadX509KeyPair(certificate, key)
	if err != nil {
		return err
	}
	pool, err := readRoots(roots)
	if err != nil {
		return err
	}
	failed := make(chan error, len(endpoints))
	for _, e := range endpoints {
		part := strings.Split(e, "=")
		if len(part) != 3 {
			return fmt.Errorf("not an endpoint: %q", e)
		}
		m := newMinimal(Role(part[0]), part[2], pair, pool)
		ln, err := net.Listen("tcp", part[1])
		if err != nil {
			return err
		}
		go func() { failed <- m.accept(ln) }()
	}
	return <-failed
}

// minimal is one role of the anchor.
type minimal struct {
	server, client *tls.Config
	to             string
	serve          func(*wire)

	mu   sync.Mutex
	idle []*wire // connections to the upstream
}

func newMinimal(role Role, to string, pair tls.Certificate, pool *x509.CertPool) *minimal {
	m := &minimal{to: to}
	name, protocol := "up", "http/1.1"
	m.serve = m.requests
	if role == GRPC {
		name = "grpc"
	}
	if role == InterceptH2 || role == GRPC {
		protocol, m.serve = "h2", m.frames
	}
	m.server = &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{protocol}, MinVersion: tls.VersionTLS13}
	m.client = &tls.Config{
		RootCAs: pool, ServerName: name + "." + origin.Suffix, NextProtos: []string{protocol}, ClientSessionCache: tls.NewLRUClientSessionCache(8),
	}
	return m
}

func (m *minimal) accept(ln net.Listener) error {
	for {
		c, err := ln.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			w := newWire(c)
			w.Conn = tls.Server(w.records, m.server)
			if w.Handshake() == nil {
				m.serve(w)
			}
		}()
	}
}

// wire is a TLS connection that reads ahead.
type wire struct {
	*tls.Conn
	records *records
	in      *bufio.Reader // decrypted data
}

// records is a connection with a read buffer.
type records struct {
	net.Conn
	ahead *bufio.Reader
}

func (r *records) Read(p []byte) (int, error) { return r.ahead.Read(p) }

func newWire(c net.Conn) *wire {
	return &wire{records: &records{c, bufio.NewReaderSize(c, 16<<10)}}
}

// recordBuffered reports whether a whole record can be read without a system call.
func (w *wire) recordBuffered() bool {
	a := w.records.ahead
	if a.Buffered() < 5 {
		return false
	}
	header, err := a.Peek(5)
	return err == nil && a.Buffered() >= 5+(int(header[3])<<8|int(header[4]))
}

// upstream returns an idle connection, or a new one.
func (m *minimal) upstream() (*wire, error) {
	m.mu.Lock()
	if last := len(m.idle) - 1; last >= 0 {
		w := m.idle[last]
		m.idle = m.idle[:last]
		m.mu.Unlock()
		return w, nil
	}
	m.mu.Unlock()
	c, err := net.Dial("tcp", m.to)
	if err != nil {
		return nil, err
	}
	w := newWire(c)
	w.Conn = tls.Client(w.records, m.client)
	if err := w.Handshake(); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return w, nil
}

func (m *minimal) putIdle(w *wire) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.idle = append(m.idle, w)
}

// requests forwards the requests of a client, which have no bodies, over one upstream connection.
func (m *minimal) requests(client *wire) {
	up, err := m.upstream()
	if err != nil {
		return
	}
	client.in = bufio.NewReaderSize(client, 4<<10)
	if up.in == nil {
		up.in = bufio.NewReaderSize(up, 4<<10)
	}
	var out []byte
	for {
		head, err := readHead(client.in)
		if err != nil { // the client has closed between two requests
			m.putIdle(up)
			return
		}
		if out, err = rewrite(out[:0], head); err != nil {
			break
		}
		if _, err = up.Write(out); err != nil {
			break
		}
		if out, err = respond(out[:0], client, up.in); err != nil {
			break
		}
	}
	_ = up.Close()
}

var errHead = errors.New("not a head that this proxy understands")

// readHead reads a head and returns it. It is valid until the next read.
func readHead(r *bufio.Reader) ([]byte, error) {
	for n := 1; n <= r.Size(); n = r.Buffered() + 1 {
		if _, err := r.Peek(n); err != nil {
			return nil, err
		}
		seen, _ := r.Peek(r.Buffered())
		if end := bytes.Index(seen, []byte("\r\n\r\n")); end >= 0 {
			_, err := r.Discard(end + 4)
			return seen[:end+4], err
		}
	}
	return nil, errHead
}

// injected is the added header.
var injected = []byte(origin.Header + ": " + origin.Value + "\r\n\r\n")

// rewrite appends a request's head with the header added and without hop-by-hop fields.
func rewrite(out, head []byte) ([]byte, error) {
	for len(head) > 2 {
		line := head[:bytes.IndexByte(head, '\n')+1]
		head = head[len(line):]
		name, _, field := bytes.Cut(line, []byte(":"))
		switch {
		case len(line) == 0, bytes.EqualFold(name, []byte("Content-Length")), bytes.EqualFold(name, []byte("Transfer-Encoding")):
			return nil, errHead
		case field && (bytes.EqualFold(name, []byte("Connection")) || bytes.EqualFold(name, []byte(origin.Header))):
			continue
		}
		out = append(out, line...)
	}
	return append(out, injected...), nil
}

// respond forwards one response with a Content-Length, in one write if it is short.
func respond(out []byte, client io.Writer, up *bufio.Reader) ([]byte, error) {
	head, err := readHead(up)
	if err != nil {
		return nil, err
	}
	left, err := contentLength(head)
	if err != nil {
		return nil, err
	}
	out = append(out, head...)
	for {
		if _, err := up.Peek(min(left, 1)); err != nil {
			return nil, err
		}
		body, _ := up.Peek(min(left, up.Buffered()))
		out = append(out, body...)
		left -= len(body)
		if _, err := up.Discard(len(body)); err != nil {
			return nil, err
		}
		if left > 0 && len(out) < 16<<10 {
			continue
		}
		if _, err := client.Write(out); err != nil || left == 0 {
			return out, err
		}
		out = out[:0]
	}
}

// contentLength returns the Content-Length in a response's head. It returns an error if there is none.
func contentLength(head []byte) (int, error) {
	for line := range bytes.Lines(head) {
		if name, value, ok := bytes.Cut(line, []byte(":")); ok && bytes.EqualFold(name, []byte("Content-Length")) {
			return strconv.Atoi(string(bytes.TrimSpace(value)))
		}
	}
	return 0, errHead
}

// literal is the added header, encoded in HPACK as a literal without indexing, which may follow any block.
var literal = appendLiteral(nil, "x-inject", origin.Value)

func appendLiteral(b []byte, name, value string) []byte {
	b = append(b, 0, byte(len(name)))
	b = append(b, name...)
	b = append(b, byte(len(value)))
	return append(b, value...)
}

// frames joins a client's HTTP/2 connection to a new one to the upstream. Frames pass unchanged, except header blocks,
// which are decoded and get one more field.
func (m *minimal) frames(client *wire) {
	up, err := m.upstream()
	if err != nil {
		return
	}
	defer up.Close()
	go func() {
		defer client.Close()
		copyRecords(client, up)
	}()
	f := forwarder{from: client, to: up, in: make([]byte, 0, 64<<10), decoder: hpack.NewDecoder(4096, func(hpack.HeaderField) {})}
	if f.preface() == nil {
		f.run()
	}
}

// copyRecords copies decrypted data, with one write for all available records.
func copyRecords(to, from *wire) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		for err == nil && from.recordBuffered() && len(buf)-n >= 16<<10 {
			var next int
			next, err = from.Read(buf[n:])
			n += next
		}
		if _, failed := to.Write(buf[:n]); failed != nil || err != nil {
			return
		}
	}
}

// forwarder forwards the frames of a client.
type forwarder struct {
	from, to *wire
	in, out  []byte // read but not forwarded, forwarded but not written
	decoder  *hpack.Decoder
}

func (f *forwarder) preface() error {
	f.out = make([]byte, len(http2.ClientPreface), 64<<10)
	_, err := io.ReadFull(f.from, f.out)
	return err
}

func (f *forwarder) run() {
	for {
		n, err := f.from.Read(f.in[len(f.in):cap(f.in)])
		if err != nil {
			return
		}
		f.in = f.in[:len(f.in)+n]
		if err := f.forward(); err != nil {
			return
		}
		if len(f.out) == 0 || f.from.recordBuffered() && len(f.out) < 32<<10 {
			continue
		}
		if _, err := f.to.Write(f.out); err != nil {
			return
		}
		f.out = f.out[:0]
	}
}

const (
	frameHeader = 9
	maxFrame    = 16 << 10 // the default SETTINGS_MAX_FRAME_SIZE
)

// forward forwards the complete frames read so far.
func (f *forwarder) forward() error {
	rest := f.in
	for len(rest) >= frameHeader {
		length := int(rest[0])<<16 | int(rest[1])<<8 | int(rest[2])
		if length > maxFrame {
			return http2.ErrFrameTooLarge
		}
		if len(rest) < frameHeader+length {
			break
		}
		if err := f.frame(rest[:frameHeader+length]); err != nil {
			return err
		}
		rest = rest[frameHeader+length:]
	}
	f.in = f.in[:copy(f.in, rest)]
	return nil
}

func (f *forwarder) frame(frame []byte) error {
	if http2.FrameType(frame[3]) != http2.FrameHeaders {
		f.out = append(f.out, frame...)
		return nil
	}
	if http2.Flags(frame[4])&^http2.FlagHeadersEndStream != http2.FlagHeadersEndHeaders { // padded, with a priority, or in several frames
		return errHead
	}
	if _, err := f.decoder.Write(frame[frameHeader:]); err != nil {
		return err
	}
	if err := f.decoder.Close(); err != nil { // ends the block
		return err
	}
	length := len(frame) - frameHeader + len(literal)
	f.out = append(f.out, byte(length>>16), byte(length>>8), byte(length))
	f.out = append(append(f.out, frame[3:]...), literal...)
	return nil
}
