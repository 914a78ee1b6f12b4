package peek

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"boxgate/internal/memory"
	"boxgate/policy"
)

// Cap is the largest first message that is read: a ClientHello of crypto/tls's own limit fits, whatever its records.
const Cap = 64 << 10

// peekStart is what is read at first. A ClientHello with post-quantum key shares has 1.8 KB, most others less.
const peekStart = 4 << 10

// Kind is what the first bytes of a connection are.
type Kind uint8

// The kinds.
const (
	Silent   Kind = iota // none came
	TLS                  // a ClientHello that crypto/tls understands and that offers TLS 1.2 or better
	BadTLS               // begins like TLS but is not that
	HTTP                 // a request line of HTTP/1
	Other                // anything else
	Partial              // more is needed to tell: a result only of a peek that ran out of time
	Oversize             // still incomplete at the cap
)

// First is what was learned from the first bytes of a connection, none of which is consumed.
type First struct {
	Kind  Kind
	SNI   string      // as the client wrote it
	Name  policy.Name // the SNI in canonical form; zero if there was none or it is no host name
	Data  []byte      // every byte read so far
	Ended bool        // the client will send nothing more
	scan  helloScan

	holds *memory.Claim // for what data takes beyond peekStart
}

// Read reads from c until the first message can be classified. Its deadline is the whole message's, not each read's, so
// that a client sending byte after byte gains nothing. A client that stays silent until the silence deadline is
// [Silent] where silence is allowed. The error is the read's: os.ErrDeadlineExceeded when the deadline passed; or it is
// [memory.ErrFull]. What holds held before, for other first bytes, it gives back.
func Read(c net.Conn, holds *memory.Claim, head []byte, deadline, silence time.Time) (First, error) {
	f := First{holds: holds}
	holds.Release()
	if len(head) > peekStart && !holds.Grow(len(head)) {
		return f, memory.ErrFull
	}
	f.Data = append(make([]byte, 0, max(peekStart, len(head))), head...)
	defer func() { _ = c.SetReadDeadline(time.Time{}) }() // fails only on a closed socket, which the next use finds
	for {
		if f.classify(); f.Kind != Partial && f.Kind != Silent {
			return f, nil
		}
		if f.Ended {
			return f.complete(), nil
		}
		until := deadline
		if !silence.IsZero() {
			until = f.patience(deadline, silence)
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

// turnPause is how long a client that has begun like a request line may pause, where silence is allowed, before it is
// taken to have said what it wanted and to wait for the server.
const turnPause = 500 * time.Millisecond

// patience is until when the next bytes must come, where silence is allowed.
func (f *First) patience(deadline, silence time.Time) time.Time {
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

// complete classifies what a client sent that sends no more: the beginning of something is not that thing.
func (f First) complete() First {
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

// read appends what one read gives, growing the buffer up to the cap.
func (f *First) read(c net.Conn) error {
	if len(f.Data) == cap(f.Data) {
		size := min(4*cap(f.Data), Cap)
		if !f.holds.Grow(size - cap(f.Data)) {
			return memory.ErrFull
		}
		grown := make([]byte, len(f.Data), size)
		copy(grown, f.Data)
		f.Data = grown
	}
	n, err := c.Read(f.Data[len(f.Data):cap(f.Data)])
	f.Data = f.Data[:len(f.Data)+n]
	if n > 0 {
		return nil // an error comes again with the next read
	}
	return err
}

// BeginsTLS reports whether the first byte is that of a TLS handshake.
func (f First) BeginsTLS() bool { return len(f.Data) > 0 && f.Data[0] == recordHandshake }

// classify sets the kind that the bytes read so far show, and the name with it.
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

// Of the TLS record layer (RFC 8446, 5.1) and the handshake (4) only as much as tells where a ClientHello ends.
const (
	recordHandshake  = 22
	recordHeader     = 5
	maxRecord        = 1<<14 + 2048 // the most any version allows; no version allows an empty one here
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
	hello, err := parseHello(f.Data)
	if err != nil || !offers(hello, lowestTLSOffered) || beginsRequest(f.Data) {
		f.Kind = BadTLS
		return
	}
	f.SNI = hello.ServerName
	if name, err := policy.ParseName(hello.ServerName); err == nil {
		f.Name = name
	}
}

// helloScan finds the end of a ClientHello that may span records. It remembers the records it has walked, so a hello in
// one-byte segments costs no more than one in a piece.
type helloScan struct {
	at   int // where the first record not yet complete begins
	body int // bytes of the handshake message in the records before at
	head [handshakeHeader]byte
}

// next reports kindTLS when data holds a whole ClientHello, kindPartial when more is needed, kindBadTLS when no
// ClientHello can come of it. data is what it was at the last call, with more appended.
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

// message judges the handshake message of which n bytes are there.
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

// errPeeked ends the handshake of parseHello once the ClientHello is understood.
var errPeeked = errors.New("peeked")

// parseHello lets crypto/tls read the ClientHello, the same code that will read it again if TLS is terminated: no second
// parser that could see another name. An encrypted ClientHello shows its outer name.
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

// offers reports whether the client can speak version or a later one. GREASE values (RFC 8701) are none.
func offers(hello *tls.ClientHelloInfo, version uint16) bool {
	for _, v := range hello.SupportedVersions {
		if v >= version && v <= tls.VersionTLS13 {
			return true
		}
	}
	return false
}

// maxMethod is longer than any registered HTTP method.
const maxMethod = 32

// sniffHTTP tells whether data begins with a request line of HTTP/1, without judging it: the strict parser does. The
// connection preface of HTTP/2 in the clear is something else.
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

// methodRune reports whether r can stand in a method: methods are tokens (RFC 9110, 9.1 and 5.6.2).
func methodRune(r rune) bool {
	return 'A' <= r && r <= 'Z' || 'a' <= r && r <= 'z' || '0' <= r && r <= '9' || strings.ContainsRune("!#$%&'*+-.^_`|~", r)
}

// readOnly is a connection of which only Read works; what is written to it vanishes.
type readOnly struct{ io.Reader }

func (readOnly) Write(p []byte) (int, error)      { return len(p), nil }
func (readOnly) Close() error                     { return nil }
func (readOnly) LocalAddr() net.Addr              { return nil }
func (readOnly) RemoteAddr() net.Addr             { return nil }
func (readOnly) SetDeadline(time.Time) error      { return nil }
func (readOnly) SetReadDeadline(time.Time) error  { return nil }
func (readOnly) SetWriteDeadline(time.Time) error { return nil }
