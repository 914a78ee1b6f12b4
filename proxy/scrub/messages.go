package scrub

import (
	"encoding/binary"
	"errors"
	"io"
)

// ErrCompressed is returned for a message that is compressed although that was not negotiated.
var ErrCompressed = errors.New("a message of the response is compressed")

// Messages masks a body of length-prefixed messages: gRPC, gRPC-Web and Connect streams. Each message is a separate
// text: its end flushes the buffer, as the peer may be waiting for it. Not safe for concurrent use.
type Messages struct {
	text   *Stream
	prefix [5]byte
	have   int // bytes of prefix
	left   uint32
}

// NewMessages returns a masker of messages.
func NewMessages(s *Set) *Messages { return &Messages{text: NewStream(s)} }

const compressed = 1 // flag

func (m *Messages) mask(dst, part []byte) ([]byte, error) {
	for len(part) > 0 {
		if m.have < len(m.prefix) {
			n := copy(m.prefix[m.have:], part)
			dst, part = append(dst, part[:n]...), part[n:]
			if m.have += n; m.have < len(m.prefix) {
				return dst, nil
			}
			if m.prefix[0]&compressed != 0 {
				return dst, ErrCompressed
			}
			m.left = binary.BigEndian.Uint32(m.prefix[1:])
		}
		n := min(len(part), int(m.left))
		dst, part = m.text.Append(dst, part[:n]), part[n:]
		if m.left -= uint32(n); m.left == 0 {
			dst = m.text.End(dst)
			m.have = 0
		}
	}
	return dst, nil
}

func (m *Messages) maskEnd(dst []byte) ([]byte, error) {
	if m.have > 0 {
		return dst, io.ErrUnexpectedEOF
	}
	return dst, nil
}
