package websocket

import (
	"encoding/binary"
	"errors"
	"io"
)

// Opcodes (RFC 6455, 5.2).
const (
	opContinuation = 0x0
	opText         = 0x1
	opBinary       = 0x2
	opClose        = 0x8
	opPing         = 0x9
	opPong         = 0xa
)

// Close codes (RFC 6455, 7.4.1).
const (
	codeNormal   = 1000
	codeProtocol = 1002
	codeNone     = 1005 // never sent: means a close frame without a code
	codePayload  = 1007
	codeTooBig   = 1009
)

// messageMax is the longest accepted message in bytes.
const messageMax = 32 << 20

var errTooBig = errors.New("websocket: the message is too long")

// head is the header of a frame.
type head struct {
	fin    bool
	rsv    byte // three reserved bits
	opcode byte
	masked bool
	mask   [4]byte
	length uint64
}

func (h *head) control() bool { return h.opcode >= opClose }

// appendHead appends the header of a frame (RFC 6455, 5.2).
func appendHead(dst []byte, h head) []byte {
	first := h.rsv<<4 | h.opcode
	if h.fin {
		first |= 0x80
	}
	second := byte(0)
	if h.masked {
		second = 0x80
	}
	switch {
	case h.length < 126:
		dst = append(dst, first, second|byte(h.length))
	case h.length < 1<<16:
		dst = binary.BigEndian.AppendUint16(append(dst, first, second|126), uint16(h.length))
	default:
		dst = binary.BigEndian.AppendUint64(append(dst, first, second|127), h.length)
	}
	if h.masked {
		dst = append(dst, h.mask[:]...)
	}
	return dst
}

// readHead reads the header of a frame.
func readHead(r io.Reader) (h head, err error) {
	var b [8]byte
	if _, err := io.ReadFull(r, b[:2]); err != nil {
		return h, err
	}
	h.fin, h.rsv, h.opcode = b[0]&0x80 != 0, b[0]>>4&7, b[0]&0xf
	h.masked, h.length = b[1]&0x80 != 0, uint64(b[1]&0x7f)
	switch h.length {
	case 126:
		_, err = io.ReadFull(r, b[:2])
		h.length = uint64(binary.BigEndian.Uint16(b[:2]))
	case 127:
		_, err = io.ReadFull(r, b[:8])
		h.length = binary.BigEndian.Uint64(b[:8])
	}
	if err == nil && h.masked {
		_, err = io.ReadFull(r, h.mask[:])
	}
	return h, noEOF(err)
}

// noEOF turns io.EOF inside a frame into io.ErrUnexpectedEOF.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// unmask unmasks the part of a payload that begins at offset.
func (h *head) unmask(b []byte, offset int) {
	if h.masked {
		for i := range b {
			b[i] ^= h.mask[(offset+i)&3]
		}
	}
}

// closePayload returns the payload of a close frame.
func closePayload(code int, reason string) []byte {
	if code == codeNone {
		return nil
	}
	return append(binary.BigEndian.AppendUint16(nil, uint16(code)), reason...)
}
