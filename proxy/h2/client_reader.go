package h2

import (
	"crypto/tls"
	"errors"
	"io"
	"sync/atomic"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"boxgate/internal/memory"
	"boxgate/proxy/buffers"
	"boxgate/proxy/h1"
)

const (
	// FrameHead is the length of a frame's header (RFC 9113, 4.1).
	FrameHead = 9
	// FrameMax is the largest frame a peer may send: the smallest limit that RFC 9113, 4.2 allows.
	FrameMax = 16 << 10
	// Streams is how many concurrent requests a client may have on one connection.
	Streams = 100
	// HeadRead is how much of a request's head is read. Larger heads end the connection.
	HeadRead = 2 * h1.MaxHead

	tableSize  = 4096      // of HPACK: the default, which our server keeps
	settingMax = 100       // settings in one frame; the library fails beyond that
	behindMax  = 1000      // requests read since the library last wrote or handled anything
	headsCost  = 384 << 10 // memory of an incomplete header block: decoded, up to HeadRead
)

// clientReader filters an HTTP/2 client connection for golang.org/x/net/http2. It handles four cases that the library
// handles differently:
//
// - A frame may contain a setting twice (6.5.3); the library ends such a connection. It is passed each setting once.
//   - A request with a field that belongs to HTTP/1.1 connections is malformed, a stream error (8.2.2); the library
//     answers it with a page of its own that no event tells of. Here its header block gets one more field, with a name
//     that no field can have: the library then resets the stream, and the HPACK state stays what the client thinks it is.
//   - Frames that carry nothing may come in any number; here they are bounded ([emptyFrames]).
//   - Requests that the library refuses on its own are known by its resets only. On a busy machine it may read
//     thousands before it writes one, and then ends the connection without a word; here that ends it first, and is told.
//
// Everything else passes unchanged, whatever it is, and is the library's to judge. It is read by one goroutine.
type clientReader struct {
	*tls.Conn
	source    io.Reader                            // what the client sends: the connection
	malformed func(method, authority, path string) // called once for each request that is refused here
	flooded   func()                               // called when the connection ends because of behindMax
	behind    atomic.Int32                         // requests read since the library last wrote or handled anything

	preface int             // bytes of the client's preface still to come
	head    [FrameHead]byte // of the frame being read
	got     int             // bytes of the frame that are read
	held    *[]byte         // the frame, where all of it has to be looked at before it goes on; else nil
	out     []byte          // what goes on next, in head or held
	pass    int             // bytes behind out that go on as they come

	fields *hpack.Decoder // nil once a header block made no sense: the library ends such a connection
	open   bool           // a header block has begun and not ended
	stream uint32         // it belongs to
	bad    bool           // it holds a forbidden field
	pseudo [3]string      // method, authority and path of it
	empty  emptyFrames
	heads  memory.Claim // for a header block that did not end with its first frame
}

// frameBuffers hold frames that are looked at as a whole.
var frameBuffers = buffers.NewPool(32 << 10)

// errCalm is what the library is told in the place of a frame too many; it ends the connection with this code.
const errCalm = http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)

// newClientReader returns the connection for the library to read.
func newClientReader(conn *tls.Conn, holds *memory.Account, malformed func(method, authority, path string), flooded func()) *clientReader {
	in := &clientReader{Conn: conn, source: conn, malformed: malformed, flooded: flooded, preface: len(http2.ClientPreface)}
	in.fields = hpack.NewDecoder(tableSize, in.field)
	in.fields.SetMaxStringLength(HeadRead)
	in.heads.Open(holds, memory.HTTP2)
	return in
}

// Read implements net.Conn. While nothing comes it holds no buffer.
func (in *clientReader) Read(p []byte) (int, error) {
	for {
		switch {
		case len(in.out) > 0:
			n := copy(p, in.out)
			if in.out = in.out[n:]; len(in.out) == 0 {
				in.giveBack()
			}
			return n, nil
		case in.preface > 0:
			return in.through(p, &in.preface)
		case in.pass > 0:
			return in.through(p, &in.pass)
		}
		if err := in.next(); err != nil {
			return 0, err
		}
	}
}

// through reads what goes on as it comes; left is how much that is.
func (in *clientReader) through(p []byte, left *int) (int, error) {
	n, err := in.source.Read(p[:min(len(p), *left)])
	*left -= n
	return n, err
}

// next reads the head of a frame, and the rest of it if it has to be looked at. It may be called again after an error.
func (in *clientReader) next() error {
	if in.held == nil {
		if err := in.fill(in.head[:]); err != nil {
			return err
		}
		h := frameHead(in.head[:])
		length := int(h.Length)
		if length > FrameMax || !in.concerns(h) {
			if in.excessive(h, length) {
				return errCalm
			}
			in.out, in.pass, in.got = in.head[:], length, 0
			return nil
		}
		in.held = frameBuffers.Get()
		*in.held = append((*in.held)[:0], in.head[:]...)[:FrameHead+length]
	}
	if err := in.fill(*in.held); err != nil {
		return err
	}
	out, err := in.look(*in.held)
	in.out, in.got = out, 0
	return err
}

// fill reads until frame is full.
func (in *clientReader) fill(frame []byte) error {
	for in.got < len(frame) {
		n, err := in.source.Read(frame[in.got:])
		if in.got += n; err != nil && in.got < len(frame) {
			if in.got > 0 && errors.Is(err, io.EOF) {
				return io.ErrUnexpectedEOF
			}
			return err
		}
	}
	return nil
}

// giveBack ends the use of the buffer.
func (in *clientReader) giveBack() {
	if in.held != nil {
		*in.held = (*in.held)[:cap(*in.held)]
		frameBuffers.Put(in.held)
		in.held = nil
	}
}

// concerns reports whether frames of a type are looked at.
func (in *clientReader) concerns(h http2.FrameHeader) bool {
	switch h.Type {
	case http2.FrameSettings:
		return true
	case http2.FrameData:
		return mayBePadding(h)
	case http2.FrameHeaders, http2.FrameContinuation:
		return in.fields != nil
	}
	return false
}

// look returns what goes on in the place of a frame. The buffer of the frame has room for some more bytes.
func (in *clientReader) look(frame []byte) ([]byte, error) {
	head, payload := frameHead(frame), frame[FrameHead:]
	content := len(payload)
	if head.Type == http2.FrameData {
		content -= 1 + int(payload[0])
	}
	if in.excessive(head, content) {
		in.giveBack()
		return nil, errCalm
	}
	switch head.Type {
	case http2.FrameData:
		return frame, nil
	case http2.FrameSettings:
		return settingsOnce(frame, head), nil
	}
	began := in.open
	out := in.headers(frame, head)
	switch {
	case !in.open:
		in.heads.Release()
	case !began && !in.heads.Grow(headsCost): // the library decodes it as it comes
		in.giveBack()
		return nil, errCalm
	}
	return out, nil
}

// excessive counts a frame with the given bytes of content, and reports whether it is one too many.
func (in *clientReader) excessive(h http2.FrameHeader, content int) bool {
	if h.Type == http2.FrameHeaders && in.behind.Add(1) > behindMax {
		in.flooded()
		return true
	}
	return in.empty.excessive(h, content)
}

// headers is look for the frames of a header block.
func (in *clientReader) headers(frame []byte, head http2.FrameHeader) []byte {
	block, ok := in.block(frame[FrameHead:], head)
	if !ok || !in.read(block, head.Flags.Has(http2.FlagHeadersEndHeaders)) {
		in.fields = nil
		return frame
	}
	if in.open || !in.bad {
		return frame
	}
	in.malformed(in.pseudo[0], in.pseudo[1], in.pseudo[2])
	return spoilt(frame)
}

// block returns the part of a header block that a frame carries.
func (in *clientReader) block(payload []byte, head http2.FrameHeader) ([]byte, bool) {
	if head.Type == http2.FrameContinuation {
		return payload, in.open && head.StreamID == in.stream
	}
	if in.open {
		return nil, false
	}
	skip, padding := 0, 0
	if head.Flags.Has(http2.FlagHeadersPadded) {
		if len(payload) == 0 {
			return nil, false
		}
		skip, padding = 1, int(payload[0])
	}
	if head.Flags.Has(http2.FlagHeadersPriority) {
		skip += 5
	}
	if skip+padding > len(payload) {
		return nil, false
	}
	in.open, in.stream, in.bad, in.pseudo = true, head.StreamID, false, [3]string{}
	return payload[skip : len(payload)-padding], true
}

// read decodes a part of a header block.
func (in *clientReader) read(block []byte, last bool) bool {
	if _, err := in.fields.Write(block); err != nil {
		return false
	}
	if !last {
		return true
	}
	in.open = false
	return in.fields.Close() == nil
}

// field is told each field of a header block.
func (in *clientReader) field(f hpack.HeaderField) {
	switch f.Name {
	case ":method":
		in.pseudo[0] = f.Value
	case ":authority":
		in.pseudo[1] = f.Value
	case ":path":
		in.pseudo[2] = f.Value
	case "connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade":
		in.bad = true
	case "te":
		in.bad = in.bad || f.Value != "trailers"
	}
}

// spoilt makes a frame that ends a header block not end it, and adds one that does: a literal field that enters no
// table, whose name is the letter A. Capital letters are what no name may hold (RFC 9113, 8.2.1).
func spoilt(frame []byte) []byte {
	stream := frame[5:FrameHead:FrameHead]
	frame[4] &^= byte(http2.FlagHeadersEndHeaders)
	frame = append(frame, 0, 0, 4, byte(http2.FrameContinuation), byte(http2.FlagContinuationEndHeaders))
	frame = append(frame, stream...)
	return append(frame, 0, 1, 'A', 0)
}
