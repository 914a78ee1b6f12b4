package scrub

import (
	"encoding/binary"
	"errors"
	"io"
)

// ErrCompressed says that a message is compressed although that was not negotiated.
var ErrCompressed = errors.New("a message of the response is compressed")

// Messages masks a body of length-prefixed messages, that of gRPC, gRPC-Web and streams of Connect. Each is a text of its
// own: nothing is held back at its end, where the peer may wait for it. It is not safe for concurrent use.
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

func (m *Messages) end(dst []byte) ([]byte, error) {
	if m.have > 0 {
		return dst, io.ErrUnexpectedEOF
	}
	return dst, nil
}
