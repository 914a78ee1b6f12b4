package placeholder

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
)

// ErrFrames is returned when a WebSocket client violates the protocol, or sends frames that cannot be searched.
var ErrFrames = errors.New("the client's WebSocket frames break the protocol")

// MaxMessage is the largest message whose tokens are replaced, in bytes.
const MaxMessage = 1 << 20

// Memory accounts for buffers.
type Memory interface {
	Grow(n int) bool
	Shrink(n int)
}

// Frames searches the frames of a WebSocket client (RFC 6455, 5), without extensions, for tokens. With Values it collects each text message,
// replaces up to [MaxTokens] tokens, and sends the message in one frame. A message larger than [MaxMessage] is only searched and forwarded as it
// arrives. Without Values the frames are unchanged. Not safe for concurrent use.
type Frames struct {
	// Values returns the values of the tokens of a text message. nil: tokens are not replaced.
	Values Values
	Memory Memory // required if Values is set

	header  []byte
	key     [4]byte // of the frame
	left    uint64  // remaining bytes of its payload
	offset  int     // in the payload, modulo 4
	control []byte  // the control frame so far
	plain   []byte  // scratch

	watch   Watch
	within  bool   // a message has begun
	collect bool   // it is a text message whose tokens are replaced
	message []byte // its collected part
	grown   int    // bytes of Memory for message
	sent    int    // bytes of Memory for the result of Append
	passing bool   // it is too large to be collected
	first   byte   // opcode of its next frame
}

const (
	finalBit   = 0x80
	reserved   = 0x70
	opcodeBits = 0x0f
	controlBit = 0x08
	maskBit    = 0x80
	textOpcode = 1
	shortMax   = 125
	maxHeader  = 14
)

// Append takes the next bytes from the client and appends bytes that can be forwarded to dst. They must be forwarded before the next call.
// After an error the connection must be closed.
func (f *Frames) Append(dst, part []byte) (_ []byte, err error) {
	if f.sent > 0 {
		f.Memory.Shrink(f.sent)
		f.sent = 0
	}
	for len(part) > 0 {
		if f.left == 0 && len(f.control) == 0 {
			n, whole, err := f.begin(part)
			part = part[n:]
			if err != nil || !whole {
				return dst, err
			}
			if dst, err = f.opened(dst); err != nil {
				return dst, err
			}
			continue
		}
		n := int(min(uint64(len(part)), f.left))
		f.left -= uint64(n)
		if dst, err = f.payload(dst, part[:n]); err != nil {
			return dst, err
		}
		part = part[n:]
	}
	return dst, nil
}

// begin collects a frame header and returns how much of part belongs to it, and whether it is complete.
func (f *Frames) begin(part []byte) (n int, whole bool, err error) {
	for n < len(part) {
		f.header = append(f.header, part[n])
		n++
		if len(f.header) < 2 {
			continue
		}
		size := int(f.header[1] &^ maskBit)
		if len(f.header) == 2 && !f.legal(size) {
			return n, false, ErrFrames
		}
		long := map[int]int{126: 2, 127: 8}[size]
		if len(f.header) < 2+long+len(f.key) {
			continue
		}
		f.left, f.offset = uint64(size), 0
		switch long {
		case 2:
			f.left = uint64(binary.BigEndian.Uint16(f.header[2:]))
		case 8:
			if f.left = binary.BigEndian.Uint64(f.header[2:]); f.left>>63 != 0 {
				return n, false, ErrFrames
			}
		}
		copy(f.key[:], f.header[2+long:])
		return n, true, nil
	}
	return n, false, nil
}

func (f *Frames) legal(size int) bool {
	first := f.header[0]
	if first&reserved != 0 || f.header[1]&maskBit == 0 {
		return false
	}
	if first&controlBit != 0 {
		return first&finalBit != 0 && size <= shortMax
	}
	return first&opcodeBits <= 2 && f.within == (first&opcodeBits == 0)
}

// opened handles a complete header, and the end of a frame without a payload.
func (f *Frames) opened(dst []byte) ([]byte, error) {
	first := f.header[0]
	if first&controlBit != 0 {
		f.control = append(f.control[:0], f.header...)
		if f.left == 0 {
			return f.payload(dst, nil)
		}
		return dst, nil
	}
	if !f.within {
		f.within, f.watch = true, Watch{on: true, tail: f.watch.tail[:0]}
		f.collect, f.passing, f.first = f.Values != nil && first&opcodeBits == textOpcode, false, first&opcodeBits
	}
	if !f.collect {
		dst = append(dst, f.header...)
	}
	if f.left == 0 {
		return f.payload(dst, nil)
	}
	return dst, nil
}

// payload takes the next bytes of a payload, and ends the frame after the last one.
func (f *Frames) payload(dst, masked []byte) ([]byte, error) {
	f.plain = f.plain[:0]
	for i, c := range masked {
		f.plain = append(f.plain, c^f.key[(f.offset+i)&3])
	}
	f.offset = (f.offset + len(masked)) & 3
	switch {
	case len(f.control) > 0:
		return f.ofControl(dst, masked)
	case f.collect:
		return f.collected(dst)
	}
	if err := f.watch.Look(f.plain); err != nil {
		return dst, err
	}
	dst = append(dst, masked...)
	f.frameEnd()
	return dst, nil
}

// frameEnd ends a data frame, and the message with its last one. It reports whether the message has ended.
func (f *Frames) frameEnd() bool {
	if f.left > 0 {
		return false
	}
	final := f.header[0]&finalBit != 0
	f.header, f.within = f.header[:0], !final
	return final
}

// ofControl searches a complete control frame: servers echo the payload of a ping.
func (f *Frames) ofControl(dst, masked []byte) ([]byte, error) {
	f.control = append(f.control, masked...)
	if f.left > 0 {
		return dst, nil
	}
	frame, head := f.control, len(f.header)
	f.control, f.header = f.control[:0], f.header[:0]
	plain := make([]byte, 0, shortMax)
	for i, c := range frame[head:] {
		plain = append(plain, c^f.key[i&3])
	}
	if start, _ := FindTokenBytes(plain); start >= 0 {
		return dst, ErrLate
	}
	return append(dst, frame...), nil
}

// collected takes the next bytes of a text message, and sends it when it is complete or too large.
func (f *Frames) collected(dst []byte) (_ []byte, err error) {
	if !f.passing {
		if err := f.appendMessage(); err != nil {
			return dst, err
		}
		if len(f.message) > MaxMessage {
			f.plain = append(f.plain[:0], f.message...)
			f.passing = true
			f.dropMessage()
		}
	}
	ended := f.frameEnd()
	switch {
	case f.passing && (len(f.plain) > 0 || ended):
		if err := f.watch.Look(f.plain); err != nil {
			return dst, err
		}
		dst = f.send(dst, f.plain, ended)
		if cap(f.plain) > MaxMessage {
			f.plain = nil
		}
		return dst, nil
	case f.passing || !ended:
		return dst, nil
	}
	return f.replaced(dst)
}

// replaced sends a complete message with its tokens replaced.
func (f *Frames) replaced(dst []byte) ([]byte, error) {
	defer f.dropMessage()
	syntax := Text
	if json.Valid(f.message) {
		syntax = JSON
	}
	message, err := Replace(f.message, syntax, f.Values)
	if err != nil {
		return dst, err
	}
	if need := 2*message.Size() + maxHeader; message.Any() { // as written and as sent; otherwise charged already
		if !f.Memory.Grow(need) {
			return dst, errMemory
		}
		f.sent += need
	}
	return f.send(dst, message.Bytes(), true), nil
}

// appendMessage adds the received payload to the message.
func (f *Frames) appendMessage() error {
	if need := 3 * (len(f.message) + len(f.plain)); need > f.grown { // while growing, and as sent
		if !f.Memory.Grow(need - f.grown) {
			return errMemory
		}
		f.grown = need
	}
	f.message = append(f.message, f.plain...)
	return nil
}

var errMemory = errors.New("the box has reached its memory limit in the gateway")

// dropMessage releases the collected message after it was sent.
func (f *Frames) dropMessage() {
	f.sent += f.grown
	f.message, f.grown = nil, 0
}

// send appends a frame of the message, masked by a new key.
func (f *Frames) send(dst, payload []byte, final bool) []byte {
	first := f.first
	if f.first = 0; final {
		first |= finalBit
	}
	dst = append(dst, first)
	switch n := len(payload); {
	case n <= shortMax:
		dst = append(dst, maskBit|byte(n))
	case n < 1<<16:
		dst = binary.BigEndian.AppendUint16(append(dst, maskBit|126), uint16(n))
	default:
		dst = binary.BigEndian.AppendUint64(append(dst, maskBit|127), uint64(n))
	}
	var key [4]byte
	_, _ = rand.Read(key[:]) // never fails
	dst = append(dst, key[:]...)
	for i, c := range payload {
		dst = append(dst, c^key[i&3])
	}
	return dst
}
