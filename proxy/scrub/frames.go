package scrub

import (
	"encoding/binary"
	"errors"
	"io"
)

// ErrFrame is returned when a WebSocket server violates the protocol, or sends frames that cannot be scrubbed.
var ErrFrame = errors.New("the server's WebSocket frames violate the protocol")

// Frames masks the frames of a WebSocket server (RFC 6455, 5), without extensions. Frame headers are unchanged; a message
// is one text across its frames, and its end flushes the buffer. Not safe for concurrent use.
//
// A tail that is buffered at the end of a fragment waits for the next one, along with any control frames in between.
type Frames struct {
	set  *Set
	text *Stream

	header  []byte
	left    uint64 // remaining bytes of the payload
	control []byte // the current control frame
	final   bool

	queue  []insert
	queued int
	in     int64 // data bytes returned by it
	out    int64 // and returned by it
}

// insert is a header or control frame to insert in the data at an offset.
type insert struct {
	at    int64
	bytes []byte
}

// NewFrames returns a masker of frames.
func NewFrames(s *Set) *Frames { return &Frames{set: s, text: NewStream(s)} }

const (
	finalBit   = 0x80
	reserved   = 0x70
	opcode     = 0x0f
	controlBit = 0x08
	maskedBit  = 0x80
	shortMax   = 125
	queueMax   = 16 << 10 // bytes waiting after a tail
)

// Append takes the next bytes from the server and appends to dst the bytes that can be forwarded. After an error the
// connection must be closed.
func (f *Frames) Append(dst, part []byte) ([]byte, error) {
	for len(part) > 0 {
		if f.left == 0 {
			n, done, err := f.readHeader(part)
			if err != nil {
				return dst, err
			}
			part = part[n:]
			if !done {
				return dst, nil
			}
			if dst, err = f.handleHeader(dst); err != nil {
				return dst, err
			}
			continue
		}
		n := int(min(uint64(len(part)), f.left))
		f.left -= uint64(n)
		var err error
		if dst, err = f.payload(dst, part[:n]); err != nil {
			return dst, err
		}
		part = part[n:]
	}
	return dst, nil
}

// readHeader collects a frame header. It returns the number of bytes of part that belong to it, and whether the header is
// complete.
func (f *Frames) readHeader(part []byte) (n int, complete bool, err error) {
	for n < len(part) {
		f.header = append(f.header, part[n])
		n++
		if len(f.header) < 2 {
			continue
		}
		size := int(f.header[1] &^ maskedBit)
		long := map[int]int{126: 2, 127: 8}[size]
		if len(f.header) == 2 && !f.validHeader(size) {
			return n, false, ErrFrame
		}
		if len(f.header) < 2+long {
			continue
		}
		f.left = uint64(size)
		switch long {
		case 2:
			f.left = uint64(binary.BigEndian.Uint16(f.header[2:]))
		case 8:
			if f.left = binary.BigEndian.Uint64(f.header[2:]); f.left>>63 != 0 {
				return n, false, ErrFrame
			}
		}
		return n, true, nil
	}
	return n, false, nil
}

func (f *Frames) validHeader(size int) bool {
	first := f.header[0]
	if first&reserved != 0 || f.header[1]&maskedBit != 0 {
		return false
	}
	return first&controlBit == 0 || (first&finalBit != 0 && size <= shortMax)
}

// handleHeader handles a complete header, and the end of a frame without a payload.
func (f *Frames) handleHeader(dst []byte) ([]byte, error) {
	header := f.header
	f.header = nil
	if header[0]&controlBit != 0 {
		f.control = header
		if f.left == 0 {
			return f.endControl(dst)
		}
		return dst, nil
	}
	f.final = header[0]&finalBit != 0
	dst, err := f.insert(dst, header)
	if err == nil && f.left == 0 {
		dst = f.endData(dst)
	}
	return dst, err
}

func (f *Frames) payload(dst, part []byte) ([]byte, error) {
	if f.control != nil {
		f.control = append(f.control, part...)
		if f.left == 0 {
			return f.endControl(dst)
		}
		return dst, nil
	}
	f.in += int64(len(part))
	if len(f.queue) == 0 {
		start := len(dst)
		dst = f.text.Append(dst, part)
		f.out += int64(len(dst) - start)
	} else {
		dst = f.emit(dst, f.text.Append(nil, part))
	}
	if f.left == 0 {
		dst = f.endData(dst)
	}
	return dst, nil
}

func (f *Frames) endControl(dst []byte) ([]byte, error) {
	frame := f.control
	f.control = nil
	f.set.Mask(frame[2:])
	return f.insert(dst, frame)
}

// endData ends a data frame; the end of a message releases its buffered tail.
func (f *Frames) endData(dst []byte) []byte {
	if !f.final {
		return dst
	}
	return f.emit(dst, f.text.End(nil))
}

// insert queues bytes after the data received before them.
func (f *Frames) insert(dst, b []byte) ([]byte, error) {
	if f.in == f.out {
		return append(dst, b...), nil
	}
	if f.queued += len(b); f.queued > queueMax {
		return dst, ErrFrame
	}
	f.queue = append(f.queue, insert{f.in, b})
	return dst, nil
}

// emit appends data with the inserts due within it.
func (f *Frames) emit(dst, data []byte) []byte {
	for len(f.queue) > 0 && f.queue[0].at <= f.out+int64(len(data)) {
		n := f.queue[0].at - f.out
		dst = append(append(dst, data[:n]...), f.queue[0].bytes...)
		data, f.out = data[n:], f.out+n
		f.queued -= len(f.queue[0].bytes)
		f.queue = f.queue[1:]
	}
	f.out += int64(len(data))
	return append(dst, data...)
}

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
