package websocket

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"errors"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
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

const (
	windowMax = 32 << 10
	// deflateTail ends the output of a flushed compressor and is removed on the wire (RFC 7692, 7.2.1).
	deflateTail = "\x00\x00\xff\xff"
	// inflateTail is appended for the decompressor: deflateTail and an empty final block.
	inflateTail = deflateTail + "\x01\x00\x00\xff\xff"
)

// agreed holds the negotiated parameters of permessage-deflate (RFC 7692, 7.1).
type agreed struct {
	serverForgets, clientForgets bool // no context takeover
	serverWindow                 int  // bytes; 0: the maximum
}

// accept chooses the first acceptable offer and returns the parameters for the response.
func accept(offers string) (a agreed, answer string, ok bool) {
	for offer := range strings.SplitSeq(offers, ",") {
		if a, answer, ok := acceptOne(offer); ok {
			return a, answer, true
		}
	}
	return agreed{}, "", false
}

func acceptOne(offer string) (a agreed, answer string, ok bool) {
	parts := strings.Split(offer, ";")
	if strings.TrimSpace(parts[0]) != "permessage-deflate" {
		return a, "", false
	}
	answer = "permessage-deflate"
	for _, p := range parts[1:] {
		p = strings.TrimSpace(p)
		switch {
		case p == "client_no_context_takeover" || p == "client_max_window_bits":
			continue // a capability of the client that is not used
		case p == "server_no_context_takeover":
			a.serverForgets = true
		case a.takesWindow(p):
		default:
			return a, "", false
		}
		answer += "; " + p
	}
	return a, answer, true
}

// takesWindow parses server_max_window_bits.
func (a *agreed) takesWindow(p string) bool {
	value, is := strings.CutPrefix(p, "server_max_window_bits=")
	bits, err := strconv.Atoi(value)
	if !is || err != nil || bits < 9 || bits > 15 {
		return false
	}
	a.serverWindow = 1 << bits
	return true
}

// agreement parses a server's response. It may require of the client only capabilities that the client offered.
func agreement(answer string) (a agreed, ok bool) {
	for p := range strings.SplitSeq(answer, ";") {
		switch p = strings.TrimSpace(p); {
		case p == "permessage-deflate":
			ok = true
		case p == "server_no_context_takeover":
			a.serverForgets = true
		case p == "client_no_context_takeover":
			a.clientForgets = true
		case a.takesWindow(p):
		default:
			return a, false
		}
	}
	return a, ok
}

// deflater compresses the messages of one direction.
type deflater struct {
	forgets bool
	window  int
	out     bytes.Buffer
	w       *flate.Writer
}

// compress returns a compressed message, valid until the next call.
//
// The compressor supports only one window size. A smaller window is emulated by a reset after that many bytes.
func (d *deflater) compress(message []byte) ([]byte, error) {
	d.out.Reset()
	if d.w == nil {
		w, err := flate.NewWriter(&d.out, flate.BestSpeed)
		if err != nil {
			return nil, err
		}
		d.w = w
	}
	small := d.window > 0 && d.window < windowMax
	for piece := message; ; {
		if d.forgets || small {
			d.w.Reset(&d.out)
		}
		n := len(piece)
		if small {
			n = min(n, d.window)
		}
		if _, err := d.w.Write(piece[:n]); err != nil {
			return nil, err
		}
		if err := d.w.Flush(); err != nil {
			return nil, err
		}
		if piece = piece[n:]; len(piece) == 0 {
			break
		}
	}
	return bytes.TrimSuffix(d.out.Bytes(), []byte(deflateTail)), nil
}

// inflater decompresses the messages of one direction.
type inflater struct {
	forgets bool
	window  []byte // the window
	r       io.ReadCloser
}

// decompress returns the decompressed message.
func (i *inflater) decompress(compressed []byte) ([]byte, error) {
	if i.forgets {
		i.window = nil
	}
	in := io.MultiReader(bytes.NewReader(compressed), strings.NewReader(inflateTail))
	if i.r == nil {
		i.r = flate.NewReaderDict(in, i.window)
	} else if err := i.r.(flate.Resetter).Reset(in, i.window); err != nil {
		return nil, err
	}
	message, err := io.ReadAll(io.LimitReader(i.r, messageMax+1))
	switch {
	case err != nil:
		return nil, err
	case len(message) > messageMax:
		return nil, errTooBig
	}
	i.window = append(i.window, message...)
	i.window = append([]byte(nil), i.window[max(0, len(i.window)-windowMax):]...)
	return message, nil
}

// utf8Check validates text that arrives in chunks, and fails at the first invalid byte.
type utf8Check struct {
	rest [utf8.UTFMax]byte // incomplete code point
	n    int
}

// add reports whether the text may still be valid after b.
func (c *utf8Check) add(b []byte) bool {
	for c.n > 0 && len(b) > 0 {
		c.rest[c.n] = b[0]
		c.n++
		b = b[1:]
		if !utf8.FullRune(c.rest[:c.n]) {
			continue
		}
		if r, size := utf8.DecodeRune(c.rest[:c.n]); r == utf8.RuneError && size == 1 {
			return false
		}
		c.n = 0
	}
	for len(b) > 0 {
		if !utf8.FullRune(b) {
			c.n = copy(c.rest[:], b)
			return true
		}
		r, size := utf8.DecodeRune(b)
		if r == utf8.RuneError && size == 1 {
			return false
		}
		b = b[size:]
	}
	return true
}

// whole reports whether the text may end here, outside of a code point.
func (c *utf8Check) whole() bool { return c.n == 0 }
