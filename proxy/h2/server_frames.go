package h2

import (
	"encoding/binary"
	"errors"
	"io"
	"math"
	"slices"
	"sync/atomic"

	"golang.org/x/net/http2"

	"boxgate/proxy/h1"
)

// ErrServer ends an HTTP/2 connection whose server broke the protocol.
var ErrServer = errors.New("the server sent an HTTP/2 frame that is not allowed")

const (
	h2WindowFirst = 65535 // of a connection, before it is raised (RFC 9113, 6.9.2)
	endedMax      = 64    // streams that are remembered as ended
)

// serverFrames checks the heads of the frames that a server sends, before the HTTP/2 library reads them. It ends the
// connection where RFC 9113 requires it and the library does not, or does not send the server a reason: frames of
// streams that were never opened or that the server has ended, frames longer than agreed, window overflows, pushes; and
// too many frames without content ([EmptyFrames]). Frames of unknown types (5.5) and priorities, which mean nothing to
// a client, are dropped: the library would log each of them to the process's log.
//
// Read is called by one goroutine, sent and opened by the writing one.
type serverFrames struct {
	source io.Reader
	// refused sends the server the reason why the connection ends.
	refused func(http2.ErrCode)

	opened atomic.Uint32 // the highest stream opened
	window atomic.Int64  // send window of the connection

	buf   [FrameHead + 4]byte // the head of a frame, and the increment of a WINDOW_UPDATE
	got   int                 // bytes of the head already read
	out   []byte              // next bytes to pass on
	pass  int                 // bytes after out to pass on unread
	skip  int                 // bytes to drop first
	block uint32              // stream of a header block that has not ended; 0: none

	ended []uint32 // streams that the server ended most recently, oldest first
	empty EmptyFrames
}

func newServerFrames(source io.Reader, refused func(http2.ErrCode)) *serverFrames {
	f := &serverFrames{source: source, refused: refused}
	f.window.Store(h2WindowFirst)
	return f
}

// Read implements io.Reader.
func (f *serverFrames) Read(p []byte) (int, error) {
	for {
		switch {
		case len(f.out) > 0:
			n := copy(p, f.out)
			f.out = f.out[n:]
			return n, nil
		case f.pass > 0:
			n, err := f.source.Read(p[:min(len(p), f.pass)])
			f.pass -= n
			return n, err
		case f.skip > 0:
			n, err := f.source.Read(p[:min(len(p), f.skip)])
			if f.skip -= n; err != nil {
				return 0, err
			}
			continue
		}
		if err := f.next(); err != nil {
			return 0, err
		}
	}
}

// next reads the head of a frame. It may be retried after an error of the connection.
func (f *serverFrames) next() error {
	for f.got < FrameHead {
		n, err := f.source.Read(f.buf[f.got:FrameHead])
		if f.got += n; err != nil && f.got < FrameHead {
			if f.got > 0 && errors.Is(err, io.EOF) {
				return io.ErrUnexpectedEOF
			}
			return err
		}
	}
	f.got = 0
	h := frameHead(f.buf[:])
	if code := f.judge(h); code != http2.ErrCodeNo {
		return f.refuse(code)
	}
	switch {
	case !known(h.Type), h.Type == http2.FramePriority && h.StreamID != 0 && h.Length == 5:
		f.skip = int(h.Length)
	case h.Type == http2.FrameWindowUpdate && h.StreamID == 0 && h.Length == 4:
		return f.windowUpdate()
	case h.Type == http2.FrameSettings:
		return f.settings(int(h.Length))
	case mayBePadding(h):
		return f.padded(h)
	default:
		f.out, f.pass = f.buf[:FrameHead], int(h.Length)
	}
	return nil
}

func (f *serverFrames) refuse(code http2.ErrCode) error {
	f.refused(code)
	return ErrServer
}

// windowUpdate reads the increment of the connection's window.
func (f *serverFrames) windowUpdate() error {
	increment := f.buf[FrameHead:]
	if _, err := io.ReadFull(f.source, increment); err != nil {
		return h1.NoEOF(err)
	}
	if f.window.Add(int64(binary.BigEndian.Uint32(increment)&math.MaxInt32)) > math.MaxInt32 {
		return f.refuse(http2.ErrCodeFlowControl)
	}
	f.out = f.buf[:]
	return nil
}

// padded reads the length of a DATA frame's padding.
func (f *serverFrames) padded(h http2.FrameHeader) error {
	padding := f.buf[FrameHead : FrameHead+1]
	if _, err := io.ReadFull(f.source, padding); err != nil {
		return h1.NoEOF(err)
	}
	if f.empty.Excessive(h, int(h.Length)-1-int(padding[0])) {
		return f.refuse(http2.ErrCodeEnhanceYourCalm)
	}
	f.out, f.pass = f.buf[:FrameHead+1], int(h.Length)-1
	return nil
}

// settings reads the server's settings. It hides a larger maximum frame size than we use: the library would allocate a
// buffer of that size for each upload.
func (f *serverFrames) settings(length int) error {
	frame := make([]byte, FrameHead+length)
	copy(frame, f.buf[:FrameHead])
	if _, err := io.ReadFull(f.source, frame[FrameHead:]); err != nil {
		return h1.NoEOF(err)
	}
	for rest := frame[FrameHead:]; len(rest) >= settingSize; rest = rest[settingSize:] {
		if s := settingAt(rest); s.ID == http2.SettingMaxFrameSize && s.Val > FrameMax && s.Valid() == nil {
			binary.BigEndian.PutUint32(rest[2:], FrameMax)
		}
	}
	f.out = frame
	return nil
}

// frameHead parses the head of a frame (RFC 9113, 4.1).
func frameHead(b []byte) http2.FrameHeader {
	return http2.FrameHeader{
		Length: binary.BigEndian.Uint32(b) >> 8, Type: http2.FrameType(b[3]), Flags: http2.Flags(b[4]),
		StreamID: binary.BigEndian.Uint32(b[5:]) & math.MaxInt32,
	}
}

func known(t http2.FrameType) bool { return t <= http2.FrameContinuation }

// judge returns the error for a frame, or none.
func (f *serverFrames) judge(h http2.FrameHeader) http2.ErrCode {
	switch {
	case h.Length > FrameMax:
		return http2.ErrCodeFrameSize
	case f.block != 0 && (h.Type != http2.FrameContinuation || h.StreamID != f.block):
		return http2.ErrCodeProtocol // 6.10
	case !known(h.Type):
		return http2.ErrCodeNo
	case h.Type == http2.FramePushPromise: // push is disabled
		return http2.ErrCodeProtocol
	case h.Type == http2.FramePing && h.StreamID != 0:
		return http2.ErrCodeProtocol
	case h.Type == http2.FramePing && h.Length != 8:
		return http2.ErrCodeFrameSize
	case !mayBePadding(h) && f.empty.Excessive(h, int(h.Length)):
		return http2.ErrCodeEnhanceYourCalm
	}
	code := f.stream(h)
	if h.Type == http2.FrameHeaders || h.Type == http2.FrameContinuation {
		f.block = h.StreamID
		if h.Flags.Has(http2.FlagHeadersEndHeaders) { // the same bit in both
			f.block = 0
		}
	}
	return code
}

// stream checks the stream that a frame belongs to (5.1).
func (f *serverFrames) stream(h http2.FrameHeader) http2.ErrCode {
	id := h.StreamID
	if id == 0 || h.Type == http2.FramePriority {
		return http2.ErrCodeNo
	}
	if id%2 == 0 || id > f.opened.Load() {
		return http2.ErrCodeProtocol
	}
	carries := h.Type == http2.FrameData || h.Type == http2.FrameHeaders
	if carries && slices.Contains(f.ended, id) {
		return http2.ErrCodeStreamClosed
	}
	if h.Type == http2.FrameRSTStream || carries && h.Flags.Has(http2.FlagDataEndStream) { // the same bit in HEADERS
		f.end(id)
	}
	return http2.ErrCodeNo
}

// end remembers that the server has ended a stream. Streams no longer remembered are left to the library.
func (f *serverFrames) end(id uint32) {
	if len(f.ended) == endedMax {
		f.ended = append(f.ended[:0], f.ended[1:]...)
	}
	f.ended = append(f.ended, id)
}

// sent tracks the head of a frame on its way to the server.
func (f *serverFrames) sent(h http2.FrameHeader) {
	switch h.Type {
	case http2.FrameHeaders:
		f.opened.Store(max(f.opened.Load(), h.StreamID))
	case http2.FrameData:
		f.window.Add(-int64(h.Length))
	}
}
