// Package peek reads the first bytes of a connection without consuming them and classifies them. The policy routes the connection by the result.
package peek

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"boxgate/internal/buffers"
	"boxgate/internal/memory"
	"boxgate/policy/name"
)

// Cap is the maximum length in bytes of a first message: enough for a ClientHello at crypto/tls's own limit, however
// fragmented.
const Cap = 64 << 10

// peekStart is the initial buffer size. A ClientHello with post-quantum key shares has 1.8 KB, most others less.
const peekStart = 4 << 10

// Kind classifies the first bytes of a connection.
type Kind uint8

// Kinds of first bytes.
const (
	Silent   Kind = iota // no bytes arrived
	TLS                  // a ClientHello that crypto/tls understands and that offers TLS 1.2 or better
	BadTLS               // begins like TLS but is not valid, or offers only older versions
	HTTP                 // a request line of HTTP/1
	Other                // anything else
	Partial              // too short to classify: only if the deadline passed
	Oversize             // still incomplete at the cap
)

// First describes the first bytes of a connection, which are not consumed.
type First struct {
	Kind  Kind
	SNI   string    // as the client sent it, possibly with the root's dot at the end
	Name  name.Name // the SNI in canonical form; zero if it is absent or not a host name
	Data  []byte    // every byte read so far
	Ended bool      // the client has closed its sending side
	scan  helloScan

	claim  *memory.Claim // for the part of Data beyond peekStart
	buffer *[]byte       // initial buffer of Data
}

var firstBuffers = buffers.NewPool(peekStart)

// Recycle returns the buffer to its pool. Data, and copies of f, must not be used afterwards.
func (f *First) Recycle() {
	if f.buffer != nil {
		firstBuffers.Put(f.buffer)
	}
	f.buffer, f.Data = nil, nil
}

// Read reads from c until the first message can be classified. The deadline applies to the whole message, so that a client
// cannot extend it by sending byte after byte. Where silence is allowed, a client that stays silent until the silence
// deadline is [Silent]. Errors are read errors, such as os.ErrDeadlineExceeded, or [memory.ErrFull]. Read first
// releases the memory that claim has reserved for earlier first bytes.
func Read(c net.Conn, claim *memory.Claim, head []byte, deadline, silence time.Time) (First, error) {
	f := First{claim: claim}
	claim.Release()
	if len(head) > peekStart && !claim.Grow(len(head)) {
		return f, memory.ErrFull
	}
	if len(head) > peekStart {
		f.Data = bytes.Clone(head)
	} else {
		f.buffer = firstBuffers.Get()
		f.Data = append((*f.buffer)[:0], head...)
	}
	defer func() { _ = c.SetReadDeadline(time.Time{}) }() // fails only on a closed socket; the next use reports it
	for {
		if f.classify(); f.Kind != Partial && f.Kind != Silent {
			return f, nil
		}
		if f.Ended {
			return f.classifyEnded(), nil
		}
		until := deadline
		if !silence.IsZero() {
			until = f.nextDeadline(deadline, silence)
		}
		if err := c.SetReadDeadline(until); err != nil {
			return f, err
		}
		err := f.read(c)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded) && len(f.Data) == 0 && !silence.IsZero():
			return f, nil
		case errors.Is(err, io.EOF):
			f.Ended = true
		case err != nil:
			return f, err
		}
	}
}

// turnPause is how long a client that has sent the beginning of a request line may pause, where silence is allowed, before
// it is assumed to wait for the server.
const turnPause = 500 * time.Millisecond

// nextDeadline returns the deadline for the next bytes where silence is allowed.
func (f *First) nextDeadline(deadline, silence time.Time) time.Time {
	switch {
	case len(f.Data) == 0:
		return silence
	case f.Data[0] == recordHandshake:
		return deadline
	}
	if pause := time.Now().Add(turnPause); pause.Before(deadline) {
		return pause
	}
	return deadline
}

// classifyEnded classifies the bytes of a client that sends no more. An incomplete message does not count as the protocol that
// it begins like.
func (f First) classifyEnded() First {
	switch {
	case len(f.Data) == 0:
		f.Kind = Silent
	case f.Data[0] == recordHandshake:
		f.Kind = BadTLS
	default:
		f.Kind = Other
	}
	return f
}

// read appends the result of one read, growing the buffer up to the cap.
func (f *First) read(c net.Conn) error {
	if len(f.Data) == cap(f.Data) {
		size := min(4*cap(f.Data), Cap)
		if !f.claim.Grow(size - cap(f.Data)) {
			return memory.ErrFull
		}
		grown := make([]byte, len(f.Data), size)
		copy(grown, f.Data)
		f.Data = grown
	}
	n, err := c.Read(f.Data[len(f.Data):cap(f.Data)])
	f.Data = f.Data[:len(f.Data)+n]
	if n > 0 {
		return nil // the next read returns the error again
	}
	return err
}

// NamesRoot reports whether the server name ends in the root's dot. The gateway cannot terminate TLS for such a client:
// crypto/tls rejects its ClientHello.
func (f First) NamesRoot() bool { return strings.HasSuffix(f.SNI, ".") }

// BeginsTLS reports whether the first byte is that of a TLS handshake record.
func (f First) BeginsTLS() bool { return len(f.Data) > 0 && f.Data[0] == recordHandshake }

// classify sets the kind of the bytes read so far, and the name.
func (f *First) classify() {
	switch {
	case len(f.Data) == 0:
		f.Kind = Silent
		return
	case f.Data[0] == recordHandshake:
		f.classifyTLS()
	default:
		f.Kind = sniffHTTP(f.Data)
	}
	if f.Kind == Partial && len(f.Data) >= Cap {
		f.Kind = Oversize
	}
}

// Parts of the TLS record layer (RFC 8446, 5.1) and the handshake (4) needed to find the end of a ClientHello.
const (
	recordHandshake  = 22
	recordHeader     = 5
	maxRecord        = 1<<14 + 2048 // the most that any version allows; empty records are not allowed here
	clientHello      = 1
	handshakeHeader  = 4
	maxClientHello   = Cap
	legacyMajor      = 3
	lowestTLSOffered = tls.VersionTLS12
)

func (f *First) classifyTLS() {
	if f.Kind = f.scan.next(f.Data); f.Kind != TLS {
		return
	}
	sni, ok := serverName(f.Data)
	if !ok || beginsRequest(f.Data) {
		f.Kind = BadTLS
		return
	}
	f.SNI = sni
	if host, err := name.Parse(sni); err == nil {
		f.Name = host
	}
}

// serverName returns the server name in a whole ClientHello, which may be empty. It returns false if crypto/tls
// rejects the hello, or if it does not offer TLS 1.2 or later.
//
// A name may end in the root's dot. RFC 6066 forbids it and crypto/tls rejects it, but Python and some Java clients send it
// for https://example.com./, and other servers ignore it.
func serverName(data []byte) (name string, ok bool) {
	if name, ok := readHello(data); ok {
		return string(name), true
	}
	if rootless, ok := withoutRoot(data); ok {
		name, ok := parsedName(rootless)
		return name + ".", ok
	}
	return parsedName(data)
}

// parsedName is serverName using crypto/tls only.
func parsedName(data []byte) (name string, ok bool) {
	hello, err := parseHello(data)
	if err != nil || !slices.ContainsFunc(hello.SupportedVersions, isOffer) {
		return "", false
	}
	return hello.ServerName, true
}

// helloScan finds the end of a ClientHello that may span records. It resumes where it stopped, so a hello in one-byte
// segments costs no more than one in a single segment.
type helloScan struct {
	at   int // offset of the first incomplete record
	body int // bytes of the handshake message before that record
	head [handshakeHeader]byte
}

// next returns TLS if data contains a whole ClientHello, Partial if more is needed, and BadTLS if no ClientHello can
// follow. data is that of the previous call with more appended.
func (s *helloScan) next(data []byte) Kind {
	for {
		record := data[s.at:]
		if len(record) > 0 && record[0] != recordHandshake || len(record) > 1 && record[1] != legacyMajor {
			return BadTLS
		}
		if len(record) < recordHeader {
			return Partial
		}
		length := int(record[3])<<8 | int(record[4])
		payload := record[recordHeader:min(len(record), recordHeader+length)]
		if length == 0 || length > maxRecord {
			return BadTLS
		}
		if s.body < handshakeHeader {
			copy(s.head[s.body:], payload)
		}
		if k := s.message(s.body + len(payload)); k != Partial {
			return k
		}
		if len(payload) < length {
			return Partial
		}
		s.body += length
		s.at += recordHeader + length
	}
}

// message checks the handshake message after n bytes have arrived.
func (s *helloScan) message(n int) Kind {
	if n > 0 && s.head[0] != clientHello {
		return BadTLS
	}
	if n < handshakeHeader {
		return Partial
	}
	want := handshakeHeader + (int(s.head[1])<<16 | int(s.head[2])<<8 | int(s.head[3]))
	switch {
	case want > maxClientHello:
		return BadTLS
	case n >= want:
		return TLS
	default:
		return Partial
	}
}

// errPeeked aborts the handshake of parseHello after the ClientHello was parsed.
var errPeeked = errors.New("peeked")

// parseHello parses the ClientHello with crypto/tls, which parses it again if TLS is terminated. The result for an
// encrypted ClientHello has its outer name.
func parseHello(data []byte) (*tls.ClientHelloInfo, error) {
	var hello *tls.ClientHelloInfo
	server := tls.Server(readOnly{bytes.NewReader(data)}, &tls.Config{
		GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
			hello = h
			return nil, errPeeked
		},
	})
	if err := server.HandshakeContext(context.Background()); hello == nil {
		return nil, err
	}
	return hello, nil
}

// isOffer reports whether a version is TLS 1.2 or later. GREASE values (RFC 8701) are not.
func isOffer(version uint16) bool { return version >= lowestTLSOffered && version <= tls.VersionTLS13 }

// maxMethod is longer than any registered HTTP method.
const maxMethod = 32

// sniffHTTP classifies data as HTTP if it begins with an HTTP/1 request line. The strict parser validates it later. The
// connection preface of cleartext HTTP/2 is Other.
func sniffHTTP(data []byte) Kind {
	sp := bytes.IndexFunc(data, func(r rune) bool { return !methodRune(r) })
	if sp < 0 && len(data) <= maxMethod {
		return Partial
	}
	if sp <= 0 || sp > maxMethod || data[sp] != ' ' {
		return Other
	}
	end := bytes.IndexByte(data, '\n')
	if end < 0 {
		return Partial
	}
	line := bytes.TrimSuffix(data[:end], []byte("\r"))
	at := bytes.LastIndexByte(line, ' ')
	if at > sp && bytes.HasPrefix(line[at+1:], []byte("HTTP/1.")) {
		return HTTP
	}
	return Other
}

// methodRune reports whether r is valid in a method: methods are tokens (RFC 9110, 9.1 and 5.6.2).
func methodRune(r rune) bool {
	return 'A' <= r && r <= 'Z' || 'a' <= r && r <= 'z' || '0' <= r && r <= '9' || strings.ContainsRune("!#$%&'*+-.^_`|~", r)
}

// readOnly is a connection that only supports Read; writes are discarded.
type readOnly struct{ io.Reader }

func (readOnly) Write(p []byte) (int, error)      { return len(p), nil }
func (readOnly) Close() error                     { return nil }
func (readOnly) LocalAddr() net.Addr              { return nil }
func (readOnly) RemoteAddr() net.Addr             { return nil }
func (readOnly) SetDeadline(time.Time) error      { return nil }
func (readOnly) SetReadDeadline(time.Time) error  { return nil }
func (readOnly) SetWriteDeadline(time.Time) error { return nil }
