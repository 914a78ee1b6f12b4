package balancer

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
	"time"
)

// Passed is the connection of a visitor that one host of a fleet passes on to the public URLs of another. It is sent as a header of version 2
// of the PROXY protocol (haproxy's proxy-protocol.txt) with two extensions: the host name, as PP2_TYPE_AUTHORITY, and one of the range for
// experiments that proves the sender.
type Passed struct {
	From     netip.AddrPort // the visitor
	To       netip.AddrPort // the address that the visitor has connected to
	Name     string         // the host name of the public URL; not empty
	Mode     Mode
	Sender   string    // ID of the host that passes it on: 6 bytes
	Receiver string    // ID of the host that has the box
	At       time.Time // when it was sent, in milliseconds
	Nonce    Nonce
}

// Mode is the protocol of the bytes after the header.
type Mode byte

const (
	// ModeTLS is the visitor's TLS, from its ClientHello on.
	ModeTLS Mode = 1
	// ModeHTTPS is TLS between the two hosts, with requests of the visitor to the host name inside. They have reached the sender over TLS.
	ModeHTTPS Mode = 2
	// ModeHTTP is ModeHTTPS for requests that have reached the sender over plain HTTP.
	ModeHTTP Mode = 3
)

// Requests reports whether TLS between the two hosts follows, with requests inside.
func (m Mode) Requests() bool { return m == ModeHTTPS || m == ModeHTTP }

// Nonce identifies a header. The sender chooses it at random.
type Nonce [nonceSize]byte

// NewNonce returns another nonce.
func NewNonce() (n Nonce) {
	_, _ = rand.Read(n[:]) // never fails (crypto/rand)
	return n
}

// FirstByte is the first byte of each header. No message of TLS begins with it.
const FirstByte = '\r'

const (
	typeAuthority = 0x02
	typePassed    = 0xe4 // of PP2_TYPE_MIN_EXPERIMENT to PP2_TYPE_MAX_EXPERIMENT; the last extension

	passedVersion = 1
	hostSize      = 6
	nonceSize     = 16
	proofSize     = sha256.Size
	passedSize    = 2 + 2*hostSize + 8 + nonceSize + proofSize
	nameMost      = 255

	// PassedMost is the maximum size of a header of [Passed.Append] in bytes.
	PassedMost = fixedSize + 36 + 3 + nameMost + 3 + passedSize
)

// Append appends the header. Its last bytes are an HMAC-SHA256 of all bytes before, with a key that only the sender and the receiver have.
func (p Passed) Append(b, key []byte) []byte {
	start := len(b)
	b = append(append(b, signature...), proxy)
	from, to := p.From.Addr().Unmap(), p.To.Addr().Unmap()
	family, addresses := byte(tcp4), 4
	if !from.Is4() || !to.Is4() {
		family, addresses = tcp6, 16
	}
	size := 2*addresses + 4 + 3 + len(p.Name) + 3 + passedSize
	b = binary.BigEndian.AppendUint16(append(b, family), uint16(size))
	for _, a := range []netip.Addr{from, to} {
		if wide := a.As16(); addresses == 16 {
			b = append(b, wide[:]...)
		} else {
			b = append(b, wide[12:]...)
		}
	}
	b = binary.BigEndian.AppendUint16(b, p.From.Port())
	b = binary.BigEndian.AppendUint16(b, p.To.Port())
	b = binary.BigEndian.AppendUint16(append(b, typeAuthority), uint16(len(p.Name)))
	b = append(b, p.Name...)
	b = binary.BigEndian.AppendUint16(append(b, typePassed), passedSize)
	b = append(append(append(b, passedVersion, byte(p.Mode)), p.Sender...), p.Receiver...)
	b = binary.BigEndian.AppendUint64(b, uint64(p.At.UnixMilli()))
	b = append(b, p.Nonce[:]...)
	proof := hmac.New(sha256.New, key)
	_, _ = proof.Write(b[start:]) // never fails
	return proof.Sum(b)
}

// Errors of headers of other hosts.
var (
	ErrPassed = errors.New("the PROXY header is not that of a host of this fleet")
	ErrForged = errors.New("the PROXY header names a host of this fleet, and was not made by it")
)

// ReadPassed reads a header, and no byte after it. The header is not verified; see [OpenPassed].
func ReadPassed(r io.Reader) ([]byte, error) {
	raw := make([]byte, fixedSize, PassedMost)
	if _, err := io.ReadFull(r, raw); err != nil {
		return nil, errors.Join(errSignature, err)
	}
	size := int(binary.BigEndian.Uint16(raw[len(signature)+2:]))
	switch {
	case string(raw[:len(signature)]) != signature:
		return nil, errSignature
	case fixedSize+size > PassedMost:
		return nil, errSize
	}
	raw = raw[:fixedSize+size]
	if _, err := io.ReadFull(r, raw[fixedSize:]); err != nil {
		return nil, errors.Join(errShort, err)
	}
	return raw, nil
}

// OpenPassed verifies a header for the host receiver. key returns the key for headers of a sender; false: it is not a member of the fleet. A
// header has exactly one form: that of [Passed.Append]. The caller checks its age, and that it was not used before.
func OpenPassed(raw []byte, receiver string, key func(sender string) ([]byte, bool)) (Passed, error) {
	p, err := parsePassed(raw)
	if err != nil {
		return Passed{}, err
	}
	secret, ok := key(p.Sender)
	if !ok || p.Receiver != receiver {
		return Passed{}, ErrPassed
	}
	if !hmac.Equal(p.Append(make([]byte, 0, len(raw)), secret), raw) {
		return Passed{}, ErrForged
	}
	return p, nil
}

// parsePassed reads a header without verifying it.
func parsePassed(raw []byte) (p Passed, err error) {
	if len(raw) < fixedSize || raw[len(signature)] != proxy {
		return p, ErrPassed
	}
	addresses := map[byte]int{tcp4: 4, tcp6: 16}[raw[len(signature)+1]]
	rest := raw[fixedSize:]
	if addresses == 0 || len(rest) < 2*addresses+4+3 {
		return p, ErrPassed
	}
	from, _ := netip.AddrFromSlice(rest[:addresses])
	to, _ := netip.AddrFromSlice(rest[addresses : 2*addresses])
	rest = rest[2*addresses:]
	p.From = netip.AddrPortFrom(from.Unmap(), binary.BigEndian.Uint16(rest))
	p.To = netip.AddrPortFrom(to.Unmap(), binary.BigEndian.Uint16(rest[2:]))
	rest = rest[4:]
	size := int(binary.BigEndian.Uint16(rest[1:]))
	if a := p.From.Addr(); a.IsUnspecified() || a.IsMulticast() || rest[0] != typeAuthority || size == 0 || size > nameMost || len(rest) != 3+size+3+passedSize {
		return p, ErrPassed
	}
	p.Name, rest = string(rest[3:3+size]), rest[3+size:]
	p.Mode = Mode(rest[4])
	if !bytes.Equal(rest[:4], []byte{typePassed, 0, passedSize, passedVersion}) || p.Mode != ModeTLS && !p.Mode.Requests() {
		return Passed{}, ErrPassed
	}
	rest = rest[5:]
	p.Sender, p.Receiver, rest = string(rest[:hostSize]), string(rest[hostSize:2*hostSize]), rest[2*hostSize:]
	p.At = time.UnixMilli(int64(binary.BigEndian.Uint64(rest)))
	p.Nonce = Nonce(rest[8:])
	return p, nil
}
